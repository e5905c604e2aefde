//! Unix stream sockets that never block and carry descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Descriptors that one message may carry, and that may wait at a socket.
const FDS_MAX: usize = 8;
const CONTROL: usize = 256;
/// Bytes kept together in one piece.
const PIECE: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub pid: i32,
    pub uid: u32,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() {
        let what = format!("{}: a socket's path may have 107 bytes", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Listen at a path with these permissions; a socket that nobody listens at any more is replaced.
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let (address, len) = address(path)?;
    let fd = socket()?;
    let bind = || check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) });
    if let Err(error) = bind() {
        let dead = error.raw_os_error() == Some(libc::EADDRINUSE)
            && connect(path).is_err_and(|e| e.raw_os_error() == Some(libc::ECONNREFUSED));
        if !dead {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        bind()?;
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    check(unsafe { libc::listen(fd.as_raw_fd(), 128) })?;
    Ok(fd)
}

pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let (address, len) = address(path)?;
    let fd = socket()?;
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(fd)
}

pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let none = std::ptr::null_mut();
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), none, none.cast(), flags) };
    Ok(unsafe { OwnedFd::from_raw_fd(check(fd)?) })
}

pub fn peer(fd: &OwnedFd) -> io::Result<Peer> {
    let mut cred: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let into = (&raw mut cred).cast();
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, into, &mut len) })?;
    Ok(Peer { pid: cred.pid, uid: cred.uid })
}

/// A descriptor that becomes readable when the process ends.
pub fn watch_process(pid: i32) -> io::Result<OwnedFd> {
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    Ok(unsafe { OwnedFd::from_raw_fd(check(fd as libc::c_int)?) })
}

pub fn is_readable(fd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// Read what is there. Ok(0): the peer has closed.
pub fn receive(fd: &OwnedFd, into: &mut [u8], fds: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control = [0_u64; CONTROL / 8];
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    let count = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, flags) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    unsafe { take_fds(&message, fds) };
    if message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > FDS_MAX {
        fds.clear();
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors"));
    }
    Ok(count as usize)
}

unsafe fn take_fds(message: &libc::msghdr, fds: &mut VecDeque<OwnedFd>) {
    let mut at = libc::CMSG_FIRSTHDR(message);
    while !at.is_null() {
        if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
            let data = libc::CMSG_DATA(at).cast::<RawFd>();
            let bytes = (*at).cmsg_len - libc::CMSG_LEN(0) as usize;
            for n in 0..bytes / size_of::<RawFd>() {
                fds.push_back(OwnedFd::from_raw_fd(data.add(n).read_unaligned()));
            }
        }
        at = libc::CMSG_NXTHDR(message, at);
    }
}

/// Send as much as goes, the descriptors with the first byte.
pub fn send(fd: &OwnedFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let mut control = [0_u64; CONTROL / 8];
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    let fds = &fds[..fds.len().min(FDS_MAX)];
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data = libc::CMSG_DATA(head).cast::<RawFd>();
            fds.iter().enumerate().for_each(|(n, &fd)| data.add(n).write_unaligned(fd));
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let count = unsafe { libc::sendmsg(fd.as_raw_fd(), &message, flags) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(count as usize)
}

struct Piece {
    bytes: Vec<u8>,
    fds: Vec<Arc<OwnedFd>>,
}

/// Bytes that wait to be sent.
#[derive(Default)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    /// Sent of the first piece.
    sent: usize,
    waiting: usize,
}

impl Outbox {
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn push(&mut self, bytes: Vec<u8>, fds: Vec<Arc<OwnedFd>>) {
        self.waiting += bytes.len();
        match self.pieces.back_mut() {
            Some(last) if fds.is_empty() && last.bytes.len() < PIECE => {
                last.bytes.extend_from_slice(&bytes);
            }
            _ => self.pieces.push_back(Piece { bytes, fds }),
        }
    }

    /// Send until everything is out (true) or the socket takes no more (false).
    pub fn flush(&mut self, fd: &OwnedFd) -> io::Result<bool> {
        while let Some(piece) = self.pieces.front() {
            let raw: Vec<RawFd> = match self.sent {
                0 => piece.fds.iter().map(|fd| fd.as_raw_fd()).collect(),
                _ => Vec::new(),
            };
            match send(fd, &piece.bytes[self.sent..], &raw) {
                Ok(count) => {
                    self.sent += count;
                    self.waiting -= count;
                    if self.sent == piece.bytes.len() {
                        self.pieces.pop_front();
                        self.sent = 0;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Received bytes and descriptors that no frame has been made of yet.
#[derive(Default)]
pub struct Intake {
    bytes: Vec<u8>,
    pub fds: VecDeque<OwnedFd>,
}

impl Intake {
    /// Read what is there, at most `most` bytes; false: the peer has closed.
    pub fn fill(&mut self, fd: &OwnedFd, most: usize) -> io::Result<bool> {
        let mut room = [0; 64 << 10];
        let mut taken = 0;
        while taken < most {
            match receive(fd, &mut room, &mut self.fds) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.bytes.extend_from_slice(&room[..count]);
                    taken += count;
                    if count < room.len() {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    pub fn next_frame(&mut self) -> Result<Option<super::wire::Frame>, super::wire::BadFrame> {
        let Some((frame, used)) = super::wire::take_frame(&self.bytes)? else { return Ok(None) };
        self.bytes.drain(..used);
        Ok(Some(frame))
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
