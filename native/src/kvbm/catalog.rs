//! Which block lies where on a disk: 48 bytes a block and about 10 of a hash table.
//!
//! Blocks of one segment are chained, so a segment is emptied without looking at any other block. A
//! block that is removed alone leaves the table at once and the chain when its segment is emptied, as
//! its bytes on disk do.
//!
//! The table is cut into shards that grow by themselves: no insertion moves more than 1/256 of it.

use hashbrown::HashTable;

use super::record::Key;
use super::slab::{Linked, Slab, NONE};
use crate::hash::mix;

const SHARDS: usize = 256;
const LIVE: u32 = 1 << 31;
const HITS_SHIFT: u32 = 28;
const HITS_MAX: u32 = 7;
const PAGE_MASK: u32 = (1 << HITS_SHIFT) - 1;
/// Pages of a segment that a block's entry can name: 1 TiB.
pub const SEGMENT_PAGES_MAX: u32 = PAGE_MASK;

/// Where a block lies; `segment` is a number of the catalog, not the name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub segment: u16,
    pub page: u32,
    pub len: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    key: Key,
    next: u32,
    /// Bit 31: in use; bits 28 to 30: hits since it was written; the rest: page.
    word: u32,
    len: u32,
    segment: u16,
    namespace: u16,
}

impl Linked for Block {
    fn next(&self) -> u32 {
        self.next
    }
    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

impl Block {
    fn is_live(&self) -> bool {
        self.word & LIVE != 0
    }
    fn hits(&self) -> u8 {
        ((self.word >> HITS_SHIFT) & HITS_MAX) as u8
    }
    fn place(&self) -> Place {
        Place { segment: self.segment, page: self.word & PAGE_MASK, len: self.len }
    }
}

/// A block as the catalog knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    pub key: Key,
    pub namespace: u16,
    pub place: Place,
    /// Hits since it was written, at most 7.
    pub hits: u8,
}

/// The blocks of one segment.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    head: u32,
    pub blocks: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self { head: NONE, blocks: 0 }
    }
}

pub struct Catalog {
    blocks: Slab<Block>,
    shards: Vec<HashTable<u32>>,
    seed: u64,
    live: usize,
    live_bytes: u64,
}

impl Catalog {
    /// `seed` decides how keys are spread, so that nobody can choose keys that collide.
    pub fn new(seed: u64) -> Self {
        let shards = (0..SHARDS).map(|_| HashTable::new()).collect();
        Self { blocks: Slab::new(), shards, seed, live: 0, live_bytes: 0 }
    }

    /// Blocks that can be found.
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Bytes of their payloads.
    pub fn payload_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Memory held, in bytes.
    pub fn memory(&self) -> usize {
        self.blocks.bytes() + self.shards.iter().map(HashTable::allocation_size).sum::<usize>()
    }

    pub fn get(&self, namespace: u16, key: &Key) -> Option<u32> {
        let hash = self.hash(namespace, key);
        let blocks = &self.blocks;
        let same = |&at: &u32| is_same(blocks.at(at), namespace, key);
        self.shards[shard(hash)].find(hash, same).copied()
    }

    pub fn known(&self, at: u32) -> Known {
        let block = self.blocks.at(at);
        let (key, namespace) = (block.key, block.namespace);
        Known { key, namespace, place: block.place(), hits: block.hits() }
    }

    /// Count a use of the block.
    pub fn hit(&mut self, at: u32) {
        let block = self.blocks.at_mut(at);
        if u32::from(block.hits()) < HITS_MAX {
            block.word += 1 << HITS_SHIFT;
        }
    }

    /// Put a block at the head of its segment's chain; an older place of the same block is forgotten.
    /// False: the catalog is full.
    pub fn put(&mut self, namespace: u16, key: Key, place: Place, chain: &mut Chain) -> bool {
        let word = (place.page & PAGE_MASK) | LIVE;
        let (len, segment) = (place.len, place.segment);
        let block = Block { key, next: chain.head, word, len, segment, namespace };
        let Some(at) = self.blocks.insert(block) else { return false };
        chain.head = at;
        chain.blocks += 1;
        self.live += 1;
        self.live_bytes += u64::from(len);
        let hash = self.hash(namespace, &key);
        let (blocks, seed) = (&self.blocks, self.seed);
        let found = self.shards[shard(hash)].entry(
            hash,
            |&at| is_same(blocks.at(at), namespace, &key),
            |&at| spread(seed, blocks.at(at).namespace, &blocks.at(at).key),
        );
        match found {
            hashbrown::hash_table::Entry::Occupied(mut entry) => {
                let older = std::mem::replace(entry.get_mut(), at);
                self.bury(older);
            }
            hashbrown::hash_table::Entry::Vacant(entry) => {
                entry.insert(at);
            }
        }
        true
    }

    /// Forget a block; false: it was not known.
    pub fn remove(&mut self, namespace: u16, key: &Key) -> bool {
        let hash = self.hash(namespace, key);
        let blocks = &self.blocks;
        let same = |&at: &u32| is_same(blocks.at(at), namespace, key);
        let Ok(entry) = self.shards[shard(hash)].find_entry(hash, same) else { return false };
        let at = entry.remove().0;
        self.bury(at);
        true
    }

    /// Take up to `most` blocks off a segment's chain and out of the table; those that could still be
    /// found are handed to `gone`. False: the chain is empty.
    pub fn empty(&mut self, chain: &mut Chain, most: usize, mut gone: impl FnMut(Known)) -> bool {
        for _ in 0..most {
            if chain.head == NONE {
                return false;
            }
            let at = chain.head;
            let block = *self.blocks.at(at);
            chain.head = block.next;
            chain.blocks -= 1;
            if block.is_live() {
                gone(self.known(at));
                self.remove(block.namespace, &block.key);
            }
            self.blocks.remove(at);
        }
        chain.head != NONE
    }

    /// The blocks of a segment that can be found, newest first.
    pub fn chained<'a>(&'a self, chain: &Chain) -> impl Iterator<Item = (u32, Known)> + 'a {
        let mut at = chain.head;
        std::iter::from_fn(move || {
            while at != NONE {
                let here = at;
                at = self.blocks.at(here).next;
                if self.blocks.at(here).is_live() {
                    return Some((here, self.known(here)));
                }
            }
            None
        })
    }

    /// Walk all blocks that can be found, from place `from`, at most `most` places; the next `from`, or
    /// None after the last. A block put meanwhile may be missed.
    pub fn walk(&self, from: u32, most: u32, mut take: impl FnMut(Known)) -> Option<u32> {
        let end = from.saturating_add(most).min(self.blocks.places());
        for at in from..end {
            if self.blocks.at(at).is_live() {
                take(self.known(at));
            }
        }
        (end < self.blocks.places()).then_some(end)
    }

    fn bury(&mut self, at: u32) {
        let block = self.blocks.at_mut(at);
        block.word &= !LIVE;
        self.live -= 1;
        self.live_bytes -= u64::from(block.len);
    }

    fn hash(&self, namespace: u16, key: &Key) -> u64 {
        spread(self.seed, namespace, key)
    }
}

fn is_same(block: &Block, namespace: u16, key: &Key) -> bool {
    block.key == *key && block.namespace == namespace
}

fn spread(seed: u64, namespace: u16, key: &Key) -> u64 {
    let (first, second) = (super::le::u64_at(key, 0), super::le::u64_at(key, 8));
    let (third, fourth) = (super::le::u64_at(key, 16), super::le::u64_at(key, 24));
    let low = mix(seed ^ first ^ third.rotate_left(21));
    mix(low ^ second ^ fourth.rotate_left(43) ^ u64::from(namespace))
}

fn shard(hash: u64) -> usize {
    // The table takes its tags from the top bits and its buckets from the bottom ones.
    (hash >> 40) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;
    use std::collections::HashMap;

    fn key(n: u64) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        key
    }

    fn place(segment: u16, page: u32) -> Place {
        Place { segment, page, len: 4096 }
    }

    #[test]
    fn a_block_is_known_by_key_and_namespace() {
        let (mut catalog, mut chain) = (Catalog::new(1), Chain::default());
        catalog.put(1, key(5), place(2, 9), &mut chain);
        let at = catalog.get(1, &key(5)).unwrap();
        assert_eq!(catalog.known(at).place, place(2, 9));
        assert_eq!(catalog.get(2, &key(5)), None);
        assert_eq!(catalog.get(1, &key(6)), None);
        for _ in 0..20 {
            catalog.hit(at);
        }
        assert_eq!((catalog.known(at).hits, catalog.known(at).place), (7, place(2, 9)));
    }

    #[test]
    fn it_agrees_with_a_map_after_many_operations() {
        let mut random = Random(7);
        let (mut catalog, mut chains) = (Catalog::new(3), vec![Chain::default(); 8]);
        let mut model: HashMap<(u16, u64), Place> = HashMap::new();
        for step in 0..60_000_u32 {
            let (namespace, n) = (random.below(2) as u16, random.below(3000));
            let segment = random.below(8) as u16;
            match random.below(20) {
                0..=12 => {
                    let place = place(segment, step & PAGE_MASK);
                    catalog.put(namespace, key(n), place, &mut chains[usize::from(segment)]);
                    model.insert((namespace, n), place);
                }
                13..=18 => {
                    let there = model.remove(&(namespace, n)).is_some();
                    assert_eq!(catalog.remove(namespace, &key(n)), there);
                }
                _ => {
                    let mut gone = 0;
                    while catalog.empty(&mut chains[usize::from(segment)], 100, |_| gone += 1) {}
                    let before = model.len();
                    model.retain(|_, place| place.segment != segment);
                    assert_eq!(gone, before - model.len());
                }
            }
        }
        assert_eq!(catalog.len(), model.len());
        for (&(namespace, n), &place) in &model {
            let at = catalog.get(namespace, &key(n)).expect("a block of the model");
            assert_eq!(catalog.known(at).place, place);
        }
        let (mut walked, mut from) = (0, Some(0));
        while let Some(at) = from {
            from = catalog.walk(at, 97, |known| {
                assert!(
                    model.contains_key(&(known.namespace, super::super::le::u64_at(&known.key, 0)))
                );
                walked += 1;
            });
        }
        assert_eq!(walked, model.len());
    }

    #[test]
    fn a_block_takes_at_most_64_bytes() {
        let (mut catalog, mut chain) = (Catalog::new(3), Chain::default());
        let mut worst = 0.0_f64;
        for n in 0..400_000 {
            catalog.put(0, key(n), place(0, 1), &mut chain);
            if n >= 100_000 && n % 1000 == 0 {
                worst = worst.max(catalog.memory() as f64 / catalog.len() as f64);
            }
        }
        assert!(worst <= 64.0, "{worst} bytes");
    }
}
