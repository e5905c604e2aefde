//! How much slower an engine is than its fit, learnt from what is seen of it.
//!
//! A factor on all of the fit's times, moved by each observation towards observed ÷ modelled, the more
//! the longer the modelled time is against what is too short to tell; slowly, and within bounds, so
//! that neither one odd request nor a wrong belief about a cache upsets it.

/// A factor leaves these bounds never.
pub const LEAST: f64 = 0.25;
pub const MOST: f64 = 4.0;
/// How far one observation moves it at most, of the way.
const RATE: f64 = 0.02;
/// Modelled times well below this say little: ms.
const SHORT_MS: f64 = 100.0;
/// An observation counts as no more than so many times what was expected, or its inverse.
const ODD: f64 = 3.0;

/// The next factor after a time that was modelled as `modelled_ms` with `factor` and seen as
/// `observed_ms`.
pub fn observe(factor: f64, modelled_ms: f64, observed_ms: f64) -> f64 {
    if !(modelled_ms > 0.0 && observed_ms.is_finite() && observed_ms >= 0.0) {
        return factor;
    }
    let ratio = (observed_ms / modelled_ms).clamp(1.0 / ODD, ODD);
    let weight = modelled_ms * modelled_ms / (modelled_ms * modelled_ms + SHORT_MS * SHORT_MS);
    let moved = factor * (RATE * weight * ratio.ln()).exp();
    moved.clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    /// Learns an engine that is `truth` times slower, with noise and outliers.
    fn learn(truth: f64, steps: u64, seed: u64) -> f64 {
        let mut random = Random(seed);
        (0..steps).fold(1.0, |factor, _| {
            let work = 50.0 + random.below(3000) as f64;
            let noise = 0.7 + random.below(600) as f64 / 1000.0;
            let odd = if random.below(50) == 0 { 40.0 } else { 1.0 };
            observe(factor, work * factor, work * truth * noise * odd)
        })
    }

    #[test]
    fn it_finds_the_truth_despite_noise_and_outliers() {
        for (seed, truth) in [0.5, 0.8, 1.0, 1.4, 2.5].into_iter().enumerate() {
            let found = learn(truth, 1000, seed as u64);
            assert!((found / truth - 1.0).abs() < 0.15, "{truth}: {found}");
        }
    }

    #[test]
    fn no_single_request_matters_and_nothing_leaves_the_bounds() {
        assert!((observe(1.0, 1000.0, 1e9) - 1.0).abs() < 0.05);
        assert!((observe(1.0, 1000.0, 0.0) - 1.0).abs() < 0.05);
        assert!((observe(1.0, 5.0, 50.0) - 1.0).abs() < 1e-3);
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(observe(1.3, 100.0, odd), 1.3);
            assert_eq!(observe(1.3, odd.min(0.0), 100.0), 1.3);
        }
        let far = |observed: f64| (0..5000).fold(1.0, |f, _| observe(f, 1000.0 * f, observed));
        assert_eq!((far(1e9), far(0.0)), (MOST, LEAST));
    }
}
