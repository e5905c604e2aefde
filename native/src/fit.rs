//! Step-time fits: how long an engine takes over a batch step, and the built-in profiles.
//!
//! ```text
//! step_ms = max(base, a0 + b·N + c·Σ n(p + n/2)) + hb·B + hk·ΣKV + ovh
//! ```
//!
//! N = prefill tokens in the step, n of one request of which p are there already, B = decoding
//! requests, ΣKV = the lengths of their contexts. The constants are least-squares fits to kernel
//! measurements in BF16, which they meet within 2 % (prefill) and 4 % (decode); `ovh` stands for the
//! scheduler, which kernels do not show.

/// Constants of an engine, all in milliseconds (per token, per squared token, per request).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// No step is shorter: reading the weights.
    pub base: f64,
    pub a0: f64,
    pub b: f64,
    pub c: f64,
    pub hb: f64,
    pub hk: f64,
    pub ovh: f64,
}

impl Fit {
    /// Order of the constants in `of` and `values`.
    pub const NAMES: [&'static str; 7] = ["base", "a0", "b", "c", "hb", "hk", "ovh"];

    /// An error names the constant that cannot be: negative, not finite, or too large for any engine.
    pub fn of(values: [f64; 7]) -> Result<Self, String> {
        for (name, value) in Self::NAMES.iter().zip(values) {
            if !(0.0..=1e6).contains(&value) {
                return Err(format!("`{name}` of a fit must be from 0 to 1e6 ms, got {value}"));
            }
        }
        let [base, a0, b, c, hb, hk, ovh] = values;
        Ok(Self { base, a0, b, c, hb, hk, ovh })
    }

    pub fn values(&self) -> [f64; 7] {
        [self.base, self.a0, self.b, self.c, self.hb, self.hk, self.ovh]
    }

    /// The marginal work of computing `n` prompt tokens behind `p` that are there: bn + cn(p + n/2).
    #[inline]
    pub fn tokens_ms(&self, n: f64, p: f64) -> f64 {
        self.b * n + self.c * n * (p + n / 2.0)
    }

    /// A step with prefill: `linear` is the sum of `tokens_ms` over its chunks, 0 = decodes alone.
    #[inline]
    pub fn step_ms(&self, linear: f64, decodes: f64, kv_tokens: f64) -> f64 {
        let prefill = if linear > 0.0 { self.a0 + linear } else { 0.0 };
        self.base.max(prefill) + self.hb * decodes + self.hk * kv_tokens + self.ovh
    }

    /// What computing `n` tokens behind `p` takes an engine that does nothing else, in chunks of
    /// `chunk` tokens: every chunk is a step, none shorter than the base.
    #[inline]
    pub fn prefill_ms(&self, n: f64, p: f64, chunk: f64) -> f64 {
        let steps = (n / chunk).ceil().max(1.0);
        let work = steps * self.a0 + self.tokens_ms(n, p);
        work.max(steps * self.base) + steps * self.ovh
    }

    /// What computing `n` tokens behind `p` adds to what an engine has to do. It has no floor, as its
    /// steps serve others as well.
    #[inline]
    pub fn work_ms(&self, n: f64, p: f64, chunk: f64) -> f64 {
        (n / chunk).ceil() * (self.a0 + self.ovh) + self.tokens_ms(n, p)
    }

    /// Time between tokens of `decodes` requests that hold `kv_tokens` in sum, nothing else running.
    #[inline]
    pub fn decode_ms(&self, decodes: f64, kv_tokens: f64) -> f64 {
        self.step_ms(0.0, decodes, kv_tokens)
    }

    /// The same engine, slower by a factor at prompts and by another at answers.
    pub fn scaled(&self, prefill: f64, decode: f64) -> Self {
        Self {
            base: self.base * decode,
            a0: self.a0 * prefill,
            b: self.b * prefill,
            c: self.c * prefill,
            hb: self.hb * decode,
            hk: self.hk * decode,
            ovh: self.ovh * prefill,
        }
    }
}

/// A kind of engine: its fit and its sizes in tokens and bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    pub name: &'static str,
    pub fit: Fit,
    pub kv_tokens: u64,
    pub kv_bytes_per_token: u64,
    /// Tokens of a step (`max_num_batched_tokens`): the chunk of a long prompt.
    pub chunk_tokens: u64,
    pub max_num_seqs: u64,
}

/// What tiers deliver, in GB/s: host memory over PCIe, a local disk, another machine.
const TIER_GB_S: [f64; 3] = [25.0, 3.0, 5.0];

impl Profile {
    /// Milliseconds per token to get KV from host memory, disk and another machine.
    pub fn fetch_ms(&self) -> [f64; 3] {
        TIER_GB_S.map(|gb_s| self.kv_bytes_per_token as f64 / (gb_s * 1e6))
    }
}

const fn profile(name: &'static str, fit: [f64; 6], kv_tokens: u64, sizes: [u64; 3]) -> Profile {
    let [base, a0, b, c, hb, hk] = fit;
    let [kv_bytes_per_token, chunk_tokens, max_num_seqs] = sizes;
    let fit = Fit { base, a0, b, c, hb, hk, ovh: 1.0 };
    Profile { name, fit, kv_tokens, kv_bytes_per_token, chunk_tokens, max_num_seqs }
}

const KB_8B: u64 = 131_072;
const KB_70B: u64 = 327_680;

/// What an engine is taken for that nothing is said of: an 8B model on one GPU of the present kind.
pub const NEUTRAL: &str = "neutral";

/// The built-in profiles; `a100` and `h100` with 80 GB, `h200` with 141 GB, Llama 3.1, BF16.
pub const PROFILES: &[Profile] = &[
    profile(NEUTRAL, [8.0, 2.0, 0.025, 1e-6, 0.015, 5e-5], 262_144, [KB_8B, 2_048, 256]),
    profile(
        "h100-8b-tp1",
        [6.42, 1.23, 0.02036, 7.89e-7, 0.0110, 4.19e-5],
        430_000,
        [KB_8B, 8_192, 1_024],
    ),
    profile(
        "h200-8b-tp1",
        [4.96, 0.56, 0.02054, 8.08e-7, 0.0117, 2.95e-5],
        840_000,
        [KB_8B, 8_192, 1_024],
    ),
    profile(
        "a100-8b-tp1",
        [11.54, 6.98, 0.05490, 2.98e-6, 0.0267, 8.65e-5],
        430_000,
        [KB_8B, 2_048, 256],
    ),
    profile(
        "h100-70b-tp4",
        [15.2, 4.33, 0.06251, 9.50e-7, 0.0322, 2.65e-5],
        461_000,
        [KB_70B, 8_192, 1_024],
    ),
    profile(
        "h100-70b-tp8",
        [9.98, 5.93, 0.03892, 4.67e-7, 0.0239, 1.33e-5],
        1_320_000,
        [KB_70B, 8_192, 1_024],
    ),
    profile(
        "a100-70b-tp4",
        [27.7, 28.3, 0.14836, 3.71e-6, 0.100, 5.63e-5],
        461_000,
        [KB_70B, 2_048, 256],
    ),
];

/// A built-in profile; an error lists the names there are.
pub fn builtin(name: &str) -> Result<&'static Profile, String> {
    PROFILES.iter().find(|profile| profile.name == name).ok_or_else(|| {
        let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
        format!("no profile is called `{name}`; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_of_8k_takes_what_was_measured() {
        // (profile, ms of 8192 tokens in one step, ms of a decode step of 64 requests at 2048 tokens)
        for (name, prefill, decode) in [
            ("h100-8b-tp1", 199.7, 12.6),
            ("h200-8b-tp1", 199.0, 9.5),
            ("h100-70b-tp4", 577.0, 20.7),
            ("h100-70b-tp8", 344.0, 13.7),
        ] {
            let fit = builtin(name).unwrap().fit;
            let kernels = Fit { ovh: 0.0, ..fit };
            let found = kernels.prefill_ms(8192.0, 0.0, 8192.0);
            assert!((found / prefill - 1.0).abs() < 0.05, "{name}: {found}");
            let found = kernels.decode_ms(64.0, 64.0 * 2048.0);
            assert!((found / decode - 1.0).abs() < 0.06, "{name}: {found}");
        }
        let fit = builtin("a100-70b-tp4").unwrap().fit;
        assert!((fit.prefill_ms(8192.0, 0.0, 8192.0) / 1372.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn a_prefix_that_is_there_is_not_computed_but_attended_to() {
        let fit = Fit { ovh: 0.0, ..builtin("h100-8b-tp1").unwrap().fit };
        let found = fit.prefill_ms(2048.0, 6144.0, 8192.0);
        assert!((found / 53.4 - 1.0).abs() < 0.05, "{found}");
        assert!(fit.prefill_ms(2048.0, 6144.0, 8192.0) > fit.prefill_ms(2048.0, 0.0, 8192.0));
        assert!(fit.prefill_ms(2048.0, 6144.0, 8192.0) < fit.prefill_ms(8192.0, 0.0, 8192.0));
    }

    #[test]
    fn a_chunk_is_a_step_and_no_step_is_shorter_than_the_base() {
        let fit = builtin("h100-70b-tp4").unwrap().fit;
        assert_eq!(fit.prefill_ms(1.0, 0.0, 8192.0), fit.base + fit.ovh);
        let one = fit.prefill_ms(8192.0, 0.0, 8192.0);
        let two = fit.prefill_ms(8192.0, 0.0, 4096.0);
        assert!((two - one - fit.a0 - fit.ovh).abs() < 1e-9);
        assert_eq!(fit.step_ms(0.0, 0.0, 0.0), fit.base + fit.ovh);
        assert_eq!(
            fit.scaled(2.0, 2.0).prefill_ms(100.0, 0.0, 64.0),
            2.0 * fit.prefill_ms(100.0, 0.0, 64.0)
        );
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert!(Fit::of([1.0, 0.0, -0.1, 0.0, 0.0, 0.0, 0.0]).unwrap_err().contains("`b`"));
        assert!(Fit::of([f64::NAN, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).is_err());
        assert!(builtin("b200").unwrap_err().contains("h100-8b-tp1"));
        for profile in PROFILES {
            assert_eq!(Fit::of(profile.fit.values()), Ok(profile.fit));
        }
    }
}
