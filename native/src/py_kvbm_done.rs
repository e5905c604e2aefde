//! What goes between Python and the core or an engine's client: finished jobs, what was dropped, changes,
//! blocks' names, slots of the arena.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::kvbm::changes::{Note, What};
use crate::kvbm::client::{Client, Completed};
use crate::kvbm::drops::Dropped;
use crate::kvbm::host::Seat;
use crate::kvbm::record::Key;
use crate::py_kvbm_remote::KvbmErrand;
use crate::py_shared::value_error;

/// A finished job; `statuses` has one byte per block, 0 where all is well. After a fetch `seats` has a
/// (page, generation) per block; those of blocks that are there are held until `release`.
#[pyclass(frozen, get_all, module = "native._core")]
pub struct KvbmDone {
    job: u64,
    ok: bool,
    statuses: Py<PyBytes>,
    moved_bytes: u64,
    spent_us: u64,
    seats: Vec<(u32, u32)>,
}

impl KvbmDone {
    pub(crate) fn new(py: Python<'_>, done: Completed) -> Self {
        Self {
            job: done.job,
            ok: done.statuses.iter().all(|&status| status == 0),
            statuses: PyBytes::new(py, &done.statuses).unbind(),
            moved_bytes: done.bytes,
            spent_us: done.spent_us,
            seats: done.seats.iter().map(|seat| (seat.page, seat.generation)).collect(),
        }
    }
}

/// What a drop came to, in blocks by tier; `errands` delete those of the store.
#[pyclass(frozen, get_all, module = "native._core")]
pub struct KvbmDropped {
    host: u64,
    disk: u64,
    remote: u64,
    errands: Vec<Py<KvbmErrand>>,
}

impl KvbmDropped {
    pub(crate) fn new(py: Python<'_>, dropped: Dropped) -> PyResult<Self> {
        let Dropped { host, disk, remote, errands } = dropped;
        let errands = errands.into_iter().map(|errand| Py::new(py, KvbmErrand { errand }));
        Ok(Self { host, disk, remote, errands: errands.collect::<PyResult<_>>()? })
    }
}

pub(crate) fn named(client: &mut Client, name: &[u8]) -> PyResult<Key> {
    let split = name.split_last_chunk::<4>();
    let key = split.and_then(|(hash, group)| client.key(hash, u32::from_be_bytes(*group)));
    key.ok_or_else(|| {
        let len = name.len();
        value_error(format!("a block's name has from 5 to 36 bytes, not {len}"))
    })
}

pub(crate) fn seat_list(seats: &[(u32, u32)]) -> Vec<Seat> {
    seats.iter().map(|&(page, generation)| Seat { page, generation }).collect()
}

pub(crate) type Change<'py> = (&'static str, u8, u16, Bound<'py, PyBytes>, u32);

pub(crate) fn change<'py>(py: Python<'py>, note: &Note) -> Change<'py> {
    let what = match note.what {
        What::Stored => "stored",
        What::Removed => "removed",
        What::Cleared => "cleared",
    };
    (what, note.tier, note.namespace, PyBytes::new(py, &note.key), note.len)
}
