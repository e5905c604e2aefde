//! The store of kvbm: blocks of KV cache on disk and in shared memory, checked and persistent.
//!
//! Nothing here knows Python. One thread owns a disk's state and never waits; others move bytes.
//! What is promised: bytes handed up were verified against key, length and checksum; what was
//! acknowledged survives `kill -9`; the configured capacity is never exceeded.

pub mod admission;
pub mod buffer;
pub mod catalog;
mod checkpoint;
mod commit;
pub mod crew;
pub mod disk;
mod evict;
pub mod folder;
pub mod gate;
pub mod health;
pub mod inbox;
pub mod io;
pub mod journal;
pub mod keeper;
pub mod le;
pub mod loads;
pub mod log;
pub mod memory;
pub mod mover;
pub mod namespace;
pub mod options;
pub mod pins;
pub mod points;
pub mod record;
mod recovery;
pub mod region;
pub mod ring;
pub mod scrub;
pub mod segments;
pub mod slab;
pub mod space;
pub mod stores;
mod superblock;
#[cfg(test)]
mod tests;

/// Why a block is not taken in, or a load not begun. Each means a miss, nothing worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Not there.
    Absent = 1,
    /// Larger than a segment takes.
    TooLarge = 2,
    /// Not seen often enough.
    Policy = 3,
    /// The write budget is spent.
    Budget = 4,
    /// Too much waits already.
    Busy = 5,
    /// The disk is in trouble.
    Degraded = 6,
    /// The store is being closed.
    Closed = 7,
}
