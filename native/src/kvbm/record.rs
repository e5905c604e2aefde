//! A block on disk: one header page that says all about it, then the payload, padded to whole pages.
//!
//! A record names its key, its namespace and the very place it was written to, so bytes that lie in the
//! wrong place, belong to another block or were left over by an earlier use of the file are told from
//! the ones asked for. The header page carries a CRC-32C of itself and the XXH3-64 of the payload.

use xxhash_rust::xxh3::xxh3_64;

use super::le::{part, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

pub const PAGE: usize = 4096;
pub const PAYLOAD_MIN: usize = 1;
pub const PAYLOAD_MAX: usize = 64 << 20;
/// Free bytes of a header page that whoever stores a block may fill.
pub const NOTE_MAX: usize = PAGE - NOTE;

const MAGIC: u64 = u64::from_le_bytes(*b"KVBMREC1");
const VERSION: u32 = 1;
const CRC: usize = 12;
const NOTE: usize = 192;

pub type Key = [u8; 32];
/// BLAKE3 over what a namespace is made of.
pub type Fingerprint = [u8; 32];

/// Where a record must lie to be the one meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    pub store: u64,
    pub segment: u64,
    /// In pages from the start of the segment's file.
    pub page: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub spot: Spot,
    pub seq: u64,
    /// Milliseconds since 1970.
    pub written_ms: u64,
    pub len: u32,
    pub key: Key,
    pub namespace: Fingerprint,
    pub payload_hash: u64,
}

/// Why bytes are not the record asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Not a header page, or one whose checksum fails.
    Header,
    Version,
    /// A whole record, written for another place.
    Place,
    /// A whole record of another block.
    Key,
    Namespace,
    Length,
    Payload,
    /// The file ends before the record does.
    Short,
}

/// Pages that a record with such a payload takes.
pub fn pages(len: usize) -> u32 {
    (1 + len.div_ceil(PAGE)) as u32
}

pub fn bytes(len: usize) -> usize {
    pages(len) as usize * PAGE
}

impl Header {
    /// Fill a whole page.
    pub fn encode(&self, note: &[u8], page: &mut [u8]) {
        page[..PAGE].fill(0);
        put_u64(page, 0, MAGIC);
        put_u32(page, 8, VERSION);
        put_u64(page, 16, self.spot.store);
        put_u64(page, 24, self.spot.segment);
        put_u64(page, 32, u64::from(self.spot.page));
        put_u64(page, 40, self.seq);
        put_u64(page, 48, self.written_ms);
        put_u32(page, 56, self.len);
        put_u16(page, 60, note.len() as u16);
        page[64..96].copy_from_slice(&self.key);
        page[96..128].copy_from_slice(&self.namespace);
        put_u64(page, 128, self.payload_hash);
        page[NOTE..NOTE + note.len()].copy_from_slice(note);
        let crc = page_crc(page);
        put_u32(page, CRC, crc);
    }

    pub fn decode(page: &[u8]) -> Result<Header, Damage> {
        if page.len() < PAGE || u64_at(page, 0) != MAGIC || u32_at(page, CRC) != page_crc(page) {
            return Err(Damage::Header);
        }
        if u32_at(page, 8) != VERSION {
            return Err(Damage::Version);
        }
        let (len, place) = (u32_at(page, 56), u64_at(page, 32));
        if !(PAYLOAD_MIN..=PAYLOAD_MAX).contains(&(len as usize)) || place > u64::from(u32::MAX) {
            return Err(Damage::Length);
        }
        Ok(Header {
            spot: Spot { store: u64_at(page, 16), segment: u64_at(page, 24), page: place as u32 },
            seq: u64_at(page, 40),
            written_ms: u64_at(page, 48),
            len,
            key: part(page, 64),
            namespace: part(page, 96),
            payload_hash: u64_at(page, 128),
        })
    }
}

/// What the header page of a record that `decode` accepted carries for its owner.
pub fn note(page: &[u8]) -> &[u8] {
    let len = usize::from(u16_at(page, 60)).min(NOTE_MAX);
    &page[NOTE..NOTE + len]
}

/// What a reader knows of the record it asks for.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub spot: Spot,
    pub key: Key,
    pub namespace: Fingerprint,
    pub len: u32,
}

/// A header page and its payload, as read from disk, against what was asked for.
pub fn verify(record: &[u8], expected: &Expected) -> Result<Header, Damage> {
    let header = Header::decode(record)?;
    if header.spot != expected.spot {
        return Err(Damage::Place);
    }
    if header.key != expected.key {
        return Err(Damage::Key);
    }
    if header.namespace != expected.namespace {
        return Err(Damage::Namespace);
    }
    if header.len != expected.len {
        return Err(Damage::Length);
    }
    verify_payload(record, &header)?;
    Ok(header)
}

/// The payload behind a header page against the header.
pub fn verify_payload(record: &[u8], header: &Header) -> Result<(), Damage> {
    let payload = record.get(PAGE..PAGE + header.len as usize).ok_or(Damage::Short)?;
    if xxh3_64(payload) == header.payload_hash {
        Ok(())
    } else {
        Err(Damage::Payload)
    }
}

/// CRC-32C of a page with its checksum field taken for zero.
fn page_crc(page: &[u8]) -> u32 {
    checksum(&page[..PAGE], CRC)
}

/// CRC-32C of `bytes`, the four bytes at `hole` taken for zero.
pub fn checksum(bytes: &[u8], hole: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..hole]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[hole + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(payload: &[u8]) -> (Header, Vec<u8>) {
        let header = Header {
            spot: Spot { store: 7, segment: 9, page: 5 },
            seq: 11,
            written_ms: 13,
            len: payload.len() as u32,
            key: [3; 32],
            namespace: [4; 32],
            payload_hash: xxh3_64(payload),
        };
        let mut record = vec![0; bytes(payload.len())];
        header.encode(b"token ids", &mut record);
        record[PAGE..PAGE + payload.len()].copy_from_slice(payload);
        (header, record)
    }

    fn expected(header: &Header) -> Expected {
        let Header { spot, key, namespace, len, .. } = *header;
        Expected { spot, key, namespace, len }
    }

    #[test]
    fn what_was_written_is_read() {
        let (header, record) = sample(b"bytes of a block");
        assert_eq!(Header::decode(&record), Ok(header));
        assert_eq!(note(&record), b"token ids");
        assert_eq!(verify(&record, &expected(&header)), Ok(header));
    }

    #[test]
    fn every_single_flipped_bit_is_seen() {
        let (header, record) = sample(&[0x5a; 100]);
        for bit in 0..(PAGE + 100) * 8 {
            let mut bad = record.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&bad, &expected(&header)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_whole_record_of_something_else_is_refused() {
        let (header, record) = sample(b"x");
        let right = expected(&header);
        let moved = Spot { page: 6, ..right.spot };
        let reused = Spot { segment: 10, ..right.spot };
        let foreign = Spot { store: 8, ..right.spot };
        for spot in [moved, reused, foreign] {
            assert_eq!(verify(&record, &Expected { spot, ..right }), Err(Damage::Place));
        }
        assert_eq!(verify(&record, &Expected { key: [0; 32], ..right }), Err(Damage::Key));
        let other = Expected { namespace: [0; 32], ..right };
        assert_eq!(verify(&record, &other), Err(Damage::Namespace));
        assert_eq!(verify(&record, &Expected { len: 2, ..right }), Err(Damage::Length));
        assert_eq!(verify(&record[..PAGE], &right), Err(Damage::Short));
    }

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!([pages(1), pages(PAGE), pages(PAGE + 1)], [2, 2, 3]);
        assert_eq!(bytes(PAGE), 2 * PAGE);
    }
}
