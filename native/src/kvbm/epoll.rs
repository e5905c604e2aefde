//! Waiting for many descriptors; each is known by a number.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub struct Epoll(OwnedFd);

/// A descriptor that is ready.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    pub name: u64,
    /// There is something to read, the end or an error included.
    pub read: bool,
}

impl Epoll {
    pub fn new() -> io::Result<Self> {
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn add(&self, fd: RawFd, name: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, name, true, false)
    }

    pub fn change(&self, fd: RawFd, name: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, name, read, write)
    }

    /// Closing a descriptor that was duplicated does not take it out.
    pub fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, false, false);
    }

    pub fn wait(&self, timeout: Duration, into: &mut Vec<Ready>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let millis = timeout.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
        let most = events.len() as libc::c_int;
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), most, millis) };
        let (input, other) = (libc::EPOLLIN as u32, (libc::EPOLLHUP | libc::EPOLLERR) as u32);
        into.extend(
            events[..count.max(0) as usize]
                .iter()
                .map(|event| Ready { name: event.u64, read: event.events & (input | other) != 0 }),
        );
    }

    fn control(
        &self,
        what: libc::c_int,
        fd: RawFd,
        name: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let mut events = if read { libc::EPOLLIN as u32 } else { 0 };
        events |= if write { libc::EPOLLOUT as u32 } else { 0 };
        let mut event = libc::epoll_event { events, u64: name };
        if unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
