//! A fixed-size table of keys in shared memory: buckets of sixteen places, each bucket behind a lock that
//! outlives its holder.
//!
//! A key is 128 bits of hash under a seed that only this table knows, so nobody can choose keys that fall
//! together. A holder that was killed inside its few dozen instructions is waited for `PATIENCE` turns (one that
//! is stopped, longer), then its lock is taken over: whatever is written under a lock is written in an order
//! that leaves the place usable after every single store, and one key's count off by one at worst.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Once;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::shared::Shared;

/// Places of a bucket. Tables have four times as many places as keys, so that a bucket of a full table
/// overflows about once in a million.
pub const WAYS: usize = 16;
const PER_KEY: usize = 4;
/// Turns of waiting for a lock, each a yield to other threads, before its holder counts as dead.
const PATIENCE: usize = 20_000;
/// So many times longer for one whose process is still there.
const ALIVE: usize = 20;
/// Most keys of a table.
pub const KEYS_MAX: usize = 1 << 24;
const KEY_WORDS: usize = 2;

pub struct Buckets {
    pub shared: Shared,
    buckets: usize,
    /// Words of a place: two of key, then the value's.
    place: usize,
}

/// A bucket while it is locked.
pub struct Locked<'a> {
    table: &'a Buckets,
    first: usize,
    token: u64,
}

/// A key's hash, never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    high: u64,
    low: u64,
}

impl Buckets {
    /// `words`: of a value. `sizes` are what another process must give to attach.
    pub fn open(
        kind: &str,
        workers: usize,
        keys: usize,
        words: usize,
        fd: Option<i32>,
    ) -> Result<Self, String> {
        if !(1..=KEYS_MAX).contains(&keys) {
            return Err(format!("`keys` must be from 1 to {KEYS_MAX}, got {keys}"));
        }
        let buckets = (keys * PER_KEY).div_ceil(WAYS).next_power_of_two();
        let place = KEY_WORDS + words;
        let cells = 1 + buckets * (1 + WAYS * place);
        let table = Self {
            shared: Shared::open(kind, workers, &[keys, words], cells, fd)?,
            buckets,
            place,
        };
        if fd.is_none() {
            let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
            table.shared.cell(0).store(seed, Ordering::Release);
        }
        Ok(table)
    }

    pub fn buckets(&self) -> usize {
        self.buckets
    }

    pub fn key(&self, text: &[u8]) -> Key {
        let hash = xxh3_128_with_seed(text, self.shared.cell(0).load(Ordering::Relaxed));
        Key { high: (hash >> 64) as u64 | 1, low: hash as u64 }
    }

    pub fn bucket_of(&self, key: Key) -> usize {
        key.low as usize & (self.buckets - 1)
    }

    fn first(&self, bucket: usize) -> usize {
        1 + bucket * (1 + WAYS * self.place)
    }

    pub fn lock(&self, bucket: usize) -> Locked<'_> {
        let first = self.first(bucket);
        let cell = self.shared.cell(first);
        let token = u64::from(own_pid()) << 32 | fresh();
        let (mut holder, mut seen, mut waited) = (0, 0, 0);
        loop {
            match cell.compare_exchange(holder, token, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Locked { table: self, first, token },
                Err(now) => {
                    waited = if now == seen { waited + 1 } else { 0 };
                    seen = now;
                    let given_up = waited > PATIENCE * ALIVE
                        || waited % PATIENCE == PATIENCE - 1 && has_ended((now >> 32) as u32);
                    // The dead holder's token is then what we expect there.
                    holder = if given_up { now } else { 0 };
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// This process's id, asked for once: the call is dear where it comes with every lock.
fn own_pid() -> u32 {
    static PID: AtomicU32 = AtomicU32::new(0);
    extern "C" fn forget() {
        PID.store(0, Ordering::Relaxed);
    }
    static WATCH: Once = Once::new();
    match PID.load(Ordering::Relaxed) {
        0 => {
            // A forked child is another process.
            WATCH.call_once(|| {
                unsafe { libc::pthread_atfork(None, None, Some(forget)) };
            });
            let pid = std::process::id();
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Whether a process is gone, or a corpse that nobody has buried yet.
fn has_ended(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return unsafe { libc::kill(pid as i32, 0) } != 0;
    };
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

/// Tells two holds of one process apart.
fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff
}

impl Locked<'_> {
    fn at(&self, way: usize) -> usize {
        self.first + 1 + way * self.table.place
    }

    /// A word of a place's value.
    pub fn value(&self, way: usize, word: usize) -> &AtomicU64 {
        self.table.shared.cell(self.at(way) + KEY_WORDS + word)
    }

    pub fn is_free(&self, way: usize) -> bool {
        self.table.shared.cell(self.at(way)).load(Ordering::Relaxed) == 0
    }

    pub fn holds(&self, way: usize, key: Key) -> bool {
        let cells = self.table.shared.cells(self.at(way), KEY_WORDS);
        cells[0].load(Ordering::Relaxed) == key.high && cells[1].load(Ordering::Relaxed) == key.low
    }

    pub fn find(&self, key: Key) -> Option<usize> {
        (0..WAYS).find(|&way| self.holds(way, key))
    }

    /// Gives a place to a key. The value has been made the newcomer's first.
    pub fn name(&self, way: usize, key: Key) {
        let cells = self.table.shared.cells(self.at(way), KEY_WORDS);
        cells[0].store(0, Ordering::Relaxed);
        cells[1].store(key.low, Ordering::Relaxed);
        cells[0].store(key.high, Ordering::Relaxed);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // A holder whose lock was taken over in the meantime leaves it alone.
        let cell = self.table.shared.cell(self.first);
        let _ = cell.compare_exchange(self.token, 0, Ordering::Release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_a_dead_holder_is_taken_over_and_the_late_one_harms_nothing() {
        let table = Buckets::open("test", 1, 8, 1, None).unwrap();
        let dead = table.lock(0);
        let next = table.lock(0);
        drop(dead);
        assert_ne!(table.shared.cell(table.first(0)).load(Ordering::Relaxed), 0);
        drop(next);
        assert_eq!(table.shared.cell(table.first(0)).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_forked_process_has_its_own_id() {
        assert_eq!(own_pid(), std::process::id());
        let child = unsafe { libc::fork() };
        if child == 0 {
            unsafe { libc::_exit((own_pid() != libc::getpid() as u32).into()) };
        }
        let mut status = -1;
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_key_is_found_where_it_was_put() {
        let table = Buckets::open("test", 1, 8, 1, None).unwrap();
        let other = Buckets::open("test", 1, 8, 1, Some(table.shared.fd())).unwrap();
        let key = table.key(b"a");
        assert_eq!(other.key(b"a"), key);
        let place = table.lock(table.bucket_of(key));
        assert_eq!(place.find(key), None);
        place.value(3, 0).store(7, Ordering::Relaxed);
        place.name(3, key);
        assert!(!place.is_free(3));
        drop(place);
        assert_eq!(other.lock(other.bucket_of(key)).find(key), Some(3));
    }
}
