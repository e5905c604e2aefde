//! What an operator says about the daemon as a whole, and what it counts.

use std::path::PathBuf;

use super::options::DiskOptions;
use super::remote::RemoteOptions;

#[derive(Clone)]
pub struct HubOptions {
    pub socket: PathBuf,
    pub socket_mode: u32,
    /// User ids that may connect; the daemon's own always may.
    pub allow_uids: Vec<u32>,
    /// What HELLO must carry; empty: nothing.
    pub token: Vec<u8>,
    pub conns_max: usize,
    /// For jobs that bring no deadline of their own.
    pub load_us: u64,
    pub store_us: u64,
    /// Slots of the arena whose client's process lives and whose connection is gone are kept for so
    /// long: it may still copy.
    pub orphan_us: u64,
    /// Bytes of the arena, 0 for none.
    pub host_bytes: usize,
    /// The arena's blocks go to disk when they leave it, not when they come.
    pub spill: bool,
    /// Blocks that the table for lookups has room for; 0: by the capacities.
    pub table_blocks: u64,
    pub disk: Option<DiskOptions>,
    pub remote: Option<RemoteOptions>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct HubStats {
    pub accepted: u64,
    pub refused_uid: u64,
    pub refused_full: u64,
    pub bad_frames: u64,
    pub lookups: u64,
    pub lookup_keys: u64,
    pub hits: u64,
    pub jobs: u64,
    pub timeouts: u64,
    pub cancelled: u64,
    pub probe_differs: u64,
    pub beats_late: u64,
}

impl HubOptions {
    /// Blocks of 256 KiB that all tiers hold, and not too few.
    pub(super) fn table_blocks(&self) -> u64 {
        let disk = self.disk.as_ref().map_or(0, |disk| disk.capacity);
        match self.table_blocks {
            0 => ((disk + self.host_bytes as u64) >> 18).clamp(1 << 16, 1 << 24),
            blocks => blocks,
        }
    }
}
