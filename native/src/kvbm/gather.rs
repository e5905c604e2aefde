//! Small blocks that wait to be sent until a bundle is full, or has waited long enough. Pure.

use std::collections::HashMap;

use super::bundle::{BLOCKS_MAX, BUNDLE_MAX};
use super::record::{self, Key, PAGE};

/// When blocks are sent together. `bytes` 0: never.
#[derive(Debug, Clone, Copy)]
pub struct Bundling {
    /// Of a bundle.
    pub bytes: u64,
    /// Of the largest block that goes into one.
    pub below: u32,
    /// The longest that a block waits for others.
    pub wait_us: u64,
}

impl Bundling {
    pub const OFF: Bundling = Bundling { bytes: 0, below: 0, wait_us: 0 };

    /// Blocks of so many bytes that make a bundle; 1: they go alone.
    pub fn count(&self, len: u32) -> usize {
        if len > self.below {
            return 1;
        }
        let room = self.bytes.min(BUNDLE_MAX).saturating_sub(PAGE as u64);
        let fit = room / record::bytes(len as usize) as u64;
        (fit as usize).clamp(1, BLOCKS_MAX)
    }
}

struct Waiting {
    keys: Vec<Key>,
    since_us: u64,
}

/// By namespace: all blocks of one have one size.
#[derive(Default)]
pub struct Gather {
    waiting: HashMap<u16, Waiting>,
}

impl Gather {
    /// One block more, of which `count` make a bundle; all of them when they are enough.
    pub fn add(&mut self, namespace: u16, key: Key, count: usize, now_us: u64) -> Option<Vec<Key>> {
        let fresh = || Waiting { keys: Vec::new(), since_us: now_us };
        let waiting = self.waiting.entry(namespace).or_insert_with(fresh);
        if !waiting.keys.contains(&key) {
            waiting.keys.push(key);
        }
        if waiting.keys.len() < count {
            return None;
        }
        self.waiting.remove(&namespace).map(|waiting| waiting.keys)
    }

    /// What has waited long enough.
    pub fn due(&mut self, wait_us: u64, now_us: u64) -> Vec<(u16, Vec<Key>)> {
        let is_due = |waiting: &Waiting| now_us >= waiting.since_us + wait_us;
        let due = self.waiting.iter().filter(|(_, waiting)| is_due(waiting));
        let due: Vec<u16> = due.map(|(&namespace, _)| namespace).collect();
        let taken = due.into_iter();
        taken.filter_map(|n| self.waiting.remove(&n).map(|waiting| (n, waiting.keys))).collect()
    }

    pub fn len(&self) -> usize {
        self.waiting.values().map(|waiting| waiting.keys.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_holds_what_its_bytes_allow() {
        let rule = Bundling { bytes: 4 << 20, below: 256 << 10, wait_us: 1 };
        assert_eq!([1, 64 << 10, 256 << 10].map(|len| rule.count(len)), [124, 60, 15]);
        assert_eq!(rule.count((256 << 10) + 1), 1, "too large to be bundled");
        assert_eq!(Bundling { bytes: 1, ..rule }.count(9), 1);
        assert_eq!(Bundling::OFF.count(9), 1);
    }

    #[test]
    fn full_and_old_ones_go() {
        let mut gather = Gather::default();
        assert_eq!(gather.add(1, [1; 32], 2, 100), None);
        assert_eq!(gather.add(1, [1; 32], 2, 105), None, "it waits already");
        assert_eq!(gather.add(2, [3; 32], 2, 110), None);
        assert_eq!(gather.add(1, [2; 32], 2, 120), Some(vec![[1; 32], [2; 32]]));
        assert!(gather.due(50, 159).is_empty());
        assert_eq!(gather.due(50, 160), [(2, vec![[3; 32]])]);
        assert_eq!(gather.len(), 0);
    }
}
