//! The remote tier as the daemon's core sees it: which blocks are there, which are wanted from there,
//! which should go there. Whoever talks to the store takes errands from the desk and reports back; the
//! core never waits for him.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::crew::Crew;
pub use super::desk::{Desk, Errand, Kind, Room};
use super::mover::Target;
use super::record::{self, Damage, Fingerprint, Header, Key, PAGE};

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
}

/// A record that came from the store, verified.
pub struct Fetched {
    pub header: Header,
    pub note: Box<[u8]>,
    pub payload: Arc<[u8]>,
}

impl Fetched {
    pub fn of(bytes: &[u8]) -> Result<Self, Damage> {
        let header = Header::decode(bytes)?;
        record::verify_payload(bytes, &header)?;
        let payload = bytes[PAGE..PAGE + header.len as usize].into();
        Ok(Self { header, note: record::note(bytes).into(), payload })
    }
}

/// Why a fetch brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// The store has no such object.
    Absent,
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
    pub waiters: Vec<Waiter>,
    began_us: u64,
    /// It was begun ahead of need.
    pub is_ahead: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct RemoteStats {
    pub fetched: u64,
    pub fetched_bytes: u64,
    pub absent: u64,
    pub failed: u64,
    pub corrupt: u64,
    pub refused: u64,
    pub sends_dropped: u64,
    pub left_out: u64,
}

pub struct Remote {
    pub(super) options: RemoteOptions,
    known: HashSet<(u16, Key)>,
    pub(super) desk: Arc<Desk>,
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
            known: HashSet::new(),
            desk,
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
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether a block is there and may be asked for now.
    pub fn offers(&self, namespace: u16, key: &Key) -> bool {
        !self.is_paused && self.knows(namespace, key)
    }

    pub fn knows(&self, namespace: u16, key: &Key) -> bool {
        self.known.contains(&(namespace, *key))
    }

    /// It is there. True: that is news.
    pub fn learn(&mut self, namespace: u16, key: Key) -> bool {
        if self.known.len() >= self.options.known_max {
            self.stats.left_out += u64::from(!self.knows(namespace, &key));
            return false;
        }
        self.known.insert((namespace, key))
    }

    /// It is not there any more. True: that is news.
    pub fn forget(&mut self, namespace: u16, key: &Key) -> bool {
        self.known.remove(&(namespace, *key))
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

    /// Have a block fetched. False: too much waits already.
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
                want.waiters.extend(waiter);
                return true;
            }
        }
        let ticket = self.tickets + 1;
        let kind = if is_ahead { Kind::Ahead } else { Kind::Fetch };
        if !self.desk.put(Errand { kind, ticket, namespace: print, key }) {
            self.stats.refused += 1;
            return false;
        }
        self.tickets = ticket;
        let waiters = waiter.into_iter().collect();
        let want = Want { namespace, key, len, waiters, began_us: now_us, is_ahead };
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

    /// Learn from how long a fetch took.
    pub(super) fn time(&mut self, want: &Want, now_us: u64) {
        let whole = now_us.saturating_sub(want.began_us) as f64;
        let own = now_us.saturating_sub(want.began_us.max(self.last_us));
        self.last_us = now_us;
        super::loads::learn(&mut self.us_per_mib, own, want.len.into());
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

    /// Have a block sent, unless it is there.
    pub(super) fn offer(&mut self, namespace: u16, print: Fingerprint, key: Key) {
        if !self.knows(namespace, &key) {
            let errand = Errand { kind: Kind::Send, ticket: 0, namespace: print, key };
            self.stats.sends_dropped += u64::from(!self.desk.put(errand));
        }
    }

    /// Have an object deleted.
    pub(super) fn delete(&mut self, print: Fingerprint, key: Key) {
        self.desk.put(Errand { kind: Kind::Delete, ticket: 0, namespace: print, key });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn remote(known_max: usize) -> Remote {
        let options = RemoteOptions { known_max, upload: Upload::All };
        Remote::new(options, Arc::new(Desk::default())).unwrap()
    }

    fn target() -> Target {
        Target::Buffer
    }

    const ALL: Room = Room { fetches: 9, ahead: 9, sends: 9 };

    #[test]
    fn what_is_waited_for_comes_first_and_once() {
        let mut remote = remote(10);
        remote.offer(1, [9; 32], [1; 32]);
        assert!(remote.want((1, [9; 32]), ([2; 32], 5), None, 0));
        let waiter = || Some(Waiter { token: 7, target: target() });
        assert!(remote.want((1, [9; 32]), ([3; 32], 5), waiter(), 0));
        assert!(remote.want((1, [9; 32]), ([3; 32], 5), waiter(), 0));
        let errands = remote.desk.take(ALL, Duration::ZERO).unwrap();
        let kinds: Vec<Kind> = errands.iter().map(|errand| errand.kind).collect();
        assert_eq!(kinds, [Kind::Fetch, Kind::Ahead, Kind::Send]);
        assert_eq!(remote.take(errands[0].ticket).unwrap().waiters.len(), 2);
        assert!(remote.take(errands[0].ticket).is_none());
        assert_eq!((remote.wants(), remote.ahead()), (1, 1));
    }

    #[test]
    fn what_is_known_is_bounded_and_not_offered_in_a_pause() {
        let mut remote = remote(2);
        assert!(remote.learn(1, [1; 32]) && remote.learn(1, [2; 32]));
        assert!(!remote.learn(1, [1; 32]) && !remote.learn(1, [3; 32]));
        assert_eq!((remote.len(), remote.stats.left_out), (2, 1));
        assert!(remote.offers(1, &[1; 32]) && !remote.offers(2, &[1; 32]));
        remote.is_paused = true;
        assert!(!remote.offers(1, &[1; 32]) && remote.knows(1, &[1; 32]));
        remote.offer(1, [9; 32], [1; 32]);
        assert_eq!(remote.desk.waiting(), (0, 0), "it is there already");
    }

    #[test]
    fn fetches_nobody_reports_on_are_found() {
        let mut remote = remote(2);
        remote.want((1, [9; 32]), ([2; 32], 5), None, 100);
        assert!(remote.overdue(FETCH_MAX_US).is_empty());
        assert_eq!(remote.overdue(FETCH_MAX_US + 101), [1]);
    }
}
