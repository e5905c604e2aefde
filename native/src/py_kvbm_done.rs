//! What goes between Python and an engine's client: finished jobs, blocks' names, slots of the arena.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::kvbm::client::{Client, Completed};
use crate::kvbm::host::Seat;
use crate::kvbm::record::Key;
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
