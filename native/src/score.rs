//! The engines of one team, weighed for a request: index, ledger, fits and what was learnt of them.
//!
//! One team belongs to one worker. What it learns (how much slower each engine is than its fit, how
//! long answers are) is its own; the load it reads is that of all workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::cost::{self, Ask, Engine, Filter, Leg, Row};
use crate::index::Overlap;
use crate::ledger::Ledger;
use crate::load::{Charge, Load, Stage};
use crate::pair::{self, Force, Masks, Plan};
use crate::shared::{get_f64, set_f64, Fault};
use crate::slots::Handle;
use crate::speed::Factor;

/// One engine's place.
pub struct Seat {
    pub handle: Handle,
    pub engine: Engine,
    /// How much slower it is than its fit, at prompts and at answers.
    prefill: AtomicU64,
    decode: AtomicU64,
    /// How much slower its link is than configured.
    link: AtomicU64,
}

impl Seat {
    /// `known`: what was learnt of it before.
    pub fn new(handle: Handle, engine: Engine, known: Option<&Seat>) -> Self {
        let [prefill, decode, link] = known.map_or_else(Default::default, Seat::factors);
        let cell = |factor: Factor| AtomicU64::new(factor.bits());
        Self { handle, engine, prefill: cell(prefill), decode: cell(decode), link: cell(link) }
    }

    /// How much slower it is than its fit: at prompts, at answers, at transfers to it.
    pub fn factors(&self) -> [Factor; 3] {
        [&self.prefill, &self.decode, &self.link]
            .map(|cell| Factor::of_bits(cell.load(Ordering::Relaxed)))
    }

    /// The engine as it has proved to be.
    fn real(&self) -> Engine {
        let [prefill, decode, link] = self.factors();
        let fit = self.engine.fit.scaled(prefill.value, decode.value);
        Engine { fit, link: self.engine.link.scaled(link.value), ..self.engine }
    }
}

/// Learns from a time; of two threads that do so at once, one may be forgotten.
fn learn(cell: &AtomicU64, modelled_ms: f64, observed_ms: f64) {
    let factor = Factor::of_bits(cell.load(Ordering::Relaxed));
    cell.store(factor.observe(modelled_ms, observed_ms).bits(), Ordering::Relaxed);
}

/// What a request is weighed with.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub tokens: usize,
    pub now_s: f64,
    /// One byte per engine, 0 = may not be picked.
    pub eligible: &'a [u8],
    /// Engines that have its adapter, where it needs one.
    pub adapters: Option<&'a [u8]>,
    pub ask: Ask,
}

/// A request's share in the load of its engine, from `start` to `end`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stay {
    pub place: usize,
    pub leg: Leg,
    pub charge: Charge,
    pub started_s: f64,
    /// Modelled time to its first token, and per token after it.
    ttft_ms: f64,
    tpot_ms: f64,
    ttft_slo_ms: f64,
    /// When a decode leg was sent that had its engine's link for itself.
    sent_s: Option<f64>,
    /// When the first token came.
    first_s: Option<f64>,
}

pub struct Team {
    pub ledger: Arc<Ledger>,
    pub seats: Vec<Seat>,
    /// Tokens of an answer, in the mean of late.
    output: AtomicU64,
}

/// What one answer moves the mean length by.
const OUTPUT_RATE: f64 = 0.02;

impl Team {
    pub fn new(ledger: Arc<Ledger>, seats: Vec<Seat>, output: f64) -> Self {
        Self { ledger, seats, output: AtomicU64::new(output.max(1.0).to_bits()) }
    }

    pub fn output(&self) -> f64 {
        get_f64(&self.output)
    }

    /// Every engine's load.
    pub fn loads(&self, now_s: f64) -> Vec<Load> {
        self.seats.iter().map(|seat| self.ledger.load(seat.handle, now_s)).collect()
    }

    fn filter(&self, place: usize, question: &Question, load: &Load) -> Option<Filter> {
        let engine = &self.seats[place].engine;
        match () {
            _ if question.eligible[place] == 0 => Some(Filter::Masked),
            _ if question.adapters.is_some_and(|mask| mask[place] == 0) => Some(Filter::Lora),
            _ if engine.context > 0 && question.tokens as u64 >= engine.context => {
                Some(Filter::Context)
            }
            _ if engine.max_conns > 0 && load.inflight >= u64::from(engine.max_conns) => {
                Some(Filter::Full)
            }
            _ => None,
        }
    }

    /// Every engine's row. `known(place)`: what it has of the prompt, and all KV tokens known to be
    /// there; 0 = nothing is known, the largest number = its memory has no end.
    pub fn rows(&self, question: &Question, known: impl Fn(usize) -> (Overlap, u64)) -> Vec<Row> {
        let (engines, mut rows) = self.seen(question, known);
        cost::weigh(&engines, &mut rows, question.tokens as f64, &question.ask);
        rows
    }

    /// Where prefill and answer are made; `eligible` of the question is that of either.
    pub fn pair(
        &self,
        question: &Question,
        masks: Masks,
        how: (Force, u64),
        known: impl Fn(usize) -> (Overlap, u64),
    ) -> Option<Plan> {
        let (engines, mut rows) = self.seen(question, known);
        pair::decide(&engines, &mut rows, masks, question.tokens as f64, &question.ask, how)
    }

    /// Every engine and its row, not weighed yet.
    fn seen(
        &self,
        question: &Question,
        known: impl Fn(usize) -> (Overlap, u64),
    ) -> (Vec<Engine>, Vec<Row>) {
        let mut rows = Vec::with_capacity(self.seats.len());
        let mut engines = Vec::with_capacity(self.seats.len());
        for (place, seat) in self.seats.iter().enumerate() {
            let load = self.ledger.load(seat.handle, question.now_s);
            let filter = self.filter(place, question, &load);
            let (overlap, held) = known(place);
            let missing = (question.tokens as u64).saturating_sub(u64::from(overlap.total()));
            let full = held.saturating_add(missing) > seat.engine.capacity;
            let has_room = held == u64::MAX || (held > 0 && !full);
            rows.push(Row { overlap, load, filter, has_room, ..Row::default() });
            engines.push(seat.real());
        }
        (engines, rows)
    }

    /// Counts the request in at the engine of a row; `None`: it is not counted, as the engine was
    /// removed or this worker retired.
    pub fn start(
        &self,
        place: usize,
        row: &Row,
        tokens: usize,
        ask: &Ask,
        now_s: f64,
    ) -> Result<Option<Stay>, Fault> {
        let slo = ask.ttft_slo_ms;
        let ttft_ms = match row.leg {
            Leg::Decode => row.transfer_ms + row.tpot_ms,
            _ => row.ttft_ms,
        };
        let tokens = tokens as u64;
        let uncached = tokens.saturating_sub(u64::from(row.overlap.total()));
        let charge = Charge {
            prefill_us: (row.work_ms * 1e3) as u64,
            prefill_tokens: if row.leg == Leg::Decode { 0 } else { uncached },
            kv_tokens: tokens + if row.leg == Leg::Prefill { 0 } else { ask.output as u64 / 2 },
            transfer_us: (row.transfer_ms * 1e3) as u64,
            late: slo > 0.0 && row.ttft_ms > slo,
        };
        let counted = self.ledger.start(self.seats[place].handle, charge, now_s)?;
        Ok(counted.then_some(Stay {
            place,
            leg: row.leg,
            charge,
            started_s: now_s,
            ttft_ms,
            tpot_ms: row.tpot_ms,
            ttft_slo_ms: slo,
            sent_s: None,
            first_s: None,
        }))
    }

    /// The first token came.
    pub fn first(&self, stay: &mut Stay, now_s: f64) -> Result<bool, Fault> {
        if stay.first_s.replace(now_s).is_some() {
            return Ok(false);
        }
        let seat = &self.seats[stay.place];
        let seen_ms = (now_s - stay.started_s) * 1e3;
        let late = stay.ttft_slo_ms > 0.0 && seen_ms > stay.ttft_slo_ms;
        let engine = seat.real();
        let step_ms = engine.fit.work_ms(engine.chunk, 0.0, engine.chunk);
        let counted = self.ledger.first(seat.handle, stay.charge, late, now_s, step_ms)?;
        stay.charge.late = late;
        match (stay.leg, stay.sent_s) {
            (Leg::Decode, Some(sent_s)) => {
                learn(&seat.link, stay.ttft_ms, (now_s - sent_s) * 1e3);
            }
            (Leg::Decode, None) => {}
            _ => learn(&seat.prefill, stay.ttft_ms, seen_ms),
        }
        Ok(counted)
    }

    /// A decode leg is sent: its KV can be fetched from now on. Only a transfer that has the link for
    /// itself will teach how fast that is.
    pub fn sent(&self, stay: &mut Stay, now_s: f64) {
        let pending_ms = self.ledger.load(self.seats[stay.place].handle, now_s).transfer_ms;
        let own_ms = stay.charge.transfer_us as f64 * 1e-3;
        stay.sent_s = (pending_ms <= own_ms + 1.0).then_some(now_s);
    }

    /// The request is over; when, and how many tokens its answer had, may not be known.
    pub fn end(&self, stay: &Stay, now_s: Option<f64>, output: u64) -> Result<bool, Fault> {
        let seat = &self.seats[stay.place];
        if output > 0 && stay.leg != Leg::Prefill {
            let mean = self.output();
            set_f64(&self.output, mean + OUTPUT_RATE * (output as f64 - mean));
        }
        if let (Some(first_s), Some(now_s), true) = (stay.first_s, now_s, output > 1) {
            learn(&seat.decode, stay.tpot_ms * (output - 1) as f64, (now_s - first_s) * 1e3);
        }
        let stage = match (stay.first_s, now_s, output > 0) {
            (Some(_), ..) => Stage::Running,
            (None, Some(_), true) => Stage::Whole,
            _ => Stage::Waiting,
        };
        self.ledger.end(seat.handle, stay.charge, stage, now_s.unwrap_or(0.0))
    }
}
