//! Histograms of times in shared cells: one count per bound (inclusive), one above all, the sum, then a
//! mark and how many values of its bucket lie up to it.
//!
//! The mark is one more bound, set while running: a service level. It splits a bucket, so that a reader
//! can put it among the bounds; once it moves, the split starts from zero and the buckets go on.
//!
//! Bounds are made for LLM serving: dense where service levels are usually set, reaching from one step
//! of a small model to a request that waits for minutes. They are constants, as readers of another
//! process must agree on them.

use crate::shared::{add, add_f64, get_f64, Shared};
use std::sync::atomic::Ordering;

/// Seconds. Gaps between chunks, and time per output token.
pub const STEP_BOUNDS_S: &[f64] = &[
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.0175,
    0.02, 0.0225, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.125, 0.15,
    0.175, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0,
];

/// Seconds. Time to the first token.
pub const FIRST_BOUNDS_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125,
    0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0,
    15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0,
];

/// Seconds. A whole request.
pub const WHOLE_BOUNDS_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0,
    5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0,
    3600.0,
];

/// Most bounds one histogram may have: the relay copies those of the gaps into a fixed array.
pub const BOUNDS_MAX: usize = 64;

/// Cells that a histogram over `bounds` takes.
pub const fn cells(bounds: &[f64]) -> usize {
    bounds.len() + 4
}

/// Cells of a histogram behind its counts.
pub const SUM: usize = 1;
pub const MARK: usize = 2;
pub const WITHIN: usize = 3;

fn bucket(bounds: &[f64], value_s: f64) -> usize {
    bounds.partition_point(|&bound| bound < value_s)
}

/// Sets the mark; one that is no time (0, NaN) is none.
pub fn mark(shared: &Shared, first: usize, bounds: &[f64], mark_s: f64) {
    let mark_s = if mark_s > 0.0 && mark_s.is_finite() { mark_s } else { 0.0 };
    let cell = shared.cell(first + bounds.len() + MARK);
    if cell.load(Ordering::Relaxed) != mark_s.to_bits() {
        shared.cell(first + bounds.len() + WITHIN).store(0, Ordering::Relaxed);
        cell.store(mark_s.to_bits(), Ordering::Release);
    }
}

/// Counts one value; a negative, infinite or absent (NaN) one is not counted.
pub fn observe(shared: &Shared, first: usize, bounds: &[f64], value_s: f64) {
    if !(value_s >= 0.0 && value_s.is_finite()) {
        return;
    }
    let at = bucket(bounds, value_s);
    let mark_s = get_f64(shared.cell(first + bounds.len() + MARK));
    add(shared.cell(first + at), 1);
    if value_s <= mark_s && at == bucket(bounds, mark_s) {
        add(shared.cell(first + bounds.len() + WITHIN), 1);
    }
    add_f64(shared.cell(first + bounds.len() + SUM), value_s);
}

/// Counts per bucket (not cumulative) and the sum of a histogram's values; `within`: values of the
/// mark's bucket up to the mark.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    pub counts: Vec<u64>,
    pub sum_s: f64,
    pub within: u64,
}

impl Histogram {
    pub fn new(bounds: &[f64]) -> Self {
        Self { counts: vec![0; bounds.len() + 1], sum_s: 0.0, within: 0 }
    }

    /// Adds the cells that start at `first`; what was counted for another mark is not within this one.
    pub fn take(&mut self, shared: &Shared, first: usize, mark_s: f64) {
        let cell = |at| shared.cell(first + self.counts.len() - 1 + at);
        let within = cell(WITHIN).load(Ordering::Relaxed);
        if mark_s > 0.0 && cell(MARK).load(Ordering::Acquire) == mark_s.to_bits() {
            self.within += within;
        }
        self.sum_s += get_f64(cell(SUM));
        for (i, count) in self.counts.iter_mut().enumerate() {
            *count += shared.cell(first + i).load(Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_and_fit() {
        for bounds in [STEP_BOUNDS_S, FIRST_BOUNDS_S, WHOLE_BOUNDS_S] {
            assert!(bounds.len() <= BOUNDS_MAX);
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn a_bound_is_inclusive_and_nonsense_is_left_out() {
        let bounds = [1.0, 2.0];
        let shared = Shared::open("test", 1, &[], cells(&bounds), None).unwrap();
        for value in [0.0, 1.0, 1.5, 2.0, 2.5, -1.0, f64::NAN, f64::INFINITY] {
            observe(&shared, 0, &bounds, value);
        }
        let mut histogram = Histogram::new(&bounds);
        histogram.take(&shared, 0, 0.0);
        assert_eq!(histogram, Histogram { counts: vec![2, 2, 1], sum_s: 7.0, within: 0 });
    }

    #[test]
    fn a_mark_splits_its_bucket_and_starts_anew_where_it_moves() {
        let bounds = [1.0, 2.0];
        let shared = Shared::open("test", 1, &[], cells(&bounds), None).unwrap();
        let read = |mark_s| {
            let mut histogram = Histogram::new(&bounds);
            histogram.take(&shared, 0, mark_s);
            (histogram.counts, histogram.within)
        };
        for mark_s in [1.5, 1.5, 5.0] {
            mark(&shared, 0, &bounds, mark_s);
            for value in [0.5, 1.25, 1.5, 1.75, 4.0, 6.0] {
                observe(&shared, 0, &bounds, value);
            }
        }
        assert_eq!(read(5.0), (vec![3, 9, 6], 1));
        assert_eq!(read(1.5).1, 0);
        mark(&shared, 0, &bounds, f64::NAN);
        observe(&shared, 0, &bounds, 0.5);
        assert_eq!((read(0.0).1, read(5.0).1), (0, 0));
    }
}
