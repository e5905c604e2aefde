//! Things at numbered places that do not move; places of removed things are used again.
//!
//! Memory grows in steps of one chunk, never by doubling.

const CHUNK: usize = 4096;
pub const NONE: u32 = u32::MAX;

/// A thing that can hold the number of the next free place while it is not in use.
pub trait Linked: Copy + Default {
    fn next(&self) -> u32;
    fn set_next(&mut self, next: u32);
}

pub struct Slab<T> {
    chunks: Vec<Box<[T]>>,
    used: u32,
    free: u32,
    live: usize,
}

impl<T: Linked> Slab<T> {
    pub fn new() -> Self {
        Self { chunks: Vec::new(), used: 0, free: NONE, live: 0 }
    }

    /// Things in use.
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Places that ever were in use: every place is below.
    pub fn places(&self) -> u32 {
        self.used
    }

    pub fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<T>() + self.chunks.capacity() * size_of::<Box<[T]>>()
    }

    /// None when all places that a number can name are taken.
    pub fn insert(&mut self, thing: T) -> Option<u32> {
        let place = if self.free != NONE {
            let place = self.free;
            self.free = self.at(place).next();
            place
        } else {
            if self.used == NONE {
                return None;
            }
            if self.used as usize == self.chunks.len() * CHUNK {
                self.chunks.push(vec![T::default(); CHUNK].into_boxed_slice());
            }
            self.used += 1;
            self.used - 1
        };
        *self.at_mut(place) = thing;
        self.live += 1;
        Some(place)
    }

    pub fn remove(&mut self, place: u32) {
        let mut empty = T::default();
        empty.set_next(self.free);
        *self.at_mut(place) = empty;
        self.free = place;
        self.live -= 1;
    }

    pub fn at(&self, place: u32) -> &T {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    pub fn at_mut(&mut self, place: u32) -> &mut T {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}

impl<T: Linked> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}
