//! Modelled load of engines in shared memory: work ahead of a new request, as every worker sees it.
//!
//! A request is charged when it is sent, its prefill is discharged at its first token, the rest when
//! it ends. The work is in modelled microseconds. An engine serves prompts first come first served,
//! so what lies ahead of a new one is
//!
//! ```text
//! drain = max(0, S - (now - anchor))      S = work of all requests that have no token yet
//! ```
//!
//! where the anchor is the time at which the engine would have begun on S. A first token moves the
//! anchor forward by that request's work, and then proves where the engine is: everything before is
//! done, and of what comes behind at most the rest of the same step. The anchor is clamped to that, so
//! errors of the model do not add up. It is one cell per engine that all workers write; one that is
//! wrong, as its writer died or the engine is a new one in the slot, is put right by the next clamp.
//!
//! The share of an engine's time that prefill takes is a sum of charges that fades over a minute.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ledger::{Ledger, Work};
use crate::shared::{self, Fault};
use crate::slots::Handle;

/// Seconds over which prefill work of the past fades.
pub const FADE_S: f64 = 40.0;

/// What one request brings to an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Modelled work of its prefill.
    pub prefill_us: u64,
    /// Tokens it has to compute.
    pub prefill_tokens: u64,
    /// KV tokens it holds while it runs, in the mean: its prompt and half of its answer.
    pub kv_tokens: u64,
    /// Modelled transfer of its KV from the engine of its prefill; above zero, this is a decode leg.
    pub transfer_us: u64,
    /// Whether it is taken to miss its time to the first token.
    pub late: bool,
}

/// Where a request was when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing of its answer was seen: it was cancelled, or failed. What was done of its prefill cannot
    /// be known: the anchor waits for the next first token or start.
    Waiting,
    /// Its first token was seen.
    Running,
    /// Its answer came as a whole: the prefill was done at some time before.
    Whole,
}

/// An engine's load, summed over workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    pub inflight: u64,
    /// Of those in flight: without a first token.
    pub waiting: u64,
    /// Of those in flight: too late for their SLO, whatever happens.
    pub late: u64,
    /// Prefill work ahead of a request sent now.
    pub drain_ms: f64,
    /// Share of its time that prefill took of late, 0 to 1.
    pub share: f64,
    pub kv_tokens: u64,
    /// Transfers to it that are not over.
    pub transfer_ms: f64,
}

impl Load {
    /// Requests that decode.
    pub fn running(&self) -> u64 {
        self.inflight.saturating_sub(self.waiting)
    }
}

/// (waiting, late) of a word.
fn halves(word: u64) -> (u64, u64) {
    (word & u64::from(u32::MAX), word >> 32)
}

/// Prefill work of the past minute in a cell: ms as f32, and when it was so, in ms that wrap.
#[derive(Clone, Copy)]
struct Recent {
    work_ms: f32,
    at_ms: u32,
}

impl Recent {
    fn of(bits: u64) -> Self {
        Self { work_ms: f32::from_bits((bits >> 32) as u32), at_ms: bits as u32 }
    }

    fn bits(self) -> u64 {
        u64::from(self.work_ms.to_bits()) << 32 | u64::from(self.at_ms)
    }

    fn clock(now_s: f64) -> u32 {
        (now_s * 1e3) as u64 as u32
    }

    /// What is left of it now. A clock that is behind by less than half its range reads as now.
    fn left_ms(self, now_s: f64) -> f64 {
        if self.work_ms == 0.0 {
            return 0.0;
        }
        let ago = Self::clock(now_s).wrapping_sub(self.at_ms) as i32;
        f64::from(self.work_ms) * (-f64::from(ago.max(0)) / (FADE_S * 1e3)).exp()
    }
}

impl Ledger {
    fn anchor(&self, engine: Handle) -> &AtomicU64 {
        self.shared.cell(self.plan.anchors + engine.slot)
    }

    fn recent(&self, engine: Handle) -> &AtomicU64 {
        self.shared.cell(self.plan.recent + engine.slot)
    }

    /// A new engine in a slot has no past.
    pub(crate) fn forget_load(&self, slot: usize) {
        let engine = Handle { slot, generation: 0 };
        self.anchor(engine).store(0, Ordering::Release);
        self.recent(engine).store(0, Ordering::Release);
    }

    /// Moves the anchor; another worker's move in between is kept.
    fn move_anchor(&self, engine: Handle, to: impl Fn(f64) -> f64) {
        let moved = |bits| Some(to(f64::from_bits(bits)).to_bits());
        let _ = self.anchor(engine).fetch_update(Ordering::AcqRel, Ordering::Acquire, moved);
    }

    /// Work of all requests without a first token, in seconds.
    fn ahead_s(&self, engine: Handle) -> f64 {
        let rows = (0..self.shared.rows()).filter(|&row| self.counts_for(row, engine));
        let us: u64 = rows
            .map(|row| self.hot(self.plan.prefill_us, row, engine).load(Ordering::Relaxed))
            .sum();
        us as f64 * 1e-6
    }

    /// Counts a request in with its charge. False: not counted, as the engine's slot has a later
    /// tenant or the worker was retired; it must not be counted out then.
    pub fn start(&self, engine: Handle, charge: Charge, now_s: f64) -> Result<bool, Fault> {
        let before = self.ahead_s(engine);
        let work = Work { prefill_tokens: charge.prefill_tokens, decode_blocks: 0 };
        if !self.acquire(engine, work)? {
            return Ok(false);
        }
        // All that was charged before may be done by the clock: the engine begins on this one now.
        self.move_anchor(engine, |anchor| anchor.max(now_s - before).min(now_s));
        let add = |bits| {
            let work_ms = Recent::of(bits).left_ms(now_s) + charge.prefill_us as f64 * 1e-3;
            Some(Recent { work_ms: work_ms as f32, at_ms: Recent::clock(now_s) }.bits())
        };
        let _ = self.recent(engine).fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        self.write(engine, |row| {
            shared::add(self.hot(self.plan.prefill_us, row, engine), charge.prefill_us);
            self.stage(row, engine, 1, i64::from(charge.late));
            shared::add(self.hot(self.plan.kv_tokens, row, engine), charge.kv_tokens);
            shared::add(self.hot(self.plan.transfer_us, row, engine), charge.transfer_us);
        })
    }

    /// Discharges the prefill at the first token. `step_ms`: the work of a full step of this engine.
    /// `late`: what has become of its time to the first token; count it out with that.
    pub fn first(
        &self,
        engine: Handle,
        charge: Charge,
        late: bool,
        now_s: f64,
        step_ms: f64,
    ) -> Result<bool, Fault> {
        let Some(row) = self.arrived(engine, charge)? else { return Ok(false) };
        self.stage(row, engine, 0, i64::from(late) - i64::from(charge.late));
        if charge.transfer_us > 0 {
            return Ok(true); // KV that came says nothing of the prompts here
        }
        let done = charge.prefill_us as f64 * 1e-6;
        let most = self.ahead_s(engine).min(step_ms * 1e-3);
        self.move_anchor(engine, |anchor| (anchor + done).max(now_s - most).min(now_s));
        Ok(true)
    }

    /// Counts a request out, in the stage at which it ends.
    pub fn end(
        &self,
        engine: Handle,
        charge: Charge,
        stage: Stage,
        now_s: f64,
    ) -> Result<bool, Fault> {
        let charged = stage != Stage::Running && self.arrived(engine, charge)?.is_some();
        if charged && stage == Stage::Whole {
            let done = charge.prefill_us as f64 * 1e-6;
            self.move_anchor(engine, |anchor| (anchor + done).min(now_s));
        }
        if !self.release(engine, Work::default())? {
            return Ok(false);
        }
        self.write(engine, |row| {
            self.lower(self.plan.kv_tokens, row, engine, charge.kv_tokens);
            self.stage(row, engine, 0, -i64::from(charge.late));
        })
    }

    /// Takes the charge of a prefill off; `None` where the row counts for another engine by now.
    fn arrived(&self, engine: Handle, charge: Charge) -> Result<Option<usize>, Fault> {
        let Some(row) = self.shared.row()? else { return Ok(None) };
        if !self.counts_for(row, engine) {
            return Ok(None);
        }
        self.lower(self.plan.prefill_us, row, engine, charge.prefill_us);
        self.lower(self.plan.prefill, row, engine, charge.prefill_tokens);
        self.lower(self.plan.transfer_us, row, engine, charge.transfer_us);
        self.stage(row, engine, -1, 0);
        Ok(Some(row))
    }

    /// Changes the counts of requests that wait and of those that are late; never below zero.
    fn stage(&self, row: usize, engine: Handle, waiting: i64, late: i64) {
        let cell = self.hot(self.plan.stages, row, engine);
        let (w, l) = halves(cell.load(Ordering::Relaxed));
        let moved = |count: u64, by: i64| count.saturating_add_signed(by).min(u64::from(u32::MAX));
        cell.store(moved(l, late) << 32 | moved(w, waiting), Ordering::Relaxed);
    }

    /// An engine's load now, all workers.
    pub fn load(&self, engine: Handle, now_s: f64) -> Load {
        let mut load = Load::default();
        let mut us = 0;
        for row in 0..self.shared.rows() {
            let inflight = self.inflight_of(row, engine);
            if inflight == 0 {
                continue; // nor is anything charged
            }
            let gauge = |plane| self.hot(plane, row, engine).load(Ordering::Relaxed);
            load.inflight += inflight;
            let (waiting, late) = halves(gauge(self.plan.stages));
            load.waiting += waiting;
            load.late += late;
            load.kv_tokens += gauge(self.plan.kv_tokens);
            us += gauge(self.plan.prefill_us);
            load.transfer_ms += gauge(self.plan.transfer_us) as f64 * 1e-3;
        }
        let anchor = f64::from_bits(self.anchor(engine).load(Ordering::Acquire));
        let elapsed_ms = (now_s - anchor).max(0.0) * 1e3;
        load.drain_ms = (us as f64 * 1e-3 - elapsed_ms).max(0.0);
        let recent = Recent::of(self.recent(engine).load(Ordering::Acquire));
        load.share = (recent.left_ms(now_s) / (FADE_S * 1e3)).min(1.0);
        load
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_MS: f64 = 100.0;

    fn ledger(workers: usize) -> (Ledger, Handle) {
        let ledger = Ledger::open(workers, 4, None).unwrap();
        ledger.shared.bind(0).unwrap();
        let engine = ledger.add_engine().unwrap();
        (ledger, engine)
    }

    fn charge(ms: u64) -> Charge {
        Charge {
            prefill_us: ms * 1000,
            prefill_tokens: ms,
            kv_tokens: 10 * ms,
            ..Charge::default()
        }
    }

    fn drain(ledger: &Ledger, engine: Handle, now_s: f64) -> f64 {
        (ledger.load(engine, now_s).drain_ms * 1e3).round() / 1e3
    }

    #[test]
    fn work_ahead_shrinks_as_time_goes_not_only_at_first_tokens() {
        let (ledger, engine) = ledger(1);
        ledger.start(engine, charge(8000), 100.0).unwrap();
        ledger.start(engine, charge(500), 101.0).unwrap();
        assert_eq!(drain(&ledger, engine, 101.0), 7500.0);
        assert_eq!(drain(&ledger, engine, 105.0), 3500.0);
        assert_eq!(drain(&ledger, engine, 120.0), 0.0);
        // Idle again: the next one begins when it is sent.
        ledger.first(engine, charge(8000), false, 108.0, STEP_MS).unwrap();
        ledger.first(engine, charge(500), false, 108.5, STEP_MS).unwrap();
        ledger.start(engine, charge(400), 130.0).unwrap();
        assert_eq!(drain(&ledger, engine, 130.1), 300.0);
    }

    #[test]
    fn a_first_token_says_where_the_engine_is() {
        // Twice as slow as modelled: at each first token the rest is still to do, but for one step.
        let (ledger, engine) = ledger(1);
        for _ in 0..4 {
            ledger.start(engine, charge(1000), 50.0).unwrap();
        }
        ledger.first(engine, charge(1000), false, 52.0, STEP_MS).unwrap();
        assert_eq!(drain(&ledger, engine, 52.0), 2900.0);
        ledger.first(engine, charge(1000), false, 54.0, STEP_MS).unwrap();
        assert_eq!(drain(&ledger, engine, 54.0), 1900.0);
        // Much faster than modelled: what is behind has not begun before its turn.
        ledger.first(engine, charge(1000), false, 54.1, STEP_MS).unwrap();
        assert_eq!(drain(&ledger, engine, 54.1), 1000.0);
    }

    #[test]
    fn answers_that_come_as_a_whole_take_their_prefill_with_them() {
        // A hundred of 500 ms at once; each answer takes as long as twenty prefills, then comes whole.
        let (ledger, engine) = ledger(1);
        for _ in 0..100 {
            ledger.start(engine, charge(500), 0.0).unwrap();
        }
        for over in 1..=40 {
            let now_s = 10.0 + f64::from(over) * 0.5;
            ledger.end(engine, charge(500), Stage::Whole, now_s).unwrap();
        }
        assert_eq!(drain(&ledger, engine, 30.0), 20_000.0);
        // One that was cancelled had not been served: nothing else has been done for it.
        ledger.end(engine, charge(500), Stage::Waiting, 30.0).unwrap();
        assert_eq!(drain(&ledger, engine, 30.0), 19_500.0);
    }

    #[test]
    fn all_workers_see_one_load_and_a_dead_one_is_taken_back() {
        let (a, engine) = ledger(3);
        let b = Ledger::open(3, 4, Some(a.shared.fd())).unwrap();
        b.shared.bind(1).unwrap();
        a.start(engine, charge(300), 10.0).unwrap();
        b.start(engine, Charge { late: true, ..charge(200) }, 10.0).unwrap();
        for ledger in [&a, &b] {
            let load = ledger.load(engine, 10.1);
            assert_eq!((load.inflight, load.waiting, load.late), (2, 2, 1));
            assert_eq!((ledger.totals(engine).work.prefill_tokens, load.kv_tokens), (500, 5000));
            assert!((load.drain_ms - 400.0).abs() < 1e-6);
        }
        a.retire(1).unwrap();
        let load = a.load(engine, 10.1);
        assert_eq!((load.inflight, load.waiting, load.late, load.kv_tokens), (1, 1, 0, 3000));
        assert!((load.drain_ms - 200.0).abs() < 1e-6);
        // What the dead one still tries changes nothing.
        assert_eq!(b.first(engine, charge(200), true, 10.2, STEP_MS), Ok(false));
        assert_eq!(b.end(engine, charge(200), Stage::Waiting, 10.2), Ok(false));
        assert_eq!(a.load(engine, 10.1).inflight, 1);
    }

    #[test]
    fn a_successor_in_the_slot_has_no_past() {
        let (ledger, _) = ledger(1);
        let old: Vec<_> = (0..3).map(|_| ledger.add_engine().unwrap()).collect();
        ledger.start(old[0], charge(60_000), 5.0).unwrap();
        assert!(ledger.remove_engine(old[0]));
        let new = ledger.add_engine().unwrap();
        assert_eq!(new.slot, old[0].slot);
        assert_eq!(ledger.load(new, 5.0), Load::default());
        ledger.start(new, charge(100), 6.0).unwrap();
        assert_eq!(ledger.end(old[0], charge(60_000), Stage::Waiting, 10.2), Ok(false));
        assert_eq!((ledger.load(new, 6.0).waiting, drain(&ledger, new, 6.0)), (1, 100.0));
    }

    #[test]
    fn lateness_follows_what_came_true() {
        let (ledger, engine) = ledger(1);
        let hopeful = charge(100);
        ledger.start(engine, hopeful, 1.0).unwrap();
        ledger.first(engine, hopeful, true, 9.0, STEP_MS).unwrap();
        assert_eq!(ledger.load(engine, 9.0).late, 1);
        ledger.end(engine, Charge { late: true, ..hopeful }, Stage::Running, 10.2).unwrap();
        assert_eq!(ledger.load(engine, 10.0).late, 0);
        let hopeless = Charge { late: true, ..charge(100) };
        ledger.start(engine, hopeless, 20.0).unwrap();
        ledger.first(engine, hopeless, false, 20.1, STEP_MS).unwrap();
        ledger.end(engine, charge(100), Stage::Running, 10.2).unwrap();
        let load = ledger.load(engine, 21.0);
        assert_eq!((load.late, load.inflight, load.kv_tokens), (0, 0, 0));
    }

    #[test]
    fn the_share_of_prefill_fades() {
        let (ledger, engine) = ledger(1);
        for t in 0..400 {
            ledger.start(engine, charge(500), f64::from(t)).unwrap();
        }
        let share = ledger.load(engine, 399.0).share;
        assert!((share - 0.5).abs() < 0.01, "{share}");
        let later = ledger.load(engine, 399.0 + FADE_S).share;
        assert!((later / share - (-1.0f64).exp()).abs() < 1e-3);
        ledger.start(engine, charge(1_000_000), 400.0).unwrap();
        assert_eq!(ledger.load(engine, 400.0).share, 1.0);
    }
}
