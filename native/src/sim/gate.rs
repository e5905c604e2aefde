//! The gateways in a simulation: the index, ledger, load and cost that production runs.

use std::sync::Arc;

use super::announce;
use super::engine::Said;
use super::run::{Arrival, Placed, Router, STORE};
use super::trace::Trace;
use crate::cost::{self, Ask, Engine};
use crate::fit::Fit;
use crate::index::{Index, Overlap};
use crate::ledger::Ledger;
use crate::link::Link;
use crate::load::{Load, FADE_S};
use crate::pair::{Force, Masks, Seated};
use crate::roles::{self, Controller, Demand, Move, Role};
use crate::score::{Question, Seat, Stay, Team};

/// How the gateways see the engines.
#[derive(Debug, Clone)]
pub struct View {
    /// What they take an engine for.
    pub fit: Fit,
    pub chunk: f64,
    /// Tokens of a step, where engines differ; empty = `chunk`.
    pub chunks: Vec<u32>,
    pub link: Link,
    pub capacity: u64,
    /// 0 = none.
    pub ttft_slo_ms: f64,
    pub tpot_slo_ms: f64,
    pub overlap_weight: f64,
    /// Gateways count in one shared memory, as workers of one machine do; else each on its own.
    pub shared_load: bool,
    /// They know what is cached by events; else they look into the engines themselves.
    pub events: bool,
    /// What a token takes from the store that all engines reach; None: there is none.
    pub store_ms: Option<f64>,
    /// Prefill and answer may be made by different engines.
    pub duet: Option<Duet>,
}

/// What each engine may do, and who decides.
#[derive(Debug, Clone)]
pub struct Duet {
    pub roles: Vec<Role>,
    pub force: Force,
    /// Roles follow the load.
    pub elastic: Option<roles::Settings>,
}

/// Seconds that a routing decision counts as an announcement.
const PREDICTED_S: f64 = 5.0;
/// Seconds after the end of its request that it still does.
const SETTLED_S: f64 = 0.5;
/// How often roles are looked at.
const LOOK_S: f64 = 1.0;
const INDEX_BYTES: usize = 1 << 30;

/// One or several gateways. All of them hear the same events, so that one index will do.
pub struct Gate {
    teams: Vec<Team>,
    view: View,
    index: Index,
    slots: Vec<u16>,
    store: Option<u16>,
    payload: Vec<u8>,
    overlaps: Vec<Overlap>,
    /// Of rows, then of their prefill legs.
    stays: Vec<Option<(usize, Stay)>>,
    predictions: Vec<u64>,
    controller: Option<Controller>,
    /// Prompts of late, in a sum that fades; of when that is.
    prompts: (f64, f64),
    looked_s: f64,
    /// What moved, and when.
    pub moves: Vec<(f64, Move)>,
}

impl Gate {
    pub fn new(engines: usize, gateways: usize, rows: usize, view: View) -> Result<Self, String> {
        let engine = Engine {
            fit: view.fit,
            chunk: view.chunk,
            capacity: view.capacity,
            context: 0,
            max_conns: 0,
            fetch_ms: [view.store_ms.unwrap_or(0.0); 3],
            link: view.link,
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
            let seated = |(at, handle): (usize, _)| {
                let chunk = view.chunks.get(at).map_or(view.chunk, |&chunk| f64::from(chunk));
                Seat::new(handle, Engine { chunk, ..engine }, None)
            };
            let seats = handles?.into_iter().enumerate().map(seated);
            teams.push(Team::new(Arc::new(ledger), seats.collect(), cost::OUTPUT));
        }
        let index = Index::new(INDEX_BYTES, 1);
        let slots = (0..engines).map_while(|_| index.add_engine()).collect::<Vec<_>>();
        if slots.len() < engines {
            return Err(format!("the index has room for {} engines, not {engines}", slots.len()));
        }
        let store = view.store_ms.and_then(|_| index.add_store());
        slots.iter().for_each(|&slot| index.reach(slot, store));
        let (payload, overlaps) = Default::default();
        let (stays, predictions) = (vec![None; 2 * rows], vec![u64::MAX; rows]);
        let elastic = view.duet.as_ref().and_then(|duet| Some((duet.elastic?, duet.roles.clone())));
        let controller = elastic
            .map(|(settings, roles)| Controller::new(settings, roles, vec![true; engines]))
            .transpose()?;
        Ok(Self {
            teams,
            view,
            index,
            slots,
            store,
            payload,
            overlaps,
            stays,
            predictions,
            controller,
            prompts: (0.0, 0.0),
            looked_s: 0.0,
            moves: Vec::new(),
        })
    }

    /// Every engine's load, as each gateway sees it.
    pub fn loads(&self, now_s: f64) -> Vec<Load> {
        self.teams.iter().flat_map(|team| team.loads(now_s)).collect()
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
            let there = arrival.tokens(overlap.device + overlap.host);
            let predicted = arrival.tokens(overlap.total()) - there;
            let host = there - device;
            *overlap = Overlap { device, host, predicted, ..Overlap::default() };
        }
    }
}

impl Gate {
    /// What is asked, the engine's choice apart.
    fn ask(&self, arrival: &Arrival) -> Ask {
        Ask {
            overlap_weight: self.view.overlap_weight,
            ttft_slo_ms: self.view.ttft_slo_ms,
            tpot_slo_ms: self.view.tpot_slo_ms,
            output: self.teams[arrival.gateway].output(),
            session_place: None,
        }
    }

    /// All KV tokens known to be at an engine.
    fn held(&self, arrival: &Arrival, at: usize) -> u64 {
        match arrival.shared {
            // An endless cache has room for anything.
            Some(_) => u64::MAX,
            None if self.view.events => {
                self.index.sizes(self.slots[at]).tokens * u64::from(arrival.trace.block)
            }
            None => arrival.engines[at].cache.resident(),
        }
    }

    /// Lets the controller look at the load, every now and then.
    fn steer(&mut self, now_s: f64) {
        let (prompts, at_s) = self.prompts;
        self.prompts = (prompts * ((at_s - now_s) / FADE_S).exp() + 1.0, now_s);
        let (Some(controller), Some(duet)) = (&mut self.controller, &mut self.view.duet) else {
            return;
        };
        if now_s < self.looked_s + LOOK_S {
            return;
        }
        self.looked_s = now_s;
        let loads = self.teams[0].loads(now_s);
        let demand = Demand::of(&loads, self.prompts.0 / FADE_S);
        if let Some(moved) = controller.look(&loads, &demand, &self.view.fit, now_s) {
            self.moves.push((now_s, moved));
            duet.roles.clear();
            duet.roles.extend_from_slice(controller.roles());
        }
    }

    /// What was decided counts as an announcement for a while.
    fn predict(&mut self, arrival: &Arrival, at: usize) {
        if self.view.events && arrival.shared.is_none() {
            let prompt = announce::prompt(arrival.trace, arrival.row);
            self.predictions[arrival.row] =
                self.index.predict(self.slots[at], &prompt, arrival.now_s, PREDICTED_S);
        }
    }

    fn choose(&mut self, arrival: &Arrival) -> Option<(Seated, Option<Seated>)> {
        self.look(arrival);
        self.steer(arrival.now_s);
        let team = &self.teams[arrival.gateway];
        let every = vec![1; team.seats.len()];
        let question = Question {
            tokens: arrival.input() as usize,
            now_s: arrival.now_s,
            eligible: &every,
            adapters: None,
            ask: self.ask(arrival),
        };
        let known = |at: usize| (self.overlaps[at], self.held(arrival, at));
        let Some(duet) = &self.view.duet else {
            let rows = team.rows(&question, known);
            return cost::cheapest(&rows, arrival.seed).map(|at| ((at, rows[at]), None));
        };
        let mask = |may: fn(Role) -> bool| {
            duet.roles.iter().map(|&role| u8::from(may(role))).collect::<Vec<u8>>()
        };
        let (prefill, decode) = (mask(Role::may_prefill), mask(Role::may_decode));
        let masks = Masks { prefill: &prefill, decode: &decode };
        let plan = team.pair(&question, masks, (duet.force, arrival.seed), known)?;
        Some((plan.decode, plan.prefill))
    }

    fn start(&self, arrival: &Arrival, (at, row): &Seated) -> Option<(usize, Stay)> {
        let (tokens, ask) = (arrival.input() as usize, self.ask(arrival));
        let team = &self.teams[arrival.gateway];
        let stay = team.start(*at, row, tokens, &ask, arrival.now_s).ok().flatten();
        stay.map(|stay| (arrival.gateway, stay))
    }
}

impl Router for Gate {
    fn pick(&mut self, arrival: &Arrival) -> usize {
        self.place(arrival).decode
    }

    fn place(&mut self, arrival: &Arrival) -> Placed {
        let Some((decode, prefill)) = self.choose(arrival) else {
            return Placed { decode: 0, prefill: None };
        };
        let leg = self.stays.len() / 2 + arrival.row;
        self.stays[leg] = prefill.and_then(|seated| self.start(arrival, &seated));
        self.stays[arrival.row] = self.start(arrival, &decode);
        self.predict(arrival, prefill.unwrap_or(decode).0);
        Placed { decode: decode.0, prefill: prefill.map(|(at, _)| at) }
    }

    fn prefilled(&mut self, row: usize, now_s: f64) {
        let leg = self.stays.len() / 2 + row;
        if let Some((gateway, mut stay)) = self.stays[leg].take() {
            let _ = self.teams[gateway].first(&mut stay, now_s);
            let _ = self.teams[gateway].end(&stay, Some(now_s), 1);
        }
        if let Some((gateway, stay)) = &mut self.stays[row] {
            self.teams[*gateway].sent(stay, now_s);
        }
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
        if !self.view.events {
            return;
        }
        if engine == STORE {
            announce::kept(trace, said, now_s, &mut self.payload);
            self.store.iter().for_each(|&store| drop(self.index.apply(store, &self.payload)));
        } else {
            announce::batch(trace, said, now_s, &mut self.payload);
            self.index.apply(self.slots[engine], &self.payload);
        }
    }
}
