//! Python's view of the daemon core: started, asked, stopped. Nothing on the data path comes here.

use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::kvbm::admission::Policy;
use crate::kvbm::commands::{Command, Figure, Tuning};
use crate::kvbm::core::Core;
use crate::kvbm::folder::Direct;
use crate::kvbm::hub::HubOptions;
use crate::kvbm::namespace::KeyMaker;
use crate::kvbm::options::{DiskOptions, IoKind};
use crate::kvbm::points::Points;
use crate::kvbm::record::{Fingerprint, Key};
use crate::kvbm::remote::{Bundling, RemoteOptions, Upload};
use crate::py_kvbm_done::{change, Change, KvbmDropped};
use crate::py_kvbm_remote::KvbmRemote;
use crate::py_shared::value_error;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What an operator says about the disk tier; 0 stands for the default that suits the capacity.
#[pyclass(frozen, module = "native._core")]
pub struct KvbmDisk {
    options: DiskOptions,
}

#[pymethods]
impl KvbmDisk {
    /// `directory` holds the store; `capacity` in bytes bounds everything below it, foreign files included.
    /// `io` = auto, uring or threads; `direct` = auto or never; `reuse` = times a block must be offered
    /// before it is written (1: always); `write_rate` in bytes a second, 0 = no limit; `reset` starts
    /// empty where the superblock is damaged; `points` lets tests fail or kill at named places.
    #[new]
    #[pyo3(signature = (directory, capacity, *, segment_bytes=0, io="auto", direct="auto", reuse=1,
        write_rate=0, depth=32, buffer_bytes=0, backlog_bytes=0, reset=false, sync_s=1.0, look_s=30.0,
        copy_threads=2, points=""))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        directory: std::path::PathBuf,
        capacity: u64,
        segment_bytes: u64,
        io: &str,
        direct: &str,
        reuse: u8,
        write_rate: u64,
        depth: usize,
        buffer_bytes: usize,
        backlog_bytes: u64,
        reset: bool,
        sync_s: f64,
        look_s: f64,
        copy_threads: usize,
        points: &str,
    ) -> PyResult<Self> {
        let mut options = DiskOptions::new(directory, capacity);
        options.segment_bytes = segment_bytes;
        options.io = match io {
            "auto" => IoKind::Auto,
            "uring" => IoKind::Uring,
            "threads" => IoKind::Threads,
            other => {
                return Err(value_error(format!("`io` is auto, uring or threads, not `{other}`")))
            }
        };
        options.direct = match direct {
            "auto" => Direct::Auto,
            "never" => Direct::Never,
            other => return Err(value_error(format!("`direct` is auto or never, not `{other}`"))),
        };
        options.policy = policy_of(reuse);
        options.write_rate = write_rate;
        options.depth = depth.clamp(1, 1024);
        options.copy_threads = copy_threads.clamp(1, 64);
        if buffer_bytes > 0 {
            options.buffer_bytes = buffer_bytes;
        }
        if backlog_bytes > 0 {
            options.backlog_bytes = backlog_bytes;
        }
        options.reset = reset;
        options.sync_us = micros("sync_s", sync_s)?;
        options.look_us = micros("look_s", look_s)?;
        if !points.is_empty() {
            options.points = Points::parse(points).map_err(value_error)?;
        }
        Ok(Self { options })
    }
}

fn policy_of(reuse: u8) -> Policy {
    if reuse <= 1 {
        Policy::Always
    } else {
        Policy::Reuse(reuse)
    }
}

fn upload_of(word: &str) -> PyResult<Upload> {
    match word {
        "off" => Ok(Upload::Off),
        "reuse" => Ok(Upload::Reuse),
        "all" => Ok(Upload::All),
        other => Err(value_error(format!("`upload` is off, reuse or all, not `{other}`"))),
    }
}

fn micros(name: &str, seconds: f64) -> PyResult<u64> {
    if (0.001..=86_400.0).contains(&seconds) {
        return Ok((seconds * 1e6) as u64);
    }
    Err(value_error(format!("`{name}` must be from 0.001 to 86400 seconds, got {seconds}")))
}

/// The daemon core: a socket, its clients, the tiers. It works on threads of its own, whatever Python
/// does. Calls wait for it, at most 10 s (TimeoutError), without the interpreter's lock.
#[pyclass(frozen, module = "native._core")]
pub struct KvbmCore {
    pub(crate) core: Arc<Core>,
}

impl KvbmCore {
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        command: impl FnOnce(SyncSender<T>) -> Command + Send,
    ) -> PyResult<T> {
        ask(&self.core, py, command)
    }
}

pub(crate) fn ask<T: Send>(
    core: &Core,
    py: Python<'_>,
    command: impl FnOnce(SyncSender<T>) -> Command + Send,
) -> PyResult<T> {
    py.detach(|| core.ask(command, PATIENCE))
        .ok_or_else(|| PyTimeoutError::new_err("the daemon core does not answer"))
}

pub(crate) fn print(bytes: &[u8]) -> PyResult<Fingerprint> {
    let print = bytes.try_into();
    print.map_err(|_| value_error(format!("a fingerprint has 32 bytes, not {}", bytes.len())))
}

pub(crate) fn key(bytes: &[u8]) -> PyResult<Key> {
    let key = bytes.try_into();
    key.map_err(|_| value_error(format!("a key has 32 bytes, not {}", bytes.len())))
}

pub(crate) fn keys(all: &[Vec<u8>]) -> PyResult<Vec<Key>> {
    all.iter().map(|bytes| key(bytes)).collect()
}

type Block<'py> = (u16, Bound<'py, PyBytes>, u32, u8, u8);
type Namespace<'py> = (u16, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl KvbmCore {
    /// Opens the disk, recovers what is on it and listens at `socket`; OSError says what stands in the way.
    /// User ids in `allow_uids` may connect beside the own one. `host_bytes` is the size of the arena (0:
    /// none), whose blocks go on to the disk when they come, or with `spill` when they leave.
    /// `table_blocks` is the room of the table that clients look things up in (0: by the capacities).
    /// Slots of a client that lives and has lost its connection are kept for `orphan_s`. With
    /// `remote_blocks` there is a remote tier of which so many blocks are known at most; `upload` (off, reuse,
    /// all) says what is sent there; see `remote`. Blocks of at most `bundle_below` bytes are sent in bundles of
    /// at most `bundle_bytes` (0: alone), for which they wait at most `bundle_s`.
    #[new]
    #[pyo3(signature = (socket, *, disk=None, host_bytes=0, spill=false, table_blocks=0,
        socket_mode=0o600, allow_uids=Vec::new(), token=Vec::new(),
        connections=256, load_s=2.0, store_s=10.0, orphan_s=10.0, remote_blocks=0, upload="off",
        bundle_bytes=0, bundle_below=0, bundle_s=0.2))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        socket: std::path::PathBuf,
        disk: Option<&KvbmDisk>,
        host_bytes: usize,
        spill: bool,
        table_blocks: u64,
        socket_mode: u32,
        allow_uids: Vec<u32>,
        token: Vec<u8>,
        connections: usize,
        load_s: f64,
        store_s: f64,
        orphan_s: f64,
        remote_blocks: usize,
        upload: &str,
        bundle_bytes: u64,
        bundle_below: u32,
        bundle_s: f64,
    ) -> PyResult<Self> {
        let wait_us = micros("bundle_s", bundle_s)?;
        let bundling = Bundling { bytes: bundle_bytes, below: bundle_below, wait_us };
        let (known_max, upload) = (remote_blocks, upload_of(upload)?);
        let remote = (known_max > 0).then_some(RemoteOptions { known_max, upload, bundling });
        let mut disk = disk.map(|disk| disk.options.clone());
        if let (Some(disk), Some(remote)) = (&mut disk, &remote) {
            disk.tells_use = remote.upload == Upload::Reuse;
        }
        let options = HubOptions {
            socket,
            socket_mode,
            allow_uids,
            token,
            conns_max: connections,
            load_us: micros("load_s", load_s)?,
            store_us: micros("store_s", store_s)?,
            orphan_us: micros("orphan_s", orphan_s)?,
            host_bytes,
            spill,
            table_blocks,
            disk,
            remote,
        };
        let started = py.detach(|| Core::start(options));
        let core = started.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self { core: Arc::new(core) })
    }

    /// The remote tier's door.
    fn remote(&self) -> KvbmRemote {
        KvbmRemote { core: Arc::clone(&self.core) }
    }

    /// Takes over what can change while it runs.
    #[pyo3(signature = (*, load_s, store_s, allow_uids, reuse, write_rate))]
    fn tune(
        &self,
        load_s: f64,
        store_s: f64,
        allow_uids: Vec<u32>,
        reuse: u8,
        write_rate: u64,
    ) -> PyResult<()> {
        let policy = policy_of(reuse);
        let (load_us, store_us) = (micros("load_s", load_s)?, micros("store_s", store_s)?);
        let tuning = Tuning { load_us, store_us, allow_uids, policy, write_rate };
        self.core.tell(Command::Tune(tuning));
        Ok(())
    }

    /// Brings blocks of a chain that will be asked for soon nearer; how many are not near.
    fn hint(
        &self,
        py: Python<'_>,
        fingerprint: &[u8],
        keys: Vec<Vec<u8>>,
        block_bytes: u32,
    ) -> PyResult<usize> {
        let namespace = print(fingerprint)?;
        let keys = self::keys(&keys)?;
        self.ask(py, |reply| Command::Hint { namespace, len: block_bytes, keys, reply })
    }

    /// Ends what is under way, flushes and closes; returns when all that is done.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.core.stop());
    }

    #[getter]
    fn running(&self) -> bool {
        self.core.is_running()
    }

    /// All figures by name; counts only grow.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        for (name, figure) in self.ask(py, Command::Figures)? {
            match figure {
                Figure::Count(count) => out.set_item(name, count)?,
                Figure::Text(text) => out.set_item(name, text)?,
            }
        }
        Ok(out)
    }

    /// By kind of job: counts by duration, the n-th of those that took at most 2^n microseconds, and the sum
    /// in microseconds.
    fn durations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        for (name, counts, sum) in self.ask(py, Command::Durations)? {
            out.set_item(name, (counts, sum))?;
        }
        Ok(out)
    }

    /// The hashes that keys of a namespace and a group of layers were made from, zeros behind them up to 32
    /// bytes.
    #[staticmethod]
    fn hashes<'py>(
        py: Python<'py>,
        fingerprint: &[u8],
        keys: Vec<Vec<u8>>,
        group: u32,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut maker = KeyMaker::new(print(fingerprint)?);
        let mut each = |bytes: &Vec<u8>| {
            let hash = maker.key(&key(bytes)?, group).unwrap_or_default();
            Ok(PyBytes::new(py, &hash))
        };
        keys.iter().map(&mut each).collect()
    }

    /// (number, fingerprint, probe, descriptor) of every namespace on the disk.
    fn namespaces<'py>(&self, py: Python<'py>) -> PyResult<Vec<Namespace<'py>>> {
        let rows = self.ask(py, Command::Namespaces)?;
        let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
        let rows = rows.iter();
        Ok(rows
            .map(|r| (r.number, bytes(&r.fingerprint), bytes(&r.probe), bytes(&r.descriptor)))
            .collect())
    }

    /// (namespace, key, bytes, hits, tiers) of blocks, and where to go on, None at the end. `tiers` has a bit
    /// per tier: 1 host, 2 disk, 4 remote; `bytes` is 0 where nobody has named the namespace and the block is
    /// remote only. Looks at about `most` places, so a list may be shorter or a little longer, and blocks that
    /// move meanwhile may be missing or come twice.
    #[pyo3(signature = (cursor=0, most=4096))]
    fn blocks<'py>(
        &self,
        py: Python<'py>,
        cursor: u64,
        most: usize,
    ) -> PyResult<(Vec<Block<'py>>, Option<u64>)> {
        let (rows, next) = self.ask(py, |reply| Command::List { from: cursor, most, reply })?;
        let rows = rows.iter();
        let rows =
            rows.map(|r| (r.namespace, PyBytes::new(py, &r.key), r.len, r.hits, r.tiers)).collect();
        Ok((rows, next))
    }

    /// Forgets blocks of a namespace. Those of the host and the disk do not come back when it has returned, not
    /// even after a crash; those of the store are forgotten, and do not come back once the caller has done
    /// the errands. `local`: what lies in the store stays there, and known.
    #[pyo3(signature = (fingerprint, keys, *, local=false))]
    fn drop(
        &self,
        py: Python<'_>,
        fingerprint: &[u8],
        keys: Vec<Vec<u8>>,
        local: bool,
    ) -> PyResult<KvbmDropped> {
        let (namespace, keys) = (print(fingerprint)?, self::keys(&keys)?);
        let is_local = local;
        let dropped = self.ask(py, |reply| Command::Drop { namespace, keys, is_local, reply })?;
        KvbmDropped::new(py, dropped)
    }

    /// Begins to verify every block, at `rate` bytes a second (0: no limit). False: there is no disk.
    #[pyo3(signature = (rate=0))]
    fn scrub(&self, py: Python<'_>, rate: u64) -> PyResult<bool> {
        self.ask(py, |reply| Command::Scrub { rate, reply })
    }

    /// (blocks checked, bytes read, blocks found bad and forgotten, done) of the last scrub.
    fn scrub_report(&self, py: Python<'_>) -> PyResult<Option<(u64, u64, u64, bool)>> {
        let report = self.ask(py, Command::ScrubReport)?;
        Ok(report.map(|report| (report.checked, report.bytes, report.bad, report.is_done)))
    }

    /// A block's whole record, verified: header page and payload. What `insert` takes.
    fn read<'py>(
        &self,
        py: Python<'py>,
        fingerprint: &[u8],
        block: &[u8],
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (namespace, key) = (print(fingerprint)?, key(block)?);
        let record = self.ask(py, |reply| Command::Read { namespace, key, reply })?;
        Ok(record.map(|record| PyBytes::new(py, &record)))
    }

    /// Takes in a record of a namespace that some engine has named; None once it exists, else why not.
    fn insert(&self, py: Python<'_>, record: Vec<u8>) -> PyResult<Option<String>> {
        self.ask(py, |reply| Command::Insert { record, reply })
    }

    /// Changes from number `first` (the first ever is 1): whether none is missing before them, the number of
    /// the first returned, and (stored | removed | cleared, tier, namespace, key, bytes) of each.
    #[pyo3(signature = (first, most=4096))]
    fn changes<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        most: usize,
    ) -> PyResult<(bool, u64, Vec<Change<'py>>)> {
        let (complete, first, notes) =
            self.ask(py, |reply| Command::Changes { from: first, most, reply })?;
        Ok((complete, first, notes.iter().map(|note| change(py, note)).collect()))
    }
}
