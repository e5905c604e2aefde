//! Python's view of the ledger.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::board::{Said, COUNTS, GAUGES};
use crate::ledger::{self, EngineTotals, Work};
use crate::py_shared::value_error;
use crate::slots::Handle;

/// Load and failures per engine in shared memory, summed over workers.
///
/// Engines are named by handles from `add_engine`. Everything that writes needs `bind` first (RuntimeError)
/// and does nothing once the slot was retired. ValueError for handles and workers that cannot be.
#[pyclass(frozen, module = "native._core")]
pub struct Ledger {
    pub core: Arc<ledger::Ledger>,
}

impl Ledger {
    pub fn handle(&self, packed: u64) -> PyResult<Handle> {
        Handle::unpack(packed, self.core.engines(), "engines").map_err(value_error)
    }
}

/// An engine's sums over all workers; times in seconds of the caller's clock, 0.0 = never.
#[pyclass(frozen, get_all, module = "native._core")]
pub struct EngineLoad {
    inflight: u64,
    prefill_tokens: u64,
    decode_blocks: u64,
    dispatched: u64,
    failed: u64,
    consecutive: u64,
    last_failure_s: f64,
    last_success_s: f64,
}

impl From<EngineTotals> for EngineLoad {
    fn from(totals: EngineTotals) -> Self {
        Self {
            inflight: totals.inflight,
            prefill_tokens: totals.work.prefill_tokens,
            decode_blocks: totals.work.decode_blocks,
            dispatched: totals.dispatched,
            failed: totals.failed,
            consecutive: totals.consecutive,
            last_failure_s: totals.last_failure_s,
            last_success_s: totals.last_success_s,
        }
    }
}

#[pymethods]
impl Ledger {
    /// Anonymous shared memory, or that of the descriptor `fd`, which is copied and stays the caller's.
    #[new]
    #[pyo3(signature = (workers, engines, fd=None))]
    fn new(workers: usize, engines: usize, fd: Option<i32>) -> PyResult<Self> {
        let core = ledger::Ledger::open(workers, engines, fd).map_err(value_error)?;
        Ok(Self { core: Arc::new(core) })
    }

    /// Descriptor to hand to a child process (not inheritable by itself).
    #[getter]
    fn fd(&self) -> i32 {
        self.core.shared.fd()
    }

    #[getter]
    fn workers(&self) -> usize {
        self.core.shared.workers()
    }

    #[getter]
    fn engines(&self) -> usize {
        self.core.engines()
    }

    /// Makes this object the one writer of a worker's slot.
    fn bind(&self, worker: usize) -> PyResult<()> {
        self.core.shared.bind(worker).map_err(value_error)
    }

    /// Takes back what a worker whose process has ended had in flight; False if its slot was free.
    fn retire(&self, worker: usize) -> PyResult<bool> {
        self.core.retire(worker).map_err(value_error)
    }

    fn beat(&self, now_s: f64) -> PyResult<()> {
        Ok(self.core.shared.beat(now_s)?)
    }

    /// Time of a worker's last beat; None if its slot is free or it has not beaten.
    fn last_beat(&self, worker: usize) -> PyResult<Option<f64>> {
        self.core.shared.check_worker(worker).map_err(value_error)?;
        Ok(self.core.shared.last_beat(worker))
    }

    /// Handle of a new engine. ValueError when all slots are taken.
    fn add_engine(&self) -> PyResult<u64> {
        self.core.add_engine().map(Handle::pack).map_err(value_error)
    }

    /// Frees the engine's slot, best once nothing is in flight. False if it was removed before.
    fn remove_engine(&self, engine: u64) -> PyResult<bool> {
        Ok(self.core.remove_engine(self.handle(engine)?))
    }

    /// Counts a request in, with the work it brings. False: a later engine has the slot, not counted.
    #[pyo3(signature = (engine, prefill_tokens=0, decode_blocks=0))]
    fn acquire(&self, engine: u64, prefill_tokens: u64, decode_blocks: u64) -> PyResult<bool> {
        let work = Work { prefill_tokens, decode_blocks };
        Ok(self.core.acquire(self.handle(engine)?, work)?)
    }

    /// Counts a request out. False: ignored, as it was one too many or of an earlier engine.
    #[pyo3(signature = (engine, prefill_tokens=0, decode_blocks=0))]
    fn release(&self, engine: u64, prefill_tokens: u64, decode_blocks: u64) -> PyResult<bool> {
        let work = Work { prefill_tokens, decode_blocks };
        Ok(self.core.release(self.handle(engine)?, work)?)
    }

    /// Adds work of a request that is in flight already.
    #[pyo3(signature = (engine, prefill_tokens=0, decode_blocks=0))]
    fn charge(&self, engine: u64, prefill_tokens: u64, decode_blocks: u64) -> PyResult<bool> {
        let work = Work { prefill_tokens, decode_blocks };
        Ok(self.core.charge(self.handle(engine)?, work)?)
    }

    /// Takes work off that is done; never below zero.
    #[pyo3(signature = (engine, prefill_tokens=0, decode_blocks=0))]
    fn discharge(&self, engine: u64, prefill_tokens: u64, decode_blocks: u64) -> PyResult<bool> {
        let work = Work { prefill_tokens, decode_blocks };
        Ok(self.core.discharge(self.handle(engine)?, work)?)
    }

    /// Requests in flight at an engine, all workers.
    fn inflight(&self, engine: u64) -> PyResult<u64> {
        Ok(self.core.inflight(self.handle(engine)?))
    }

    /// One more prompt lies at the engine for another one to fetch, or one less; never below zero.
    fn pend(&self, engine: u64, is_more: bool) -> PyResult<bool> {
        Ok(self.core.pend(self.handle(engine)?, is_more)?)
    }

    /// Prompts that lie at an engine for others, all workers.
    fn pending(&self, engine: u64) -> PyResult<u64> {
        Ok(self.core.pending(self.handle(engine)?))
    }

    /// (handle, requests in flight) of every engine there is.
    fn inflight_all(&self) -> Vec<(u64, u64)> {
        let slots = 0..self.core.engines();
        let present = slots.filter_map(|slot| self.core.engine_at(slot));
        present.map(|engine| (engine.pack(), self.core.inflight(engine))).collect()
    }

    fn mark_failure(&self, engine: u64, now_s: f64) -> PyResult<bool> {
        Ok(self.core.mark_failure(self.handle(engine)?, now_s)?)
    }

    fn mark_success(&self, engine: u64, now_s: f64) -> PyResult<bool> {
        Ok(self.core.mark_success(self.handle(engine)?, now_s)?)
    }

    /// Failures marked in the last `window_s`, all workers, at most 64 of each; less those pardoned.
    fn failures(&self, engine: u64, now_s: f64, window_s: f64) -> PyResult<u64> {
        Ok(self.core.failures(self.handle(engine)?, now_s, window_s))
    }

    /// Pardons the failures marked until `now_s`, of all workers.
    fn clear_failures(&self, engine: u64, now_s: f64) -> PyResult<()> {
        self.core.clear_failures(self.handle(engine)?, now_s);
        Ok(())
    }

    fn load(&self, engine: u64) -> PyResult<EngineLoad> {
        Ok(self.core.totals(self.handle(engine)?).into())
    }

    /// Says how an engine is: 0 = not known, else the caller's word. False: it was removed.
    fn set_health(&self, engine: u64, word: u32) -> PyResult<bool> {
        Ok(self.core.set_health(self.handle(engine)?, word))
    }

    fn health(&self, engine: u64) -> PyResult<u32> {
        Ok(self.core.health(self.handle(engine)?))
    }

    /// Moves an engine to a role: 0 = its own, else the caller's word. False: it was removed.
    fn set_role(&self, engine: u64, word: u32) -> PyResult<bool> {
        Ok(self.core.set_role(self.handle(engine)?, word))
    }

    fn role(&self, engine: u64) -> PyResult<u32> {
        Ok(self.core.role(self.handle(engine)?))
    }

    /// How often the health or role of any engine has changed: a reader that saw this number saw it all.
    fn health_version(&self) -> u64 {
        self.core.health_version()
    }

    /// Says how many clients this worker holds; None: it accepts no more.
    fn say_clients(&self, clients: Option<u64>) -> PyResult<()> {
        Ok(self.core.say_clients(clients)?)
    }

    /// The fewest clients that any other worker which accepts holds; None: there is no other.
    fn fewest_clients(&self) -> PyResult<Option<u64>> {
        Ok(self.core.fewest_clients()?)
    }

    /// What this worker has at an engine: `gauges` (idle, active, marks, benched) replace the former ones,
    /// `counts` (opened, reused, connect_errors since the last time) are added.
    fn say(
        &self,
        engine: u64,
        gauges: [u64; GAUGES.len()],
        counts: [u64; COUNTS.len()],
    ) -> PyResult<bool> {
        Ok(self.core.say(self.handle(engine)?, &Said { gauges, counts })?)
    }

    /// The same, summed over workers.
    fn said(&self, engine: u64) -> PyResult<([u64; GAUGES.len()], [u64; COUNTS.len()])> {
        let said = self.core.said(self.handle(engine)?);
        Ok((said.gauges, said.counts))
    }

    /// Releases ignored so far: (one too many, of an engine that was removed).
    fn ignored(&self) -> (u64, u64) {
        self.core.ignored()
    }
}
