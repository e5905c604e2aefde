//! Two hashes: of bytes, and of a number. Both are the same on every machine and in every version, as
//! gateways that share no state must agree on where a key belongs.

use xxhash_rust::xxh3::xxh3_64;

pub fn text(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// A bijection of 64-bit numbers whose every output bit depends on every input bit (the finaliser of
/// MurmurHash3).
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// A stream of random numbers from a seed: a counter, mixed.
pub struct Random(pub u64);

impl Random {
    /// Uniform in `0..bound`; the bias of the multiplication is below 2^-32 for bounds below 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.0)) * u128::from(bound)) >> 64) as u64
    }
}
