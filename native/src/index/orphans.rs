//! Blocks that an engine announced before we could know what they are: children of a block not seen
//! yet (we came late, or a message is lost), and blocks announced without tokens whose twin is not
//! known. They wait, in bounded numbers, the oldest leave first.

use std::collections::VecDeque;

use super::spread::SpreadMap;
use super::tiers::Tiers;

/// Blocks that may wait per engine.
pub const ORPHANS_MAX: usize = 16_384;
/// What a waiting block takes, with its places in the maps, about.
const BYTES: usize = 120;

/// One copy of a block in one tier of one group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Copy {
    pub key: u64,
    pub group: usize,
    pub tier: Tiers,
}

/// Consecutive blocks. The first waits for `parent`; a block without tokens waits for its own key.
struct Run {
    parent: u64,
    group: usize,
    tier: Tiers,
    /// Key, local hash (None: announced without tokens), copies left.
    blocks: Vec<(u64, Option<u64>, u32)>,
}

/// A block that is known now: its key, its sequence hash, the copies that had been waiting.
pub struct Found {
    pub copy: Copy,
    pub sequence: u64,
    pub copies: u32,
}

#[derive(Default)]
pub struct Orphans {
    runs: SpreadMap<u64, Run>,
    order: VecDeque<u64>,
    next: u64,
    /// Key of a block -> the runs that wait for it, oldest first.
    waiting: SpreadMap<u64, VecDeque<u64>>,
    /// Where the copies of a waiting block are counted: run and place in it.
    counted: SpreadMap<Copy, (u64, usize)>,
    blocks: usize,
}

impl Orphans {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Blocks that wait.
    pub fn len(&self) -> usize {
        self.blocks
    }

    pub fn bytes(&self) -> usize {
        self.blocks * BYTES
    }

    /// Lets consecutive blocks wait for their parent. `blocks` are keys and local hashes. Returns how
    /// many others had to leave for them.
    pub fn push(&mut self, parent: u64, first: Copy, blocks: &[(u64, u64)]) -> usize {
        let blocks = blocks.iter().map(|(key, local)| (*key, Some(*local))).collect();
        self.add(parent, first, blocks)
    }

    /// Lets a block announced without tokens wait until its key is known from elsewhere.
    pub fn push_untold(&mut self, copy: Copy) -> usize {
        if let Some((run, at)) = self.counted.get(&copy) {
            if let Some(run) = self.runs.get_mut(run) {
                run.blocks[*at].2 += 1;
                return 0;
            }
        }
        self.add(copy.key, copy, vec![(copy.key, None)])
    }

    fn add(&mut self, parent: u64, first: Copy, blocks: Vec<(u64, Option<u64>)>) -> usize {
        let id = self.next;
        self.next += 1;
        let mut run = Run { parent, group: first.group, tier: first.tier, blocks: Vec::new() };
        for (at, (key, local)) in blocks.into_iter().enumerate() {
            let copy = Copy { key, ..first };
            // A second copy of a block is counted where the first one is; here it only links.
            let twin =
                self.counted.get(&copy).and_then(|(run, at)| Some((self.runs.get_mut(run)?, *at)));
            let copies = match twin {
                Some((twin, place)) => {
                    twin.blocks[place].2 += 1;
                    0
                }
                None => {
                    self.counted.insert(copy, (id, at));
                    1
                }
            };
            run.blocks.push((key, local, copies));
        }
        self.blocks += run.blocks.len();
        self.waiting.entry(parent).or_default().push_back(id);
        self.runs.insert(id, run);
        self.order.push_back(id);
        self.shrink()
    }

    fn shrink(&mut self) -> usize {
        let before = self.blocks;
        while self.blocks > ORPHANS_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(run) = self.take(oldest) {
                if let Some(ids) = self.waiting.get_mut(&run.parent) {
                    // The oldest of all is the oldest of its parent's.
                    debug_assert_eq!(ids.front(), Some(&oldest));
                    ids.pop_front();
                    if ids.is_empty() {
                        self.waiting.remove(&run.parent);
                    }
                }
            }
        }
        // Runs that were found leave their ids behind.
        if self.order.len() > 2 * self.runs.len() + 16 {
            let runs = &self.runs;
            self.order.retain(|id| runs.contains_key(id));
        }
        before - self.blocks
    }

    fn take(&mut self, id: u64) -> Option<Run> {
        let run = self.runs.remove(&id)?;
        self.blocks -= run.blocks.len();
        for (at, (key, ..)) in run.blocks.iter().enumerate() {
            let copy = Copy { key: *key, group: run.group, tier: run.tier };
            if self.counted.get(&copy) == Some(&(id, at)) {
                self.counted.remove(&copy);
            }
        }
        Some(run)
    }

    /// One copy of a waiting block is gone; false if none waits.
    pub fn remove(&mut self, copy: Copy) -> bool {
        let Some((run, at)) = self.counted.get(&copy) else { return false };
        let Some(run) = self.runs.get_mut(run) else { return false };
        let copies = &mut run.blocks[*at].2;
        let was = *copies > 0;
        *copies = copies.saturating_sub(1);
        was
    }

    /// The blocks that become known because `key` is: each once, parents before children, found ones'
    /// children included. `extend` makes a sequence hash from the one before and a local hash.
    pub fn find(
        &mut self,
        key: u64,
        sequence: u64,
        extend: impl Fn(u64, u64) -> u64,
        found: &mut Vec<Found>,
    ) {
        let mut known = vec![(key, sequence)];
        while let Some((key, sequence)) = known.pop() {
            for id in self.waiting.remove(&key).unwrap_or_default() {
                let Some(run) = self.take(id) else { continue };
                let mut last = sequence;
                for (key, local, copies) in run.blocks {
                    if let Some(local) = local {
                        last = extend(last, local);
                        known.push((key, last));
                    }
                    let copy = Copy { key, group: run.group, tier: run.tier };
                    found.push(Found { copy, sequence: last, copies });
                }
            }
        }
    }

    pub fn clear(&mut self) {
        *self = Self { next: self.next, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(key: u64) -> Copy {
        Copy { key, group: 0, tier: Tiers::DEVICE }
    }

    fn find(orphans: &mut Orphans, key: u64) -> Vec<(u64, u64, u32)> {
        let mut found = Vec::new();
        orphans.find(key, 100, |before, local| before + local, &mut found);
        found.iter().map(|it| (it.copy.key, it.sequence, it.copies)).collect()
    }

    #[test]
    fn children_and_their_children_are_found_with_the_parent() {
        let mut orphans = Orphans::default();
        orphans.push(3, copy(0), &[(4, 1), (5, 1)]);
        orphans.push(5, copy(0), &[(6, 1)]);
        orphans.push(9, copy(0), &[(10, 1)]);
        assert_eq!(orphans.len(), 4);
        assert_eq!(find(&mut orphans, 7), []);
        assert_eq!(find(&mut orphans, 3), [(4, 101, 1), (5, 102, 1), (6, 103, 1)]);
        assert_eq!(orphans.len(), 1);
        assert_eq!(find(&mut orphans, 3), []);
    }

    #[test]
    fn copies_are_counted_and_a_removed_block_still_links() {
        let mut orphans = Orphans::default();
        orphans.push(1, copy(0), &[(2, 1), (3, 1)]);
        orphans.push(1, copy(0), &[(2, 1), (3, 1)]);
        assert!(orphans.remove(copy(2)) && orphans.remove(copy(2)) && !orphans.remove(copy(2)));
        assert!(orphans.remove(copy(3)));
        assert!(!orphans.remove(copy(4)));
        let mut found = find(&mut orphans, 1);
        found.retain(|it| it.2 > 0);
        assert_eq!(found, [(3, 102, 1)]);
        assert!(orphans.is_empty() && orphans.counted.is_empty() && orphans.waiting.is_empty());
    }

    #[test]
    fn a_block_without_tokens_is_found_by_its_own_key() {
        let mut orphans = Orphans::default();
        let host = Copy { tier: Tiers::HOST, ..copy(8) };
        orphans.push_untold(host);
        orphans.push_untold(host);
        orphans.push_untold(Copy { tier: Tiers::DISK, ..copy(8) });
        assert!(orphans.remove(host));
        assert_eq!(find(&mut orphans, 8), [(8, 100, 1), (8, 100, 1)]);
    }

    #[test]
    fn a_block_that_names_itself_as_parent_ends() {
        let mut orphans = Orphans::default();
        orphans.push(2, copy(0), &[(2, 1)]);
        assert_eq!(find(&mut orphans, 2), [(2, 101, 1)]);
        assert!(orphans.is_empty());
    }

    #[test]
    fn the_oldest_leave_when_there_are_too_many() {
        let mut orphans = Orphans::default();
        let mut lost = 0;
        let run: Vec<_> = (0..1000).map(|at| (at, 1)).collect();
        for start in 0..30u64 {
            let blocks: Vec<_> =
                run.iter().map(|(at, local)| (start * 1000 + at, *local)).collect();
            lost += orphans.push(start + 1_000_000, copy(0), &blocks);
        }
        assert_eq!((orphans.len(), lost), (16_000, 14_000));
        assert_eq!(find(&mut orphans, 1_000_013), []);
        assert_eq!(find(&mut orphans, 1_000_014).len(), 1000);
        orphans.clear();
        assert!(orphans.is_empty() && orphans.bytes() == 0);
    }
}
