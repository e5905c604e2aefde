//! Python's view of the limits.

use pyo3::prelude::*;

use crate::limits::{self, Verdict};
use crate::py_shared::value_error;

/// Rates of requests by key, over all processes that map the same memory.
#[pyclass(frozen, module = "native._core")]
pub struct Rates {
    core: limits::Rates,
}

#[pymethods]
impl Rates {
    /// Room for `keys`, in anonymous shared memory or that of the descriptor `fd`.
    #[new]
    #[pyo3(signature = (keys, fd=None))]
    fn new(keys: usize, fd: Option<i32>) -> PyResult<Self> {
        Ok(Self { core: limits::Rates::open(keys, fd).map_err(value_error)? })
    }

    #[getter]
    fn fd(&self) -> i32 {
        self.core.fd()
    }

    /// How many requests above the rate of one per `interval_ns` this one is, 0.0 up to `burst`; -1.0:
    /// refused. `commit` False looks only. ValueError for an interval of 0.
    fn take(
        &self,
        key: &[u8],
        now_ns: u64,
        interval_ns: u64,
        burst: u64,
        commit: bool,
    ) -> PyResult<f64> {
        if interval_ns == 0 {
            return Err(value_error("`interval_ns` must not be 0".into()));
        }
        Ok(match self.core.take(key, now_ns, (interval_ns, burst), commit) {
            Verdict::Excess(excess) => excess,
            Verdict::Refused => -1.0,
        })
    }
}

/// Requests in flight by key, over all workers; `bind` first (RuntimeError).
#[pyclass(frozen, module = "native._core")]
pub struct Conns {
    core: limits::Conns,
}

#[pymethods]
impl Conns {
    #[new]
    #[pyo3(signature = (workers, keys, fd=None))]
    fn new(workers: usize, keys: usize, fd: Option<i32>) -> PyResult<Self> {
        Ok(Self { core: limits::Conns::open(workers, keys, fd).map_err(value_error)? })
    }

    #[getter]
    fn fd(&self) -> i32 {
        self.core.fd()
    }

    fn bind(&self, worker: usize) -> PyResult<()> {
        self.core.bind(worker).map_err(value_error)
    }

    /// Takes back what a worker whose process has ended had in flight; False if its slot was free.
    fn retire(&self, worker: usize) -> PyResult<bool> {
        self.core.retire(worker).map_err(value_error)
    }

    /// Counts a request in. False: `limit` are in flight already, or there is no room for the key.
    fn acquire(&self, key: &[u8], limit: u64) -> PyResult<bool> {
        Ok(self.core.acquire(key, limit)?)
    }

    /// Counts a request out. False: none of this worker was in.
    fn release(&self, key: &[u8]) -> PyResult<bool> {
        Ok(self.core.release(key)?)
    }

    fn count(&self, key: &[u8]) -> u64 {
        self.core.count(key)
    }
}
