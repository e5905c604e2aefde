//! The gateway in a simulation: the ledger, the load and the cost that production runs.

use std::sync::Arc;

use super::run::{Arrival, Router};
use super::trace::Trace;
use crate::cost::{self, Ask, Engine};
use crate::fit::Fit;
use crate::index::Overlap;
use crate::ledger::Ledger;
use crate::score::{Question, Seat, Stay, Team};

/// How the gateways see the engines.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// What they take an engine for.
    pub fit: Fit,
    pub chunk: f64,
    pub capacity: u64,
    /// 0 = none.
    pub ttft_slo_ms: f64,
    pub tpot_slo_ms: f64,
    /// Gateways count in one shared memory, as workers of one machine do; else each on its own.
    pub shared_load: bool,
}

/// One or several gateways.
pub struct Gate {
    teams: Vec<Team>,
    view: View,
    stays: Vec<Option<(usize, Stay)>>,
}

impl Gate {
    pub fn new(engines: usize, gateways: usize, rows: usize, view: View) -> Result<Self, String> {
        let mut teams = Vec::with_capacity(gateways);
        let mut fd = None;
        let mut handles = Vec::new();
        for at in 0..gateways {
            let ledger = Ledger::open(gateways, engines, fd)?;
            ledger.shared.bind(at)?;
            if fd.is_none() {
                handles =
                    (0..engines).map(|_| ledger.add_engine()).collect::<Result<Vec<_>, _>>()?;
            }
            if view.shared_load {
                fd = Some(
                    teams.first().map_or(ledger.shared.fd(), |team: &Team| team.ledger.shared.fd()),
                );
            }
            let engine = Engine {
                fit: view.fit,
                chunk: view.chunk,
                capacity: view.capacity,
                context: 0,
                max_conns: 0,
                fetch_ms: [0.0; 3],
            };
            let seats = handles.iter().map(|&handle| Seat::new(handle, engine, None));
            teams.push(Team::new(Arc::new(ledger), seats.collect(), cost::OUTPUT));
        }
        Ok(Self { teams, view, stays: vec![None; rows] })
    }
}

impl Router for Gate {
    fn pick(&mut self, arrival: &Arrival) -> usize {
        let team = &self.teams[arrival.gateway];
        let ask = Ask {
            ttft_slo_ms: self.view.ttft_slo_ms,
            tpot_slo_ms: self.view.tpot_slo_ms,
            output: team.output(),
            ..Ask::default()
        };
        let eligible = vec![1; team.seats.len()];
        let question = Question {
            tokens: arrival.input() as usize,
            now_s: arrival.now_s,
            eligible: &eligible,
            adapters: None,
            ask,
        };
        let mut rows = team.rows(&question, |at| {
            let overlap = Overlap { device: arrival.cached(at), ..Overlap::default() };
            let held =
                if arrival.options.shared { 1 } else { arrival.engines[at].cache.resident() };
            (overlap, held)
        });
        if arrival.options.shared {
            rows.iter_mut().for_each(|row| row.has_room = true);
        }
        let at = cost::cheapest(&rows, arrival.seed).unwrap_or(0);
        let stay = team.start(at, &rows[at], question.tokens, &ask, arrival.now_s).ok().flatten();
        self.stays[arrival.row] = stay.map(|stay| (arrival.gateway, stay));
        at
    }

    fn first(&mut self, row: usize, _engine: usize, now_s: f64) {
        if let Some((gateway, stay)) = &mut self.stays[row] {
            let _ = self.teams[*gateway].first(stay, now_s);
        }
    }

    fn done(&mut self, trace: &Trace, row: usize, _engine: usize, now_s: f64) {
        if let Some((gateway, stay)) = self.stays[row].take() {
            let output = u64::from(trace.rows[row].output);
            let _ = self.teams[gateway].end(&stay, Some(now_s), output);
        }
    }
}
