//! The journal as its owner sees it: entries go in, whole pages come out to be written.
//!
//! One write is under way at a time. Entries that arrive meanwhile share the next one, which rewrites
//! the page that was not full and adds the pages behind it.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use super::buffer::Buffer;
use super::log::{Entry, LogId, LogKind, LogPage, ENTRY};
use super::record::PAGE;

/// Pages in one write.
const WRITE_PAGES: usize = 64;

pub struct Journal {
    id: LogId,
    pub file: Arc<File>,
    /// Pages the file holds.
    pages: u64,
    page: LogPage,
    number: u64,
    waiting: VecDeque<[u8; ENTRY]>,
    appended: u64,
    taken: u64,
    written: u64,
    is_writing: bool,
    /// A write failed: what the file holds is not known, and nothing more goes there.
    pub is_broken: bool,
}

/// Bytes at a place of the journal's file.
pub struct Pages {
    pub offset: u64,
    pub buffer: Buffer,
    pub len: usize,
}

impl Journal {
    pub fn new(store: u64, epoch: u64, file: Arc<File>, bytes: u64) -> Self {
        Self {
            id: LogId { kind: LogKind::Journal, store, epoch },
            file,
            pages: bytes / PAGE as u64,
            page: LogPage::new(),
            number: 0,
            waiting: VecDeque::new(),
            appended: 0,
            taken: 0,
            written: 0,
            is_writing: false,
            is_broken: false,
        }
    }

    /// Go on behind the first `number` pages of a file.
    pub fn resume(store: u64, epoch: u64, file: Arc<File>, bytes: u64, number: u64) -> Self {
        Self { number, ..Self::new(store, epoch, file, bytes) }
    }

    pub fn epoch(&self) -> u64 {
        self.id.epoch
    }

    /// The entry's number; it counts once `written` has reached it.
    pub fn append(&mut self, entry: &Entry) -> u64 {
        self.waiting.push_back(entry.encode());
        self.appended += 1;
        self.appended
    }

    /// Entries in the file.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Entries not in the file yet.
    pub fn backlog(&self) -> usize {
        (self.appended - self.written) as usize
    }

    pub fn is_quiet(&self) -> bool {
        !self.is_writing && self.waiting.is_empty()
    }

    pub fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// The next journal should be made.
    pub fn is_filling(&self) -> bool {
        self.is_broken || self.number * 4 >= self.pages * 3
    }

    /// Go on in another file with what waits; only while no write is under way.
    pub fn switch(&mut self, epoch: u64, file: Arc<File>, bytes: u64) {
        let numbers = (self.appended, self.taken, self.written);
        let waiting = std::mem::take(&mut self.waiting);
        *self = Self { waiting, ..Self::new(self.id.store, epoch, file, bytes) };
        (self.appended, self.taken, self.written) = numbers;
    }

    /// What to write next, if nothing is being written.
    pub fn next_write(&mut self) -> Option<Pages> {
        if self.is_writing || self.is_broken || self.waiting.is_empty() {
            return None;
        }
        let (first, room) = (self.number, self.pages - self.number.min(self.pages));
        let most = room.min(WRITE_PAGES as u64);
        if most == 0 {
            return None;
        }
        let mut bytes: Vec<u8> = Vec::new();
        while self.number < first + most {
            let Some(raw) = self.waiting.pop_front() else { break };
            self.page.push(&raw);
            self.taken += 1;
            if self.page.is_full() {
                bytes.extend_from_slice(self.page.seal(&self.id, self.number, 0));
                self.page = LogPage::new();
                self.number += 1;
            }
        }
        if !self.page.is_empty() {
            bytes.extend_from_slice(self.page.seal(&self.id, self.number, 0));
        }
        let mut buffer = Buffer::new(bytes.len());
        buffer[..bytes.len()].copy_from_slice(&bytes);
        self.is_writing = true;
        Some(Pages { offset: first * PAGE as u64, buffer, len: bytes.len() })
    }

    /// The write that was under way is over.
    pub fn finished(&mut self, went_well: bool) {
        self.is_writing = false;
        if went_well {
            self.written = self.taken;
        } else {
            self.is_broken = true;
        }
    }

    /// Give up what is not in the file; only when no write is under way.
    pub fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.taken = self.appended;
        self.written = self.appended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvbm::log::read;

    fn delete(n: u64) -> Entry {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        Entry::Delete { namespace: 1, key }
    }

    fn journal(pages: u64) -> Journal {
        let file = Arc::new(File::open("/dev/null").unwrap());
        Journal::new(3, 9, file, pages * PAGE as u64)
    }

    #[test]
    fn what_is_appended_in_any_portions_reads_back_in_order() {
        let (mut journal, mut file) = (journal(100), vec![0; 100 * PAGE]);
        let mut n = 0;
        for portion in [1, 2, 60, 1, 63, 64, 500, 3] {
            let last = (0..portion).map(|_| {
                n += 1;
                delete(n)
            });
            let last = last.map(|entry| journal.append(&entry)).last().unwrap();
            let Pages { offset, buffer, len } = journal.next_write().unwrap();
            assert!(journal.next_write().is_none());
            file[offset as usize..offset as usize + len].copy_from_slice(&buffer[..len]);
            journal.finished(true);
            assert_eq!(journal.written(), last);
        }
        let mut back = Vec::new();
        read(&file, &journal.id, |entry| back.push(entry));
        assert_eq!(back, (1..=n).map(delete).collect::<Vec<_>>());
    }

    #[test]
    fn it_stops_at_its_end_and_goes_on_in_the_next_file() {
        let mut journal = journal(2);
        for n in 0..200 {
            journal.append(&delete(n));
        }
        assert_eq!(journal.next_write().unwrap().len, 2 * PAGE);
        journal.finished(true);
        assert_eq!(journal.written(), 126);
        assert!(journal.next_write().is_none() && journal.is_filling());
        let file = Arc::clone(&journal.file);
        journal.switch(10, file, 8 * PAGE as u64);
        assert_eq!(journal.next_write().unwrap().offset, 0);
        journal.finished(true);
        assert_eq!(journal.written(), 200);
    }

    #[test]
    fn after_a_failed_write_nothing_counts() {
        let mut journal = journal(2);
        journal.append(&delete(1));
        journal.next_write().unwrap();
        journal.finished(false);
        assert_eq!(journal.written(), 0);
        journal.append(&delete(2));
        assert!(journal.next_write().is_none());
    }
}
