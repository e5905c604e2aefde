//! Histograms of times in shared cells: one count per bound (inclusive), one above all, then the sum.
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
    bounds.len() + 2
}

/// Counts one value; a negative, infinite or absent (NaN) one is not counted.
pub fn observe(shared: &Shared, first: usize, bounds: &[f64], value_s: f64) {
    if !(value_s >= 0.0 && value_s.is_finite()) {
        return;
    }
    let bucket = bounds.partition_point(|&bound| bound < value_s);
    add(shared.cell(first + bucket), 1);
    add_f64(shared.cell(first + bounds.len() + 1), value_s);
}

/// Counts per bucket (not cumulative) and the sum of a histogram's values.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    pub counts: Vec<u64>,
    pub sum_s: f64,
}

impl Histogram {
    pub fn new(bounds: &[f64]) -> Self {
        Self { counts: vec![0; bounds.len() + 1], sum_s: 0.0 }
    }

    /// Adds the cells that start at `first`.
    pub fn take(&mut self, shared: &Shared, first: usize) {
        for (i, count) in self.counts.iter_mut().enumerate() {
            *count += shared.cell(first + i).load(Ordering::Relaxed);
        }
        self.sum_s += get_f64(shared.cell(first + self.counts.len()));
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
        histogram.take(&shared, 0);
        assert_eq!(histogram, Histogram { counts: vec![2, 2, 1], sum_s: 7.0 });
    }
}
