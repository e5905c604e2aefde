//! A store below the simulated engines that all of them share, as a kvbm daemon's arena: what one
//! computes is kept there too, and any of them loads it where that is quicker than computing.

use super::cache::Cache;
use super::engine::{Engine, Floor, Said};

/// What it is.
#[derive(Debug, Clone, Copy)]
pub struct Shelf {
    /// Tokens that fit.
    pub capacity: u64,
    /// Of a load; the engine does nothing else meanwhile.
    pub ms_per_token: f64,
}

pub struct Store {
    cache: Cache,
    pub shelf: Shelf,
    /// Blocks that came and went.
    pub said: Vec<Said>,
}

impl Store {
    pub fn new(shelf: Shelf) -> Self {
        Self { cache: Cache::default(), shelf, said: Vec::new() }
    }

    /// How many of the blocks are there, from the first on without a hole; they are used.
    pub fn take(&mut self, ids: &[u64]) -> usize {
        let found = self.cache.prefix(ids);
        // The end of a prompt goes before its start.
        for &id in ids[..found].iter().rev() {
            self.cache.pin(id, 0);
            self.cache.unpin(id);
        }
        found
    }

    /// Block `at` of a row's prompt was computed.
    pub fn keep(&mut self, row: usize, at: u32, id: u64, tokens: u32) {
        let came = self.cache.pin(id, tokens);
        self.cache.unpin(id);
        if came {
            match self.said.last_mut() {
                Some(Said::Stored { row: last, to, .. }) if *last == row && *to == at => *to += 1,
                _ => self.said.push(Said::Stored { row, from: at, to: at + 1 }),
            }
        }
        while self.cache.resident() > self.shelf.capacity {
            let Some(id) = self.cache.evict() else { return };
            self.said.push(Said::Removed(id));
        }
    }
}

impl Engine {
    /// Takes the blocks behind the first `found` from the store, where that is quicker than computing
    /// them and there is room: how many.
    pub(super) fn load(&mut self, row: usize, found: usize, there: u32, floor: &mut Floor) -> usize {
        let ids = &floor.blocks(row)[found..];
        let Some(store) = floor.store.as_mut() else { return 0 };
        let (count, each_ms) = (store.take(ids), store.shelf.ms_per_token);
        let to = floor.block_end(row, (found + count) as u32);
        let tokens = to - floor.block_end(row, found as u32);
        let load_ms = f64::from(tokens) * each_ms;
        let fit = &floor.settings.fit;
        let pays = load_ms < fit.tokens_ms(f64::from(tokens), f64::from(there));
        if count == 0 || !pays || !self.room(u64::from(tokens), floor) {
            return 0;
        }
        for (at, &id) in (found..).zip(&ids[..count]) {
            let ends = floor.block_end(row, at as u32 + 1);
            self.cache.pin(id, ends - at as u32 * floor.trace.block);
        }
        let (from, to) = (found as u32, (found + count) as u32);
        floor.said.push(Said::Stored { row: floor.trace.row_of(row), from, to });
        floor.seqs[row].load_ms = load_ms;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::{run, Arrival, Router};
    use super::super::sim_test::{close, ids, options, trace, Request};
    use super::*;

    /// In turn.
    struct Turns;

    impl Router for Turns {
        fn pick(&mut self, arrival: &Arrival) -> usize {
            arrival.row % 2
        }
    }

    /// What the second of two engines has of a prompt that the first one computed: hit, and TTFT.
    fn second(ms_per_token: f64, capacity: u64) -> (u32, f64) {
        let again = |at_s| -> Request { (at_s, 4096, 1, ids(0, 8)) };
        let shelf = Some(Shelf { capacity, ms_per_token });
        let options = super::super::options::Options { store: shelf, ..options(2) };
        let done = run(&trace(&[again(0.0), again(9.0)]), &options, &mut Turns);
        (done.outcomes[1].hit, done.outcomes[1].ttft_s)
    }

    #[test]
    fn what_another_engine_computed_is_loaded_where_that_is_quicker() {
        let fit = options(1).settings.fit;
        let (hit, ttft_s) = second(0.01, 1 << 20);
        assert_eq!(hit, 4080);
        close(ttft_s, fit.step_ms(fit.tokens_ms(16.0, 4080.0) + 40.96, 0.0, 0.0));
        let cold_s = fit.step_ms(fit.tokens_ms(4096.0, 0.0), 0.0, 0.0);
        for (ms_per_token, capacity) in [(10.0, 1 << 20), (0.01, 256)] {
            let (hit, ttft_s) = second(ms_per_token, capacity);
            assert_eq!(hit, 0);
            close(ttft_s, cold_s);
        }
    }

    #[test]
    fn what_was_used_longest_ago_goes_and_is_told() {
        let mut store = Store::new(Shelf { capacity: 3 * 512, ms_per_token: 0.01 });
        for (at, id) in [7, 8, 9].into_iter().enumerate() {
            store.keep(0, at as u32, id, 512);
        }
        assert_eq!(store.take(&[7, 8, 10]), 2);
        store.keep(1, 0, 11, 512);
        store.keep(1, 0, 11, 512);
        assert_eq!((store.take(&[7, 8, 9]), store.take(&[11])), (2, 1));
        let said = std::mem::take(&mut store.said);
        let stored = |row, to| Said::Stored { row, from: 0, to };
        assert_eq!(said, [stored(0, 3), stored(1, 1), Said::Removed(9)]);
    }
}
