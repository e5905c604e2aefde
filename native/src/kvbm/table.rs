//! What can be found where, in memory that clients read without asking anybody.
//!
//! A block is one word: 60 bits of its key's hash and a bit per tier. It lies in one of two buckets of a
//! cache line each, so finding it costs two lines at most and removing it leaves nothing behind. There
//! is one writer. A reader may see what was true a moment ago: a hit that is none costs a failed load.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::le::u64_at;
use super::memory::Memory;
use super::message::tier;
use super::record::{Key, PAGE};
use super::superblock::random;
use crate::hash::mix;

const MAGIC: u64 = u64::from_le_bytes(*b"KVBMTBL1");
const WAYS: usize = 8;
const LINE: usize = 64;
const TIERS: u64 = 0xf;

/// Words of the first page.
const H_MAGIC: usize = 0;
const H_BUCKETS: usize = 8;
const H_SEED: usize = 16;
/// Blocks that found no room: a miss may be none.
const H_LEFT_OUT: usize = 24;
/// What loading a MiB takes, in nanoseconds, and the bytes that wait before it.
const H_COST: usize = 32;
const H_QUEUED: usize = 40;
/// 1: the disk is not to be asked for the moment.
const H_PAUSED: usize = 48;
/// The same of the remote tier, and the microseconds until its first block.
const H_REMOTE_COST: usize = 56;
const H_REMOTE_QUEUED: usize = 64;
const H_REMOTE_PAUSED: usize = 72;
const H_REMOTE_LATENCY: usize = 80;

pub struct Table {
    memory: Memory,
    mask: u64,
    seed: u64,
    live: u64,
}

fn bit(tier: u8) -> u64 {
    1 << (tier - 1)
}

fn hash(seed: u64, key: &Key) -> u64 {
    let low = mix(seed ^ u64_at(key, 0) ^ u64_at(key, 16).rotate_left(21));
    mix(low ^ u64_at(key, 8) ^ u64_at(key, 24).rotate_left(43))
}

/// The tag, and where both buckets begin.
fn places(seed: u64, mask: u64, key: &Key) -> (u64, [usize; 2]) {
    let hash = hash(seed, key);
    // An empty place is zero, so no tag is.
    let tag = (hash & !TIERS).max(TIERS + 1);
    let one = mix(hash) & mask;
    let two = mix(hash ^ 0x9e37_79b9_7f4a_7c15) & mask;
    (tag, [one, two].map(|bucket| PAGE + bucket as usize * LINE))
}

fn ways(bucket: usize) -> impl Iterator<Item = usize> {
    (0..WAYS).map(move |way| bucket + way * 8)
}

impl Table {
    /// Room for about so many blocks.
    pub fn create(blocks: u64) -> io::Result<Self> {
        let buckets = (blocks * 3 / 2 / WAYS as u64).clamp(64, 1 << 28).next_power_of_two();
        let mut memory = Memory::create_for_readers(c"kvbm-table", PAGE + buckets as usize * LINE)?;
        let seed = random();
        for (at, value) in [(H_BUCKETS, buckets), (H_SEED, seed), (H_MAGIC, MAGIC)] {
            memory.word(at).store(value, Release);
        }
        memory.seal_writes()?;
        Ok(Self { memory, mask: buckets - 1, seed, live: 0 })
    }

    pub fn fd(&self) -> RawFd {
        self.memory.fd()
    }

    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    pub fn len(&self) -> u64 {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub fn left_out(&self) -> u64 {
        self.memory.word(H_LEFT_OUT).load(Relaxed)
    }

    fn find(&self, tag: u64, buckets: [usize; 2]) -> Option<usize> {
        let all = buckets.into_iter().flat_map(ways);
        all.into_iter().find(|&at| self.memory.word(at).load(Relaxed) & !TIERS == tag)
    }

    /// The block is in this tier.
    pub fn set(&mut self, key: &Key, tier: u8) {
        let (tag, buckets) = places(self.seed, self.mask, key);
        if let Some(at) = self.find(tag, buckets) {
            let word = self.memory.word(at);
            return word.store(word.load(Relaxed) | bit(tier), Release);
        }
        let empty =
            |bucket: usize| ways(bucket).filter(|&at| self.memory.word(at).load(Relaxed) == 0);
        let [one, two] = buckets;
        let emptier = if empty(one).count() >= empty(two).count() { one } else { two };
        let Some(at) = empty(emptier).next() else {
            let left_out = self.memory.word(H_LEFT_OUT);
            return left_out.store(left_out.load(Relaxed) + 1, Release);
        };
        self.memory.word(at).store(tag | bit(tier), Release);
        self.live += 1;
    }

    /// The block is not in this tier any more.
    pub fn unset(&mut self, key: &Key, tier: u8) {
        let (tag, buckets) = places(self.seed, self.mask, key);
        if let Some(at) = self.find(tag, buckets) {
            self.clear_at(at, tier);
        }
    }

    fn clear_at(&mut self, at: usize, tier: u8) {
        let word = self.memory.word(at);
        let rest = word.load(Relaxed) & !bit(tier);
        if rest & TIERS == 0 {
            word.store(0, Release);
            self.live -= 1;
        } else {
            word.store(rest, Release);
        }
    }

    /// Nothing is in this tier any more.
    pub fn unset_all(&mut self, tier: u8) {
        for at in (PAGE..self.memory.len()).step_by(8) {
            if self.memory.word(at).load(Relaxed) & bit(tier) != 0 {
                self.clear_at(at, tier);
            }
        }
    }

    /// What a load from disk costs now.
    pub fn tell_cost(&self, ns_per_mib: u64, queued_bytes: u64, is_paused: bool) {
        let values = [(H_COST, ns_per_mib), (H_QUEUED, queued_bytes), (H_PAUSED, is_paused.into())];
        for (at, value) in values {
            self.memory.word(at).store(value, Relaxed);
        }
    }
}

impl Table {
    /// What a load from the remote tier costs now.
    pub fn tell_remote_cost(&self, latency_us: u64, ns_per_mib: u64, queued: u64, paused: bool) {
        let values = [
            (H_REMOTE_LATENCY, latency_us),
            (H_REMOTE_COST, ns_per_mib),
            (H_REMOTE_QUEUED, queued),
            (H_REMOTE_PAUSED, paused.into()),
        ];
        for (at, value) in values {
            self.memory.word(at).store(value, Relaxed);
        }
    }
}

/// A client's view.
pub struct Reader {
    memory: Memory,
    mask: u64,
    seed: u64,
}

impl Reader {
    pub fn attach(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        let memory = Memory::attach_to_read(fd, bytes)?;
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if bytes < PAGE + LINE || memory.word(H_MAGIC).load(Acquire) != MAGIC {
            return Err(bad("no table"));
        }
        let (buckets, seed) =
            (memory.word(H_BUCKETS).load(Acquire), memory.word(H_SEED).load(Acquire));
        if !buckets.is_power_of_two() || buckets as usize != (bytes - PAGE) / LINE {
            return Err(bad("a table of odd size"));
        }
        Ok(Self { memory, mask: buckets - 1, seed })
    }

    /// The highest tier that has the block; the arena counts only for who asks for it.
    pub fn find(&self, key: &Key, with_arena: bool) -> u8 {
        let (tag, buckets) = places(self.seed, self.mask, key);
        let mut all =
            buckets.into_iter().flat_map(ways).map(|at| self.memory.word(at).load(Acquire));
        let found = all.find(|word| word & !TIERS == tag).unwrap_or(0) & TIERS;
        let paused = self.memory.word(H_PAUSED).load(Relaxed) != 0;
        let has = |tier: u8| found & bit(tier) != 0;
        match () {
            () if with_arena && has(tier::HOST) => tier::HOST,
            () if has(tier::DISK) && !paused => tier::DISK,
            () if has(tier::REMOTE) && self.memory.word(H_REMOTE_PAUSED).load(Relaxed) == 0 => {
                tier::REMOTE
            }
            () => tier::MISS,
        }
    }

    /// Some blocks are in no bucket: a miss may be none.
    pub fn is_partial(&self) -> bool {
        self.memory.word(H_LEFT_OUT).load(Relaxed) != 0
    }

    /// Microseconds until a load of so many bytes would be there.
    pub fn expected_us(&self, bytes: u64) -> u64 {
        self.moving_us(H_QUEUED, H_COST, bytes)
    }

    /// The same from the remote tier.
    pub fn expected_remote_us(&self, bytes: u64) -> u64 {
        let latency_us = self.memory.word(H_REMOTE_LATENCY).load(Relaxed);
        latency_us.saturating_add(self.moving_us(H_REMOTE_QUEUED, H_REMOTE_COST, bytes))
    }

    fn moving_us(&self, queued: usize, cost: usize, bytes: u64) -> u64 {
        let queued = self.memory.word(queued).load(Relaxed);
        let cost = self.memory.word(cost).load(Relaxed);
        let total = (u128::from(queued) + u128::from(bytes)) * u128::from(cost);
        u64::try_from((total >> 20) / 1000).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;
    use std::collections::HashMap;
    use std::os::fd::BorrowedFd;

    fn key(n: u64) -> Key {
        *blake3::hash(&n.to_le_bytes()).as_bytes()
    }

    fn reader(table: &Table) -> Reader {
        let fd = unsafe { BorrowedFd::borrow_raw(table.fd()) }.try_clone_to_owned().unwrap();
        Reader::attach(fd, table.bytes()).unwrap()
    }

    #[test]
    fn readers_see_what_is_where() {
        let mut table = Table::create(1000).unwrap();
        let reader = reader(&table);
        table.set(&key(1), tier::DISK);
        table.set(&key(2), tier::HOST);
        table.set(&key(1), tier::HOST);
        assert_eq!([1, 2, 3].map(|n| reader.find(&key(n), true)), [tier::HOST, tier::HOST, 0]);
        assert_eq!([1, 2, 3].map(|n| reader.find(&key(n), false)), [tier::DISK, 0, 0]);
        table.unset(&key(1), tier::HOST);
        assert_eq!(reader.find(&key(1), true), tier::DISK);
        table.tell_cost(2_000_000, 1 << 20, true);
        assert_eq!((reader.find(&key(1), true), reader.expected_us(1 << 20)), (0, 4000));
        table.unset_all(tier::HOST);
        assert_eq!((reader.find(&key(2), true), table.len()), (0, 1));
        table.set(&key(1), tier::REMOTE);
        assert_eq!(reader.find(&key(1), true), tier::REMOTE, "the disk is paused");
        table.tell_remote_cost(500, 1_000_000, 1 << 20, true);
        assert_eq!((reader.find(&key(1), true), reader.expected_remote_us(1 << 20)), (0, 2500));
    }

    #[test]
    fn it_agrees_with_a_map_up_to_its_size() {
        let mut table = Table::create(50_000).unwrap();
        let (reader, mut random) = (reader(&table), Random(2));
        let mut model: HashMap<u64, ()> = HashMap::new();
        for _ in 0..300_000 {
            let n = random.below(100_000);
            if random.below(2) == 0 {
                table.set(&key(n), tier::DISK);
                model.insert(n, ());
            } else {
                table.unset(&key(n), tier::DISK);
                model.remove(&n);
            }
        }
        assert!(!reader.is_partial(), "{} left out of {}", table.left_out(), table.len());
        assert_eq!(table.len(), model.len() as u64);
        for n in 0..100_000 {
            let there = reader.find(&key(n), true) == tier::DISK;
            assert_eq!(there, model.contains_key(&n));
        }
    }

    #[test]
    fn a_reader_cannot_write_and_a_table_that_is_too_small_says_so() {
        let mut table = Table::create(1).unwrap();
        let fd = unsafe { BorrowedFd::borrow_raw(table.fd()) }.try_clone_to_owned().unwrap();
        assert!(Memory::attach(fd, table.bytes()).is_err());
        (0..10_000).for_each(|n| table.set(&key(n), tier::DISK));
        assert!(reader(&table).is_partial());
    }
}
