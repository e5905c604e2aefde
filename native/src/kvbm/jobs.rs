//! Jobs: stores and loads of many blocks that end together, in time, or are given up.
//!
//! A job's end is told only when nobody can be at its slots any more.

use super::commands::ASKED;
use super::disk::Outcome;
use super::gate::Gate;
use super::host_jobs::ARENA;
use super::hub::Hub;
use super::loads::Load;
use super::message::{status, Job};
use super::mover::{Failure, Slot, Source, Target};
use super::serve::code;
use super::stores::{Store, Stored};
use super::wire::{Frame, Head, Op};
use super::works::{Kind, Owner, Work, WorkId, Works};
use super::Refusal;

impl Hub {
    pub(super) fn begin(
        &mut self,
        owner: Owner,
        frame: &Frame,
        kind: Kind,
    ) -> Result<(), &'static str> {
        let head = frame.head;
        let job = Job::decode(head.count, head.flags, &frame.payload)?;
        let now_us = self.now_us;
        let default_us =
            if kind == Kind::Load { self.options.load_us } else { self.options.store_us };
        let Some(conn) = self.conn(owner) else { return Ok(()) };
        let Some(session) = &mut conn.session else { return Ok(()) };
        let region = session.regions.get(job.region as usize).cloned().ok_or("no such region")?;
        if job.items.iter().any(|item| item.slot >= region.slots) {
            return Err("no such slot");
        }
        if session.jobs.contains_key(&head.job) {
            return Err("a job of that number is under way");
        }
        let (namespace, bytes) = (session.namespace, session.hello.block_bytes);
        let hub_namespace = session.hub_namespace;
        let gate = session.board.gate(job.gate, job.usage);
        let limit_us = if head.deadline_us == 0 { default_us } else { head.deadline_us };
        let mut work = Work::new(kind, owner, head, job.items.len());
        work.gate = Some(gate.clone());
        (work.began_us, work.deadline_us) = (now_us, now_us.saturating_add(limit_us));
        let id = self.works.add(work);
        if let Some(session) = self.conn(owner).and_then(|conn| conn.session.as_mut()) {
            session.jobs.insert(head.job, id);
        }
        self.stats.jobs += 1;
        if kind == Kind::Load && self.is_too_slow(&job, (namespace, hub_namespace), bytes, limit_us)
        {
            return self.refuse_all(id, Refusal::Busy);
        }
        for (item, block) in job.items.into_iter().enumerate() {
            let offset = u64::from(block.slot) * region.stride;
            let slot = Slot { region: region.clone(), offset, gate: gate.clone() };
            let token = id.token(item);
            let begun = match (&mut self.disk, kind) {
                (_, Kind::Load) => {
                    let load =
                        Load { token, namespace, key: block.key, target: Target::Slot(slot) };
                    self.load(load, hub_namespace, bytes).map(|()| None)
                }
                (None, _) => Err(Refusal::Degraded),
                (Some(disk), _) => {
                    let (key, note, source) = (block.key, block.note, Source::Slot(slot));
                    let store = Store { namespace, key, len: bytes, note, source };
                    disk.store(store, token).map(|s| (s == Stored::There).then_some(status::OK))
                }
            };
            let known = begun.unwrap_or_else(|why| Some(why as u8));
            if let (Some(status), Some(work)) = (known, self.works.get_mut(id)) {
                work.set(item, status);
            }
        }
        self.finish_if_done(id);
        Ok(())
    }

    /// Begin to load a block from the nearest tier that has it.
    fn load(&mut self, load: Load, hub_namespace: u16, len: u32) -> Result<(), Refusal> {
        let Load { token, namespace, key, .. } = load;
        let near = self.disk.as_ref().is_some_and(|disk| disk.find(namespace, &key).is_some());
        if !near && self.is_remote(hub_namespace, &key) {
            return self.load_remote(token, hub_namespace, (key, len), load.target);
        }
        self.disk.as_mut().ok_or(Refusal::Absent)?.load(load, Some(len))
    }

    fn is_too_slow(&self, job: &Job, spaces: (u16, u16), bytes: u32, limit_us: u64) -> bool {
        let (namespace, hub_namespace) = spaces;
        let on_disk = |key| self.disk.as_ref().is_some_and(|d| d.find(namespace, key).is_some());
        let far = |key| !on_disk(key) && self.is_remote(hub_namespace, key);
        let remote = match self.remote {
            Some(_) => job.items.iter().filter(|item| far(&item.key)).count() as u64,
            None => 0,
        };
        let near = job.items.len() as u64 - remote;
        self.expected_us(near * u64::from(bytes), remote * u64::from(bytes)) > limit_us
    }

    fn refuse_all(&mut self, id: WorkId, why: Refusal) -> Result<(), &'static str> {
        if let Some(work) = self.works.get_mut(id) {
            work.set_rest(why as u8);
        }
        self.finish_if_done(id);
        Ok(())
    }

    pub(super) fn outcome(&mut self, outcome: Outcome) {
        if outcome.token & (ARENA | ASKED) == ARENA {
            return self.outcome_arena(&outcome);
        }
        let (id, item) = WorkId::of_token(outcome.token);
        let Some(work) = self.works.get_mut(id) else { return self.outcome_asked(outcome) };
        match outcome.result {
            Ok(_) => {
                work.set(item, status::OK);
                if work.kind == Kind::Load {
                    self.trial.went_well();
                }
            }
            Err(Failure::Cancelled) if work.kind != Kind::Drop => {
                // It was there when it was asked for.
                work.set(item, Refusal::Absent as u8);
            }
            Err(failure) => work.set(item, code(failure)),
        }
        self.finish_if_done(id);
    }

    /// Whoever fetches from the store may be at a slot whose block nobody waits for any more.
    pub(super) fn finish_if_done(&mut self, id: WorkId) {
        let Some(work) = self.works.get_mut(id).filter(|work| work.is_done()) else { return };
        if work.gate.as_ref().is_none_or(Gate::close) {
            self.finish(id);
        } else {
            work.ending = work.ending.or(Some(status::CANCELLED));
        }
    }

    fn finish(&mut self, id: WorkId) {
        let Some(mut work) = self.works.remove(id) else { return };
        let now_us = self.now_us;
        let owner = work.owner;
        self.durations.add(work.kind, now_us.saturating_sub(work.began_us));
        let Some(conn) = self.conn(owner) else { return };
        let Some(session) = &mut conn.session else { return };
        if work.kind == Kind::Drop {
            let mut answer = work.head.answer();
            answer.count = work.good() as u32;
            return conn.send(&answer, &[]);
        }
        session.jobs.remove(&work.head.job);
        work.bytes = work.good() as u64 * u64::from(session.hello.block_bytes);
        let finished = work.finished(now_us);
        let mut head = Head::new(Op::Done);
        (head.job, head.count) = (work.head.job, finished.statuses.len() as u32);
        head.flags = Self::seats_flag(work.kind);
        conn.send(&head, &finished.encode());
        if let Some(asked) = work.cancel {
            conn.send(&asked.answer(), &[]);
        }
    }

    /// Answered when nobody is at the job's slots: with its end, or at once when it is not under way.
    pub(super) fn cancel(&mut self, owner: Owner, head: &Head) -> Result<(), &'static str> {
        let Some(conn) = self.conn(owner) else { return Ok(()) };
        let id = conn.session.as_ref().and_then(|session| session.jobs.get(&head.job).copied());
        let Some(id) = id else {
            conn.send(&head.answer(), &[]);
            return Ok(());
        };
        self.stats.cancelled += 1;
        if let Some(work) = self.works.get_mut(id) {
            work.cancel = Some(*head);
        }
        self.give_up(id, status::CANCELLED);
        Ok(())
    }

    /// End what is late, and what was given up and is left alone now.
    pub(super) fn expire(&mut self) {
        if self.works.is_empty() {
            return;
        }
        let now_us = self.now_us;
        for id in self.works.ids(|work| work.ending.is_some()) {
            self.end_if_left_alone(id);
        }
        let late = self.works.ids(|work| work.ending.is_none() && now_us >= work.deadline_us);
        for id in late {
            self.stats.timeouts += 1;
            if self.works.get_mut(id).is_some_and(|w| matches!(w.kind, Kind::Load | Kind::Fetch)) {
                self.trial.timed_out(now_us);
            }
            self.give_up(id, status::TIMEOUT);
        }
    }

    fn give_up(&mut self, id: WorkId, why: u8) {
        let Some(work) = self.works.get_mut(id) else { return };
        work.ending = Some(why);
        if let Some(gate) = &work.gate {
            gate.close();
        }
        if let Some(disk) = &mut self.disk {
            disk.abandon(|token| WorkId::of_token(token).0 == id);
        }
        if let Some(remote) = &mut self.remote {
            remote.abandon(|token| WorkId::of_token(token).0 == id);
        }
        self.end_if_left_alone(id);
    }

    fn end_if_left_alone(&mut self, id: WorkId) {
        let Some(work) = self.works.get_mut(id) else { return };
        if work.gate.as_ref().is_none_or(Gate::close) {
            work.set_rest(work.ending.unwrap_or(status::CANCELLED));
            self.finish(id);
        }
    }

    /// Give up all jobs of a client that is gone; the gates that may still have somebody inside.
    pub(super) fn give_up_all(&mut self, owner: Owner) -> Vec<Gate> {
        let mut gates = Vec::new();
        let ids = self.works.ids(|work| work.owner == owner && work.kind != Kind::Drop);
        for &id in &ids {
            gates.extend(self.works.remove(id).and_then(|work| work.gate));
        }
        gates.iter().for_each(|gate| {
            gate.close();
        });
        if let Some(disk) = self.disk.as_mut().filter(|_| !ids.is_empty()) {
            disk.abandon(|token| ids.contains(&WorkId::of_token(token).0));
        }
        if let Some(remote) = self.remote.as_mut().filter(|_| !ids.is_empty()) {
            remote.abandon(|token| ids.contains(&WorkId::of_token(token).0));
        }
        gates
    }
}

impl Works {
    pub(super) fn any_ending(&self) -> bool {
        !self.is_empty() && !self.ids(|work| work.ending.is_some()).is_empty()
    }
}
