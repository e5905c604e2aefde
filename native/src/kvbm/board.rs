//! What daemon and client share of a session beside the socket: one small sealed memory.
//!
//! The daemon beats its heart there, so a client sees without a system call that it hangs, and counts
//! the finished jobs, so a client that has none finished need not look at the socket. The gates of the
//! session's jobs lie behind that.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::Arc;

use super::gate::Gate;
use super::memory::Memory;
use super::message::GATES;

const BEAT: usize = 0;
const DONE: usize = 8;
const GATES_AT: usize = 4096;

pub const BOARD_BYTES: usize = GATES_AT + GATES as usize * 8;

#[derive(Clone)]
pub struct Board(Arc<Memory>);

impl Board {
    pub fn create() -> io::Result<Self> {
        Ok(Self(Arc::new(Memory::create(c"kvbm-board", BOARD_BYTES)?)))
    }

    pub fn attach(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(Memory::attach(fd, BOARD_BYTES)?)))
    }

    pub fn fd(&self) -> RawFd {
        self.0.fd()
    }

    /// Daemon: alive at this time, in microseconds of the machine's clock since it was started.
    pub fn beat(&self, now_us: u64) {
        self.0.word(BEAT).store(now_us, Release);
    }

    pub fn last_beat_us(&self) -> u64 {
        self.0.word(BEAT).load(Acquire)
    }

    /// Daemon: one more job's end was sent.
    pub fn count_done(&self) {
        self.0.word(DONE).fetch_add(1, Release);
    }

    pub fn done(&self) -> u64 {
        self.0.word(DONE).load(Acquire)
    }

    pub fn gate(&self, at: u32, usage: u32) -> Gate {
        Gate::new(Arc::clone(&self.0), GATES_AT + (at % GATES) as usize * 8, usage)
    }
}

/// Microseconds of the clock that all processes of the machine share.
pub fn clock_us() -> u64 {
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
