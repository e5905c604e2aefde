//! All limits of one location at once: a request enters under every one of them or is counted by none.

use std::sync::Arc;

use crate::buckets::Key;
use crate::limits::{Conns, Rates, Verdict};
use crate::shared::Fault;

/// One `limit_req`. `delay`: requests above the rate that need not wait; `None`: none ever waits.
pub struct Rate {
    pub table: Arc<Rates>,
    pub interval_ns: u64,
    pub burst: u64,
    pub delay: Option<u64>,
    /// Which of the request's keys counts.
    pub key: usize,
}

/// One `limit_conn`.
pub struct Conn {
    pub table: Arc<Conns>,
    pub limit: u64,
    pub key: usize,
}

/// Rates are asked before places, both in file order; limits are numbered in that order.
pub struct Limiter {
    rates: Vec<Rate>,
    conns: Vec<Conn>,
}

/// What a request is counted under: a key for each limit, hashed as its table does; `None`: not counted.
pub struct Keys {
    rates: Vec<Option<Key>>,
    conns: Vec<Option<Key>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Entry {
    /// It holds its places.
    In,
    /// Counted by the rates; it takes its places when it has waited.
    Wait {
        seconds: f64,
        limit: usize,
    },
    Refused {
        limit: usize,
    },
}

impl Limiter {
    pub fn new(rates: Vec<Rate>, conns: Vec<Conn>) -> Self {
        Self { rates, conns }
    }

    /// How many keys a request must bring.
    pub fn count(&self) -> usize {
        let used = self.rates.iter().map(|r| r.key).chain(self.conns.iter().map(|c| c.key));
        used.map(|key| key + 1).max().unwrap_or(0)
    }

    /// The keys of a request, `count` of them at least. An empty one is not counted.
    pub fn keys(&self, texts: &[&[u8]]) -> Keys {
        let of = |at: usize| Some(texts[at]).filter(|text| !text.is_empty());
        let rates = self.rates.iter().map(|r| of(r.key).map(|text| r.table.key(text)));
        let conns = self.conns.iter().map(|c| of(c.key).map(|text| c.table.key(text)));
        Keys { rates: rates.collect(), conns: conns.collect() }
    }

    /// A request at `now_ns` (monotonic).
    pub fn enter(&self, keys: &Keys, now_ns: u64) -> Result<Entry, Fault> {
        let mut longest = Entry::In;
        let counted = || {
            let pairs = self.rates.iter().zip(&keys.rates).enumerate();
            pairs.filter_map(|(limit, (rate, key))| key.map(|key| (limit, rate, key)))
        };
        let last = keys.rates.iter().rposition(Option::is_some);
        for (limit, rate, key) in counted() {
            let allowed = (rate.interval_ns, rate.burst);
            let seen = rate.table.take(key, now_ns, allowed, Some(limit) == last);
            let Verdict::Excess(excess) = seen else { return Ok(Entry::Refused { limit }) };
            let seconds = rate.wait_s(excess);
            let longer = match longest {
                Entry::Wait { seconds: before, .. } => seconds > before,
                _ => seconds > 0.0,
            };
            if longer {
                longest = Entry::Wait { seconds, limit };
            }
        }
        // The last has counted the request already, the others only looked.
        for (_, rate, key) in counted().filter(|(limit, ..)| Some(*limit) != last) {
            let any = (rate.interval_ns, u64::MAX / rate.interval_ns);
            rate.table.take(key, now_ns, any, true);
        }
        if longest != Entry::In {
            return Ok(longest);
        }
        self.hold(keys)
    }

    /// Takes a request's places, or none of them.
    pub fn hold(&self, keys: &Keys) -> Result<Entry, Fault> {
        for (at, (conn, key)) in self.conns.iter().zip(&keys.conns).enumerate() {
            if let Some(key) = *key {
                if !conn.table.acquire(key, conn.limit)? {
                    self.give_back(keys, at)?;
                    return Ok(Entry::Refused { limit: self.rates.len() + at });
                }
            }
        }
        Ok(Entry::In)
    }

    /// Gives the places of a request that was let in back.
    pub fn leave(&self, keys: &Keys) -> Result<(), Fault> {
        self.give_back(keys, self.conns.len())
    }

    fn give_back(&self, keys: &Keys, count: usize) -> Result<(), Fault> {
        for (conn, key) in self.conns[..count].iter().zip(&keys.conns) {
            if let Some(key) = *key {
                conn.table.release(key)?;
            }
        }
        Ok(())
    }
}

impl Rate {
    fn wait_s(&self, excess: f64) -> f64 {
        match self.delay {
            Some(delay) if excess > delay as f64 => {
                (excess - delay as f64) * self.interval_ns as f64 * 1e-9
            }
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn rate(table: &Arc<Rates>, burst: u64, delay: Option<u64>, key: usize) -> Rate {
        Rate { table: table.clone(), interval_ns: S, burst, delay, key }
    }

    fn conn(limit: u64, key: usize) -> Conn {
        let table = Arc::new(Conns::open(1, 16, None).unwrap());
        table.bind(0).unwrap();
        Conn { table, limit, key }
    }

    fn rates() -> Arc<Rates> {
        Arc::new(Rates::open(16, None).unwrap())
    }

    #[test]
    fn a_request_that_one_rate_refuses_is_counted_by_none() {
        let (wide, narrow) = (rates(), rates());
        let rows = vec![rate(&wide, 1, None, 0), rate(&narrow, 0, None, 1)];
        let limiter = Limiter::new(rows, vec![]);
        assert_eq!(limiter.count(), 2);
        assert_eq!(limiter.enter(&limiter.keys(&[b"w", b"n"]), S), Ok(Entry::In));
        for _ in 0..5 {
            assert_eq!(limiter.enter(&limiter.keys(&[b"w", b"n"]), S), Ok(Entry::Refused { limit: 1 }));
        }
        // Had the refused ones been counted, the wide one would be full.
        assert_eq!(limiter.enter(&limiter.keys(&[b"w", b"m"]), S), Ok(Entry::In));
        assert_eq!(limiter.enter(&limiter.keys(&[b"w", b"o"]), S), Ok(Entry::Refused { limit: 0 }));
    }

    #[test]
    fn the_longest_wait_counts_and_places_are_taken_after_it() {
        let (first, second, place) = (rates(), rates(), conn(1, 0));
        let table = place.table.clone();
        let rows = vec![rate(&first, 5, Some(1), 0), rate(&second, 5, Some(0), 0)];
        let limiter = Limiter::new(rows, vec![place]);
        assert_eq!(limiter.enter(&limiter.keys(&[b"k"]), S), Ok(Entry::In));
        limiter.leave(&limiter.keys(&[b"k"])).unwrap();
        assert_eq!(limiter.enter(&limiter.keys(&[b"k"]), S), Ok(Entry::Wait { seconds: 1.0, limit: 1 }));
        assert_eq!(table.count(table.key(b"k")), 0);
        assert_eq!(limiter.hold(&limiter.keys(&[b"k"])), Ok(Entry::In));
        assert_eq!(limiter.hold(&limiter.keys(&[b"k"])), Ok(Entry::Refused { limit: 2 }));
    }

    #[test]
    fn places_are_taken_together_or_not_at_all_and_an_empty_key_does_not_count() {
        let (wide, narrow) = (conn(2, 0), conn(1, 1));
        let (a, b) = (wide.table.clone(), narrow.table.clone());
        let limiter = Limiter::new(vec![], vec![wide, narrow]);
        assert_eq!(limiter.enter(&limiter.keys(&[b"k", b"k"]), S), Ok(Entry::In));
        assert_eq!(limiter.enter(&limiter.keys(&[b"k", b"k"]), S), Ok(Entry::Refused { limit: 1 }));
        assert_eq!((a.count(a.key(b"k")), b.count(b.key(b"k"))), (1, 1));
        assert_eq!(limiter.enter(&limiter.keys(&[b"k", b""]), S), Ok(Entry::In));
        assert_eq!((a.count(a.key(b"k")), b.count(b.key(b"k")), b.count(b.key(b""))), (2, 1, 0));
        limiter.leave(&limiter.keys(&[b"k", b""])).unwrap();
        limiter.leave(&limiter.keys(&[b"k", b"k"])).unwrap();
        assert_eq!((a.count(a.key(b"k")), b.count(b.key(b"k"))), (0, 0));
    }
}
