//! The remote tier's door: whoever talks to the store takes errands here and reports what came of them. A
//! fetcher takes the fetches by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::kvbm::bundle::{start, Head, Name, BLOCKS_MAX};
use crate::kvbm::commands::Command;
use crate::kvbm::core::Core;
use crate::kvbm::intake::Intake;
use crate::kvbm::record::{Damage, Fingerprint, Key, PAGE};
use crate::kvbm::remote::{Errand, Kind, Miss, Room};
use crate::kvbm::view::{Held, View};
use crate::py_kvbm::{ask, keys, print, PATIENCE};
use crate::py_kvbm_fetcher::KvbmFetcher;
use crate::py_shared::value_error;

/// What a Python object's buffer gives. The memoryview keeps it where it is; it is dropped by whichever
/// thread has done with it, and freed when a thread has the interpreter's lock again.
struct Buffered {
    at: *const u8,
    len: usize,
    _open: Py<PyMemoryView>,
}

// The bytes are read-only, and stay while the memoryview does.
unsafe impl Send for Buffered {}
unsafe impl Sync for Buffered {}

impl Held for Buffered {
    fn bytes(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

pub(crate) fn view(object: &Bound<'_, PyAny>) -> PyResult<View> {
    let open = PyMemoryView::from(object)?;
    let buffer = PyBuffer::<u8>::get(&open)?;
    if !buffer.readonly() || !buffer.is_c_contiguous() || buffer.len_bytes() == 0 {
        return Ok(View::of(buffer.to_vec(object.py())?));
    }
    let (at, len) = (buffer.buf_ptr().cast::<u8>().cast_const(), buffer.len_bytes());
    Ok(View::of(Buffered { at, len, _open: open.unbind() }))
}

/// One request to the object store: fetch | ahead | send | delete | mark.
#[pyclass(frozen, module = "native._core")]
pub struct KvbmErrand {
    pub(crate) errand: Errand,
}

#[pymethods]
impl KvbmErrand {
    #[getter]
    fn kind(&self) -> &'static str {
        match self.errand.kind {
            Kind::Fetch => "fetch",
            Kind::Ahead => "ahead",
            Kind::Send => "send",
            Kind::Delete => "delete",
            Kind::Mark => "mark",
        }
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.errand.namespace)
    }

    /// Of its blocks; where a whole bundle is to be deleted, those that were dropped now.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.errand.pieces.iter().map(|piece| PyBytes::new(py, &piece.key)).collect()
    }

    /// The bundle it is about; None: blocks that lie alone, or are not there yet.
    #[getter]
    fn bundle<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.errand.bundle.map(|bundle| PyBytes::new(py, &bundle.name))
    }

    /// (from, to) of the bundle's bytes that hold its blocks.
    #[getter]
    fn range(&self) -> Option<(u64, u64)> {
        self.errand.range()
    }
}

/// (bundle's name, None for a block alone; keys; the object's bytes)
type Parcel<'py> = (Option<Bound<'py, PyBytes>>, Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

/// Errands between the core and a store. Calls may come from any thread, without the interpreter's lock.
#[pyclass(frozen, module = "native._core")]
pub struct KvbmRemote {
    pub(crate) core: Arc<Core>,
}

fn name(bytes: &[u8]) -> PyResult<Name> {
    let name = bytes.try_into();
    name.map_err(|_| value_error(format!("a bundle's name has 32 bytes, not {}", bytes.len())))
}

#[pymethods]
impl KvbmRemote {
    /// Waits for errands, at most `patience_s`: what somebody waits for first; of each kind at most so many.
    /// None: the core has ended.
    fn errands(
        &self,
        py: Python<'_>,
        fetches: usize,
        ahead: usize,
        sends: usize,
        patience_s: f64,
    ) -> PyResult<Option<Vec<KvbmErrand>>> {
        if !(0.0..=3600.0).contains(&patience_s) {
            return Err(value_error(format!("a patience of 0 to 3600 s, not {patience_s}")));
        }
        let room = Room { fetches, ahead, sends };
        let patience = Duration::from_secs_f64(patience_s);
        let errands = py.detach(|| self.core.desk().take(room, patience));
        let each = |errand| KvbmErrand { errand };
        Ok(errands.map(|errands| errands.into_iter().map(each).collect()))
    }

    /// A fetch brought an object, or the errand's range of a bundle; each block is verified here. How many
    /// are not what was written. `data` offers its bytes read-only (bytes, obstore's Bytes); it is held, not
    /// copied.
    fn fetched(
        &self,
        py: Python<'_>,
        errand: &KvbmErrand,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let data = view(data)?;
        Ok(py.detach(|| {
            let blocks = Intake::of(errand.errand.clone()).rest(&data);
            let bad = blocks.iter().filter(|(_, result)| result.is_err()).count();
            self.core.tell(Command::RemoteEnded(blocks, true));
            bad
        }))
    }

    /// A fetch brought nothing: the store has no such object (`absent`), or does not answer.
    fn missed(&self, errand: &KvbmErrand, absent: bool) {
        let miss = || Err(if absent { Miss::Absent } else { Miss::Failed });
        let blocks = errand.errand.pieces.iter().map(|piece| (piece.ticket, miss()));
        self.core.tell(Command::RemoteEnded(blocks.collect(), true));
    }

    /// Blocks are in the store, each alone; how many of them were news. A namespace that no engine has named
    /// is not known, and neither is what lies there.
    fn known(&self, py: Python<'_>, fingerprint: &[u8], blocks: Vec<Vec<u8>>) -> PyResult<usize> {
        let (namespace, keys) = (print(fingerprint)?, keys(&blocks)?);
        ask(&self.core, py, |reply| Command::RemoteKnown { namespace, keys, reply })
    }

    /// Objects are gone: those of blocks that lay alone, whole bundles. How many blocks are nowhere in the
    /// store any more.
    fn gone(
        &self,
        py: Python<'_>,
        fingerprint: &[u8],
        blocks: Vec<Vec<u8>>,
        bundles: Vec<Vec<u8>>,
    ) -> PyResult<usize> {
        let (namespace, keys) = (print(fingerprint)?, keys(&blocks)?);
        let bundles = bundles.iter().map(|bytes| name(bytes)).collect::<PyResult<Vec<_>>>()?;
        ask(&self.core, py, |reply| Command::RemoteGone { namespace, keys, bundles, reply })
    }

    /// What was to be deleted is there still, and is known again.
    fn kept(&self, errand: &KvbmErrand) {
        self.core.tell(Command::RemoteKept(errand.errand.clone()));
    }

    /// Blocks, of a bundle or alone, were found damaged and deleted by the caller: they are counted.
    #[pyo3(signature = (fingerprint, bundle, blocks))]
    fn damaged(
        &self,
        fingerprint: &[u8],
        bundle: Option<&[u8]>,
        blocks: Vec<Vec<u8>>,
    ) -> PyResult<()> {
        let (namespace, keys) = (print(fingerprint)?, keys(&blocks)?);
        let name = bundle.map(name).transpose()?;
        self.core.tell(Command::RemoteDamaged { namespace, name, keys });
        Ok(())
    }

    /// All of a namespace will be listed: by `known`, `unknown` and `bundled`.
    fn begin_listing(&self, fingerprint: &[u8]) -> PyResult<()> {
        self.core.tell(Command::RemoteListing(print(fingerprint)?));
        Ok(())
    }

    /// It was: what is known and was not named since is forgotten; how many blocks.
    fn end_listing(&self, py: Python<'_>, fingerprint: &[u8]) -> PyResult<usize> {
        let namespace = print(fingerprint)?;
        let (mut gone, mut next) = (0, Some(0));
        while let Some(from) = next {
            let asked = |reply| Command::RemoteListed { namespace, from, reply };
            let (count, following) = ask(&self.core, py, asked)?;
            (gone, next) = (gone + count, following);
        }
        Ok(gone)
    }

    /// Objects to be written for blocks to be sent, (bundle's name or None, keys, bytes) each: bundles of
    /// those of one size, the others alone. Blocks that are not here any more are left out.
    fn pack<'py>(
        &self,
        py: Python<'py>,
        fingerprint: &[u8],
        blocks: Vec<Vec<u8>>,
    ) -> PyResult<Vec<Parcel<'py>>> {
        let (namespace, keys) = (print(fingerprint)?, keys(&blocks)?);
        if keys.len() > BLOCKS_MAX {
            let len = keys.len();
            return Err(value_error(format!("a bundle holds {BLOCKS_MAX} blocks, not {len}")));
        }
        let asked = keys.iter().map(|&key| move |reply| Command::Read { namespace, key, reply });
        let found = py
            .detach(|| self.core.ask_each(asked, PATIENCE))
            .ok_or_else(|| PyTimeoutError::new_err("the daemon core does not answer"))?;
        let there = keys.iter().zip(found).filter_map(|(key, record)| Some((*key, record?)));
        let mut by_size: BTreeMap<usize, Vec<(Key, Vec<u8>)>> = BTreeMap::new();
        for (key, record) in there {
            by_size.entry(record.len()).or_default().push((key, record));
        }
        by_size.into_values().map(|records| parcel(py, namespace, &records)).collect()
    }

    /// A bundle is in the store: its name, its first page at least, the object's size. How many of its blocks
    /// were news; -1: it is not what its name says (another version's is left alone: 0).
    fn bundled(
        &self,
        py: Python<'_>,
        fingerprint: &[u8],
        bundle: &[u8],
        page: &Bound<'_, PyAny>,
        size: u64,
    ) -> PyResult<i64> {
        let (namespace, name, page) = (print(fingerprint)?, name(bundle)?, view(page)?);
        match Head::decode(&page.first(PAGE), size, &name) {
            Ok(head) if head.namespace == namespace => {
                let asked = |reply| Command::RemoteBundle { name, head, reply };
                ask(&self.core, py, asked).map(|news| news as i64)
            }
            Err(Damage::Version) => Ok(0),
            _ => Ok(-1),
        }
    }

    /// Those of the bundles that are not known yet.
    fn unknown<'py>(
        &self,
        py: Python<'py>,
        fingerprint: &[u8],
        bundles: Vec<Vec<u8>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let namespace = print(fingerprint)?;
        let names = bundles.iter().map(|bytes| name(bytes)).collect::<PyResult<Vec<_>>>()?;
        let found =
            ask(&self.core, py, |reply| Command::RemoteUnknown { namespace, names, reply })?;
        Ok(found.iter().map(|name| PyBytes::new(py, name)).collect())
    }

    /// Blocks of a bundle were dropped, here or elsewhere.
    fn dropped(&self, fingerprint: &[u8], bundle: &[u8], blocks: Vec<Vec<u8>>) -> PyResult<()> {
        let (namespace, name, keys) = (print(fingerprint)?, name(bundle)?, keys(&blocks)?);
        self.core.tell(Command::RemoteMarked { namespace, name, keys });
        Ok(())
    }

    /// Whoever fetches from the store at `url` by itself, `concurrency` requests at once; `settings` are
    /// object_store's. ValueError where it cannot be one.
    fn fetcher(
        &self,
        url: &str,
        settings: Vec<(String, String)>,
        timeout_s: f64,
        concurrency: usize,
    ) -> PyResult<KvbmFetcher> {
        KvbmFetcher::open(Arc::clone(&self.core), url, &settings, timeout_s, concurrency)
    }

    /// The store is left alone for a while (its blocks are misses), or asked again.
    fn pause(&self, is_paused: bool) {
        self.core.desk().pause(is_paused);
        self.core.tell(Command::RemotePause(is_paused));
    }
}

/// One object of records of one size; the note and the payload's length are in each.
fn parcel<'py>(
    py: Python<'py>,
    namespace: Fingerprint,
    records: &[(Key, Vec<u8>)],
) -> PyResult<Parcel<'py>> {
    let keys: Vec<Key> = records.iter().map(|(key, _)| *key).collect();
    let names = keys.iter().map(|key| PyBytes::new(py, key)).collect();
    if let [(_, record)] = records {
        return Ok((None, names, PyBytes::new(py, record)));
    }
    let record_bytes = records[0].1.len().next_multiple_of(PAGE) as u32;
    let head = Head { namespace, record_bytes, keys };
    let data = PyBytes::new_with(py, head.size() as usize, |into| {
        into[..PAGE].copy_from_slice(&head.encode());
        for (slot, (_, record)) in records.iter().enumerate() {
            let at = start(record_bytes, slot) as usize;
            into[at..at + record.len()].copy_from_slice(record);
        }
        Ok(())
    })?;
    Ok((Some(PyBytes::new(py, &head.name())), names, data))
}
