//! What one engine says it has cached: events in, changes of the common map out.

use super::counts::{Counts, Ignored};
use super::earlier::Earlier;
use super::group::{key_of, Group, Released, Role};
use super::keys::Keys;
use super::lanes::Lanes;
use super::orphans::{Copy, Found, Orphans};
use super::tiers::Tiers;
use crate::blocks;
use crate::events::{Place, Stored};

/// Groups of one engine that are indexed; more are ignored.
const GROUPS_MAX: usize = 16;
/// Blocks that a reset takes out one by one; for more a lane is given up.
const RESET_ONE_BY_ONE: usize = 1024;
/// Lanes that one batch may give up in resets: others need them, and they come back bit by bit.
const RESET_LANES: u64 = 8;

/// A lane begins or ceases to hold a block in some tiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub sequence: u64,
    pub lane: u16,
    pub tiers: Tiers,
    pub held: bool,
}

/// A lane that is used no more, and what `Holders` still has under it.
pub struct Retired {
    pub lane: u16,
    pub blocks: Box<dyn Iterator<Item = (u64, Tiers)> + Send>,
}

/// Where the consequences of events are put.
pub struct Out<'a> {
    pub lanes: &'a Lanes,
    pub changes: Vec<Change>,
    pub retired: Vec<Retired>,
    pub counts: Counts,
    /// True if groups came or went.
    pub reshaped: bool,
    /// Blocks that may be added before the index is at its limit.
    pub room: usize,
    /// Keys and sequence hashes of blocks that became known, where a store wants to hear of them.
    pub told: Option<Vec<(u64, u64)>>,
}

impl<'a> Out<'a> {
    pub fn new(lanes: &'a Lanes, room: usize) -> Self {
        let (changes, retired, counts) = (Vec::new(), Vec::new(), Counts::default());
        Self { lanes, changes, retired, counts, reshaped: false, room, told: None }
    }
}

#[derive(Default)]
pub struct Slot {
    pub groups: Vec<Group>,
    /// Tokens per block of the sequence hashes: that of the groups that need the whole prefix.
    size: u32,
    /// True once a block had a salt or an image: events that do not say so may then not be believed.
    scoped: bool,
    /// Blocks whose parent is not known.
    orphans: Orphans,
    /// Blocks announced without tokens whose twin is not known. Some never will be: those of a window
    /// that end within a larger block. So they do not share the room of the others.
    untold: Orphans,
    found: Vec<Found>,
    /// Keys that became known in the event at work, with their sequence hashes.
    fresh: Vec<(u64, u64)>,
    /// Blocks that it has announced and that there was no room for, or no lane, since it was empty.
    short: u64,
}

impl Slot {
    pub fn block_size(&self) -> u32 {
        self.size
    }

    pub fn bytes(&self) -> usize {
        let groups = self.groups.iter().map(Group::bytes).sum::<usize>();
        groups + self.orphans.bytes() + self.untold.bytes()
    }

    /// Blocks that wait for a parent.
    pub fn waiting(&self) -> usize {
        self.orphans.len()
    }

    /// Blocks that are not credited for want of room since it was empty.
    pub fn short(&self) -> u64 {
        self.short
    }

    /// Copies of blocks known to be there, each once: (block, group) pairs.
    pub fn entries(&self) -> usize {
        self.groups.iter().map(|group| group.known.len()).sum()
    }

    pub fn store(&mut self, event: &Stored<'_>, out: &mut Out<'_>) {
        let blocks = event.hashes.len();
        let Some(tier) = Tiers::of(event.place.medium, event.place.locality) else {
            return out.counts.ignore(Ignored::Medium, blocks);
        };
        let Some(group) = self.group_for(event, out) else {
            return out.counts.ignore(Ignored::Group, blocks);
        };
        let size = event.block_size;
        let told = !event.tokens.is_empty() && size > 0;
        if told && size < self.groups[group].size {
            // A prefix that ends within a block, cached besides the whole ones. An engine whose blocks
            // became smaller has restarted, and was cleared for that.
            return out.counts.ignore(Ignored::Partial, blocks);
        }
        let copy = Copy { key: 0, group, tier };
        // Masked groups name fewer blocks than they send tokens; which ones only their hashes say.
        let whole = event.tokens.len() as u64 == blocks as u64 * u64::from(size);
        let sure = tier == Tiers::DEVICE || event.extra_keys.is_some() || !self.scoped;
        match told && whole && sure && size == self.size {
            true => self.store_told(event, copy, out),
            false => self.store_untold(event.hashes, copy, out),
        }
        self.adopt(out);
    }

    /// Blocks with their tokens: a chain from the parent, or from the root.
    fn store_told(&mut self, event: &Stored<'_>, copy: Copy, out: &mut Out<'_>) {
        let mut keys = Keys::of(event);
        let first = keys.read();
        let parent = match event.parent {
            None => Ok(keys.root(event)),
            Some(hash) => self.sequence(key_of(hash)).ok_or(key_of(hash)),
        };
        let bytes = blocks::bytes(event.tokens);
        let span = event.block_size as usize * 4;
        let mut own = first;
        let local = |at: usize, own: u64| {
            let local = blocks::local(&bytes[at * span..][..span]);
            if own == 0 {
                local
            } else {
                blocks::extend(local, own)
            }
        };
        let mut last = match parent {
            Ok(sequence) => sequence,
            Err(parent) => {
                let mut run = Vec::with_capacity(event.hashes.len());
                for (at, hash) in event.hashes.iter().enumerate() {
                    run.push((key_of(*hash), local(at, own)));
                    own = keys.read();
                }
                self.scoped |= keys.special;
                out.counts.orphaned += run.len() as u64;
                out.counts.lost += self.orphans.push(parent, copy, &run) as u64;
                return;
            }
        };
        let mut earlier = Earlier::default();
        for (at, hash) in event.hashes.iter().enumerate() {
            let key = key_of(*hash);
            let next = blocks::extend(last, local(at, own));
            last = match self.groups[copy.group].sequence(key) {
                Some(sequence) if sequence != next => {
                    let sure = event.extra_keys.is_some() && !earlier.has(event.hashes, at);
                    if sure {
                        self.rename(copy.group, key, next, out)
                    } else {
                        sequence
                    }
                }
                _ => next,
            };
            self.hold(Copy { key, ..copy }, last, out);
            own = keys.read();
        }
        self.scoped |= keys.special;
    }

    /// Blocks of which only the hashes count: known by another group, tier or time, or put aside.
    fn store_untold(&mut self, hashes: &[u64], copy: Copy, out: &mut Out<'_>) {
        for hash in hashes {
            let copy = Copy { key: key_of(*hash), ..copy };
            match self.sequence(copy.key) {
                Some(sequence) => self.hold(copy, sequence, out),
                None => {
                    out.counts.untold += 1;
                    self.untold.push_untold(copy);
                }
            }
        }
    }

    fn hold(&mut self, copy: Copy, sequence: u64, out: &mut Out<'_>) {
        let group = &mut self.groups[copy.group];
        if out.room == 0 && group.known.get(copy.key).is_none() {
            self.short += 1;
            return out.counts.ignore(Ignored::Full, 1);
        }
        out.counts.stored += 1;
        if let Some(sequence) = group.hold(copy.key, sequence, copy.tier) {
            let (lane, tiers) = (group.lane, copy.tier);
            out.room = out.room.saturating_sub(1);
            out.changes.push(Change { sequence, lane, tiers, held: true });
            out.told.iter_mut().for_each(|told| told.push((copy.key, sequence)));
            if !self.orphans.is_empty() || !self.untold.is_empty() {
                self.fresh.push((copy.key, sequence));
            }
        }
    }

    /// A block was taken for one without a salt, or an image, by an event that did not say.
    fn rename(&mut self, group: usize, key: u64, next: u64, out: &mut Out<'_>) -> u64 {
        let group = &mut self.groups[group];
        if let Some((sequence, tiers)) = group.rename(key, next) {
            let lane = group.lane;
            out.changes.push(Change { sequence, lane, tiers, held: false });
            out.changes.push(Change { sequence: next, lane, tiers, held: true });
            out.told.iter_mut().for_each(|told| told.push((key, next)));
        }
        next
    }

    /// Takes in what waited for blocks that are known since this event.
    fn adopt(&mut self, out: &mut Out<'_>) {
        while let Some((key, sequence)) = self.fresh.pop() {
            let mut found = std::mem::take(&mut self.found);
            self.orphans.find(key, sequence, blocks::extend, &mut found);
            self.untold.find(key, sequence, blocks::extend, &mut found);
            for block in found.drain(..) {
                out.counts.adopted += u64::from(block.copies);
                if block.copies == 0 {
                    // Gone while it waited; what waits for it is known all the same.
                    self.fresh.push((block.copy.key, block.sequence));
                }
                for _ in 0..block.copies {
                    self.hold(block.copy, block.sequence, out);
                }
            }
            self.found = found;
        }
    }

    pub fn remove(&mut self, hashes: &[u64], place: &Place<'_>, out: &mut Out<'_>) {
        let Some(tier) = Tiers::of(place.medium, place.locality) else {
            return out.counts.ignore(Ignored::Medium, hashes.len());
        };
        let index = place.group.unwrap_or(0);
        let Some(at) = self.groups.iter().position(|group| group.index == index) else {
            return out.counts.ignore(Ignored::Group, hashes.len());
        };
        for hash in hashes {
            let copy = Copy { key: key_of(*hash), group: at, tier };
            let group = &mut self.groups[at];
            match group.release(copy.key, tier) {
                Released::Absent if !self.orphans.remove(copy) && !self.untold.remove(copy) => {
                    out.counts.ignore(Ignored::Absent, 1);
                    continue;
                }
                Released::Last(sequence) => {
                    let lane = group.lane;
                    out.changes.push(Change { sequence, lane, tiers: tier, held: false });
                }
                Released::Absent | Released::Copy => {}
            }
            out.counts.removed += 1;
        }
    }

    /// The engine has emptied its cache (`AllBlocksCleared`).
    pub fn reset(&mut self, out: &mut Out<'_>) {
        out.counts.cleared += 1;
        self.orphans.clear();
        self.untold.clear();
        self.short = 0;
        for group in &mut self.groups {
            let drop = group.is_volatile()
                && group.known.len() > RESET_ONE_BY_ONE
                && out.counts.cleared <= RESET_LANES;
            if let Some(lane) = drop.then(|| out.lanes.take()).flatten() {
                // A fresh lane is empty at once, whatever the old one held.
                let fresh = Group::new(group.index, lane, group.role, group.size);
                out.retired.push(retire(std::mem::replace(group, fresh)));
                out.reshaped = true;
                continue;
            }
            let lane = group.lane;
            let changes = &mut out.changes;
            group.reset(|sequence, tiers| {
                changes.push(Change { sequence, lane, tiers, held: false });
            });
        }
    }

    /// Forgets everything, the block size included.
    pub fn clear(&mut self, out: &mut Out<'_>) {
        out.retired.extend(self.groups.drain(..).map(retire));
        out.reshaped = true;
        *self = Self::default();
    }

    /// Drops up to so many blocks that `used` does not spare, going round from where it stopped. The
    /// engine may still have them; it will not be credited with them. True if it came round.
    pub fn evict(&mut self, blocks: usize, used: impl Fn(u64) -> bool, out: &mut Out<'_>) -> bool {
        let (mut dropped, mut round) = (0, false);
        for group in &mut self.groups {
            for _ in 0..(4 * blocks).min(2 * group.known.len()) {
                let Some((key, entry)) = group.known.next(group.hand) else {
                    (group.hand, round) = (0, true);
                    continue;
                };
                group.hand = key.saturating_add(1);
                if dropped < blocks && !used(entry & blocks::SEQUENCE) {
                    let Some((sequence, tiers)) = group.drop_block(key) else { continue };
                    let lane = group.lane;
                    out.changes.push(Change { sequence, lane, tiers, held: false });
                    dropped += 1;
                }
            }
        }
        self.short += dropped as u64;
        out.counts.evicted += dropped as u64;
        out.room += dropped;
        round
    }

    /// What a key of the engine's is, if any group knows it.
    pub fn sequence(&self, key: u64) -> Option<u64> {
        self.groups.iter().find_map(|group| group.sequence(key))
    }

    /// The place of an event's group, made if it is new; None for one that is not indexed.
    fn group_for(&mut self, event: &Stored<'_>, out: &mut Out<'_>) -> Option<usize> {
        let index = event.place.group.unwrap_or(0);
        let size = event.block_size;
        let told = !event.tokens.is_empty() && size > 0;
        if let Some(at) = self.groups.iter().position(|group| group.index == index) {
            if !told || size <= self.groups[at].size {
                return Some(at);
            }
            // Blocks grew: other blocks than those we know.
            self.resize(out);
        }
        if !told || self.groups.len() == GROUPS_MAX {
            return None;
        }
        let role = Role::of(event.kind, index, event.window)?;
        if role == Role::Whole && size != self.size {
            if self.groups.iter().any(|group| group.role == Role::Whole) {
                // Two groups that need the whole prefix, in blocks of two sizes: the first one counts.
                return None;
            }
            self.rebase(size, out);
        }
        let Some(lane) = out.lanes.take() else {
            self.short += event.hashes.len() as u64;
            return None;
        };
        self.groups.push(Group::new(index, lane, role, size));
        if self.size == 0 {
            self.size = size;
        }
        out.reshaped = true;
        Some(self.groups.len() - 1)
    }

    /// The group that needs whole prefixes has other blocks than windows announced before it: those are
    /// known by their hashes only from now on.
    fn rebase(&mut self, size: u32, out: &mut Out<'_>) {
        self.size = size;
        out.counts.lost += self.orphans.len() as u64;
        self.orphans.clear();
        for at in 0..self.groups.len() {
            let Some(lane) = out.lanes.take() else { return self.resize(out) };
            let group = &mut self.groups[at];
            let fresh = Group::new(group.index, lane, group.role, group.size);
            let group = std::mem::replace(group, fresh);
            for (key, tier, copies) in group.all_copies() {
                for _ in 0..copies {
                    self.untold.push_untold(Copy { key, group: at, tier });
                }
            }
            out.retired.push(retire(group));
        }
    }

    fn resize(&mut self, out: &mut Out<'_>) {
        out.counts.resized += 1;
        self.clear(out);
    }
}

fn retire(group: Group) -> Retired {
    let known = group.known.into_entries();
    let blocks = known.map(|(_, entry)| (entry & blocks::SEQUENCE, Tiers(entry as u8 & 15)));
    Retired { lane: group.lane, blocks: Box::new(blocks) }
}
