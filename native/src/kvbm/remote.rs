//! The remote tier as the daemon's core sees it: which blocks are there, which are wanted from there,
//! which should go there. Whoever talks to the store takes errands from the desk and reports back; the
//! core never waits for him.

use std::collections::HashMap;
use std::sync::Arc;

use super::bundle::{Head, Name};
use super::crew::Crew;
pub use super::desk::{Desk, Room};
pub use super::errand::{Errand, Kind, Landing, Piece, Within};
pub use super::gather::Bundling;
use super::gather::Gather;
use super::mover::Target;
use super::places::{Place, Places};
use super::record::{Damage, Fingerprint, Header, Key};
use super::view::View;

/// A fetch that nobody has reported on by then has failed.
const FETCH_MAX_US: u64 = 60_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upload {
    Off,
    /// What was loaded once.
    Reuse,
    All,
}

#[derive(Debug, Clone, Copy)]
pub struct RemoteOptions {
    /// Blocks that are known at most.
    pub known_max: usize,
    pub upload: Upload,
    pub bundling: Bundling,
}

/// A record that came from the store, verified.
pub struct Fetched {
    pub header: Header,
    pub note: Box<[u8]>,
    pub payload: View,
    /// Whose slot has the payload already.
    pub landed: Option<u64>,
}

/// Why a fetch brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// The store has no such object.
    Absent,
    /// It has a block of another length there, which is right for somebody.
    Length,
    /// It does not answer, or says no.
    Failed,
    Damaged(Damage),
}

pub(super) struct Waiter {
    pub token: u64,
    pub target: Target,
}

pub(super) struct Want {
    pub namespace: u16,
    pub key: Key,
    pub len: u32,
    /// Where it is read from.
    pub place: Place,
    pub waiters: Vec<Waiter>,
    pub began_us: u64,
    /// It was begun ahead of need.
    pub is_ahead: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct RemoteStats {
    pub fetched: u64,
    pub fetched_bytes: u64,
    /// Requests that brought them, or nothing.
    pub fetches: u64,
    pub absent: u64,
    pub failed: u64,
    pub corrupt: u64,
    pub refused: u64,
    pub sends_dropped: u64,
    pub left_out: u64,
    /// Blocks that were known and that a listing did not name any more.
    pub unlisted: u64,
}

pub struct Remote {
    pub(super) options: RemoteOptions,
    pub(super) places: Places,
    gather: Gather,
    pub(super) desk: Arc<Desk>,
    /// For the desk, at the end of the core's turn.
    staged: Vec<Errand>,
    tickets: u64,
    wants: HashMap<u64, Want>,
    by_block: HashMap<(u16, Key), u64>,
    /// The store is left alone: what lies there is a miss.
    pub(super) is_paused: bool,
    latency_us: f64,
    us_per_mib: f64,
    last_us: u64,
    pub(super) crew: Crew,
    pub stats: RemoteStats,
}

impl Remote {
    pub fn new(options: RemoteOptions, desk: Arc<Desk>) -> std::io::Result<Self> {
        Ok(Self {
            options,
            places: Places::new(options.known_max),
            gather: Gather::default(),
            desk,
            staged: Vec::new(),
            tickets: 0,
            wants: HashMap::new(),
            by_block: HashMap::new(),
            is_paused: false,
            latency_us: 30_000.0,
            us_per_mib: 10_000.0,
            last_us: 0,
            crew: Crew::new("kvbm-remote", 1)?,
            stats: RemoteStats::default(),
        })
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a block is there and may be asked for now.
    pub fn offers(&self, namespace: u16, key: &Key) -> bool {
        !self.is_paused && self.knows(namespace, key)
    }

    pub fn knows(&self, namespace: u16, key: &Key) -> bool {
        self.places.find(namespace, key).is_some()
    }

    /// It is there, alone or in a bundle. True: that is news.
    pub fn learn(&mut self, namespace: u16, key: Key, place: Place) -> bool {
        let learnt = self.places.learn(namespace, key, place);
        self.stats.left_out += u64::from(learnt.is_none());
        learnt == Some(true)
    }

    /// A bundle is there; which of its blocks are news.
    pub fn learn_bundle(&mut self, namespace: u16, name: Name, head: &Head) -> Vec<Key> {
        let found = self.places.learn_bundle(namespace, name, head).unwrap_or_default();
        let mut news = Vec::new();
        for (key, place) in head.keys.iter().zip(found) {
            if self.learn(namespace, *key, place) {
                news.push(*key);
            }
        }
        news
    }

    /// Have a block deleted, wherever it lies. True: it was known.
    pub(super) fn erase(&mut self, (namespace, print): (u16, Fingerprint), key: Key) -> bool {
        let places = self.places.take(namespace, &key);
        places.iter().for_each(|place| self.erase_at(print, key, *place));
        places.iter().for_each(|place| self.places.leave(*place));
        !places.is_empty()
    }

    /// One place of a block, which is known: from there it is to be deleted.
    pub(super) fn erase_at(&mut self, print: Fingerprint, key: Key, place: Place) {
        let Some(bundle) = self.within(place) else {
            return self.staged.push(Errand::of(Kind::Delete, print, [key]));
        };
        if self.places.drop_from(place) {
            return self.erase_bundle(print, bundle, (key, place));
        }
        let pieces = vec![Piece { slot: place.slot, ..Piece::of(key) }];
        let bundle = Some(bundle);
        self.staged.push(Errand { kind: Kind::Mark, namespace: print, pieces, bundle });
    }

    fn within(&self, place: Place) -> Option<Within> {
        let bundle = self.places.bundle(place)?;
        Some(Within { name: bundle.name, record_bytes: bundle.record_bytes })
    }

    /// Its last block was dropped: nothing need be said of those that went with it.
    fn erase_bundle(&mut self, print: Fingerprint, bundle: Within, (key, place): (Key, Place)) {
        let mut pieces = vec![Piece { slot: place.slot, ..Piece::of(key) }];
        let bundle = Some(bundle);
        self.staged.retain(|other| {
            let same = other.kind == Kind::Mark && other.bundle == bundle;
            pieces.extend(other.pieces.iter().filter(|_| same).cloned());
            !same
        });
        self.staged.push(Errand { kind: Kind::Delete, namespace: print, pieces, bundle });
        self.places.vanish(place);
    }

    /// Have a block deleted by whoever asks, not by way of the desk: what is to be done is added to his
    /// errands. True: it was known.
    pub(super) fn erase_for(
        &mut self,
        space: (u16, Fingerprint),
        key: Key,
        errands: &mut Vec<Errand>,
    ) -> bool {
        std::mem::swap(&mut self.staged, errands);
        let known = self.erase(space, key);
        std::mem::swap(&mut self.staged, errands);
        known
    }

    /// Somebody dropped blocks of a bundle; those that lie nowhere else.
    pub fn marked(
        &mut self,
        (namespace, print): (u16, Fingerprint),
        name: &Name,
        keys: &[Key],
    ) -> Vec<Key> {
        let mut gone = Vec::new();
        for key in keys {
            let Some(place) = self.places.within(namespace, key, name) else { continue };
            let Some(bundle) = self.within(place) else { continue };
            // Of two machines that dropped a half each, both find that out.
            if self.places.drop_from(place) {
                self.erase_bundle(print, bundle, (*key, place));
            }
            if self.places.lose(namespace, key, place) {
                gone.push(*key);
            }
        }
        gone
    }

    pub(super) fn wants(&self) -> usize {
        self.wants.len()
    }

    pub(super) fn ahead(&self) -> usize {
        self.wants.values().filter(|want| want.is_ahead).count()
    }

    /// Microseconds until so many bytes more would be here.
    pub fn expected_us(&self, bytes: u64) -> u64 {
        let (latency_us, us_per_mib, queued) = self.cost();
        latency_us + ((queued + bytes) as f64 / (1 << 20) as f64 * us_per_mib) as u64
    }

    /// Microseconds until the first block, then per MiB; bytes that are waited for.
    pub(super) fn cost(&self) -> (u64, f64, u64) {
        let queued = self.wants.values().map(|want| u64::from(want.len)).sum();
        (self.latency_us as u64, self.us_per_mib, queued)
    }

    /// Have a block fetched. False: too much waits already, or somebody waits for another length of it.
    pub(super) fn want(
        &mut self,
        (namespace, print): (u16, Fingerprint),
        (key, len): (Key, u32),
        waiter: Option<Waiter>,
        now_us: u64,
    ) -> bool {
        let is_ahead = waiter.is_none();
        if let Some(want) = self.by_block.get(&(namespace, key)).copied() {
            if let Some(want) = self.wants.get_mut(&want) {
                // What is right for one would not end where the other one's place does.
                if want.len == len {
                    want.waiters.extend(waiter);
                }
                return want.len == len;
            }
        }
        let Some(place) = self.places.find(namespace, &key) else { return false };
        let ticket = self.tickets + 1;
        let kind = if is_ahead { Kind::Ahead } else { Kind::Fetch };
        if !self.desk.has_room(kind, self.staged.len() + 1) {
            self.stats.refused += 1;
            return false;
        }
        let bundle = self.within(place);
        // An arena's seat may be another's before a fetch has ended; a slot has a gate.
        let slot = waiter.as_ref().filter(|waiter| matches!(waiter.target, Target::Slot(_)));
        let landing =
            slot.map(|slot| Landing { token: slot.token, target: slot.target.clone(), len });
        let pieces = vec![Piece { ticket, key, slot: place.slot, landing }];
        self.staged.push(Errand { kind, namespace: print, pieces, bundle });
        self.tickets = ticket;
        let waiters = waiter.into_iter().collect();
        let want = Want { namespace, key, len, place, waiters, began_us: now_us, is_ahead };
        self.wants.insert(ticket, want);
        self.by_block.insert((namespace, key), ticket);
        true
    }

    /// A fetch has ended.
    pub(super) fn take(&mut self, ticket: u64) -> Option<Want> {
        let want = self.wants.remove(&ticket)?;
        self.by_block.remove(&(want.namespace, want.key));
        Some(want)
    }

    /// Learn from how long a fetch of so many bytes took.
    pub(super) fn time(&mut self, began_us: u64, bytes: u64, now_us: u64) {
        let whole = now_us.saturating_sub(began_us) as f64;
        let own = now_us.saturating_sub(began_us.max(self.last_us));
        self.last_us = now_us;
        super::loads::learn(&mut self.us_per_mib, own, bytes);
        // Under load a fetch waits for others, which the bytes that wait stand for.
        if self.wants.is_empty() {
            self.latency_us += (whole - self.latency_us) * 0.1;
        }
    }

    /// Fetches of which nothing has been heard for long.
    pub(super) fn overdue(&self, now_us: u64) -> Vec<u64> {
        let late = self.wants.iter().filter(|(_, want)| now_us > want.began_us + FETCH_MAX_US);
        late.map(|(&ticket, _)| ticket).collect()
    }

    /// Nobody waits for these tokens any more.
    pub(super) fn abandon(&mut self, is_given_up: impl Fn(u64) -> bool) {
        for want in self.wants.values_mut() {
            want.waiters.retain(|waiter| !is_given_up(waiter.token));
        }
    }

    /// Have a block sent, unless it is there: with others, if it is small.
    pub(super) fn offer(
        &mut self,
        (namespace, print): (u16, Fingerprint),
        (key, len): (Key, u32),
        now_us: u64,
    ) {
        if self.knows(namespace, &key) {
            return;
        }
        let count = self.options.bundling.count(len);
        if count < 2 {
            self.send(print, vec![key]);
        } else if let Some(keys) = self.gather.add(namespace, key, count, now_us) {
            self.send(print, keys);
        }
    }

    /// Namespaces and blocks that have waited for others long enough; to be sent.
    pub(super) fn due(&mut self, now_us: u64) -> Vec<(u16, Vec<Key>)> {
        self.gather.due(self.options.bundling.wait_us, now_us)
    }

    pub(super) fn send(&mut self, print: Fingerprint, keys: Vec<Key>) {
        if self.desk.has_room(Kind::Send, self.staged.len() + keys.len()) {
            self.staged.push(Errand::of(Kind::Send, print, keys));
        } else {
            self.stats.sends_dropped += keys.len() as u64;
        }
    }

    /// Blocks that wait for others.
    pub(super) fn gathered(&self) -> usize {
        self.gather.len()
    }

    /// What came up in this turn of the core's goes to the desk.
    pub(super) fn hand_over(&mut self) {
        if !self.staged.is_empty() {
            self.desk.put(self.staged.drain(..));
        }
    }
}

#[cfg(test)]
#[path = "tests/remote.rs"]
mod tests;
