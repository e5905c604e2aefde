//! Where blocks lie, against sets: random learning, losing, dropping, listing.

use std::collections::{BTreeMap, BTreeSet};

use crate::hash::Random;
use crate::kvbm::bundle::Head;
use crate::kvbm::places::{Place, Places};
use crate::kvbm::record::Key;

const BLOCKS: u64 = 24;
const BUNDLES: u64 = 8;

/// What is true of the store: blocks that lie alone, and which blocks each bundle offers.
#[derive(Default)]
struct Truth {
    alone: BTreeSet<Key>,
    bundles: BTreeMap<u64, BTreeSet<Key>>,
}

impl Truth {
    fn blocks(&self) -> BTreeSet<Key> {
        self.bundles.values().flatten().chain(&self.alone).copied().collect()
    }
}

fn key(n: u64) -> Key {
    *blake3::hash(&n.to_le_bytes()).as_bytes()
}

/// Every bundle has four blocks, and shares some of them with others.
fn head(n: u64) -> Head {
    let keys = (0..4).map(|at| key((n * 3 + at) % BLOCKS)).collect();
    Head { namespace: [9; 32], record_bytes: 8192, keys }
}

fn learn(places: &mut Places, truth: &mut Truth, n: u64) {
    let head = head(n);
    if let Some(found) = places.learn_bundle(1, head.name(), &head) {
        for (key, place) in head.keys.iter().zip(found) {
            let was = truth.blocks().contains(key);
            assert_eq!(places.learn(1, *key, place), Some(!was));
            truth.bundles.entry(n).or_default().insert(*key);
        }
    }
}

/// A listing that names some of what is there.
fn list(places: &mut Places, truth: &mut Truth, dice: &mut Random) {
    places.begin_listing(1);
    let mut dropped = || dice.below(4) == 0;
    truth.alone.retain(|_| !dropped());
    truth.bundles.retain(|_, _| !dropped());
    for key in &truth.alone {
        assert_eq!(places.learn(1, *key, Place::ALONE), Some(false));
    }
    for &n in truth.bundles.keys() {
        assert!(places.see_bundle(1, &head(n).name()));
    }
    let mut next = Some(0);
    while let Some(from) = next {
        let found = places.unlisted(1, from, 3);
        for place in found.bundles {
            places.vanish_whole(place);
        }
        for key in found.keys {
            places.lose(1, &key, Place::ALONE);
        }
        next = found.next;
    }
}

fn step(places: &mut Places, truth: &mut Truth, dice: &mut Random) {
    let (block, n) = (key(dice.below(BLOCKS)), dice.below(BUNDLES));
    match dice.below(8) {
        0 | 1 => {
            let was = truth.blocks().contains(&block);
            assert_eq!(places.learn(1, block, Place::ALONE), Some(!was));
            truth.alone.insert(block);
        }
        2 | 3 => learn(places, truth, n),
        4 => {
            truth.alone.remove(&block);
            let gone = places.lose(1, &block, Place::ALONE);
            assert!(!gone || !truth.blocks().contains(&block));
        }
        5 => {
            let there = truth.bundles.remove(&n);
            let left = truth.blocks();
            let place = places.named(1, &head(n).name());
            let gone = place.map(|place| places.vanish_whole(place)).unwrap_or_default();
            let lost = there.into_iter().flatten().filter(|key| !left.contains(key));
            assert_eq!(gone.into_iter().collect::<BTreeSet<Key>>(), lost.collect());
        }
        6 => {
            // Dropped wherever it lies; a bundle goes with its last block.
            for place in places.take(1, &block) {
                if places.drop_from(place) {
                    places.vanish(place);
                }
                places.leave(place);
            }
            truth.alone.remove(&block);
            truth.bundles.values_mut().for_each(|keys| {
                keys.remove(&block);
            });
            truth.bundles.retain(|_, keys| !keys.is_empty());
        }
        _ => list(places, truth, dice),
    }
}

#[test]
fn places_agree_with_sets() {
    for seed in 0..20 {
        let mut dice = Random(seed);
        let (mut places, mut truth) = (Places::new(1000), Truth::default());
        for at in 0..400 {
            step(&mut places, &mut truth, &mut dice);
            let mut walked = BTreeSet::new();
            let mut next = Some(0);
            while let Some(from) = next {
                next = places.walk(from, 5, |_, key| assert!(walked.insert(*key)));
            }
            assert_eq!(walked, truth.blocks(), "seed {seed}, step {at}");
            assert_eq!(places.len(), walked.len());
            assert_eq!(places.bundles(), truth.bundles.len());
            for key in &walked {
                let place = places.find(1, key).unwrap();
                assert_eq!(place == Place::ALONE, truth.alone.contains(key), "alone comes first");
            }
        }
    }
}
