//! Python's view of `tokens`.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::blocks;
use crate::prompt;
use crate::py_prompt::Prompt;
use crate::tokens::{self, Choice};

/// Above this many bytes of text the interpreter lock is released while it is encoded.
const DETACH_ABOVE: usize = 1024;

/// A tokenizer that has been loaded; threads share it.
#[pyclass(frozen, module = "native._core")]
pub struct Tokenizer {
    core: tokens::Tokenizer,
    path: PathBuf,
}

impl Tokenizer {
    fn ids(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        let encode = || self.core.encode(text, add_special_tokens);
        let ids = if text.len() > DETACH_ABOVE { py.detach(encode) } else { encode() };
        ids.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &str) -> PyErr {
        PyValueError::new_err(format!("tokenizer {}: {error}", self.path.display()))
    }
}

#[pymethods]
impl Tokenizer {
    /// Loads `path`, a `tokenizer.json` or its folder; a `tokenizer_config.json` beside it is honoured.
    /// `cache_bytes` bounds what is kept of texts and their ids. `kind`: `auto` takes `fastokens` where it
    /// can, `tokenizers` never does, `whole` moreover cuts and keeps nothing (slow; to compare with). May take seconds; the interpreter lock is released.
    /// ValueError: which file, and what is wrong with it.
    #[new]
    #[pyo3(signature = (path, cache_bytes=64 << 20, kind="auto"))]
    fn new(py: Python<'_>, path: PathBuf, cache_bytes: usize, kind: &str) -> PyResult<Self> {
        let choice = match kind {
            "auto" => Choice::Auto,
            "tokenizers" => Choice::Reference,
            "whole" => Choice::Whole,
            _ => {
                let text = format!("the kind is `auto`, `tokenizers` or `whole`, got `{kind}`");
                return Err(PyValueError::new_err(text));
            }
        };
        match py.detach(|| tokens::Tokenizer::load(&path, cache_bytes, choice)) {
            Ok(core) => Ok(Self { core, path }),
            Err(error) => {
                let text = format!("tokenizer {}: {error}", path.display());
                Err(PyValueError::new_err(text))
            }
        }
    }

    /// `fastokens` or `tokenizers`: what encodes.
    #[getter]
    fn kind(&self) -> &'static str {
        self.core.kind()
    }

    /// Why `fastokens` does not encode; None where it does.
    #[getter]
    fn refused(&self) -> Option<&str> {
        self.core.refused()
    }

    /// Builds the calling thread's tables, which otherwise the first request on it pays for: up to a
    /// tenth of a second. The interpreter lock is released.
    fn warm(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.warm()).map_err(|error| self.failed(&error))
    }

    /// Ids of `text`, packed as little-endian u32. ValueError where no library encodes it.
    #[pyo3(signature = (text, add_special_tokens=false))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        add_special_tokens: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ids = self.ids(py, text, add_special_tokens)?;
        Ok(PyBytes::new(py, blocks::bytes(&ids)))
    }

    /// The prompt of `text` with the hashes for `block_sizes` computed. ValueError as `encode`.
    #[pyo3(signature = (text, add_special_tokens, lora=None, salt=None, block_sizes=vec![]))]
    fn prompt(
        &self,
        py: Python<'_>,
        text: &str,
        add_special_tokens: bool,
        lora: Option<&str>,
        salt: Option<&str>,
        block_sizes: Vec<usize>,
    ) -> PyResult<Prompt> {
        let make = || {
            let ids = self.core.encode(text, add_special_tokens)?;
            let prompt = prompt::Prompt::new(ids, blocks::scope(lora, salt), true);
            for &block_size in &block_sizes {
                prompt.hashes(block_size);
            }
            Ok(prompt)
        };
        let prompt: Result<_, String> =
            if text.len() > DETACH_ABOVE { py.detach(make) } else { make() };
        prompt.map(Prompt::from).map_err(|error| self.failed(&error))
    }

    /// Bytes of `text` that would have to be encoded, as no cached segment holds them.
    fn cost_bytes(&self, py: Python<'_>, text: &str) -> usize {
        if text.len() > DETACH_ABOVE {
            py.detach(|| self.core.cold_bytes(text))
        } else {
            self.core.cold_bytes(text)
        }
    }

    /// Of the cache: `bytes` held, their `limit`, `entries`, `hits` and `misses` of segments, `hit_bytes`
    /// and `miss_bytes` of text. Besides: `fallbacks`, segments that only `tokenizers` could encode, and
    /// `failures`, texts that none could.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let used = self.core.usage();
        let stats = PyDict::new(py);
        stats.set_item("bytes", used.bytes)?;
        stats.set_item("limit", used.limit)?;
        stats.set_item("entries", used.entries)?;
        stats.set_item("hits", used.hits)?;
        stats.set_item("misses", used.misses)?;
        stats.set_item("hit_bytes", used.hit_bytes)?;
        stats.set_item("miss_bytes", used.miss_bytes)?;
        stats.set_item("fallbacks", self.core.fallbacks())?;
        stats.set_item("failures", self.core.failures())?;
        Ok(stats)
    }
}
