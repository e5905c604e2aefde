//! Named counters and gauges of the whole gateway, one cell per worker and name.

use std::sync::atomic::Ordering;

use crate::hash;
use crate::shared::{Fault, Shared};

/// Indices 0 to `counters` are counters, which keep what dead workers counted; the rest are gauges.
pub struct Counters {
    pub shared: Shared,
    names: Vec<String>,
    counters: usize,
}

impl Counters {
    pub fn open(
        workers: usize,
        counters: Vec<String>,
        gauges: Vec<String>,
        fd: Option<i32>,
    ) -> Result<Self, String> {
        let count = counters.len();
        let names = [counters, gauges].concat();
        for (i, name) in names.iter().enumerate() {
            if names[..i].contains(name) {
                return Err(format!("`{name}` is declared twice"));
            }
        }
        let layout = hash::text(names.join("\n").as_bytes()) as usize;
        let cells = workers * names.len().next_multiple_of(8);
        let shared = Shared::open("counters", workers, &[count, names.len(), layout], cells, fd)?;
        Ok(Self { shared, names, counters: count })
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn at(&self, row: usize, index: usize) -> usize {
        row * self.names.len().next_multiple_of(8) + index
    }

    fn check(&self, index: usize) -> Result<(), Fault> {
        match index < self.names.len() {
            true => Ok(()),
            false => Err(Fault::Value(format!("{index} is outside 0..{}", self.names.len()))),
        }
    }

    /// A counter takes no negative `n`; a gauge is this worker's part of a sum.
    pub fn add(&self, index: usize, n: i64) -> Result<(), Fault> {
        self.check(index)?;
        if index < self.counters && n < 0 {
            return Err(Fault::Value(format!("`{}` only goes up", self.names[index])));
        }
        if let Some(row) = self.shared.row()? {
            crate::shared::add(self.shared.cell(self.at(row, index)), n as u64);
        }
        Ok(())
    }

    pub fn set(&self, index: usize, value: i64) -> Result<(), Fault> {
        self.check(index)?;
        if index < self.counters {
            return Err(Fault::Value(format!("`{}` is no gauge", self.names[index])));
        }
        if let Some(row) = self.shared.row()? {
            self.shared.cell(self.at(row, index)).store(value as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sum over workers.
    pub fn value(&self, index: usize) -> Result<i64, Fault> {
        self.check(index)?;
        let cell = |row| self.shared.cell(self.at(row, index)).load(Ordering::Relaxed) as i64;
        Ok((0..self.shared.rows()).map(cell).fold(0, i64::wrapping_add))
    }

    pub fn retire(&self, worker: usize) -> Result<bool, String> {
        let taken = self.shared.retire(worker)?;
        if taken {
            for index in self.counters..self.names.len() {
                self.shared.cell(self.at(worker, index)).store(0, Ordering::Relaxed);
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(fd: Option<i32>, gauge: &str) -> Result<Counters, String> {
        Counters::open(2, vec!["seen".into()], vec![gauge.into()], fd)
    }

    #[test]
    fn counters_stay_and_gauges_go_with_their_worker() {
        let a = open(None, "open").unwrap();
        let b = open(Some(a.shared.fd()), "open").unwrap();
        assert!(open(Some(a.shared.fd()), "shut").is_err() && open(None, "seen").is_err());
        assert_eq!(a.add(0, 1), Err(Fault::Unbound));
        a.shared.bind(0).unwrap();
        b.shared.bind(1).unwrap();
        a.add(0, 5).unwrap();
        b.add(0, 6).unwrap();
        a.set(1, 7).unwrap();
        b.add(1, -2).unwrap();
        assert_eq!((a.value(0), a.value(1)), (Ok(11), Ok(5)));
        assert!(a.add(0, -1).is_err() && a.set(0, 1).is_err() && a.add(2, 1).is_err());
        b.retire(0).unwrap();
        a.add(0, 5).unwrap();
        assert_eq!((b.value(0), b.value(1)), (Ok(11), Ok(-2)));
    }
}
