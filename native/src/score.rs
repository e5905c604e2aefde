//! The engines of one team, weighed for a request: index, ledger and cost put together.

use std::sync::Arc;

use crate::cost::{self, Ask, Engine, Filter, Overlap, Row, Terms};
use crate::ledger::Ledger;
use crate::load::{Charge, Load};
use crate::prompt::Prompt;
use crate::slots::Handle;

/// One engine's place.
pub struct Seat {
    pub handle: Handle,
    /// In the index; `u16::MAX` = it is not indexed.
    pub slot: u16,
    pub engine: Engine,
}

pub struct Team {
    pub ledger: Arc<Ledger>,
    pub seats: Vec<Seat>,
    engines: Vec<Engine>,
}

impl Team {
    pub fn new(ledger: Arc<Ledger>, seats: Vec<Seat>) -> Self {
        let engines = seats.iter().map(|seat| seat.engine).collect();
        Self { ledger, seats, engines }
    }

    fn filter(
        &self,
        place: usize,
        tokens: usize,
        load: &Load,
        masks: [Option<&[u8]>; 2],
    ) -> Option<Filter> {
        let engine = &self.engines[place];
        let has = |mask: Option<&[u8]>| mask.is_none_or(|mask| mask[place] != 0);
        match () {
            _ if !has(masks[0]) => Some(Filter::Masked),
            _ if !has(masks[1]) => Some(Filter::Lora),
            _ if engine.context > 0 && tokens as u64 >= engine.context => Some(Filter::Context),
            _ if engine.max_conns > 0 && load.inflight >= u64::from(engine.max_conns) => {
                Some(Filter::Full)
            }
            _ => None,
        }
    }

    /// Every engine's row. `masks`: one byte per engine, 0 = may not be picked: the caller's, and of
    /// those that have the request's adapter.
    pub fn rows(
        &self,
        prompt: &Prompt,
        masks: [Option<&[u8]>; 2],
        now_s: f64,
        ask: &Ask,
    ) -> Vec<Row> {
        let tokens = prompt.tokens();
        let overlaps = vec![Overlap::default(); self.seats.len()];
        let mut rows: Vec<Row> = Vec::with_capacity(self.seats.len());
        for (place, overlap) in overlaps.into_iter().enumerate() {
            let load = self.ledger.load(self.seats[place].handle, now_s);
            let filter = self.filter(place, tokens, &load, masks);
            rows.push(Row { overlap, load, filter, terms: Terms::default(), work_ms: 0.0 });
        }
        cost::weigh(&self.engines, &mut rows, tokens as f64, ask);
        rows
    }

    /// What sending the request to a place would charge.
    pub fn charge(&self, row: &Row, tokens: usize, output: u64) -> Charge {
        Charge {
            prefill_us: (row.work_ms * 1e3) as u64,
            prefill_tokens: (tokens as u64).saturating_sub(u64::from(row.overlap.total())),
            kv_tokens: tokens as u64 + output / 2,
        }
    }

    /// The work of a full step, which bounds how far behind a first token others can be.
    pub fn step_ms(&self, place: usize) -> f64 {
        let engine = &self.engines[place];
        engine.fit.prefill_ms(engine.chunk, 0.0, engine.chunk)
    }
}
