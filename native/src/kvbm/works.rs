//! Jobs under way and what is known of each of their blocks.

use super::gate::Gate;
use super::host::Seat;
use super::message::{status, Finished};
use super::wire::Head;

/// Blocks of a job are told apart by 12 bits of a token, jobs by 20, uses of a job's place by 28.
const ITEM_BITS: u32 = 12;
const PLACE_BITS: u32 = 20;
const PENDING: u8 = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Store,
    Load,
    /// A load into the arena.
    Fetch,
    /// Blocks to be forgotten; answered, not pushed.
    Drop,
}

/// Who is told: a place in the table of connections and the use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    pub at: u32,
    pub usage: u32,
}

pub struct Work {
    pub kind: Kind,
    pub owner: Owner,
    pub head: Head,
    pub gate: Option<Gate>,
    statuses: Vec<u8>,
    left: usize,
    /// Of a fetch: where each block is.
    pub seats: Vec<Seat>,
    pub bytes: u64,
    pub began_us: u64,
    pub deadline_us: u64,
    /// It is being given up: what becomes of the blocks that are not done.
    pub ending: Option<u8>,
    /// Who asked to cancel it.
    pub cancel: Option<Head>,
}

impl Work {
    pub fn new(kind: Kind, owner: Owner, head: Head, items: usize) -> Self {
        Self {
            kind,
            owner,
            head,
            gate: None,
            statuses: vec![PENDING; items],
            left: items,
            seats: Vec::new(),
            bytes: 0,
            began_us: 0,
            deadline_us: u64::MAX,
            ending: None,
            cancel: None,
        }
    }

    /// Note what became of a block; once.
    pub fn set(&mut self, item: usize, status: u8) {
        if let Some(place) = self.statuses.get_mut(item).filter(|place| **place == PENDING) {
            *place = status;
            self.left -= 1;
        }
    }

    pub fn set_rest(&mut self, status: u8) {
        self.statuses.iter_mut().filter(|s| **s == PENDING).for_each(|s| *s = status);
        self.left = 0;
    }

    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    pub fn good(&self) -> usize {
        self.statuses.iter().filter(|&&s| s == status::OK).count()
    }

    pub fn finished(&self, now_us: u64) -> Finished {
        Finished {
            spent_us: now_us.saturating_sub(self.began_us),
            bytes: self.bytes,
            statuses: self.statuses.clone(),
            seats: self.seats.clone(),
        }
    }
}

/// Names a job in tokens; the place of a finished job is used again under another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(u64);

impl WorkId {
    pub fn token(self, item: usize) -> u64 {
        self.0 << ITEM_BITS | item as u64
    }

    pub fn of_token(token: u64) -> (Self, usize) {
        (Self(token >> ITEM_BITS), (token & ((1 << ITEM_BITS) - 1)) as usize)
    }

    fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }
}

#[derive(Default)]
pub struct Works {
    places: Vec<(u64, Option<Work>)>,
    free: Vec<usize>,
    live: usize,
}

impl Works {
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub fn add(&mut self, work: Work) -> WorkId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (usage, slot) = &mut self.places[place];
        *usage = (*usage + 1) & ((1 << (64 - ITEM_BITS - PLACE_BITS - 4)) - 1);
        *slot = Some(work);
        self.live += 1;
        WorkId(*usage << PLACE_BITS | place as u64)
    }

    pub fn get_mut(&mut self, id: WorkId) -> Option<&mut Work> {
        let (usage, slot) = self.places.get_mut(id.place())?;
        if *usage << PLACE_BITS | id.place() as u64 != id.0 {
            return None;
        }
        slot.as_mut()
    }

    pub fn remove(&mut self, id: WorkId) -> Option<Work> {
        self.get_mut(id)?;
        let work = self.places[id.place()].1.take()?;
        self.free.push(id.place());
        self.live -= 1;
        Some(work)
    }

    pub fn ids(&self, pick: impl Fn(&Work) -> bool) -> Vec<WorkId> {
        let named = self.places.iter().enumerate().filter_map(|(place, (usage, slot))| {
            slot.as_ref()
                .filter(|work| pick(work))
                .map(|_| WorkId(usage << PLACE_BITS | place as u64))
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvbm::wire::Op;

    #[test]
    fn a_token_of_a_finished_job_names_no_later_one() {
        let mut works = Works::default();
        let owner = Owner { at: 0, usage: 0 };
        let work = || Work::new(Kind::Load, owner, Head::new(Op::Load), 4096);
        let first = works.add(work());
        assert_eq!(WorkId::of_token(first.token(4095)), (first, 4095));
        works.remove(first).unwrap();
        let second = works.add(work());
        assert!(works.get_mut(first).is_none() && works.get_mut(second).is_some());
        assert_ne!(first, second);
    }

    #[test]
    fn a_block_ends_once() {
        let mut work = Work::new(Kind::Load, Owner { at: 0, usage: 0 }, Head::new(Op::Load), 2);
        work.set(0, status::OK);
        work.set(0, status::IO);
        work.set(7, status::OK);
        assert!(!work.is_done());
        work.set_rest(status::TIMEOUT);
        assert!(work.is_done());
        assert_eq!(work.finished(5).statuses, [status::OK, status::TIMEOUT]);
        assert_eq!(work.good(), 1);
    }
}
