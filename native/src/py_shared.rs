//! What the classes over shared memory have in common: arguments and exceptions.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::PyErr;

use crate::shared::Fault;

pub fn value_error(what: String) -> PyErr {
    PyValueError::new_err(what)
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Value(what) => PyValueError::new_err(what),
            Fault::Unbound => PyRuntimeError::new_err("no worker slot is bound: call `bind` first"),
        }
    }
}
