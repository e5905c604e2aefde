//! Many small blocks in one object: a head page that names them, then their records, all of one size.
//!
//! A bundle is named by what is in it (BLAKE3 over its head), never changed, and tells all about itself:
//! whoever reads the first page knows which block lies where. Records are verified one by one, as always.

use super::le::{part, put_u32, put_u64, u32_at, u64_at};
use super::record::{checksum, Damage, Fingerprint, Key, PAGE, PAYLOAD_MAX};

/// Keys that a head page has room for.
pub const BLOCKS_MAX: usize = (PAGE - KEYS) / 32;
/// Bytes of the largest bundle that is written, and believed.
pub const BUNDLE_MAX: u64 = 64 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"KVBMBND1");
const VERSION: u32 = 1;
const CRC: usize = 12;
const PRINT: usize = 32;
const KEYS: usize = 128;

pub type Name = [u8; 32];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub namespace: Fingerprint,
    /// Of each record: whole pages.
    pub record_bytes: u32,
    pub keys: Vec<Key>,
}

impl Head {
    pub fn name(&self) -> Name {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"kvbm bundle 1").update(&self.namespace);
        hasher.update(&self.record_bytes.to_le_bytes());
        self.keys.iter().for_each(|key| {
            hasher.update(key);
        });
        *hasher.finalize().as_bytes()
    }

    /// Bytes of the whole object.
    pub fn size(&self) -> u64 {
        start(self.record_bytes, self.keys.len())
    }

    /// The first page. At most BLOCKS_MAX keys.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        put_u64(&mut page, 0, MAGIC);
        put_u32(&mut page, 8, VERSION);
        put_u32(&mut page, 16, self.keys.len() as u32);
        put_u32(&mut page, 20, self.record_bytes);
        page[PRINT..PRINT + 32].copy_from_slice(&self.namespace);
        for (key, into) in self.keys.iter().zip(page[KEYS..].chunks_mut(32)) {
            into.copy_from_slice(key);
        }
        let crc = checksum(&page, CRC);
        put_u32(&mut page, CRC, crc);
        page
    }

    /// Of an object's first page, the object's size and name.
    pub fn decode(page: &[u8], size: u64, name: &Name) -> Result<Head, Damage> {
        if page.len() < PAGE || u64_at(page, 0) != MAGIC {
            return Err(Damage::Header);
        }
        if u32_at(page, CRC) != checksum(&page[..PAGE], CRC) {
            return Err(Damage::Header);
        }
        if u32_at(page, 8) != VERSION {
            return Err(Damage::Version);
        }
        let (count, record_bytes) = (u32_at(page, 16) as usize, u32_at(page, 20));
        let possible = 2 * PAGE..=PAGE + PAYLOAD_MAX;
        let whole =
            record_bytes as usize % PAGE == 0 && possible.contains(&(record_bytes as usize));
        if !whole || !(1..=BLOCKS_MAX).contains(&count) || start(record_bytes, count) > BUNDLE_MAX {
            return Err(Damage::Length);
        }
        let keys = (0..count).map(|n| part(page, KEYS + 32 * n)).collect();
        let head = Head { namespace: part(page, PRINT), record_bytes, keys };
        if head.name() != *name {
            return Err(Damage::Key);
        }
        if head.size() != size {
            return Err(Damage::Short);
        }
        Ok(head)
    }
}

/// Where the record at a place begins.
pub fn start(record_bytes: u32, slot: usize) -> u64 {
    PAGE as u64 + slot as u64 * u64::from(record_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(count: u8) -> Head {
        let keys = (0..count).map(|n| [n; 32]).collect();
        Head { namespace: [9; 32], record_bytes: 2 * PAGE as u32, keys }
    }

    #[test]
    fn a_head_comes_back() {
        for count in [1, 2, BLOCKS_MAX as u8] {
            let head = head(count);
            assert_eq!(head.size(), PAGE as u64 * (1 + 2 * u64::from(count)));
            assert_eq!(Head::decode(&head.encode(), head.size(), &head.name()), Ok(head));
        }
    }

    #[test]
    fn every_single_flipped_bit_is_seen() {
        let head = head(3);
        let page = head.encode();
        for bit in 0..PAGE * 8 {
            let mut bad = page.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(&bad, head.size(), &head.name()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn what_is_cut_short_or_named_otherwise_is_refused() {
        let head = head(3);
        let page = head.encode();
        let (size, name) = (head.size(), head.name());
        assert_eq!(Head::decode(&page, size - 1, &name), Err(Damage::Short));
        assert_eq!(Head::decode(&page[1..], size, &name), Err(Damage::Header));
        assert_eq!(Head::decode(&page, size, &[0; 32]), Err(Damage::Key));
        let foreign = Head { namespace: [1; 32], ..head };
        assert_ne!(foreign.name(), name, "a name says of which namespace it is");
    }
}
