//! Writing blocks: admission, a queue, a place in the open segment, and the journal entry that makes
//! them exist.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::buffer::Buffer;
use super::catalog::Place;
use super::commit::Commit;
use super::disk::{Disk, Outcome};
use super::folder::Folder;
use super::keeper::Order;
use super::loads::{learn, Block, Flight, Written};
use super::log::{Entry, Put};
use super::mover::{Errand, Failure, Piece, Results, Source};
use super::record::{self, Header, Key, Spot, NOTE_MAX, PAGE, PAYLOAD_MAX};
use super::segments::Segment;
use super::Refusal;

/// Journal entries that may wait until no more blocks are written.
const JOURNAL_BACKLOG_MAX: usize = 1 << 14;
/// Bytes of small blocks that are written at once.
const RUN: usize = 512 << 10;
/// Stores are turned away when they would wait longer.
const WAIT_MAX_US: f64 = 1_000_000.0;

pub struct Store {
    pub namespace: u16,
    pub key: Key,
    pub len: u32,
    /// At most `NOTE_MAX` bytes that are kept with the block.
    pub note: Box<[u8]>,
    pub source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// Nothing to do: the block exists.
    There,
    /// An outcome with the token will say when it exists.
    Queued,
}

/// A block on its way down, what is kept with it and where its bytes come from.
pub(super) type Record = (Written, Box<[u8]>, Source);

impl Disk {
    /// Begin to store a block.
    pub fn store(&mut self, store: Store, token: u64) -> Result<Stored, Refusal> {
        let (namespace, key) = (store.namespace, store.key);
        if self.catalog.get(namespace, &key).is_some() {
            self.stats.deduped += 1;
            return Ok(Stored::There);
        }
        if let Some(tokens) = self.pending.get_mut(&(namespace, key)) {
            self.stats.deduped += 1;
            tokens.push(token);
            return Ok(Stored::Queued);
        }
        let bytes = record::bytes(store.len as usize) as u64;
        self.may_store(&store, bytes).map_err(|why| self.refuse(why))?;
        self.pending.insert((namespace, key), vec![token]);
        self.queued_store_bytes += bytes;
        self.stores.push_back(store);
        Ok(Stored::Queued)
    }

    fn may_store(&mut self, store: &Store, bytes: u64) -> Result<(), Refusal> {
        if self.is_closing {
            return Err(Refusal::Closed);
        }
        if !self.health.is_good() {
            return Err(Refusal::Degraded);
        }
        let largest = self.options.segment_size() - PAGE as u64;
        let len = store.len as usize;
        if bytes > largest || len == 0 || len > PAYLOAD_MAX || store.note.len() > NOTE_MAX {
            return Err(Refusal::TooLarge);
        }
        let waiting = self.queued_store_bytes + bytes;
        let wait_us = waiting as f64 / (1 << 20) as f64 * self.write_us_per_mib;
        let is_alone = self.stores.is_empty();
        if waiting > self.options.backlog_bytes || (wait_us > WAIT_MAX_US && !is_alone) {
            return Err(Refusal::Busy);
        }
        self.admission.admit(&store.key, bytes, self.now_us)
    }

    pub(super) fn pump_stores(&mut self) {
        self.keep_a_spare();
        let most = (self.options.depth / 2).max(1);
        while self.loads.is_empty()
            && self.in_flight < most
            && self.journal.backlog() < JOURNAL_BACKLOG_MAX
            && self.health.is_good()
        {
            let Some((records, bytes)) = self.next_run() else { return };
            // Half of the buffers are for loads.
            let held = self.pool.in_use();
            if held != 0 && held + bytes > self.options.buffer_bytes / 2 {
                return;
            }
            let Some(buffer) = self.pool.take(bytes) else { return };
            let run = self.place_run(records);
            if run.is_empty() {
                return self.pool.give(buffer);
            }
            self.launch_write(run, buffer);
        }
    }

    /// How many of the stores that wait are written next, and the buffer they need: all that fit in one
    /// transfer, but no more than leaves work for each thread that copies.
    fn next_run(&self) -> Option<(usize, usize)> {
        let first = record::bytes(self.stores.front()?.len as usize);
        let share = self.queued_store_bytes as usize / self.options.copy_threads.max(1);
        let most = RUN.min(share);
        let sizes = self.stores.iter().map(|store| record::bytes(store.len as usize));
        let ends = sizes.scan(0, |end, bytes| {
            *end += bytes;
            Some(*end)
        });
        let records = ends.take_while(|&end| end <= most).count();
        // Buffers of few sizes are used again and again.
        Some(if records > 1 { (records, RUN) } else { (1, first) })
    }

    /// Give the next stores places one behind the other, in one segment: none while there is no room.
    fn place_run(&mut self, records: usize) -> Vec<Record> {
        let mut run = Vec::with_capacity(records);
        while let Some(store) = self.stores.front().filter(|_| run.len() < records) {
            let pages = record::pages(store.len as usize);
            let first = run.is_empty();
            let room = if first { self.room_for(pages) } else { self.segments.append(pages) };
            let Some((segment, page)) = room else { break };
            let Some(Store { namespace, key, len, note, source }) = self.stores.pop_front() else {
                break;
            };
            self.queued_store_bytes -= record::bytes(len as usize) as u64;
            let block = Block { namespace, key, place: Place { segment, page, len } };
            run.push((Written { block, seq: self.draw_seq(), from: None }, note, source));
        }
        run
    }

    /// Send blocks of one segment on their way down.
    pub(super) fn launch_write(&mut self, run: Vec<Record>, buffer: Buffer) {
        let at = run.first().map(|(written, ..)| written.block.place.segment);
        let Some(segment) = at.and_then(|at| self.segments.get(at)) else { return };
        let (id, file) = (segment.id, Arc::clone(&segment.file));
        let written = run.iter().map(|(written, ..)| *written).collect();
        let pieces = run.into_iter().map(|record| self.piece(id, record)).collect();
        let flight = self.enter(Flight::Write { run: written, began_us: self.now_us });
        self.mover.write(Errand { flight, file, buffer }, pieces);
    }

    fn piece(&self, segment: u64, (written, note, source): Record) -> Piece {
        let Block { namespace, key, place } = written.block;
        let header = Header {
            spot: Spot { store: self.folder.store, segment, page: place.page },
            seq: written.seq,
            written_ms: epoch_ms(),
            len: place.len,
            key,
            namespace: self.namespaces.fingerprint(namespace).copied().unwrap_or_default(),
            payload_hash: 0,
        };
        Piece { header, note, source }
    }

    /// Records were written, or not.
    pub(super) fn written(&mut self, at: u32, buffer: Buffer, mut results: Results) {
        let refused = Err(Failure::Io(libc::EINVAL));
        if results.contains(&refused) && self.gives_up_direct(at) {
            results.iter_mut().filter(|one| **one == refused).for_each(|one| *one = Ok(()));
            return self.write_again(at, buffer, results);
        }
        self.pool.give(buffer);
        let Some(Flight::Write { run, began_us }) = self.leave(at) else { return };
        let _ = self.folder.points.pass("record.written");
        if self.journal.is_broken {
            let broken = Err(Failure::Io(libc::EIO));
            results.iter_mut().filter(|one| one.is_ok()).for_each(|one| *one = broken);
        }
        let errno = results.iter().find_map(|one| match one {
            Err(Failure::Io(errno)) => Some(*errno),
            _ => None,
        });
        if let Some(errno) = errno {
            self.trouble(&io::Error::from_raw_os_error(errno));
        }
        let mut bytes = 0;
        for (written, result) in run.into_iter().zip(results) {
            match result {
                Ok(()) => {
                    bytes += record::bytes(written.block.place.len as usize) as u64;
                    self.enter_in_journal(&written);
                }
                Err(failure) => self.not_written(&written, failure),
            }
        }
        self.unsynced_bytes += bytes;
        if bytes > 0 {
            let spent = self.now_us - began_us.max(self.health.last_write_us).min(self.now_us);
            self.health.last_write_us = self.now_us;
            learn(&mut self.write_us_per_mib, spent, bytes);
        }
    }

    /// The file has just been made to take what it refused.
    fn write_again(&mut self, at: u32, buffer: Buffer, results: Results) {
        let Some(Some((Flight::Write { run, .. }, _))) = self.flights.get(at as usize) else {
            return;
        };
        let Some(first) = run.first().map(|written| written.block.place) else { return };
        let Some(segment) = self.segments.get(first.segment) else { return };
        let errand = Errand { flight: at, file: Arc::clone(&segment.file), buffer };
        let len = run.iter().map(|written| record::bytes(written.block.place.len as usize)).sum();
        self.mover.write_again(errand, first.page, len, results);
    }

    fn enter_in_journal(&mut self, written: &Written) {
        let Written { block, seq, from } = *written;
        let Block { namespace, key, place } = block;
        let commit = match from {
            Some(from) => {
                let here = self.catalog.get(namespace, &key);
                // A block that was dropped meanwhile must not come back.
                if here.is_none_or(|at| self.catalog.known(at).place != from) {
                    return self.copy_ended(place.segment);
                }
                Commit::Copy { from, to: block }
            }
            None => Commit::Put(block),
        };
        let Some(segment) = self.segments.get(place.segment).map(|s| s.id) else { return };
        let Place { page, len, .. } = place;
        let entry = Entry::Put(Put { namespace, key, segment, page, len, seq });
        let number = self.journal.append(&entry);
        self.commits.push_back((number, commit));
    }

    fn not_written(&mut self, written: &Written, failure: Failure) {
        let Block { namespace, key, place } = written.block;
        if written.from.is_some() {
            return self.copy_ended(place.segment);
        }
        self.release_writer(place.segment);
        self.store_failed(namespace, &key, failure);
    }

    pub(super) fn store_failed(&mut self, namespace: u16, key: &Key, failure: Failure) {
        for token in self.pending.remove(&(namespace, *key)).unwrap_or_default() {
            self.stats.store_failed += 1;
            self.fail(token, failure);
        }
        // What was to be dropped never came.
        for token in self.doomed.remove(&(namespace, *key)).unwrap_or_default() {
            self.out.push(Outcome { token, result: Ok(None) });
        }
    }

    pub(super) fn release_writer(&mut self, segment: u16) {
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.writers -= 1;
        }
    }

    /// A place for so many pages, in a new segment if need be and one is ready.
    pub(super) fn room_for(&mut self, pages: u32) -> Option<(u16, u32)> {
        if let Some(found) = self.segments.append(pages) {
            return Some(found);
        }
        let next = self.segments.ready.pop_front()?;
        self.seal_open();
        let entry = Entry::SegmentOpen { segment: next.id, pages: next.pages };
        let at = self.segments.add(next)?;
        self.segments.open = Some(at);
        self.journal.append(&entry);
        self.keep_a_spare();
        self.segments.append(pages)
    }

    /// One empty segment is made ahead, so that no store waits for one.
    pub(super) fn keep_a_spare(&mut self) {
        let spare = self.segments.ready.len() as u32 + self.segments_asked;
        let bytes = self.options.segment_size();
        // A file system takes a few blocks more than asked for.
        let nominal = bytes + (64 << 10);
        let full = self.now_us < self.health.full_until_us;
        if spare > 0 || self.is_closing || full || !self.health.is_good() {
            return;
        }
        if self.space.fits(nominal) {
            self.space.segments += nominal;
            self.segments_asked += 1;
            let id = self.segments.draw_id();
            self.keeper.order(Order::CreateSegment { id, bytes });
        }
    }

    pub(super) fn segment_made(&mut self, id: u64, made: io::Result<(Arc<std::fs::File>, u64)>) {
        let bytes = self.options.segment_size();
        self.segments_asked -= 1;
        self.space.segments = self.space.segments.saturating_sub(bytes + (64 << 10));
        match made {
            Ok((file, disk_bytes)) => {
                if !self.folder.is_direct() {
                    Folder::make_buffered(&file);
                }
                self.space.segments += disk_bytes;
                self.segments.ready.push_back(Segment::new(id, file, bytes, disk_bytes));
            }
            Err(error) => {
                let no_room = [Some(libc::ENOSPC), Some(libc::EDQUOT)];
                if no_room.contains(&error.raw_os_error()) && !self.segments.is_empty() {
                    // Others fill the disk: go on with what we have.
                    self.health.full_until_us = self.now_us + self.options.look_us;
                } else {
                    self.trouble(&error);
                }
            }
        }
    }

    pub(super) fn go_buffered(&mut self) {
        self.folder.go_buffered();
        self.health.direct_refused = true;
        self.segments.files().for_each(|(_, file)| Folder::make_buffered(file));
    }

    pub(super) fn draw_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }
}

pub(super) fn epoch_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
