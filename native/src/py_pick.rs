//! Python's view of the picks: positions in, positions out, -1 for nobody.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ledger;
use crate::pick::{self, Candidate};
use crate::py_ledger::Ledger;
use crate::py_shared::value_error;

fn position(picked: Option<usize>) -> isize {
    picked.map_or(-1, |i| i as isize)
}

/// The engines of one upstream, picked by load.
#[pyclass(frozen, module = "native._core")]
pub struct EngineSet {
    ledger: Arc<ledger::Ledger>,
    all: Vec<Candidate>,
    limited: bool,
}

#[pymethods]
impl EngineSet {
    /// `engines` are handles of the ledger; `max_conns` 0 = no limit.
    #[new]
    #[pyo3(signature = (ledger, engines, weights, max_conns=None))]
    fn new(
        ledger: &Ledger,
        engines: Vec<u64>,
        weights: Vec<u32>,
        max_conns: Option<Vec<u32>>,
    ) -> PyResult<Self> {
        let max_conns = max_conns.unwrap_or_else(|| vec![0; engines.len()]);
        if weights.len() != engines.len() || max_conns.len() != engines.len() {
            return Err(value_error("one weight and one limit per engine are needed".into()));
        }
        pick::check_weights(&weights).map_err(value_error)?;
        let mut all = Vec::with_capacity(engines.len());
        for ((packed, weight), max_conns) in engines.into_iter().zip(weights).zip(max_conns) {
            all.push(Candidate { engine: ledger.handle(packed)?, weight, max_conns });
        }
        let limited = all.iter().any(|candidate| candidate.max_conns != 0);
        Ok(Self { ledger: ledger.core.clone(), all, limited })
    }

    fn __len__(&self) -> usize {
        self.all.len()
    }

    /// The eligible engine with the fewest requests in flight per weight and room for one more; ties at
    /// random by `seed` (any 64 bits), in proportion to weight.
    fn least(&self, eligible: &[u8], seed: u64) -> PyResult<isize> {
        pick::check_mask(eligible, self.all.len()).map_err(value_error)?;
        Ok(position(pick::least(&self.ledger, &self.all, eligible, seed)))
    }

    /// An eligible engine with room for one more, drawn in proportion to weight; `two`: of two drawn, the one
    /// with fewer requests in flight per weight.
    fn random(&self, eligible: &[u8], seed: u64, two: bool) -> PyResult<isize> {
        pick::check_mask(eligible, self.all.len()).map_err(value_error)?;
        Ok(position(pick::random(&self.ledger, &self.all, eligible, seed, two)))
    }

    /// The mask without engines that have `max_conns` requests in flight; the same object if there is none.
    fn room<'py>(
        &self,
        py: Python<'py>,
        eligible: Bound<'py, PyBytes>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        pick::check_mask(eligible.as_bytes(), self.all.len()).map_err(value_error)?;
        if self.limited {
            let mut mask = eligible.as_bytes().to_vec();
            if pick::leave_out_full(&self.ledger, &self.all, &mut mask) {
                return Ok(PyBytes::new(py, &mask));
            }
        }
        Ok(eligible)
    }
}

/// Smooth weighted round robin over the engines of one upstream, in one worker.
#[pyclass(module = "native._core")]
pub struct RoundRobin {
    turns: pick::RoundRobin,
}

#[pymethods]
impl RoundRobin {
    #[new]
    fn new(weights: Vec<u32>) -> PyResult<Self> {
        Ok(Self { turns: pick::RoundRobin::new(weights).map_err(value_error)? })
    }

    fn __len__(&self) -> usize {
        self.turns.len()
    }

    fn next(&mut self, eligible: &[u8]) -> PyResult<isize> {
        pick::check_mask(eligible, self.turns.len()).map_err(value_error)?;
        Ok(position(self.turns.next(eligible)))
    }

    /// The same turns over a changed list: `origins[i]` = where engine i was, -1 = it is new.
    fn rebuilt(&self, weights: Vec<u32>, origins: Vec<isize>) -> PyResult<Self> {
        let origins: Vec<_> = origins.into_iter().map(|i| usize::try_from(i).ok()).collect();
        Ok(Self { turns: self.turns.rebuilt(weights, &origins).map_err(value_error)? })
    }
}

/// Consistent hashing of keys to engines; depends on names and weights alone.
#[pyclass(frozen, module = "native._core")]
pub struct HashRing {
    ring: pick::HashRing,
}

#[pymethods]
impl HashRing {
    #[new]
    fn new(names: Vec<String>, weights: Vec<u32>) -> PyResult<Self> {
        Ok(Self { ring: pick::HashRing::new(&names, weights).map_err(value_error)? })
    }

    fn __len__(&self) -> usize {
        self.ring.len()
    }

    fn pick(&self, key: &[u8], eligible: &[u8]) -> PyResult<isize> {
        pick::check_mask(eligible, self.ring.len()).map_err(value_error)?;
        Ok(position(self.ring.pick(key, eligible)))
    }

    /// The first `limit` engines for a key, best first: where to go, and where to try next.
    fn order(&self, key: &[u8], eligible: &[u8], limit: usize) -> PyResult<Vec<usize>> {
        pick::check_mask(eligible, self.ring.len()).map_err(value_error)?;
        Ok(self.ring.order(key, eligible, limit))
    }
}
