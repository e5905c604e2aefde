//! The engines of one team, weighed for a request: index, ledger, fits and what was learnt of them.
//!
//! One team belongs to one worker. What it learns (how much slower each engine is than its fit, how
//! long answers are) is its own; the load it reads is that of all workers.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use crate::cost::{self, Ask, Engine, Filter, Overlap, Row};
use crate::ledger::Ledger;
use crate::load::{Charge, Load};
use crate::shared::{get_f64, set_f64, Fault};
use crate::slots::Handle;
use crate::speed;

/// One engine's place.
pub struct Seat {
    pub handle: Handle,
    /// In the index; `u16::MAX` = it is not indexed.
    pub slot: u16,
    pub engine: Engine,
    /// How much slower it is than its fit: prefill and all that goes with it.
    speed: AtomicU64,
}

impl Seat {
    pub fn new(handle: Handle, slot: u16, engine: Engine, speed: f64) -> Self {
        let speed = speed.clamp(speed::LEAST, speed::MOST);
        Self { handle, slot, engine, speed: AtomicU64::new(speed.to_bits()) }
    }

    pub fn speed(&self) -> f64 {
        get_f64(&self.speed)
    }

    /// The engine as it has proved to be.
    fn real(&self) -> Engine {
        Engine { fit: self.engine.fit.scaled(self.speed()), ..self.engine }
    }
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
    pub charge: Charge,
    pub started_s: f64,
    /// Modelled time to its first token.
    pub ttft_ms: f64,
    pub ttft_slo_ms: f64,
    waiting: bool,
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
    /// there; 0 = nothing is known.
    pub fn rows(&self, question: &Question, known: impl Fn(usize) -> (Overlap, u64)) -> Vec<Row> {
        let mut rows = Vec::with_capacity(self.seats.len());
        let mut engines = Vec::with_capacity(self.seats.len());
        for (place, seat) in self.seats.iter().enumerate() {
            let load = self.ledger.load(seat.handle, question.now_s);
            let filter = self.filter(place, question, &load);
            let (overlap, held) = known(place);
            let missing = (question.tokens as u64).saturating_sub(u64::from(overlap.total()));
            let has_room = held > 0 && held + missing <= seat.engine.capacity;
            rows.push(Row { overlap, load, filter, has_room, ..Row::default() });
            engines.push(seat.real());
        }
        cost::weigh(&engines, &mut rows, question.tokens as f64, &question.ask);
        rows
    }

    /// Counts the request in at the engine of a row; `None`: it is not counted, as the engine was
    /// removed or this worker retired.
    pub fn start(
        &self,
        place: usize,
        row: &Row,
        question: &Question,
        now_s: f64,
    ) -> Result<Option<Stay>, Fault> {
        let slo = question.ask.ttft_slo_ms;
        let total = u64::from(row.overlap.total());
        let charge = Charge {
            prefill_us: (row.work_ms * 1e3) as u64,
            prefill_tokens: (question.tokens as u64).saturating_sub(total),
            kv_tokens: question.tokens as u64 + question.ask.output as u64 / 2,
            late: slo > 0.0 && row.ttft_ms > slo,
        };
        let counted = self.ledger.start(self.seats[place].handle, charge, now_s)?;
        Ok(counted.then_some(Stay {
            place,
            charge,
            started_s: now_s,
            ttft_ms: row.ttft_ms,
            ttft_slo_ms: slo,
            waiting: true,
        }))
    }

    /// The first token came.
    pub fn first(&self, stay: &mut Stay, now_s: f64) -> Result<bool, Fault> {
        if !std::mem::take(&mut stay.waiting) {
            return Ok(false);
        }
        let seat = &self.seats[stay.place];
        let seen_ms = (now_s - stay.started_s) * 1e3;
        let late = stay.ttft_slo_ms > 0.0 && seen_ms > stay.ttft_slo_ms;
        let engine = seat.real();
        let step_ms = engine.fit.work_ms(engine.chunk, 0.0, engine.chunk);
        let counted = self.ledger.first(seat.handle, stay.charge, late, now_s, step_ms)?;
        stay.charge.late = late;
        set_f64(&seat.speed, speed::observe(seat.speed(), stay.ttft_ms, seen_ms));
        Ok(counted)
    }

    /// The request is over; `output` = tokens of its answer, where they are known.
    pub fn end(&self, stay: &Stay, now_s: f64, output: Option<u64>) -> Result<bool, Fault> {
        if let Some(tokens) = output.filter(|&tokens| tokens > 0) {
            let mean = self.output();
            set_f64(&self.output, mean + OUTPUT_RATE * (tokens as f64 - mean));
        }
        self.ledger.end(self.seats[stay.place].handle, stay.charge, stay.waiting, now_s)
    }

    /// How much slower each engine is than its fit.
    pub fn speeds(&self) -> Vec<f64> {
        self.seats.iter().map(Seat::speed).collect()
    }
}
