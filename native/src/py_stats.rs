//! Python's view of the counters and histograms.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView, PyTuple};

use crate::counters;
use crate::py_shared::value_error;
use crate::slots::Handle;
use crate::stats::{self, Request, Snapshot, HISTOGRAMS, RECORDED, SUMS};

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

/// A series at one moment; `histograms` = name -> (counts per bucket, the last above all bounds; sum in s;
/// values of the mark's bucket up to the mark).
#[pyclass(frozen, get_all, module = "native._core")]
pub struct SeriesSnapshot {
    /// (status class 0 to 5, outcome, count), only where there are some.
    requests: Vec<(usize, usize, u64)>,
    lanes: Vec<u64>,
    /// Requests that came.
    offered: u64,
    /// Requests by end, by word (the first counts nowhere), and by level that they broke.
    ends: Vec<u64>,
    words: Vec<u64>,
    broken: Vec<u64>,
    input_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
    chunks: u64,
    bytes_in: u64,
    bytes_out: u64,
    good_tokens: u64,
    uncounted: u64,
    /// Requests whose token counts were known.
    metered: u64,
    histograms: Py<PyDict>,
}

impl SeriesSnapshot {
    fn new(py: Python<'_>, snapshot: Snapshot) -> PyResult<Self> {
        let histograms = PyDict::new(py);
        for ((name, _), histogram) in HISTOGRAMS.iter().zip(snapshot.histograms) {
            histograms.set_item(name, (histogram.counts, histogram.sum_s, histogram.within))?;
        }
        let [input_tokens, output_tokens, cached_tokens, chunks, bytes_in, bytes_out, good_tokens, uncounted] =
            snapshot.sums;
        Ok(Self {
            requests: snapshot.requests,
            lanes: snapshot.lanes.into(),
            offered: snapshot.offered,
            ends: snapshot.ends.into(),
            words: snapshot.words.into(),
            broken: snapshot.broken.into(),
            input_tokens,
            output_tokens,
            cached_tokens,
            chunks,
            bytes_in,
            bytes_out,
            good_tokens,
            uncounted,
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
    #[classattr]
    const ENDS: usize = stats::ENDS;
    #[classattr]
    const WORDS: usize = stats::WORDS;

    /// What `record` takes, by its place.
    #[classattr]
    #[pyo3(name = "TIMES")]
    fn times(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, HISTOGRAMS[..RECORDED].iter().map(|(name, _)| *name))
    }
    #[classattr]
    #[pyo3(name = "SUMS")]
    fn sums(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, SUMS)
    }

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

    /// Counts a finished request. `times`: s, in the order of `TIMES`, negative or NaN = does not apply;
    /// `sums`: in the order of `SUMS`, negative = unknown.
    #[allow(clippy::too_many_arguments)]
    fn record(
        &self,
        series: u64,
        status: u16,
        outcome: usize,
        lane: usize,
        end: usize,
        word: usize,
        broken: usize,
        times: &Bound<'_, PyTuple>,
        sums: &Bound<'_, PyTuple>,
    ) -> PyResult<bool> {
        let request = Request {
            status,
            outcome,
            lane,
            end,
            word,
            broken,
            times_s: numbers::<f64, RECORDED>(times, "times")?,
            sums: numbers::<i64, { SUMS.len() }>(sums, "sums")?,
        };
        Ok(self.core.record(self.handle(series)?, &request)?)
    }

    /// Counts a request that has come.
    fn offer(&self, series: u64) -> PyResult<bool> {
        Ok(self.core.offer(self.handle(series)?)?)
    }

    /// Sets one more bound of each of this worker's histograms, in the order of `TIMES` and then the gaps;
    /// s, 0 = none.
    fn mark(&self, series: u64, marks: Vec<f64>) -> PyResult<bool> {
        Ok(self.core.mark(self.handle(series)?, &marks)?)
    }

    /// This worker's histogram of gaps between chunks, to be written in place: one 64-bit count per
    /// bound of `bounds("itl")`, one above all, the sum in s as a double, the mark in s as a double, the count
    /// of its bucket up to it, then the number of the series.
    fn itl_view<'py>(&self, py: Python<'py>, series: u64) -> PyResult<Bound<'py, PyMemoryView>> {
        let series = self.handle(series)?;
        self.core.itl_cells(series)?;
        let cells = Bound::new(py, Cells { core: self.core.clone(), series })?;
        PyMemoryView::from(&cells)
    }

    /// `marks`: those whose splits are asked for, in the order of `mark`.
    #[pyo3(signature = (series, marks=vec![]))]
    fn snapshot(&self, py: Python<'_>, series: u64, marks: Vec<f64>) -> PyResult<SeriesSnapshot> {
        SeriesSnapshot::new(py, self.core.snapshot(self.handle(series)?, &marks))
    }
}

fn numbers<'py, T, const N: usize>(from: &Bound<'py, PyTuple>, name: &str) -> PyResult<[T; N]>
where
    T: FromPyObjectOwned<'py> + Default + Copy,
{
    if from.len() != N {
        return Err(value_error(format!("`{name}` must hold {N} numbers, got {}", from.len())));
    }
    let mut out = [T::default(); N];
    for (to, item) in out.iter_mut().zip(from.iter_borrowed()) {
        *to = item.extract().map_err(Into::into)?;
    }
    Ok(out)
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
