//! How much slower an engine is than its fit, learnt from what is seen of it.
//!
//! A factor on all of the fit's times, moved by each observation towards observed ÷ modelled, the more
//! the longer the modelled time is against what is too short to tell; slowly, and within bounds, so
//! that neither one odd request nor a wrong belief about a cache upsets it.

/// A factor leaves these bounds never.
pub const LEAST: f64 = 0.25;
pub const MOST: f64 = 4.0;
/// How far one observation moves it, of the way; further while few were made.
const RATE: f64 = 0.004;
const RATE_FIRST: f64 = 0.2;
const FEW: f64 = 20.0;
/// Modelled times well below this say little: ms.
const SHORT_MS: f64 = 100.0;
/// An observation counts as no more than so many times what was expected, or its inverse.
const ODD: f64 = 3.0;

/// What was learnt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factor {
    pub value: f64,
    /// Observations it is made of.
    pub seen: u32,
}

impl Default for Factor {
    fn default() -> Self {
        Self { value: 1.0, seen: 0 }
    }
}

impl Factor {
    /// After a time that was modelled, with this factor, as `modelled_ms` and seen as `observed_ms`.
    pub fn observe(self, modelled_ms: f64, observed_ms: f64) -> Self {
        if !(modelled_ms > 0.0 && observed_ms.is_finite() && observed_ms >= 0.0) {
            return self;
        }
        let ratio = (observed_ms / modelled_ms).clamp(1.0 / ODD, ODD);
        let square = modelled_ms * modelled_ms;
        let weight = square / (square + SHORT_MS * SHORT_MS);
        let rate = RATE.max(RATE_FIRST / (1.0 + f64::from(self.seen) / FEW));
        let value = self.value * (rate * weight * ratio.ln()).exp();
        Self { value: value.clamp(LEAST, MOST), seen: self.seen.saturating_add(1) }
    }

    /// In one word, for a cell that threads share.
    pub fn bits(self) -> u64 {
        u64::from((self.value as f32).to_bits()) << 32 | u64::from(self.seen)
    }

    pub fn of_bits(bits: u64) -> Self {
        Self { value: f64::from(f32::from_bits((bits >> 32) as u32)), seen: bits as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    /// Learns an engine that is `truth` times slower, with noise and outliers.
    fn learn(mut factor: Factor, truth: f64, steps: u64, seed: u64) -> Factor {
        let mut random = Random(seed);
        for _ in 0..steps {
            let work = 50.0 + random.below(3000) as f64;
            let noise = 0.7 + random.below(600) as f64 / 1000.0;
            let odd = if random.below(50) == 0 { 40.0 } else { 1.0 };
            factor = factor.observe(work * factor.value, work * truth * noise * odd);
        }
        factor
    }

    #[test]
    fn it_finds_the_truth_despite_noise_and_outliers() {
        for (seed, truth) in [0.5, 0.8, 1.0, 1.4, 2.5].into_iter().enumerate() {
            let found = learn(Factor::default(), truth, 300, seed as u64);
            assert!((found.value / truth - 1.0).abs() < 0.1, "{truth}: {found:?}");
            // An engine that has changed is followed, too.
            let later = learn(found, 1.2, 2000, seed as u64);
            assert!((later.value / 1.2 - 1.0).abs() < 0.1, "{truth}: {later:?}");
        }
    }

    #[test]
    fn no_single_request_matters_and_nothing_leaves_the_bounds() {
        let first = Factor::default();
        let known = Factor { value: 1.3, seen: 5000 };
        for observed in [1e9, 0.0] {
            assert!((known.observe(1000.0, observed).value / 1.3 - 1.0).abs() < 0.01);
            assert!((first.observe(1000.0, observed).value - 1.0).abs() < 0.25);
        }
        assert!((first.observe(5.0, 50.0).value - 1.0).abs() < 1e-3);
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(known.observe(100.0, odd), known);
            assert_eq!(known.observe(odd.min(0.0), 100.0), known);
        }
        let far = |observed: f64| {
            (0..5000).fold(first, |f: Factor, _| f.observe(1000.0 * f.value, observed)).value
        };
        assert_eq!((far(1e9), far(0.0)), (MOST, LEAST));
        assert_eq!(Factor::of_bits(Factor { value: 1.5, seen: 7 }.bits()).seen, 7);
    }
}
