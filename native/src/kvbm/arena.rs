//! Memory for blocks that the daemon owns and all engines of the host map.
//!
//! It is cut into slabs; a slab serves blocks of one size. In front lies a word per page: the number of
//! the use that the slot beginning there is in. Whoever copied bytes out of a slot looks at it again
//! afterwards: another number means the slot was given to another block meanwhile.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::Arc;

use super::memory::Memory;
use super::record::PAGE;

const SLAB_MIN: usize = 4 << 20;
const SLAB_MAX: usize = 128 << 20;

pub struct Arena {
    pub memory: Arc<Memory>,
    slab_pages: u32,
    first_page: u32,
    slabs: Vec<Slab>,
    /// Slabs by the pages of their slots.
    classes: HashMap<u32, Vec<u32>>,
    unused: Vec<u32>,
    free: HashMap<u32, Vec<u32>>,
}

#[derive(Clone, Copy, Default)]
struct Slab {
    slot_pages: u32,
}

/// The shared word of a page.
pub fn generation(memory: &Memory, page: u32) -> u64 {
    memory.word(page as usize * 8).load(Acquire)
}

impl Arena {
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE);
        let slab = (bytes / 64).clamp(SLAB_MIN, SLAB_MAX).next_multiple_of(PAGE).min(bytes);
        let pages = bytes / PAGE;
        // The table covers its own pages too: a page's word is found by its number alone.
        let table = ((pages + pages / 512 + 2) * 8).next_multiple_of(PAGE);
        let memory = Arc::new(Memory::create(c"kvbm-arena", bytes + table)?);
        let count = (bytes / slab) as u32;
        Ok(Self {
            memory,
            slab_pages: (slab / PAGE) as u32,
            first_page: (table / PAGE) as u32,
            slabs: vec![Slab::default(); count as usize],
            classes: HashMap::new(),
            unused: (0..count).rev().collect(),
            free: HashMap::new(),
        })
    }

    /// Bytes that hold blocks.
    pub fn capacity(&self) -> u64 {
        self.slabs.len() as u64 * u64::from(self.slab_pages) * PAGE as u64
    }

    pub fn fits(&self, slot_pages: u32) -> bool {
        (1..=self.slab_pages).contains(&slot_pages)
    }

    /// A slot of so many pages without taking one from others: its first page.
    pub fn take(&mut self, slot_pages: u32) -> Option<u32> {
        if let Some(page) = self.free.get_mut(&slot_pages).and_then(Vec::pop) {
            return Some(page);
        }
        let slab = self.unused.pop()?;
        self.slabs[slab as usize].slot_pages = slot_pages;
        self.classes.entry(slot_pages).or_default().push(slab);
        let pages = self.pages_of(slab);
        let free = self.free.entry(slot_pages).or_default();
        free.extend(pages.rev());
        free.pop()
    }

    /// Fewer than a tenth of the slots of this size are free.
    pub fn is_scarce(&self, slot_pages: u32) -> bool {
        let slots = self.slab_pages / slot_pages.max(1);
        let slabs = self.classes.get(&slot_pages).map_or(0, Vec::len);
        let free = self.free.get(&slot_pages).map_or(0, Vec::len);
        let unused = self.unused.len() * slots as usize;
        (free + unused) * 10 < slabs * slots as usize
    }

    pub fn give(&mut self, page: u32) {
        let slab = (page - self.first_page) / self.slab_pages;
        let slot_pages = self.slabs[slab as usize].slot_pages;
        self.free.entry(slot_pages).or_default().push(page);
    }

    /// Begin another use of a slot; its number.
    pub fn renew(&self, page: u32) -> u32 {
        let word = self.memory.word(page as usize * 8);
        let next = (word.load(Acquire) as u32).wrapping_add(1).max(1);
        word.store(u64::from(next), Release);
        next
    }

    pub fn has_class(&self, slot_pages: u32) -> bool {
        self.classes.get(&slot_pages).is_some_and(|slabs| !slabs.is_empty())
    }

    /// Slabs of other sizes, those of the size with most slabs first: their number and slots.
    pub fn others(&self, slot_pages: u32) -> Vec<(u32, Vec<u32>)> {
        let other = self.classes.iter().filter(|(&pages, _)| pages != slot_pages);
        let Some((_, slabs)) = other.max_by_key(|(_, slabs)| slabs.len()) else {
            return Vec::new();
        };
        slabs.iter().map(|&slab| (slab, self.pages_of(slab).collect())).collect()
    }

    /// Take an empty slab from its size: its slots are nobody's any more.
    pub fn reclaim(&mut self, slab: u32) {
        let slot_pages = self.slabs[slab as usize].slot_pages;
        let pages: Vec<u32> = self.pages_of(slab).collect();
        if let Some(free) = self.free.get_mut(&slot_pages) {
            free.retain(|page| !pages.contains(page));
        }
        if let Some(slabs) = self.classes.get_mut(&slot_pages) {
            slabs.retain(|&other| other != slab);
        }
        self.slabs[slab as usize].slot_pages = 0;
        self.unused.push(slab);
    }

    pub fn slabs(&self) -> usize {
        self.slabs.len()
    }

    /// The first page of each slot of a slab; none where it serves no size yet.
    pub fn slots(&self, slab: usize) -> impl Iterator<Item = u32> {
        let is_cut = self.slabs[slab].slot_pages > 0;
        self.pages_of(slab as u32).take(if is_cut { usize::MAX } else { 0 })
    }

    fn pages_of(&self, slab: u32) -> impl DoubleEndedIterator<Item = u32> {
        let slot = self.slabs[slab as usize].slot_pages.max(1);
        let first = self.first_page + slab * self.slab_pages;
        (0..self.slab_pages / slot).map(move |n| first + n * slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_whatever_their_sizes() {
        let mut arena = Arena::new(32 << 20).unwrap();
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for round in 0..10_000 {
            let pages = [1, 3, 16, 257][round % 4];
            match arena.take(pages) {
                Some(page) => taken.push((page, pages)),
                None => {
                    let (page, _) = taken.swap_remove(round * 7 % taken.len());
                    arena.give(page);
                }
            }
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        let end = taken.last().map(|(page, pages)| (page + pages) as usize * PAGE).unwrap();
        assert!(end <= arena.memory.len() && taken[0].0 >= arena.first_page);
    }

    #[test]
    fn a_slab_goes_to_another_size_once_it_is_empty() {
        let mut arena = Arena::new(8 << 20).unwrap();
        let small: Vec<u32> = std::iter::from_fn(|| arena.take(256)).collect();
        assert!(arena.take(512).is_none() && !arena.has_class(512));
        let (slab, pages) = arena.others(512).swap_remove(0);
        assert!(pages.iter().all(|page| small.contains(page)));
        arena.reclaim(slab);
        let big = arena.take(512).unwrap();
        assert!(pages.contains(&big));
    }

    #[test]
    fn uses_are_numbered() {
        let mut arena = Arena::new(8 << 20).unwrap();
        let page = arena.take(1).unwrap();
        let first = arena.renew(page);
        assert_eq!(generation(&arena.memory, page), u64::from(first));
        assert_ne!(arena.renew(page), first);
    }
}
