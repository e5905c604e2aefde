//! The gateways in a simulation: the index, ledger, load and cost that production runs.

use std::sync::Arc;

use super::announce;
use super::engine::Said;
use super::run::{Arrival, Router};
use super::trace::Trace;
use crate::cost::{self, Ask, Engine};
use crate::fit::Fit;
use crate::index::{Index, Overlap};
use crate::ledger::Ledger;
use crate::load::Load;
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
    pub overlap_weight: f64,
    /// Gateways count in one shared memory, as workers of one machine do; else each on its own.
    pub shared_load: bool,
    /// They know what is cached by events; else they look into the engines themselves.
    pub events: bool,
}

/// Seconds that a routing decision counts as an announcement.
const PREDICTED_S: f64 = 5.0;
/// Seconds after the end of its request that it still does.
const SETTLED_S: f64 = 0.5;
const INDEX_BYTES: usize = 1 << 30;

/// One or several gateways. All of them hear the same events, so that one index will do.
pub struct Gate {
    teams: Vec<Team>,
    view: View,
    index: Index,
    slots: Vec<u16>,
    payload: Vec<u8>,
    overlaps: Vec<Overlap>,
    stays: Vec<Option<(usize, Stay)>>,
    predictions: Vec<u64>,
}

impl Gate {
    pub fn new(engines: usize, gateways: usize, rows: usize, view: View) -> Result<Self, String> {
        let engine = Engine {
            fit: view.fit,
            chunk: view.chunk,
            capacity: view.capacity,
            context: 0,
            max_conns: 0,
            fetch_ms: [0.0; 3],
        };
        let mut teams: Vec<Team> = Vec::with_capacity(gateways);
        for at in 0..gateways {
            let first = teams.first().filter(|_| view.shared_load);
            let ledger =
                Ledger::open(gateways, engines, first.map(|team| team.ledger.shared.fd()))?;
            ledger.shared.bind(at)?;
            let handles: Result<Vec<_>, _> = match first {
                Some(team) => Ok(team.seats.iter().map(|seat| seat.handle).collect()),
                None => (0..engines).map(|_| ledger.add_engine()).collect(),
            };
            let seats = handles?.into_iter().map(|handle| Seat::new(handle, engine, None));
            teams.push(Team::new(Arc::new(ledger), seats.collect(), cost::OUTPUT));
        }
        let index = Index::new(INDEX_BYTES, 1);
        let slots = (0..engines).map_while(|_| index.add_engine()).collect::<Vec<_>>();
        if slots.len() < engines {
            return Err(format!("the index has room for {} engines, not {engines}", slots.len()));
        }
        let (payload, overlaps) = Default::default();
        let (stays, predictions) = (vec![None; rows], vec![u64::MAX; rows]);
        Ok(Self { teams, view, index, slots, payload, overlaps, stays, predictions })
    }

    /// Every engine's load, as each gateway sees it.
    pub fn loads(&self, now_s: f64) -> Vec<Load> {
        let seats = self.teams.iter().flat_map(|team| team.seats.iter().map(move |s| (team, s)));
        seats.map(|(team, seat)| team.ledger.load(seat.handle, now_s)).collect()
    }

    /// What each engine has of the arrival's prompt, in tokens.
    fn look(&mut self, arrival: &Arrival) {
        let engines = 0..self.slots.len();
        if !self.view.events || arrival.shared.is_some() {
            let seen =
                engines.map(|at| Overlap { device: arrival.cached(at), ..Overlap::default() });
            self.overlaps = seen.collect();
            return;
        }
        let prompt = announce::prompt(arrival.trace, arrival.row);
        self.index.lookup(&prompt, &self.slots, arrival.now_s, &mut self.overlaps);
        for overlap in &mut self.overlaps {
            let device = arrival.tokens(overlap.device);
            let total = arrival.tokens(overlap.total());
            *overlap = Overlap { device, predicted: total - device, ..Overlap::default() };
        }
    }
}

impl Router for Gate {
    fn pick(&mut self, arrival: &Arrival) -> usize {
        self.look(arrival);
        let team = &self.teams[arrival.gateway];
        let ask = Ask {
            overlap_weight: self.view.overlap_weight,
            ttft_slo_ms: self.view.ttft_slo_ms,
            tpot_slo_ms: self.view.tpot_slo_ms,
            output: team.output(),
            session_place: None,
        };
        let tokens = arrival.input() as usize;
        let question = Question {
            tokens,
            now_s: arrival.now_s,
            eligible: &vec![1; team.seats.len()],
            adapters: None,
            ask,
        };
        let block = u64::from(arrival.trace.block);
        let rows = team.rows(&question, |at| {
            let held = match arrival.shared {
                // An endless cache has room for anything.
                Some(_) => u64::MAX,
                None if self.view.events => self.index.sizes(self.slots[at]).tokens * block,
                None => arrival.engines[at].cache.resident(),
            };
            (self.overlaps[at], held)
        });
        let at = cost::cheapest(&rows, arrival.seed).unwrap_or(0);
        let stay = team.start(at, &rows[at], tokens, &ask, arrival.now_s).ok().flatten();
        self.stays[arrival.row] = stay.map(|stay| (arrival.gateway, stay));
        if self.view.events && arrival.shared.is_none() {
            let prompt = announce::prompt(arrival.trace, arrival.row);
            self.predictions[arrival.row] =
                self.index.predict(self.slots[at], &prompt, arrival.now_s, PREDICTED_S);
        }
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
            self.index.settle(self.predictions[row], now_s + SETTLED_S);
        }
    }

    fn event(&mut self, trace: &Trace, engine: usize, said: Said, now_s: f64) {
        if self.view.events {
            announce::batch(trace, said, now_s, &mut self.payload);
            self.index.apply(self.slots[engine], &self.payload);
        }
    }
}
