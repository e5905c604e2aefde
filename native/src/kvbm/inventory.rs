//! The list of all blocks, wherever they lie: those of the disk first, then what else the arena holds, then
//! what else is known of the store.
//!
//! A block is named once, with all of its tiers, unless it moves while the list is read.

use super::hub::{hub_number, Hub};
use super::message::tier;
use super::record::Key;

/// Blocks of one answer, about.
pub const LIST_MAX: usize = 65_536;

/// Where a list goes on: what is listed, and from which place on.
const PART: u64 = 40;
const DISK: u64 = 0;
const HOST: u64 = 1;
const REMOTE: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRow {
    pub namespace: u16,
    pub key: Key,
    /// 0: not known, since nobody here has named the namespace nor has such a block.
    pub len: u32,
    /// Of the disk's copy.
    pub hits: u8,
    /// A bit per tier: 1 host, 2 disk, 4 remote.
    pub tiers: u8,
}

impl Hub {
    /// From a place on, `most` blocks or a few more; where to go on. A page may be empty before the end.
    pub(super) fn list(&self, from: u64, most: usize) -> (Vec<BlockRow>, Option<u64>) {
        let (part, at, most) = (from >> PART, from & ((1 << PART) - 1), most.clamp(1, LIST_MAX));
        let mut rows = Vec::new();
        let next = match part {
            DISK => self.list_disk(at as u32, most, &mut rows).map(u64::from),
            HOST => self.list_host(at as usize, most, &mut rows).map(|at| at as u64),
            _ => self.list_remote(at as usize, most, &mut rows).map(|at| at as u64),
        };
        let is_there = |part: &u64| match *part {
            HOST => self.host.is_some(),
            _ => self.remote.is_some(),
        };
        let following = (part + 1..=REMOTE).find(is_there).map(|part| part << PART);
        (rows, next.map(|at| part << PART | at).or(following))
    }

    fn list_disk(&self, from: u32, most: usize, rows: &mut Vec<BlockRow>) -> Option<u32> {
        let disk = self.disk.as_ref()?;
        disk.catalog().walk(from, most as u32, |known| {
            let namespace = hub_number(&self.namespaces, Some(disk), known.namespace);
            let (key, len, hits) = (known.key, known.place.len, known.hits);
            let tiers = bit(tier::DISK, true)
                | bit(tier::HOST, self.in_arena(namespace, &key))
                | bit(tier::REMOTE, self.in_store(namespace, &key));
            rows.push(BlockRow { namespace, key, len, hits, tiers });
        })
    }

    fn list_host(&self, from: usize, most: usize, rows: &mut Vec<BlockRow>) -> Option<usize> {
        self.host.as_ref()?.walk(from, most, |named| {
            let (namespace, key, len) = (named.namespace, named.key, named.len);
            if self.on_disk(namespace, &key).is_none() {
                let remote = bit(tier::REMOTE, self.in_store(namespace, &key));
                let tiers = bit(tier::HOST, true) | remote;
                rows.push(BlockRow { namespace, key, len, hits: 0, tiers });
            }
        })
    }

    fn list_remote(&self, from: usize, most: usize, rows: &mut Vec<BlockRow>) -> Option<usize> {
        self.remote.as_ref()?.places.walk(from, most, |namespace, key| {
            if self.on_disk(namespace, key).is_none() && !self.in_arena(namespace, key) {
                let len = self.block_bytes.get(&namespace).copied().unwrap_or_default();
                let tiers = bit(tier::REMOTE, true);
                rows.push(BlockRow { namespace, key: *key, len, hits: 0, tiers });
            }
        })
    }

    fn in_arena(&self, namespace: u16, key: &Key) -> bool {
        self.host.as_ref().is_some_and(|host| host.block(namespace, key).is_some())
    }

    fn in_store(&self, namespace: u16, key: &Key) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.knows(namespace, key))
    }
}

fn bit(tier: u8, there: bool) -> u8 {
    u8::from(there) << (tier - 1)
}
