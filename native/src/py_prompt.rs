//! Python's view of `prompt`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::blocks;
use crate::prompt;

/// Token ids and the scope in which an engine shares their blocks. Immutable; threads may share it.
#[pyclass(frozen, module = "native._core")]
pub struct Prompt {
    pub inner: prompt::Prompt,
}

impl From<prompt::Prompt> for Prompt {
    fn from(inner: prompt::Prompt) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Prompt {
    /// `ids`: little-endian u32, packed. `exact` is false where they only stand for tokens.
    /// ValueError unless the length is a multiple of four.
    #[new]
    #[pyo3(signature = (ids, lora=None, salt=None, exact=true))]
    fn new(ids: &[u8], lora: Option<&str>, salt: Option<&str>, exact: bool) -> PyResult<Self> {
        match prompt::Prompt::of_bytes(ids, blocks::scope(lora, salt), exact) {
            Some(prompt) => Ok(prompt.into()),
            None => {
                let text = format!("{} bytes are no packed ids of four bytes each", ids.len());
                Err(PyValueError::new_err(text))
            }
        }
    }

    /// From a list of token ids, as a request may hold one. ValueError outside 0..2^32.
    #[staticmethod]
    #[pyo3(signature = (ids, lora=None, salt=None))]
    fn of_list(ids: &Bound<'_, PyList>, lora: Option<&str>, salt: Option<&str>) -> PyResult<Self> {
        let mut packed = Vec::with_capacity(ids.len());
        for (at, id) in ids.iter().enumerate() {
            packed.push(id.extract::<u32>().map_err(|_| {
                PyValueError::new_err(format!("item {at} of the prompt is no token id: {id}"))
            })?);
        }
        Ok(prompt::Prompt::new(packed, blocks::scope(lora, salt), true).into())
    }

    #[getter]
    fn tokens(&self) -> usize {
        self.inner.tokens()
    }

    #[getter]
    fn exact(&self) -> bool {
        self.inner.exact()
    }

    /// The ids, packed as they came.
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, blocks::bytes(self.inner.ids()))
    }

    /// Sequence hashes of the full blocks, packed as little-endian u64. Computed once per block size
    /// and kept. ValueError for a block size of 0.
    fn hashes<'py>(&self, py: Python<'py>, block_size: usize) -> PyResult<Bound<'py, PyBytes>> {
        if block_size == 0 {
            return Err(PyValueError::new_err("a block has at least one token"));
        }
        let hashes = py.detach(|| self.inner.hashes(block_size));
        PyBytes::new_with(py, size_of_val(hashes), |out| {
            for (place, hash) in out.chunks_exact_mut(8).zip(hashes) {
                place.copy_from_slice(&hash.to_le_bytes());
            }
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        let kind = if self.inner.exact() { "exact" } else { "approximate" };
        format!("<Prompt of {} tokens, {kind}>", self.inner.tokens())
    }
}
