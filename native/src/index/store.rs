//! What a store that several engines share says it has: kvbm's daemon, by the engines' own hashes.
//!
//! It does not tell tokens. What a hash is, the engines that reach it know: one is asked when the store
//! announces a block, and tells when it announces one itself that the store has. Until then the block
//! waits. Every engine that reaches the store is credited with what lies there, behind what it has itself.
//!
//! A store's number is at least `FIRST`, those of engines are below. An engine's lock is taken before a
//! store's, never after it.

use std::sync::{Arc, Mutex};

use super::counts::{Applied, Counts, Ignored};
use super::group::key_of;
use super::lock;
use super::sizes::Sizes;
use super::slot::{Change, Retired};
use super::table::Table;
use super::tiers::Tiers;
use super::view::View;
use super::Index;
use crate::blocks::SEQUENCE;
use crate::events::{Decoder, Event};

/// The number of the first store.
pub const FIRST: u16 = 0x8000;
const STORES_MAX: usize = 256;

#[derive(Default)]
pub struct Store {
    /// Key -> sequence hash, tiers in its low four bits.
    known: Table,
    /// Key -> tiers, of blocks whose hash no engine has told.
    waiting: Table,
    lane: u16,
    members: Vec<u16>,
    /// Blocks that there was no room for since it was empty.
    short: u64,
    gone: bool,
}

impl Store {
    fn sizes(&self) -> Sizes {
        Sizes {
            held: self.known.len(),
            waiting: self.waiting.len(),
            short: self.short,
            bytes: self.known.bytes() + self.waiting.bytes(),
            tokens: 0,
        }
    }

    /// It has a block in a tier. True: nobody has told what it is.
    fn add(&mut self, key: u64, tier: Tiers, room: &mut usize, out: &mut Vec<Change>) -> bool {
        if let Some(entry) = self.known.get_mut(key) {
            let is_new = !Tiers(*entry as u8 & 15).has(tier);
            *entry |= u64::from(tier.0);
            let (sequence, lane) = (*entry & SEQUENCE, self.lane);
            if is_new {
                out.push(Change { sequence, lane, tiers: tier, held: true });
            }
            return false;
        }
        if let Some(tiers) = self.waiting.get_mut(key) {
            *tiers |= u64::from(tier.0);
            return true;
        }
        if *room == 0 {
            self.short += 1;
            return false;
        }
        *room -= 1;
        self.waiting.insert(key, u64::from(tier.0));
        true
    }

    /// A block is in a tier no more. False: it was not there.
    fn remove(&mut self, key: u64, tier: Tiers, out: &mut Vec<Change>) -> bool {
        let lane = self.lane;
        if let Some(entry) = self.known.get_mut(key) {
            let was = Tiers(*entry as u8 & 15).has(tier);
            *entry &= !u64::from(tier.0);
            let left = *entry;
            if was {
                out.push(Change { sequence: left & SEQUENCE, lane, tiers: tier, held: false });
            }
            if left & !SEQUENCE == 0 {
                self.known.remove(key);
            }
            return was;
        }
        let Some(tiers) = self.waiting.get_mut(key) else { return false };
        let was = Tiers(*tiers as u8).has(tier);
        *tiers &= !u64::from(tier.0);
        if *tiers == 0 {
            self.waiting.remove(key);
        }
        was
    }

    /// An engine has said what a key is. True: it had waited.
    fn tell(&mut self, key: u64, sequence: u64, out: &mut Vec<Change>) -> bool {
        let lane = self.lane;
        let hold = |sequence, tiers, held| Change { sequence, lane, tiers, held };
        if let Some(tiers) = self.waiting.remove(key) {
            self.known.insert(key, sequence & SEQUENCE | tiers);
            out.push(hold(sequence & SEQUENCE, Tiers(tiers as u8), true));
            return true;
        }
        if let Some(entry) = self.known.get_mut(key).filter(|entry| **entry & SEQUENCE != sequence) {
            // It was taken for one without a salt, by an event that did not say.
            let tiers = Tiers(*entry as u8 & 15);
            out.push(hold(*entry & SEQUENCE, tiers, false));
            out.push(hold(sequence, tiers, true));
            *entry = sequence | u64::from(tiers.0);
        }
        false
    }

    /// Forgets everything; what it had is left under the lane it had.
    fn empty(&mut self, lane: u16) -> Retired {
        let known = std::mem::take(&mut self.known).into_entries();
        (self.waiting, self.short) = (Table::default(), 0);
        let blocks = known.map(|(_, entry)| (entry & SEQUENCE, Tiers(entry as u8 & 15)));
        Retired { lane: std::mem::replace(&mut self.lane, lane), blocks: Box::new(blocks) }
    }
}

pub type Stores = Mutex<Vec<Option<Arc<Mutex<Store>>>>>;

impl Index {
    /// A store that engines may be said to reach; None if there are too many.
    pub fn add_store(&self) -> Option<u16> {
        let lane = self.lanes.take()?;
        let mut stores = lock(&self.stores);
        let at = stores.iter().position(Option::is_none).unwrap_or(stores.len());
        if at >= STORES_MAX {
            self.lanes.give(lane);
            return None;
        }
        if at == stores.len() {
            stores.push(None);
        }
        stores[at] = Some(Arc::new(Mutex::new(Store { lane, ..Store::default() })));
        Some(FIRST + at as u16)
    }

    fn store(&self, number: u16) -> Option<Arc<Mutex<Store>>> {
        lock(&self.stores).get(usize::from(number.checked_sub(FIRST)?))?.clone()
    }

    /// An engine can load from a store, or from none.
    pub fn reach(&self, slot: u16, number: Option<u16>) {
        let Some(engine) = self.engine(slot) else { return };
        let mut engine = lock(&engine);
        let former = engine.store.take();
        if let Some(store) = former.and_then(|(number, _)| self.store(number)) {
            lock(&store).members.retain(|member| *member != slot);
        }
        if let Some((number, store)) = number.and_then(|n| Some((n, self.store(n)?))) {
            let mut store = lock(&store);
            if !store.gone && !engine.gone {
                store.members.push(slot);
                engine.store = Some((number, store.lane));
            }
        }
        self.publish(slot, engine.view());
        drop(engine);
        if let Some(number) = number {
            self.ask(number, None);
        }
    }

    /// Takes in a batch of a store's events.
    pub(super) fn apply_store(&self, number: u16, payload: &[u8]) -> Applied {
        let Some(store) = self.store(number) else { return Applied::default() };
        let mut room = self.pairs_max.saturating_sub(self.shared.read().holders.len());
        let (mut counts, mut changes, mut unknown) = (Counts::default(), Vec::new(), Vec::new());
        let mut locked = lock(&store);
        if locked.gone {
            return Applied::default();
        }
        room = room.saturating_sub(locked.waiting.len());
        let store = &mut *locked;
        let mut cleared = false;
        let header = Decoder::default().decode(payload, |event| match event {
            Event::Stored(stored) => {
                let tier = Tiers::of(stored.place.medium, stored.place.locality);
                let Some(tier) = tier.filter(|tier| *tier != Tiers::DEVICE) else {
                    return counts.ignore(Ignored::Medium, stored.hashes.len());
                };
                let before = store.short;
                for hash in stored.hashes {
                    let key = key_of(*hash);
                    if store.add(key, tier, &mut room, &mut changes) {
                        unknown.push(key);
                    }
                }
                counts.ignore(Ignored::Full, (store.short - before) as usize);
                counts.stored += stored.hashes.len() as u64 - (store.short - before);
            }
            Event::Removed(hashes, place) => {
                let Some(tier) = Tiers::of(place.medium, place.locality) else {
                    return counts.ignore(Ignored::Medium, hashes.len());
                };
                for hash in hashes {
                    match store.remove(key_of(*hash), tier, &mut changes) {
                        true => counts.removed += 1,
                        false => counts.ignore(Ignored::Absent, 1),
                    }
                }
            }
            // What comes before it in a batch goes with it.
            Event::Cleared => cleared = true,
            Event::Other => counts.ignore(Ignored::Event, 1),
        });
        counts.cleared += u64::from(cleared);
        for (count, more) in counts.malformed.iter_mut().zip(header.faults) {
            *count += u64::from(more);
        }
        counts.untold = unknown.len() as u64;
        self.make(&changes, |_| ());
        drop(locked);
        if cleared {
            self.clear_store(number, false);
        }
        counts.adopted = self.ask(number, Some(unknown));
        lock(&self.totals).add(&counts);
        self.reap();
        Applied { header, counts, session: None }
    }

    /// Ask the engines that reach a store what these keys are, or all that wait.
    fn ask(&self, number: u16, keys: Option<Vec<u64>>) -> u64 {
        let Some(store) = self.store(number) else { return 0 };
        let (members, mut keys) = {
            let store = lock(&store);
            let all = || store.waiting.iter().map(|(key, _)| key).collect();
            (store.members.clone(), keys.unwrap_or_else(all))
        };
        let mut told = Vec::new();
        for engine in members.iter().filter_map(|slot| self.engine(*slot)) {
            if keys.is_empty() {
                break;
            }
            let engine = lock(&engine);
            keys.retain(|key| match engine.slot.sequence(*key) {
                Some(sequence) => {
                    told.push((*key, sequence));
                    false
                }
                None => true,
            });
        }
        self.tell(number, &told)
    }

    /// What an engine that reaches a store says of blocks. How many had waited for it.
    pub(super) fn tell(&self, number: u16, told: &[(u64, u64)]) -> u64 {
        let Some(store) = self.store(number).filter(|_| !told.is_empty()) else { return 0 };
        let mut changes = Vec::new();
        let mut store = lock(&store);
        let adopted = told
            .iter()
            .filter(|(key, sequence)| store.tell(*key, *sequence, &mut changes))
            .count();
        self.make(&changes, |_| ());
        adopted as u64
    }

    /// Forgets what a store has, and the store itself where it is `gone`.
    pub(super) fn clear_store(&self, number: u16, gone: bool) {
        let Some(store) = self.store(number) else { return };
        let lane = if gone { None } else { self.lanes.take() };
        let members = {
            let mut store = lock(&store);
            store.gone |= gone || lane.is_none();
            // A store that is gone keeps no lane: the old one is free when it is empty.
            let retired = store.empty(lane.unwrap_or_default());
            lock(&self.retired).push_back(retired);
            store.members.clone()
        };
        for slot in members {
            let Some(engine) = self.engine(slot) else { continue };
            let mut engine = lock(&engine);
            engine.store = lane.filter(|_| !engine.gone).map(|lane| (number, lane));
            self.publish(slot, engine.view());
        }
        if gone {
            if let Some(place) = lock(&self.stores).get_mut(usize::from(number - FIRST)) {
                *place = None;
            }
        }
        self.reap();
    }

    pub(super) fn store_sizes(&self, number: u16) -> Sizes {
        self.store(number).map_or(Sizes::default(), |store| lock(&store).sizes())
    }
}

impl View {
    /// With the blocks of a store behind its own.
    pub fn reaching(mut self, store: Option<(u16, u16)>) -> View {
        self.store = store.map(|(_, lane)| lane);
        self
    }
}

#[cfg(test)]
#[path = "store_test.rs"]
mod tests;
