//! How much there is: of one engine, and of all. Read without waiting for an engine whose batch is at
//! work, however large that is.

use super::store::FIRST;
use super::{lock, Index, IndexStats};

/// Of one engine, as of its latest change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens on its device, as far as they are known or assumed.
    pub tokens: u64,
    /// Copies of blocks known to be there, each once: (block, group) pairs.
    pub held: usize,
    /// Blocks that wait for a parent.
    pub waiting: usize,
    /// Blocks that it has announced and that there was no room for, since it was empty.
    pub short: u64,
    /// Memory of all that.
    pub bytes: usize,
}

impl Index {
    /// Tokens per block that the engine's events have; 0 if it has not said.
    pub fn block_size(&self, slot: u16) -> u32 {
        let views = &self.shared.read().views;
        views.get(slot as usize).filter(|view| view.told).map_or(0, |view| view.block_size)
    }

    /// Zeros for a slot that nobody has.
    pub fn sizes(&self, slot: u16) -> Sizes {
        if slot >= FIRST {
            return self.store_sizes(slot);
        }
        self.shared.read().views.get(slot as usize).map_or(Sizes::default(), |view| view.sizes)
    }

    /// Tokens on the devices of several engines. Clears `out` first.
    pub fn tokens_of(&self, slots: &[u16], out: &mut Vec<u64>) {
        let views = &self.shared.read().views;
        out.clear();
        out.extend(
            slots.iter().map(|slot| views.get(*slot as usize).map_or(0, |v| v.sizes.tokens)),
        );
    }

    pub fn stats(&self) -> IndexStats {
        self.reap();
        let engines = lock(&self.engines).iter().flatten().count();
        let mut stats = IndexStats { engines, ..IndexStats::default() };
        let stores = lock(&self.stores).len() as u16;
        for number in FIRST..FIRST + stores {
            let sizes = self.store_sizes(number);
            (stats.orphans, stats.bytes) = (stats.orphans + sizes.waiting, stats.bytes + sizes.bytes);
        }
        let shared = self.shared.read();
        for view in &shared.views {
            stats.orphans += view.sizes.waiting;
            stats.bytes += view.sizes.bytes;
        }
        stats.pairs = shared.holders.len();
        stats.blocks = shared.holders.blocks();
        stats.bytes += shared.holders.bytes();
        drop(shared);
        let recent = lock(&self.recent);
        stats.predicted = recent.len();
        stats.bytes += recent.bytes() + self.used.bytes();
        stats.counts = *lock(&self.totals);
        stats
    }
}
