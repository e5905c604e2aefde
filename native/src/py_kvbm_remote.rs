//! The remote tier's door: whoever talks to the store takes errands here and reports what came of them.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::kvbm::commands::Command;
use crate::kvbm::core::Core;
use crate::kvbm::remote::{Fetched, Kind, Miss, Room};
use crate::py_kvbm::{ask, key, print};
use crate::py_shared::value_error;

/// Errands between the core and a store. Calls may come from any thread, without the interpreter's lock.
#[pyclass(frozen, module = "native._core")]
pub struct KvbmRemote {
    pub(crate) core: Arc<Core>,
}

type Errand<'py> = (&'static str, u64, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl KvbmRemote {
    /// Waits for errands, at most `patience_s`: (fetch | ahead | send | delete, ticket, fingerprint, key) of
    /// each, what somebody waits for first; of each kind at most so many. None: the core has ended.
    fn errands<'py>(
        &self,
        py: Python<'py>,
        fetches: usize,
        ahead: usize,
        sends: usize,
        patience_s: f64,
    ) -> PyResult<Option<Vec<Errand<'py>>>> {
        if !(0.0..=3600.0).contains(&patience_s) {
            return Err(value_error(format!("a patience of 0 to 3600 s, not {patience_s}")));
        }
        let room = Room { fetches, ahead, sends };
        let patience = Duration::from_secs_f64(patience_s);
        let Some(errands) = py.detach(|| self.core.desk().take(room, patience)) else {
            return Ok(None);
        };
        let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
        let each = errands.iter().map(|errand| {
            let kind = match errand.kind {
                Kind::Fetch => "fetch",
                Kind::Ahead => "ahead",
                Kind::Send => "send",
                Kind::Delete => "delete",
            };
            (kind, errand.ticket, bytes(&errand.namespace), bytes(&errand.key))
        });
        Ok(Some(each.collect()))
    }

    /// A fetch brought a record, which is verified here. False: it is not what was written.
    fn fetched(&self, py: Python<'_>, ticket: u64, record: &[u8]) -> bool {
        py.detach(|| {
            let result = Fetched::of(record).map_err(Miss::Damaged);
            let good = result.is_ok();
            self.core.tell(Command::RemoteEnded { ticket, result });
            good
        })
    }

    /// A fetch brought nothing: the store has no such object (`absent`), or does not answer.
    fn missed(&self, ticket: u64, absent: bool) {
        let miss = if absent { Miss::Absent } else { Miss::Failed };
        self.core.tell(Command::RemoteEnded { ticket, result: Err(miss) });
    }

    /// Blocks are in the store, or not any more; how many of them were news. A namespace that no engine has
    /// named is not known, and neither is what lies there.
    fn known(
        &self,
        py: Python<'_>,
        fingerprint: &[u8],
        keys: Vec<Vec<u8>>,
        there: bool,
    ) -> PyResult<usize> {
        let namespace = print(fingerprint)?;
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<PyResult<Vec<_>>>()?;
        ask(&self.core, py, |reply| Command::RemoteKnown { namespace, keys, there, reply })
    }

    /// The store is left alone for a while (its blocks are misses), or asked again.
    fn pause(&self, is_paused: bool) {
        self.core.tell(Command::RemotePause(is_paused));
    }
}
