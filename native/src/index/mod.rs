//! The prefix index: which engine holds which blocks, in which tier.
//!
//! One thread feeds it with what engines announce while another looks prompts up. A lookup takes the
//! common map for reading, for microseconds; a batch takes it for writing again and again for a few
//! blocks at a time, and lets readers in between. What an engine announces is kept per engine, behind its
//! own lock, and reaches the common map as changes.

pub mod assumed;
pub mod counts;
mod earlier;
mod engine;
pub mod gate;
pub mod group;
pub mod holders;
pub mod keys;
pub mod lanes;
pub mod orphans;
pub mod recent;
pub mod sizes;
pub mod slot;
pub mod spread;
pub mod store;
pub mod table;
pub mod tiers;
pub mod used;
pub mod view;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::events::Event;
use crate::prompt::Prompt;
use assumed::Assumed;
use counts::{Counts, Ignored};
use engine::Engine;
use gate::Gate;
use holders::Holders;
use lanes::Lanes;
use recent::Recent;
use slot::{Change, Out, Retired};
use store::Stores;
use tiers::Tiers;
use used::Used;
use view::{View, Walk};

pub use counts::{Applied, IndexStats};
pub use view::Overlap;

/// What a block held by one engine takes at most, everything counted.
pub const PAIR_BYTES: usize = 64;
/// Changes of the common map made without letting readers in.
const SECTION: usize = 32;
/// Changes collected before they are made.
const BATCH: usize = 512;
/// Blocks of retired lanes taken out of the map with every call that changes it.
const REAP: usize = 1024;
/// Blocks a batch may evict when the index is at its limit.
const EVICT: usize = 1024;

struct Shared {
    holders: Holders,
    views: Vec<View>,
}

pub struct Index {
    shared: Gate<Shared>,
    engines: Mutex<Vec<Option<Arc<Mutex<Engine>>>>>,
    stores: Stores,
    recent: Mutex<Recent>,
    lanes: Lanes,
    retired: Mutex<VecDeque<Retired>>,
    totals: Mutex<Counts>,
    used: Used,
    pairs_max: usize,
}

thread_local! {
    static WALK: RefCell<Walk> = RefCell::default();
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Index {
    /// `secret`: any number that strangers do not know.
    pub fn new(max_bytes: usize, secret: u64) -> Self {
        let pairs_max = max_bytes / PAIR_BYTES;
        Self {
            shared: Gate::new(Shared { holders: Holders::new(secret), views: Vec::new() }),
            engines: Mutex::default(),
            stores: Stores::default(),
            recent: Mutex::default(),
            lanes: Lanes::default(),
            retired: Mutex::default(),
            totals: Mutex::default(),
            used: Used::new(pairs_max),
            pairs_max,
        }
    }

    /// A slot for one engine (one rank of it where it has several); None if there are too many.
    pub fn add_engine(&self) -> Option<u16> {
        self.add_sized(0)
    }

    /// The same for an engine whose blocks are of so many tokens for as long as it has not said; 0 for
    /// the usual ones.
    pub fn add_sized(&self, block_size: u32) -> Option<u16> {
        let mut engines = lock(&self.engines);
        let slot = engines.iter().position(Option::is_none).unwrap_or(engines.len());
        if slot >= holders::LANES_MAX {
            return None;
        }
        if slot == engines.len() {
            engines.push(None);
        }
        let engine = Engine::new(block_size);
        let view = engine.view();
        engines[slot] = Some(Arc::new(Mutex::new(engine)));
        drop(engines);
        self.publish(slot as u16, view);
        Some(slot as u16)
    }

    /// Forgets an engine; its slot may be given to another one.
    pub fn remove_engine(&self, slot: u16) {
        if slot >= store::FIRST {
            return self.clear_store(slot, true);
        }
        self.reach(slot, None);
        self.forget(slot, true);
        if let Some(engine) = lock(&self.engines).get_mut(slot as usize) {
            *engine = None;
        }
    }

    /// Forgets what an engine holds, its block size included. Takes no longer for a full engine than
    /// for an empty one: its lanes are dropped, the map is cleaned bit by bit by later calls.
    pub fn clear(&self, slot: u16) {
        if slot >= store::FIRST {
            return self.clear_store(slot, false);
        }
        self.forget(slot, false);
    }

    fn forget(&self, slot: u16, gone: bool) {
        let Some(engine) = self.engine(slot) else { return };
        let mut engine = lock(&engine);
        let mut out = Out::new(&self.lanes, 0);
        engine.slot.clear(&mut out);
        engine.gone = gone;
        out.retired.extend(engine.assumed.take().map(Assumed::retire));
        self.commit(slot, &engine, &mut out);
        if gone {
            self.publish(slot, View::default());
        }
        drop(engine);
        lock(&self.recent).forget(slot);
        self.reap();
    }

    /// Takes in one batch of events.
    pub fn apply(&self, slot: u16, payload: &[u8]) -> Applied {
        if slot >= store::FIRST {
            return self.apply_store(slot, payload);
        }
        let Some(engine) = self.engine(slot) else { return Applied::default() };
        let room = self.room();
        let mut engine = lock(&engine);
        let engine = &mut *engine;
        if engine.gone {
            return Applied::default();
        }
        let mut out = Out::new(&self.lanes, room);
        out.told = engine.store.map(|_| Vec::new());
        let mut session = None;
        let mut decoder = std::mem::take(&mut engine.decoder);
        let header = decoder.decode(payload, |event| {
            match &event {
                Event::Stored(stored) => {
                    engine.slot.store(stored, &mut out);
                    if let Some(name) = stored.session {
                        session = Some(String::from_utf8_lossy(name).into_owned());
                    }
                }
                Event::Removed(hashes, place) => engine.slot.remove(hashes, place, &mut out),
                Event::Cleared => engine.slot.reset(&mut out),
                Event::Other => out.counts.ignore(Ignored::Event, 1),
            }
            if out.changes.len() >= BATCH || out.reshaped {
                self.commit(slot, engine, &mut out);
            }
        });
        engine.decoder = decoder;
        self.commit(slot, engine, &mut out);
        for (count, more) in out.counts.malformed.iter_mut().zip(header.faults) {
            *count += u64::from(more);
        }
        if out.counts.cleared > 0 {
            lock(&self.recent).forget(slot);
        }
        lock(&self.totals).add(&out.counts);
        self.reap();
        Applied { header, counts: out.counts, session }
    }

    /// A prompt was sent to an engine that announces nothing: it counts as being there until the engine
    /// has room for so many tokens no more.
    pub fn assume(&self, slot: u16, prompt: &Prompt, capacity_tokens: usize) {
        let Some(engine) = self.engine(slot) else { return };
        let room = self.room();
        let mut engine = lock(&engine);
        let engine = &mut *engine;
        if engine.gone {
            return;
        }
        let mut out = Out::new(&self.lanes, room);
        if engine.assumed.is_none() {
            engine.assumed = self.lanes.take().map(Assumed::new);
            out.reshaped = true;
        }
        let size = engine.block_size();
        if let Some(assumed) = engine.assumed.as_mut() {
            let lane = assumed.lane;
            let room = (capacity_tokens / size as usize).min(assumed.len() + out.room);
            let changes = &mut out.changes;
            assumed.touch(prompt.hashes(size as usize), room, |sequence, held| {
                changes.push(Change { sequence, lane, tiers: Tiers::DEVICE, held });
            });
        }
        self.commit(slot, engine, &mut out);
        self.reap();
    }

    /// What each of the slots has of a prompt, in their order. Clears `out` first.
    pub fn lookup(&self, prompt: &Prompt, slots: &[u16], now: f64, out: &mut Vec<Overlap>) {
        out.clear();
        out.resize(slots.len(), Overlap::default());
        let shared = self.shared.read();
        let view = |slot: &u16| shared.views.get(*slot as usize).filter(|view| view.block_size > 0);
        let mut done = 0;
        // Slots of one block size share a walk. Most fleets have one size.
        while let Some(size) = next_size(slots.iter().filter_map(view), done) {
            done = size;
            let chain = prompt.creditable(size as usize);
            let views = slots.iter().filter_map(view).filter(|view| view.block_size == size);
            let longest = WALK.with_borrow_mut(|walk| {
                walk.follow(&shared.holders, chain, views);
                let mut longest = 0;
                for (slot, overlap) in slots.iter().zip(out.iter_mut()) {
                    if let Some(view) = view(slot).filter(|view| view.block_size == size) {
                        *overlap = walk.overlap(view);
                        longest = longest.max(overlap.total());
                    }
                }
                longest
            });
            self.used.mark(&chain[..(longest / size) as usize]);
            lock(&self.recent).lookup(chain, slots, now, |slot, blocks| {
                for (_, overlap) in slots.iter().zip(out.iter_mut()).filter(|it| *it.0 == slot) {
                    if shared.views[slot as usize].block_size == size {
                        let known = overlap.total() - overlap.predicted;
                        overlap.predicted = (blocks as u32 * size).saturating_sub(known);
                    }
                }
            });
        }
    }

    fn engine(&self, slot: u16) -> Option<Arc<Mutex<Engine>>> {
        lock(&self.engines).get(slot as usize)?.clone()
    }

    fn publish(&self, slot: u16, view: View) {
        self.shared.write(|shared| {
            let slot = slot as usize;
            if shared.views.len() <= slot {
                shared.views.resize(slot + 1, View::default());
            }
            shared.views[slot] = view;
        });
    }

    /// Pairs that may be added. At the limit it makes some room: the engine that has most gives up
    /// blocks that no lookup has matched of late. No engine may be locked by the caller.
    fn room(&self) -> usize {
        let pairs = self.shared.read().holders.len();
        self.used.want(pairs > self.pairs_max / 8 * 7);
        let room = self.pairs_max.saturating_sub(pairs);
        if room > 0 {
            return room;
        }
        let engines = lock(&self.engines).clone();
        // One that is locked is busy changing; another one will do.
        let entries = |engine: &Arc<Mutex<Engine>>| {
            engine.try_lock().map_or(0, |engine| engine.slot.entries())
        };
        let most = engines.iter().enumerate().filter_map(|(slot, engine)| {
            engine.as_ref().map(|engine| (entries(engine), slot, engine))
        });
        let Some((_, slot, engine)) = most.max_by_key(|it| it.0) else { return 0 };
        let mut engine = lock(engine);
        let mut out = Out::new(&self.lanes, 0);
        if engine.slot.evict(EVICT, |sequence| self.used.has(sequence), &mut out) {
            self.used.turn();
        }
        self.commit(slot as u16, &engine, &mut out);
        lock(&self.totals).add(&out.counts);
        out.room
    }

    /// Makes what has been collected visible.
    fn commit(&self, slot: u16, engine: &Engine, out: &mut Out<'_>) {
        if std::mem::take(&mut out.reshaped) {
            self.publish(slot, engine.view());
        }
        lock(&self.retired).extend(out.retired.drain(..));
        let sizes = engine.sizes();
        if !out.changes.is_empty() {
            self.make(&out.changes, |shared| shared.views[slot as usize].sizes = sizes);
        } else if self.sizes(slot) != sizes {
            self.shared.write(|shared| shared.views[slot as usize].sizes = sizes);
        }
        out.changes.clear();
        if let (Some(told), Some((number, _))) = (&mut out.told, engine.store) {
            out.counts.adopted += self.tell(number, told);
            told.clear();
        }
    }

    /// Makes changes section by section; `also` is run in each.
    fn make(&self, changes: &[Change], also: impl Fn(&mut Shared)) {
        for section in changes.chunks(SECTION) {
            self.shared.write(|shared| {
                for change in section {
                    shared.holders.prefetch(change.sequence);
                }
                for Change { sequence, lane, tiers, held } in section {
                    match held {
                        true => shared.holders.add(*sequence, *lane, *tiers),
                        false => shared.holders.remove(*sequence, *lane, *tiers),
                    }
                }
                also(shared);
            });
        }
    }

    /// Takes some blocks of retired lanes out of the map; a lane that is empty is free again.
    fn reap(&self) {
        let Ok(mut retired) = self.retired.try_lock() else { return };
        let Some(first) = retired.front_mut() else { return };
        let lane = first.lane;
        let changes: Vec<_> = (first.blocks.by_ref().take(REAP))
            .map(|(sequence, tiers)| Change { sequence, lane, tiers, held: false })
            .collect();
        self.make(&changes, |_| ());
        if changes.len() < REAP {
            retired.pop_front();
            self.lanes.give(lane);
        }
    }
}

/// The smallest block size above `done`.
fn next_size<'v>(views: impl Iterator<Item = &'v View>, done: u32) -> Option<u32> {
    views.map(|view| view.block_size).filter(|size| *size > done).min()
}

#[cfg(test)]
#[path = "mod_test.rs"]
mod tests;
