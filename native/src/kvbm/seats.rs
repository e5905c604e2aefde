//! A client's use of the arena: slots to write to, blocks to read, and giving both back.

use std::sync::Arc;

use super::arena::generation;
use super::client::Client;
use super::host::Seat;
use super::memory::Memory;
use super::message::{put_keys, put_seats, seats, status, Finished, CHAIN, DISCARD};
use super::record::Key;
use super::wire::{Frame, Head, Op};

impl Client {
    /// The arena of the daemon that is there now; another daemon brings another one.
    pub fn arena(&self) -> Option<&Arc<Memory>> {
        self.link().arena.as_ref()
    }

    /// Slots to write blocks to, as a chain or each by itself; per block a status and, with `OK` and
    /// `THERE`, where. Without an answer in time every slot that may have been given is given back.
    pub fn reserve(&mut self, keys: &[Key], is_chain: bool) -> Vec<(u8, Seat)> {
        let mut head = Head::new(Op::Reserve);
        head.count = keys.len() as u32;
        head.flags = if is_chain { CHAIN } else { 0 };
        let count = keys.len();
        let answer = self.ask_quickly(head, &put_keys(keys));
        let parsed = answer.and_then(|payload| parse(count, &payload));
        parsed.unwrap_or_else(|| vec![(status::LOST, Seat { page: 0, generation: 0 }); count])
    }

    /// The blocks are written: from now on they are found. Or, discarded, the slots are given back.
    pub fn commit(&mut self, places: &[Seat], discard: bool) -> Vec<u8> {
        let mut head = Head::new(Op::Commit);
        head.count = places.len() as u32;
        head.flags = if discard { DISCARD } else { 0 };
        let payload = put_seats(places);
        if self.is_paused() {
            // What is not said would be held for nothing; only the answer is not waited for.
            self.tell(&head, &payload);
            return vec![status::LOST; places.len()];
        }
        let answer = self.ask_quickly(head, &payload);
        answer.filter(|a| a.len() == places.len()).unwrap_or(vec![status::LOST; places.len()])
    }

    /// Blocks that were fetched are held no more.
    pub fn release(&mut self, places: &[Seat]) {
        let mut head = Head::new(Op::Release);
        head.count = places.len() as u32;
        self.tell(&head, &put_seats(places));
    }

    /// Whether what was just copied from there is the block: the slot was not given to another meanwhile.
    pub fn is_valid(&self, seat: Seat) -> bool {
        let fits = |memory: &&Arc<Memory>| (seat.page as usize + 1) * 8 <= memory.len();
        let memory = self.arena().filter(fits);
        memory.is_some_and(|memory| generation(memory, seat.page) == u64::from(seat.generation))
    }

    /// Slots whose answer came too late: nobody will write to them.
    pub(super) fn return_late_slots(&mut self, frame: &Frame) {
        let granted = parse(frame.head.count as usize, &frame.payload).unwrap_or_default();
        let granted: Vec<Seat> =
            granted.into_iter().filter(|(s, _)| *s == status::OK).map(|(_, seat)| seat).collect();
        let mut head = Head::new(Op::Commit);
        (head.count, head.flags) = (granted.len() as u32, DISCARD);
        self.push(&head, &put_seats(&granted));
    }

    /// A fetch that was given up here and ended well there: its blocks are not wanted.
    pub(super) fn return_late_seats(&mut self, name: u64, finished: Option<&Finished>) {
        let Some(finished) = finished.filter(|f| !f.seats.is_empty() && !self.knows(name)) else {
            return;
        };
        let held = finished.statuses.iter().zip(&finished.seats);
        let held: Vec<Seat> =
            held.filter(|(&s, _)| s == status::OK).map(|(_, &seat)| seat).collect();
        let mut head = Head::new(Op::Release);
        head.count = held.len() as u32;
        self.push(&head, &put_seats(&held));
    }
}

/// A status and a slot per block.
fn parse(count: usize, payload: &[u8]) -> Option<Vec<(u8, Seat)>> {
    let (statuses, places) = payload.split_at_checked(count)?;
    Some(statuses.iter().copied().zip(seats(count as u32, places).ok()?).collect())
}
