//! Python's view of step-time fits.

use pyo3::prelude::*;

use crate::fit::{self, builtin};
use crate::py_shared::value_error;
use crate::samples::{self, Decode, Prefill};

/// Step-time constants and sizes of a kind of engine: a built-in profile, with changes.
#[pyclass(frozen, module = "native._core")]
pub struct Fit {
    pub profile: fit::Profile,
}

#[pymethods]
impl Fit {
    /// `profile` None: the neutral one. `changes`: constants by name (base, a0, b, c, hb, hk, ovh; ms)
    /// in place of the profile's; `chunk_tokens` 0 = the profile's. ValueError for a name or value
    /// that cannot be.
    #[new]
    #[pyo3(signature = (profile=None, changes=None, chunk_tokens=0))]
    fn new(
        profile: Option<&str>,
        changes: Option<Vec<(String, f64)>>,
        chunk_tokens: u64,
    ) -> PyResult<Self> {
        let mut profile = *builtin(profile.unwrap_or(fit::NEUTRAL)).map_err(value_error)?;
        let mut values = profile.fit.values();
        for (name, value) in changes.unwrap_or_default() {
            let at = fit::Fit::NAMES.iter().position(|known| *known == name);
            let at = at.ok_or_else(|| value_error(format!("a fit has no constant `{name}`")))?;
            values[at] = value;
        }
        profile.fit = fit::Fit::of(values).map_err(value_error)?;
        if chunk_tokens > 0 {
            profile.chunk_tokens = chunk_tokens;
        }
        Ok(Self { profile })
    }

    /// Names of the built-in profiles.
    #[staticmethod]
    fn profiles() -> Vec<&'static str> {
        fit::PROFILES.iter().map(|profile| profile.name).collect()
    }

    /// KV tokens that fit on the device.
    #[getter]
    fn kv_tokens(&self) -> u64 {
        self.profile.kv_tokens
    }

    #[getter]
    fn kv_bytes_per_token(&self) -> u64 {
        self.profile.kv_bytes_per_token
    }

    /// Prompt tokens of a step.
    #[getter]
    fn chunk_tokens(&self) -> u64 {
        self.profile.chunk_tokens
    }

    /// (name, ms) of every constant.
    fn values(&self) -> Vec<(&'static str, f64)> {
        fit::Fit::NAMES.into_iter().zip(self.profile.fit.values()).collect()
    }

    /// Milliseconds to compute `n` prompt tokens behind `p` that are cached, on an idle engine.
    #[pyo3(signature = (n, p=0))]
    fn prefill_ms(&self, n: u64, p: u64) -> f64 {
        self.profile.fit.prefill_ms(n as f64, p as f64, self.profile.chunk_tokens as f64)
    }

    /// Milliseconds between tokens of `requests` that hold `kv_tokens` in sum.
    fn decode_ms(&self, requests: u64, kv_tokens: u64) -> f64 {
        self.profile.fit.decode_ms(requests as f64, kv_tokens as f64)
    }
}

/// A fit out of measurements, and its mean relative error at prompts and at answers.
///
/// `prefills`: (tokens computed, tokens cached before them, ms to the first token) of prompts alone on
/// an idle engine; `decodes`: (answers at once, KV tokens they hold, ms per token). Three of each are
/// needed, better a dozen. ValueError for samples that cannot be.
#[pyfunction]
pub fn fit_samples(
    prefills: Vec<(f64, f64, f64)>,
    decodes: Vec<(f64, f64, f64)>,
    chunk_tokens: u64,
) -> PyResult<(Fit, f64, f64)> {
    let prefills: Vec<_> = prefills.into_iter().map(|(n, p, ms)| Prefill { n, p, ms }).collect();
    let decodes: Vec<_> = decodes
        .into_iter()
        .map(|(requests, kv_tokens, ms)| Decode { requests, kv_tokens, ms })
        .collect();
    let found = samples::fit(&prefills, &decodes, chunk_tokens as f64).map_err(value_error)?;
    let neutral = *builtin(fit::NEUTRAL).map_err(value_error)?;
    let profile = fit::Profile { fit: found.fit, chunk_tokens, ..neutral };
    Ok((Fit { profile }, found.prefill_error, found.decode_error))
}
