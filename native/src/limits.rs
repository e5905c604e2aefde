//! Limits that hold over all workers: rates of requests by key, and requests in flight by key.
//!
//! `Rates` is nginx's leaky bucket in GCRA's form: one word per key, the moment at which the key owes
//! nothing any more. Where a bucket has no free place, the key that has owed nothing for longest makes
//! room; where all owe, the one that owes least.
//!
//! `Conns` has a count per key and worker, so that a dead worker's are taken back; a place whose counts
//! are all zero is free for another key, and where none is, the request is refused, as in nginx.

use std::sync::atomic::Ordering;

use crate::buckets::{Buckets, Key, Locked, WAYS};
use crate::shared::Fault;

pub struct Rates {
    table: Buckets,
}

/// What a rate says to a request: how far the key is above it, in requests, or that it is too far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    Excess(f64),
    Refused,
}

impl Rates {
    pub fn open(keys: usize, fd: Option<i32>) -> Result<Self, String> {
        Ok(Self { table: Buckets::open("rates", 1, keys, 1, fd)? })
    }

    pub fn fd(&self) -> i32 {
        self.table.shared.fd()
    }

    pub fn key(&self, text: &[u8]) -> Key {
        self.table.key(text)
    }

    /// A request at `now_ns` (monotonic), one per `interval_ns` allowed, `burst` above that. `commit`:
    /// the request is counted if it is not refused; else only looked at.
    pub fn take(&self, key: Key, now_ns: u64, rate: (u64, u64), commit: bool) -> Verdict {
        let (interval_ns, burst) = rate;
        let bucket = self.table.lock(self.table.bucket_of(key));
        let Some(way) = bucket.find(key) else {
            // nginx too lets the first request of a key pass without an excess.
            if commit {
                let way = Self::room(&bucket);
                bucket.value(way, 0).store(now_ns, Ordering::Relaxed);
                bucket.name(way, key);
            }
            return Verdict::Excess(0.0);
        };
        let cell = bucket.value(way, 0);
        let due = cell.load(Ordering::Relaxed).saturating_add(interval_ns);
        let over = due.saturating_sub(now_ns);
        if over > burst.saturating_mul(interval_ns) {
            return Verdict::Refused;
        }
        if commit {
            cell.store(due.max(now_ns), Ordering::Relaxed);
        }
        Verdict::Excess(over as f64 / interval_ns as f64)
    }

    fn room(bucket: &Locked<'_>) -> usize {
        let free = (0..WAYS).find(|&way| bucket.is_free(way));
        let oldest = || (0..WAYS).min_by_key(|&way| bucket.value(way, 0).load(Ordering::Relaxed));
        free.or_else(oldest).unwrap_or(0)
    }
}

/// Counts of 16 bits, four in a word, one per worker.
const PER_WORD: usize = 4;
const COUNT_MAX: u64 = 0xffff;

pub struct Conns {
    table: Buckets,
    words: usize,
}

impl Conns {
    pub fn open(workers: usize, keys: usize, fd: Option<i32>) -> Result<Self, String> {
        let words = workers.div_ceil(PER_WORD);
        Ok(Self { table: Buckets::open("conns", workers, keys, words, fd)?, words })
    }

    pub fn fd(&self) -> i32 {
        self.table.shared.fd()
    }

    pub fn bind(&self, worker: usize) -> Result<(), String> {
        self.table.shared.bind(worker)
    }

    pub fn key(&self, text: &[u8]) -> Key {
        self.table.key(text)
    }

    fn total(&self, bucket: &Locked<'_>, way: usize) -> u64 {
        let word = |w: usize| bucket.value(way, w).load(Ordering::Relaxed);
        let counts = |w: u64| (0..PER_WORD).map(move |i| w >> (16 * i) & COUNT_MAX).sum::<u64>();
        (0..self.words).map(|w| counts(word(w))).sum()
    }

    /// Adds to a worker's count; false where it would leave its 16 bits.
    fn change(&self, bucket: &Locked<'_>, way: usize, worker: usize, by: i64) -> bool {
        let cell = bucket.value(way, worker / PER_WORD);
        let shift = 16 * (worker % PER_WORD);
        let word = cell.load(Ordering::Relaxed);
        let count = (word >> shift & COUNT_MAX) as i64 + by;
        if !(0..=COUNT_MAX as i64).contains(&count) {
            return false;
        }
        cell.store(word & !(COUNT_MAX << shift) | (count as u64) << shift, Ordering::Relaxed);
        true
    }

    /// Counts a request of a key in, if fewer than `limit` are in flight.
    pub fn acquire(&self, key: Key, limit: u64) -> Result<bool, Fault> {
        let Some(worker) = self.table.shared.row()? else { return Ok(false) };
        let bucket = self.table.lock(self.table.bucket_of(key));
        let known = bucket.find(key);
        let Some(way) = known.or_else(|| self.room(&bucket)) else { return Ok(false) };
        if known.is_none() {
            bucket.name(way, key);
        }
        Ok(self.total(&bucket, way) < limit && self.change(&bucket, way, worker, 1))
    }

    fn room(&self, bucket: &Locked<'_>) -> Option<usize> {
        let free = (0..WAYS).find(|&way| bucket.is_free(way));
        free.or_else(|| (0..WAYS).find(|&way| self.total(bucket, way) == 0))
    }

    /// Counts a request of a key out. False: ignored, there was none of this worker.
    pub fn release(&self, key: Key) -> Result<bool, Fault> {
        let Some(worker) = self.table.shared.row()? else { return Ok(false) };
        let bucket = self.table.lock(self.table.bucket_of(key));
        Ok(bucket.find(key).is_some_and(|way| self.change(&bucket, way, worker, -1)))
    }

    /// Requests of a key in flight, all workers.
    pub fn count(&self, key: Key) -> u64 {
        let bucket = self.table.lock(self.table.bucket_of(key));
        bucket.find(key).map_or(0, |way| self.total(&bucket, way))
    }

    /// Takes back what a dead worker had in flight.
    pub fn retire(&self, worker: usize) -> Result<bool, String> {
        let taken = self.table.shared.retire(worker)?;
        if taken {
            for bucket in 0..self.table.buckets() {
                let bucket = self.table.lock(bucket);
                for way in (0..WAYS).filter(|&way| !bucket.is_free(way)) {
                    let cell = bucket.value(way, worker / PER_WORD);
                    let kept = !(COUNT_MAX << (16 * (worker % PER_WORD)));
                    cell.fetch_and(kept, Ordering::Relaxed);
                }
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    const MS: u64 = 1_000_000;

    /// nginx's own arithmetic, in thousandths of a request and whole milliseconds.
    struct Nginx {
        excess: i64,
        last_ms: i64,
    }

    impl Nginx {
        fn take(&mut self, now_ms: i64, per_s: i64, burst: i64) -> Option<i64> {
            let excess = (self.excess - per_s * (now_ms - self.last_ms) + 1000).max(0);
            if excess > burst * 1000 {
                return None;
            }
            (self.excess, self.last_ms) = (excess, now_ms);
            Some(excess)
        }
    }

    #[test]
    fn rates_decide_as_nginx_does() {
        let mut random = Random(7);
        for _ in 0..200 {
            let rates = Rates::open(64, None).unwrap();
            let per_s = [1, 2, 5, 10, 100, 1000][random.below(6) as usize];
            let burst = random.below(6);
            let mut now = 1000 + random.below(1000);
            let mut nginx = Nginx { excess: 0, last_ms: now as i64 };
            let rate = (1_000_000_000 / per_s, burst);
            assert_eq!(rates.take(rates.key(b"k"), now * MS, rate, true), Verdict::Excess(0.0));
            for _ in 0..200 {
                now += random.below(2 * 1000 / per_s + 2);
                let wanted = nginx.take(now as i64, per_s as i64, burst as i64);
                let seen = rates.take(rates.key(b"k"), now * MS, rate, true);
                match (wanted, seen) {
                    (None, Verdict::Refused) => {}
                    (Some(a), Verdict::Excess(b)) => assert!((a as f64 - b * 1000.0).abs() < 1.0),
                    other => panic!("{other:?} at {now}, {per_s}/s burst {burst}"),
                }
            }
        }
    }

    #[test]
    fn a_look_changes_nothing() {
        let rates = Rates::open(4, None).unwrap();
        let rate = (10 * MS, 1);
        for _ in 0..3 {
            assert_eq!(rates.take(rates.key(b"k"), 5 * MS, rate, false), Verdict::Excess(0.0));
        }
        rates.take(rates.key(b"k"), 5 * MS, rate, true);
        for _ in 0..3 {
            assert_eq!(rates.take(rates.key(b"k"), 5 * MS, rate, false), Verdict::Excess(1.0));
        }
    }

    #[test]
    fn the_least_owing_key_makes_room() {
        let rates = Rates::open(1, None).unwrap();
        let keys: Vec<_> = (0..200u64).map(u64::to_le_bytes).collect();
        for (at, key) in keys.iter().enumerate() {
            rates.take(rates.key(key), at as u64 * MS, (1000 * MS, 0), true);
        }
        // The newest are all there: a second request of theirs is refused.
        for key in &keys[190..] {
            assert_eq!(rates.take(rates.key(key), 200 * MS, (1000 * MS, 0), true), Verdict::Refused);
        }
    }

    #[test]
    fn counts_of_workers_add_up_and_never_exceed_the_limit() {
        let mut random = Random(3);
        let first = Conns::open(3, 32, None).unwrap();
        let mut tables = vec![];
        for worker in 0..3 {
            let table = Conns::open(3, 32, Some(first.fd())).unwrap();
            table.bind(worker).unwrap();
            tables.push(table);
        }
        let keys: Vec<_> = (0..8u64).map(u64::to_le_bytes).collect();
        let mut held = [[0u64; 8]; 3];
        for _ in 0..20_000 {
            let (worker, key) = (random.below(3) as usize, random.below(8) as usize);
            let total: u64 = held.iter().map(|row| row[key]).sum();
            match random.below(100) {
                0 => {
                    assert_eq!(first.retire(worker), Ok(true));
                    assert_eq!(tables[worker].release(tables[worker].key(&keys[key])), Ok(false));
                    tables[worker].bind(worker).unwrap();
                    held[worker] = [0; 8];
                }
                1..=50 => {
                    let let_in = tables[worker].acquire(tables[worker].key(&keys[key]), 5).unwrap();
                    assert_eq!(let_in, total < 5);
                    held[worker][key] += u64::from(let_in);
                }
                _ => {
                    let out = tables[worker].release(tables[worker].key(&keys[key])).unwrap();
                    assert_eq!(out, held[worker][key] > 0);
                    held[worker][key] -= u64::from(out);
                }
            }
            let total: u64 = held.iter().map(|row| row[key]).sum();
            assert_eq!(first.count(first.key(&keys[key])), total);
        }
    }

    #[test]
    fn a_full_bucket_refuses_and_a_free_key_makes_room() {
        let table = Conns::open(1, 1, None).unwrap();
        table.bind(0).unwrap();
        let keys: Vec<_> = (0..WAYS as u64 + 1).map(u64::to_le_bytes).collect();
        for key in &keys[..WAYS] {
            assert_eq!(table.acquire(table.key(key), 1), Ok(true));
        }
        assert_eq!(table.acquire(table.key(&keys[WAYS]), 1), Ok(false));
        table.release(table.key(&keys[3])).unwrap();
        assert_eq!(table.acquire(table.key(&keys[WAYS]), 1), Ok(true));
    }
}
