//! Reads and writes of whole pages, done somewhere else, answered by a call.
//!
//! A backend moves all bytes or says why not: it goes on after a partial transfer. A read that ends
//! early met the end of the file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::buffer::Buffer;
use super::record::PAGE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

/// What the bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Record,
    Journal,
}

/// Called once with the buffer and the bytes moved; on a thread of the backend, so it must be quick.
pub type Done = Box<dyn FnOnce(Buffer, io::Result<usize>) + Send>;

pub struct Io {
    pub file: Arc<File>,
    pub direction: Direction,
    pub class: Class,
    pub offset: u64,
    pub buffer: Buffer,
    /// Bytes of the buffer to move, from its start.
    pub len: usize,
    pub done: Done,
}

pub trait IoBackend: Send + Sync {
    /// Every submitted transfer is answered, in any order.
    fn submit(&self, io: Io);

    /// For people: what does the work.
    fn name(&self) -> &'static str;
}

/// How a partial transfer goes on.
pub(super) enum Step {
    Again,
    Over(io::Result<usize>),
}

/// `moved` bytes were done before, the last call answered `result` (negative: an errno).
pub(super) fn step(direction: Direction, len: usize, moved: &mut usize, result: i64) -> Step {
    if result < 0 {
        let errno = (-result) as i32;
        if errno == libc::EINTR || errno == libc::EAGAIN {
            return Step::Again;
        }
        return Step::Over(Err(io::Error::from_raw_os_error(errno)));
    }
    *moved += result as usize;
    if *moved >= len {
        return Step::Over(Ok(*moved));
    }
    match direction {
        Direction::Write if result == 0 => Step::Over(Err(io::ErrorKind::WriteZero.into())),
        Direction::Read if result == 0 => Step::Over(Ok(*moved)),
        // Past an odd end of a file a direct read would only be refused.
        Direction::Read if *moved % PAGE != 0 => Step::Over(Ok(*moved)),
        _ => Step::Again,
    }
}

/// Do a transfer on this thread.
pub(super) fn perform(io: Io) {
    let Io { file, direction, offset, mut buffer, len, done, .. } = io;
    let (fd, mut moved) = (file.as_raw_fd(), 0);
    let result = loop {
        let rest = &mut buffer[moved..len];
        let at = (offset + moved as u64) as libc::off_t;
        let count = match direction {
            Direction::Read => unsafe { libc::pread(fd, rest.as_mut_ptr().cast(), rest.len(), at) },
            Direction::Write => unsafe { libc::pwrite(fd, rest.as_ptr().cast(), rest.len(), at) },
        };
        let count = if count < 0 { -i64::from(last_errno()) } else { count as i64 };
        if let Step::Over(result) = step(direction, len, &mut moved, count) {
            break result;
        }
    };
    drop(file);
    done(buffer, result);
}

pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
