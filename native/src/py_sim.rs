//! Python's view of the simulator.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::link::{self, Link};
use crate::py_fit::Fit;
use crate::py_pair::force as force_of;
use crate::py_roles::{moved, roles_of, Moved};
use crate::py_shared::value_error;
use crate::roles::{Move, Settings};
use crate::sim::baselines::{Baseline, Book};
use crate::sim::engine;
use crate::sim::gate::{self, Gate, View};
use crate::sim::options::Options;
use crate::sim::report::Time;
use crate::sim::run::{run, Run};
use crate::sim::store::Shelf;
use crate::sim::trace::{self, Columns};

/// The policy that is ours, beside those of `Baseline::ALL`.
const OURS: &str = "kvgate";

/// Requests in the order of their arrival, as the simulator takes them.
#[pyclass(frozen, module = "native._core")]
pub struct Trace {
    inner: trace::Trace,
}

fn packed<const N: usize, T>(bytes: &[u8], of: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|word| of(*word)).collect()
}

#[pymethods]
impl Trace {
    /// Columns packed little-endian: arrival in seconds (f64), tokens in and out and blocks of each
    /// prompt (u32), then the blocks of all prompts one after another (u64): chain hashes of `block`
    /// tokens. ValueError names the row that cannot be.
    #[new]
    fn new(
        block: u32,
        at_s: &[u8],
        input: &[u8],
        output: &[u8],
        counts: &[u8],
        blocks: &[u8],
    ) -> PyResult<Self> {
        let columns = Columns {
            at_s: &packed(at_s, f64::from_le_bytes),
            input: &packed(input, u32::from_le_bytes),
            output: &packed(output, u32::from_le_bytes),
            counts: &packed(counts, u32::from_le_bytes),
            blocks: &packed(blocks, u64::from_le_bytes),
        };
        Ok(Self { inner: trace::Trace::new(block, &columns).map_err(value_error)? })
    }

    fn __len__(&self) -> usize {
        self.inner.rows.len()
    }

    #[getter]
    fn span_s(&self) -> f64 {
        self.inner.span_s()
    }

    #[getter]
    fn input_tokens(&self) -> u64 {
        self.inner.rows.iter().map(|row| u64::from(row.input)).sum()
    }

    #[getter]
    fn output_tokens(&self) -> u64 {
        self.inner.rows.iter().map(|row| u64::from(row.output)).sum()
    }

    /// Prompt tokens that one endless cache would save.
    fn reusable_tokens(&self) -> u64 {
        self.inner.reusable()
    }

    /// Prompt tokens that each row would find in one least-recently-used cache of each size, in tokens:
    /// little-endian u32 per row, for one size after another.
    fn hits<'py>(&self, py: Python<'py>, sizes: Vec<u64>) -> Vec<Bound<'py, PyBytes>> {
        let found = py.detach(|| self.inner.hits(&sizes));
        let pack = |row: &Vec<u32>| row.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        found.iter().map(|row| PyBytes::new(py, &pack(row))).collect()
    }
}

/// Engines that prefill, answer, or both; a letter each in `roles`: p, d, m.
///
/// `force` as in `Scorer.pair`. `link_gb_s`: of every engine's link; `chunk_tokens`: of a step of each,
/// None = the fit's. `dwell_s`: roles follow the load, and are kept for so long; 0 = they stay.
/// ValueError for roles that cannot be.
#[pyclass(frozen, module = "native._core")]
pub struct Duet {
    inner: gate::Duet,
    dwell_s: f64,
    link_gb_s: f64,
    chunks: Vec<u32>,
}

#[pymethods]
impl Duet {
    #[new]
    #[pyo3(signature = (roles, force=0, link_gb_s=link::GB_S, chunk_tokens=None, dwell_s=0.0))]
    fn new(
        roles: &str,
        force: i64,
        link_gb_s: f64,
        chunk_tokens: Option<Vec<u32>>,
        dwell_s: f64,
    ) -> PyResult<Self> {
        let roles = roles_of(roles)?;
        if !roles.iter().any(|role| role.may_decode()) {
            return Err(value_error("no engine may answer".into()));
        }
        let inner = gate::Duet { roles, force: force_of(force)?, elastic: None };
        Ok(Self { inner, dwell_s, link_gb_s, chunks: chunk_tokens.unwrap_or_default() })
    }
}

/// How long an engine may take to be rid of its old work, in dwells.
const DRAIN_DWELLS: f64 = 2.0;

impl Duet {
    /// With the SLOs that roles follow.
    fn with(&self, ttft_slo_ms: f64, tpot_slo_ms: f64) -> gate::Duet {
        let Self { dwell_s, .. } = *self;
        let drain_s = DRAIN_DWELLS * dwell_s;
        let settings = Settings { ttft_slo_ms, tpot_slo_ms, dwell_s, drain_s };
        gate::Duet { elastic: (dwell_s > 0.0).then_some(settings), ..self.inner.clone() }
    }
}

/// What one run came to. Times in seconds, of all requests that were not refused.
#[pyclass(frozen, module = "native._core")]
pub struct Simulated {
    run: Run,
    moves: Vec<(f64, Move)>,
}

impl Simulated {
    fn time(name: &str) -> PyResult<Time> {
        let found = Time::NAMES.iter().find(|(known, _)| *known == name);
        let names = || value_error(format!("a time is ttft, tpot or e2e, not `{name}`"));
        found.map(|(_, time)| *time).ok_or_else(names)
    }
}

#[pymethods]
impl Simulated {
    #[getter]
    fn requests(&self) -> u64 {
        self.run.requests()
    }

    /// Longer than an engine's memory.
    #[getter]
    fn refused(&self) -> u64 {
        self.run.refused
    }

    #[getter]
    fn preempted(&self) -> u64 {
        self.run.preempted
    }

    #[getter]
    fn input_tokens(&self) -> u64 {
        self.run.input_tokens()
    }

    #[getter]
    fn hit_tokens(&self) -> u64 {
        self.run.hit_tokens()
    }

    /// (requests whose KV moved, its tokens, seconds that links were busy with it).
    #[getter]
    fn transfers(&self) -> (u64, u64, f64) {
        (self.run.transfers, self.run.transfer_tokens, self.run.transfer_s)
    }

    /// Roles that changed: seconds, and what `RoleControl.look` returns.
    #[getter]
    fn moves(&self) -> Vec<(f64, Moved)> {
        self.moves.iter().map(|(at_s, it)| (*at_s, moved(it))).collect()
    }

    /// When the last answer ended.
    #[getter]
    fn end_s(&self) -> f64 {
        self.run.end_s
    }

    /// Seconds that each engine worked, and requests it got.
    #[getter]
    fn busy_s(&self) -> Vec<f64> {
        self.run.busy_s.clone()
    }

    #[getter]
    fn spread(&self) -> Vec<u64> {
        self.run.spread()
    }

    /// Requests that met both SLOs; 0 = none is set.
    fn good(&self, ttft_s: f64, tpot_s: f64) -> u64 {
        self.run.good(ttft_s, tpot_s)
    }

    /// `name`: ttft, tpot or e2e.
    fn mean(&self, name: &str) -> PyResult<f64> {
        Ok(self.run.mean(Self::time(name)?))
    }

    fn quantiles(&self, name: &str, shares: Vec<f64>) -> PyResult<Vec<f64>> {
        Ok(self.run.quantiles(Self::time(name)?, &shares))
    }

    /// Little-endian f64 per request, four each: arrival, engine, time to the first token, per token.
    fn outcomes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let rows = self.run.outcomes.iter();
        let words = rows.flat_map(|o| [o.arrived_s, o.engine as f64, o.ttft_s, o.tpot_s]);
        PyBytes::new(py, &words.flat_map(f64::to_le_bytes).collect::<Vec<u8>>())
    }
}

/// Names of the policies that `simulate` knows, ours first.
#[pyfunction]
pub fn policies() -> Vec<&'static str> {
    [OURS].into_iter().chain(Baseline::ALL.map(|(name, _)| name)).collect()
}

/// Replays a trace against engines behind one policy. The same arguments give the same run, bit for bit.
///
/// `fit`: the engines'; `believed`: what kvgate takes them for, None = the same. `speed`: of the
/// arrivals; `spread_s`: each arrives up to so much later, at random. `shared`: all engines share one
/// endless cache, which bounds what routing can lose. `gateways` take turns; with `shared_load` they
/// count as workers of one machine do. `delay_s`, `loss`: of KV events. `events`: kvgate learns from
/// events and its own decisions what is cached, else it looks. `store_tokens`: what fits into a store
/// below the engines that all of them load from, as from host memory; 0: there is none. ValueError for what cannot be.
#[pyfunction]
#[pyo3(signature = (trace, policy, fit, *, engines=8, capacity_tokens=0, max_seqs=1024, speed=1.0,
                    spread_s=0.0, seed=0, shared=false, gateways=1, shared_load=true, delay_s=0.0,
                    loss=0.0, ttft_slo_ms=0.0, tpot_slo_ms=0.0, overlap_weight=1.0, events=true,
                    believed=None, duet=None, store_tokens=0))]
#[allow(clippy::too_many_arguments)]
pub fn simulate(
    py: Python<'_>,
    trace: &Trace,
    policy: &str,
    fit: &Fit,
    engines: usize,
    capacity_tokens: u64,
    max_seqs: usize,
    speed: f64,
    spread_s: f64,
    seed: u64,
    shared: bool,
    gateways: usize,
    shared_load: bool,
    delay_s: f64,
    loss: f64,
    ttft_slo_ms: f64,
    tpot_slo_ms: f64,
    overlap_weight: f64,
    events: bool,
    believed: Option<&Fit>,
    duet: Option<&Duet>,
    store_tokens: u64,
) -> PyResult<Simulated> {
    let chunk = fit.profile.chunk_tokens as u32;
    let capacity = if capacity_tokens > 0 { capacity_tokens } else { fit.profile.kv_tokens };
    let settings = engine::Settings { fit: fit.profile.fit, capacity, chunk, max_seqs };
    let bytes = fit.profile.kv_bytes_per_token;
    let gb_s = duet.map_or(link::GB_S, |duet| duet.link_gb_s);
    let link = Link::of(bytes, gb_s, link::LATENCY_MS).map_err(value_error)?;
    let chunks = duet.map_or_else(Vec::new, |duet| duet.chunks.clone());
    let [store_ms, ..] = fit.profile.fetch_ms();
    let store = (store_tokens > 0)
        .then_some(Shelf { capacity: store_tokens, ms_per_token: store_ms });
    let options = Options {
        engines,
        settings,
        chunks: chunks.clone(),
        link,
        shared,
        store,
        speed,
        spread_s,
        seed,
        gateways,
        delay_s,
        loss,
    };
    options.check().map_err(value_error)?;
    let rows = trace.inner.rows.len();
    let believed = believed.unwrap_or(fit).profile;
    let view = View {
        fit: believed.fit,
        chunk: believed.chunk_tokens as f64,
        chunks,
        link,
        // An endless cache leaves room for any number of answers.
        capacity: if shared { 0 } else { capacity },
        ttft_slo_ms,
        tpot_slo_ms,
        overlap_weight,
        shared_load,
        events,
        store_ms: store.filter(|_| !shared).map(|shelf| shelf.ms_per_token),
        duet: duet.map(|duet| duet.with(ttft_slo_ms, tpot_slo_ms)),
    };
    let baseline = Baseline::ALL.iter().find(|(name, _)| *name == policy);
    let mut book = baseline.map(|(_, it)| Book::new(*it, engines, rows, fit.profile.fit));
    if book.is_none() && policy != OURS {
        let names = policies().join(", ");
        return Err(value_error(format!("no policy is called `{policy}`; there are {names}")));
    }
    let mut gate = Gate::new(engines, gateways, rows, view).map_err(value_error)?;
    let run = py.detach(|| match &mut book {
        Some(book) => run(&trace.inner, &options, book),
        None => run(&trace.inner, &options, &mut gate),
    });
    Ok(Simulated { run, moves: gate.moves })
}
