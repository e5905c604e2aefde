//! Maps whose keys are hashes: they need one multiplication, no defence.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub type SpreadMap<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

#[derive(Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        // The low bits choose the bucket, and a product's best bits are the high ones.
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
