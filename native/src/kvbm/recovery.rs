//! What a directory holds: snapshot, then journals, then the end of the segment that was open.
//!
//! A block whose segment is not there does not exist. Records behind the last one that the journal knows
//! are taken only from segments that were not sealed, only up to the first that does not verify, and not
//! at all when pages of the journal were lost before its end: a block that was dropped must not return.
//! Nothing is ever appended to a segment that was found.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Instant;

use super::buffer::Buffer;
use super::catalog::{Catalog, Place};
use super::folder::{Folder, Listing};
use super::journal::Journal;
use super::log::{read, read_page, Entry, LogId, LogKind, Put};
use super::namespace::{Namespace, Namespaces, DESCRIPTOR_MAX};
use super::options::DiskOptions;
use super::record::{self, Header, PAGE};
use super::segments::{Segment, Segments, State};
use super::space::Space;
use super::superblock::random;

pub(super) struct Recovered {
    pub catalog: Catalog,
    pub segments: Segments,
    pub journal: Journal,
    pub space: Space,
    pub namespaces: Namespaces,
    pub next_seq: u64,
    pub needs_checkpoint: bool,
    /// What was found behind the journal, to be written down before anything else.
    pub found: Vec<Entry>,
    pub recovered: u64,
    pub took_us: u64,
}

/// A segment while the logs are read.
struct Found {
    at: u16,
    is_known: bool,
    is_sealed: bool,
}

struct Reader {
    catalog: Catalog,
    segments: Segments,
    by_id: HashMap<u64, Found>,
    last_seq: u64,
    /// Something was lost in the middle of a log.
    is_damaged: bool,
    found: Vec<Entry>,
    /// The youngest journal, if it can be gone on with, and its pages in use.
    last_journal: Option<(u64, u64)>,
}

pub(super) fn recover(folder: &Folder, options: &DiskOptions) -> io::Result<Recovered> {
    let began = Instant::now();
    let listing = folder.list()?;
    let namespaces = read_namespaces(&listing);
    let mut reader = Reader {
        catalog: Catalog::new(random()),
        segments: Segments::default(),
        by_id: HashMap::new(),
        last_seq: 0,
        is_damaged: false,
        found: Vec::new(),
        last_journal: None,
    };
    reader.open_segments(folder, &listing)?;
    let oldest = reader.read_snapshot(folder, &listing)?;
    reader.read_journals(folder, &listing, oldest)?;
    reader.settle(folder, &namespaces)?;
    let needs_checkpoint = reader.is_damaged || listing.journals.len() > 1;
    let journal = reader.journal(folder, &listing, options.journal_size())?;
    let Reader { catalog, segments, last_seq, found, .. } = reader;
    let held = segments.order().filter_map(|at| segments.get(at)).map(|s| s.disk_bytes).sum();
    let space = Space {
        capacity: options.capacity,
        segments: held,
        other: folder.other_bytes()?,
        reserve: 0,
    };
    Ok(Recovered {
        recovered: catalog.len() as u64,
        needs_checkpoint,
        found,
        catalog,
        segments,
        journal,
        space,
        namespaces,
        next_seq: last_seq,
        took_us: began.elapsed().as_micros() as u64,
    })
}

fn read_namespaces(listing: &Listing) -> Namespaces {
    let mut namespaces = Namespaces::default();
    for path in &listing.namespaces {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let small = path.metadata().is_ok_and(|meta| meta.len() <= DESCRIPTOR_MAX as u64 + 32);
        let read = if small { std::fs::read(path).ok() } else { None };
        if let (Some(name), Some(bytes)) = (name, read) {
            if let Some((at, namespace)) = Namespace::of_file(&name, &bytes) {
                namespaces.add_at(at, namespace);
            }
        }
    }
    namespaces
}

impl Reader {
    fn open_segments(&mut self, folder: &Folder, listing: &Listing) -> io::Result<()> {
        for &id in &listing.segments {
            let Ok(Some((file, bytes))) = folder.open_segment(id) else {
                // Half made, half recycled, or of another store.
                folder.delete_segment(id)?;
                continue;
            };
            let disk_bytes = file.metadata().map_or(bytes, |m| (m.blocks() * 512).max(bytes));
            let mut segment = Segment::new(id, Arc::new(file), bytes, disk_bytes);
            segment.state = State::Sealed;
            if let Some(at) = self.segments.add(segment) {
                self.by_id.insert(id, Found { at, is_known: false, is_sealed: false });
            }
        }
        // Ids of segments that are gone must not come again either: logs still name them.
        Ok(())
    }

    /// The journals to be read begin at the epoch returned.
    fn read_snapshot(&mut self, folder: &Folder, listing: &Listing) -> io::Result<u64> {
        for &epoch in listing.snapshots.iter().rev() {
            let bytes = std::fs::read(folder.snapshot_path(epoch))?;
            let id = LogId { kind: LogKind::Snapshot, store: folder.store, epoch };
            let (mut entries, mut total, mut pages) = (0, 0, 0);
            // Entries of a snapshot do not depend on each other: every good page counts.
            for (number, page) in bytes.chunks_exact(PAGE).enumerate() {
                let Some((found, last)) = read_page(page, &id, number as u64) else { continue };
                pages += 1;
                total = total.max(last);
                for entry in found {
                    entries += 1;
                    self.apply(&entry);
                }
            }
            self.is_damaged |= total != entries + 1;
            if pages > 0 {
                return Ok(epoch);
            }
        }
        Ok(0)
    }

    fn read_journals(&mut self, folder: &Folder, listing: &Listing, oldest: u64) -> io::Result<()> {
        let mut due = oldest.max(1);
        for &epoch in listing.journals.iter().filter(|&&epoch| epoch >= oldest) {
            self.is_damaged |= epoch != due;
            due = epoch + 1;
            let bytes = std::fs::read(folder.journal_path(epoch))?;
            let id = LogId { kind: LogKind::Journal, store: folder.store, epoch };
            let found = read(&bytes, &id, |entry| self.apply(&entry));
            self.is_damaged |= found.damaged;
            self.last_journal = (!found.damaged).then_some((epoch, found.pages));
        }
        let any = !listing.snapshots.is_empty() || !listing.journals.is_empty();
        // With a snapshot there always was its journal.
        self.is_damaged |= any && due == oldest.max(1);
        Ok(())
    }

    /// Go on with the youngest journal behind its last good page, or begin another.
    fn journal(&self, folder: &Folder, listing: &Listing, bytes: u64) -> io::Result<Journal> {
        let newest = listing.journals.iter().chain(&listing.snapshots).max().copied().unwrap_or(0);
        let last = self.last_journal.filter(|&(epoch, _)| epoch == newest);
        if let Some((epoch, pages)) = last {
            let file = File::options().read(true).write(true).open(folder.journal_path(epoch))?;
            let len = file.metadata()?.len();
            return Ok(Journal::resume(folder.store, epoch, Arc::new(file), len, pages));
        }
        let file = folder.create_journal(newest + 1, bytes)?;
        Ok(Journal::new(folder.store, newest + 1, Arc::new(file), bytes))
    }

    fn apply(&mut self, entry: &Entry) {
        match *entry {
            Entry::Put(put) => self.put(&put),
            Entry::Delete { namespace, key } => {
                self.catalog.remove(namespace, &key);
            }
            Entry::SegmentOpen { segment, .. } => {
                self.name(segment);
                if let Some(found) = self.by_id.get_mut(&segment) {
                    found.is_known = true;
                }
            }
            Entry::SegmentSeal { segment, pages } => {
                if let Some(found) = self.by_id.get_mut(&segment) {
                    (found.is_known, found.is_sealed) = (true, true);
                    if let Some(segment) = self.segments.get_mut(found.at) {
                        segment.end = segment.end.max(pages.min(segment.pages));
                    }
                }
            }
            Entry::SegmentFree { segment } => {
                self.name(segment);
                if let Some(found) = self.by_id.get_mut(&segment) {
                    found.is_known = false;
                    if let Some(segment) = self.segments.get_mut(found.at) {
                        while self.catalog.empty(&mut segment.chain, usize::MAX, |_| {}) {}
                    }
                }
            }
        }
    }

    fn put(&mut self, put: &Put) {
        self.last_seq = self.last_seq.max(put.seq);
        self.name(put.segment);
        let Some(found) = self.by_id.get_mut(&put.segment) else { return };
        let Some(segment) = self.segments.get_mut(found.at) else { return };
        let end = put.page.checked_add(record::pages(put.len as usize));
        let Some(end) = end.filter(|&end| put.page > 0 && end <= segment.pages) else { return };
        found.is_known = true;
        segment.end = segment.end.max(end);
        let place = Place { segment: found.at, page: put.page, len: put.len };
        self.catalog.put(put.namespace, put.key, place, &mut segment.chain);
    }

    /// A segment's id that was in use.
    fn name(&mut self, id: u64) {
        self.segments.next_id = self.segments.next_id.max(id.saturating_add(1));
    }

    /// Look behind what the logs know, and throw out what they do not.
    fn settle(&mut self, folder: &Folder, namespaces: &Namespaces) -> io::Result<()> {
        let by_id = std::mem::take(&mut self.by_id);
        for (id, found) in by_id {
            if !found.is_known {
                self.segments.remove(found.at);
                folder.delete_segment(id)?;
            } else if !found.is_sealed {
                if !self.is_damaged {
                    self.scan_tail(folder, namespaces, found.at);
                }
                if let Some(segment) = self.segments.get(found.at) {
                    let pages = segment.end;
                    self.found.push(Entry::SegmentSeal { segment: id, pages });
                }
            }
        }
        Ok(())
    }

    fn scan_tail(&mut self, folder: &Folder, namespaces: &Namespaces, at: u16) {
        let store = folder.store;
        loop {
            let Some(segment) = self.segments.get_mut(at) else { return };
            let page = segment.end;
            let spot = record::Spot { store, segment: segment.id, page };
            let Some(header) = verified(&segment.file, spot, segment.pages) else { return };
            let Some(namespace) = namespaces.number(&header.namespace) else { return };
            self.last_seq = self.last_seq.max(header.seq);
            segment.end += record::pages(header.len as usize);
            let Header { key, len, seq, .. } = header;
            let place = Place { segment: at, page, len };
            self.catalog.put(namespace, key, place, &mut segment.chain);
            let segment = segment.id;
            self.found.push(Entry::Put(Put { namespace, key, segment, page, len, seq }));
        }
    }
}

/// The whole, good record at a place of a file.
fn verified(file: &File, spot: record::Spot, pages: u32) -> Option<Header> {
    if spot.page >= pages {
        return None;
    }
    let offset = u64::from(spot.page) * PAGE as u64;
    let mut head = Buffer::new(PAGE);
    file.read_exact_at(&mut head, offset).ok()?;
    let header = Header::decode(&head).ok().filter(|header| header.spot == spot)?;
    let need = record::pages(header.len as usize);
    if need > pages - spot.page {
        return None;
    }
    let mut whole = Buffer::new(need as usize * PAGE);
    file.read_exact_at(&mut whole, offset).ok()?;
    record::verify_payload(&whole, &header).ok()?;
    Some(header)
}
