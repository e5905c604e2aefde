//! The arena's side of the daemon: slots are reserved, committed, fetched into, held and released.
//!
//! What is committed goes on to the disk as its admission says. A slot that a client writes or holds is
//! his until he says so, or his process has ended, or his connection is gone for long.

use std::collections::HashMap;

use super::changes::{Note, What};
use super::conn::Session;
use super::disk::Outcome;
use super::host::{Named, Reserved, Seat};
use super::hub::{publish, Hub};
use super::loads::Load;
use super::message::{keys, put_seats, seats, status, tier, CHAIN, DISCARD, WITH_SEATS};
use super::mover::{Source, Target};
use super::record::PAGE;
use super::remote::Upload;
use super::serve::code;
use super::stores::{Store, Stored};
use super::wire::{Frame, Head};
use super::works::{Kind, Owner, Work, WorkId};
use super::Refusal;

/// Tokens of what the arena does with the disk have this bit; those of jobs and of what is asked do not.
pub(super) const ARENA: u64 = 1 << 62;
/// Blocks that leave the arena at once.
const SPILLS: usize = 16;

/// What is under way between arena and disk.
#[derive(Default)]
pub(super) struct Traffic {
    next: u64,
    fills: HashMap<u64, Fill>,
    /// By seat of the block: the fill.
    filling: HashMap<(u16, super::record::Key), u64>,
    /// What is being written to disk, and whether it leaves the arena then.
    writes: HashMap<u64, (Seat, bool)>,
    orphans: Vec<Orphan>,
}

struct Fill {
    seat: Seat,
    named: Named,
    waiters: Vec<(WorkId, usize)>,
}

struct Orphan {
    writing: Vec<Seat>,
    held: Vec<(Seat, u32)>,
    until_us: u64,
    process: Option<std::os::fd::OwnedFd>,
}

impl Hub {
    fn host_terms(&mut self, owner: Owner) -> Result<(u16, u32), &'static str> {
        if self.host.is_none() {
            return Err("there is no arena");
        }
        let session = self.conn(owner).and_then(|conn| conn.session.as_ref());
        let session = session.ok_or("say HELLO first")?;
        Ok((session.hub_namespace, session.hello.block_bytes))
    }

    fn session(&mut self, owner: Owner) -> Option<&mut Session> {
        self.conn(owner)?.session.as_mut()
    }

    /// Answered with a status and a seat per block.
    pub(super) fn reserve(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        let (namespace, len) = self.host_terms(owner)?;
        let (mut statuses, mut places) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter().enumerate() {
            let Some(host) = &mut self.host else { break };
            let parent = (frame.head.flags & CHAIN != 0 && at > 0).then(|| keys[at - 1]);
            let named = Named { namespace, key: *key, len };
            let none = Seat { page: 0, generation: 0 };
            let (status, seat) = match host.reserve(named, parent, owner) {
                Reserved::Seat(seat) => (status::OK, seat),
                Reserved::There(seat) => (status::THERE, seat),
                Reserved::Busy => (Refusal::Busy as u8, none),
                Reserved::Full => (status::FULL, none),
                Reserved::TooLarge => (Refusal::TooLarge as u8, none),
            };
            if status == status::OK {
                if let Some(session) = self.session(owner) {
                    session.writing.insert(seat);
                }
            }
            statuses.push(status);
            places.push(seat);
        }
        let payload = [statuses, put_seats(&places)].concat();
        self.answer_with(owner, &frame.head, keys.len() as u32, &payload);
        Ok(())
    }

    pub(super) fn commit(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let seats = seats(frame.head.count, &frame.payload)?;
        self.host_terms(owner)?;
        let mut statuses = Vec::with_capacity(seats.len());
        for seat in seats {
            let own = self.session(owner).is_some_and(|s| s.writing.remove(&seat));
            let Some(host) = self.host.as_mut().filter(|_| own) else {
                statuses.push(status::BAD_REQUEST);
                continue;
            };
            if frame.head.flags & DISCARD != 0 {
                host.abandon(seat);
                statuses.push(status::OK);
                continue;
            }
            let named = host.commit(seat, owner);
            statuses.push(if named.is_some() { status::OK } else { status::BAD_REQUEST });
            if let Some(named) = named {
                self.note(What::Stored, named);
                if !self.options.spill {
                    self.write_down(seat, named, false);
                }
            }
        }
        self.answer_with(owner, &frame.head, statuses.len() as u32, &statuses);
        Ok(())
    }

    /// Blocks on their way into the arena.
    pub(super) fn fills(&self) -> usize {
        self.traffic.fills.len()
    }

    fn note(&mut self, what: What, named: Named) {
        let Named { namespace, key, len } = named;
        if what == What::Stored && self.disk.is_none() {
            self.offer_remote(Upload::All, namespace, (key, len));
        }
        let note = Note { what, tier: tier::HOST, namespace, len, key };
        publish(&mut self.log, self.table.as_mut(), note);
    }

    /// Offer a block of the arena to the disk; it stays where it is until the disk has it. False: it has
    /// it already, or does not want it.
    fn write_down(&mut self, seat: Seat, named: Named, leaves: bool) -> bool {
        let print = self.namespaces.fingerprint(named.namespace).copied();
        let (Some(host), Some(disk), Some(print)) = (&mut self.host, &mut self.disk, print) else {
            return false;
        };
        let Some(namespace) = disk.namespaces().number(&print) else { return false };
        self.traffic.next += 1;
        let token = ARENA | self.traffic.next;
        let source = Source::Memory(host.arena.memory.clone(), seat.page as usize * PAGE);
        let store = Store { namespace, key: named.key, len: named.len, note: Box::new([]), source };
        let queued = disk.store(store, token) == Ok(Stored::Queued);
        if queued {
            if !leaves {
                host.keep(seat);
            }
            self.traffic.writes.insert(token, (seat, leaves));
        }
        queued
    }

    /// Blocks leave a full arena by way of the disk, a few at a time.
    fn spill(&mut self) {
        let healthy = self.disk.as_ref().is_some_and(|disk| disk.health().is_good());
        while self.options.spill && healthy && self.traffic.writes.len() < SPILLS {
            let Some((seat, named)) = self.host.as_mut().and_then(|host| host.leave_one()) else {
                return;
            };
            if !self.write_down(seat, named, true) {
                if let Some(host) = &mut self.host {
                    host.left(seat);
                }
            }
        }
    }

    /// A job: its end tells where the blocks are; every block that is there is held.
    pub(super) fn fetch(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        let (namespace, len) = self.host_terms(owner)?;
        let head = frame.head;
        if keys.is_empty() {
            return Err("a job without items");
        }
        let (now_us, load_us) = (self.now_us, self.options.load_us);
        let session = self.session(owner).ok_or("say HELLO first")?;
        if session.jobs.contains_key(&head.job) {
            return Err("a job of that number is under way");
        }
        let mut work = Work::new(Kind::Fetch, owner, head, keys.len());
        let limit_us = if head.deadline_us == 0 { load_us } else { head.deadline_us };
        (work.began_us, work.deadline_us) = (now_us, now_us.saturating_add(limit_us));
        work.seats = vec![Seat { page: 0, generation: 0 }; keys.len()];
        let id = self.works.add(work);
        if let Some(session) = self.session(owner) {
            session.jobs.insert(head.job, id);
        }
        self.stats.jobs += 1;
        for (item, key) in keys.into_iter().enumerate() {
            self.fetch_one(id, item, Named { namespace, key, len }, limit_us);
        }
        self.finish_if_done(id);
        Ok(())
    }

    fn fetch_one(&mut self, id: WorkId, item: usize, named: Named, limit_us: u64) {
        let Named { namespace, key, len } = named;
        let Some(host) = &mut self.host else { return };
        if let Some(seat) = host.find(namespace, &key, len) {
            if self.disk.is_none() {
                self.offer_remote(Upload::Reuse, namespace, (key, len));
            }
            return self.seat(id, item, seat);
        }
        if let Some(fill) = self.traffic.filling.get(&(namespace, key)) {
            if let Some(fill) = self.traffic.fills.get_mut(fill) {
                return fill.waiters.push((id, item));
            }
        }
        // What would come too late is not begun.
        let expected_us = match self.on_disk(namespace, &key) {
            Some(_) => self.expected_us(len.into(), 0),
            None => self.expected_us(0, len.into()),
        };
        let begun = if expected_us > limit_us {
            Err(Refusal::Busy as u8)
        } else {
            self.begin_fill(named, vec![(id, item)])
        };
        if let (Err(why), Some(work)) = (begun, self.works.get_mut(id)) {
            work.set(item, why);
        }
    }

    pub(super) fn begin_fill(
        &mut self,
        named: Named,
        waiters: Vec<(WorkId, usize)>,
    ) -> Result<(), u8> {
        let absent = Refusal::Absent as u8;
        let print = self.namespaces.fingerprint(named.namespace).copied().ok_or(absent)?;
        let open = self.trial.is_open(self.now_us);
        let near = self.on_disk(named.namespace, &named.key) == Some(named.len);
        let near = near && open;
        if !near && !self.is_remote(named.namespace, &named.key) {
            return Err(absent);
        }
        let host = self.host.as_mut().ok_or(absent)?;
        let seat = match host.reserve_fill(named) {
            Reserved::Seat(seat) => seat,
            Reserved::TooLarge => return Err(Refusal::TooLarge as u8),
            Reserved::Full => return Err(status::FULL),
            Reserved::There(_) | Reserved::Busy => return Err(Refusal::Busy as u8),
        };
        self.traffic.next += 1;
        let token = ARENA | self.traffic.next;
        let target = Target::Memory(host.arena.memory.clone(), seat.page as usize * PAGE);
        let begun = match self.disk.as_mut().filter(|_| near) {
            Some(disk) => {
                let namespace = disk.namespaces().number(&print).ok_or(absent)?;
                disk.load(Load { token, namespace, key: named.key, target }, Some(named.len))
            }
            None => self.load_remote(token, named.namespace, (named.key, named.len), target),
        };
        if let Err(why) = begun {
            if let Some(host) = &mut self.host {
                host.abandon(seat);
            }
            return Err(why as u8);
        }
        self.traffic.filling.insert((named.namespace, named.key), token);
        self.traffic.fills.insert(token, Fill { seat, named, waiters });
        Ok(())
    }

    /// Hold a ready block for a job's client and note it.
    fn seat(&mut self, id: WorkId, item: usize, seat: Seat) {
        let Some(owner) = self.works.get_mut(id).map(|work| work.owner) else { return };
        let held = self.host.as_mut().is_some_and(|host| host.hold(seat));
        if let (true, Some(session)) = (held, self.session(owner)) {
            *session.held.entry(seat).or_default() += 1;
        }
        if let Some(work) = self.works.get_mut(id) {
            work.seats[item] = seat;
            work.set(item, if held { status::OK } else { Refusal::Absent as u8 });
        }
    }

    pub(super) fn outcome_arena(&mut self, outcome: &Outcome) {
        if let Some((seat, leaves)) = self.traffic.writes.remove(&outcome.token) {
            match &mut self.host {
                Some(host) if leaves => host.left(seat),
                Some(host) => host.release(seat),
                None => {}
            }
            return;
        }
        let Some(Fill { seat, named, waiters }) = self.traffic.fills.remove(&outcome.token) else {
            return;
        };
        self.traffic.filling.remove(&(named.namespace, named.key));
        let failed = outcome.result.as_ref().err().map(|why| code(*why));
        if let Some(host) = &mut self.host {
            match failed {
                None => {
                    host.filled(seat);
                }
                Some(_) => host.abandon(seat),
            }
        }
        if failed.is_none() {
            self.trial.went_well();
            self.note(What::Stored, named);
        }
        for (id, item) in waiters {
            match failed {
                None => self.seat(id, item, seat),
                Some(why) => {
                    if let Some(work) = self.works.get_mut(id) {
                        work.set(item, why);
                    }
                }
            }
            self.finish_if_done(id);
        }
    }

    pub(super) fn release(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        for seat in seats(frame.head.count, &frame.payload)? {
            let Some(session) = self.session(owner) else { return Ok(()) };
            let Some(count) = session.held.get_mut(&seat) else { continue };
            *count -= 1;
            if *count == 0 {
                session.held.remove(&seat);
            }
            if let Some(host) = &mut self.host {
                host.release(seat);
            }
        }
        Ok(())
    }

    /// A client is gone: its slots are, when its process has ended, else after a while.
    pub(super) fn orphan(&mut self, session: &mut Session, process: Option<std::os::fd::OwnedFd>) {
        if session.writing.is_empty() && session.held.is_empty() {
            return;
        }
        self.traffic.orphans.push(Orphan {
            writing: session.writing.drain().collect(),
            held: session.held.drain().collect(),
            until_us: self.now_us + self.options.orphan_us,
            process,
        });
    }

    /// Let go what orphans had, and tell what the arena gave up.
    pub(super) fn tend_arena(&mut self) {
        self.spill();
        let Some(host) = &mut self.host else { return };
        let now_us = self.now_us;
        self.traffic.orphans.retain(|orphan| {
            let ended = orphan.process.as_ref().is_none_or(super::socket::is_readable);
            if !ended && now_us < orphan.until_us {
                return true;
            }
            orphan.writing.iter().for_each(|&seat| host.abandon(seat));
            for &(seat, count) in &orphan.held {
                (0..count).for_each(|_| host.release(seat));
            }
            false
        });
        for named in host.take_gone() {
            self.note(What::Removed, named);
        }
    }

    pub(super) fn answer_with(&mut self, owner: Owner, head: &Head, count: u32, payload: &[u8]) {
        if let Some(conn) = self.conn(owner) {
            let mut answer = head.answer();
            answer.count = count;
            conn.send(&answer, payload);
        }
    }

    pub(super) fn seats_flag(kind: Kind) -> u8 {
        if kind == Kind::Fetch {
            WITH_SEATS
        } else {
            0
        }
    }
}
