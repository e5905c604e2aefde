//! Journal and snapshot: the same pages of the same 64-byte entries.
//!
//! A page is a 64-byte head (which file, which page, how many entries, CRC-32C over all of it) and up to
//! 63 entries, so a page that was torn, swapped or left over from an earlier file is told from the next
//! one due. Pages are read up to the first that does not fit.

use super::le::{part, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use super::record::{checksum, Key, PAGE};

pub const ENTRY: usize = 64;
pub const ENTRIES_PER_PAGE: usize = PAGE / ENTRY - 1;
const CRC: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogKind {
    Journal,
    Snapshot,
}

impl LogKind {
    fn magic(self) -> u32 {
        u32::from_le_bytes(match self {
            LogKind::Journal => *b"KVJ1",
            LogKind::Snapshot => *b"KVS1",
        })
    }
}

/// What a file's pages have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogId {
    pub kind: LogKind,
    pub store: u64,
    pub epoch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Put(Put),
    Delete {
        namespace: u16,
        key: Key,
    },
    SegmentOpen {
        segment: u64,
        pages: u32,
    },
    /// Nothing more is written to the segment; its records end at this page.
    SegmentSeal {
        segment: u64,
        pages: u32,
    },
    /// No record of the segment counts any more.
    SegmentFree {
        segment: u64,
    },
}

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    pub namespace: u16,
    pub key: Key,
    pub segment: u64,
    pub page: u32,
    pub len: u32,
    pub seq: u64,
}

impl Entry {
    pub fn encode(&self) -> [u8; ENTRY] {
        let mut raw = [0; ENTRY];
        match *self {
            Entry::Put(Put { namespace, key, segment, page, len, seq }) => {
                raw[0] = 1;
                put_u16(&mut raw, 2, namespace);
                put_u32(&mut raw, 4, len);
                put_u64(&mut raw, 8, segment);
                put_u32(&mut raw, 16, page);
                put_u64(&mut raw, 24, seq);
                raw[32..].copy_from_slice(&key);
            }
            Entry::Delete { namespace, key } => {
                raw[0] = 2;
                put_u16(&mut raw, 2, namespace);
                raw[32..].copy_from_slice(&key);
            }
            Entry::SegmentOpen { segment, pages } => segment_entry(&mut raw, 3, segment, pages),
            Entry::SegmentSeal { segment, pages } => segment_entry(&mut raw, 4, segment, pages),
            Entry::SegmentFree { segment } => segment_entry(&mut raw, 5, segment, 0),
        }
        raw
    }

    pub fn decode(raw: &[u8]) -> Option<Entry> {
        let (segment, page) = (u64_at(raw, 8), u32_at(raw, 16));
        let (namespace, key) = (u16_at(raw, 2), part(raw, 32));
        Some(match raw[0] {
            1 => {
                let (len, seq) = (u32_at(raw, 4), u64_at(raw, 24));
                Entry::Put(Put { namespace, key, segment, page, len, seq })
            }
            2 => Entry::Delete { namespace, key },
            3 => Entry::SegmentOpen { segment, pages: page },
            4 => Entry::SegmentSeal { segment, pages: page },
            5 => Entry::SegmentFree { segment },
            _ => return None,
        })
    }
}

fn segment_entry(raw: &mut [u8; ENTRY], kind: u8, segment: u64, pages: u32) {
    raw[0] = kind;
    put_u64(raw, 8, segment);
    put_u32(raw, 16, pages);
}

/// Pages that so many entries take.
pub fn pages_of(entries: usize) -> usize {
    entries.div_ceil(ENTRIES_PER_PAGE)
}

/// One page being filled.
#[derive(Debug, Clone)]
pub struct LogPage {
    bytes: Box<[u8; PAGE]>,
    count: usize,
}

impl LogPage {
    pub fn new() -> Self {
        Self { bytes: Box::new([0; PAGE]), count: 0 }
    }

    pub fn push(&mut self, raw: &[u8; ENTRY]) {
        let at = ENTRY * (1 + self.count);
        self.bytes[at..at + ENTRY].copy_from_slice(raw);
        self.count += 1;
    }

    pub fn is_full(&self) -> bool {
        self.count == ENTRIES_PER_PAGE
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The page as it goes to the file; `total` is not zero on the last page of a snapshot only.
    pub fn seal(&mut self, id: &LogId, number: u64, total: u64) -> &[u8; PAGE] {
        let page = &mut self.bytes[..];
        put_u32(page, 0, id.kind.magic());
        put_u16(page, 4, self.count as u16);
        put_u64(page, 16, id.epoch);
        put_u64(page, 24, number);
        put_u64(page, 32, id.store);
        put_u64(page, 40, total);
        let crc = checksum(page, CRC);
        put_u32(page, CRC, crc);
        &self.bytes
    }
}

impl Default for LogPage {
    fn default() -> Self {
        Self::new()
    }
}

/// A page as read: its entries and the total that its head carries. None: not the page due here.
pub fn read_page<'a>(
    page: &'a [u8],
    id: &LogId,
    number: u64,
) -> Option<(impl Iterator<Item = Entry> + 'a, u64)> {
    let count = usize::from(u16_at(page, 4));
    let fits = page.len() == PAGE
        && u32_at(page, 0) == id.kind.magic()
        && u64_at(page, 16) == id.epoch
        && u64_at(page, 24) == number
        && u64_at(page, 32) == id.store
        && count <= ENTRIES_PER_PAGE
        && u32_at(page, CRC) == checksum(page, CRC);
    let entries = page[ENTRY..].chunks_exact(ENTRY).take(count).filter_map(Entry::decode);
    fits.then(|| (entries, u64_at(page, 40)))
}

/// How far a log file could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLog {
    pub pages: u64,
    pub entries: u64,
    /// Pages that fit lie behind one that does not: something was lost in the middle.
    pub damaged: bool,
    /// The total of the last page, which only a complete snapshot has.
    pub total: u64,
}

/// Hand every entry of a log file to `take`, in order, up to the first page that does not fit.
pub fn read(bytes: &[u8], id: &LogId, mut take: impl FnMut(Entry)) -> ReadLog {
    let mut found = ReadLog { pages: 0, entries: 0, damaged: false, total: 0 };
    let mut pages = bytes.chunks_exact(PAGE);
    for page in pages.by_ref() {
        let Some((entries, total)) = read_page(page, id, found.pages) else { break };
        for entry in entries {
            found.entries += 1;
            take(entry);
        }
        found.pages += 1;
        found.total = total;
    }
    let first_after = found.pages + 1;
    found.damaged =
        pages.enumerate().any(|(at, page)| read_page(page, id, first_after + at as u64).is_some());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogId = LogId { kind: LogKind::Journal, store: 5, epoch: 2 };

    fn put(seq: u64) -> Entry {
        let key = [seq as u8; 32];
        Entry::Put(Put { namespace: 3, key, segment: 1 << 40, page: 77, len: 4096, seq })
    }

    fn file(entries: u64) -> Vec<u8> {
        let (mut bytes, mut page, mut number) = (Vec::new(), LogPage::new(), 0);
        for seq in 0..entries {
            page.push(&put(seq).encode());
            if page.is_full() || seq + 1 == entries {
                bytes.extend_from_slice(page.seal(&ID, number, 0));
                (page, number) = (LogPage::new(), number + 1);
            }
        }
        bytes
    }

    fn replay(bytes: &[u8]) -> (Vec<Entry>, ReadLog) {
        let mut out = Vec::new();
        let found = read(bytes, &ID, |entry| out.push(entry));
        (out, found)
    }

    #[test]
    fn every_kind_of_entry_comes_back() {
        let key = [9; 32];
        for entry in [
            put(1),
            Entry::Delete { namespace: 65535, key },
            Entry::SegmentOpen { segment: 8, pages: 100 },
            Entry::SegmentSeal { segment: 8, pages: 99 },
            Entry::SegmentFree { segment: u64::MAX },
        ] {
            assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        }
        assert_eq!(Entry::decode(&[0; ENTRY]), None);
    }

    #[test]
    fn a_file_is_read_in_order() {
        let bytes = file(130);
        let (entries, found) = replay(&bytes);
        assert_eq!(entries, (0..130).map(put).collect::<Vec<_>>());
        assert_eq!((found.pages, found.entries, found.damaged), (3, 130, false));
    }

    #[test]
    fn reading_ends_at_a_torn_page_and_says_when_it_was_not_the_last() {
        let mut bytes = file(200);
        bytes[3 * PAGE + 100] ^= 1;
        let (entries, found) = replay(&bytes);
        assert_eq!((entries.len(), found.damaged), (189, false));
        bytes[PAGE + 100] ^= 1;
        let (entries, found) = replay(&bytes);
        assert_eq!((entries.len(), found.damaged), (63, true));
    }

    #[test]
    fn pages_of_another_file_or_place_do_not_fit() {
        let mut bytes = file(130);
        let (first, second) = bytes.split_at_mut(PAGE);
        first.swap_with_slice(&mut second[..PAGE]);
        assert_eq!(replay(&bytes).0.len(), 0);
        let other = LogId { epoch: 3, ..ID };
        assert!(read_page(&file(1)[..PAGE], &other, 0).is_none());
    }
}
