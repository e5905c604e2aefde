//! Random operations against a map; a crash is a copy of the directory, opened.

use std::collections::{HashMap, HashSet};

use super::harness::{options, payload, Dir, Rig};
use crate::hash::Random;
use crate::kvbm::mover::Failure;
use crate::kvbm::options::DiskOptions;

/// What the store must and may hold.
#[derive(Default, Clone)]
struct Model {
    /// Blocks that were ever offered, with their lengths.
    offered: HashMap<u64, usize>,
    /// Blocks whose drop was acknowledged and that were not offered again.
    dropped: HashSet<u64>,
    /// Blocks that were acknowledged: they are there, or were evicted.
    acked: HashSet<u64>,
}

impl Model {
    /// What is there is right; what must not be there is not.
    fn check(&self, rig: &mut Rig, evicted: bool) {
        for (&n, &len) in &self.offered {
            if self.dropped.contains(&n) {
                assert!(!rig.has(n), "block {n} came back");
            } else if rig.has(n) {
                rig.expect(n, len);
            } else if self.acked.contains(&n) {
                assert!(evicted, "block {n} was acknowledged and is gone");
            }
        }
        assert!(rig.disk.catalog().len() <= self.offered.len());
        assert!(rig.disk.space().used() <= rig.disk.space().capacity);
        assert_eq!(rig.disk.stats.corrupt, 0);
    }
}

fn lengths(n: u64) -> usize {
    [1, 100, 4096, 5000, 20_000][(n % 5) as usize]
}

/// Stores and loads of many blocks under way at once, drops, crashes, restarts.
fn play(seed: u64, capacity: u64, keys: u64, steps: u64) {
    let mut random = Random(seed);
    let mut dir = Dir::new();
    let with = |dir: &Dir| DiskOptions { capacity, ..options(dir) };
    let mut rig = Rig::new(with(&dir));
    let (mut model, mut waiting) = (Model::default(), HashMap::new());
    let mut loading = HashMap::new();
    let evicting = capacity < 32 << 20;
    for _ in 0..steps {
        let n = random.below(keys);
        match random.below(100) {
            0..=49 => {
                model.offered.insert(n, lengths(n));
                if let Ok((token, stored)) = rig.begin_store(n, lengths(n)) {
                    model.dropped.remove(&n);
                    if stored == crate::kvbm::stores::Stored::Queued {
                        waiting.insert(token, n);
                    }
                }
            }
            50..=84 => {
                if let Ok(token) = rig.begin_load(n) {
                    loading.insert(token, n);
                }
            }
            85..=92 => {
                let pending = waiting.values().any(|&other| other == n);
                if !pending && rig.drop_block(n) {
                    model.acked.remove(&n);
                    model.dropped.insert(n);
                }
            }
            93..=97 => rig.poll(),
            98 => {
                // A crash: what was under way may or may not have made it.
                rig.poll();
                collect(&mut rig, &mut model, &mut waiting, &mut loading);
                let copy = dir.copy();
                let mut after = Rig::new(with(&copy));
                model.check(&mut after, evicting);
                if random.below(4) == 0 {
                    // Go on from there.
                    drop(std::mem::replace(&mut rig, after));
                    dir = copy;
                    waiting.clear();
                    loading.clear();
                }
            }
            _ => {
                rig.settle();
                collect(&mut rig, &mut model, &mut waiting, &mut loading);
                rig.close();
                rig = Rig::new(with(&dir));
                waiting.clear();
                loading.clear();
            }
        }
        collect(&mut rig, &mut model, &mut waiting, &mut loading);
    }
    rig.settle();
    collect(&mut rig, &mut model, &mut waiting, &mut loading);
    model.check(&mut rig, evicting);
}

fn collect(
    rig: &mut Rig,
    model: &mut Model,
    waiting: &mut HashMap<u64, u64>,
    loading: &mut HashMap<u64, u64>,
) {
    for outcome in std::mem::take(&mut rig.out) {
        if let Some(n) = waiting.remove(&outcome.token) {
            if outcome.result.is_ok() {
                model.acked.insert(n);
            }
        } else if let Some(n) = loading.remove(&outcome.token) {
            match outcome.result {
                Ok(Some(buffer)) => {
                    let bytes = &buffer[4096..4096 + lengths(n)];
                    assert!(bytes == payload(n, lengths(n)), "block {n}");
                    rig.disk.give_back(buffer);
                }
                Ok(None) => panic!("a load without bytes"),
                Err(failure) => assert_eq!(failure, Failure::Cancelled),
            }
        }
    }
}

#[test]
fn nothing_is_lost_or_invented_with_room_for_everything() {
    for seed in 0..4 {
        play(seed, 64 << 20, 300, 1500);
    }
}

#[test]
fn nothing_is_wrong_while_old_blocks_are_evicted() {
    for seed in 10..14 {
        play(seed, 2 << 20, 2000, 2500);
    }
}
