//! The prefix cache of a simulated engine: blocks in use are pinned, the rest goes least recently used
//! first, the end of a prompt before its start.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::hash::mix;

/// Block ids are hashes, or small numbers: one multiplication is enough.
#[derive(Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = mix(id);
    }
}

pub type Blocks<V> = HashMap<u64, V, BuildHasherDefault<BlockHasher>>;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    id: u64,
    tokens: u32,
    pins: u32,
    before: u32,
    after: u32,
}

/// Sizes in tokens.
pub struct Cache {
    by_id: Blocks<u32>,
    nodes: Vec<Node>,
    spare: Vec<u32>,
    /// Ends of the list of blocks that nobody uses: the first is evicted next.
    first: u32,
    last: u32,
    resident: u64,
    unpinned: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            by_id: Blocks::default(),
            nodes: Vec::new(),
            spare: Vec::new(),
            first: NONE,
            last: NONE,
            resident: 0,
            unpinned: 0,
        }
    }
}

impl Cache {
    /// Tokens of all blocks there are.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Tokens of blocks that nobody uses: what eviction can free.
    pub fn unpinned(&self) -> u64 {
        self.unpinned
    }

    pub fn holds(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// How many of the blocks are there, from the first on without a hole.
    pub fn prefix(&self, ids: &[u64]) -> usize {
        ids.iter().take_while(|&&id| self.holds(id)).count()
    }

    /// Tokens of the blocks that are there and that nobody uses.
    pub fn unpinned_of(&self, ids: &[u64]) -> u64 {
        let nodes = ids.iter().filter_map(|id| self.by_id.get(id));
        let nodes = nodes.map(|&at| &self.nodes[at as usize]);
        nodes.filter(|node| node.pins == 0).map(|node| u64::from(node.tokens)).sum()
    }

    /// Uses a block, which is there or comes now; true if it came.
    pub fn pin(&mut self, id: u64, tokens: u32) -> bool {
        if let Some(&at) = self.by_id.get(&id) {
            let node = &mut self.nodes[at as usize];
            node.pins += 1;
            if node.pins == 1 {
                self.unpinned -= u64::from(node.tokens);
                self.unlink(at);
            }
            return false;
        }
        let node = Node { id, tokens, pins: 1, before: NONE, after: NONE };
        let at = match self.spare.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.by_id.insert(id, at);
        self.resident += u64::from(tokens);
        true
    }

    /// Ends one use of a block.
    pub fn unpin(&mut self, id: u64) {
        let Some(&at) = self.by_id.get(&id) else { return };
        let node = &mut self.nodes[at as usize];
        node.pins -= 1;
        if node.pins == 0 {
            self.unpinned += u64::from(node.tokens);
            self.push(at);
        }
    }

    /// Evicts the block unused for longest; `None`: all are in use.
    pub fn evict(&mut self) -> Option<u64> {
        let at = self.first;
        if at == NONE {
            return None;
        }
        self.unlink(at);
        let Node { id, tokens, .. } = self.nodes[at as usize];
        self.by_id.remove(&id);
        self.spare.push(at);
        self.resident -= u64::from(tokens);
        self.unpinned -= u64::from(tokens);
        Some(id)
    }

    fn push(&mut self, at: u32) {
        let before = self.last;
        let node = &mut self.nodes[at as usize];
        (node.before, node.after) = (before, NONE);
        match before {
            NONE => self.first = at,
            before => self.nodes[before as usize].after = at,
        }
        self.last = at;
    }

    fn unlink(&mut self, at: u32) {
        let Node { before, after, .. } = self.nodes[at as usize];
        match before {
            NONE => self.first = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.nodes[after as usize].before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_unused_for_longest_goes_first_and_a_used_one_never() {
        let mut cache = Cache::default();
        for id in 1..=4 {
            assert!(cache.pin(id, 512));
        }
        [3, 1, 2].into_iter().for_each(|id| cache.unpin(id));
        assert!(!cache.pin(1, 512));
        assert_eq!((cache.resident(), cache.unpinned()), (2048, 1024));
        assert_eq!(cache.unpinned_of(&[1, 2, 9]), 512);
        assert_eq!((cache.evict(), cache.evict(), cache.evict()), (Some(3), Some(2), None));
        assert_eq!((cache.resident(), cache.unpinned()), (1024, 0));
        assert_eq!(cache.prefix(&[1, 2, 4]), 1);
        cache.unpin(1);
        assert_eq!((cache.evict(), cache.holds(4)), (Some(1), true));
    }
}
