//! Python's view of the limits.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::limiter::{self, Conn, Entry, Rate};
use crate::limits::{self, Verdict};
use crate::py_shared::value_error;

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
        Ok(match self.core.take(self.core.key(key), now_ns, (interval_ns, burst), commit) {
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
        Ok(self.core.acquire(self.core.key(key), limit)?)
    }

    /// Counts a request out. False: none of this worker was in.
    fn release(&self, key: &[u8]) -> PyResult<bool> {
        Ok(self.core.release(self.core.key(key))?)
    }

    fn count(&self, key: &[u8]) -> u64 {
        self.core.count(self.core.key(key))
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
    core: Arc<limiter::Limiter>,
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
        Ok(Self { core: Arc::new(core) })
    }

    /// What a request with these keys (empty = not counted) is held to. ValueError for too few keys.
    fn of(&self, keys: &Bound<'_, PyTuple>) -> PyResult<Grip> {
        let mut texts = Vec::with_capacity(keys.len());
        for key in keys.as_slice() {
            texts.push(key.cast::<PyBytes>()?.as_bytes());
        }
        let count = self.core.count();
        if texts.len() < count {
            return Err(value_error(format!("{count} keys are needed, got {}", texts.len())));
        }
        Ok(Grip { keys: self.core.keys(&texts), limiter: self.core.clone() })
    }
}

/// The limits of one location as those requests meet them that have the same keys: hashed once.
#[pyclass(frozen, module = "native._core")]
pub struct Grip {
    limiter: Arc<limiter::Limiter>,
    keys: limiter::Keys,
}

#[pymethods]
impl Grip {
    /// A request at `now_s` (monotonic): None, it is in and holds its places; else the number of the
    /// limit that refuses it and -1.0, or of the one that makes it wait so many seconds; then `hold`
    /// follows.
    fn enter(&self, now_s: f64) -> PyResult<Option<(usize, f64)>> {
        Ok(told(self.limiter.enter(&self.keys, (now_s * 1e9) as u64)?))
    }

    /// Takes the places of a request that has waited; as `enter`.
    fn hold(&self) -> PyResult<Option<(usize, f64)>> {
        Ok(told(self.limiter.hold(&self.keys)?))
    }

    /// Gives a request's places back.
    fn leave(&self) -> PyResult<()> {
        Ok(self.limiter.leave(&self.keys)?)
    }
}

fn told(entry: Entry) -> Option<(usize, f64)> {
    match entry {
        Entry::In => None,
        Entry::Wait { seconds, limit } => Some((limit, seconds)),
        Entry::Refused { limit } => Some((limit, -1.0)),
    }
}
