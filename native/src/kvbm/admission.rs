//! Which blocks are worth a write.
//!
//! A block seen often enough is admitted (TinyLFU's counting: a small table of counters that is halved
//! from time to time), and only as much a second as the operator allows, for the sake of the disk.

use super::record::Key;
use super::Refusal;
use crate::hash::mix;

const COUNTERS: usize = 1 << 22;
/// Sightings until the counters are halved: few enough that most counters are at zero then.
const WINDOW: usize = COUNTERS / 8;
const ROWS: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Always,
    /// Offered so many times.
    Reuse(u8),
}

struct Sketch {
    counters: Vec<u8>,
    added: usize,
}

impl Sketch {
    fn new() -> Self {
        Self { counters: vec![0; COUNTERS], added: 0 }
    }

    /// Times the key was seen, this time included: never too few, sometimes too many.
    fn see(&mut self, key: &Key) -> u8 {
        let first = mix(super::le::u64_at(key, 0) ^ super::le::u64_at(key, 24).rotate_left(32));
        let places: [usize; ROWS as usize] = std::array::from_fn(|row| {
            let seed = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mix(first.wrapping_add(seed)) as usize % COUNTERS
        });
        let least = places.iter().map(|&at| self.counters[at]).min().unwrap_or(0);
        // Only what says least can be true of this key.
        for at in places {
            if self.counters[at] == least {
                self.counters[at] = least.saturating_add(1);
            }
        }
        self.added += 1;
        if self.added >= WINDOW {
            self.counters.iter_mut().for_each(|count| *count /= 2);
            self.added = 0;
        }
        least.saturating_add(1)
    }
}

/// Bytes a second, with a second's worth in hand.
#[derive(Debug, Clone, Copy)]
struct Budget {
    rate: u64,
    left: f64,
    at_us: u64,
}

impl Budget {
    fn take(&mut self, bytes: u64, now_us: u64) -> bool {
        let most = self.rate as f64;
        let gained = now_us.saturating_sub(self.at_us) as f64 * most / 1e6;
        self.left = (self.left + gained).min(most);
        self.at_us = now_us.max(self.at_us);
        // A block larger than a second's worth passes when nothing was owed, and is owed then.
        if self.left >= bytes as f64 || self.left >= most {
            self.left -= bytes as f64;
            return true;
        }
        false
    }
}

pub struct Admission {
    policy: Policy,
    sketch: Option<Sketch>,
    budget: Option<Budget>,
}

impl Admission {
    /// `write_rate` in bytes a second, 0 for no limit.
    pub fn new(policy: Policy, write_rate: u64) -> Self {
        let sketch = matches!(policy, Policy::Reuse(_)).then(Sketch::new);
        let budget = (write_rate > 0).then_some(Budget {
            rate: write_rate,
            left: write_rate as f64,
            at_us: 0,
        });
        Self { policy, sketch, budget }
    }

    pub fn admit(&mut self, key: &Key, bytes: u64, now_us: u64) -> Result<(), Refusal> {
        if let (Policy::Reuse(times), Some(sketch)) = (self.policy, &mut self.sketch) {
            if sketch.see(key) < times {
                return Err(Refusal::Policy);
            }
        }
        if self.budget.as_mut().is_some_and(|budget| !budget.take(bytes, now_us)) {
            return Err(Refusal::Budget);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        key
    }

    #[test]
    fn the_second_offer_is_taken() {
        let mut admission = Admission::new(Policy::Reuse(2), 0);
        let refused = (0..1000).filter(|&n| admission.admit(&key(n), 1, 0).is_err()).count();
        assert!(refused >= 995, "{refused}");
        assert!((0..1000).all(|n| admission.admit(&key(n), 1, 0).is_ok()));
    }

    #[test]
    fn old_sightings_fade() {
        let mut admission = Admission::new(Policy::Reuse(2), 0);
        let _ = admission.admit(&key(0), 1, 0);
        for n in 1..=2 * WINDOW as u64 {
            let _ = admission.admit(&key(n), 1, 0);
        }
        let fresh = (0..1000).filter(|n| admission.admit(&key(1 << 40 | n), 1, 0).is_err());
        assert!(fresh.count() > 900);
    }

    #[test]
    fn writes_keep_to_their_budget() {
        let mut admission = Admission::new(Policy::Always, 1000);
        let mut taken = 0;
        for ms in 0..10_000 {
            if admission.admit(&key(ms), 100, ms * 1000).is_ok() {
                taken += 100;
            }
        }
        assert!((10_000..=11_000).contains(&taken), "{taken}");
    }

    #[test]
    fn a_block_larger_than_a_seconds_worth_passes_now_and_then() {
        let mut admission = Admission::new(Policy::Always, 1000);
        let passed = (0..20).filter(|&s| admission.admit(&key(s), 5000, s * 1_000_000).is_ok());
        assert_eq!(passed.count(), 4);
    }
}
