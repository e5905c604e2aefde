//! What an engine that announces nothing is taken to hold: the blocks of the prompts sent to it, least
//! recently used first out, up to the tokens it has room for.

use super::slot::Retired;
use super::table::Table;
use super::tiers::Tiers;
use crate::hash::mix;

/// No node.
const END: u32 = u32::MAX;

struct Node {
    sequence: u64,
    newer: u32,
    older: u32,
}

/// An LRU of sequence hashes: a list through a slab, found by a table.
pub struct Assumed {
    /// This engine's bit for assumed blocks.
    pub lane: u16,
    places: Table,
    nodes: Vec<Node>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl Assumed {
    pub fn new(lane: u16) -> Self {
        let (places, nodes, free) = (Table::default(), Vec::new(), Vec::new());
        Self { lane, places, nodes, free, newest: END, oldest: END }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub fn bytes(&self) -> usize {
        let nodes = self.nodes.capacity() * size_of::<Node>();
        self.places.bytes() + nodes + self.free.capacity() * 4
    }

    /// A prompt with this chain was sent; at most `room` blocks are kept. `change` is told of blocks
    /// that are new (true) or gone (false).
    ///
    /// An engine frees the end of a prompt first, so the start counts as used last.
    pub fn touch(&mut self, chain: &[u64], room: usize, mut change: impl FnMut(u64, bool)) {
        for sequence in chain[..chain.len().min(room)].iter().rev() {
            match self.places.get(mix(*sequence)) {
                Some(at) => self.unlink(at as u32, false),
                None => {
                    let node = Node { sequence: *sequence, newer: END, older: END };
                    let at = match self.free.pop() {
                        Some(at) => {
                            self.nodes[at as usize] = node;
                            at
                        }
                        None => {
                            self.nodes.push(node);
                            self.nodes.len() as u32 - 1
                        }
                    };
                    self.places.insert(mix(*sequence), u64::from(at));
                    change(*sequence, true);
                }
            }
            let at = self.places.get(mix(*sequence)).expect("just placed") as u32;
            self.link(at);
        }
        while self.places.len() > room {
            let at = self.oldest;
            let sequence = self.nodes[at as usize].sequence;
            self.unlink(at, true);
            self.places.remove(mix(sequence));
            change(sequence, false);
        }
    }

    fn link(&mut self, at: u32) {
        self.nodes[at as usize].older = self.newest;
        self.nodes[at as usize].newer = END;
        match self.newest {
            END => self.oldest = at,
            newest => self.nodes[newest as usize].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32, free: bool) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        match newer {
            END => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            END => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        if free {
            self.free.push(at);
        }
    }

    /// Its lane, given up with all blocks.
    pub fn retire(self) -> Retired {
        let nodes = self.nodes;
        let block = move |(_, at): (u64, u64)| (nodes[at as usize].sequence, Tiers::DEVICE);
        Retired { lane: self.lane, blocks: Box::new(self.places.into_entries().map(block)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    #[test]
    fn the_ends_of_old_prompts_go_first() {
        let mut assumed = Assumed::new(0);
        let mut gone = Vec::new();
        let chain = |of: &[u64]| of.iter().map(|id| id << 4).collect::<Vec<_>>();
        assumed.touch(&chain(&[1, 2, 3]), 5, |_, _| ());
        assumed.touch(&chain(&[1, 4]), 5, |_, _| ());
        assumed.touch(&chain(&[5, 6, 7]), 5, |sequence, new| {
            if !new {
                gone.push(sequence >> 4);
            }
        });
        assert_eq!(gone, [3, 2]);
        assumed.touch(&chain(&[8, 9, 10, 11, 12, 13, 14]), 5, |_, _| ());
        let mut left: Vec<u64> = assumed.retire().blocks.map(|block| block.0 >> 4).collect();
        left.sort();
        assert_eq!(left, [8, 9, 10, 11, 12], "a prompt larger than the room keeps its start");
    }

    #[test]
    fn it_is_an_lru_list() {
        let (mut assumed, mut list) = (Assumed::new(0), Vec::<u64>::new());
        let mut random = Random(5);
        for _ in 0..3000 {
            let chain: Vec<u64> = (0..random.below(6))
                .map(|_| random.below(40) << 4)
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect();
            let room = 10 + random.below(5) as usize;
            let mut held: Vec<u64> = list.clone();
            assumed.touch(&chain, room, |sequence, new| match new {
                true => held.push(sequence),
                false => held.retain(|it| *it != sequence),
            });
            list.retain(|it| !chain.contains(it));
            list.extend(chain.iter().rev());
            list.drain(..list.len().saturating_sub(room));
            let mut sorted = list.clone();
            sorted.sort();
            held.sort();
            assert_eq!(held, sorted);
            assert_eq!(assumed.len(), list.len());
            assert!(assumed.nodes.len() <= 20);
        }
    }
}
