//! Which of many equal places to give up next: S3-FIFO.
//!
//! What is new waits in a small queue; what was used while it waited moves on to the main one, and so
//! does what comes back soon after it was given up. In the main queue a use buys another round. A scan
//! over much that is used once passes through the small queue alone.

use std::collections::{HashMap, VecDeque};

/// Uses that count.
const USES_MAX: u8 = 3;
/// Candidates that are passed over because others depend on them, until one is taken all the same.
const PATIENCE: usize = 32;
/// Candidates that are passed over in all, until there is no place.
const ASIDE_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    Free,
    /// Somebody is using it.
    Held,
    /// Others are of no use without it.
    Needed,
}

#[derive(Default)]
pub struct S3Fifo {
    small: VecDeque<(u32, u32)>,
    main: VecDeque<(u32, u32)>,
    /// Live entries of the small queue.
    in_small: usize,
    /// By place: uses, and which entry in the queues is the place's own.
    uses: HashMap<u32, (u8, u32, bool)>,
    stamp: u32,
    ghosts: VecDeque<u64>,
    ghost_counts: HashMap<u64, u32>,
}

impl S3Fifo {
    pub fn len(&self) -> usize {
        self.uses.len()
    }

    pub fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    /// `name` stands for what lies there, and is remembered after it was given up.
    pub fn insert(&mut self, at: u32, name: u64) {
        let known = self.ghost_counts.contains_key(&name);
        self.enqueue(at, 0, !known);
    }

    pub fn hit(&mut self, at: u32) {
        if let Some((uses, ..)) = self.uses.get_mut(&at) {
            *uses = (*uses + 1).min(USES_MAX);
        }
    }

    /// The place is empty; nobody asks for it any more.
    pub fn remove(&mut self, at: u32) {
        if let Some((_, _, true)) = self.uses.remove(&at) {
            self.in_small -= 1;
        }
    }

    fn enqueue(&mut self, at: u32, uses: u8, small: bool) {
        self.remove(at);
        self.stamp = self.stamp.wrapping_add(1);
        self.uses.insert(at, (uses, self.stamp, small));
        if small {
            self.in_small += 1;
            self.small.push_back((at, self.stamp));
        } else {
            self.main.push_back((at, self.stamp));
        }
    }

    fn pop(&mut self, small: bool) -> Option<(u32, u8)> {
        let queue = if small { &mut self.small } else { &mut self.main };
        while let Some((at, stamp)) = queue.pop_front() {
            if let Some(&(uses, own, in_small)) = self.uses.get(&at) {
                if own == stamp && in_small == small {
                    return Some((at, uses));
                }
            }
        }
        None
    }

    /// Give up a place and forget it; None: all are held.
    pub fn evict(
        &mut self,
        judge: impl Fn(u32) -> Judgement,
        name: impl Fn(u32) -> u64,
    ) -> Option<u32> {
        let (mut aside, mut needed, mut found) = (Vec::new(), None, None);
        while aside.len() < ASIDE_MAX {
            let from_small = self.in_small * 10 > self.len();
            let next = self.pop(from_small).map(|(at, uses)| (at, uses, from_small));
            let other = || self.pop(!from_small).map(|(at, uses)| (at, uses, !from_small));
            let Some((at, uses, small)) = next.or_else(other) else { break };
            match judge(at) {
                Judgement::Held => aside.push((at, uses, small)),
                _ if uses > 0 => self.enqueue(at, uses - u8::from(!small), false),
                Judgement::Needed if aside.len() < PATIENCE => {
                    needed = needed.or(Some(aside.len()));
                    aside.push((at, uses, small));
                }
                _ => {
                    found = Some(at);
                    break;
                }
            }
        }
        if let (None, Some(place)) = (found, needed) {
            found = Some(aside.remove(place).0);
        }
        for (at, uses, small) in aside {
            self.enqueue(at, uses, small);
        }
        let at = found?;
        self.remove(at);
        self.remember(name(at));
        Some(at)
    }

    fn remember(&mut self, name: u64) {
        self.ghosts.push_back(name);
        *self.ghost_counts.entry(name).or_default() += 1;
        while self.ghosts.len() > self.len().max(16) {
            let Some(old) = self.ghosts.pop_front() else { return };
            if let Some(count) = self.ghost_counts.get_mut(&old) {
                *count -= 1;
                if *count == 0 {
                    self.ghost_counts.remove(&old);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;
    use std::collections::HashSet;

    /// A cache of so many places over names, as its hit rate shows what the order is worth.
    struct Cache {
        fifo: S3Fifo,
        places: HashMap<u64, u32>,
        names: Vec<u64>,
        size: usize,
    }

    impl Cache {
        fn new(size: usize) -> Self {
            Self { fifo: S3Fifo::default(), places: HashMap::new(), names: Vec::new(), size }
        }

        fn ask(&mut self, name: u64) -> bool {
            if let Some(&at) = self.places.get(&name) {
                self.fifo.hit(at);
                return true;
            }
            let at = if self.names.len() < self.size {
                self.names.push(name);
                self.names.len() as u32 - 1
            } else {
                let names = &self.names;
                let at = self.fifo.evict(|_| Judgement::Free, |at| names[at as usize]).unwrap();
                self.places.remove(&self.names[at as usize]);
                self.names[at as usize] = name;
                at
            };
            self.places.insert(name, at);
            self.fifo.insert(at, name);
            false
        }
    }

    #[test]
    fn what_is_used_survives_a_scan() {
        let mut cache = Cache::new(100);
        for round in 0..200_u64 {
            for hot in 0..50 {
                cache.ask(hot);
            }
            for cold in 0..80 {
                cache.ask(1000 + round * 80 + cold);
            }
        }
        let hits = (0..50).filter(|&hot| cache.ask(hot)).count();
        assert!(hits >= 45, "{hits} of 50");
    }

    #[test]
    fn every_place_is_given_up_once_and_no_held_one() {
        let mut random = Random(3);
        for _ in 0..200 {
            let mut fifo = S3Fifo::default();
            let mut live = HashSet::new();
            for at in 0..50 {
                fifo.insert(at, u64::from(at));
                live.insert(at);
                for _ in 0..random.below(4) {
                    fifo.hit(random.below(50) as u32);
                }
            }
            for at in 0..5 {
                fifo.remove(at * 7);
                live.remove(&(at * 7));
            }
            let held: HashSet<u32> = (0..50).filter(|_| random.below(3) == 0).collect();
            let judge = |at: u32| match at {
                _ if held.contains(&at) => Judgement::Held,
                _ if at % 2 == 0 => Judgement::Needed,
                _ => Judgement::Free,
            };
            while let Some(at) = fifo.evict(judge, u64::from) {
                assert!(live.remove(&at) && !held.contains(&at));
            }
            assert!(live.iter().all(|at| held.contains(at)));
            assert_eq!(fifo.len(), live.len());
        }
    }

    #[test]
    fn leaves_go_before_what_others_need() {
        let mut fifo = S3Fifo::default();
        (0..20).for_each(|at| fifo.insert(at, u64::from(at)));
        let judge = |at: u32| if at < 10 { Judgement::Needed } else { Judgement::Free };
        for _ in 0..10 {
            assert!(fifo.evict(judge, u64::from).unwrap() >= 10);
        }
        assert!(fifo.evict(judge, u64::from).unwrap() < 10);
    }
}
