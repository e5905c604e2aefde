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

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ledger::{Ledger, Work};
use crate::shared::{self, Fault};
use crate::slots::Handle;

/// What one request brings to an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Modelled work of its prefill.
    pub prefill_us: u64,
    /// Tokens it has to compute.
    pub prefill_tokens: u64,
    /// KV tokens it holds while it runs, in the mean: its prompt and half of its answer.
    pub kv_tokens: u64,
}

/// An engine's load, summed over workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    pub inflight: u64,
    /// Of those in flight: without a first token.
    pub waiting: u64,
    /// Prefill work ahead of a request sent now.
    pub drain_ms: f64,
    /// Prefill work charged and not discharged, progress not counted.
    pub prefill_ms: f64,
    pub prefill_tokens: u64,
    pub kv_tokens: u64,
}

impl Load {
    /// Requests that decode.
    pub fn running(&self) -> u64 {
        self.inflight.saturating_sub(self.waiting)
    }
}

impl Ledger {
    fn anchor(&self, engine: Handle) -> &AtomicU64 {
        self.shared.cell(self.plan.anchors + engine.slot)
    }

    /// Moves the anchor; another worker's move in between is kept.
    fn move_anchor(&self, engine: Handle, to: impl Fn(f64) -> f64) {
        let cell = self.anchor(engine);
        let moved = |bits| Some(to(f64::from_bits(bits)).to_bits());
        let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, moved);
    }

    /// A gauge of an engine, summed over the rows that count for it.
    fn gauge(&self, plane: usize, engine: Handle) -> u64 {
        let rows = 0..self.shared.rows();
        rows.filter(|&row| self.counts_for(row, engine))
            .map(|row| self.hot(plane, row, engine).load(Ordering::Relaxed))
            .sum()
    }

    fn ahead_s(&self, engine: Handle) -> f64 {
        self.gauge(self.plan.prefill_us, engine) as f64 * 1e-6
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
        self.write(engine, |row| {
            shared::add(self.hot(self.plan.prefill_us, row, engine), charge.prefill_us);
            shared::add(self.hot(self.plan.waiting, row, engine), 1);
            shared::add(self.hot(self.plan.kv_tokens, row, engine), charge.kv_tokens);
        })
    }

    /// Discharges the prefill at the first token. `step_ms`: the work of a full step of this engine.
    pub fn first(
        &self,
        engine: Handle,
        charge: Charge,
        now_s: f64,
        step_ms: f64,
    ) -> Result<bool, Fault> {
        let counted = self.arrived(engine, charge)?;
        if counted {
            let done = charge.prefill_us as f64 * 1e-6;
            let most = self.ahead_s(engine).min(step_ms * 1e-3);
            self.move_anchor(engine, |anchor| (anchor + done).max(now_s - most).min(now_s));
        }
        Ok(counted)
    }

    /// Counts a request out. `waiting`: it ends without a first token. `now_s` NaN: nobody knows.
    pub fn end(
        &self,
        engine: Handle,
        charge: Charge,
        now_s: f64,
        waiting: bool,
    ) -> Result<bool, Fault> {
        if waiting && self.arrived(engine, charge)? {
            // What was done of it cannot be known; the others' work is no more than all there is.
            let left = self.ahead_s(engine);
            if now_s.is_finite() {
                self.move_anchor(engine, |anchor| anchor.max(now_s - left).min(now_s));
            }
        }
        if !self.release(engine, Work::default())? {
            return Ok(false);
        }
        self.write(engine, |row| self.lower(self.plan.kv_tokens, row, engine, charge.kv_tokens))
    }

    /// Takes the charge of a prefill off; false where the row counts for another engine by now.
    fn arrived(&self, engine: Handle, charge: Charge) -> Result<bool, Fault> {
        let Some(row) = self.shared.row()? else { return Ok(false) };
        if !self.counts_for(row, engine) {
            return Ok(false);
        }
        self.lower(self.plan.prefill_us, row, engine, charge.prefill_us);
        self.lower(self.plan.prefill, row, engine, charge.prefill_tokens);
        self.lower(self.plan.waiting, row, engine, 1);
        Ok(true)
    }

    /// An engine's load now, all workers.
    pub fn load(&self, engine: Handle, now_s: f64) -> Load {
        let mut load = Load::default();
        let mut us = 0;
        for row in 0..self.shared.rows() {
            if !self.counts_for(row, engine) {
                continue;
            }
            let gauge = |plane| self.hot(plane, row, engine).load(Ordering::Relaxed);
            load.inflight += self.inflight_of(row, engine);
            load.waiting += gauge(self.plan.waiting);
            load.prefill_tokens += gauge(self.plan.prefill);
            load.kv_tokens += gauge(self.plan.kv_tokens);
            us += gauge(self.plan.prefill_us);
        }
        load.prefill_ms = us as f64 * 1e-3;
        let anchor = f64::from_bits(self.anchor(engine).load(Ordering::Acquire));
        let elapsed_ms = (now_s - anchor).max(0.0) * 1e3;
        load.drain_ms = (load.prefill_ms - elapsed_ms).max(0.0);
        load
    }
}
