//! The host tier: blocks in the arena, who holds them, which one goes next.
//!
//! A slot is written by one client, or filled from below; once it is ready nobody writes it, and it is
//! given up only when nobody holds it.

use std::collections::HashMap;
use std::io;

use super::arena::Arena;
use super::le::u64_at;
use super::record::{Key, PAGE};
use super::s3fifo::{Judgement, S3Fifo};
use super::works::Owner;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writing(Owner),
    Filling,
    Ready,
}

/// A slot's name for clients: its first page, and which use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seat {
    pub page: u32,
    pub generation: u32,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    namespace: u16,
    key: Key,
    len: u32,
    generation: u32,
    state: State,
    holds: u32,
    /// Dropped while somebody had it: forgotten as soon as nobody has.
    is_doomed: bool,
    /// About to go, and not used since that was decided.
    is_leaving: bool,
    parent: Option<Seat>,
    children: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub namespace: u16,
    pub key: Key,
    pub len: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    Seat(Seat),
    /// The block is there.
    There(Seat),
    /// Somebody else is at it.
    Busy,
    /// Everything is held.
    Full,
    TooLarge,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostStats {
    pub reserved: u64,
    pub committed: u64,
    pub filled: u64,
    pub evicted: u64,
    pub full: u64,
    pub hits: u64,
}

pub struct Host {
    pub arena: Arena,
    slots: HashMap<u32, Slot>,
    index: HashMap<(u16, Key), u32>,
    /// By the pages of a slot.
    queues: HashMap<u32, S3Fifo>,
    /// Blocks that were given up since somebody asked.
    gone: Vec<Named>,
    pub stats: HostStats,
}

fn pages(len: u32) -> u32 {
    (len as usize).div_ceil(PAGE) as u32
}

impl Host {
    pub fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self {
            arena: Arena::new(bytes)?,
            slots: HashMap::new(),
            index: HashMap::new(),
            queues: HashMap::new(),
            gone: Vec::new(),
            stats: HostStats::default(),
        })
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn used_bytes(&self) -> u64 {
        self.slots.values().map(|slot| u64::from(pages(slot.len)) * PAGE as u64).sum()
    }

    pub fn held(&self) -> usize {
        self.slots.values().filter(|s| s.holds > 0 || s.state != State::Ready).count()
    }

    /// A block that is ready, and the bytes of its payload.
    pub fn block(&self, namespace: u16, key: &Key) -> Option<(Seat, u32)> {
        let &page = self.index.get(&(namespace, *key))?;
        let slot = self.slots.get(&page).filter(|slot| slot.state == State::Ready)?;
        Some((Seat { page, generation: slot.generation }, slot.len))
    }

    /// A block that is ready.
    pub fn find(&self, namespace: u16, key: &Key, len: u32) -> Option<Seat> {
        let &page = self.index.get(&(namespace, *key))?;
        let slot = &self.slots[&page];
        let ready = slot.state == State::Ready && slot.len == len;
        ready.then_some(Seat { page, generation: slot.generation })
    }

    /// A slot for a client to write a block to; `parent` is what it continues.
    pub fn reserve(&mut self, named: Named, parent: Option<Key>, owner: Owner) -> Reserved {
        self.begin(named, parent, State::Writing(owner))
    }

    /// A slot to be filled from below.
    pub fn reserve_fill(&mut self, named: Named) -> Reserved {
        self.begin(named, None, State::Filling)
    }

    fn begin(&mut self, named: Named, parent: Option<Key>, state: State) -> Reserved {
        let Named { namespace, key, len } = named;
        if let Some(&page) = self.index.get(&(namespace, key)) {
            let slot = &self.slots[&page];
            return match slot.state {
                State::Ready => Reserved::There(Seat { page, generation: slot.generation }),
                _ => Reserved::Busy,
            };
        }
        if !self.arena.fits(pages(len)) {
            return Reserved::TooLarge;
        }
        let Some(page) = self.room(pages(len)) else {
            self.stats.full += 1;
            return Reserved::Full;
        };
        let generation = self.arena.renew(page);
        let parent = parent.and_then(|key| {
            let &page = self.index.get(&(namespace, key))?;
            let slot = self.slots.get_mut(&page)?;
            slot.children += 1;
            Some(Seat { page, generation: slot.generation })
        });
        let slot = Slot {
            namespace,
            key,
            len,
            generation,
            state,
            holds: 0,
            is_doomed: false,
            is_leaving: false,
            parent,
            children: 0,
        };
        self.slots.insert(page, slot);
        self.index.insert((namespace, key), page);
        self.stats.reserved += 1;
        Reserved::Seat(Seat { page, generation })
    }

    fn room(&mut self, slot_pages: u32) -> Option<u32> {
        if let Some(page) = self.arena.take(slot_pages) {
            return Some(page);
        }
        if !self.arena.has_class(slot_pages) {
            self.steal(slot_pages);
            return self.arena.take(slot_pages);
        }
        let page = self.next_to_go(slot_pages)?;
        self.forget(page);
        self.arena.take(slot_pages)
    }

    fn next_to_go(&mut self, slot_pages: u32) -> Option<u32> {
        let slots = &self.slots;
        let judge = |page: u32| match &slots[&page] {
            slot if slot.holds > 0 || slot.state != State::Ready => Judgement::Held,
            slot if slot.children > 0 => Judgement::Needed,
            _ => Judgement::Free,
        };
        let name = |page: u32| u64_at(&slots[&page].key, 0);
        self.queues.get_mut(&slot_pages)?.evict(judge, name)
    }

    /// A size that has no slab takes one that nobody holds from the size that has most.
    fn steal(&mut self, slot_pages: u32) {
        for (slab, pages) in self.arena.others(slot_pages) {
            let used: Vec<u32> = pages.into_iter().filter(|p| self.slots.contains_key(p)).collect();
            let idle = |page: &u32| {
                let slot = &self.slots[page];
                slot.holds == 0 && slot.state == State::Ready
            };
            if used.iter().all(idle) {
                used.into_iter().for_each(|page| self.forget(page));
                return self.arena.reclaim(slab);
            }
        }
    }

    /// Empty a slot.
    fn forget(&mut self, page: u32) {
        let Some(slot) = self.slots.remove(&page) else { return };
        if !slot.is_doomed {
            self.index.remove(&(slot.namespace, slot.key));
        }
        if let Some(queue) = self.queues.get_mut(&pages(slot.len)) {
            queue.remove(page);
        }
        if let Some(seat) = slot.parent {
            if let Some(parent) = self.slots.get_mut(&seat.page) {
                if parent.generation == seat.generation {
                    parent.children -= 1;
                }
            }
        }
        // Whoever still copies from it is told by the number.
        self.arena.renew(page);
        self.arena.give(page);
        if slot.state == State::Ready && !slot.is_doomed {
            self.stats.evicted += 1;
            let (namespace, key, len) = (slot.namespace, slot.key, slot.len);
            self.gone.push(Named { namespace, key, len });
        }
    }

    fn slot(&mut self, seat: Seat) -> Option<&mut Slot> {
        self.slots.get_mut(&seat.page).filter(|slot| slot.generation == seat.generation)
    }

    /// A client has written the block; from now on it is found. None: the slot is not his to commit.
    pub fn commit(&mut self, seat: Seat, owner: Owner) -> Option<Named> {
        let slot = self.slot(seat)?;
        if slot.state != State::Writing(owner) {
            return None;
        }
        self.stats.committed += 1;
        self.make_ready(seat)
    }

    pub fn filled(&mut self, seat: Seat) -> Option<Named> {
        let slot = self.slot(seat)?;
        if slot.state != State::Filling {
            return None;
        }
        self.stats.filled += 1;
        self.make_ready(seat)
    }

    fn make_ready(&mut self, seat: Seat) -> Option<Named> {
        let slot = self.slot(seat)?;
        if slot.is_doomed {
            self.forget(seat.page);
            return None;
        }
        slot.state = State::Ready;
        let (namespace, key, len) = (slot.namespace, slot.key, slot.len);
        self.queues.entry(pages(len)).or_default().insert(seat.page, u64_at(&key, 0));
        Some(Named { namespace, key, len })
    }

    /// A slot that was reserved and not made ready is given back.
    pub fn abandon(&mut self, seat: Seat) {
        if self.slot(seat).is_some_and(|slot| slot.state != State::Ready) {
            self.forget(seat.page);
        }
    }

    /// Keep a ready block where it is until `release`. False: it is gone.
    pub fn hold(&mut self, seat: Seat) -> bool {
        let Some(slot) = self.slot(seat).filter(|slot| slot.state == State::Ready) else {
            return false;
        };
        slot.holds += 1;
        slot.is_leaving = false;
        let size = pages(slot.len);
        self.stats.hits += 1;
        if let Some(queue) = self.queues.get_mut(&size) {
            queue.hit(seat.page);
        }
        true
    }

    /// The same, but no use of it.
    pub fn keep(&mut self, seat: Seat) {
        if let Some(slot) = self.slot(seat) {
            slot.holds += 1;
        }
    }

    pub fn release(&mut self, seat: Seat) {
        let Some(slot) = self.slot(seat) else { return };
        slot.holds = slot.holds.saturating_sub(1);
        if slot.holds == 0 && slot.is_doomed && slot.state == State::Ready {
            self.forget(seat.page);
        }
    }

    /// Forget a block: it is not found any more, whoever still has it. False: it was not there.
    pub fn remove(&mut self, namespace: u16, key: &Key) -> bool {
        let Some(page) = self.index.remove(&(namespace, *key)) else { return false };
        let Some(slot) = self.slots.get_mut(&page) else { return false };
        let (was_ready, len) = (slot.state == State::Ready, slot.len);
        slot.is_doomed = true;
        if was_ready {
            self.gone.push(Named { namespace, key: *key, len });
            if slot.holds == 0 {
                self.forget(page);
            }
        }
        was_ready
    }

    /// The block that should go next where slots are scarce: it can be found until `left`, and is kept
    /// meanwhile.
    pub fn leave_one(&mut self) -> Option<(Seat, Named)> {
        let scarce = self.queues.keys().copied().find(|&size| self.arena.is_scarce(size))?;
        let page = self.next_to_go(scarce)?;
        let slot = self.slots.get_mut(&page)?;
        slot.holds += 1;
        slot.is_leaving = true;
        let (namespace, key, len) = (slot.namespace, slot.key, slot.len);
        Some((Seat { page, generation: slot.generation }, Named { namespace, key, len }))
    }

    /// It was written down, or not; it goes unless it was used meanwhile.
    pub fn left(&mut self, seat: Seat) {
        let Some(slot) = self.slot(seat) else { return };
        let unused = std::mem::replace(&mut slot.is_leaving, false);
        let (key, size) = (slot.key, pages(slot.len));
        slot.holds = slot.holds.saturating_sub(1);
        if slot.holds == 0 && (unused || slot.is_doomed) {
            self.forget(seat.page);
        } else if let Some(queue) = self.queues.get_mut(&size) {
            queue.insert(seat.page, u64_at(&key, 0));
        }
    }

    /// Blocks that are ready, slab by slab from one on until there were `most` slots; the next slab, None
    /// after the last.
    pub fn walk(&self, from: usize, most: usize, mut take: impl FnMut(Named)) -> Option<usize> {
        let mut left = most;
        for slab in from..self.arena.slabs() {
            if left == 0 {
                return Some(slab);
            }
            for page in self.arena.slots(slab) {
                left = left.saturating_sub(1);
                let slot = self.slots.get(&page);
                let found = slot.filter(|slot| slot.state == State::Ready && !slot.is_doomed);
                if let Some(&Slot { namespace, key, len, .. }) = found {
                    take(Named { namespace, key, len });
                }
            }
        }
        None
    }

    /// Blocks that went since the last call.
    pub fn take_gone(&mut self) -> Vec<Named> {
        std::mem::take(&mut self.gone)
    }
}
