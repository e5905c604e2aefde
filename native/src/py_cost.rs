//! Python's view of the cost: who is cheapest for a request, why, and the load it brings.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::cost::{self, Engine, Filter, Row as CostRow, Terms};
use crate::fit::{self, builtin};
use crate::load::Charge;
use crate::pick;
use crate::py_ledger::Ledger;
use crate::py_prompt::Prompt;
use crate::py_shared::value_error;
use crate::score::{Seat, Team};
use crate::slots::Handle;

/// Step-time constants and sizes of a kind of engine: a built-in profile, with changes.
#[pyclass(frozen, module = "native._core")]
pub struct Fit {
    pub profile: fit::Profile,
}

#[pymethods]
impl Fit {
    /// `profile` None: the neutral one. `changes`: constants by name (base, a0, b, c, hb, hk, ovh; ms) in place of the profile's;
    /// `chunk_tokens` 0 = the profile's. ValueError for a name or value that cannot be.
    #[new]
    #[pyo3(signature = (profile=None, changes=None, chunk_tokens=0))]
    fn new(
        profile: Option<&str>,
        changes: Option<Vec<(String, f64)>>,
        chunk_tokens: u64,
    ) -> PyResult<Self> {
        let mut profile = *builtin(profile.unwrap_or(fit::NEUTRAL)).map_err(value_error)?;
        let mut values = profile.fit.values();
        for (name, value) in changes.unwrap_or_default() {
            let at = fit::Fit::NAMES.iter().position(|known| *known == name);
            let at = at.ok_or_else(|| value_error(format!("a fit has no constant `{name}`")))?;
            values[at] = value;
        }
        profile.fit = fit::Fit::of(values).map_err(value_error)?;
        if chunk_tokens > 0 {
            profile.chunk_tokens = chunk_tokens;
        }
        Ok(Self { profile })
    }

    /// Names of the built-in profiles.
    #[staticmethod]
    fn profiles() -> Vec<&'static str> {
        fit::PROFILES.iter().map(|profile| profile.name).collect()
    }

    #[getter]
    fn kv_tokens(&self) -> u64 {
        self.profile.kv_tokens
    }

    #[getter]
    fn kv_bytes_per_token(&self) -> u64 {
        self.profile.kv_bytes_per_token
    }

    #[getter]
    fn chunk_tokens(&self) -> u64 {
        self.profile.chunk_tokens
    }

    /// (name, ms) of every constant.
    fn values(&self) -> Vec<(&'static str, f64)> {
        fit::Fit::NAMES.into_iter().zip(self.profile.fit.values()).collect()
    }

    /// Milliseconds to compute `n` prompt tokens behind `p` that are cached, on an idle engine.
    #[pyo3(signature = (n, p=0))]
    fn prefill_ms(&self, n: u64, p: u64) -> f64 {
        self.profile.fit.prefill_ms(n as f64, p as f64, self.profile.chunk_tokens as f64)
    }

    /// Milliseconds between tokens of `requests` that hold `kv_tokens` in sum.
    fn decode_ms(&self, requests: u64, kv_tokens: u64) -> f64 {
        self.profile.fit.decode_ms(requests as f64, kv_tokens as f64)
    }
}

/// What a request asks of the decision; None in its place asks for nothing.
#[pyclass(frozen, module = "native._core")]
pub struct Ask {
    inner: cost::Ask,
    available: Option<Vec<u8>>,
}

#[pymethods]
impl Ask {
    /// `session_place`: where its session was last; `available`: a mask of the engines that have its adapter.
    #[new]
    #[pyo3(signature = (*, overlap_weight=1.0, ttft_slo_ms=0.0, tpot_slo_ms=0.0, session_place=None, available=None))]
    fn new(
        overlap_weight: f64,
        ttft_slo_ms: f64,
        tpot_slo_ms: f64,
        session_place: Option<usize>,
        available: Option<Vec<u8>>,
    ) -> Self {
        Self {
            inner: cost::Ask { overlap_weight, ttft_slo_ms, tpot_slo_ms, session_place },
            available,
        }
    }
}

/// One engine as a decision saw it: tokens by tier, milliseconds by term, why it was left out.
#[pyclass(frozen, get_all, module = "native._core")]
#[derive(Clone)]
pub struct Row {
    place: usize,
    /// "" where it was weighed, else masked, lora, context or full.
    filtered: &'static str,
    device: u32,
    host: u32,
    disk: u32,
    remote: u32,
    predicted: u32,
    /// Prompt tokens it would have to compute.
    uncached: u64,
    cost_ms: f64,
    /// By name: drain, own, fetch, ext, repl, session.
    terms: Vec<(&'static str, f64)>,
    waiting: u64,
    running: u64,
    kv_tokens: u64,
    /// Modelled time to the first token.
    ttft_ms: f64,
}

impl Row {
    fn of(place: usize, row: &CostRow, tokens: usize) -> Self {
        let overlap = row.overlap;
        Self {
            place,
            filtered: row.filter.map_or("", |filter: Filter| Filter::NAMES[filter as usize]),
            device: overlap.device,
            host: overlap.host,
            disk: overlap.disk,
            remote: overlap.remote,
            predicted: overlap.predicted,
            uncached: (tokens as u64).saturating_sub(u64::from(overlap.total())),
            cost_ms: row.terms.sum(),
            terms: Terms::NAMES.into_iter().zip(row.terms.values()).collect(),
            waiting: row.load.waiting,
            running: row.load.running(),
            kv_tokens: row.load.kv_tokens,
            ttft_ms: row.load.drain_ms + row.work_ms,
        }
    }
}

/// The engines of one team, weighed for requests by what they have cached and how busy they are.
#[pyclass(frozen, module = "native._core")]
pub struct Scorer {
    team: Arc<Team>,
}

impl Scorer {
    fn rows(
        &self,
        prompt: &Prompt,
        eligible: &[u8],
        now: f64,
        ask: Option<&Ask>,
    ) -> PyResult<Vec<CostRow>> {
        let engines = self.team.seats.len();
        pick::check_mask(eligible, engines).map_err(value_error)?;
        let available = ask.and_then(|ask| ask.available.as_deref());
        if let Some(mask) = available {
            pick::check_mask(mask, engines).map_err(value_error)?;
        }
        let inner = ask.map_or_else(Default::default, |ask| ask.inner);
        Ok(self.team.rows(&prompt.inner, [Some(eligible), available], now, &inner))
    }

    fn choice(&self, prompt: &Prompt, rows: &[CostRow], place: usize) -> Choice {
        let tokens = prompt.inner.tokens();
        let charge = self.team.charge(&rows[place], tokens, 0);
        let other = |at: &usize| *at != place && rows[*at].filter.is_none();
        let sum = |at: usize| rows[at].terms.sum();
        let next = (0..rows.len()).filter(other).min_by(|&a, &b| sum(a).total_cmp(&sum(b)));
        Choice {
            row: Row::of(place, &rows[place], tokens),
            runner_up: next.map(|at| (at, sum(at))),
            team: self.team.clone(),
            charge,
        }
    }
}

#[pymethods]
impl Scorer {
    /// Columns of one length, an entry per engine: handles of the ledger, slots of the index (-1 = it
    /// is not indexed), weights (twice the weight = twice as fast), limits of requests (0 = none),
    /// fits, KV tokens (0 = the fit's) and the longest context (0 = not known).
    #[new]
    #[pyo3(signature = (ledger, index, engines, slots, weights, max_conns, fits, capacity_tokens, context_tokens=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        ledger: &Ledger,
        index: Bound<'_, PyAny>,
        engines: Vec<u64>,
        slots: Vec<i32>,
        weights: Vec<u32>,
        max_conns: Vec<u32>,
        fits: Vec<PyRef<'_, Fit>>,
        capacity_tokens: Vec<u64>,
        context_tokens: Option<Vec<u64>>,
    ) -> PyResult<Self> {
        let _ = index;
        let count = engines.len();
        let context = context_tokens.unwrap_or_else(|| vec![0; count]);
        let lengths = [
            slots.len(),
            weights.len(),
            max_conns.len(),
            fits.len(),
            capacity_tokens.len(),
            context.len(),
        ];
        if lengths != [count; 6] {
            return Err(value_error(format!(
                "the columns of {count} engines have {lengths:?} entries"
            )));
        }
        pick::check_weights(&weights).map_err(value_error)?;
        let least = weights.iter().copied().min().unwrap_or(1);
        let mut seats = Vec::with_capacity(count);
        for at in 0..count {
            let profile = fits[at].profile;
            let engine = Engine {
                fit: profile.fit.scaled(f64::from(least) / f64::from(weights[at])),
                chunk: profile.chunk_tokens as f64,
                capacity: if capacity_tokens[at] > 0 {
                    capacity_tokens[at]
                } else {
                    profile.kv_tokens
                },
                context: context[at],
                max_conns: max_conns[at],
                fetch_ms: profile.fetch_ms(),
            };
            let slot = u16::try_from(slots[at]).unwrap_or(u16::MAX);
            seats.push(Seat { handle: ledger.handle(engines[at])?, slot, engine });
        }
        Ok(Self { team: Arc::new(Team::new(ledger.core.clone(), seats)) })
    }

    fn __len__(&self) -> usize {
        self.team.seats.len()
    }

    /// The cheapest eligible engine, None where there is none. `eligible`: one byte per engine, 0 =
    /// may not be picked. `now`: monotonic seconds, the same clock in all workers. Ties by `seed`.
    #[pyo3(signature = (prompt, eligible, now, seed, ask=None))]
    fn select(
        &self,
        prompt: &Prompt,
        eligible: &[u8],
        now: f64,
        seed: u64,
        ask: Option<&Ask>,
    ) -> PyResult<Option<Choice>> {
        let rows = self.rows(prompt, eligible, now, ask)?;
        Ok(cost::cheapest(&rows, seed).map(|place| self.choice(prompt, &rows, place)))
    }

    /// The same for an engine that was chosen by other means, so that its load is counted alike.
    #[pyo3(signature = (place, prompt, now, ask=None))]
    fn at(&self, place: usize, prompt: &Prompt, now: f64, ask: Option<&Ask>) -> PyResult<Choice> {
        let rows = self.rows(prompt, &vec![1; self.team.seats.len()], now, ask)?;
        match place < rows.len() {
            true => Ok(self.choice(prompt, &rows, place)),
            false => Err(value_error(format!("there is no engine {place} of {}", rows.len()))),
        }
    }

    /// What `select` weighs, every engine in its place.
    #[pyo3(signature = (prompt, eligible, now, ask=None))]
    fn explain(
        &self,
        prompt: &Prompt,
        eligible: &[u8],
        now: f64,
        ask: Option<&Ask>,
    ) -> PyResult<Vec<Row>> {
        let rows = self.rows(prompt, eligible, now, ask)?;
        let tokens = prompt.inner.tokens();
        Ok(rows.iter().enumerate().map(|(place, row)| Row::of(place, row, tokens)).collect())
    }
}

/// A decision. Nothing is counted until `start`.
#[pyclass(frozen, module = "native._core")]
pub struct Choice {
    row: Row,
    runner_up: Option<(usize, f64)>,
    team: Arc<Team>,
    charge: Charge,
}

#[pymethods]
impl Choice {
    #[getter]
    fn place(&self) -> usize {
        self.row.place
    }

    /// The engine's row: matched tokens, terms, load.
    #[getter]
    fn row(&self) -> Row {
        self.row.clone()
    }

    #[getter]
    fn cost_ms(&self) -> f64 {
        self.row.cost_ms
    }

    /// Prompt tokens taken to be cached there, predicted ones included.
    #[getter]
    fn matched(&self) -> u32 {
        let row = &self.row;
        row.device + row.host + row.disk + row.remote + row.predicted
    }

    #[getter]
    fn uncached(&self) -> u64 {
        self.row.uncached
    }

    /// (place, cost in ms) of the second cheapest; None where there is none.
    #[getter]
    fn runner_up(&self) -> Option<(usize, f64)> {
        self.runner_up
    }

    /// Counts the request in at its engine, in place of `Ledger.acquire`.
    fn start(&self, now: f64) -> PyResult<Ticket> {
        let handle = self.team.seats[self.row.place].handle;
        let counted = self.team.ledger.start(handle, self.charge, now)?;
        Ok(Ticket {
            team: self.team.clone(),
            place: self.row.place,
            handle,
            charge: self.charge,
            stage: Mutex::new(if counted { Stage::Waiting } else { Stage::Over }),
        })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Waiting,
    Running,
    Over,
}

/// A request in flight, counted at its engine: `first` at its first token, `end` when it is over, whatever
/// the outcome. Ends by itself when nobody holds it any more, so that no count leaks.
#[pyclass(frozen, module = "native._core")]
pub struct Ticket {
    team: Arc<Team>,
    place: usize,
    handle: Handle,
    charge: Charge,
    stage: Mutex<Stage>,
}

impl Ticket {
    fn step(&self, to: Stage) -> Stage {
        let mut stage = self.stage.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = *stage;
        if before != Stage::Over {
            *stage = to;
        }
        before
    }

    fn over(&self, now: Option<f64>) -> PyResult<bool> {
        let before = self.step(Stage::Over);
        if before == Stage::Over {
            return Ok(false);
        }
        let waiting = before == Stage::Waiting;
        Ok(self.team.ledger.end(self.handle, self.charge, now.unwrap_or(f64::NAN), waiting)?)
    }
}

#[pymethods]
impl Ticket {
    #[getter]
    fn place(&self) -> usize {
        self.place
    }

    /// The first token came: its prefill is done. False: it had come, or the request is over.
    fn first(&self, now: f64) -> PyResult<bool> {
        if self.step(Stage::Running) != Stage::Waiting {
            return Ok(false);
        }
        let step_ms = self.team.step_ms(self.place);
        Ok(self.team.ledger.first(self.handle, self.charge, now, step_ms)?)
    }

    /// The request is over. `output_tokens`: of its answer, None = not known. False: it was over.
    #[pyo3(signature = (now, output_tokens=None))]
    fn end(&self, now: f64, output_tokens: Option<u64>) -> PyResult<bool> {
        let _ = output_tokens;
        self.over(Some(now))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = self.over(None);
    }
}
