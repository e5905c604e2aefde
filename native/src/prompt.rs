//! A prompt as the index and the cost take it: token ids, their scope, and their block hashes, each
//! computed once per block size and kept. It never changes, so threads share it freely.

use std::sync::OnceLock;

use crate::blocks;

/// Token ids and the scope (LoRA, cache salt) in which an engine would share their blocks.
pub struct Prompt {
    ids: Box<[u32]>,
    scope: u64,
    exact: bool,
    hashes: OnceLock<Box<Hashes>>,
}

/// The hashes for one block size; those for the next size asked for hang on it. An upstream has one
/// block size, seldom two.
struct Hashes {
    block_size: usize,
    of: Box<[u64]>,
    next: OnceLock<Box<Hashes>>,
}

impl Prompt {
    /// `scope` as `blocks::scope` makes it. `exact` is false where the ids stand for something else,
    /// such as bytes of a text that could not be tokenised.
    pub fn new(ids: impl Into<Box<[u32]>>, scope: u64, exact: bool) -> Self {
        Self { ids: ids.into(), scope, exact, hashes: OnceLock::new() }
    }

    /// From ids packed as little-endian u32; None unless the length is a multiple of four.
    pub fn of_bytes(packed: &[u8], scope: u64, exact: bool) -> Option<Self> {
        let words = packed.chunks_exact(4);
        if !words.remainder().is_empty() {
            return None;
        }
        let id = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        Some(Self::new(words.map(id).collect::<Box<[u32]>>(), scope, exact))
    }

    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    pub fn scope(&self) -> u64 {
        self.scope
    }

    pub fn exact(&self) -> bool {
        self.exact
    }

    /// Sequence hashes of the full blocks of `block_size` tokens; none for a size of 0 (not learnt).
    pub fn hashes(&self, block_size: usize) -> &[u64] {
        if block_size == 0 {
            return &[];
        }
        let mut place = &self.hashes;
        loop {
            let hashes = place.get_or_init(|| {
                let of = blocks::chain(&self.ids, block_size, self.scope);
                Box::new(Hashes { block_size, of, next: OnceLock::new() })
            });
            if hashes.block_size == block_size {
                return &hashes.of;
            }
            place = &hashes.next;
        }
    }

    /// The hashes a match may credit: an engine computes at least the last token of every prompt, so a
    /// block that ends the prompt is never a hit.
    pub fn creditable(&self, block_size: usize) -> &[u64] {
        let hashes = self.hashes(block_size);
        match self.tokens().checked_sub(1) {
            Some(most) if block_size > 0 => &hashes[..most / block_size],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_computed_once_per_block_size() {
        let prompt = Prompt::new((0..100).collect::<Vec<u32>>(), 0, true);
        let first = prompt.hashes(16).as_ptr();
        assert_eq!(prompt.hashes(32).len(), 3);
        assert_eq!(prompt.hashes(7).len(), 14);
        assert_eq!(prompt.hashes(16).as_ptr(), first);
        assert_eq!(prompt.hashes(16), &*blocks::chain(prompt.ids(), 16, 0));
        assert!(prompt.hashes(0).is_empty());
    }

    #[test]
    fn the_last_token_is_never_creditable() {
        for tokens in 0..70usize {
            let prompt = Prompt::new(vec![1; tokens], 0, true);
            assert_eq!(prompt.creditable(16).len(), tokens.saturating_sub(1) / 16);
            assert!(prompt.creditable(0).is_empty());
        }
    }

    #[test]
    fn packed_ids_are_little_endian() {
        let prompt =
            Prompt::of_bytes(&[1, 2, 0, 0, 255, 255, 255, 255], 0, true).expect("whole ids");
        assert_eq!(prompt.ids(), [513, u32::MAX]);
        assert!(Prompt::of_bytes(&[1, 2, 3], 0, true).is_none());
    }
}
