//! How far apart the uses of a prefix lie: what a least-recently-used cache of any size would save.
//!
//! The reuse distance of a block is the tokens of all blocks used since its last use, itself included:
//! a cache of at least so many tokens still has it (Mattson's stack algorithm). A prompt uses its blocks
//! from the last to the first, so that a start outlives what hangs on it.

use super::cache::Blocks;
use super::trace::Trace;

/// Sums of a prefix of a list that changes.
struct Sums(Vec<u64>);

impl Sums {
    fn add(&mut self, at: usize, value: u64) {
        let mut at = at + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(value);
            at += at & at.wrapping_neg();
        }
    }

    /// Of all places before `at`.
    fn before(&self, mut at: usize) -> u64 {
        let mut sum = 0u64;
        while at > 0 {
            sum = sum.wrapping_add(self.0[at]);
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

impl Trace {
    fn tokens_of(&self, row: usize, block: usize) -> u64 {
        let input = u64::from(self.rows[row].input);
        u64::from(self.block).min(input - block as u64 * u64::from(self.block))
    }

    /// Prompt tokens that each row finds in one cache of each size, in tokens.
    pub fn hits(&self, sizes: &[u64]) -> Vec<Vec<u32>> {
        let mut found = vec![vec![0u32; self.rows.len()]; sizes.len()];
        let mut sums = Sums(vec![0; self.blocks.len() + 1]);
        // Where a block was used last, and the tokens it had there.
        let mut last = Blocks::<(usize, u64)>::default();
        let (mut stamp, mut total) = (0, 0u64);
        for row in 0..self.rows.len() {
            let ids = self.blocks(row);
            let mut farthest = 0;
            for (at, id) in ids.iter().enumerate() {
                let Some(&(used, tokens)) = last.get(id) else { break };
                farthest = farthest.max(total - sums.before(used));
                let tokens = tokens.min(self.tokens_of(row, at)) as u32;
                for (hits, &size) in found.iter_mut().zip(sizes) {
                    hits[row] += if farthest <= size { tokens } else { 0 };
                }
            }
            for (at, &id) in ids.iter().enumerate().rev() {
                let tokens = self.tokens_of(row, at);
                if let Some((used, had)) = last.insert(id, (stamp, tokens)) {
                    sums.add(used, had.wrapping_neg());
                    total -= had;
                }
                sums.add(stamp, tokens);
                total += tokens;
                stamp += 1;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::Columns;
    use super::*;

    fn trace(inputs: &[u32], blocks: &[u64]) -> Trace {
        let at_s: Vec<f64> = (0..inputs.len()).map(|i| i as f64).collect();
        let output = vec![1; inputs.len()];
        let counts: Vec<u32> = inputs.iter().map(|n| n.div_ceil(16)).collect();
        let columns =
            Columns { at_s: &at_s, input: inputs, output: &output, counts: &counts, blocks };
        Trace::new(16, &columns).unwrap()
    }

    #[test]
    fn a_block_is_found_by_a_cache_that_holds_all_used_since() {
        // Two blocks, one other, the first two again with a new one behind.
        let trace = trace(&[32, 16, 48], &[1, 2, 7, 1, 2, 9]);
        let hits = trace.hits(&[0, 16, 31, 32, 47, 48, u64::MAX]);
        let last: Vec<u32> = hits.iter().map(|row| row[2]).collect();
        // The first block was used after the second: 1 is 16 + 16 tokens away, 2 is 48.
        assert_eq!(last, [0, 0, 0, 16, 16, 32, 32]);
        assert!(hits.iter().all(|row| row[0] == 0 && row[1] == 0));
    }

    #[test]
    fn an_endless_cache_saves_what_can_be_reused() {
        let trace = super::super::sim_test::drawn(5, 400);
        let hits = trace.hits(&[u64::MAX, 50_000, 5_000]);
        let sums: Vec<u64> =
            hits.iter().map(|row| row.iter().map(|&n| u64::from(n)).sum()).collect();
        assert_eq!(sums[0], trace.reusable());
        assert!(sums[0] > sums[1] && sums[1] > sums[2], "{sums:?}");
    }
}
