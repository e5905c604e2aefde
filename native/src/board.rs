//! What is said of engines: their health, by whoever checks it, and their connections and marks, by each
//! worker of its own.
//!
//! Health is one word per engine, with one writer; every change adds one to a count that readers compare
//! with the one they saw last. Words of a former tenant of the slot read as 0, nothing known.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ledger::{Ledger, SAID};
use crate::shared::{self, Fault};
use crate::slots::Handle;

/// What a worker has now; taken back when it ends.
pub const GAUGES: &[&str] = &["idle", "active", "marks", "benched"];
/// What it did since it said so last; kept.
pub const COUNTS: &[&str] = &["opened", "reused", "connect_errors"];

/// Sums over workers, in the order of the names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said {
    pub gauges: [u64; GAUGES.len()],
    pub counts: [u64; COUNTS.len()],
}

/// Spare word of a worker's line: its client connections plus one, 0 = it accepts none.
const CROWD: usize = 2;

impl Ledger {
    /// Says how many clients this worker holds; `None`: it accepts no more.
    pub fn say_clients(&self, clients: Option<u64>) -> Result<(), Fault> {
        if let Some(row) = self.shared.row()? {
            let word = clients.map_or(0, |n| n + 1);
            self.shared.spare(row, CROWD).store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The fewest clients that any other worker which accepts holds; `None`: there is no other.
    pub fn fewest_clients(&self) -> Result<Option<u64>, Fault> {
        let own = self.shared.row()?;
        let others = (0..self.shared.rows()).filter(|&row| Some(row) != own);
        let words = others.map(|row| self.shared.spare(row, CROWD).load(Ordering::Relaxed));
        Ok(words.filter(|&word| word > 0).min().map(|word| word - 1))
    }

    pub(crate) fn forget_clients(&self, row: usize) {
        self.shared.spare(row, CROWD).store(0, Ordering::Relaxed);
    }

    /// Says how an engine is: 0 = not known, else the caller's word. False: it was removed.
    pub fn set_health(&self, engine: Handle, word: u32) -> bool {
        self.put_word(self.health_cell(engine.slot), engine, word)
    }

    pub fn health(&self, engine: Handle) -> u32 {
        Self::word(self.health_cell(engine.slot), engine)
    }

    /// Moves an engine to a role: 0 = its own, else the caller's word. False: it was removed.
    pub fn set_role(&self, engine: Handle, word: u32) -> bool {
        self.put_word(self.role_cell(engine.slot), engine, word)
    }

    pub fn role(&self, engine: Handle) -> u32 {
        Self::word(self.role_cell(engine.slot), engine)
    }

    fn put_word(&self, cell: &AtomicU64, engine: Handle, word: u32) -> bool {
        if self.engine_at(engine.slot) != Some(engine) {
            return false;
        }
        let value = u64::from(engine.generation) << 32 | u64::from(word);
        if cell.swap(value, Ordering::AcqRel) != value {
            self.health_changes().fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// A former tenant's word is none.
    fn word(cell: &AtomicU64, engine: Handle) -> u32 {
        let value = cell.load(Ordering::Acquire);
        match (value >> 32) as u32 == engine.generation {
            true => value as u32,
            false => 0,
        }
    }

    /// How often any engine's health or role has changed.
    pub fn health_version(&self) -> u64 {
        self.health_changes().load(Ordering::Acquire)
    }

    /// Replaces this worker's gauges of an engine and adds to its counts.
    pub fn say(&self, engine: Handle, said: &Said) -> Result<bool, Fault> {
        self.write(engine, |row| {
            for (at, &value) in said.gauges.iter().enumerate() {
                self.record(row, engine.slot, SAID + at).store(value, Ordering::Relaxed);
            }
            for (at, &n) in said.counts.iter().enumerate() {
                shared::add(self.record(row, engine.slot, SAID + GAUGES.len() + at), n);
            }
        })
    }

    /// What all workers said of an engine.
    pub fn said(&self, engine: Handle) -> Said {
        let mut sum = Said::default();
        for row in self.rows_of(engine) {
            let word = |at| self.record(row, engine.slot, SAID + at).load(Ordering::Relaxed);
            for (at, gauge) in sum.gauges.iter_mut().enumerate() {
                *gauge += word(at);
            }
            for (at, count) in sum.counts.iter_mut().enumerate() {
                *count += word(GAUGES.len() + at);
            }
        }
        sum
    }

    pub(crate) fn forget_gauges(&self, row: usize, slot: usize) {
        for at in 0..GAUGES.len() {
            self.record(row, slot, SAID + at).store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_one_word_and_every_change_is_counted() {
        let a = Ledger::open(2, 2, None).unwrap();
        let b = Ledger::open(2, 2, Some(a.shared.fd())).unwrap();
        let engine = a.add_engine().unwrap();
        assert_eq!((b.health(engine), b.health_version()), (0, 0));
        assert!(a.set_health(engine, 2) && a.set_health(engine, 2));
        assert_eq!((b.health(engine), b.health_version()), (2, 1));
        assert!(b.set_role(engine, 3));
        assert_eq!((a.role(engine), a.health(engine), a.health_version()), (3, 2, 2));
        a.remove_engine(engine);
        assert!(!a.set_health(engine, 1));
        a.add_engine().unwrap();
        let successor = a.add_engine().unwrap();
        assert_eq!(successor.slot, engine.slot);
        assert_eq!((b.health(successor), b.health(engine)), (0, 2));
        assert_eq!((b.role(successor), b.role(engine)), (0, 3));
    }

    #[test]
    fn a_worker_sees_who_holds_the_fewest_clients() {
        let a = Ledger::open(3, 1, None).unwrap();
        let b = Ledger::open(3, 1, Some(a.shared.fd())).unwrap();
        a.shared.bind(1).unwrap();
        b.shared.bind(2).unwrap();
        a.say_clients(Some(7)).unwrap();
        assert_eq!((a.fewest_clients(), b.fewest_clients()), (Ok(None), Ok(Some(7))));
        b.say_clients(Some(0)).unwrap();
        assert_eq!(a.fewest_clients(), Ok(Some(0)));
        b.say_clients(None).unwrap();
        assert_eq!(a.fewest_clients(), Ok(None));
        b.retire(1).unwrap();
        assert_eq!(b.fewest_clients(), Ok(None));
    }

    #[test]
    fn gauges_go_with_their_worker_and_counts_stay() {
        let a = Ledger::open(2, 1, None).unwrap();
        let b = Ledger::open(2, 1, Some(a.shared.fd())).unwrap();
        a.shared.bind(0).unwrap();
        b.shared.bind(1).unwrap();
        let engine = a.add_engine().unwrap();
        for _ in 0..2 {
            a.say(engine, &Said { gauges: [1, 2, 3, 1], counts: [4, 5, 6] }).unwrap();
        }
        b.say(engine, &Said { gauges: [10, 0, 0, 0], counts: [1, 0, 0] }).unwrap();
        assert_eq!(b.said(engine), Said { gauges: [11, 2, 3, 1], counts: [9, 10, 12] });
        b.retire(0).unwrap();
        assert_eq!(b.said(engine), Said { gauges: [10, 0, 0, 0], counts: [9, 10, 12] });
        assert_eq!(b.failures(engine, 9.0, 9.0), 0);
    }
}
