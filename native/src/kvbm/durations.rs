//! How long jobs took, by kind: counts per power of two of microseconds.

use super::works::Kind;

/// The last one takes all that is longer: 2^27 us are two minutes.
pub const BUCKETS: usize = 28;

#[derive(Debug, Clone, Copy, Default)]
pub struct Durations {
    counts: [[u64; BUCKETS]; 3],
    sums_us: [u64; 3],
}

impl Durations {
    pub fn add(&mut self, kind: Kind, spent_us: u64) {
        let row = match kind {
            Kind::Store => 0,
            Kind::Load => 1,
            Kind::Fetch => 2,
            Kind::Drop => return,
        };
        // Bucket n holds what took at most 2^n.
        let bucket = (64 - spent_us.max(1).saturating_sub(1).leading_zeros()) as usize;
        self.counts[row][bucket.min(BUCKETS - 1)] += 1;
        self.sums_us[row] += spent_us;
    }

    /// Kind, counts, sum in microseconds.
    pub fn rows(&self) -> Vec<(&'static str, Vec<u64>, u64)> {
        let names = ["store", "load", "fetch"].into_iter().enumerate();
        names.map(|(row, name)| (name, self.counts[row].to_vec(), self.sums_us[row])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_with_its_power_of_two() {
        let mut durations = Durations::default();
        for spent_us in [0, 1, 2, 3, 4, 5, 1 << 40] {
            durations.add(Kind::Load, spent_us);
        }
        let (name, counts, sum) = durations.rows().swap_remove(1);
        assert_eq!((name, sum), ("load", (1 << 40) + 15));
        assert_eq!(counts[..4], [2, 1, 2, 1]);
        assert_eq!(counts[BUCKETS - 1], 1);
    }
}
