//! Where the ledger's cells lie in its shared memory.

use crate::ledger::RECORD;

/// Raised when the meaning of a cell changes: a process of another version must not attach.
pub const LAYOUT: usize = 4;

/// Planes of the body, in cells. Counts read on every pick lie close together, row by row.
pub struct Plan {
    pub engines: usize,
    pub states: usize,
    pub cleared: usize,
    pub health: usize,
    /// Of every engine, written by all workers: see `load.rs`.
    pub anchors: usize,
    pub recent: usize,
    /// The role that an engine was moved to.
    pub roles: usize,
    pub inflight: usize,
    pub prefill: usize,
    pub blocks: usize,
    pub prefill_us: usize,
    /// Requests that wait for a first token, and those that are late, in a word's halves.
    pub stages: usize,
    pub kv_tokens: usize,
    /// KV that is to come over the link of an engine.
    pub transfer_us: usize,
    /// Prompts computed, or being computed, for another engine, that nobody has fetched yet.
    pub pending: usize,
    pub records: usize,
    pub stride: usize,
    pub cells: usize,
}

impl Plan {
    pub fn new(workers: usize, engines: usize) -> Self {
        let stride = engines.next_multiple_of(8);
        let plane = stride * workers;
        // One line more than engines: its first cell counts changes of health.
        let anchors = 3 * stride + 8;
        let recent = anchors + stride;
        let roles = recent + stride;
        let inflight = roles + stride;
        let records = inflight + 8 * plane;
        Self {
            engines,
            states: 0,
            cleared: stride,
            health: 2 * stride,
            anchors,
            recent,
            roles,
            inflight,
            prefill: inflight + plane,
            blocks: inflight + 2 * plane,
            prefill_us: inflight + 3 * plane,
            stages: inflight + 4 * plane,
            kv_tokens: inflight + 5 * plane,
            transfer_us: inflight + 6 * plane,
            pending: inflight + 7 * plane,
            records,
            stride,
            cells: records + workers * engines * RECORD,
        }
    }

    /// Gauges of a row that go when its worker or its engine goes, requests in flight apart.
    pub fn gauges(&self) -> [usize; 7] {
        let Self { prefill, blocks, prefill_us, stages, kv_tokens, transfer_us, pending, .. } = *self;
        [prefill, blocks, prefill_us, stages, kv_tokens, transfer_us, pending]
    }
}
