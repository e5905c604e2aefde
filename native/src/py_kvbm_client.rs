//! Python's view of the client that lives in an engine's process.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::kvbm::board::clock_us;
use crate::kvbm::client::{Client, Want};
use crate::kvbm::host::Seat;
use crate::kvbm::link::{Lent, State};
use crate::kvbm::message::{put_keys, Hello, Item, ENGINE_MAX, TOKEN_MAX};
use crate::kvbm::namespace::DESCRIPTOR_MAX;
use crate::kvbm::record::{Key, NOTE_MAX, PAYLOAD_MAX};
use crate::kvbm::wire::{Head, Op};
use crate::py_kvbm_done::{change, named, seat_list, Change, KvbmDone};
use crate::py_shared::value_error;

/// Patience for what is not asked on a scheduler's thread.
const ADMIN_US: u64 = 2_000_000;

/// An engine's connection to the daemon. No call raises because of the daemon, and none waits longer
/// than `lookup_us` (`connect`, `pin`, `unpin`, `drop` and `follow`, which no scheduler calls: 2 s).
/// Blocks are named like vLLM's OffloadKey: a hash of up to 32 bytes and a big-endian group of 4.
#[pyclass(frozen, module = "native._core")]
pub struct KvbmClient {
    client: Mutex<Client>,
}

impl KvbmClient {
    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key_list(&self, names: &[Bound<'_, PyBytes>]) -> PyResult<Vec<Key>> {
        let mut client = self.client();
        names.iter().map(|name| named(&mut client, name.as_bytes())).collect()
    }

    fn begin(&self, py: Python<'_>, want: Want, job: u64, order: Order<'_, '_>) -> PyResult<bool> {
        let Order { names, slots, region, notes, deadline_us } = order;
        if names.len() != slots.len() || notes.as_ref().is_some_and(|n| n.len() != names.len()) {
            return Err(value_error("one slot, and one note if any, per block is needed".into()));
        }
        let mut items = Vec::with_capacity(names.len());
        {
            let mut client = self.client();
            for (at, (name, slot)) in names.iter().zip(slots).enumerate() {
                let key = named(&mut client, name.as_bytes())?;
                let note = notes.as_ref().map_or(&[][..], |notes| notes[at].as_bytes());
                if note.len() > NOTE_MAX {
                    let len = note.len();
                    return Err(value_error(format!(
                        "a note has at most {NOTE_MAX} bytes, not {len}"
                    )));
                }
                items.push(Item { key, slot, note: note.into() });
            }
        }
        Ok(py.detach(|| self.client().begin(want, job, region, items, deadline_us)))
    }

    fn ask(&self, py: Python<'_>, op: Op, extra: u64, keys: &[Key]) -> Option<(u32, Vec<u8>)> {
        let mut head = Head::new(op);
        (head.count, head.extra) = (keys.len() as u32, extra);
        let payload = put_keys(keys);
        let answer = py.detach(|| self.client().request(head, &payload, ADMIN_US));
        answer.map(|frame| (frame.head.count, frame.payload))
    }
}

struct Order<'a, 'py> {
    names: &'a [Bound<'py, PyBytes>],
    slots: Vec<u32>,
    region: u32,
    notes: Option<Vec<Bound<'py, PyBytes>>>,
    deadline_us: u64,
}

#[pymethods]
impl KvbmClient {
    /// `descriptor` is canonical JSON of what makes blocks interchangeable, `probe` the 32-byte hash of a
    /// fixed block of tokens.
    #[new]
    #[pyo3(signature = (socket, engine, descriptor, probe, block_bytes, *, lookup_us=1000,
        token=Vec::new()))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        socket: std::path::PathBuf,
        engine: String,
        descriptor: Vec<u8>,
        probe: &[u8],
        block_bytes: u32,
        lookup_us: u64,
        token: Vec<u8>,
    ) -> PyResult<Self> {
        let probe = probe.try_into().map_err(|_| value_error("the probe has 32 bytes".into()))?;
        let sizes = [
            ("engine", engine.len(), ENGINE_MAX),
            ("descriptor", descriptor.len(), DESCRIPTOR_MAX),
            ("token", token.len(), TOKEN_MAX),
        ];
        for (name, len, most) in sizes {
            if len > most {
                return Err(value_error(format!("`{name}` has {len} bytes, at most {most}")));
            }
        }
        if block_bytes == 0 || block_bytes as usize > PAYLOAD_MAX {
            return Err(value_error(format!("`block_bytes` is from 1 to {PAYLOAD_MAX}")));
        }
        let versions = (1, 1);
        let hello = Hello { versions, probe, block_bytes, engine, token, descriptor };
        Ok(Self { client: Mutex::new(Client::new(socket, hello, lookup_us)) })
    }

    /// Lends memory: a tmpfs file or memfd of `slots` times `stride` bytes; its number. The descriptor is
    /// duplicated, the daemon gets it now and after every reconnect.
    fn lend(&self, fd: i32, stride: u64, slots: u32) -> PyResult<u32> {
        let copy = if fd < 0 {
            Err(std::io::Error::from_raw_os_error(9))
        } else {
            unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
        };
        let copy: OwnedFd =
            copy.map_err(|e| PyOSError::new_err(format!("descriptor {fd}: {e}")))?;
        Ok(self.client().lend(Lent { fd: Arc::new(copy), stride, slots }))
    }

    /// Waits at most `patience_s` for the daemon; whether it is there.
    #[pyo3(signature = (patience_s=0.0))]
    fn connect(&self, py: Python<'_>, patience_s: f64) -> bool {
        let end_us = clock_us() + (patience_s.clamp(0.0, 60.0) * 1e6) as u64;
        py.detach(|| loop {
            let state = self.client().connect();
            if state == State::Up || clock_us() >= end_us {
                return state == State::Up;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        })
    }

    /// The daemon is there and alive.
    #[getter]
    fn connected(&self) -> bool {
        self.client().link().is_usable(clock_us())
    }

    /// Connections since the start: another number, another connection.
    #[getter]
    fn connects(&self) -> u64 {
        self.client().link().connects
    }

    /// Microseconds until so many blocks from the disk and from the remote tier would be loaded, by how
    /// loads go now.
    fn expected_us(&self, disk: u64, remote: u64) -> u64 {
        self.client().expected_us(disk, remote)
    }

    /// Tells the daemon, with the next report, of blocks that were found and computed all the same.
    fn count_gated(&self, blocks: u64) {
        self.client().count_gated(blocks);
    }

    /// Why there is no connection; empty when there is one.
    #[getter]
    fn trouble(&self) -> String {
        self.client().link().trouble.clone()
    }

    /// The namespace's fingerprint; None before the first connection.
    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let welcome = self.client().link().welcome;
        welcome.map(|welcome| PyBytes::new(py, &welcome.fingerprint))
    }

    /// Namespaces that differ from this one in the probe alone: engines whose hashes have another seed.
    #[getter]
    fn differing_probes(&self) -> u32 {
        self.client().link().welcome.map_or(0, |welcome| welcome.differing_probes)
    }

    /// The keys that blocks have in the store.
    fn keys<'py>(
        &self,
        py: Python<'py>,
        names: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let keys = self.key_list(&names)?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
    }

    /// One byte per block, in order: 0 miss, 1 host, 2 disk, 3 remote, 255 no answer in time. At most 4096.
    /// The arena counts with `arena` only: what lies there alone can be fetched, not loaded.
    #[pyo3(signature = (names, *, arena=false))]
    fn lookup<'py>(
        &self,
        py: Python<'py>,
        names: Vec<Bound<'py, PyBytes>>,
        arena: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let keys = self.key_list(&names)?;
        let tiers = py.detach(|| self.client().lookup(&keys, arena));
        Ok(PyBytes::new(py, &tiers))
    }

    /// Begins to store blocks from slots; `poll` tells the end. False: not begun, drop it.
    #[pyo3(signature = (job, names, slots, *, region=0, notes=None, deadline_us=10_000_000))]
    #[allow(clippy::too_many_arguments)]
    fn store(
        &self,
        py: Python<'_>,
        job: u64,
        names: Vec<Bound<'_, PyBytes>>,
        slots: Vec<u32>,
        region: u32,
        notes: Option<Vec<Bound<'_, PyBytes>>>,
        deadline_us: u64,
    ) -> PyResult<bool> {
        let order = Order { names: &names, slots, region, notes, deadline_us };
        self.begin(py, Want::Store, job, order)
    }

    /// Begins to load blocks into slots; `poll` tells the end. False: not begun, compute them.
    #[pyo3(signature = (job, names, slots, *, region=0, deadline_us=2_000_000))]
    fn load(
        &self,
        py: Python<'_>,
        job: u64,
        names: Vec<Bound<'_, PyBytes>>,
        slots: Vec<u32>,
        region: u32,
        deadline_us: u64,
    ) -> PyResult<bool> {
        let order = Order { names: &names, slots, region, notes: None, deadline_us };
        self.begin(py, Want::Load, job, order)
    }

    /// (descriptor, bytes, epoch) of the arena, None without one: map it, a page has 4096 bytes. Another
    /// epoch is another daemon's arena. The descriptor is the caller's to close.
    fn arena(&self) -> PyResult<Option<(i32, usize, u64)>> {
        let client = self.client();
        let (Some(memory), Some(welcome)) = (client.arena(), client.link().welcome) else {
            return Ok(None);
        };
        let copy = unsafe { BorrowedFd::borrow_raw(memory.fd()) }.try_clone_to_owned();
        let copy = copy.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Some((copy.into_raw_fd(), memory.len(), welcome.boot)))
    }

    /// Slots to write blocks to: (status, page, generation) each, status 0 where there is something to
    /// write, 23 where the block is there already. `chain`: each block continues the one before it.
    #[pyo3(signature = (names, *, chain=true))]
    fn reserve(
        &self,
        py: Python<'_>,
        names: Vec<Bound<'_, PyBytes>>,
        chain: bool,
    ) -> PyResult<Vec<(u8, u32, u32)>> {
        let keys = self.key_list(&names)?;
        let reserved = py.detach(|| self.client().reserve(&keys, chain));
        Ok(reserved.iter().map(|(s, seat)| (*s, seat.page, seat.generation)).collect())
    }

    /// The blocks are written: from now on they are found, and go on to the disk. With `discard` the slots
    /// are given back unwritten. One status per slot.
    #[pyo3(signature = (seats, *, discard=false))]
    fn commit<'py>(
        &self,
        py: Python<'py>,
        seats: Vec<(u32, u32)>,
        discard: bool,
    ) -> Bound<'py, PyBytes> {
        let seats = seat_list(&seats);
        let statuses = py.detach(|| self.client().commit(&seats, discard));
        PyBytes::new(py, &statuses)
    }

    /// Begins to bring blocks into the arena; `poll` tells where they are. False: not begun.
    #[pyo3(signature = (job, names, *, deadline_us=2_000_000))]
    fn fetch(
        &self,
        py: Python<'_>,
        job: u64,
        names: Vec<Bound<'_, PyBytes>>,
        deadline_us: u64,
    ) -> PyResult<bool> {
        let keys = self.key_list(&names)?;
        Ok(py.detach(|| self.client().fetch(job, &keys, deadline_us)))
    }

    /// Fetched blocks are not needed any more.
    fn release(&self, py: Python<'_>, seats: Vec<(u32, u32)>) {
        let seats = seat_list(&seats);
        py.detach(|| self.client().release(&seats));
    }

    /// Whether bytes just copied from a slot are the block's: no other was given the slot meanwhile.
    fn valid(&self, page: u32, generation: u32) -> bool {
        self.client().is_valid(Seat { page, generation })
    }

    /// Gives a job up; `poll` tells when its slots are free, usually at once.
    fn cancel(&self, job: u64) {
        self.client().cancel(job);
    }

    /// Jobs that ended since the last call. Their slots are the caller's again.
    fn poll(&self, py: Python<'_>) -> Vec<KvbmDone> {
        let done = self.client().poll();
        done.into_iter().map(|done| KvbmDone::new(py, done)).collect()
    }

    /// Jobs that have begun and not ended.
    #[getter]
    fn under_way(&self) -> usize {
        self.client().jobs_under_way()
    }

    /// Counts a use of blocks, so that they stay longer; not answered.
    fn touch(&self, py: Python<'_>, names: Vec<Bound<'_, PyBytes>>) -> PyResult<()> {
        let keys = self.key_list(&names)?;
        let mut head = Head::new(Op::Touch);
        head.count = keys.len() as u32;
        py.detach(|| self.client().tell(&head, &put_keys(&keys)));
        Ok(())
    }

    /// Says that blocks of a chain will be asked for soon, so that they are brought nearer; not answered.
    fn prefetch(&self, py: Python<'_>, names: Vec<Bound<'_, PyBytes>>) -> PyResult<()> {
        let keys = self.key_list(&names)?;
        let keys = &keys[..keys.len().min(crate::kvbm::wire::BATCH_MAX)];
        let mut head = Head::new(Op::Prefetch);
        head.count = keys.len() as u32;
        py.detach(|| self.client().tell(&head, &put_keys(keys)));
        Ok(())
    }

    /// Keeps blocks from being evicted for `lease_ms`; one byte per block, 1 where it is held.
    fn pin<'py>(
        &self,
        py: Python<'py>,
        names: Vec<Bound<'py, PyBytes>>,
        lease_ms: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let keys = self.key_list(&names)?;
        let answer = self.ask(py, Op::Pin, lease_ms, &keys);
        let held = answer.map_or_else(|| vec![0; keys.len()], |(_, held)| held);
        Ok(PyBytes::new(py, &held))
    }

    fn unpin(&self, py: Python<'_>, names: Vec<Bound<'_, PyBytes>>) -> PyResult<()> {
        let keys = self.key_list(&names)?;
        self.ask(py, Op::Unpin, 0, &keys);
        Ok(())
    }

    /// Forgets blocks; how many there were.
    fn drop(&self, py: Python<'_>, names: Vec<Bound<'_, PyBytes>>) -> PyResult<u32> {
        let keys = self.key_list(&names)?;
        Ok(self.ask(py, Op::Drop, 0, &keys).map_or(0, |(count, _)| count))
    }

    /// Asks to be told of changes from number `first` on (0: from now on); whether the daemon will.
    #[pyo3(signature = (first=0))]
    fn follow(&self, py: Python<'_>, first: u64) -> bool {
        self.ask(py, Op::Events, first, &[]).is_some()
    }

    /// Whether some were missed, and (stored | removed | cleared, tier, namespace, key, bytes) of each change
    /// told since the last call. After a reconnect some are missed: ask to follow again.
    fn take_changes<'py>(&self, py: Python<'py>) -> (bool, Vec<Change<'py>>) {
        let mut client = self.client();
        let notes = client.take_changes();
        let missed = std::mem::take(&mut client.changes_missed);
        (missed, notes.iter().map(|note| change(py, note)).collect())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = self.client().figures();
        let out = PyDict::new(py);
        for (name, value) in figures {
            out.set_item(name, value)?;
        }
        Ok(out)
    }
}
