//! What an engine's process uses: ask, store, load, look what has ended. No call takes more than the
//! lookup's patience (1 ms by default), whatever the daemon does; without one everything is a miss.
//!
//! A job that is late, or whose daemon is gone, is over when its gate is shut and nobody is inside;
//! for that no answer is needed. A closed socket means that too: the daemon closes it only then, and
//! the kernel closes it only when no thread of the daemon is left.

use std::collections::{HashMap, VecDeque};

use super::board::clock_us;
use super::changes::{Note, CHANGE};
use super::gate::Gate;
use super::host::Seat;
use super::link::{Lent, Link, State};
use super::message::{put_keys, status, Finished, Hello, Item, Job, GATES};
use super::namespace::{KeyMaker, Namespace};
use super::record::Key;
use super::report::Found;
use super::wire::{Frame, Head, Op, BATCH_MAX, PAYLOAD_MAX};

/// The daemon's own deadline should come first.
const GRACE_US: u64 = 100_000;
/// Bytes that may wait to be sent until stores and loads are refused.
pub(super) const OUTBOX_MAX: usize = 4 << 20;
const CHANGES_MAX: usize = 1 << 16;
/// Without jobs under way the socket is looked at so often.
const LOOK_US: u64 = 100_000;

/// A job's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    pub job: u64,
    /// What became of each block; 0: it is there.
    pub statuses: Vec<u8>,
    pub bytes: u64,
    pub spent_us: u64,
    /// Of a fetch: where each block is, held until it is released.
    pub seats: Vec<Seat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    Store,
    Load,
    Fetch,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ClientStats {
    /// Asked of the daemon; answered from shared memory; hits that would not have paid.
    pub lookups: u64,
    pub table_lookups: u64,
    pub gated: u64,
    pub lookup_timeouts: u64,
    pub late_answers: u64,
    pub skipped: u64,
    pub jobs: u64,
    pub jobs_refused: u64,
    pub jobs_lost: u64,
    pub jobs_late: u64,
    pub restarts: u64,
}

struct Pending {
    /// The caller's number; on the wire every job has another, so that a late end is not taken for
    /// that of a later job.
    job: u64,
    want: Want,
    /// A fetch has none: it touches nothing of the client's.
    gate: Option<(Gate, u32)>,
    items: usize,
    began_us: u64,
    deadline_us: u64,
    is_late: bool,
}

pub struct Client {
    pub(super) link: Link,
    keys: KeyMaker,
    pub(super) lookup_us: u64,
    jobs: HashMap<u64, Pending>,
    /// The wire's numbers by the caller's.
    names: HashMap<u64, u64>,
    free_gates: Vec<u32>,
    usages: Vec<u32>,
    done: VecDeque<Completed>,
    /// Ends of jobs that were received on this connection.
    done_received: u64,
    pub(super) request: u64,
    pub(super) answers: HashMap<u64, Frame>,
    /// The request that is waited for, and those whose answer is late.
    pub(super) awaited: u64,
    pub(super) late_requests: VecDeque<(u64, Vec<Key>)>,
    pub(super) late: HashMap<Key, (u8, u64)>,
    pub(super) timeouts: u32,
    pub(super) paused_until_us: u64,
    pub(super) looked_us: u64,
    boot: u64,
    changes: VecDeque<Note>,
    pub changes_missed: bool,
    frames: Vec<Frame>,
    /// What was found in shared memory and is not reported yet.
    pub(super) found: Found,
    pub(super) reported_us: u64,
    pub stats: ClientStats,
}

impl Client {
    pub fn new(path: impl Into<std::path::PathBuf>, hello: Hello, lookup_us: u64) -> Self {
        let namespace = Namespace { descriptor: hello.descriptor.clone(), probe: hello.probe };
        Self {
            link: Link::new(path.into(), hello),
            keys: KeyMaker::new(namespace.fingerprint()),
            lookup_us,
            jobs: HashMap::new(),
            names: HashMap::new(),
            free_gates: (0..GATES).rev().collect(),
            usages: vec![0; GATES as usize],
            done: VecDeque::new(),
            done_received: 0,
            request: 0,
            answers: HashMap::new(),
            awaited: 0,
            late_requests: VecDeque::new(),
            late: HashMap::new(),
            timeouts: 0,
            paused_until_us: 0,
            looked_us: 0,
            boot: 0,
            changes: VecDeque::new(),
            changes_missed: false,
            frames: Vec::new(),
            found: Found::default(),
            reported_us: 0,
            stats: ClientStats::default(),
        }
    }

    pub fn link(&self) -> &Link {
        &self.link
    }

    pub fn lend(&mut self, lent: Lent) -> u32 {
        self.link.lend(lent)
    }

    /// A block's key from its hash and group; None: no hash of 1 to 32 bytes.
    pub fn key(&mut self, hash: &[u8], group: u32) -> Option<Key> {
        self.keys.key(hash, group)
    }

    pub fn jobs_under_way(&self) -> usize {
        self.jobs.len()
    }

    /// Drive the connection; for people who wait for it.
    pub fn connect(&mut self) -> State {
        self.advance(clock_us());
        self.link.state
    }

    /// Begin a job over slots of a region that was lent. False: not begun, and nobody will touch them.
    pub fn begin(
        &mut self,
        want: Want,
        job: u64,
        region: u32,
        items: Vec<Item>,
        deadline_us: u64,
    ) -> bool {
        let now_us = clock_us();
        self.look(now_us);
        let may = self.link.is_usable(now_us)
            && self.link.waiting() < OUTBOX_MAX
            && !self.names.contains_key(&job)
            && (1..=BATCH_MAX).contains(&items.len());
        let (true, Some(board)) = (may, self.link.board.clone()) else {
            self.stats.jobs_refused += 1;
            return false;
        };
        let Some(gate_at) = self.free_gates.pop() else {
            self.stats.jobs_refused += 1;
            return false;
        };
        let usage = self.usages[gate_at as usize].wrapping_add(1);
        self.usages[gate_at as usize] = usage;
        let count = items.len();
        let (payload, flags) = Job { region, gate: gate_at, usage, items }.encode();
        if payload.len() > PAYLOAD_MAX {
            self.free_gates.push(gate_at);
            self.stats.jobs_refused += 1;
            return false;
        }
        let gate = board.gate(gate_at, usage);
        gate.open();
        let mut head = Head::new(if want == Want::Store { Op::Store } else { Op::Load });
        (head.count, head.flags, head.deadline_us) = (count as u32, flags, deadline_us);
        self.dispatch(want, job, head, &payload, Some((gate, gate_at)));
        true
    }

    /// Begin to bring blocks into the arena, where they are held until `release`. False: not begun.
    pub fn fetch(&mut self, job: u64, keys: &[Key], deadline_us: u64) -> bool {
        let now_us = clock_us();
        self.look(now_us);
        let may = self.link.is_usable(now_us)
            && self.link.waiting() < OUTBOX_MAX
            && !self.names.contains_key(&job)
            && (1..=BATCH_MAX).contains(&keys.len());
        if !may {
            self.stats.jobs_refused += 1;
            return false;
        }
        let mut head = Head::new(Op::Fetch);
        (head.count, head.deadline_us) = (keys.len() as u32, deadline_us);
        self.dispatch(Want::Fetch, job, head, &put_keys(keys), None);
        true
    }

    fn dispatch(
        &mut self,
        want: Want,
        job: u64,
        mut head: Head,
        payload: &[u8],
        gate: Option<(Gate, u32)>,
    ) {
        let began_us = clock_us();
        self.request += 1;
        let name = self.request;
        (head.job, head.request) = (name, name);
        self.link.push(&head, payload);
        let deadline_us = began_us.saturating_add(head.deadline_us).saturating_add(GRACE_US);
        let items = head.count as usize;
        let is_late = false;
        let pending = Pending { job, want, gate, items, began_us, deadline_us, is_late };
        self.jobs.insert(name, pending);
        self.names.insert(job, name);
        self.stats.jobs += 1;
        self.link.flush();
    }

    /// Give a job up. It has ended when `poll` says so, which may be at once.
    pub fn cancel(&mut self, job: u64) {
        let Some(&name) = self.names.get(&job) else { return };
        self.send_cancel(name);
        self.end_if_left_alone(name, status::CANCELLED, clock_us());
    }

    fn send_cancel(&mut self, name: u64) {
        let mut head = Head::new(Op::Cancel);
        head.job = name;
        self.link.push(&head, &[]);
    }

    /// Jobs that have ended. A look at a word of memory when nothing is under way.
    pub fn poll(&mut self) -> Vec<Completed> {
        let now_us = clock_us();
        let news = self.link.board.as_ref().is_some_and(|b| b.done() != self.done_received);
        let active = news || !self.jobs.is_empty() || self.link.waiting() > 0;
        if active || now_us >= self.looked_us + LOOK_US {
            self.looked_us = now_us;
            self.advance(now_us);
            self.expire(now_us);
        }
        self.done.drain(..).collect()
    }

    fn expire(&mut self, now_us: u64) {
        let late = self.jobs.iter().filter(|(_, job)| now_us >= job.deadline_us);
        let late: Vec<(u64, bool)> = late.map(|(&name, job)| (name, job.is_late)).collect();
        for (name, known) in late {
            if let (false, Some(pending)) = (known, self.jobs.get_mut(&name)) {
                pending.is_late = true;
                self.stats.jobs_late += 1;
                self.send_cancel(name);
            }
            self.end_if_left_alone(name, status::TIMEOUT, now_us);
        }
    }

    fn end_if_left_alone(&mut self, name: u64, why: u8, now_us: u64) {
        let alone = |pending: &Pending| pending.gate.as_ref().is_none_or(|(gate, _)| gate.close());
        if self.jobs.get(&name).is_some_and(alone) {
            self.end(name, None, why, now_us);
        }
    }

    fn end(&mut self, name: u64, finished: Option<Finished>, why: u8, now_us: u64) {
        let Some(pending) = self.jobs.remove(&name) else { return };
        let job = pending.job;
        self.names.remove(&job);
        if let Some((gate, at)) = pending.gate {
            gate.close();
            self.free_gates.push(at);
        }
        let finished = finished.filter(|f| f.statuses.len() == pending.items);
        let spent_us = now_us - pending.began_us.min(now_us);
        let rest = vec![why; pending.items];
        let none = Finished { spent_us: 0, bytes: 0, statuses: rest, seats: Vec::new() };
        let Finished { statuses, bytes, seats, .. } = finished.unwrap_or(none);
        self.done.push_back(Completed { job, statuses, bytes, spent_us, seats });
    }

    /// Drive the connection if there is none, or if that is due.
    pub(super) fn look(&mut self, now_us: u64) {
        if !self.link.is_usable(now_us) || now_us >= self.looked_us + LOOK_US {
            self.looked_us = now_us;
            self.advance(now_us);
        }
    }

    pub(super) fn advance(&mut self, now_us: u64) {
        self.report(now_us);
        let mut frames = std::mem::take(&mut self.frames);
        let lost = self.link.advance(now_us, &mut frames);
        for frame in frames.drain(..) {
            self.take(frame, now_us);
        }
        self.frames = frames;
        if lost {
            self.lose(now_us);
        }
        if let Some(boot) = self.link.welcome.map(|welcome| welcome.boot) {
            if boot != self.boot {
                self.stats.restarts += u64::from(self.boot != 0);
                self.boot = boot;
            }
        }
    }

    fn lose(&mut self, now_us: u64) {
        let names: Vec<u64> = self.jobs.keys().copied().collect();
        self.stats.jobs_lost += names.len() as u64;
        for name in names {
            self.end(name, None, status::LOST, now_us);
        }
        // The next connection brings other gates.
        self.free_gates = (0..GATES).rev().collect();
        self.usages.fill(0);
        self.done_received = 0;
        self.answers.clear();
        self.late_requests.clear();
        self.late.clear();
        self.changes_missed = true;
    }

    fn take(&mut self, frame: Frame, now_us: u64) {
        match frame.head.op {
            Op::Done => {
                self.done_received += 1;
                let finished = Finished::decode(frame.head.count, &frame.payload);
                self.return_late_seats(frame.head.job, finished.as_ref());
                self.end(frame.head.job, finished, status::LOST, now_us);
            }
            Op::Event => {
                self.changes_missed |= frame.head.flags != 0;
                for raw in frame.payload.chunks_exact(CHANGE) {
                    if self.changes.len() == CHANGES_MAX {
                        self.changes.pop_front();
                        self.changes_missed = true;
                    }
                    self.changes.extend(Note::decode(raw));
                }
            }
            _ if frame.head.request == self.awaited && self.awaited != 0 => {
                self.answers.insert(frame.head.request, frame);
            }
            Op::Lookup => self.take_late(&frame, now_us),
            Op::Reserve => self.return_late_slots(&frame),
            // A job that the daemon did not understand: it never was at its slots.
            Op::Error => self.end(frame.head.request, None, status::BAD_REQUEST, now_us),
            _ => {}
        }
    }

    /// Changes that were told since the last call, oldest first.
    pub fn take_changes(&mut self) -> Vec<Note> {
        self.changes.drain(..).collect()
    }

    pub(super) fn knows(&self, name: u64) -> bool {
        self.jobs.contains_key(&name)
    }

    pub(super) fn push(&mut self, head: &Head, payload: &[u8]) {
        self.link.push(head, payload);
    }

    /// Jobs of a kind under way.
    pub fn count(&self, want: Want) -> usize {
        self.jobs.values().filter(|job| job.want == want).count()
    }
}
