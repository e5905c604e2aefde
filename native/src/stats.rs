//! What requests did, per series (a pair of upstream and route) and worker, in shared memory.
//!
//! One call per finished request; the gaps between chunks are counted by the relay itself, into cells
//! lent to it. A block of cells carries the generation of the series it counts for, and starts from zero
//! when the slot has a new tenant.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::{self, Histogram, FIRST_BOUNDS_S, STEP_BOUNDS_S, WHOLE_BOUNDS_S};
use crate::shared::{add, Fault, Shared};
use crate::slots::{self, Handle};

/// Status classes 0 (no status) and 1xx to 5xx.
pub const CLASSES: usize = 6;
/// Outcomes the caller may tell apart.
pub const OUTCOMES: usize = 32;
/// Lanes the caller may tell apart.
pub const LANES: usize = 2;
/// Ways to end, and words on a service level, that the caller may tell apart; word 0 counts nowhere.
pub const ENDS: usize = 8;
pub const WORDS: usize = 16;
/// Service levels that a request may break: of `ttft`, `tpot` and `e2el`.
pub const LEVELS: usize = 3;

/// Sums over requests, in the order of their cells.
pub const SUMS: &[&str] = &[
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "chunks",
    "bytes_in",
    "bytes_out",
    "good_tokens",
    "uncounted",
];

/// Histograms that `record` fills, in the order of their cells, then the one the relay fills.
pub const HISTOGRAMS: &[(&str, &[f64])] = &[
    ("ttft", FIRST_BOUNDS_S),
    ("tpot", STEP_BOUNDS_S),
    ("e2el", WHOLE_BOUNDS_S),
    ("duration", WHOLE_BOUNDS_S),
    ("ttfo", FIRST_BOUNDS_S),
    ("choice_ttft", FIRST_BOUNDS_S),
    ("choice_tpot", STEP_BOUNDS_S),
    ("choice_e2el", WHOLE_BOUNDS_S),
    ("itl", STEP_BOUNDS_S),
];
pub const RECORDED: usize = 8;
const ITL: usize = 8;

/// Cells of a block.
const OFFERED: usize = 0;
const END: usize = OFFERED + 1;
const WORD: usize = END + ENDS;
const BROKEN: usize = WORD + WORDS;
const LANE: usize = BROKEN + LEVELS;
const SUM: usize = LANE + LANES;
/// Requests whose usage was seen: how many the token sums are about.
const METERED: usize = SUM + SUMS.len();
const REQUESTS: usize = METERED + 1;
const TIMES: usize = REQUESTS + CLASSES * OUTCOMES;

const fn histogram_at(index: usize) -> usize {
    let mut at = TIMES;
    let mut i = 0;
    while i < index {
        at += histogram::cells(HISTOGRAMS[i].1);
        i += 1;
    }
    at
}

/// Whose counts these are; right behind the histogram that the relay writes, which looks at it.
const GENERATION: usize = histogram_at(HISTOGRAMS.len());
/// Cells of a block, in whole cache lines.
const BLOCK: usize = (GENERATION + 1).next_multiple_of(8);

/// One finished request. Times in seconds, negative or NaN = does not apply; counts negative = not known.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// HTTP status of the reply, 0 = none was sent.
    pub status: u16,
    pub outcome: usize,
    pub lane: usize,
    pub end: usize,
    /// What is said of it and its service levels.
    pub word: usize,
    /// Levels it broke, a bit each.
    pub broken: usize,
    /// As in `HISTOGRAMS`.
    pub times_s: [f64; RECORDED],
    /// As in `SUMS`.
    pub sums: [i64; SUMS.len()],
}

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// (status class, outcome, count), only where it is not zero.
    pub requests: Vec<(usize, usize, u64)>,
    pub offered: u64,
    pub ends: [u64; ENDS],
    pub words: [u64; WORDS],
    pub broken: [u64; LEVELS],
    pub lanes: [u64; LANES],
    pub sums: [u64; SUMS.len()],
    pub metered: u64,
    pub histograms: Vec<Histogram>,
}

pub struct Stats {
    pub shared: Shared,
    series: usize,
}

impl Stats {
    pub fn open(workers: usize, series: usize, fd: Option<i32>) -> Result<Self, String> {
        if !(1..=65536).contains(&series) {
            return Err(format!("`series` must be from 1 to 65536, got {series}"));
        }
        let states = series.next_multiple_of(8);
        let cells = states + workers * series * BLOCK;
        Ok(Self { shared: Shared::open("stats", workers, &[series, BLOCK], cells, fd)?, series })
    }

    pub fn series(&self) -> usize {
        self.series
    }

    pub fn add_series(&self) -> Result<Handle, String> {
        slots::take_slot(&self.shared, 0, self.series)
            .ok_or_else(|| format!("there is room for {} series", self.series))
    }

    pub fn remove_series(&self, series: Handle) -> bool {
        slots::free_slot(&self.shared, 0, series)
    }

    fn block(&self, row: usize, series: Handle) -> usize {
        self.series.next_multiple_of(8) + (row * self.series + series.slot) * BLOCK
    }

    /// The writer's block, counting for this series; `None` once it counts for a later one.
    fn enter(&self, series: Handle) -> Result<Option<usize>, Fault> {
        let Some(row) = self.shared.row()? else { return Ok(None) };
        let block = self.block(row, series);
        let cell = self.shared.cell(block + GENERATION);
        let wanted = u64::from(series.generation);
        let found = cell.load(Ordering::Relaxed);
        if found > wanted {
            return Ok(None);
        }
        if found < wanted {
            for at in 0..GENERATION {
                self.shared.cell(block + at).store(0, Ordering::Relaxed);
            }
            cell.store(wanted, Ordering::Release);
        }
        Ok(Some(block))
    }

    /// Counts a request; false if it was not, as its series is gone.
    pub fn record(&self, series: Handle, request: &Request) -> Result<bool, Fault> {
        for (name, value, most) in [
            ("status", usize::from(request.status), 999),
            ("outcome", request.outcome, OUTCOMES - 1),
            ("lane", request.lane, LANES - 1),
            ("end", request.end, ENDS - 1),
            ("word", request.word, WORDS - 1),
            ("broken", request.broken, (1 << LEVELS) - 1),
        ] {
            if value > most {
                return Err(Fault::Value(format!("`{name}` must be at most {most}, got {value}")));
            }
        }
        let Some(block) = self.enter(series)? else { return Ok(false) };
        // An engine may say 600 or more: that is its fault, and counted as such.
        let class = usize::from(request.status / 100).min(CLASSES - 1);
        let cell = |at| self.shared.cell(block + at);
        add(cell(REQUESTS + class * OUTCOMES + request.outcome), 1);
        add(cell(LANE + request.lane), 1);
        add(cell(END + request.end), 1);
        add(cell(WORD + request.word), 1);
        for level in (0..LEVELS).filter(|level| request.broken >> level & 1 == 1) {
            add(cell(BROKEN + level), 1);
        }
        for (i, &n) in request.sums.iter().enumerate() {
            add(cell(SUM + i), n.max(0) as u64);
        }
        if request.sums[0] >= 0 || request.sums[1] >= 0 {
            add(cell(METERED), 1);
        }
        for (i, &time_s) in request.times_s.iter().enumerate() {
            histogram::observe(&self.shared, block + histogram_at(i), HISTOGRAMS[i].1, time_s);
        }
        Ok(true)
    }

    /// Counts a request that has come; false if it was not.
    pub fn offer(&self, series: Handle) -> Result<bool, Fault> {
        let Some(block) = self.enter(series)? else { return Ok(false) };
        add(self.shared.cell(block + OFFERED), 1);
        Ok(true)
    }

    /// Sets the marks of this writer's histograms, in the order of `HISTOGRAMS`.
    pub fn mark(&self, series: Handle, marks_s: &[f64]) -> Result<bool, Fault> {
        let Some(block) = self.enter(series)? else { return Ok(false) };
        for (i, &mark_s) in marks_s.iter().enumerate().take(HISTOGRAMS.len()) {
            histogram::mark(&self.shared, block + histogram_at(i), HISTOGRAMS[i].1, mark_s);
        }
        Ok(true)
    }

    /// The cells of the writer's histogram of gaps: counts, the sum as a double, the mark as a double, the
    /// count of its bucket up to it, then the generation of the series: whoever finds another one there later writes nothing more.
    pub fn itl_cells(&self, series: Handle) -> Result<&[AtomicU64], Fault> {
        match self.enter(series)? {
            Some(block) => {
                let at = block + histogram_at(ITL);
                Ok(self.shared.cells(at, histogram::cells(HISTOGRAMS[ITL].1) + 1))
            }
            None => Err(Fault::Value(format!("series {} is gone", series.pack()))),
        }
    }

    /// Sums over all workers there ever were. `marks_s`: those that splits of buckets are read for.
    pub fn snapshot(&self, series: Handle, marks_s: &[f64]) -> Snapshot {
        let mut counts = vec![0u64; TIMES];
        let mut histograms: Vec<_> = HISTOGRAMS.iter().map(|(_, b)| Histogram::new(b)).collect();
        for row in 0..self.shared.rows() {
            let block = self.block(row, series);
            let found = self.shared.cell(block + GENERATION).load(Ordering::Acquire);
            if found != u64::from(series.generation) {
                continue;
            }
            for (at, count) in counts.iter_mut().enumerate() {
                *count += self.shared.cell(block + at).load(Ordering::Relaxed);
            }
            for (i, histogram) in histograms.iter_mut().enumerate() {
                let mark_s = marks_s.get(i).copied().unwrap_or(0.0);
                histogram.take(&self.shared, block + histogram_at(i), mark_s);
            }
        }
        let nonzero = (0..CLASSES * OUTCOMES).filter(|i| counts[REQUESTS + i] > 0);
        Snapshot {
            requests: nonzero.map(|i| (i / OUTCOMES, i % OUTCOMES, counts[REQUESTS + i])).collect(),
            offered: counts[OFFERED],
            ends: std::array::from_fn(|i| counts[END + i]),
            words: std::array::from_fn(|i| counts[WORD + i]),
            broken: std::array::from_fn(|i| counts[BROKEN + i]),
            lanes: std::array::from_fn(|i| counts[LANE + i]),
            sums: std::array::from_fn(|i| counts[SUM + i]),
            metered: counts[METERED],
            histograms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request {
        status: 200,
        outcome: 3,
        lane: 1,
        end: 2,
        word: 5,
        broken: 0b101,
        times_s: [1.5, 0.2, f64::NAN, -1.0, -1.0, -1.0, -1.0, -1.0],
        sums: [100, 20, -1, 21, 900, 5000, 0, 1],
    };

    #[test]
    fn workers_add_up_and_outlive_themselves() {
        let a = Stats::open(2, 3, None).unwrap();
        let b = Stats::open(2, 3, Some(a.shared.fd())).unwrap();
        let series = a.add_series().unwrap();
        assert_eq!(a.record(series, &REQUEST), Err(Fault::Unbound));
        a.shared.bind(0).unwrap();
        b.shared.bind(1).unwrap();
        for stats in [&a, &b, &b] {
            assert_eq!(stats.record(series, &REQUEST), Ok(true));
        }
        b.offer(series).unwrap();
        b.mark(series, &[1.5]).unwrap();
        b.record(series, &REQUEST).unwrap();
        b.shared.retire(0).unwrap();
        assert_eq!(a.record(series, &REQUEST), Ok(false));
        assert_eq!(a.offer(series), Ok(false));
        let snapshot = b.snapshot(series, &[1.5]);
        assert_eq!(snapshot.requests, [(2, 3, 4)]);
        assert_eq!((snapshot.lanes, snapshot.metered, snapshot.offered), ([0, 4], 4, 1));
        assert_eq!((snapshot.ends[2], snapshot.words[5], snapshot.broken), (4, 4, [4, 0, 4]));
        assert_eq!(snapshot.sums, [400, 80, 0, 84, 3600, 20000, 0, 4]);
        assert_eq!(snapshot.histograms[0].within, 1);
        let sums: Vec<_> = snapshot.histograms.iter().map(|h| h.sum_s).collect();
        assert!((sums[0] - 6.0).abs() < 1e-9 && (sums[1] - 0.8).abs() < 1e-9);
        assert_eq!(snapshot.histograms[2].counts.iter().sum::<u64>(), 0);
    }

    #[test]
    fn a_series_starts_from_zero_in_a_used_slot() {
        let stats = Stats::open(1, 1, None).unwrap();
        stats.shared.bind(0).unwrap();
        let old = stats.add_series().unwrap();
        stats.record(old, &REQUEST).unwrap();
        stats.itl_cells(old).unwrap()[2].store(9, Ordering::Relaxed);
        assert_eq!(stats.snapshot(old, &[]).histograms[ITL].counts[2], 9);
        assert!(stats.add_series().is_err() && stats.remove_series(old));
        let new = stats.add_series().unwrap();
        assert_eq!(stats.snapshot(new, &[]).requests, []);
        stats.record(new, &REQUEST).unwrap();
        assert_eq!(stats.record(old, &REQUEST), Ok(false));
        assert!(stats.itl_cells(old).is_err());
        let snapshot = stats.snapshot(new, &[]);
        assert_eq!((snapshot.requests, snapshot.histograms[ITL].counts[2]), (vec![(2, 3, 1)], 0));
    }

    #[test]
    fn what_has_no_cell_is_refused() {
        let stats = Stats::open(1, 1, None).unwrap();
        stats.shared.bind(0).unwrap();
        let series = stats.add_series().unwrap();
        for request in [
            Request { outcome: OUTCOMES, ..REQUEST },
            Request { lane: LANES, ..REQUEST },
            Request { status: 1000, ..REQUEST },
            Request { end: ENDS, ..REQUEST },
            Request { word: WORDS, ..REQUEST },
            Request { broken: 8, ..REQUEST },
        ] {
            assert!(matches!(stats.record(series, &request), Err(Fault::Value(_))));
        }
        stats.record(series, &Request { status: 0, outcome: OUTCOMES - 1, ..REQUEST }).unwrap();
        stats.record(series, &Request { status: 600, ..REQUEST }).unwrap();
        assert_eq!(stats.snapshot(series, &[]).requests, [(0, OUTCOMES - 1, 1), (5, 3, 1)]);
    }
}
