//! What makes blocks interchangeable, in one number.
//!
//! A namespace is its descriptor (canonical JSON: model, dtype, layout, parallelism, ...) and the probe:
//! the engine's own hash of a fixed block of tokens. Engines that agree in the descriptor and differ in
//! the probe hash with different seeds, and would silently never share a block.

use std::collections::HashMap;

use super::record::{Fingerprint, Key};

pub const DESCRIPTOR_MAX: usize = 64 << 10;
pub const NAMESPACES_MAX: usize = 4096;

pub type Probe = [u8; 32];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub descriptor: Vec<u8>,
    pub probe: Probe,
}

impl Namespace {
    /// BLAKE3 of the descriptor's BLAKE3 and the probe.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"kvbm namespace 1");
        hasher.update(&self.base());
        hasher.update(&self.probe);
        *hasher.finalize().as_bytes()
    }

    /// The descriptor alone.
    pub fn base(&self) -> Fingerprint {
        *blake3::hash(&self.descriptor).as_bytes()
    }

    /// Name and bytes of the file that keeps it, at number `at`.
    pub fn file(&self, at: u16) -> (String, Vec<u8>) {
        let name = format!("namespace-{at:04x}-{}", hex(&self.fingerprint()));
        (name, [&self.probe[..], &self.descriptor].concat())
    }

    /// What such a file holds; None: it is not what its name says.
    pub fn of_file(name: &str, bytes: &[u8]) -> Option<(u16, Self)> {
        let (at, print) = name.strip_prefix("namespace-")?.split_once('-')?;
        let at = u16::from_str_radix(at, 16).ok()?;
        let (probe, descriptor) = bytes.split_first_chunk::<32>()?;
        let namespace = Self { descriptor: descriptor.to_vec(), probe: *probe };
        (hex(&namespace.fingerprint()) == print).then_some((at, namespace))
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A block's key from its hash and its group of layers.
///
/// The hash, padded with zeros to 32 bytes, XOR a mask drawn from namespace and group: two namespaces
/// share a key only if their hashes differ by exactly the XOR of two BLAKE3 outputs, and whoever knows
/// the namespace gets the hash back from the key.
pub struct KeyMaker {
    fingerprint: Fingerprint,
    masks: HashMap<u32, Key>,
}

impl KeyMaker {
    pub fn new(fingerprint: Fingerprint) -> Self {
        Self { fingerprint, masks: HashMap::new() }
    }

    /// None: the hash is empty or longer than 32 bytes.
    pub fn key(&mut self, hash: &[u8], group: u32) -> Option<Key> {
        if !(1..=32).contains(&hash.len()) {
            return None;
        }
        let fingerprint = &self.fingerprint;
        let mut key = *self.masks.entry(group).or_insert_with(|| {
            let mut hasher = blake3::Hasher::new_keyed(fingerprint);
            hasher.update(&group.to_be_bytes());
            *hasher.finalize().as_bytes()
        });
        key.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
        Some(key)
    }
}

/// The namespaces of a store, by number.
#[derive(Default)]
pub struct Namespaces {
    list: Vec<Option<(Fingerprint, Namespace)>>,
    numbers: HashMap<Fingerprint, u16>,
}

impl Namespaces {
    pub fn number(&self, fingerprint: &Fingerprint) -> Option<u16> {
        self.numbers.get(fingerprint).copied()
    }

    pub fn get(&self, at: u16) -> Option<&Namespace> {
        self.list.get(usize::from(at))?.as_ref().map(|(_, namespace)| namespace)
    }

    pub fn fingerprint(&self, at: u16) -> Option<&Fingerprint> {
        self.list.get(usize::from(at))?.as_ref().map(|(print, _)| print)
    }

    /// Known namespaces with the same descriptor and another probe.
    pub fn differing_probes(&self, namespace: &Namespace) -> usize {
        let others = self.list.iter().flatten();
        others
            .filter(|(_, n)| n.descriptor == namespace.descriptor && n.probe != namespace.probe)
            .count()
    }

    /// None: there are too many.
    pub fn add(&mut self, namespace: Namespace) -> Option<u16> {
        let free = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        self.add_at(u16::try_from(free).ok()?, namespace)
    }

    pub fn add_at(&mut self, at: u16, namespace: Namespace) -> Option<u16> {
        let place = usize::from(at);
        if place >= NAMESPACES_MAX {
            return None;
        }
        if self.list.len() <= place {
            self.list.resize(place + 1, None);
        }
        let print = namespace.fingerprint();
        self.numbers.insert(print, at);
        self.list[place] = Some((print, namespace));
        Some(at)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &Fingerprint, &Namespace)> {
        let there = self.list.iter().enumerate();
        there.filter_map(|(at, n)| n.as_ref().map(|(print, n)| (at as u16, print, n)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(descriptor: &[u8], probe: u8) -> Namespace {
        Namespace { descriptor: descriptor.to_vec(), probe: [probe; 32] }
    }

    #[test]
    fn descriptor_and_probe_both_count() {
        let all = [namespace(b"{}", 1), namespace(b"{}", 2), namespace(b"{ }", 1)];
        let prints: std::collections::HashSet<_> = all.iter().map(Namespace::fingerprint).collect();
        assert_eq!(prints.len(), 3);
        let mut known = Namespaces::default();
        known.add(all[0].clone());
        assert_eq!(known.differing_probes(&all[1]), 1);
        assert_eq!(known.differing_probes(&all[2]), 0);
    }

    #[test]
    fn a_file_that_is_not_what_its_name_says_is_refused() {
        let (name, bytes) = namespace(b"{\"model\":\"m\"}", 3).file(7);
        assert_eq!(Namespace::of_file(&name, &bytes).unwrap().0, 7);
        let mut other = bytes.clone();
        other[40] ^= 1;
        assert!(Namespace::of_file(&name, &other).is_none());
        assert!(Namespace::of_file(&name, &bytes[..20]).is_none());
        assert!(Namespace::of_file("namespace-zz", &bytes).is_none());
    }

    #[test]
    fn keys_differ_by_namespace_group_and_hash_and_give_the_hash_back() {
        let mut one = KeyMaker::new(namespace(b"{}", 1).fingerprint());
        let mut two = KeyMaker::new(namespace(b"{}", 2).fingerprint());
        let key = one.key(&[5; 32], 0).unwrap();
        assert_ne!(key, one.key(&[5; 32], 1).unwrap());
        assert_ne!(key, two.key(&[5; 32], 0).unwrap());
        assert_ne!(key, one.key(&[6; 32], 0).unwrap());
        assert_eq!(one.key(&key, 0).unwrap(), [5; 32]);
        assert!(one.key(&[], 0).is_none() && one.key(&[0; 33], 0).is_none());
    }
}
