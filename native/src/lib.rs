//! `native._core`: the export list, nothing more.
#![deny(warnings)]

pub mod blocks;
pub mod board;
pub mod buckets;
pub mod cost;
pub mod counters;
pub mod events;
pub mod fields;
pub mod fit;
pub mod hash;
pub mod histogram;
pub mod index;
pub mod json;
pub mod kvbm;
pub mod ledger;
pub mod limiter;
pub mod limits;
pub mod link;
pub mod load;
pub mod marks;
pub mod msgpack;
pub mod pair;
pub mod pick;
pub mod planes;
pub mod prompt;
pub mod recast;
pub mod roles;
pub mod samples;
pub mod scan;
pub mod score;
pub mod shared;
pub mod sim;
pub mod slots;
pub mod speed;
pub mod splice;
pub mod stats;
pub mod strings;
pub mod template;
pub mod tokens;

#[cfg(feature = "python")]
mod py_cost;
#[cfg(feature = "python")]
mod py_fit;
#[cfg(feature = "python")]
mod py_index;
#[cfg(feature = "python")]
mod py_kvbm;
#[cfg(feature = "python")]
mod py_kvbm_check;
#[cfg(feature = "python")]
mod py_kvbm_client;
#[cfg(feature = "python")]
mod py_kvbm_done;
#[cfg(feature = "python")]
mod py_kvbm_fetcher;
#[cfg(feature = "python")]
mod py_kvbm_remote;
#[cfg(feature = "python")]
mod py_ledger;
#[cfg(feature = "python")]
mod py_limits;
#[cfg(feature = "python")]
mod py_pair;
#[cfg(feature = "python")]
mod py_pick;
#[cfg(feature = "python")]
mod py_prompt;
#[cfg(feature = "python")]
mod py_roles;
#[cfg(feature = "python")]
mod py_scan;
#[cfg(feature = "python")]
mod py_shared;
#[cfg(feature = "python")]
mod py_sim;
#[cfg(feature = "python")]
mod py_stats;
#[cfg(feature = "python")]
mod py_ticket;
#[cfg(feature = "python")]
mod py_tokens;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::py_cost::{Ask, Row, Scorer};
    #[pymodule_export]
    use crate::py_fit::{fit_samples, Fit};
    #[pymodule_export]
    use crate::py_index::{Applied, Index, IndexStats, Match};
    #[pymodule_export]
    use crate::py_kvbm::{KvbmCore, KvbmDisk};
    #[pymodule_export]
    use crate::py_kvbm_check::kvbm_check;
    #[pymodule_export]
    use crate::py_kvbm_client::KvbmClient;
    #[pymodule_export]
    use crate::py_kvbm_done::{KvbmDone, KvbmDropped};
    #[pymodule_export]
    use crate::py_kvbm_fetcher::KvbmFetcher;
    #[pymodule_export]
    use crate::py_kvbm_remote::{KvbmErrand, KvbmRemote};
    #[pymodule_export]
    use crate::py_ledger::{EngineLoad, Ledger};
    #[pymodule_export]
    use crate::py_limits::{Conns, Grip, Limiter, Rates};
    #[pymodule_export]
    use crate::py_pair::Pair;
    #[pymodule_export]
    use crate::py_pick::{EngineSet, HashRing, RoundRobin};
    #[pymodule_export]
    use crate::py_prompt::Prompt;
    #[pymodule_export]
    use crate::py_roles::RoleControl;
    #[pymodule_export]
    use crate::py_scan::{rewrite_body, scan_body, splice_body, Recast, Scan};
    #[pymodule_export]
    use crate::py_sim::{policies, simulate, Duet, Simulated, Trace};
    #[pymodule_export]
    use crate::py_stats::{Counters, SeriesSnapshot, Stats};
    #[pymodule_export]
    use crate::py_ticket::{Choice, Ticket};
    #[pymodule_export]
    use crate::py_tokens::{Template, Tokenizer};
}
