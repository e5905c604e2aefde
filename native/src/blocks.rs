//! Hashes of blocks of tokens: what the prefix index is keyed by.
//!
//! A block's *local* hash is XXH3-64 over its token ids as little-endian u32. Its *sequence* hash says
//! "this block after exactly that prefix in that scope": a mix of the sequence hash before it and the
//! local hash, 60 bits of it (the low four are zero: the index has use for them). The engine's own block
//! hashes are never computed here, so neither its algorithm nor its seed matters.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::hash::mix;

/// Seeds, so that equal bytes in different places do not give equal hashes.
const LORA: u64 = 0x6c6f_7261;
const SALT: u64 = 0x7361_6c74;
const LOCAL: u64 = 0x626c_6f63;
const ROOT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The bits of a sequence hash that are used.
pub const SEQUENCE: u64 = !0xF;

/// The scope of a prompt: engines share no block between two LoRA adapters or two cache salts. 0 for
/// neither; an empty name is none, as engines take it.
pub fn scope(lora: Option<&str>, salt: Option<&str>) -> u64 {
    let part = |text: Option<&str>, seed| match text {
        Some(text) if !text.is_empty() => xxh3_64_with_seed(text.as_bytes(), seed),
        _ => 0,
    };
    match (part(lora, LORA), part(salt, SALT)) {
        (0, 0) => 0,
        (lora, salt) => extend(mix(lora), salt),
    }
}

/// What stands before the first block of a prompt of this scope.
#[inline]
pub fn root(scope: u64) -> u64 {
    mix(scope ^ ROOT)
}

/// The local hash of one block; `ids` is the block's ids as little-endian u32.
#[inline]
pub fn local(ids: &[u8]) -> u64 {
    xxh3_64_with_seed(ids, LOCAL)
}

/// The sequence hash of a block from the one before it (`root` for the first) and its local hash.
#[inline]
pub fn extend(before: u64, local: u64) -> u64 {
    mix(before.wrapping_mul(ROOT) ^ local) & SEQUENCE
}

/// The ids as the bytes that are hashed.
#[inline]
pub fn bytes(ids: &[u32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "ids are hashed in place as little-endian") };
    // SAFETY: u32 has no padding, u8 no alignment, and the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(ids.as_ptr().cast::<u8>(), size_of_val(ids)) }
}

/// Sequence hashes of the full blocks of `ids`; the rest that fills no block has none.
pub fn chain(ids: &[u32], block_size: usize, scope: u64) -> Box<[u64]> {
    let mut last = root(scope);
    ids.chunks_exact(block_size)
        .map(|block| {
            last = extend(last, local(bytes(block)));
            last
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_hash_depends_on_every_token_before_it_and_on_nothing_after_it() {
        let ids: Vec<u32> = (0..70).collect();
        let hashes = chain(&ids, 16, 0);
        assert_eq!(hashes.len(), 4);
        for at in 0..70 {
            let mut other = ids.clone();
            other[at] ^= 1 << 31;
            let changed = chain(&other, 16, 0);
            for block in 0..4 {
                assert_eq!(hashes[block] == changed[block], block < at / 16, "token {at}");
            }
        }
    }

    #[test]
    fn equal_blocks_in_a_row_and_in_other_order_differ() {
        let same = chain(&[7; 64], 16, 0);
        assert_eq!(same.iter().collect::<HashSet<_>>().len(), 4);
        let (a, b) = ([1u32; 16], [2u32; 16]);
        assert_ne!(chain(&[a, b].concat(), 16, 0)[1], chain(&[b, a].concat(), 16, 0)[1]);
    }

    #[test]
    fn block_size_and_scope_keep_prompts_apart() {
        let ids = [5u32; 64];
        assert_ne!(chain(&ids, 16, 0)[1], chain(&ids, 32, 0)[0]);
        let scopes = [
            scope(None, None),
            scope(Some("a"), None),
            scope(None, Some("a")),
            scope(Some("a"), Some("a")),
            scope(Some("a"), Some("b")),
            scope(Some("b"), Some("a")),
        ];
        assert_eq!(scopes[0], 0);
        assert_eq!(scope(Some(""), Some("")), 0);
        let firsts: HashSet<u64> = scopes.iter().map(|scope| chain(&ids, 16, *scope)[0]).collect();
        assert_eq!(firsts.len(), scopes.len());
    }

    #[test]
    fn short_prompts_have_no_block() {
        assert!(chain(&[], 16, 0).is_empty());
        assert!(chain(&[1; 15], 16, 0).is_empty());
    }
}
