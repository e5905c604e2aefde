//! `native._core`: the export list, nothing more.
#![deny(warnings)]

pub mod board;
pub mod buckets;
pub mod counters;
pub mod fields;
pub mod hash;
pub mod histogram;
pub mod json;
pub mod kvbm;
pub mod ledger;
pub mod limiter;
pub mod limits;
pub mod marks;
pub mod pick;
pub mod scan;
pub mod shared;
pub mod slots;
pub mod splice;
pub mod stats;
pub mod strings;

#[cfg(feature = "python")]
mod py_kvbm;
#[cfg(feature = "python")]
mod py_kvbm_client;
#[cfg(feature = "python")]
mod py_kvbm_done;
#[cfg(feature = "python")]
mod py_ledger;
#[cfg(feature = "python")]
mod py_limits;
#[cfg(feature = "python")]
mod py_pick;
#[cfg(feature = "python")]
mod py_scan;
#[cfg(feature = "python")]
mod py_shared;
#[cfg(feature = "python")]
mod py_stats;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::py_kvbm::{KvbmCore, KvbmDisk};
    #[pymodule_export]
    use crate::py_kvbm_client::KvbmClient;
    #[pymodule_export]
    use crate::py_kvbm_done::KvbmDone;
    #[pymodule_export]
    use crate::py_ledger::{EngineLoad, Ledger};
    #[pymodule_export]
    use crate::py_limits::{Conns, Limiter, Rates};
    #[pymodule_export]
    use crate::py_pick::{EngineSet, HashRing, RoundRobin};
    #[pymodule_export]
    use crate::py_scan::{rewrite_body, scan_body, splice_body, Scan};
    #[pymodule_export]
    use crate::py_stats::{Counters, SeriesSnapshot, Stats};
}
