//! A new journal now and then, and a snapshot of everything that makes the old one unnecessary.
//!
//! The journal is switched first, then the snapshot is taken piece by piece while the store goes on.
//! What changes meanwhile is in the new journal, and replaying that on top of the snapshot is right
//! whether a change had made it into the snapshot or not.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::disk::Disk;
use super::folder::Folder;
use super::keeper::Order;
use super::log::{pages_of, Entry, LogId, LogKind, LogPage, Put};
use super::record::PAGE;
use super::segments::State;

/// Blocks in one piece of a snapshot.
const PIECE: u32 = 8192;

#[derive(Default)]
pub(super) struct Checkpoint {
    is_wanted: bool,
    stage: Stage,
    not_before_us: u64,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    MakingJournal,
    Switching {
        epoch: u64,
        file: Arc<File>,
    },
    Writing(Writing),
    Ending,
}

struct Writing {
    id: LogId,
    /// Where the walk over the catalog goes on; None: before its start.
    cursor: Option<u32>,
    page: LogPage,
    number: u64,
    entries: u64,
    part_under_way: bool,
    is_complete: bool,
}

impl Checkpoint {
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    pub fn is_busy(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }
}

impl Writing {
    fn push(&mut self, entry: &Entry, out: &mut Vec<u8>) {
        self.page.push(&entry.encode());
        self.entries += 1;
        if self.page.is_full() {
            out.extend_from_slice(self.page.seal(&self.id, self.number, 0));
            self.page = LogPage::new();
            self.number += 1;
        }
    }

    /// The last page tells how many entries there are, so a snapshot that ends early is known.
    fn finish(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.page.seal(&self.id, self.number, self.entries + 1));
        self.is_complete = true;
    }
}

impl Disk {
    /// Bytes that the next journal and snapshot take at most.
    pub(super) fn meta_reserve(&self) -> u64 {
        let journal = self.options.journal_size();
        let entries = self.catalog.len() + 3 * self.segments.len();
        let more = journal as usize / 64;
        journal + ((pages_of(entries + more) + 2) * PAGE) as u64
    }

    pub(super) fn pump_checkpoint(&mut self) {
        match std::mem::take(&mut self.checkpoint.stage) {
            Stage::Idle => self.begin_checkpoint(),
            Stage::Switching { epoch, file } if !self.journal.is_writing() => {
                self.switch_journal(epoch, file);
            }
            Stage::Writing(writing) => self.write_snapshot(writing),
            stage => self.checkpoint.stage = stage,
        }
    }

    fn begin_checkpoint(&mut self) {
        let due = self.checkpoint.is_wanted || self.journal.is_filling();
        let may = self.health.is_good() && !self.is_closing;
        if !due || !may || self.now_us < self.checkpoint.not_before_us {
            return;
        }
        self.checkpoint.is_wanted = false;
        let (epoch, bytes) = (self.journal.epoch() + 1, self.options.journal_size());
        self.space.other += bytes;
        self.keeper.order(Order::CreateJournal { epoch, bytes });
        self.checkpoint.stage = Stage::MakingJournal;
    }

    pub(super) fn journal_made(&mut self, epoch: u64, made: io::Result<Arc<File>>) {
        match made {
            Ok(file) => self.checkpoint.stage = Stage::Switching { epoch, file },
            Err(error) => {
                self.space.other -= self.options.journal_size();
                self.give_up_checkpoint(&error);
            }
        }
    }

    fn give_up_checkpoint(&mut self, error: &io::Error) {
        self.checkpoint.stage = Stage::Idle;
        self.checkpoint.is_wanted = true;
        self.checkpoint.not_before_us = self.now_us + self.options.look_us.min(1_000_000);
        self.trouble(error);
    }

    fn switch_journal(&mut self, epoch: u64, file: Arc<File>) {
        if self.journal.is_broken {
            self.journal.forget_waiting();
        }
        self.journal.switch(epoch, file, self.options.journal_size());
        let id = LogId { kind: LogKind::Snapshot, store: self.folder.store, epoch };
        self.write_snapshot(Writing {
            id,
            cursor: None,
            page: LogPage::new(),
            number: 0,
            entries: 0,
            part_under_way: false,
            is_complete: false,
        });
    }

    fn write_snapshot(&mut self, mut writing: Writing) {
        let epoch = writing.id.epoch;
        if !writing.part_under_way {
            if writing.is_complete {
                self.checkpoint.stage = Stage::Ending;
                return self.keeper.order(Order::SnapshotEnd { epoch });
            }
            let bytes = self.snapshot_piece(&mut writing);
            self.space.other += bytes.len() as u64;
            writing.part_under_way = true;
            self.keeper.order(Order::SnapshotPart { epoch, bytes });
        }
        self.checkpoint.stage = Stage::Writing(writing);
    }

    fn snapshot_piece(&self, writing: &mut Writing) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(from) = writing.cursor else {
            for entry in self.segment_entries() {
                writing.push(&entry, &mut out);
            }
            writing.cursor = Some(0);
            return out;
        };
        let next = self.catalog.walk(from, PIECE, |known| {
            let place = known.place;
            let Some(segment) = self.segments.get(place.segment) else { return };
            let put = Put {
                namespace: known.namespace,
                key: known.key,
                segment: segment.id,
                page: place.page,
                len: place.len,
                seq: self.seq,
            };
            writing.push(&Entry::Put(put), &mut out);
        });
        writing.cursor = next.or(writing.cursor);
        if next.is_none() {
            writing.finish(&mut out);
        }
        out
    }

    fn segment_entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for segment in self.segments.order().filter_map(|at| self.segments.get(at)) {
            let id = segment.id;
            entries.push(Entry::SegmentOpen { segment: id, pages: segment.pages });
            if segment.state != State::Open && segment.writers == 0 {
                entries.push(Entry::SegmentSeal { segment: id, pages: segment.end });
            }
        }
        entries
    }

    pub(super) fn snapshot_part_done(&mut self, done: io::Result<()>) {
        if let Err(error) = done {
            return self.give_up_checkpoint(&error);
        }
        if let Stage::Writing(writing) = &mut self.checkpoint.stage {
            writing.part_under_way = false;
        }
    }

    pub(super) fn snapshot_done(&mut self, done: io::Result<()>) {
        if let Err(error) = done {
            return self.give_up_checkpoint(&error);
        }
        if let Stage::Ending = self.checkpoint.stage {
            self.checkpoint.stage = Stage::Idle;
            self.stats.checkpoints += 1;
            // Files came and went.
            self.look_now();
        }
    }

    /// The directory's file names, for messages.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}
