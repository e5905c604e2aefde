//! The thread that fetches from the store, as Python starts, hears and stops it.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use crate::kvbm::core::Core;
use crate::kvbm::fetcher::Fetcher;
use crate::py_shared::value_error;

/// How one request ended: seconds, why the store did not answer, what was wrong with its blocks.
type Ended = (f64, Option<String>, Option<String>);

/// Fetches what the core wants of the store, without the interpreter.
#[pyclass(frozen, module = "native._core")]
pub struct KvbmFetcher {
    fetcher: Fetcher,
}

impl KvbmFetcher {
    pub fn open(
        core: Arc<Core>,
        url: &str,
        settings: &[(String, String)],
        timeout_s: f64,
        concurrency: usize,
    ) -> PyResult<Self> {
        if !(0.001..=3600.0).contains(&timeout_s) {
            return Err(value_error(format!("a timeout of 0.001 to 3600 s, not {timeout_s}")));
        }
        let timeout = Duration::from_secs_f64(timeout_s);
        let fetcher = Fetcher::open(core, (url, settings), timeout, concurrency);
        Ok(Self { fetcher: fetcher.map_err(value_error)? })
    }
}

#[pymethods]
impl KvbmFetcher {
    /// Nothing where it is begun.
    fn start(&self) -> PyResult<()> {
        Ok(self.fetcher.start()?)
    }

    /// Gives up what is under way.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.fetcher.stop());
    }

    /// How requests ended, in order; waits until one has failed, at most `patience_s`. None: it has ended.
    fn reports(&self, py: Python<'_>, patience_s: f64) -> PyResult<Option<Vec<Ended>>> {
        if !(0.0..=3600.0).contains(&patience_s) {
            return Err(value_error(format!("a patience of 0 to 3600 s, not {patience_s}")));
        }
        let patience = Duration::from_secs_f64(patience_s);
        let reports = py.detach(|| self.fetcher.reports(patience));
        Ok(reports.map(|reports| {
            let each = reports.into_iter().map(|r| (r.took.as_secs_f64(), r.trouble, r.damage));
            each.collect()
        }))
    }
}
