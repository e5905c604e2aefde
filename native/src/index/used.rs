//! Which blocks lookups have matched of late: a filter of bits, so that it takes no room in the map and
//! readers can set it. Consulted only when the index is at its limit.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;

use crate::hash::mix;

/// Two filters, used in turn: the one being filled, and the one filled before.
pub struct Used {
    /// Made when it is first wanted.
    bits: OnceLock<[Box<[AtomicU64]>; 2]>,
    words: usize,
    filling: AtomicUsize,
    /// True while it is worth filling.
    wanted: AtomicBool,
}

impl Used {
    /// For an index of so many blocks.
    pub fn new(blocks: usize) -> Self {
        let words = (blocks / 32).next_power_of_two().max(1);
        Self {
            bits: OnceLock::new(),
            words,
            filling: AtomicUsize::new(0),
            wanted: AtomicBool::new(false),
        }
    }

    pub fn bytes(&self) -> usize {
        self.bits.get().map_or(0, |_| 2 * self.words * size_of::<AtomicU64>())
    }

    pub fn want(&self, wanted: bool) {
        if wanted {
            let bits = || (0..self.words).map(|_| AtomicU64::new(0)).collect();
            self.bits.get_or_init(|| [bits(), bits()]);
        }
        self.wanted.store(wanted, Relaxed);
    }

    /// Blocks that a lookup has matched.
    pub fn mark(&self, chain: &[u64]) {
        let Some(bits) = self.bits.get().filter(|_| self.wanted.load(Relaxed)) else { return };
        let bits = &bits[self.filling.load(Relaxed) & 1];
        for sequence in chain {
            let (word, bit) = place(*sequence, bits.len());
            if bits[word].load(Relaxed) & bit == 0 {
                bits[word].fetch_or(bit, Relaxed);
            }
        }
    }

    /// True if the block was matched since the turn before the last; seldom true without.
    pub fn has(&self, sequence: u64) -> bool {
        let marked = |bits: &[AtomicU64]| {
            let (word, bit) = place(sequence, bits.len());
            bits[word].load(Relaxed) & bit != 0
        };
        self.bits.get().is_some_and(|bits| marked(&bits[0]) || marked(&bits[1]))
    }

    /// Forgets what was marked before the last turn.
    pub fn turn(&self) {
        let next = (self.filling.load(Relaxed) + 1) & 1;
        for word in self.bits.get().map_or(&[][..], |bits| &bits[next]) {
            word.store(0, Relaxed);
        }
        self.filling.store(next, Relaxed);
    }
}

fn place(sequence: u64, words: usize) -> (usize, u64) {
    let spread = mix(sequence);
    ((spread >> 6) as usize & (words - 1), 1 << (spread & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_live_for_two_turns() {
        let used = Used::new(100_000);
        used.mark(&[16, 32]);
        assert!(!used.has(16), "not wanted yet");
        used.want(true);
        used.mark(&[16, 32]);
        assert!(used.has(16) && used.has(32) && !used.has(48));
        used.turn();
        used.mark(&[32]);
        assert!(used.has(16) && used.has(32));
        used.turn();
        assert!(!used.has(16) && used.has(32));
    }
}
