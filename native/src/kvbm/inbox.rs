//! A queue between threads whose reader sleeps on a descriptor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An event descriptor: rung by many, heard by one.
pub struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Self> {
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn ring(&self) {
        let one = 1_u64.to_ne_bytes();
        // It fails only when the count is at its end, and then the reader is awake anyway.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    }

    /// Sleep until it is rung or the time is over.
    pub fn wait(&self, timeout: Duration) {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = timeout.as_millis().min(60_000) as libc::c_int;
        unsafe { libc::poll(&mut poll, 1, millis) };
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

pub struct Inbox<T> {
    queue: Mutex<Vec<T>>,
    pub bell: Bell,
}

impl<T> Inbox<T> {
    pub fn new() -> io::Result<Self> {
        Ok(Self { queue: Mutex::new(Vec::new()), bell: Bell::new()? })
    }

    pub fn push(&self, thing: T) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(thing);
        // Whoever finds something there has been rung for it.
        if queue.len() == 1 {
            drop(queue);
            self.bell.ring();
        }
    }

    /// Everything that waits, in order; `into` is empty and its memory is used again.
    pub fn drain(&self, into: &mut Vec<T>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *queue, into);
    }
}
