//! Python's view of `index`.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::events::Fault;
use crate::hash;
use crate::index::counts::{Counts, Ignored};
use crate::index::{self, Overlap};
use crate::py_prompt::Prompt;

/// What a batch of events came to; numbers are blocks unless said otherwise.
#[pyclass(frozen, get_all, module = "native._core")]
pub struct Applied {
    /// Seconds since the epoch, by the engine's clock; 0 if the batch could not be read.
    ts: f64,
    /// The data-parallel rank that the batch names; -1 for none.
    dp_rank: i64,
    /// `session_id` of the last event that had one.
    session: Option<String>,
    /// Copies taken.
    stored: u64,
    /// Copies gone.
    removed: u64,
    /// Times the engine emptied its cache.
    cleared: u64,
    /// Put aside until their parent is known.
    orphans: u64,
    /// Announced without tokens and put aside until a twin with tokens is known.
    untold: u64,
    /// Put aside earlier, known now.
    adopted: u64,
    /// Put aside for a parent, and gone before it was known.
    lost: u64,
    /// Times the engine's block size changed, and everything was dropped.
    resized: u64,
    /// Not taken, by reason; reasons that do not occur are left out.
    ignored: Py<PyDict>,
    /// Events, or the batch, that could not be read, by reason.
    malformed: Py<PyDict>,
}

#[pymethods]
impl Applied {
    fn __repr__(&self) -> String {
        format!("<Applied: {} stored, {} removed>", self.stored, self.removed)
    }
}

fn named(py: Python<'_>, names: &[&'static str], counts: &[u64]) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    for (name, count) in names.iter().zip(counts).filter(|it| *it.1 > 0) {
        dict.set_item(*name, *count)?;
    }
    Ok(dict.unbind())
}

impl Applied {
    fn new(py: Python<'_>, applied: index::Applied) -> PyResult<Self> {
        let Counts { ignored, malformed, .. } = applied.counts;
        Ok(Self {
            ts: applied.header.ts,
            dp_rank: applied.header.rank.unwrap_or(-1),
            session: applied.session,
            stored: applied.counts.stored,
            removed: applied.counts.removed,
            cleared: applied.counts.cleared,
            orphans: applied.counts.orphaned,
            untold: applied.counts.untold,
            adopted: applied.counts.adopted,
            lost: applied.counts.lost,
            resized: applied.counts.resized,
            ignored: named(py, &Ignored::NAMES, &ignored)?,
            malformed: named(py, &Fault::NAMES, &malformed)?,
        })
    }
}

/// Tokens of a prompt's prefix that an engine has, by the tier it would take them from: contiguous from
/// the start in the order of the fields, whole blocks, never the prompt's last token.
#[pyclass(frozen, eq, get_all, module = "native._core")]
#[derive(Clone, Copy, PartialEq)]
pub struct Match {
    device: u32,
    host: u32,
    disk: u32,
    remote: u32,
    /// Beyond the others: sent there a moment ago, not announced yet.
    predicted: u32,
}

impl From<Overlap> for Match {
    fn from(overlap: Overlap) -> Self {
        let Overlap { device, host, disk, remote, predicted } = overlap;
        Self { device, host, disk, remote, predicted }
    }
}

#[pymethods]
impl Match {
    /// Tokens that need no computing there.
    #[getter]
    fn total(&self) -> u32 {
        self.device + self.host + self.disk + self.remote + self.predicted
    }

    fn __repr__(&self) -> String {
        let Self { device, host, disk, remote, predicted } = self;
        format!(
            "Match(device={device}, host={host}, disk={disk}, remote={remote}, predicted={predicted})"
        )
    }
}

/// Sizes now, and counts since the start.
#[pyclass(frozen, get_all, module = "native._core")]
pub struct IndexStats {
    /// (block, engine) pairs; those of engines that were cleared a moment ago are still counted.
    pairs: usize,
    /// Distinct blocks.
    blocks: usize,
    /// Memory allocated.
    bytes: usize,
    /// Blocks that wait for a parent.
    orphans: usize,
    /// Blocks of prompts sent a moment ago.
    predicted: usize,
    engines: usize,
    stored: u64,
    removed: u64,
    cleared: u64,
    orphaned: u64,
    untold: u64,
    adopted: u64,
    lost: u64,
    resized: u64,
    evicted: u64,
    ignored: Py<PyDict>,
    malformed: Py<PyDict>,
}

/// Which engine holds which blocks. One thread may apply events while another looks prompts up.
#[pyclass(frozen, module = "native._core")]
pub struct Index {
    pub inner: Arc<index::Index>,
}

impl Index {
    /// Slots as the core takes them; an unknown one is one nobody has.
    fn slot(slot: usize) -> u16 {
        u16::try_from(slot).unwrap_or(u16::MAX)
    }
}

#[pymethods]
impl Index {
    /// Keeps at most `max_bytes` for blocks, counted at 64 bytes for every engine that has one. Beyond
    /// it the engine that has most gives up blocks that no lookup has matched of late; where there are
    /// none, new blocks are not taken (`ignored["full"]`).
    #[new]
    fn new(max_bytes: usize) -> Self {
        let stack = 0u8;
        // Unknown to strangers is enough: address space layout and time.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let secret =
            hash::mix(&raw const stack as u64) ^ now.map_or(0, |now| now.as_nanos() as u64);
        Self { inner: Arc::new(index::Index::new(max_bytes, hash::mix(secret))) }
    }

    /// A slot for one engine, or for one rank of it. `block_size`: tokens per block for as long as it has
    /// not said; 0 is 16. ValueError if there are 2048 already.
    #[pyo3(signature = (block_size=0))]
    fn add_engine(&self, block_size: u32) -> PyResult<usize> {
        let slot = self.inner.add_sized(block_size);
        slot.map(usize::from).ok_or_else(|| PyValueError::new_err("the index has no slot left"))
    }

    /// A number for a store that several engines share: `apply`, `clear`, `remove_engine`, `held`,
    /// `waiting` and `short` take it as an engine's slot. ValueError if there are too many.
    fn add_store(&self) -> PyResult<usize> {
        let number = self.inner.add_store();
        number
            .map(usize::from)
            .ok_or_else(|| PyValueError::new_err("the index has no room for a store"))
    }

    /// An engine can load what lies in a store; None: in none.
    #[pyo3(signature = (slot, store))]
    fn reach(&self, py: Python<'_>, slot: usize, store: Option<usize>) {
        py.detach(|| self.inner.reach(Self::slot(slot), store.map(Self::slot)));
    }

    /// Forgets an engine. The slot is reused.
    fn remove_engine(&self, py: Python<'_>, slot: usize) {
        py.detach(|| self.inner.remove_engine(Self::slot(slot)));
    }

    /// Forgets all that an engine holds, and its block size.
    fn clear(&self, py: Python<'_>, slot: usize) {
        py.detach(|| self.inner.clear(Self::slot(slot)));
    }

    /// Takes in one batch of events, a MessagePack `KVEventBatch` of vLLM. Never raises on what is in
    /// it: what is odd is counted.
    fn apply(&self, py: Python<'_>, slot: usize, payload: &[u8]) -> PyResult<Applied> {
        let applied = py.detach(|| self.inner.apply(Self::slot(slot), payload));
        Applied::new(py, applied)
    }

    /// A prompt was sent to an engine: for `ttl_s` seconds from `now` it counts as `predicted` there.
    /// Returns the prediction's number.
    fn predict(&self, slot: usize, prompt: &Prompt, now: f64, ttl_s: f64) -> u64 {
        self.inner.predict(Self::slot(slot), &prompt.inner, now, ttl_s)
    }

    /// The request of a prediction is over: it counts until `at` at the latest. Later calls have later
    /// times.
    fn settle(&self, prediction: u64, at: f64) {
        self.inner.settle(prediction, at);
    }

    /// A prompt was sent to an engine that announces nothing: it counts as `device` there until prompts
    /// of more than `capacity_tokens` have been sent after it.
    fn assume(&self, py: Python<'_>, slot: usize, prompt: &Prompt, capacity_tokens: usize) {
        py.detach(|| self.inner.assume(Self::slot(slot), &prompt.inner, capacity_tokens));
    }

    /// What each slot has of a prompt, in their order; zeros for a slot that nobody has.
    #[pyo3(name = "match")]
    fn matches(&self, prompt: &Prompt, slots: Vec<usize>, now: f64) -> Vec<Match> {
        let slots: Vec<u16> = slots.into_iter().map(Self::slot).collect();
        let mut out = Vec::new();
        self.inner.lookup(&prompt.inner, &slots, now, &mut out);
        out.into_iter().map(Match::from).collect()
    }

    /// Tokens per block that the engine's events have; 0 if it has not said.
    fn block_size(&self, slot: usize) -> u32 {
        self.inner.block_size(Self::slot(slot))
    }

    /// Tokens on an engine's device, as far as it has said or is assumed to hold them.
    fn tokens(&self, slot: usize) -> u64 {
        self.inner.sizes(Self::slot(slot)).tokens
    }

    /// Blocks an engine has said it has, in all its groups.
    fn held(&self, slot: usize) -> usize {
        self.inner.sizes(Self::slot(slot)).held
    }

    /// Blocks an engine has announced that wait for a parent to be known.
    fn waiting(&self, slot: usize) -> usize {
        self.inner.sizes(Self::slot(slot)).waiting
    }

    /// Blocks an engine has announced and that are not credited for want of room, since it was empty.
    fn short(&self, slot: usize) -> u64 {
        self.inner.sizes(Self::slot(slot)).short
    }

    /// Sizes now, and counts since the start.
    fn stats(&self, py: Python<'_>) -> PyResult<IndexStats> {
        let stats = py.detach(|| self.inner.stats());
        let counts = stats.counts;
        Ok(IndexStats {
            pairs: stats.pairs,
            blocks: stats.blocks,
            bytes: stats.bytes,
            orphans: stats.orphans,
            predicted: stats.predicted,
            engines: stats.engines,
            stored: counts.stored,
            removed: counts.removed,
            cleared: counts.cleared,
            orphaned: counts.orphaned,
            untold: counts.untold,
            adopted: counts.adopted,
            lost: counts.lost,
            resized: counts.resized,
            evicted: counts.evicted,
            ignored: named(py, &Ignored::NAMES, &counts.ignored)?,
            malformed: named(py, &Fault::NAMES, &counts.malformed)?,
        })
    }
}
