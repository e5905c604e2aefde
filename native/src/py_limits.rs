//! Python's view of the limits.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::limiter::{self, Conn, Entry, Rate};
use crate::limits::{self, Verdict};
use crate::py_shared::value_error;
use crate::shared::Fault;

/// Rates of requests by key, over all processes that map the same memory.
#[pyclass(frozen, module = "native._core")]
pub struct Rates {
    core: Arc<limits::Rates>,
}

#[pymethods]
impl Rates {
    /// Room for `keys`, in anonymous shared memory or that of the descriptor `fd`.
    #[new]
    #[pyo3(signature = (keys, fd=None))]
    fn new(keys: usize, fd: Option<i32>) -> PyResult<Self> {
        Ok(Self { core: Arc::new(limits::Rates::open(keys, fd).map_err(value_error)?) })
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
    core: Arc<limits::Conns>,
}

#[pymethods]
impl Conns {
    #[new]
    #[pyo3(signature = (workers, keys, fd=None))]
    fn new(workers: usize, keys: usize, fd: Option<i32>) -> PyResult<Self> {
        Ok(Self { core: Arc::new(limits::Conns::open(workers, keys, fd).map_err(value_error)?) })
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

/// (table, ns between two requests, requests above the rate, those of them that need not wait or None for
/// all, which key).
type RateRow<'py> = (PyRef<'py, Rates>, u64, u64, Option<u64>, usize);
/// (table, requests in flight, which key).
type ConnRow<'py> = (PyRef<'py, Conns>, u64, usize);

/// All limits of one location, numbered: the rates, then the places.
#[pyclass(frozen, module = "native._core")]
pub struct Limiter {
    core: limiter::Limiter,
    keys: usize,
}

#[pymethods]
impl Limiter {
    /// ValueError for an interval of 0.
    #[new]
    fn new(rates: Vec<RateRow>, conns: Vec<ConnRow>) -> PyResult<Self> {
        if rates.iter().any(|row| row.1 == 0) {
            return Err(value_error("the interval must not be 0".into()));
        }
        let rates = rates.into_iter().map(|(table, interval_ns, burst, delay, key)| Rate {
            table: table.core.clone(),
            interval_ns,
            burst,
            delay,
            key,
        });
        let conns = conns.into_iter().map(|(table, limit, key)| Conn {
            table: table.core.clone(),
            limit,
            key,
        });
        let core = limiter::Limiter::new(rates.collect(), conns.collect());
        Ok(Self { keys: core.keys(), core })
    }

    /// A request with these keys (empty = not counted): None, it is in and holds its places; else the
    /// number of the limit that refuses it and -1.0, or of the one that makes it wait so many seconds;
    /// then `hold` follows. ValueError for too few keys.
    fn enter(&self, keys: &Bound<'_, PyTuple>, now_ns: u64) -> PyResult<Option<(usize, f64)>> {
        self.with(keys, |core, keys| core.enter(keys, now_ns)).map(told)
    }

    /// Takes the places of a request that has waited; as `enter`.
    fn hold(&self, keys: &Bound<'_, PyTuple>) -> PyResult<Option<(usize, f64)>> {
        self.with(keys, |core, keys| core.hold(keys)).map(told)
    }

    /// Gives a request's places back.
    fn leave(&self, keys: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.with(keys, |core, keys| core.leave(keys))
    }
}

impl Limiter {
    fn with<T>(
        &self,
        keys: &Bound<'_, PyTuple>,
        act: impl FnOnce(&limiter::Limiter, &[&[u8]]) -> Result<T, Fault>,
    ) -> PyResult<T> {
        let mut read = Vec::with_capacity(self.keys);
        for key in keys.as_slice() {
            read.push(key.cast::<PyBytes>()?.as_bytes());
        }
        if read.len() < self.keys {
            return Err(value_error(format!("{} keys are needed, got {}", self.keys, read.len())));
        }
        Ok(act(&self.core, &read)?)
    }
}

fn told(entry: Entry) -> Option<(usize, f64)> {
    match entry {
        Entry::In => None,
        Entry::Wait { seconds, limit } => Some((limit, seconds)),
        Entry::Refused { limit } => Some((limit, -1.0)),
    }
}
