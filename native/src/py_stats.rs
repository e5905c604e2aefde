//! Python's view of the counters and histograms.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView, PyTuple};

use crate::counters;
use crate::py_shared::value_error;
use crate::slots::Handle;
use crate::stats::{self, Request, Snapshot, HISTOGRAMS, SUMS};

/// Counts, sums and histograms per series in shared memory, summed over workers.
///
/// Series are named by handles from `add_series`. Everything that writes needs `bind` first (RuntimeError)
/// and does nothing once the slot was retired.
#[pyclass(frozen, module = "native._core")]
pub struct Stats {
    core: Arc<stats::Stats>,
}

impl Stats {
    fn handle(&self, packed: u64) -> PyResult<Handle> {
        Handle::unpack(packed, self.core.series(), "series").map_err(value_error)
    }
}

/// A series at one moment; `histograms` = name -> (counts per bucket, the last above all bounds; sum in s).
#[pyclass(frozen, get_all, module = "native._core")]
pub struct SeriesSnapshot {
    /// (status class 0 to 5, outcome, count), only where there are some.
    requests: Vec<(usize, usize, u64)>,
    lanes: Vec<u64>,
    input_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
    chunks: u64,
    bytes_in: u64,
    bytes_out: u64,
    /// Requests whose token counts were known.
    metered: u64,
    histograms: Py<PyDict>,
}

impl SeriesSnapshot {
    fn new(py: Python<'_>, snapshot: Snapshot) -> PyResult<Self> {
        let histograms = PyDict::new(py);
        for ((name, _), histogram) in HISTOGRAMS.iter().zip(snapshot.histograms) {
            histograms.set_item(name, (histogram.counts, histogram.sum_s))?;
        }
        let [input_tokens, output_tokens, cached_tokens, chunks, bytes_in, bytes_out] =
            snapshot.sums;
        Ok(Self {
            requests: snapshot.requests,
            lanes: snapshot.lanes.into(),
            input_tokens,
            output_tokens,
            cached_tokens,
            chunks,
            bytes_in,
            bytes_out,
            metered: snapshot.metered,
            histograms: histograms.unbind(),
        })
    }
}

#[pymethods]
impl Stats {
    #[new]
    #[pyo3(signature = (workers, series, fd=None))]
    fn new(workers: usize, series: usize, fd: Option<i32>) -> PyResult<Self> {
        let core = stats::Stats::open(workers, series, fd).map_err(value_error)?;
        Ok(Self { core: Arc::new(core) })
    }

    /// Outcomes and lanes are below these.
    #[classattr]
    const OUTCOMES: usize = stats::OUTCOMES;
    #[classattr]
    const LANES: usize = stats::LANES;

    #[getter]
    fn fd(&self) -> i32 {
        self.core.shared.fd()
    }

    #[getter]
    fn workers(&self) -> usize {
        self.core.shared.workers()
    }

    #[getter]
    fn series(&self) -> usize {
        self.core.series()
    }

    /// Upper bounds in seconds (inclusive) of a histogram of a snapshot. ValueError for another name.
    #[staticmethod]
    fn bounds<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyTuple>> {
        match HISTOGRAMS.iter().find(|(known, _)| *known == name) {
            Some((_, bounds)) => PyTuple::new(py, *bounds),
            None => Err(value_error(format!("there is no histogram `{name}`"))),
        }
    }

    fn bind(&self, worker: usize) -> PyResult<()> {
        self.core.shared.bind(worker).map_err(value_error)
    }

    /// Frees the slot of a worker whose process has ended; what it counted stays counted.
    fn retire(&self, worker: usize) -> PyResult<bool> {
        self.core.shared.retire(worker).map_err(value_error)
    }

    /// Handle of a new series. ValueError when all slots are taken.
    fn add_series(&self) -> PyResult<u64> {
        self.core.add_series().map(Handle::pack).map_err(value_error)
    }

    /// Frees the slot, once no exchange writes to the series any more. False if it was removed before.
    fn remove_series(&self, series: u64) -> PyResult<bool> {
        Ok(self.core.remove_series(self.handle(series)?))
    }

    /// Counts a finished request. Times in s, negative or NaN = does not apply; counts negative = unknown.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (series, status, outcome, lane, e2el_s, ttft_s, tpot_s, input_tokens,
                        output_tokens, cached_tokens, chunks, bytes_in, bytes_out))]
    fn record(
        &self,
        series: u64,
        status: u16,
        outcome: usize,
        lane: usize,
        e2el_s: f64,
        ttft_s: f64,
        tpot_s: f64,
        input_tokens: i64,
        output_tokens: i64,
        cached_tokens: i64,
        chunks: i64,
        bytes_in: i64,
        bytes_out: i64,
    ) -> PyResult<bool> {
        const { assert!(SUMS.len() == 6) };
        let request = Request {
            status,
            outcome,
            lane,
            times_s: [e2el_s, ttft_s, tpot_s],
            sums: [input_tokens, output_tokens, cached_tokens, chunks, bytes_in, bytes_out],
        };
        Ok(self.core.record(self.handle(series)?, &request)?)
    }

    /// This worker's histogram of gaps between chunks, to be written in place: one 64-bit count per
    /// bound of `bounds("itl")`, one above all, then the sum in s as a double in the last 8 bytes.
    fn itl_view<'py>(&self, py: Python<'py>, series: u64) -> PyResult<Bound<'py, PyMemoryView>> {
        let series = self.handle(series)?;
        self.core.itl_cells(series)?;
        let cells = Bound::new(py, Cells { core: self.core.clone(), series })?;
        PyMemoryView::from(&cells)
    }

    fn snapshot(&self, py: Python<'_>, series: u64) -> PyResult<SeriesSnapshot> {
        SeriesSnapshot::new(py, self.core.snapshot(self.handle(series)?))
    }
}

/// Lends cells of shared memory as a buffer, and keeps the mapping alive while it is lent.
#[pyclass(frozen, module = "native._core")]
struct Cells {
    core: Arc<stats::Stats>,
    series: Handle,
}

#[pymethods]
impl Cells {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let cells = slf.get().core.itl_cells(slf.get().series)?;
        let base = cells.as_ptr() as *mut c_void;
        let len = (cells.len() * 8) as isize;
        // A view of bytes; the caller casts. Writable, as the cells are.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base, len, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::take(slf.py())
                .unwrap_or_else(|| PyBufferError::new_err("the cells cannot be lent"))),
        }
    }
}

/// Named counters and gauges of the whole gateway, summed over workers.
///
/// Indices are positions in `names`: the counters, then the gauges. A worker that ends leaves its counts
/// and takes its gauges with it.
#[pyclass(frozen, module = "native._core")]
pub struct Counters {
    core: counters::Counters,
}

#[pymethods]
impl Counters {
    #[new]
    #[pyo3(signature = (workers, counters, gauges, fd=None))]
    fn new(
        workers: usize,
        counters: Vec<String>,
        gauges: Vec<String>,
        fd: Option<i32>,
    ) -> PyResult<Self> {
        let core = counters::Counters::open(workers, counters, gauges, fd).map_err(value_error)?;
        Ok(Self { core })
    }

    #[getter]
    fn fd(&self) -> i32 {
        self.core.shared.fd()
    }

    #[getter]
    fn names(&self) -> Vec<String> {
        self.core.names().to_vec()
    }

    fn bind(&self, worker: usize) -> PyResult<()> {
        self.core.shared.bind(worker).map_err(value_error)
    }

    fn retire(&self, worker: usize) -> PyResult<bool> {
        self.core.retire(worker).map_err(value_error)
    }

    /// ValueError for a negative `n` of a counter.
    #[pyo3(signature = (index, n=1))]
    fn add(&self, index: usize, n: i64) -> PyResult<()> {
        Ok(self.core.add(index, n)?)
    }

    /// This worker's part of a gauge. ValueError for a counter.
    fn set(&self, index: usize, value: i64) -> PyResult<()> {
        Ok(self.core.set(index, value)?)
    }

    fn value(&self, index: usize) -> PyResult<i64> {
        Ok(self.core.value(index)?)
    }

    /// All values, in the order of `names`.
    fn values(&self) -> PyResult<Vec<i64>> {
        let all = 0..self.core.names().len();
        Ok(all.map(|index| self.core.value(index)).collect::<Result<_, _>>()?)
    }
}
