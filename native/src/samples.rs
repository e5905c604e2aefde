//! Step-time constants out of measurements of one engine.
//!
//! Prompts alone on an idle engine give a0, b and c; answers running together give base, hb and hk.
//! Least squares of the relative error, so that short times count as much as long ones, and no
//! constant below zero: with three unknowns, every subset of them is tried. The time of a step that
//! neither prompts nor answers explain cannot be told apart, and is part of both: ovh is zero.

use crate::fit::Fit;

/// `n` prompt tokens computed behind `p` cached ones took `ms` to the first token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    pub n: f64,
    pub p: f64,
    pub ms: f64,
}

/// `requests` answers that held `kv_tokens` in sum took `ms` per token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decode {
    pub requests: f64,
    pub kv_tokens: f64,
    pub ms: f64,
}

/// The constants, and their mean relative error on the samples: of prompts, of answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fitted {
    pub fit: Fit,
    pub prefill_error: f64,
    pub decode_error: f64,
}

const UNKNOWNS: usize = 3;
/// Prompts that take less than so many times the shortest step say nothing of the work per token.
const ABOVE_FLOOR: f64 = 1.2;

type Sample = ([f64; UNKNOWNS], f64);

/// Solves the normal equations for the unknowns in `used`; `None`: they are not independent.
fn solve(samples: &[Sample], used: [bool; UNKNOWNS]) -> Option<[f64; UNKNOWNS]> {
    let mut rows = [[0.0; UNKNOWNS + 1]; UNKNOWNS];
    for (i, row) in rows.iter_mut().enumerate() {
        if !used[i] {
            row[i] = 1.0;
            continue;
        }
        for (terms, value) in samples {
            for (j, cell) in row.iter_mut().enumerate() {
                let other = if j == UNKNOWNS { 1.0 } else { terms[j] / value };
                *cell += if j < UNKNOWNS && !used[j] { 0.0 } else { terms[i] / value * other };
            }
        }
    }
    for at in 0..UNKNOWNS {
        let pivot =
            (at..UNKNOWNS).max_by(|&a, &b| rows[a][at].abs().total_cmp(&rows[b][at].abs()))?;
        rows.swap(at, pivot);
        let scale: f64 = rows[at][..UNKNOWNS].iter().map(|cell| cell.abs()).sum();
        if scale == 0.0 || rows[at][at].abs() <= 1e-12 * scale {
            return None;
        }
        for below in 0..UNKNOWNS {
            if below != at {
                let factor = rows[below][at] / rows[at][at];
                for column in 0..=UNKNOWNS {
                    rows[below][column] -= factor * rows[at][column];
                }
            }
        }
    }
    Some(std::array::from_fn(|i| rows[i][UNKNOWNS] / rows[i][i]))
}

fn predicted(terms: &[f64; UNKNOWNS], found: &[f64; UNKNOWNS]) -> f64 {
    terms.iter().zip(found).map(|(term, value)| term * value).sum()
}

/// The best solution without a negative value; unknowns are scaled, so that they are of like size.
fn fitted(samples: &[Sample]) -> [f64; UNKNOWNS] {
    let largest: [f64; UNKNOWNS] =
        std::array::from_fn(|i| samples.iter().map(|(terms, _)| terms[i]).fold(0.0, f64::max));
    let unit = largest.map(|most| if most > 0.0 { most } else { 1.0 });
    let scaled: Vec<Sample> = samples
        .iter()
        .map(|(terms, ms)| (std::array::from_fn(|i| terms[i] / unit[i]), *ms))
        .collect();
    let mut best = ([0.0; UNKNOWNS], f64::INFINITY);
    for subset in 1..1 << UNKNOWNS {
        let used = std::array::from_fn(|i| subset >> i & 1 == 1 && largest[i] > 0.0);
        let Some(found) = solve(&scaled, used) else { continue };
        if found.iter().any(|value| *value < 0.0) {
            continue;
        }
        let error: f64 =
            scaled.iter().map(|(terms, ms)| (predicted(terms, &found) / ms - 1.0).powi(2)).sum();
        if error < best.1 {
            best = (found, error);
        }
    }
    std::array::from_fn(|i| best.0[i] / unit[i])
}

fn mean_error(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0f64);
    for (modelled, seen) in pairs {
        sum += (modelled / seen - 1.0).abs();
        count += 1.0;
    }
    sum / count.max(1.0)
}

/// Fits samples of an engine with steps of `chunk` prompt tokens. An error says what is missing.
pub fn fit(prefills: &[Prefill], decodes: &[Decode], chunk: f64) -> Result<Fitted, String> {
    let numbers = prefills
        .iter()
        .flat_map(|s| [s.n, s.p, s.ms])
        .chain(decodes.iter().flat_map(|s| [s.requests, s.kv_tokens, s.ms]));
    if numbers.into_iter().any(|number| !(0.0..1e12).contains(&number)) || !(chunk >= 1.0) {
        return Err("a sample is negative, or no number".into());
    }
    if prefills.iter().any(|s| s.ms == 0.0 || s.n == 0.0) || decodes.iter().any(|s| s.ms == 0.0) {
        return Err("a sample took no time, or computed no token".into());
    }
    if prefills.len() < UNKNOWNS || decodes.len() < UNKNOWNS {
        return Err(format!(
            "{} prompts and {} runs of answers were measured; {UNKNOWNS} of each are needed",
            prefills.len(),
            decodes.len()
        ));
    }
    let samples: Vec<Sample> =
        decodes.iter().map(|s| ([1.0, s.requests, s.kv_tokens], s.ms)).collect();
    let [base, hb, hk] = fitted(&samples);
    let terms = |s: &Prefill| [(s.n / chunk).ceil(), s.n, s.n * (s.p + s.n / 2.0)];
    let steps = |s: &Prefill| (s.n / chunk).ceil();
    let mut tells: Vec<&Prefill> =
        prefills.iter().filter(|s| s.ms > ABOVE_FLOOR * base * steps(s)).collect();
    if tells.len() < UNKNOWNS {
        tells = prefills.iter().collect();
    }
    let samples: Vec<Sample> = tells.iter().map(|s| (terms(s), s.ms)).collect();
    let [a0, b, c] = fitted(&samples);
    let found = Fit::of([base, a0, b, c, hb, hk, 0.0])?;
    Ok(Fitted {
        fit: found,
        prefill_error: mean_error(
            prefills.iter().map(|s| (found.prefill_ms(s.n, s.p, chunk), s.ms)),
        ),
        decode_error: mean_error(
            decodes.iter().map(|s| (found.decode_ms(s.requests, s.kv_tokens), s.ms)),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::PROFILES;
    use crate::hash::Random;

    fn measured(real: &Fit, chunk: f64, noise: f64, seed: u64) -> (Vec<Prefill>, Vec<Decode>) {
        let mut random = Random(seed);
        let mut odd = || 1.0 + noise * (random.below(2001) as f64 / 1000.0 - 1.0);
        let mut prefills = Vec::new();
        for n in [64.0, 256.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0] {
            for p in [0.0, 4096.0] {
                prefills.push(Prefill { n, p, ms: real.prefill_ms(n, p, chunk) * odd() });
            }
        }
        let mut decodes = Vec::new();
        for requests in [1.0, 4.0, 16.0, 32.0] {
            for context in [128.0, 1024.0, 4096.0] {
                let kv_tokens = requests * context;
                let ms = real.decode_ms(requests, kv_tokens) * odd();
                decodes.push(Decode { requests, kv_tokens, ms });
            }
        }
        (prefills, decodes)
    }

    #[test]
    fn the_constants_of_every_profile_are_found_again() {
        for (seed, profile) in PROFILES.iter().enumerate() {
            let chunk = profile.chunk_tokens as f64;
            for noise in [0.0, 0.03] {
                let (prefills, decodes) = measured(&profile.fit, chunk, noise, seed as u64);
                let found = fit(&prefills, &decodes, chunk).unwrap();
                let slack = 0.01 + 1.2 * noise;
                assert!(found.prefill_error < slack && found.decode_error < slack, "{found:?}");
                let (n, p) = (12_000.0, 3000.0);
                for (modelled, real) in [
                    (found.fit.prefill_ms(n, p, chunk), profile.fit.prefill_ms(n, p, chunk)),
                    (found.fit.decode_ms(24.0, 60_000.0), profile.fit.decode_ms(24.0, 60_000.0)),
                ] {
                    assert!((modelled / real - 1.0).abs() < 0.03, "{}: {found:?}", profile.name);
                }
            }
        }
    }

    #[test]
    fn no_constant_is_negative_whatever_is_measured() {
        let mut random = Random(9);
        for _ in 0..300 {
            let mut draw = || 1.0 + random.below(5000) as f64;
            let prefills: Vec<_> =
                (0..5).map(|_| Prefill { n: draw(), p: draw(), ms: draw() }).collect();
            let decodes: Vec<_> = (0..5)
                .map(|_| Decode { requests: draw(), kv_tokens: draw(), ms: draw() })
                .collect();
            let found = fit(&prefills, &decodes, 512.0).unwrap();
            assert!(found.fit.values().iter().all(|value| value.is_finite() && *value >= 0.0));
        }
    }

    #[test]
    fn too_few_or_senseless_samples_are_refused() {
        let (prefills, decodes) = measured(&PROFILES[0].fit, 2048.0, 0.0, 1);
        assert!(fit(&prefills[..2], &decodes, 2048.0).unwrap_err().contains("2 prompts"));
        let mut odd = prefills.clone();
        odd[0].ms = f64::NAN;
        assert!(fit(&odd, &decodes, 2048.0).is_err());
        odd[0].ms = 0.0;
        assert!(fit(&odd, &decodes, 2048.0).unwrap_err().contains("no time"));
        // All alike: the constants cannot be told apart, but the time is met.
        let same = vec![decodes[0]; 4];
        let found = fit(&prefills, &same, 2048.0).unwrap();
        assert!(found.decode_error < 1e-9);
    }
}
