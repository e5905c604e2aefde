//! Which lanes are free. The lowest go first, so that masks over lanes stay short.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::holders::{LANES_MAX, WORDS_MAX};

pub struct Lanes {
    used: Mutex<[u64; WORDS_MAX]>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { used: Mutex::new([0; WORDS_MAX]) }
    }
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, [u64; WORDS_MAX]> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane for one group of one engine; None if all are taken.
    pub fn take(&self) -> Option<u16> {
        let mut used = self.lock();
        let word = used.iter().position(|word| *word != u64::MAX)?;
        let bit = used[word].trailing_ones() as usize;
        used[word] |= 1 << bit;
        Some((word * 64 + bit) as u16)
    }

    /// Gives back a lane that holds nothing any more.
    pub fn give(&self, lane: u16) {
        debug_assert!((lane as usize) < LANES_MAX);
        self.lock()[lane as usize / 64] &= !(1 << (lane % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_lane_is_taken() {
        let lanes = Lanes::default();
        let all: Vec<_> = std::iter::from_fn(|| lanes.take()).collect();
        assert_eq!(all, (0..LANES_MAX as u16).collect::<Vec<_>>());
        lanes.give(70);
        lanes.give(3);
        assert_eq!((lanes.take(), lanes.take(), lanes.take()), (Some(3), Some(70), None));
    }
}
