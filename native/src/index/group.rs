//! One group of an engine's cache: which of the engine's hashes are cached, how often, and as what.
//!
//! An engine stores and removes *physical* blocks: the same hash may be cached twice, and is gone only
//! when both are. So device and host copies are counted. An announcement repeated without a new copy
//! (`kv_cache_report_mode: full`) cannot be told from a second copy; counting it leaves credit until a
//! clear, where not counting would lose credit whenever one of two copies is evicted, which is common:
//! requests that start together with one prefix each compute and store it.
//! Disk and remote stores keep one object a hash and announce it again at will: there a block is in or out.

use super::spread::SpreadMap;
use super::table::Table;
use super::tiers::Tiers;
use crate::blocks::SEQUENCE;
use crate::hash::mix;

/// How an engine uses the blocks of a group for a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Every block of the prefix must be there.
    Whole,
    /// The blocks that cover so many tokens before the prefix's end must be there.
    Window(u32),
    /// The block at the prefix's end must be there (a recurrent state).
    State,
}

impl Role {
    /// By `kv_cache_spec_kind` (`KVCacheSpecKind` in `vllm/v1/kv_cache_interface.py`); None where a
    /// group says nothing of prefixes, or we do not know what it says. Versions without kinds index their
    /// first group only.
    pub fn of(kind: Option<&[u8]>, group: u32, window: u32) -> Option<Role> {
        match kind {
            None => (group == 0).then_some(Role::Whole),
            Some(b"full_attention" | b"mla_attention" | b"sink_full_attention") => {
                Some(Role::Whole)
            }
            Some(b"sliding_window" | b"sliding_window_mla") if window > 0 => {
                Some(Role::Window(window))
            }
            Some(b"mamba") => Some(Role::State),
            _ => None,
        }
    }

    /// Blocks of `size` tokens that must be there before the end of a prefix; None for all.
    pub fn needs(self, size: u32) -> Option<u32> {
        match self {
            Role::Whole => None,
            Role::Window(window) => Some((window - 1).div_ceil(size).max(1)),
            Role::State => Some(1),
        }
    }
}

/// What became of a block of which a copy is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// There was none.
    Absent,
    /// There are more in this tier.
    Copy,
    /// It is no longer in this tier; its sequence hash.
    Last(u64),
}

/// The table key of an engine's hash: spread, whatever the engine's hashes look like.
#[inline]
pub fn key_of(hash: u64) -> u64 {
    mix(hash ^ 0x6b65_7973)
}

pub struct Group {
    pub index: u32,
    /// This group's bit in the masks of `Holders`.
    pub lane: u16,
    pub role: Role,
    /// Tokens per block.
    pub size: u32,
    /// Key -> sequence hash, tiers in its low four bits.
    pub known: Table,
    /// Copies beyond the first.
    copies: SpreadMap<(u64, Tiers), u32>,
    /// Bits of entries for disk or remote: what outlives a reset of the engine.
    lasting: usize,
    /// Bits of entries for device or host: what does not.
    volatile: usize,
    /// Entries on the device.
    pub device: usize,
    /// The key at which eviction goes on.
    pub hand: u64,
}

impl Group {
    pub fn new(index: u32, lane: u16, role: Role, size: u32) -> Self {
        let (known, copies) = (Table::default(), SpreadMap::default());
        Self { index, lane, role, size, known, copies, lasting: 0, volatile: 0, device: 0, hand: 0 }
    }

    pub fn sequence(&self, key: u64) -> Option<u64> {
        self.known.get(key).map(|entry| entry & SEQUENCE)
    }

    pub fn bytes(&self) -> usize {
        // A key, a count and a control byte, at the map's mean fill.
        self.known.bytes() + self.copies.capacity() * 25
    }

    /// One more copy. The block's sequence hash if it was not in this tier before; that is the one given
    /// unless the key is known.
    pub fn hold(&mut self, key: u64, sequence: u64, tier: Tiers) -> Option<u64> {
        let sequence = match self.known.get_mut(key) {
            None => {
                self.known.insert(key, sequence & SEQUENCE | u64::from(tier.0));
                sequence
            }
            Some(entry) if Tiers(*entry as u8 & 15).has(tier) => {
                if Tiers::VOLATILE.has(tier) {
                    *self.copies.entry((key, tier)).or_default() += 1;
                }
                return None;
            }
            Some(entry) => {
                *entry |= u64::from(tier.0);
                *entry & SEQUENCE
            }
        };
        self.count(tier, |count| *count += 1);
        Some(sequence)
    }

    /// The block is another one than we took it for. What it was, and the tiers it is in.
    pub fn rename(&mut self, key: u64, sequence: u64) -> Option<(u64, Tiers)> {
        let entry = self.known.get_mut(key)?;
        let was = *entry;
        *entry = sequence & SEQUENCE | was & !SEQUENCE;
        Some((was & SEQUENCE, Tiers(was as u8 & 15)))
    }

    /// One copy less.
    pub fn release(&mut self, key: u64, tier: Tiers) -> Released {
        let Some(entry) = self.known.get_mut(key) else { return Released::Absent };
        if !Tiers(*entry as u8 & 15).has(tier) {
            return Released::Absent;
        }
        if !self.copies.is_empty() {
            if let Some(more) = self.copies.get_mut(&(key, tier)) {
                *more -= 1;
                if *more == 0 {
                    self.copies.remove(&(key, tier));
                }
                return Released::Copy;
            }
        }
        *entry &= !u64::from(tier.0);
        let left = *entry;
        if left & !SEQUENCE == 0 {
            self.known.remove(key);
        }
        self.count(tier, |count| *count -= 1);
        Released::Last(left & SEQUENCE)
    }

    /// Drops a block whatever its copies: its sequence hash and tiers.
    pub fn drop_block(&mut self, key: u64) -> Option<(u64, Tiers)> {
        let entry = self.known.remove(key)?;
        let tiers = Tiers(entry as u8 & 15);
        if !self.copies.is_empty() {
            for tier in [Tiers::DEVICE, Tiers::HOST] {
                self.copies.remove(&(key, tier));
            }
        }
        self.count(tiers, |count| *count -= 1);
        Some((entry & SEQUENCE, tiers))
    }

    fn count(&mut self, tiers: Tiers, mut change: impl FnMut(&mut usize)) {
        if tiers.has(Tiers::DEVICE) {
            change(&mut self.device);
        }
        for tier in [Tiers::DEVICE, Tiers::HOST] {
            if tiers.has(tier) {
                change(&mut self.volatile);
            }
        }
        for tier in [Tiers::DISK, Tiers::REMOTE] {
            if tiers.has(tier) {
                change(&mut self.lasting);
            }
        }
    }

    /// Every block in every tier, with its copies.
    pub fn all_copies(&self) -> impl Iterator<Item = (u64, Tiers, u32)> + '_ {
        let tiers = [Tiers::DEVICE, Tiers::HOST, Tiers::DISK, Tiers::REMOTE];
        self.known.iter().flat_map(move |(key, entry)| {
            let there = tiers.into_iter().filter(move |tier| Tiers(entry as u8 & 15).has(*tier));
            there.map(move |tier| (key, tier, 1 + self.copies.get(&(key, tier)).unwrap_or(&0)))
        })
    }

    /// True if all of it goes when the engine resets its cache.
    pub fn is_volatile(&self) -> bool {
        self.lasting == 0
    }

    /// What the engine's reset leaves: the blocks on disk and remote. Hands out (sequence, tiers) of
    /// what goes.
    pub fn reset(&mut self, mut gone: impl FnMut(u64, Tiers)) {
        if self.volatile == 0 {
            return;
        }
        (self.copies, self.volatile, self.device) = (SpreadMap::default(), 0, 0);
        let tiers = |entry: u64| Tiers(entry as u8 & 15);
        let some = self.known.iter().filter(|(_, entry)| tiers(*entry).has(Tiers::VOLATILE));
        for (key, entry) in some.collect::<Vec<_>>() {
            gone(entry & SEQUENCE, tiers(entry).and(Tiers::VOLATILE));
            match tiers(entry).without(Tiers::VOLATILE) {
                Tiers::NONE => drop(self.known.remove(key)),
                left => self.known.insert(key, entry & SEQUENCE | u64::from(left.0)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        Group::new(0, 0, Role::Whole, 16)
    }

    #[test]
    fn a_block_is_gone_when_its_last_copy_is() {
        let mut group = group();
        assert_eq!(group.hold(1, 160, Tiers::DEVICE), Some(160));
        assert_eq!(group.hold(1, 160, Tiers::DEVICE), None);
        assert_eq!(group.hold(1, 320, Tiers::HOST), Some(160), "the first name counts");
        assert_eq!(group.rename(1, 160), Some((160, Tiers(3))));
        assert_eq!(group.release(1, Tiers::DEVICE), Released::Copy);
        assert_eq!(group.release(1, Tiers::DEVICE), Released::Last(160));
        assert_eq!(group.release(1, Tiers::DEVICE), Released::Absent);
        assert_eq!(group.sequence(1), Some(160));
        assert_eq!(group.release(1, Tiers::HOST), Released::Last(160));
        assert_eq!((group.known.len(), group.copies.len()), (0, 0));
    }

    #[test]
    fn stores_keep_one_object_however_often_they_say_so() {
        let mut group = group();
        for _ in 0..3 {
            group.hold(1, 160, Tiers::DISK);
        }
        assert!(!group.is_volatile());
        assert_eq!(group.release(1, Tiers::DISK), Released::Last(160));
        assert!(group.is_volatile() && group.known.is_empty());
    }

    #[test]
    fn a_reset_leaves_what_lies_on_disk_and_remote() {
        let mut group = group();
        group.hold(1, 160, Tiers::DEVICE);
        group.hold(2, 320, Tiers::HOST);
        group.hold(2, 320, Tiers::HOST);
        group.hold(2, 320, Tiers::DISK);
        let mut gone = Vec::new();
        group.reset(|sequence, tiers| gone.push((sequence, tiers)));
        gone.sort_by_key(|it| it.0);
        assert_eq!(gone, [(160, Tiers::DEVICE), (320, Tiers::HOST)]);
        assert_eq!((group.sequence(1), group.sequence(2)), (None, Some(320)));
        assert_eq!(group.drop_block(2), Some((320, Tiers::DISK)));
        assert!(group.is_volatile() && group.copies.is_empty());
    }

    #[test]
    fn roles_are_by_kind_and_unknown_kinds_have_none() {
        let of = |kind: &str, window| Role::of(Some(kind.as_bytes()), 3, window);
        assert_eq!(of("mla_attention", 0), Some(Role::Whole));
        assert_eq!(of("sliding_window_mla", 512), Some(Role::Window(512)));
        assert_eq!(of("sliding_window", 0), None);
        assert_eq!(of("mamba", 0), Some(Role::State));
        assert_eq!(of("chunked_local_attention", 0), None);
        assert_eq!(of("cross_attention", 0), None);
        assert_eq!(of("", 0), None);
        assert_eq!((Role::of(None, 0, 0), Role::of(None, 1, 0)), (Some(Role::Whole), None));
        assert_eq!(Role::Window(1024).needs(16), Some(64));
        assert_eq!(Role::Window(1025).needs(16), Some(64));
        assert_eq!(Role::Window(1).needs(16), Some(1));
    }
}
