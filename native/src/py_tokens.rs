//! Python's view of `tokens`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::blocks;
use crate::prompt;
use crate::py_prompt::Prompt;
use crate::template;
use crate::tokens::{self, Choice};

/// Above this many bytes of text the interpreter lock is released while it is encoded.
const DETACH_ABOVE: usize = 1024;

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

/// A chat template compiled for rendering without Python; threads share it.
#[pyclass(frozen, module = "native._core")]
pub struct Template {
    core: template::Template,
}

#[pymethods]
impl Template {
    /// Compiles `source`. ValueError: why this template is left to Jinja2.
    #[new]
    fn new(source: &str) -> PyResult<Self> {
        let core = template::Template::new(source).map_err(PyValueError::new_err)?;
        Ok(Self { core })
    }

    /// The text for `context_json`, a JSON object of the template's variables, keys in order. `now_s`: the time
    /// that the template may ask for, in seconds since 1970; None = now. ValueError where this cannot
    /// render as Jinja2 would (a float in the context, a rare filter), or the template refuses.
    #[pyo3(signature = (context_json, now_s=None))]
    fn render(&self, py: Python<'_>, context_json: &[u8], now_s: Option<i64>) -> PyResult<String> {
        let now_s = now_s.unwrap_or_else(self::now_s);
        py.detach(|| self.core.render(context_json, now_s)).map_err(PyValueError::new_err)
    }
}

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

    fn make(
        &self,
        text: &str,
        add_special_tokens: bool,
        scope: u64,
        block_sizes: &[usize],
    ) -> Result<prompt::Prompt, String> {
        let ids = self.core.encode(text, add_special_tokens);
        let ids = ids.map_err(|error| format!("tokenizer {}: {error}", self.path.display()))?;
        let prompt = prompt::Prompt::new(ids, scope, true);
        for &block_size in block_sizes {
            prompt.hashes(block_size);
        }
        Ok(prompt)
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
        let scope = blocks::scope(lora, salt);
        let make = || self.make(text, add_special_tokens, scope, &block_sizes);
        let prompt = if text.len() > DETACH_ABOVE { py.detach(make) } else { make() };
        prompt.map(Prompt::from).map_err(PyValueError::new_err)
    }

    /// Renders `context_json`, a JSON object, and makes the prompt of the text, in one call. The text is not
    /// handed out. ValueError as of `Template.render` and `encode`.
    #[pyo3(signature = (template, context_json, add_special_tokens, lora=None, salt=None, block_sizes=vec![]))]
    #[allow(clippy::too_many_arguments)]
    fn render_prompt(
        &self,
        py: Python<'_>,
        template: &Template,
        context_json: &[u8],
        add_special_tokens: bool,
        lora: Option<&str>,
        salt: Option<&str>,
        block_sizes: Vec<usize>,
    ) -> PyResult<Prompt> {
        let now_s = now_s();
        let scope = blocks::scope(lora, salt);
        let prompt = py.detach(|| {
            let text = template.core.render(context_json, now_s)?;
            self.make(&text, add_special_tokens, scope, &block_sizes)
        });
        prompt.map(Prompt::from).map_err(PyValueError::new_err)
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
