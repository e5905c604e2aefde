//! Emptying the oldest segment: blocks that were used since they were written are carried over, as far
//! as 23 % of a segment goes; the rest is forgotten. So of 130 bytes written at least 100 are new.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffer::Buffer;
use super::catalog::Place;
use super::disk::{Change, Disk};
use super::keeper::Order;
use super::loads::{Block, Flight, Written};
use super::log::Entry;
use super::mover::{Failure, Source};
use super::record::{self, NOTE_MAX};
use super::segments::State;

/// Part of a segment that may be carried over: 0.3 / 1.3.
const CARRY_MAX: f64 = 0.23;
/// Blocks carried over at once.
const CARRIERS: u32 = 4;
/// Blocks forgotten before others get their turn.
const SLICE: usize = 1024;

pub(super) struct Eviction {
    at: u16,
    id: u64,
    /// Its file is gone already: nothing to carry over or to use again.
    is_lost: bool,
    stage: Stage,
}

enum Stage {
    /// Blocks that wait to be carried over.
    Carry(VecDeque<Block>),
    Forget,
    /// Waiting for the journal entry of this number.
    Freed(u64),
}

impl Disk {
    pub(super) fn pump_eviction(&mut self) {
        if self.eviction.is_none() && !self.begin_eviction() {
            return;
        }
        let Some(mut eviction) = self.eviction.take() else { return };
        if self.segments.get(eviction.at).is_none_or(|segment| segment.id != eviction.id) {
            return;
        }
        if let Stage::Carry(waiting) = &mut eviction.stage {
            self.carry(waiting);
            if waiting.is_empty() && self.copies == 0 {
                eviction.stage = Stage::Forget;
            }
        }
        if matches!(eviction.stage, Stage::Forget) {
            if self.forget_some(eviction.at) {
                self.inbox.bell.ring();
            } else if let Some(id) = self.segments.get(eviction.at).map(|s| s.id) {
                let number = self.journal.append(&Entry::SegmentFree { segment: id });
                eviction.stage = Stage::Freed(number);
            }
        }
        if let Stage::Freed(number) = eviction.stage {
            let _ = self.folder.points.pass("segment.forgotten");
            if self.journal.written() >= number && self.let_go(&eviction) {
                return;
            }
        }
        self.eviction = Some(eviction);
    }

    /// Files that vanished under us: their blocks count no more.
    pub(super) fn lose(&mut self, at: u16) {
        if self.segments.open == Some(at) {
            self.segments.open = None;
        }
        let Some(segment) = self.segments.get_mut(at) else { return };
        segment.state = State::Leaving;
        self.health.lost.push_back((at, segment.id));
        while self.forget_some(at) {}
    }

    fn begin_eviction(&mut self) -> bool {
        if let Some((at, id)) = self.health.lost.pop_front() {
            self.eviction = Some(Eviction { at, id, is_lost: true, stage: Stage::Forget });
            return true;
        }
        if self.is_closing || !self.health.is_good() || !self.needs_room() {
            return false;
        }
        if self.space.is_over() {
            if let Some(spare) = self.segments.ready.pop_back() {
                self.space.segments -= spare.disk_bytes;
                self.keeper.order(Order::DeleteSegment { id: spare.id });
                return false;
            }
        }
        let Some(at) = self.segments.oldest_free(|id| self.is_pinned(id)) else { return false };
        let waiting = self.worth_carrying(at);
        let Some(segment) = self.segments.get_mut(at) else { return false };
        segment.state = State::Leaving;
        let id = segment.id;
        self.eviction = Some(Eviction { at, id, is_lost: false, stage: Stage::Carry(waiting) });
        true
    }

    fn needs_room(&mut self) -> bool {
        let bytes = self.options.segment_size();
        let spare = self.segments.ready.len() + self.segments_asked as usize;
        let full = self.now_us < self.health.full_until_us;
        if self.space.is_over() || (spare == 0 && (full || !self.space.fits(bytes + (64 << 10)))) {
            return true;
        }
        let (most, used) = (self.space.segments_max(bytes) as f64, self.segments.len() as f64);
        let bound = if self.health.is_draining { self.options.low } else { self.options.high };
        self.health.is_draining = used > (most * bound).floor().max(1.0);
        self.health.is_draining
    }

    /// Blocks that were used since they were written, most used first, up to the bound.
    fn worth_carrying(&self, at: u16) -> VecDeque<Block> {
        let Some(segment) = self.segments.get(at) else { return VecDeque::new() };
        let chained = self.catalog.chained(&segment.chain).map(|(_, known)| known);
        let mut used: Vec<_> = chained.filter(|known| known.hits > 0).collect();
        used.sort_by_key(|known| std::cmp::Reverse(known.hits));
        let mut left = (f64::from(segment.pages) * CARRY_MAX) as u32;
        let fits = used.into_iter().filter(|known| {
            let pages = record::pages(known.place.len as usize);
            let fits = pages <= left;
            left -= if fits { pages } else { 0 };
            fits
        });
        fits.map(|known| Block { namespace: known.namespace, key: known.key, place: known.place })
            .collect()
    }

    fn carry(&mut self, waiting: &mut VecDeque<Block>) {
        let depth = self.options.depth;
        while self.copies < CARRIERS && self.loads.is_empty() && self.in_flight < depth {
            let Some(block) = waiting.pop_front() else { return };
            let here = self.catalog.get(block.namespace, &block.key);
            if here.is_none_or(|at| self.catalog.known(at).place != block.place) {
                continue;
            }
            let Some(buffer) = self.pool.take(record::bytes(block.place.len as usize)) else {
                waiting.push_front(block);
                return;
            };
            self.copies += 1;
            self.launch_read(Flight::Copy { block }, buffer);
        }
        if self.is_closing || !self.health.is_good() {
            waiting.clear();
        }
    }

    pub(super) fn copy_read(
        &mut self,
        block: Block,
        is_here: bool,
        buffer: Buffer,
        result: Result<(), Failure>,
    ) {
        let len = block.place.len as usize;
        let room = if is_here && result.is_ok() && self.health.is_good() {
            self.room_for(record::pages(len))
        } else {
            None
        };
        let Some((segment, page)) = room else {
            self.copies -= 1;
            self.pool.give(buffer);
            return;
        };
        let place = Place { segment, page, len: block.place.len };
        let note: Box<[u8]> = record::note(&buffer).into();
        debug_assert!(note.len() <= NOTE_MAX);
        let (seq, from) = (self.draw_seq(), Some(block.place));
        let written = Written { block: Block { place, ..block }, seq, from };
        self.launch_write(vec![(written, note, Source::Buffer)], buffer);
    }

    pub(super) fn copy_ended(&mut self, segment: u16) {
        self.copies -= 1;
        self.release_writer(segment);
    }

    /// True: there is more to forget.
    fn forget_some(&mut self, at: u16) -> bool {
        let Some(segment) = self.segments.get_mut(at) else { return false };
        let (changes, stats) = (&mut self.changes, &mut self.stats);
        self.catalog.empty(&mut segment.chain, SLICE, |known| {
            stats.evicted += 1;
            changes.push(Change::Removed { namespace: known.namespace, key: known.key });
        })
    }

    /// Use the file again, or delete it when there is too much. False: somebody still reads it.
    fn let_go(&mut self, eviction: &Eviction) -> bool {
        let busy = self.segments.get(eviction.at).is_some_and(|s| s.readers > 0 || s.writers > 0);
        if busy {
            return false;
        }
        let Some(segment) = self.segments.remove(eviction.at) else { return true };
        self.stats.segments_freed += 1;
        if eviction.is_lost {
            self.space.segments -= segment.disk_bytes;
        } else if self.space.is_over() || self.is_closing {
            self.space.segments -= segment.disk_bytes;
            self.keeper.order(Order::DeleteSegment { id: segment.id });
        } else {
            let (id, bytes) = (self.segments.draw_id(), self.options.segment_size());
            if u64::from(segment.pages) * 4096 != bytes {
                // It was made with other settings.
                self.space.segments -= segment.disk_bytes;
                self.keeper.order(Order::DeleteSegment { id: segment.id });
                return true;
            }
            self.space.segments -= segment.disk_bytes;
            self.space.segments += bytes + (64 << 10);
            self.segments_asked += 1;
            let file = Arc::clone(&segment.file);
            self.keeper.order(Order::RecycleSegment { old: segment.id, file, id, bytes });
        }
        true
    }
}
