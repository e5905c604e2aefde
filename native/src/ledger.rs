//! Who is busy with what: per (worker, engine) requests in flight, work queued, failures.
//!
//! Every acquire is paired with one release of the same handle. A cell of requests in flight carries the
//! generation of the engine it counts for, so a count of an engine that was removed can neither be taken
//! for one of its successor in the slot nor be released into it: what is in flight is never negative.
//! Removing an engine does not stop its releases from being counted, so a draining one can be watched.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::planes::{Plan, LAYOUT};
use crate::shared::{self, get_f64, Fault, Shared};
use crate::slots::{self, Handle};

/// Failure times kept per (worker, engine): the most failures one worker can report for a window.
pub const FAILURES_KEPT: usize = 64;

/// Words of the record behind an engine's counts.
pub(crate) const DISPATCHED: usize = 0;
pub(crate) const FAILED: usize = 1;
pub(crate) const CONSECUTIVE: usize = 2;
pub(crate) const LAST_FAILURE: usize = 3;
pub(crate) const LAST_SUCCESS: usize = 4;
const GENERATION: usize = 5;
/// Words that `board.rs` keeps.
pub(crate) const SAID: usize = 6;
pub(crate) const RING: usize = 16;
pub(crate) const RECORD: usize = RING + FAILURES_KEPT;

/// Spare words of a worker's line.
const UNDERFLOWS: usize = 0;
const STALE: usize = 1;

/// Work a request brings to an engine, beside itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    pub prefill_tokens: u64,
    pub decode_blocks: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineTotals {
    pub inflight: u64,
    pub work: Work,
    pub dispatched: u64,
    pub failed: u64,
    /// Failures since the last success, summed over workers.
    pub consecutive: u64,
    /// Time, or 0.0 if it never happened.
    pub last_failure_s: f64,
    pub last_success_s: f64,
}

pub struct Ledger {
    pub shared: Shared,
    pub(crate) plan: Plan,
}

impl Ledger {
    pub fn open(workers: usize, engines: usize, fd: Option<i32>) -> Result<Self, String> {
        if !(1..=65536).contains(&engines) {
            return Err(format!("`engines` must be from 1 to 65536, got {engines}"));
        }
        let plan = Plan::new(workers, engines);
        let sizes = [engines, RECORD, LAYOUT];
        Ok(Self { shared: Shared::open("ledger", workers, &sizes, plan.cells, fd)?, plan })
    }

    pub fn engines(&self) -> usize {
        self.plan.engines
    }

    pub fn add_engine(&self) -> Result<Handle, String> {
        let engine = slots::take_slot(&self.shared, self.plan.states, self.plan.engines)
            .ok_or_else(|| format!("the ledger has room for {} engines", self.plan.engines))?;
        self.forget_load(engine.slot);
        Ok(engine)
    }

    pub fn remove_engine(&self, engine: Handle) -> bool {
        slots::free_slot(&self.shared, self.plan.states, engine)
    }

    /// The engine that holds a slot now.
    pub fn engine_at(&self, slot: usize) -> Option<Handle> {
        slots::tenant(&self.shared, self.plan.states, slot)
    }

    pub(crate) fn hot(&self, plane: usize, row: usize, engine: Handle) -> &AtomicU64 {
        self.shared.cell(plane + row * self.plan.stride + engine.slot)
    }

    pub(crate) fn record(&self, row: usize, slot: usize, word: usize) -> &AtomicU64 {
        let index = (row * self.plan.engines + slot) * RECORD + word;
        self.shared.cell(self.plan.records + index)
    }

    /// Makes the writer's cells count for this engine; false if they count for a later one already.
    fn enter(&self, row: usize, engine: Handle) -> bool {
        let cell = self.hot(self.plan.inflight, row, engine);
        let generation = (cell.load(Ordering::Relaxed) >> 32) as u32;
        if generation == engine.generation {
            return true;
        }
        if generation > engine.generation {
            shared::add(self.shared.spare(row, STALE), 1);
            return false;
        }
        for word in 0..RECORD {
            self.record(row, engine.slot, word).store(0, Ordering::Relaxed);
        }
        self.record(row, engine.slot, GENERATION)
            .store(u64::from(engine.generation), Ordering::Release);
        for plane in self.plan.gauges() {
            self.hot(plane, row, engine).store(0, Ordering::Relaxed);
        }
        cell.store(u64::from(engine.generation) << 32, Ordering::Release);
        true
    }

    /// An engine's word of health, and behind the last engine's the count of changes.
    pub(crate) fn health_cell(&self, slot: usize) -> &AtomicU64 {
        self.shared.cell(self.plan.health + slot)
    }

    /// When an engine's failures were last pardoned.
    pub(crate) fn pardon_cell(&self, slot: usize) -> &AtomicU64 {
        self.shared.cell(self.plan.cleared + slot)
    }

    pub(crate) fn role_cell(&self, slot: usize) -> &AtomicU64 {
        self.shared.cell(self.plan.roles + slot)
    }

    pub(crate) fn health_changes(&self) -> &AtomicU64 {
        self.health_cell(self.plan.stride)
    }

    /// Runs `write` on the bound row if it may write for this engine.
    pub(crate) fn write(&self, engine: Handle, write: impl FnOnce(usize)) -> Result<bool, Fault> {
        match self.shared.row()? {
            Some(row) if self.enter(row, engine) => {
                write(row);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Counts a request in. False: not counted, as the engine's slot has a later tenant.
    pub fn acquire(&self, engine: Handle, work: Work) -> Result<bool, Fault> {
        self.write(engine, |row| {
            shared::add(self.hot(self.plan.inflight, row, engine), 1);
            shared::add(self.record(row, engine.slot, DISPATCHED), 1);
            self.put(row, engine, work);
        })
    }

    /// Counts a request out. False: ignored, as stale or as one release too many.
    pub fn release(&self, engine: Handle, work: Work) -> Result<bool, Fault> {
        let Some(row) = self.shared.row()? else { return Ok(false) };
        let cell = self.hot(self.plan.inflight, row, engine);
        let value = cell.load(Ordering::Relaxed);
        let fault = match () {
            _ if (value >> 32) as u32 != engine.generation => STALE,
            _ if value as u32 == 0 => UNDERFLOWS,
            _ => {
                cell.store(value - 1, Ordering::Relaxed);
                self.take(row, engine, work);
                return Ok(true);
            }
        };
        shared::add(self.shared.spare(row, fault), 1);
        Ok(false)
    }

    /// Adds work without a request, or takes it off; never below zero.
    pub fn charge(&self, engine: Handle, work: Work) -> Result<bool, Fault> {
        self.write(engine, |row| self.put(row, engine, work))
    }

    pub fn discharge(&self, engine: Handle, work: Work) -> Result<bool, Fault> {
        self.write(engine, |row| self.take(row, engine, work))
    }

    fn put(&self, row: usize, engine: Handle, work: Work) {
        shared::add(self.hot(self.plan.prefill, row, engine), work.prefill_tokens);
        shared::add(self.hot(self.plan.blocks, row, engine), work.decode_blocks);
    }

    fn take(&self, row: usize, engine: Handle, work: Work) {
        let planes =
            [(self.plan.prefill, work.prefill_tokens), (self.plan.blocks, work.decode_blocks)];
        for (plane, n) in planes {
            self.lower(plane, row, engine, n);
        }
    }

    /// Takes off a gauge of the bound row; never below zero.
    pub(crate) fn lower(&self, plane: usize, row: usize, engine: Handle, n: u64) {
        let cell = self.hot(plane, row, engine);
        cell.store(cell.load(Ordering::Relaxed).saturating_sub(n), Ordering::Relaxed);
    }

    /// One more prompt (or one less) lies at the engine for another one to fetch.
    pub fn pend(&self, engine: Handle, is_more: bool) -> Result<bool, Fault> {
        self.write(engine, |row| match is_more {
            true => shared::add(self.hot(self.plan.pending, row, engine), 1),
            false => self.lower(self.plan.pending, row, engine, 1),
        })
    }

    /// Prompts that lie there for others, of all workers.
    pub fn pending(&self, engine: Handle) -> u64 {
        let cell = |row| self.hot(self.plan.pending, row, engine).load(Ordering::Relaxed);
        self.rows_of(engine).map(cell).sum()
    }

    /// Requests in flight, all workers.
    #[inline]
    pub fn inflight(&self, engine: Handle) -> u64 {
        let rows = self.shared.rows();
        (0..rows).map(|row| self.inflight_of(row, engine)).sum()
    }

    #[inline]
    pub(crate) fn inflight_of(&self, row: usize, engine: Handle) -> u64 {
        let value = self.hot(self.plan.inflight, row, engine).load(Ordering::Acquire);
        match (value >> 32) as u32 == engine.generation {
            true => u64::from(value as u32),
            false => 0,
        }
    }

    /// Whether a row's cells count for this engine, not for another one of the slot.
    #[inline]
    pub(crate) fn counts_for(&self, row: usize, engine: Handle) -> bool {
        let value = self.hot(self.plan.inflight, row, engine).load(Ordering::Acquire);
        (value >> 32) as u32 == engine.generation
    }

    pub(crate) fn rows_of(&self, engine: Handle) -> impl Iterator<Item = usize> + '_ {
        (0..self.shared.rows()).filter(move |&row| self.is_of(row, engine))
    }

    fn is_of(&self, row: usize, engine: Handle) -> bool {
        let generation = self.record(row, engine.slot, GENERATION).load(Ordering::Acquire);
        generation == u64::from(engine.generation)
    }

    pub fn totals(&self, engine: Handle) -> EngineTotals {
        let mut totals = EngineTotals { inflight: self.inflight(engine), ..Default::default() };
        for row in self.rows_of(engine) {
            let count = |word| self.record(row, engine.slot, word).load(Ordering::Relaxed);
            let time = |word| get_f64(self.record(row, engine.slot, word));
            let gauge = |plane| self.hot(plane, row, engine).load(Ordering::Relaxed);
            totals.dispatched += count(DISPATCHED);
            totals.failed += count(FAILED);
            totals.consecutive += count(CONSECUTIVE);
            totals.last_failure_s = totals.last_failure_s.max(time(LAST_FAILURE));
            totals.last_success_s = totals.last_success_s.max(time(LAST_SUCCESS));
            totals.work.prefill_tokens += gauge(self.plan.prefill);
            totals.work.decode_blocks += gauge(self.plan.blocks);
        }
        totals
    }

    /// Releases ignored: (one too many, of an engine that was removed).
    pub fn ignored(&self) -> (u64, u64) {
        (0..self.shared.rows()).fold((0, 0), |(under, stale), row| {
            let word = |word| self.shared.spare(row, word).load(Ordering::Relaxed);
            (under + word(UNDERFLOWS), stale + word(STALE))
        })
    }

    /// Takes back what a dead worker had in flight and queued; what it counted stays counted.
    pub fn retire(&self, worker: usize) -> Result<bool, String> {
        let taken = self.shared.retire(worker)?;
        if taken {
            self.forget_clients(worker);
            for slot in 0..self.plan.engines {
                let here = Handle { slot, generation: 0 };
                let cell = self.hot(self.plan.inflight, worker, here);
                cell.store(cell.load(Ordering::Relaxed) >> 32 << 32, Ordering::Relaxed);
                for plane in self.plan.gauges() {
                    self.hot(plane, worker, here).store(0, Ordering::Relaxed);
                }
                self.record(worker, slot, CONSECUTIVE).store(0, Ordering::Relaxed);
                self.forget_gauges(worker, slot);
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Work = Work { prefill_tokens: 0, decode_blocks: 0 };

    fn pair() -> (Ledger, Ledger, Handle) {
        let a = Ledger::open(3, 1, None).unwrap();
        let b = Ledger::open(3, 1, Some(a.shared.fd())).unwrap();
        a.shared.bind(0).unwrap();
        b.shared.bind(2).unwrap();
        let engine = a.add_engine().unwrap();
        (a, b, engine)
    }

    #[test]
    fn workers_add_up_and_a_dead_one_is_taken_back() {
        let (a, b, engine) = pair();
        let work = Work { prefill_tokens: 7, decode_blocks: 2 };
        for _ in 0..3 {
            assert_eq!(a.acquire(engine, work), Ok(true));
            assert_eq!(b.acquire(engine, NONE), Ok(true));
        }
        assert_eq!(b.release(engine, NONE), Ok(true));
        assert_eq!((a.inflight(engine), b.inflight(engine)), (5, 5));
        assert_eq!(a.totals(engine).work, Work { prefill_tokens: 21, decode_blocks: 6 });
        b.retire(0).unwrap();
        let totals = b.totals(engine);
        assert_eq!((totals.inflight, totals.dispatched, totals.work), (2, 6, NONE));
        assert_eq!(a.release(engine, work), Ok(false));
        assert_eq!(b.inflight(engine), 2);
    }

    #[test]
    fn prompts_that_lie_there_are_of_all_workers_and_go_with_theirs() {
        let (one, two, engine) = pair();
        for ledger in [&one, &two, &two] {
            assert_eq!(ledger.pend(engine, true), Ok(true));
        }
        assert_eq!((one.pending(engine), two.pending(engine)), (3, 3));
        assert_eq!(one.pend(engine, false), Ok(true));
        assert_eq!(one.pend(engine, false), Ok(true), "one too many is no debt");
        assert_eq!(one.pending(engine), 2);
        assert_eq!(one.retire(2), Ok(true));
        assert_eq!(one.pending(engine), 0);
    }

    #[test]
    fn one_release_too_many_is_counted_and_ignored() {
        let (a, b, engine) = pair();
        b.acquire(engine, NONE).unwrap();
        a.acquire(engine, NONE).unwrap();
        assert_eq!((a.release(engine, NONE), a.release(engine, NONE)), (Ok(true), Ok(false)));
        assert_eq!((a.inflight(engine), a.ignored()), (1, (1, 0)));
        let work = Work { prefill_tokens: 9, decode_blocks: 9 };
        a.discharge(engine, work).unwrap();
        assert_eq!(a.totals(engine).work, NONE);
    }

    #[test]
    fn a_successor_in_the_slot_starts_from_nothing() {
        let (a, b, old) = pair();
        for ledger in [&a, &b] {
            ledger.acquire(old, NONE).unwrap();
            ledger.mark_failure(old, 1.0).unwrap();
        }
        assert!(a.remove_engine(old));
        assert_eq!(a.inflight(old), 2);
        let new = b.add_engine().unwrap();
        assert_eq!(new.slot, old.slot);
        assert_eq!((a.inflight(new), a.failures(new, 1.0, 9.0)), (0, 0));
        a.acquire(new, NONE).unwrap();
        assert_eq!((a.release(old, NONE), a.acquire(old, NONE)), (Ok(false), Ok(false)));
        // This worker has not seen the successor yet: the release is the old engine's own.
        assert_eq!(b.release(old, NONE), Ok(true));
        assert_eq!((b.inflight(new), b.ignored()), (1, (0, 2)));
        assert_eq!(
            b.totals(new),
            EngineTotals { inflight: 1, dispatched: 1, ..Default::default() }
        );
    }
}
