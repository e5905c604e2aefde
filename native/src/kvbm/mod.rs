//! The store of kvbm: blocks of KV cache on disk and in shared memory, checked and persistent.
//!
//! Nothing here knows Python. One thread owns a disk's state and never waits; others move bytes.
//! What is promised: bytes handed up were verified against key, length and checksum; what was
//! acknowledged survives `kill -9`; the configured capacity is never exceeded.

pub mod admission;
mod ahead;
pub mod arena;
pub mod board;
#[cfg(feature = "store")]
mod bucket;
pub mod buffer;
pub mod bundle;
pub mod catalog;
pub mod changes;
mod checkpoint;
pub mod client;
pub mod commands;
mod commit;
mod conn;
pub mod core;
pub mod crew;
mod desk;
pub mod disk;
mod doorman;
pub mod drops;
mod durations;
mod epoll;
mod errand;
mod evict;
#[cfg(feature = "store")]
pub mod fetcher;
mod figures;
pub mod folder;
pub mod gate;
mod gather;
pub mod health;
pub mod host;
mod host_jobs;
pub mod hub;
mod hub_options;
pub mod inbox;
pub mod intake;
mod inventory;
pub mod io;
mod jobs;
pub mod journal;
pub mod keeper;
pub mod le;
pub mod link;
mod listed;
pub mod loads;
pub mod log;
mod lookup;
pub mod memory;
pub mod message;
pub mod mover;
pub mod namespace;
pub mod options;
pub mod pins;
pub mod places;
pub mod points;
pub mod record;
mod recovery;
pub mod region;
pub mod remote;
mod remote_jobs;
mod remote_known;
mod reopen;
pub mod report;
pub mod ring;
pub mod s3fifo;
pub mod scrub;
mod seats;
pub mod segments;
mod serve;
pub mod slab;
pub mod socket;
pub mod space;
pub mod stores;
mod superblock;
pub mod table;
#[cfg(test)]
mod tests;
mod trial;
pub mod view;
pub mod wire;
pub mod works;

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
