//! Segments of text and their ids, kept for the next prompt that holds them.
//!
//! Bounded by bytes. A shard keeps two generations: what is found or put goes into the young one; when
//! that is full it becomes the old one, and the old one is dropped. A hit is confirmed by comparing the
//! text, so a collision of hashes is a miss, never another text's ids.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

const SHARDS: usize = 8;
/// What an entry costs besides its text and ids: the map's slot, the counts, the allocator.
const ENTRY_OVERHEAD: usize = 112;

/// Keys are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

struct Segment {
    /// Does the text start the prompt? It may then have other ids than elsewhere.
    first: bool,
    text: Box<str>,
    ids: Box<[u32]>,
}

impl Segment {
    fn bytes(&self) -> usize {
        cost(self.text.len(), self.ids.len())
    }
}

fn cost(text: usize, ids: usize) -> usize {
    text + ids * size_of::<u32>() + ENTRY_OVERHEAD
}

type Generation = HashMap<u64, Arc<Segment>, BuildHasherDefault<AsIs>>;

#[derive(Default)]
struct Shard {
    young: Generation,
    old: Generation,
    young_bytes: usize,
    old_bytes: usize,
}

impl Shard {
    /// Puts a segment into the young generation; returns the generation this pushed out, to be freed
    /// outside the lock.
    fn put(&mut self, key: u64, segment: Arc<Segment>, budget: usize) -> Option<Generation> {
        let bytes = segment.bytes();
        let mut dropped = None;
        if self.young_bytes + bytes > budget {
            dropped = Some(std::mem::replace(&mut self.old, std::mem::take(&mut self.young)));
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        if let Some(old) = self.old.remove(&key) {
            self.old_bytes -= old.bytes();
        }
        if let Some(replaced) = self.young.insert(key, segment) {
            self.young_bytes -= replaced.bytes();
        }
        self.young_bytes += bytes;
        dropped
    }
}

/// How much the cache was used, and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    pub bytes: usize,
    pub limit: usize,
    pub entries: usize,
    pub hits: u64,
    pub misses: u64,
    pub hit_bytes: u64,
    pub miss_bytes: u64,
}

/// Thread-safe; shared by all threads that tokenise.
pub struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes of one generation of one shard.
    budget: usize,
    limit: usize,
    seed: u64,
    hits: AtomicU64,
    misses: AtomicU64,
    hit_bytes: AtomicU64,
    miss_bytes: AtomicU64,
}

impl Cache {
    /// Holds at most `limit` bytes; 0 = nothing.
    pub fn new(limit: usize) -> Self {
        Self {
            shards: Default::default(),
            budget: limit / SHARDS / 2,
            limit,
            seed: RandomState::new().hash_one(0u64),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
            miss_bytes: AtomicU64::new(0),
        }
    }

    fn key(&self, text: &str, first: bool) -> u64 {
        xxh3_64_with_seed(text.as_bytes(), self.seed ^ u64::from(first))
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // The map uses the low bits and the topmost ones.
        let shard = &self.shards[(key >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is the segment there? Neither counted nor kept longer for it.
    pub fn holds(&self, text: &str, first: bool) -> bool {
        if self.limit == 0 {
            return false;
        }
        let key = self.key(text, first);
        let shard = self.shard(key);
        let found = shard.young.get(&key).or_else(|| shard.old.get(&key));
        found.is_some_and(|segment| segment.first == first && *segment.text == *text)
    }

    /// Appends the ids of `text` to `out`: kept ones, or those that `encode` appends, which are then kept.
    pub fn through<E>(
        &self,
        text: &str,
        first: bool,
        out: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let key = self.key(text, first);
        if let Some(segment) = self.find(key, text, first) {
            self.hits.fetch_add(1, Relaxed);
            self.hit_bytes.fetch_add(text.len() as u64, Relaxed);
            out.extend_from_slice(&segment.ids);
            return Ok(());
        }
        self.misses.fetch_add(1, Relaxed);
        self.miss_bytes.fetch_add(text.len() as u64, Relaxed);
        let from = out.len();
        encode(out)?;
        if cost(text.len(), out.len() - from) <= self.budget {
            let segment = Segment { first, text: text.into(), ids: out[from..].into() };
            let dropped = self.shard(key).put(key, Arc::new(segment), self.budget);
            drop(dropped);
        }
        Ok(())
    }

    fn find(&self, key: u64, text: &str, first: bool) -> Option<Arc<Segment>> {
        if self.limit == 0 {
            return None;
        }
        let same = |segment: &&Arc<Segment>| segment.first == first && *segment.text == *text;
        let mut shard = self.shard(key);
        if let Some(segment) = shard.young.get(&key) {
            return Some(segment).filter(same).cloned();
        }
        let segment = shard.old.get(&key).filter(same)?.clone();
        let dropped = shard.put(key, segment.clone(), self.budget);
        drop(shard);
        drop(dropped);
        Some(segment)
    }

    pub fn usage(&self) -> Use {
        let mut used = Use {
            limit: self.limit,
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            hit_bytes: self.hit_bytes.load(Relaxed),
            miss_bytes: self.miss_bytes.load(Relaxed),
            ..Use::default()
        };
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            used.entries += shard.young.len() + shard.old.len();
            used.bytes += shard.young_bytes + shard.old_bytes;
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(cache: &Cache, text: &str, first: bool, ids: &[u32]) -> (Vec<u32>, bool) {
        let mut out = vec![7];
        let mut encoded = false;
        let done: Result<(), ()> = cache.through(text, first, &mut out, |out| {
            encoded = true;
            out.extend_from_slice(ids);
            Ok(())
        });
        done.expect("encoding works");
        (out.split_off(1), encoded)
    }

    #[test]
    fn a_segment_is_encoded_once() {
        let cache = Cache::new(1 << 20);
        assert_eq!(ask(&cache, "hello", false, &[1, 2]), (vec![1, 2], true));
        assert_eq!(ask(&cache, "hello", false, &[9]), (vec![1, 2], false));
        assert!(cache.holds("hello", false) && !cache.holds("hello", true));
        // The same text at the start of a prompt is another segment.
        assert_eq!(ask(&cache, "hello", true, &[3]), (vec![3], true));
        let used = cache.usage();
        assert_eq!((used.entries, used.hits, used.misses), (2, 1, 2));
        assert_eq!((used.hit_bytes, used.miss_bytes), (5, 10));
    }

    #[test]
    fn a_failure_is_not_kept() {
        let cache = Cache::new(1 << 20);
        let mut out = vec![];
        let failed = cache.through("x", false, &mut out, |_| Err("no"));
        assert_eq!(failed, Err("no"));
        assert_eq!(ask(&cache, "x", false, &[1]), (vec![1], true));
    }

    #[test]
    fn bytes_stay_within_the_limit_and_what_is_used_stays() {
        let limit = 64 << 10;
        let cache = Cache::new(limit);
        ask(&cache, "used all the time", false, &[1]);
        for i in 0..5000u32 {
            ask(&cache, &format!("text number {i}"), false, &[i; 16]);
            assert!(!ask(&cache, "used all the time", false, &[2]).1, "dropped at {i}");
            assert!(cache.usage().bytes <= limit);
        }
        assert!(cache.usage().entries > 50);
        assert!(!cache.holds("text number 0", false));
    }

    #[test]
    fn a_segment_larger_than_a_generation_is_not_kept() {
        let cache = Cache::new(64 << 10);
        let text = "x".repeat(5000);
        ask(&cache, &text, false, &[1]);
        assert_eq!(cache.usage().entries, 0);
        assert!(ask(&cache, &text, false, &[1]).1);
    }

    #[test]
    fn without_bytes_nothing_is_kept() {
        let cache = Cache::new(0);
        ask(&cache, "", false, &[]);
        ask(&cache, "x", false, &[1]);
        assert!(ask(&cache, "x", false, &[1]).1);
        assert_eq!(cache.usage().entries, 0);
    }
}
