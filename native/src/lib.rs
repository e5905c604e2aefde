//! `native._core`: the export list, nothing more.
#![deny(warnings)]

pub mod fields;
pub mod json;
pub mod scan;
pub mod splice;

#[cfg(feature = "python")]
mod py_scan;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::py_scan::{rewrite_body, scan_body, splice_body, Scan};
}
