//! What an operator says about a disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::admission::Policy;
use super::crew::Threads;
use super::folder::Direct;
use super::io::IoBackend;
use super::points::Points;
use super::ring::Ring;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoKind {
    Auto,
    Uring,
    Threads,
}

#[derive(Clone)]
pub struct DiskOptions {
    pub dir: PathBuf,
    /// Bytes on disk, everything below `dir` included.
    pub capacity: u64,
    /// 0: by the capacity.
    pub segment_bytes: u64,
    pub io: IoKind,
    pub direct: Direct,
    pub policy: Policy,
    /// Bytes a second, 0 for no limit.
    pub write_rate: u64,
    /// Blocks in transfer at once.
    pub depth: usize,
    /// Bytes of buffers for them.
    pub buffer_bytes: usize,
    /// Bytes of stores that may wait.
    pub backlog_bytes: u64,
    /// Part of the segments in use at which the oldest are emptied, and down to which.
    pub high: f64,
    pub low: f64,
    /// Start empty where the format is another or the superblock is damaged.
    pub reset: bool,
    /// Flush to the device after so many bytes or microseconds.
    pub sync_bytes: u64,
    pub sync_us: u64,
    /// Look at the directory, and probe a disk in trouble, so often.
    pub look_us: u64,
    pub copy_threads: usize,
    /// Tell when blocks are loaded.
    pub tells_use: bool,
    pub points: Points,
}

impl DiskOptions {
    pub fn new(dir: impl Into<PathBuf>, capacity: u64) -> Self {
        Self {
            dir: dir.into(),
            capacity,
            segment_bytes: 0,
            io: IoKind::Auto,
            direct: Direct::Auto,
            policy: Policy::Always,
            write_rate: 0,
            depth: 32,
            buffer_bytes: 128 << 20,
            backlog_bytes: 2 << 30,
            high: 0.9,
            low: 0.85,
            reset: false,
            sync_bytes: 64 << 20,
            sync_us: 1_000_000,
            look_us: 30_000_000,
            copy_threads: 2,
            tells_use: false,
            points: Points::default(),
        }
    }

    /// Bytes of a segment's file.
    pub fn segment_size(&self) -> u64 {
        let chosen = match self.segment_bytes {
            0 => (self.capacity / 32).clamp(1 << 20, 1 << 30),
            bytes => bytes,
        };
        chosen.next_multiple_of(4096)
    }

    /// Bytes of a journal's file.
    pub fn journal_size(&self) -> u64 {
        (self.capacity / 256).clamp(64 << 10, 64 << 20).next_multiple_of(4096)
    }

    pub(super) fn backend(&self) -> io::Result<Arc<dyn IoBackend>> {
        let depth = self.depth.clamp(1, 1024);
        match self.io {
            IoKind::Threads => Ok(Arc::new(Threads::new(depth.min(16))?)),
            IoKind::Uring => Ok(Arc::new(Ring::new(depth as u32 + 1)?)),
            IoKind::Auto => match Ring::new(depth as u32 + 1) {
                Ok(ring) => Ok(Arc::new(ring)),
                Err(_) => Ok(Arc::new(Threads::new(depth.min(16))?)),
            },
        }
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let segment = self.segment_size();
        let least = 3 * segment + 4 * self.journal_size();
        if self.capacity >= least && (16 << 10..=1 << 38).contains(&segment) {
            return Ok(());
        }
        let what = format!(
            "a capacity of {} bytes with segments of {segment} bytes: at least {least} bytes are \
             needed, and segments from 16 KiB to 256 GiB",
            self.capacity
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }
}
