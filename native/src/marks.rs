//! Failures and successes of engines: when each worker saw them, and since when they count.

use std::sync::atomic::Ordering;

use crate::ledger::{Ledger, CONSECUTIVE, FAILED, FAILURES_KEPT, LAST_FAILURE, LAST_SUCCESS, RING};
use crate::shared::{self, get_f64, set_f64, Fault};
use crate::slots::Handle;

impl Ledger {
    pub fn mark_failure(&self, engine: Handle, now_s: f64) -> Result<bool, Fault> {
        self.write(engine, |row| {
            let failed = self.record(row, engine.slot, FAILED);
            let at = RING + failed.load(Ordering::Relaxed) as usize % FAILURES_KEPT;
            // A cell of zero bits means that nothing was written there.
            set_f64(self.record(row, engine.slot, at), now_s.max(f64::MIN_POSITIVE));
            shared::add(failed, 1);
            shared::add(self.record(row, engine.slot, CONSECUTIVE), 1);
            set_f64(self.record(row, engine.slot, LAST_FAILURE), now_s);
        })
    }

    pub fn mark_success(&self, engine: Handle, now_s: f64) -> Result<bool, Fault> {
        self.write(engine, |row| {
            self.record(row, engine.slot, CONSECUTIVE).store(0, Ordering::Relaxed);
            set_f64(self.record(row, engine.slot, LAST_SUCCESS), now_s);
        })
    }

    /// Forgets the marks made until `now_s`, of all workers: the engine has proved well again.
    pub fn clear_failures(&self, engine: Handle, now_s: f64) {
        if self.engine_at(engine.slot) == Some(engine) {
            set_f64(self.pardon_cell(engine.slot), now_s);
        }
    }

    /// Failures in the last `window_s`, all workers. A worker reports `FAILURES_KEPT` at most.
    pub fn failures(&self, engine: Handle, now_s: f64, window_s: f64) -> u64 {
        let since = (now_s - window_s).max(get_f64(self.pardon_cell(engine.slot)));
        let mut count = 0;
        for row in self.rows_of(engine) {
            let kept = self.record(row, engine.slot, FAILED).load(Ordering::Relaxed);
            for at in 0..(kept as usize).min(FAILURES_KEPT) {
                let time = get_f64(self.record(row, engine.slot, RING + at));
                count += u64::from(time > since && time <= now_s.max(f64::MIN_POSITIVE));
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Ledger, Ledger, Handle) {
        let a = Ledger::open(3, 1, None).unwrap();
        let b = Ledger::open(3, 1, Some(a.shared.fd())).unwrap();
        a.shared.bind(0).unwrap();
        b.shared.bind(2).unwrap();
        let engine = a.add_engine().unwrap();
        (a, b, engine)
    }

    #[test]
    fn failures_are_those_of_the_window_since_the_last_pardon() {
        let (a, b, engine) = pair();
        for t in 0..200 {
            a.mark_failure(engine, f64::from(t)).unwrap();
        }
        b.mark_failure(engine, 198.5).unwrap();
        assert_eq!(b.failures(engine, 199.0, 1.0), 2);
        assert_eq!(b.failures(engine, 199.0, 10.0), 11);
        assert_eq!(b.failures(engine, 199.0, 1e9), FAILURES_KEPT as u64 + 1);
        a.mark_success(engine, 200.0).unwrap();
        assert_eq!((a.totals(engine).consecutive, a.totals(engine).failed), (1, 201));
        b.clear_failures(engine, 198.5);
        assert_eq!(a.failures(engine, 199.0, 10.0), 1);
        assert_eq!(a.failures(engine, 300.0, 10.0), 0);
    }
}
