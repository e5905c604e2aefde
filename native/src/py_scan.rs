//! Python's view of `scan` and `splice`.

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::fields::{self, Field};
use crate::json;
use crate::recast;
use crate::scan;
use crate::splice::{self, Edit, Wanted};

/// Above this many bytes the interpreter lock is released while a body is read.
const DETACH_ABOVE: usize = 64 * 1024;

type Pair = (usize, usize);

fn pair(span: json::Span) -> Pair {
    (span.start, span.end)
}

/// What the gateway needs to know of a request body.
#[pyclass(frozen, module = "native._core")]
pub struct Scan {
    scan: scan::Scan,
    /// Decoded `model`; None if it is absent or not a string.
    #[pyo3(get)]
    model: Option<String>,
    #[pyo3(get)]
    stream: bool,
    /// `stream_options.include_usage`; None if it is absent.
    #[pyo3(get)]
    include_usage: Option<bool>,
    /// 1 when absent.
    #[pyo3(get)]
    n: i64,
    /// The first set of `max_completion_tokens`, `max_tokens`, `max_output_tokens`.
    #[pyo3(get)]
    max_tokens: Option<i64>,
    #[pyo3(get)]
    previous_response_id: Option<String>,
    #[pyo3(get)]
    user: Option<String>,
    #[pyo3(get)]
    session_id: Option<String>,
    #[pyo3(get)]
    cache_salt: Option<String>,
}

impl Scan {
    fn new(scan: scan::Scan, body: &[u8]) -> Self {
        let value = |field| scan.span(field).map(|span| span.of(body));
        let text = |field| value(field).and_then(fields::text);
        let integer = |field| value(field).and_then(fields::integer);
        let usage = scan.stream_options.and_then(|options| options.include_usage);
        Self {
            model: text(Field::Model),
            stream: value(Field::Stream).and_then(fields::boolean).unwrap_or(false),
            include_usage: usage.and_then(|span| fields::boolean(span.of(body))),
            n: integer(Field::N).unwrap_or(1),
            max_tokens: integer(Field::MaxCompletionTokens)
                .or_else(|| integer(Field::MaxTokens))
                .or_else(|| integer(Field::MaxOutputTokens)),
            previous_response_id: text(Field::PreviousResponseId),
            user: text(Field::User),
            session_id: text(Field::SessionId),
            cache_salt: text(Field::CacheSalt),
            scan,
        }
    }
}

#[pymethods]
impl Scan {
    /// Half-open byte span of the value of a top-level member (the last of its duplicates), or None.
    fn span(&self, name: &str) -> PyResult<Option<Pair>> {
        match Field::of(name.as_bytes()) {
            Some(field) => Ok(self.scan.span(field).map(pair)),
            None => Err(PyKeyError::new_err(format!("no place is kept for the field `{name}`"))),
        }
    }

    #[getter]
    fn model_span(&self) -> Option<Pair> {
        self.scan.span(Field::Model).map(pair)
    }

    #[getter]
    fn stream_options_span(&self) -> Option<Pair> {
        self.scan.span(Field::StreamOptions).map(pair)
    }

    #[getter]
    fn duplicate_model(&self) -> bool {
        self.scan.models > 1
    }

    /// Where a new member can be written: just after the opening brace.
    #[getter]
    fn insert_at(&self) -> usize {
        self.scan.insert_at
    }

    /// True if the object has no member, so that one inserted needs no comma after it.
    #[getter]
    fn empty(&self) -> bool {
        self.scan.members == 0
    }

    /// The same, once `strip` has been cut.
    #[getter]
    fn empty_stripped(&self) -> bool {
        self.scan.members_kept == 0
    }

    /// Spans to cut, sorted and disjoint, so that the fields a stranger must not set vanish.
    #[getter]
    fn strip(&self) -> Vec<Pair> {
        self.scan.strip.iter().copied().map(pair).collect()
    }

    /// True if there is anything to cut.
    #[getter]
    fn forbidden(&self) -> bool {
        !self.scan.strip.is_empty()
    }

    fn __repr__(&self) -> String {
        let model = self.model.as_deref().unwrap_or("(none)");
        format!("<Scan of {} bytes, model {model}, stream {}>", self.scan.len, self.stream)
    }
}

/// Reads a request body in one pass. ValueError, with the place, unless it is one JSON object.
#[pyfunction(name = "scan")]
pub fn scan_body(py: Python<'_>, body: &Bound<'_, PyBytes>) -> PyResult<Scan> {
    let text = body.as_bytes();
    let result = match text.len() > DETACH_ABOVE {
        true => py.detach(|| scan::scan(text)),
        false => scan::scan(text),
    };
    match result {
        Ok(scan) => Ok(Scan::new(scan, text)),
        Err(error) => Err(PyValueError::new_err(error.render(text))),
    }
}

/// Copies the body with `edits` = sorted, disjoint (start, end, replacement) applied.
#[pyfunction(name = "splice")]
pub fn splice_body<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyBytes>,
    edits: Vec<(usize, usize, Bound<'py, PyBytes>)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let edits: Vec<Edit> = edits
        .iter()
        .map(|(start, end, with)| Edit {
            span: json::Span { start: *start, end: *end },
            with: with.as_bytes(),
        })
        .collect();
    apply(py, body.as_bytes(), &edits)
}

/// All edits of a request in one copy; the same object back where nothing changes.
///
/// `model` and `cache_salt`: new values as JSON strings with their quotes; added where there is none.
/// `strip` cuts what a stranger must not set. `include_usage` asks a streaming request for its usage chunk.
#[pyfunction(name = "rewrite")]
#[pyo3(signature = (body, scan, model=None, strip=false, include_usage=false, cache_salt=None))]
pub fn rewrite_body<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyBytes>,
    scan: &Scan,
    model: Option<&[u8]>,
    strip: bool,
    include_usage: bool,
    cache_salt: Option<&[u8]>,
) -> PyResult<Bound<'py, PyBytes>> {
    let text = body.as_bytes();
    if text.len() != scan.scan.len {
        return Err(PyValueError::new_err("this scan is of another body"));
    }
    for (name, value) in [("model", model), ("cache_salt", cache_salt)] {
        if value.is_some_and(|value| !json::is_string(value)) {
            return Err(PyValueError::new_err(format!(
                "`{name}` must be a JSON string with its quotes"
            )));
        }
    }
    let mut inserted = Vec::new();
    let wanted = Wanted { model, strip, include_usage, cache_salt };
    let edits = splice::rewrite(&scan.scan, text, wanted, &mut inserted);
    if edits.is_empty() {
        return Ok(body.clone());
    }
    apply(py, text, &edits)
}

/// Leaves named members out of bodies and writes others in their place.
#[pyclass(frozen, module = "native._core")]
pub struct Recast {
    names: recast::Names,
}

#[pymethods]
impl Recast {
    /// `cut`: names of top-level members, all duplicates of which go.
    #[new]
    fn new(cut: Vec<String>) -> Self {
        Self { names: cut.into_iter().map(String::into_bytes).collect() }
    }

    /// The body with `members`, JSON text as between braces, in front. ValueError, with the place, unless
    /// the body is one JSON object.
    fn apply<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        members: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let text = body.as_bytes();
        let planned = match text.len() > DETACH_ABOVE {
            true => py.detach(|| recast::plan(text, &self.names)),
            false => recast::plan(text, &self.names),
        };
        let plan = planned.map_err(|error| PyValueError::new_err(error.render(text)))?;
        let comma: &[u8] = if plan.kept > 0 && !members.is_empty() { b"," } else { b"" };
        let with = [members, comma].concat();
        let at = json::Span { start: plan.insert_at, end: plan.insert_at };
        let mut edits = Vec::with_capacity(1 + plan.cuts.len());
        edits.push(Edit { span: at, with: &with });
        edits.extend(plan.cuts.iter().map(|&span| Edit { span, with: b"" }));
        apply(py, text, &edits)
    }
}

fn apply<'py>(py: Python<'py>, text: &[u8], edits: &[Edit]) -> PyResult<Bound<'py, PyBytes>> {
    let len = splice::spliced_len(text.len(), edits).map_err(PyValueError::new_err)?;
    PyBytes::new_with(py, len, |out| {
        splice::splice_into(text, edits, out);
        Ok(())
    })
}
