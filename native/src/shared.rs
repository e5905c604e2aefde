//! Shared memory with one slot per worker: one writer per slot, readers sum, no locks.
//!
//! A region is an anonymous file mapped by every process that is given its descriptor: a header, one
//! cache line per worker, then a body of 64-bit cells whose meaning belongs to the owner. A worker
//! binds its slot, which makes the slot's generation odd; whoever reaps the worker retires the slot,
//! which makes it even. A writer whose slot was retired under it (stopped, taken for dead, woken up)
//! finds another generation there and writes nothing more.
//!
//! Counts stay where they are when a worker ends and its successor in the slot counts on, so a sum over
//! all slots never goes back; only gauges are zeroed, by the owner of the body, right after `retire`.
//! A process must have ended before its slot is retired.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::hash::mix;

const MAGIC: u64 = u64::from_le_bytes(*b"kvgate01");
const HEADER: usize = 8;
const LINE: usize = 8;
const UNBOUND: usize = usize::MAX;
/// Most 64-bit cells in a region: 8 GiB, of which only touched pages exist.
const CELLS_MAX: usize = 1 << 30;

/// Words of the header.
const H_MAGIC: usize = 0;
const H_LAYOUT: usize = 1;
const H_HIGH: usize = 2;

/// Words of a worker's line.
const W_GENERATION: usize = 0;
const W_BEAT: usize = 1;
/// Four words that the owner of the region may use.
const W_SPARE: usize = 4;
pub const SPARE_WORDS: usize = 4;

#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// Wrong sizes, wrong descriptor, wrong index.
    Value(String),
    /// Writing before `bind`.
    Unbound,
}

impl From<String> for Fault {
    fn from(what: String) -> Self {
        Fault::Value(what)
    }
}

struct Mapping {
    base: *const AtomicU64,
    cells: usize,
    fd: OwnedFd,
}

// All access goes through atomics; the mapping lives as long as its owner.
unsafe impl Send for Mapping {}
unsafe impl Sync for Mapping {}

impl Mapping {
    fn create(cells: usize) -> Result<Self, String> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = unsafe { libc::memfd_create(c"kvgate".as_ptr(), flags) };
        if fd < 0 {
            return Err(os_error("cannot create shared memory"));
        }
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if unsafe { libc::ftruncate(fd.as_raw_fd(), (cells * 8) as libc::off_t) } != 0 {
            return Err(os_error("cannot size shared memory"));
        }
        // Whoever shrank it would kill every other process with SIGBUS.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(os_error("cannot seal shared memory"));
        }
        Self::map(fd, cells)
    }

    fn attach(fd: RawFd, cells: usize) -> Result<Self, String> {
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(os_error(&format!("cannot use descriptor {fd} as shared memory")));
        }
        let copy = unsafe { OwnedFd::from_raw_fd(copy) };
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        if unsafe { libc::fstat(copy.as_raw_fd(), &mut stat) } != 0 {
            return Err(os_error(&format!("cannot size descriptor {fd}")));
        }
        if stat.st_size as usize != cells * 8 {
            return Err(format!(
                "descriptor {fd} holds {} bytes of shared memory, these sizes need {}",
                stat.st_size,
                cells * 8
            ));
        }
        Self::map(copy, cells)
    }

    fn map(fd: OwnedFd, cells: usize) -> Result<Self, String> {
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                cells * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(os_error("cannot map shared memory"));
        }
        Ok(Self { base: base.cast(), cells, fd })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.cells * 8) };
    }
}

fn os_error(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

pub struct Shared {
    mapping: Mapping,
    workers: usize,
    bound: AtomicUsize,
    bound_generation: AtomicU64,
}

impl Shared {
    /// `kind` and `sizes` describe the body of `cells` words; attaching to other ones is refused.
    pub fn open(
        kind: &str,
        workers: usize,
        sizes: &[usize],
        cells: usize,
        fd: Option<RawFd>,
    ) -> Result<Self, String> {
        if !(1..=1024).contains(&workers) {
            return Err(format!("`workers` must be from 1 to 1024, got {workers}"));
        }
        let cells = cells + HEADER + workers * LINE;
        if cells > CELLS_MAX {
            return Err(format!("{kind} of these sizes needs {cells} cells, at most {CELLS_MAX}"));
        }
        let layout = sizes.iter().fold(crate::hash::text(kind.as_bytes()), |sum, &size| {
            mix(sum ^ size as u64).wrapping_add(workers as u64)
        });
        let mapping = match fd {
            Some(fd) => Mapping::attach(fd, cells)?,
            None => Mapping::create(cells)?,
        };
        let shared = Self {
            mapping,
            workers,
            bound: AtomicUsize::new(UNBOUND),
            bound_generation: AtomicU64::new(0),
        };
        match fd {
            None => {
                shared.word(H_LAYOUT).store(layout, Ordering::Relaxed);
                shared.word(H_MAGIC).store(MAGIC, Ordering::Release);
            }
            Some(fd) => {
                let magic = shared.word(H_MAGIC).load(Ordering::Acquire);
                if magic != MAGIC || shared.word(H_LAYOUT).load(Ordering::Relaxed) != layout {
                    return Err(format!("descriptor {fd} is not shared memory of this {kind}"));
                }
            }
        }
        Ok(shared)
    }

    pub fn fd(&self) -> RawFd {
        self.mapping.fd.as_raw_fd()
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Workers that were ever bound: the rows a reader has to look at.
    pub fn rows(&self) -> usize {
        self.word(H_HIGH).load(Ordering::Relaxed) as usize
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.mapping.cells, "cell outside the region");
        unsafe { &*self.mapping.base.add(index) }
    }

    /// A word of the body.
    #[inline]
    pub fn cell(&self, index: usize) -> &AtomicU64 {
        self.word(HEADER + self.workers * LINE + index)
    }

    /// Words of the body that lie together.
    pub fn cells(&self, first: usize, count: usize) -> &[AtomicU64] {
        let first = HEADER + self.workers * LINE + first;
        assert!(first + count <= self.mapping.cells, "cells outside the region");
        unsafe { std::slice::from_raw_parts(self.mapping.base.add(first), count) }
    }

    /// A spare word of a worker's line.
    pub fn spare(&self, worker: usize, index: usize) -> &AtomicU64 {
        debug_assert!(index < SPARE_WORDS);
        self.line(worker, W_SPARE + index)
    }

    fn line(&self, worker: usize, word: usize) -> &AtomicU64 {
        self.word(HEADER + worker * LINE + word)
    }

    pub fn check_worker(&self, worker: usize) -> Result<(), String> {
        match worker < self.workers {
            true => Ok(()),
            false => Err(format!("worker {worker} is outside 0..{}", self.workers)),
        }
    }

    /// Makes this object the writer of a worker's slot.
    pub fn bind(&self, worker: usize) -> Result<(), String> {
        self.check_worker(worker)?;
        let cell = self.line(worker, W_GENERATION);
        let old = cell.load(Ordering::Acquire);
        let taken = old % 2 == 1
            || cell.compare_exchange(old, old + 1, Ordering::AcqRel, Ordering::Relaxed).is_err();
        if taken {
            return Err(format!("worker {worker} is bound already; retire it first"));
        }
        self.bound_generation.store(old + 1, Ordering::Relaxed);
        self.bound.store(worker, Ordering::Relaxed);
        self.word(H_HIGH).fetch_max(worker as u64 + 1, Ordering::AcqRel);
        Ok(())
    }

    /// The slot to write to; `None` once it was retired under us.
    #[inline]
    pub fn row(&self) -> Result<Option<usize>, Fault> {
        let worker = self.bound.load(Ordering::Relaxed);
        if worker == UNBOUND {
            return Err(Fault::Unbound);
        }
        let now = self.line(worker, W_GENERATION).load(Ordering::Relaxed);
        Ok((now == self.bound_generation.load(Ordering::Relaxed)).then_some(worker))
    }

    pub fn is_bound(&self, worker: usize) -> bool {
        self.line(worker, W_GENERATION).load(Ordering::Acquire) % 2 == 1
    }

    /// Takes the slot from a worker whose process has ended; false if it was free already.
    pub fn retire(&self, worker: usize) -> Result<bool, String> {
        self.check_worker(worker)?;
        if !self.is_bound(worker) {
            return Ok(false);
        }
        self.line(worker, W_GENERATION).fetch_add(1, Ordering::AcqRel);
        self.line(worker, W_BEAT).store(0, Ordering::Relaxed);
        Ok(true)
    }

    pub fn beat(&self, now_s: f64) -> Result<(), Fault> {
        if let Some(worker) = self.row()? {
            set_f64(self.line(worker, W_BEAT), now_s);
        }
        Ok(())
    }

    /// Time of a worker's last beat; `None` when its slot is free or it never beat.
    pub fn last_beat(&self, worker: usize) -> Option<f64> {
        let bits = self.line(worker, W_BEAT).load(Ordering::Relaxed);
        (self.is_bound(worker) && bits != 0).then(|| f64::from_bits(bits))
    }
}

/// Adds to a cell that only the caller writes.
#[inline]
pub fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

#[inline]
pub fn add_f64(cell: &AtomicU64, x: f64) {
    set_f64(cell, get_f64(cell) + x);
}

#[inline]
pub fn set_f64(cell: &AtomicU64, x: f64) {
    cell.store(x.to_bits(), Ordering::Relaxed);
}

#[inline]
pub fn get_f64(cell: &AtomicU64) -> f64 {
    f64::from_bits(cell.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_writer_and_a_retired_writer_is_mute() {
        let a = Shared::open("test", 2, &[1], 8, None).unwrap();
        let b = Shared::open("test", 2, &[1], 8, Some(a.fd())).unwrap();
        assert_eq!(a.row(), Err(Fault::Unbound));
        a.bind(1).unwrap();
        assert!(b.bind(1).is_err() && a.bind(2).is_err());
        assert_eq!((a.row(), a.rows()), (Ok(Some(1)), 2));
        a.beat(5.0).unwrap();
        assert_eq!(b.last_beat(1), Some(5.0));
        assert_eq!(b.retire(1), Ok(true));
        assert_eq!(b.retire(1), Ok(false));
        assert_eq!((a.row(), b.last_beat(1)), (Ok(None), None));
        b.bind(1).unwrap();
        assert_eq!((a.row(), b.row()), (Ok(None), Ok(Some(1))));
    }

    #[test]
    fn attaching_to_something_else_is_refused() {
        let a = Shared::open("test", 2, &[4], 8, None).unwrap();
        for other in [
            Shared::open("test", 2, &[5], 8, Some(a.fd())),
            Shared::open("tset", 2, &[4], 8, Some(a.fd())),
            Shared::open("test", 2, &[4], 16, Some(a.fd())),
            Shared::open("test", 1, &[4], 16, Some(a.fd())),
            Shared::open("test", 2, &[4], 8, Some(-1)),
            Shared::open("test", 0, &[4], 8, None),
            Shared::open("test", 2, &[4], CELLS_MAX, None),
        ] {
            assert!(other.is_err());
        }
    }
}
