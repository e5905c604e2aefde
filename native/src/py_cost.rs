//! Python's view of the cost: who is cheapest for a request, and why.

use std::cell::RefCell;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::cost::{self, Engine, Filter, Terms};
use crate::index::{self, Overlap};
use crate::pair::Masks;
use crate::pick;
use crate::py_fit::Fit;
use crate::py_index::Index;
use crate::py_ledger::Ledger;
use crate::py_pair::{self, Pair};
use crate::py_prompt::Prompt;
use crate::py_shared::value_error;
use crate::py_ticket::Choice;
use crate::score::{Question, Seat, Team};

/// What a request asks of the decision; None in its place asks for nothing.
#[pyclass(frozen, module = "native._core")]
pub struct Ask {
    inner: cost::Ask,
    output_tokens: u64,
    available: Option<Vec<u8>>,
}

#[pymethods]
impl Ask {
    /// `ttft_slo_ms`: what is left of it. `output_tokens`: the most the answer may have, 0 = not known.
    /// `session_place`: where its session was last. `available`: a mask of the engines that have its
    /// adapter.
    #[new]
    #[pyo3(signature = (*, overlap_weight=1.0, ttft_slo_ms=0.0, tpot_slo_ms=0.0, output_tokens=0,
                        session_place=None, available=None))]
    fn new(
        overlap_weight: f64,
        ttft_slo_ms: f64,
        tpot_slo_ms: f64,
        output_tokens: u64,
        session_place: Option<usize>,
        available: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        for (name, value) in [
            ("overlap_weight", overlap_weight),
            ("ttft_slo_ms", ttft_slo_ms),
            ("tpot_slo_ms", tpot_slo_ms),
        ] {
            if !(0.0..=1e9).contains(&value) {
                return Err(value_error(format!("`{name}` must be from 0 to 1e9, got {value}")));
            }
        }
        let inner = cost::Ask {
            overlap_weight,
            ttft_slo_ms,
            tpot_slo_ms,
            session_place,
            ..cost::Ask::default()
        };
        Ok(Self { inner, output_tokens, available })
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
    /// (name, ms): drain, own, fetch, ext, repl, slow, late, session; their sum is the cost.
    terms: Vec<(&'static str, f64)>,
    /// Requests without a first token, those that decode, those late for their SLO; of all workers.
    waiting: u64,
    running: u64,
    late: u64,
    kv_tokens: u64,
    /// Modelled prefill work ahead.
    queue_ms: f64,
    /// Share of its time that prefill took of late.
    prefill_share: f64,
    /// Modelled time to the first token, and per token after it.
    ttft_ms: f64,
    tpot_ms: f64,
}

impl Row {
    pub fn of(place: usize, row: &cost::Row, tokens: usize) -> Self {
        let Overlap { device, host, disk, remote, predicted } = row.overlap;
        Self {
            place,
            filtered: row.filter.map_or("", |filter: Filter| Filter::NAMES[filter as usize]),
            device,
            host,
            disk,
            remote,
            predicted,
            uncached: (tokens as u64).saturating_sub(u64::from(row.overlap.total())),
            cost_ms: row.terms.sum(),
            terms: Terms::NAMES.into_iter().zip(row.terms.values()).collect(),
            waiting: row.load.waiting,
            running: row.load.running(),
            late: row.load.late,
            kv_tokens: row.load.kv_tokens,
            queue_ms: row.load.drain_ms,
            prefill_share: row.load.share,
            ttft_ms: row.ttft_ms,
            tpot_ms: row.tpot_ms,
        }
    }
}

/// A team and where its engines lie in the index.
pub struct Scored {
    pub team: Team,
    index: Option<Arc<index::Index>>,
    slots: Vec<u16>,
}

/// What the index says of each engine: tokens of the prompt, and all tokens it knows there.
type Known = (Vec<Overlap>, Vec<u64>);

thread_local! {
    static KNOWN: RefCell<Known> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Scored {
    /// Asks the team, with what is known to be cached.
    fn asked<T>(
        &self,
        prompt: &Prompt,
        eligible: &[u8],
        now_s: f64,
        ask: Option<&Ask>,
        answer: impl FnOnce(&Question, &dyn Fn(usize) -> (Overlap, u64)) -> T,
    ) -> PyResult<(T, cost::Ask)> {
        let engines = self.slots.len();
        pick::check_mask(eligible, engines).map_err(value_error)?;
        let adapters = ask.and_then(|ask| ask.available.as_deref());
        if let Some(mask) = adapters {
            pick::check_mask(mask, engines).map_err(value_error)?;
        }
        let mut inner = ask.map_or_else(cost::Ask::default, |ask| ask.inner);
        let most = ask.map_or(0, |ask| ask.output_tokens);
        inner.output = self.team.output();
        if most > 0 {
            inner.output = inner.output.min(most as f64);
        }
        let question =
            Question { tokens: prompt.inner.tokens(), now_s, eligible, adapters, ask: inner };
        let found = KNOWN.with_borrow_mut(|(overlaps, held)| {
            match &self.index {
                Some(index) => {
                    index.lookup(&prompt.inner, &self.slots, now_s, overlaps);
                    index.tokens_of(&self.slots, held);
                }
                None => {
                    overlaps.clear();
                    overlaps.resize(engines, Overlap::default());
                    held.clear();
                    held.resize(engines, 0);
                }
            }
            answer(&question, &|place| (overlaps[place], held[place]))
        });
        Ok((found, inner))
    }

    fn rows(
        &self,
        prompt: &Prompt,
        eligible: &[u8],
        now_s: f64,
        ask: Option<&Ask>,
    ) -> PyResult<(Vec<cost::Row>, cost::Ask)> {
        self.asked(prompt, eligible, now_s, ask, |question, known| self.team.rows(question, known))
    }
}

/// The engines of one team, weighed for requests by what they have cached and how busy they are.
#[pyclass(frozen, module = "native._core")]
pub struct Scorer {
    scored: Arc<Scored>,
}

impl Scorer {
    pub fn team(&self) -> &Team {
        &self.scored.team
    }

    fn choice(&self, tokens: usize, rows: &[cost::Row], place: usize, ask: cost::Ask) -> Choice {
        let other = |at: &usize| *at != place && rows[*at].filter.is_none();
        let sum = |at: usize| rows[at].terms.sum();
        let next = (0..rows.len()).filter(other).min_by(|&a, &b| sum(a).total_cmp(&sum(b)));
        Choice {
            scored: self.scored.clone(),
            place,
            row: rows[place],
            tokens,
            ask,
            runner_up: next.map(|at| (at, sum(at))),
        }
    }
}

/// Engines of a team, a column per attribute.
type Columns<'py> =
    (Vec<u64>, Vec<i32>, Vec<u32>, Vec<u32>, Vec<PyRef<'py, Fit>>, Vec<u64>, Vec<u64>);

fn seats(
    ledger: &Ledger,
    columns: Columns,
    links: Option<Vec<(f64, f64)>>,
    former: Option<&Team>,
) -> PyResult<Vec<Seat>> {
    let (engines, slots, weights, max_conns, fits, capacity, context) = columns;
    let count = engines.len();
    let lengths =
        [slots.len(), weights.len(), max_conns.len(), fits.len(), capacity.len(), context.len()];
    if lengths != [count; 6] {
        let text = format!("the columns of {count} engines have {lengths:?} entries");
        return Err(value_error(text));
    }
    pick::check_weights(&weights).map_err(value_error)?;
    let least = weights.iter().copied().min().unwrap_or(1);
    let bytes = |at: usize| fits[at].profile.kv_bytes_per_token;
    let links = py_pair::links(links, bytes, count)?;
    let mut seats = Vec::with_capacity(count);
    for at in 0..count {
        let profile = &fits[at].profile;
        let slower = f64::from(least) / f64::from(weights[at]);
        let engine = Engine {
            fit: profile.fit.scaled(slower, slower),
            chunk: profile.chunk_tokens as f64,
            capacity: if capacity[at] > 0 { capacity[at] } else { profile.kv_tokens },
            context: context[at],
            max_conns: max_conns[at],
            fetch_ms: profile.fetch_ms(),
            link: links[at],
        };
        let handle = ledger.handle(engines[at])?;
        let known = former.and_then(|team| team.seats.iter().find(|seat| seat.handle == handle));
        seats.push(Seat::new(handle, engine, known));
    }
    Ok(seats)
}

#[pymethods]
impl Scorer {
    /// Columns of one length, an entry per engine: handles of the ledger, slots of the index (-1 = it
    /// is not indexed), weights (twice the weight = twice as fast), limits of requests (0 = none),
    /// fits, KV tokens (0 = the fit's) and the longest context (0 = not known). `index` None: nothing
    /// is known to be cached. `former`: what it learnt of the same engines is kept. `links`: how fast KV
    /// of other engines comes, (GB/s, ms before it begins) each; 0 GB/s, -1 ms = not known.
    #[new]
    #[pyo3(signature = (ledger, index, engines, slots, weights, max_conns, fits, capacity_tokens,
                        context_tokens=None, former=None, links=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        ledger: &Ledger,
        index: Option<&Index>,
        engines: Vec<u64>,
        slots: Vec<i32>,
        weights: Vec<u32>,
        max_conns: Vec<u32>,
        fits: Vec<PyRef<'_, Fit>>,
        capacity_tokens: Vec<u64>,
        context_tokens: Option<Vec<u64>>,
        former: Option<&Scorer>,
        links: Option<Vec<(f64, f64)>>,
    ) -> PyResult<Self> {
        let places = slots.iter().map(|&slot| u16::try_from(slot).unwrap_or(u16::MAX)).collect();
        let context = context_tokens.unwrap_or_else(|| vec![0; engines.len()]);
        let columns = (engines, slots, weights, max_conns, fits, capacity_tokens, context);
        let former = former.map(|scorer| &scorer.scored.team);
        let seats = seats(ledger, columns, links, former)?;
        let output = former.map_or(cost::OUTPUT, Team::output);
        Ok(Self {
            scored: Arc::new(Scored {
                team: Team::new(ledger.core.clone(), seats, output),
                index: index.map(|index| index.inner.clone()),
                slots: places,
            }),
        })
    }

    fn __len__(&self) -> usize {
        self.scored.slots.len()
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
        let (rows, ask) = self.scored.rows(prompt, eligible, now, ask)?;
        let place = cost::cheapest(&rows, seed);
        Ok(place.map(|place| self.choice(prompt.inner.tokens(), &rows, place, ask)))
    }

    /// Where the prefill and the answer are made, chosen together; None where no engine may answer.
    /// `prefill`, `decode`: masks like `eligible`. `force`: 0 = by cost, 1 = two legs wherever an engine
    /// may prefill for another, -1 = one.
    #[pyo3(signature = (prompt, prefill, decode, now, seed, ask=None, force=0))]
    #[allow(clippy::too_many_arguments)]
    fn pair(
        &self,
        py: Python<'_>,
        prompt: &Prompt,
        prefill: &[u8],
        decode: &[u8],
        now: f64,
        seed: u64,
        ask: Option<&Ask>,
        force: i64,
    ) -> PyResult<Option<Pair>> {
        let scored = &self.scored;
        for mask in [prefill, decode] {
            pick::check_mask(mask, scored.slots.len()).map_err(value_error)?;
        }
        let how = (py_pair::force(force)?, seed);
        let either: Vec<u8> = prefill.iter().zip(decode).map(|(p, d)| p | d).collect();
        let (plan, ask) = scored.asked(prompt, &either, now, ask, |question, known| {
            scored.team.pair(question, Masks { prefill, decode }, how, known)
        })?;
        let tokens = prompt.inner.tokens();
        let choice = |(place, row)| Choice {
            scored: scored.clone(),
            place,
            row,
            tokens,
            ask,
            runner_up: None,
        };
        plan.map(|plan| Pair::new(py, plan, choice)).transpose()
    }

    /// The same for an engine that was chosen by other means, so that its load is counted alike.
    #[pyo3(signature = (place, prompt, now, ask=None))]
    fn at(&self, place: usize, prompt: &Prompt, now: f64, ask: Option<&Ask>) -> PyResult<Choice> {
        let (rows, ask) = self.scored.rows(prompt, &vec![1; self.__len__()], now, ask)?;
        match place < rows.len() {
            true => Ok(self.choice(prompt.inner.tokens(), &rows, place, ask)),
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
        let (rows, _) = self.scored.rows(prompt, eligible, now, ask)?;
        let tokens = prompt.inner.tokens();
        Ok(rows.iter().enumerate().map(|(place, row)| Row::of(place, row, tokens)).collect())
    }

    /// How much slower than its fit each engine has proved to be: (at prompts, at answers).
    fn factors(&self) -> Vec<(f64, f64)> {
        let factors = self.scored.team.seats.iter().map(Seat::factors);
        factors.map(|[prefill, decode, _]| (prefill.value, decode.value)).collect()
    }

    /// How much slower than configured the link to each engine has proved to be.
    fn link_factors(&self) -> Vec<f64> {
        let factors = self.scored.team.seats.iter().map(Seat::factors);
        factors.map(|[_, _, link]| link.value).collect()
    }

    /// Tokens of an answer, in the mean of late.
    fn output_tokens(&self) -> f64 {
        self.scored.team.output()
    }
}
