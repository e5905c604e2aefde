//! The files that records are appended to, oldest first.
//!
//! One is open; the others are sealed and only read until the oldest is emptied. A segment is left
//! alone while somebody reads it, holds a pin on it, or has a write in it that does not count yet.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use super::catalog::Chain;
use super::record::PAGE;

/// Numbers of the catalog are 16 bits wide.
pub const SEGMENTS_MAX: usize = u16::MAX as usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    Sealed,
    /// Being emptied.
    Leaving,
}

#[derive(Debug)]
pub struct Segment {
    /// Names the file; never used twice.
    pub id: u64,
    pub file: Arc<File>,
    /// Pages of the file.
    pub pages: u32,
    /// The first page nothing was written to.
    pub end: u32,
    pub disk_bytes: u64,
    pub chain: Chain,
    pub state: State,
    pub readers: u32,
    pub writers: u32,
}

impl Segment {
    pub fn new(id: u64, file: Arc<File>, bytes: u64, disk_bytes: u64) -> Self {
        Self {
            id,
            file,
            pages: (bytes / PAGE as u64) as u32,
            end: 1,
            disk_bytes,
            chain: Chain::default(),
            state: State::Open,
            readers: 0,
            writers: 0,
        }
    }
}

#[derive(Default)]
pub struct Segments {
    table: Vec<Option<Segment>>,
    /// Numbers, oldest first.
    order: VecDeque<u16>,
    /// Made and empty.
    pub ready: VecDeque<Segment>,
    pub open: Option<u16>,
    pub next_id: u64,
}

impl Segments {
    pub fn get(&self, at: u16) -> Option<&Segment> {
        self.table.get(usize::from(at))?.as_ref()
    }

    pub fn get_mut(&mut self, at: u16) -> Option<&mut Segment> {
        self.table.get_mut(usize::from(at))?.as_mut()
    }

    /// Numbers, oldest first.
    pub fn order(&self) -> impl Iterator<Item = u16> + '_ {
        self.order.iter().copied()
    }

    /// Numbers, youngest first.
    pub fn youngest(&self) -> impl Iterator<Item = u16> + '_ {
        self.order.iter().rev().copied()
    }

    /// Segments with records in them.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Append a segment as the youngest; None: too many.
    pub fn add(&mut self, segment: Segment) -> Option<u16> {
        let free = self.table.iter().position(Option::is_none);
        let at = free.unwrap_or(self.table.len());
        if at >= SEGMENTS_MAX {
            return None;
        }
        if at == self.table.len() {
            self.table.push(None);
        }
        self.next_id = self.next_id.max(segment.id + 1);
        self.table[at] = Some(segment);
        self.order.push_back(at as u16);
        Some(at as u16)
    }

    pub fn remove(&mut self, at: u16) -> Option<Segment> {
        self.order.retain(|&other| other != at);
        if self.open == Some(at) {
            self.open = None;
        }
        self.table.get_mut(usize::from(at))?.take()
    }

    /// The oldest segment that nobody holds on to.
    pub fn oldest_free(&self, is_pinned: impl Fn(u64) -> bool) -> Option<u16> {
        self.order().find(|&at| {
            self.get(at).is_some_and(|s| {
                let idle = s.state == State::Sealed && s.readers == 0 && s.writers == 0;
                idle && !is_pinned(s.id)
            })
        })
    }

    /// A new segment's id.
    pub fn draw_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Room for so many pages in the open segment, if there is one with that much.
    pub fn append(&mut self, pages: u32) -> Option<(u16, u32)> {
        let at = self.open?;
        let segment = self.get_mut(at)?;
        let page = segment.end;
        if pages > segment.pages - page {
            return None;
        }
        segment.end += pages;
        segment.writers += 1;
        Some((at, page))
    }

    /// Every file, the empty ones too.
    pub fn files(&self) -> impl Iterator<Item = (u64, &Arc<File>)> {
        let used = self.order().filter_map(|at| self.get(at));
        used.chain(self.ready.iter()).map(|s| (s.id, &s.file))
    }
}
