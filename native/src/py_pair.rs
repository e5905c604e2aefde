//! Python's view of a joint decision.

use pyo3::prelude::*;

use crate::link::{self, Link};
use crate::pair::{Force, Plan};
use crate::py_shared::value_error;
use crate::py_ticket::Choice;

/// Where a request's answer is made, and its prefill if elsewhere. Nothing is counted until `start` of
/// either choice.
#[pyclass(frozen, module = "native._core")]
pub struct Pair {
    decode: Py<Choice>,
    prefill: Option<Py<Choice>>,
    plan: Plan,
}

impl Pair {
    /// `choice`: of a place, its row, and the cheapest other way.
    pub fn new(
        py: Python<'_>,
        plan: Plan,
        choice: impl Fn(crate::pair::Seated) -> Choice,
    ) -> PyResult<Self> {
        let prefill = plan.prefill.map(|seated| Py::new(py, choice(seated))).transpose()?;
        Ok(Self { decode: Py::new(py, choice(plan.decode))?, prefill, plan })
    }
}

#[pymethods]
impl Pair {
    /// The engine of the answer; where `prefill` is None, of the whole request.
    #[getter]
    fn decode(&self, py: Python<'_>) -> Py<Choice> {
        self.decode.clone_ref(py)
    }

    #[getter]
    fn prefill(&self, py: Python<'_>) -> Option<Py<Choice>> {
        self.prefill.as_ref().map(|choice| choice.clone_ref(py))
    }

    /// short, hit, cheaper, slo, no_prefill or forced: see `pair.rs`.
    #[getter]
    fn reason(&self) -> &'static str {
        self.plan.reason.name()
    }

    /// Modelled time of the transfer once it begins, and its tokens; 0 where it is local.
    #[getter]
    fn transfer_ms(&self) -> f64 {
        self.plan.transfer_ms
    }

    #[getter]
    fn transfer_tokens(&self) -> u64 {
        self.plan.transfer_tokens
    }

    /// Costs of the cheapest way of either kind, infinite where there is none.
    #[getter]
    fn local_ms(&self) -> f64 {
        self.plan.local_ms
    }

    #[getter]
    fn remote_ms(&self) -> f64 {
        self.plan.remote_ms
    }
}

/// 0 = the cost decides, 1 = always two legs, -1 = never.
pub fn force(value: i64) -> PyResult<Force> {
    match value {
        0 => Ok(Force::Auto),
        1 => Ok(Force::Always),
        -1 => Ok(Force::Never),
        _ => Err(value_error(format!("`force` is -1, 0 or 1, got {value}"))),
    }
}

/// Links of a team's engines: (GB/s, latency in ms) each, 0 and below = not known.
pub fn links(
    given: Option<Vec<(f64, f64)>>,
    bytes_per_token: impl Fn(usize) -> u64,
    count: usize,
) -> PyResult<Vec<Link>> {
    let given = given.unwrap_or_else(|| vec![(0.0, -1.0); count]);
    if given.len() != count {
        let text = format!("there are {} links of {count} engines", given.len());
        return Err(value_error(text));
    }
    let known = |(at, (gb_s, latency_ms)): (usize, (f64, f64))| {
        let gb_s = if gb_s > 0.0 { gb_s } else { link::GB_S };
        let latency_ms = if latency_ms >= 0.0 { latency_ms } else { link::LATENCY_MS };
        Link::of(bytes_per_token(at), gb_s, latency_ms).map_err(value_error)
    };
    given.into_iter().enumerate().map(known).collect()
}
