//! Whether an object of the store is what its name says: for reading all of it once.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::kvbm::bundle::{start, Head};
use crate::kvbm::record::{self, Damage, Fingerprint, Header, Key};
use crate::py_kvbm::{key, print};
use crate::py_kvbm_remote::view;

fn is_good(record: Option<&[u8]>, namespace: &Fingerprint, key: &Key) -> bool {
    let Some(record) = record else { return false };
    match Header::decode(record) {
        Ok(header) => {
            let is_named = header.key == *key && header.namespace == *namespace;
            is_named && record::verify_payload(record, &header).is_ok()
        }
        Err(damage) => damage == Damage::Version,
    }
}

/// (blocks in an object, keys of those that are not what was written), None: it is not what its name says.
/// The object is a block alone, or a bundle; one of another version than this is not looked into.
#[pyfunction]
pub(crate) fn kvbm_check<'py>(
    py: Python<'py>,
    fingerprint: &[u8],
    name: &[u8],
    is_bundle: bool,
    data: &Bound<'py, PyAny>,
) -> PyResult<Option<(usize, Vec<Bound<'py, PyBytes>>)>> {
    let (namespace, name, data) = (print(fingerprint)?, key(name)?, view(data)?);
    let found = py.detach(|| {
        let data = data.first(usize::MAX);
        if !is_bundle {
            let bad = (!is_good(Some(&data), &namespace, &name)).then_some(name);
            return Some((1, bad.into_iter().collect()));
        }
        match Head::decode(&data, data.len() as u64, &name) {
            Ok(head) if head.namespace == namespace => {
                let record = |slot| {
                    let from = start(head.record_bytes, slot) as usize;
                    data.get(from..from + head.record_bytes as usize)
                };
                let each = head.keys.iter().enumerate();
                let bad = each.filter(|(slot, key)| !is_good(record(*slot), &namespace, key));
                Some((head.keys.len(), bad.map(|(_, key)| *key).collect::<Vec<Key>>()))
            }
            Err(Damage::Version) => Some((0, Vec::new())),
            _ => None,
        }
    });
    Ok(found.map(|(count, bad)| (count, bad.iter().map(|key| PyBytes::new(py, key)).collect())))
}
