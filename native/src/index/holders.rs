//! Sequence hash -> which lanes hold the block, and in which tiers.
//!
//! A *lane* is one group of one engine's cache: a small number, a bit in a mask. A block held by up to
//! four lanes takes one cell; more of them move to rows of bits. The map is cut into shards so that
//! growth stops readers for one shard's copy only.

use super::table::Table;
use super::tiers::Tiers;
use crate::hash::mix;

/// Lanes there can be: what a cell has bits for.
pub const LANES_MAX: usize = 1 << LANE_BITS;
const LANE_BITS: u32 = 11;
const HOLDER_BITS: u32 = LANE_BITS + 4;
const INLINE: u32 = 4;
const HOLDER: u64 = (1 << HOLDER_BITS) - 1;
/// Set in a cell whose low bits are the number of a row.
const WIDE: u64 = 1 << 63;
const SHARDS: usize = 256;
/// Words of a mask that has a bit for every lane.
pub const WORDS_MAX: usize = LANES_MAX / 64;

/// A cell's holders that fit into it: (lane, tiers).
#[inline]
fn inline(cell: u64) -> impl Iterator<Item = (usize, Tiers)> {
    (0..INLINE)
        .map(move |at| cell >> (at * HOLDER_BITS) & HOLDER)
        .filter(|it| *it & 15 != 0)
        .map(|holder| ((holder >> 4) as usize, Tiers((holder & 15) as u8)))
}

/// Rows of bits of the blocks that many lanes hold: for each tier `words` words.
#[derive(Default)]
struct Rows {
    bits: Vec<u64>,
    free: Vec<u32>,
    words: usize,
}

impl Rows {
    const TIERS: usize = 4;

    fn row(&self, at: u32) -> &[u64] {
        let width = self.words * Self::TIERS;
        &self.bits[at as usize * width..][..width]
    }

    fn row_mut(&mut self, at: u32) -> &mut [u64] {
        let width = self.words * Self::TIERS;
        &mut self.bits[at as usize * width..][..width]
    }

    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let width = self.words * Self::TIERS;
            let at = self.bits.len() / width;
            self.bits.resize(self.bits.len() + width, 0);
            at as u32
        })
    }

    /// Room for lanes up to `words` words of them.
    fn widen(&mut self, words: usize) {
        if words <= self.words {
            return;
        }
        let rows = self.bits.len() / (self.words * Self::TIERS).max(1);
        let mut bits = vec![0; rows * words * Self::TIERS];
        for at in 0..rows * Self::TIERS {
            let old = &self.bits[at * self.words..][..self.words];
            bits[at * words..][..self.words].copy_from_slice(old);
        }
        (self.bits, self.words) = (bits, words);
    }

    fn holders(&self, at: u32) -> impl Iterator<Item = (usize, Tiers)> + '_ {
        let row = self.row(at);
        (0..self.words * 64).filter_map(|lane| {
            let bit = |tier: usize| row[tier * self.words + lane / 64] >> (lane % 64) & 1;
            let tiers = (0..Self::TIERS).map(|tier| (bit(tier) as u8) << tier).sum();
            (tiers != 0).then_some((lane, Tiers(tiers)))
        })
    }
}

#[derive(Default)]
struct Shard {
    table: Table,
    rows: Rows,
}

pub struct Holders {
    shards: Box<[Shard]>,
    /// Not known outside, so that nobody can choose prompts whose blocks crowd one place.
    secret: u64,
    words: usize,
    holders: usize,
}

impl Holders {
    pub fn new(secret: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, secret, words: 1, holders: 0 }
    }

    /// Words a mask over all lanes in use takes.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Pairs of (block, lane).
    pub fn len(&self) -> usize {
        self.holders
    }

    pub fn is_empty(&self) -> bool {
        self.holders == 0
    }

    /// Distinct blocks.
    pub fn blocks(&self) -> usize {
        self.shards.iter().map(|shard| shard.table.len()).sum()
    }

    pub fn bytes(&self) -> usize {
        let rows = |rows: &Rows| rows.bits.capacity() * 8 + rows.free.capacity() * 4;
        self.shards.iter().map(|shard| shard.table.bytes() + rows(&shard.rows)).sum()
    }

    /// Shard and key of a sequence hash. The shard takes the low bits, the table sorts by the high ones.
    #[inline]
    fn place(&self, sequence: u64) -> (usize, u64) {
        let key = mix(sequence ^ self.secret);
        (key as usize % SHARDS, key)
    }

    #[inline]
    pub fn prefetch(&self, sequence: u64) {
        let (shard, key) = self.place(sequence);
        self.shards[shard].table.prefetch(key);
    }

    /// Marks that the lane holds the block in these tiers too.
    pub fn add(&mut self, sequence: u64, lane: u16, tiers: Tiers) {
        let (lane, (shard, key)) = (lane as usize, self.place(sequence));
        self.words = self.words.max(lane / 64 + 1);
        let shard = &mut self.shards[shard];
        let cell = shard.table.get(key).unwrap_or(0);
        if cell & WIDE == 0 {
            let had = inline(cell).find(|holder| holder.0 == lane).map_or(Tiers::NONE, |it| it.1);
            if had == Tiers::NONE {
                self.holders += 1;
            }
            if let Some(cell) = put(cell, lane, had.with(tiers)) {
                return shard.table.insert(key, cell);
            }
            let at = {
                shard.rows.widen(self.words);
                shard.rows.take()
            };
            for (lane, tiers) in inline(cell) {
                set(&mut shard.rows, at, lane, tiers);
            }
            set(&mut shard.rows, at, lane, tiers);
            return shard.table.insert(key, WIDE | u64::from(at));
        }
        shard.rows.widen(self.words);
        if !set(&mut shard.rows, cell as u32, lane, tiers) {
            self.holders += 1;
        }
    }

    /// Marks that the lane no longer holds the block in these tiers.
    pub fn remove(&mut self, sequence: u64, lane: u16, tiers: Tiers) {
        let (lane, (shard, key)) = (lane as usize, self.place(sequence));
        let shard = &mut self.shards[shard];
        let Some(cell) = shard.table.get(key) else { return };
        if cell & WIDE == 0 {
            let Some((_, had)) = inline(cell).find(|holder| holder.0 == lane) else { return };
            let left = had.without(tiers);
            self.holders -= usize::from(left == Tiers::NONE);
            match put(cell, lane, left) {
                Some(0) | None => drop(shard.table.remove(key)),
                Some(cell) => shard.table.insert(key, cell),
            }
            return;
        }
        let at = cell as u32;
        if lane >= shard.rows.words * 64 || !unset(&mut shard.rows, at, lane, tiers) {
            return;
        }
        self.holders -= 1;
        // Back into the cell at half of what it takes, so that a block on the edge does not move to
        // and fro.
        let mut left = shard.rows.holders(at);
        let (first, second, third) = (left.next(), left.next(), left.next());
        drop(left);
        if third.is_some() {
            return;
        }
        let cell = [first, second].into_iter().flatten().fold(0, |cell, (lane, tiers)| {
            put(cell, lane, tiers).expect("a cell has room for two")
        });
        shard.rows.row_mut(at).fill(0);
        shard.rows.free.push(at);
        match cell {
            0 => drop(shard.table.remove(key)),
            cell => shard.table.insert(key, cell),
        }
    }

    /// A block's holders as masks over lanes, one per tier; None where nobody holds it. `W` is at least
    /// `words`.
    #[inline]
    pub fn masks<const W: usize>(&self, sequence: u64) -> Option<[[u64; W]; 4]> {
        let (shard, key) = self.place(sequence);
        let shard = &self.shards[shard];
        let cell = shard.table.get(key)?;
        let mut masks = [[0; W]; 4];
        if cell & WIDE == 0 {
            for (lane, tiers) in inline(cell) {
                for (tier, mask) in masks.iter_mut().enumerate() {
                    mask[lane / 64 % W] |= u64::from(tiers.0 >> tier & 1) << (lane % 64);
                }
            }
            return Some(masks);
        }
        let words = shard.rows.words;
        let row = shard.rows.row(cell as u32);
        for (tier, mask) in masks.iter_mut().enumerate() {
            for word in 0..words.min(W) {
                mask[word] = row[tier * words + word];
            }
        }
        Some(masks)
    }

    /// The tiers in which a lane holds the block.
    pub fn tiers(&self, sequence: u64, lane: u16) -> Tiers {
        let (lane, (shard, key)) = (lane as usize, self.place(sequence));
        let shard = &self.shards[shard];
        let holder = |holder: (usize, Tiers)| (holder.0 == lane).then_some(holder.1);
        match shard.table.get(key) {
            None => Tiers::NONE,
            Some(cell) if cell & WIDE == 0 => inline(cell).find_map(holder).unwrap_or_default(),
            Some(cell) => shard.rows.holders(cell as u32).find_map(holder).unwrap_or_default(),
        }
    }
}

/// The cell with the lane's tiers set to these; None if it has no room.
fn put(cell: u64, lane: usize, tiers: Tiers) -> Option<u64> {
    let holder = match tiers {
        Tiers::NONE => 0,
        tiers => (lane as u64) << 4 | u64::from(tiers.0),
    };
    let mut free = None;
    for at in (0..INLINE).map(|at| at * HOLDER_BITS) {
        let there = cell >> at & HOLDER;
        if there & 15 == 0 {
            free = free.or(Some(at));
        } else if (there >> 4) as usize == lane {
            return Some(cell & !(HOLDER << at) | holder << at);
        }
    }
    free.map(|at| cell & !(HOLDER << at) | holder << at)
}

/// Sets bits of a row; true if the lane had any before.
fn set(rows: &mut Rows, at: u32, lane: usize, tiers: Tiers) -> bool {
    let words = rows.words;
    let row = rows.row_mut(at);
    let mut had = false;
    for tier in 0..Rows::TIERS {
        let word = &mut row[tier * words + lane / 64];
        had |= *word >> (lane % 64) & 1 == 1;
        *word |= u64::from(tiers.0 >> tier & 1) << (lane % 64);
    }
    had
}

/// Clears bits of a row; true if that took the lane's last.
fn unset(rows: &mut Rows, at: u32, lane: usize, tiers: Tiers) -> bool {
    let words = rows.words;
    let row = rows.row_mut(at);
    let (mut had, mut has) = (false, false);
    for tier in 0..Rows::TIERS {
        let word = &mut row[tier * words + lane / 64];
        had |= *word >> (lane % 64) & 1 == 1;
        *word &= !(u64::from(tiers.0 >> tier & 1) << (lane % 64));
        has |= *word >> (lane % 64) & 1 == 1;
    }
    had && !has
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;
    use std::collections::{HashMap, HashSet};

    fn masks(holders: &Holders, sequence: u64) -> Vec<(u16, Tiers)> {
        let rows = holders.masks::<WORDS_MAX>(sequence).unwrap_or([[0; WORDS_MAX]; 4]);
        let bit = |tier: usize, lane: usize| (rows[tier][lane / 64] >> (lane % 64) & 1) as u8;
        (0..LANES_MAX)
            .map(|lane| (lane as u16, Tiers((0..4).map(|tier| bit(tier, lane) << tier).sum())))
            .filter(|(_, tiers)| *tiers != Tiers::NONE)
            .collect()
    }

    #[test]
    fn it_holds_what_a_plain_map_of_sets_holds() {
        for (seed, lanes) in [(1u64, 3u64), (2, 8), (3, 64), (4, 200), (5, LANES_MAX as u64)] {
            let mut holders = Holders::new(seed);
            let mut expected: HashMap<u64, HashMap<u16, Tiers>> = HashMap::new();
            let mut random = Random(seed);
            for step in 0..9_000u64 {
                let sequence = mix(random.below(50)) & !15;
                // Lanes come into use one after the other, as engines do.
                let lane = random.below(lanes.min(step / 30 + 1)) as u16;
                let tiers = Tiers(random.below(15) as u8 + 1);
                let add = random.below(10) < if step % 1800 < 900 { 7 } else { 3 };
                let block = expected.entry(sequence).or_default();
                let had = block.get(&lane).copied().unwrap_or_default();
                let now = if add { had.with(tiers) } else { had.without(tiers) };
                match now {
                    Tiers::NONE => drop(block.remove(&lane)),
                    now => drop(block.insert(lane, now)),
                }
                match add {
                    true => holders.add(sequence, lane, tiers),
                    false => holders.remove(sequence, lane, tiers),
                }
                assert_eq!(holders.tiers(sequence, lane), now);
                assert_eq!(holders.len(), expected.values().map(HashMap::len).sum::<usize>());
            }
            for (sequence, block) in &expected {
                let mut block: Vec<_> = block.iter().map(|(lane, tiers)| (*lane, *tiers)).collect();
                block.sort_by_key(|holder| holder.0);
                assert_eq!(masks(&holders, *sequence), block);
            }
            let blocks = expected.values().filter(|block| !block.is_empty()).count();
            assert_eq!(holders.blocks(), blocks);
            for (sequence, block) in &expected {
                for lane in block.keys() {
                    holders.remove(*sequence, *lane, Tiers::ALL);
                }
            }
            assert!(holders.is_empty() && holders.blocks() == 0);
            let rows: usize = holders.shards.iter().map(|shard| shard.rows.bits.len()).sum();
            let free: usize = holders
                .shards
                .iter()
                .map(|shard| {
                    assert!(shard.rows.bits.iter().all(|word| *word == 0));
                    let free: HashSet<_> = shard.rows.free.iter().collect();
                    assert_eq!(free.len(), shard.rows.free.len());
                    free.len() * shard.rows.words * Rows::TIERS
                })
                .sum();
            assert_eq!(free, rows, "every row is free again");
        }
    }
}
