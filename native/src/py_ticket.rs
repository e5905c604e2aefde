//! Python's view of a decision and of the load that follows from it.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::cost;
use crate::index::Overlap;
use crate::py_cost::{Row, Scored};
use crate::py_index::Match;
use crate::score::Stay;

/// A decision. Nothing is counted until `start`.
#[pyclass(frozen, module = "native._core")]
pub struct Choice {
    pub scored: Arc<Scored>,
    pub place: usize,
    pub row: cost::Row,
    pub tokens: usize,
    pub ask: cost::Ask,
    pub runner_up: Option<(usize, f64)>,
}

#[pymethods]
impl Choice {
    #[getter]
    fn place(&self) -> usize {
        self.place
    }

    /// The engine's row: matched tokens, terms, load.
    #[getter]
    fn row(&self) -> Row {
        Row::of(self.place, &self.row, self.tokens)
    }

    #[getter]
    fn cost_ms(&self) -> f64 {
        self.row.terms.sum()
    }

    /// Prompt tokens taken to be cached there, by tier.
    #[getter]
    fn overlap(&self) -> Match {
        self.row.overlap.into()
    }

    /// Their sum.
    #[getter]
    fn matched(&self) -> u32 {
        Overlap::total(&self.row.overlap)
    }

    /// Prompt tokens that the engine has to compute.
    #[getter]
    fn uncached(&self) -> u64 {
        (self.tokens as u64).saturating_sub(u64::from(self.matched()))
    }

    /// Modelled milliseconds to the first token.
    #[getter]
    fn ttft_ms(&self) -> f64 {
        self.row.ttft_ms
    }

    /// (place, cost in ms) of the second cheapest; None where there is none.
    #[getter]
    fn runner_up(&self) -> Option<(usize, f64)> {
        self.runner_up
    }

    /// Counts the request in at its engine, in place of `Ledger.acquire`.
    fn start(&self, now: f64) -> PyResult<Ticket> {
        let team = &self.scored.team;
        let stay = team.start(self.place, &self.row, self.tokens, &self.ask, now)?;
        Ok(Ticket { scored: self.scored.clone(), place: self.place, stay: Mutex::new(stay) })
    }
}

/// A request in flight, counted at its engine: `first` at its first token, `end` when it is over,
/// whatever the outcome. Ends by itself when nobody holds it any more, so that no count leaks.
#[pyclass(frozen, module = "native._core")]
pub struct Ticket {
    scored: Arc<Scored>,
    place: usize,
    /// `None`: it is over, or was never counted.
    stay: Mutex<Option<Stay>>,
}

impl Ticket {
    fn over(&self, now_s: Option<f64>, output: u64) -> PyResult<bool> {
        let stay = self.stay.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(stay) = stay else { return Ok(false) };
        Ok(self.scored.team.end(&stay, now_s, output)?)
    }
}

#[pymethods]
impl Ticket {
    #[getter]
    fn place(&self) -> usize {
        self.place
    }

    /// The first token came: its prefill is done. False: it had come before, or the request is over.
    fn first(&self, now: f64) -> PyResult<bool> {
        let mut stay = self.stay.lock().unwrap_or_else(PoisonError::into_inner);
        match stay.as_mut() {
            Some(stay) => Ok(self.scored.team.first(stay, now)?),
            None => Ok(false),
        }
    }

    /// A decode leg is sent, as its prefill is done: its transfer begins. Without it nothing is learnt of
    /// the link.
    fn sent(&self, now: f64) {
        let mut stay = self.stay.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stay) = stay.as_mut() {
            self.scored.team.sent(stay, now);
        }
    }

    /// The request is over. `output_tokens`: of its answer, None = not known. False: it was over.
    #[pyo3(signature = (now, output_tokens=None))]
    fn end(&self, now: f64, output_tokens: Option<u64>) -> PyResult<bool> {
        self.over(Some(now), output_tokens.unwrap_or(0))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The slot may have been retired meanwhile, which is no fault.
        let _ = self.over(None, 0);
    }
}
