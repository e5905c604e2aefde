//! Where blocks lie in the object store: alone, or at a place of a bundle. Pure.
//!
//! A block may lie in several places, since machines bundle what they have. Memory is bounded by the
//! number of places known.
//!
//! The table is cut into shards: no insertion moves more than one of them, and who walks it does so some
//! at a time.

use std::collections::HashMap;

use super::bundle::{Head, Name};
use super::le::u64_at;
use super::record::Key;
use crate::hash::mix;

pub(super) const SHARDS: usize = 4096;

/// Which bundle (0: the block is an object of its own) and which record of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    pub(super) bundle: u32,
    pub slot: u8,
}

impl Place {
    pub const ALONE: Place = Place { bundle: 0, slot: 0 };
}

/// The place of a block that is read; `seen` is of use where the block lies alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct First {
    pub place: Place,
    pub seen: u8,
}

#[derive(Debug, Clone)]
pub struct Bundle {
    pub namespace: u16,
    pub name: Name,
    pub record_bytes: u32,
    keys: Box<[Key]>,
    /// Blocks that were not dropped.
    left: u8,
    /// Blocks whose place is known.
    known: u8,
    pub(super) seen: u8,
}

pub(super) type Block = (u16, Key);

pub struct Places {
    most: usize,
    /// A block that lies alone too is read from there.
    pub(super) shards: Vec<HashMap<Block, First>>,
    blocks: usize,
    /// Of blocks with several places, the others.
    more: HashMap<Block, Vec<Place>>,
    spare: usize,
    pub(super) bundles: Vec<Option<Bundle>>,
    free: Vec<u32>,
    by_name: HashMap<(u16, Name), u32>,
    /// Numbers of the last listings, by namespace.
    pub(super) listings: HashMap<u16, u8>,
}

fn shard((namespace, key): &Block) -> usize {
    mix(u64_at(key, 0) ^ u64_at(key, 24).rotate_left(43) ^ u64::from(*namespace)) as usize % SHARDS
}

impl Places {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            shards: (0..SHARDS).map(|_| HashMap::new()).collect(),
            blocks: 0,
            more: HashMap::new(),
            spare: 0,
            bundles: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            listings: HashMap::new(),
        }
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.blocks
    }

    pub fn bundles(&self) -> usize {
        self.by_name.len()
    }

    fn first(&self, block: &Block) -> Option<First> {
        self.shards[shard(block)].get(block).copied()
    }

    fn others(&self, block: &Block) -> &[Place] {
        self.more.get(block).map_or(&[], |others| &others[..])
    }

    pub fn find(&self, namespace: u16, key: &Key) -> Option<Place> {
        self.first(&(namespace, *key)).map(|first| first.place)
    }

    /// Whether a block is known to lie there.
    pub fn holds(&self, namespace: u16, key: &Key, place: Place) -> bool {
        let block = (namespace, *key);
        self.find(namespace, key) == Some(place) || self.others(&block).contains(&place)
    }

    pub fn bundle(&self, place: Place) -> Option<&Bundle> {
        self.bundles.get((place.bundle as usize).checked_sub(1)?)?.as_ref()
    }

    /// A bundle lies there; true: that was known.
    pub fn see_bundle(&mut self, namespace: u16, name: &Name) -> bool {
        let seen = self.listing(namespace);
        let Some(&bundle) = self.by_name.get(&(namespace, *name)) else { return false };
        if let Some(bundle) = self.bundle_mut(Place { bundle, slot: 0 }) {
            bundle.seen = seen;
        }
        true
    }

    /// A block lies there. None: there is no room for that. True: it was not known at all.
    pub fn learn(&mut self, namespace: u16, key: Key, place: Place) -> Option<bool> {
        let (block, seen) = ((namespace, key), self.listing(namespace));
        let first = self.first(&block);
        if self.holds(namespace, &key, place) {
            // What lies alone comes first.
            if place == Place::ALONE {
                self.shards[shard(&block)].insert(block, First { place, seen });
            }
            return Some(false);
        }
        if self.blocks + self.spare >= self.most {
            return None;
        }
        match first {
            None => {
                self.shards[shard(&block)].insert(block, First { place, seen });
                self.blocks += 1;
            }
            Some(first) => {
                let (front, behind) =
                    if place == Place::ALONE { (place, first.place) } else { (first.place, place) };
                let seen = if place == Place::ALONE { seen } else { first.seen };
                self.shards[shard(&block)].insert(block, First { place: front, seen });
                self.more.entry(block).or_default().push(behind);
                self.spare += 1;
            }
        }
        if let Some(bundle) = self.bundle_mut(place) {
            bundle.known += 1;
        }
        Some(first.is_none())
    }

    /// A bundle lies there; where its blocks are. None: it is known, or there is no room.
    pub fn learn_bundle(&mut self, namespace: u16, name: Name, head: &Head) -> Option<Vec<Place>> {
        let is_full = self.by_name.len() >= self.most;
        if self.see_bundle(namespace, &name) || is_full {
            return None;
        }
        let (left, seen) = (head.keys.len() as u8, self.listing(namespace));
        let (record_bytes, keys) = (head.record_bytes, head.keys.clone().into_boxed_slice());
        let bundle = Bundle { namespace, name, record_bytes, keys, left, known: 0, seen };
        let at = self.free.pop().unwrap_or_else(|| {
            self.bundles.push(None);
            self.bundles.len() as u32
        });
        self.bundles[at as usize - 1] = Some(bundle);
        self.by_name.insert((namespace, name), at);
        Some((0..left).map(|slot| Place { bundle: at, slot }).collect())
    }

    /// A block lies there no more; true: nowhere else either.
    pub fn lose(&mut self, namespace: u16, key: &Key, place: Place) -> bool {
        let block = (namespace, *key);
        if !self.holds(namespace, key, place) {
            return false;
        }
        let mut others = self.more.remove(&block).unwrap_or_default();
        let was = others.len();
        if self.find(namespace, key) == Some(place) {
            let shard = &mut self.shards[shard(&block)];
            match others.pop() {
                Some(place) => shard.insert(block, First { place, seen: 0 }),
                None => shard.remove(&block),
            };
        } else {
            others.retain(|other| *other != place);
        }
        self.spare -= was - others.len();
        if !others.is_empty() {
            self.more.insert(block, others);
        }
        self.leave(place);
        let is_gone = self.first(&block).is_none();
        self.blocks -= usize::from(is_gone);
        is_gone
    }

    /// A block was dropped from its bundle: true if it was the last one of it, whose object can go.
    pub fn drop_from(&mut self, place: Place) -> bool {
        let Some(bundle) = self.bundle_mut(place) else { return false };
        bundle.left = bundle.left.saturating_sub(1);
        bundle.left == 0
    }

    /// It was not dropped after all; where it is. None: it is not known to be of that bundle.
    pub fn restore(&mut self, namespace: u16, key: &Key, name: &Name) -> Option<Place> {
        let place = self.named(namespace, name)?;
        let bundle = self.bundle_mut(place)?;
        let slot = bundle.keys.iter().position(|other| other == key)? as u8;
        bundle.left += 1;
        Some(Place { slot, ..place })
    }

    /// All places of a block, which is forgotten.
    pub fn take(&mut self, namespace: u16, key: &Key) -> Vec<Place> {
        let block = (namespace, *key);
        let first = self.shards[shard(&block)].remove(&block);
        let others = self.more.remove(&block).unwrap_or_default();
        self.blocks -= usize::from(first.is_some());
        self.spare -= others.len();
        first.map(|first| first.place).into_iter().chain(others).collect()
    }

    /// The place of a block in one bundle.
    pub fn within(&self, namespace: u16, key: &Key, name: &Name) -> Option<Place> {
        let at = *self.by_name.get(&(namespace, *name))?;
        let first = self.find(namespace, key);
        let mut all = first.iter().chain(self.others(&(namespace, *key)));
        all.find(|place| place.bundle == at).copied()
    }

    fn listing(&self, namespace: u16) -> u8 {
        self.listings.get(&namespace).copied().unwrap_or_default()
    }

    /// The object is gone: it would be news if it came again.
    pub fn vanish(&mut self, place: Place) {
        if let Some(bundle) = self.bundle(place) {
            let name = (bundle.namespace, bundle.name);
            self.by_name.remove(&name);
            self.tidy(place);
        }
    }

    /// The same, and none of its blocks is read from there any more; those that lie nowhere else.
    pub fn vanish_whole(&mut self, place: Place) -> Vec<Key> {
        let Some(bundle) = self.bundle(place) else { return Vec::new() };
        let (namespace, keys) = (bundle.namespace, bundle.keys.clone());
        self.vanish(place);
        let each = keys.iter().zip(0..).map(|(key, slot)| (key, Place { slot, ..place }));
        each.filter(|&(key, place)| self.lose(namespace, key, place)).map(|(key, _)| *key).collect()
    }

    /// Of a bundle's name, one of its places.
    pub fn named(&self, namespace: u16, name: &Name) -> Option<Place> {
        let &bundle = self.by_name.get(&(namespace, *name))?;
        Some(Place { bundle, slot: 0 })
    }

    /// Nobody reads from a place any more: after `take`, for each place.
    pub fn leave(&mut self, place: Place) {
        if let Some(bundle) = self.bundle_mut(place) {
            bundle.known = bundle.known.saturating_sub(1);
            self.tidy(place);
        }
    }

    /// A bundle without blocks that is not in the store either is forgotten.
    fn tidy(&mut self, place: Place) {
        let Some(bundle) = self.bundle(place) else { return };
        let listed = self.by_name.get(&(bundle.namespace, bundle.name));
        if bundle.known == 0 && listed != Some(&place.bundle) {
            self.bundles[place.bundle as usize - 1] = None;
            self.free.push(place.bundle);
        }
    }

    fn bundle_mut(&mut self, place: Place) -> Option<&mut Bundle> {
        self.bundles.get_mut((place.bundle as usize).checked_sub(1)?)?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(keys: &[u8]) -> Head {
        let keys = keys.iter().map(|n| [*n; 32]).collect();
        Head { namespace: [9; 32], record_bytes: 8192, keys }
    }

    fn bundled(places: &mut Places, name: u8, keys: &[u8]) -> Vec<Place> {
        let found = places.learn_bundle(1, [name; 32], &head(keys)).unwrap();
        for (key, place) in keys.iter().zip(&found) {
            places.learn(1, [*key; 32], *place);
        }
        found
    }

    #[test]
    fn a_block_in_two_places_survives_the_loss_of_one() {
        let mut places = Places::new(10);
        let one = bundled(&mut places, 100, &[1, 2]);
        let two = bundled(&mut places, 101, &[2, 3]);
        assert_eq!(places.learn(1, [2; 32], Place::ALONE), Some(false));
        assert_eq!((places.len(), places.bundles()), (3, 2));
        assert!(!places.lose(1, &[2; 32], one[1]) && !places.lose(1, &[2; 32], one[1]));
        assert!(!places.lose(1, &[2; 32], Place::ALONE));
        assert_eq!(places.find(1, &[2; 32]), Some(two[0]));
        assert!(places.lose(1, &[2; 32], two[0]));
        assert_eq!(places.find(1, &[2; 32]), None);
        assert_eq!(places.spare, 0);
    }

    #[test]
    fn the_last_block_dropped_frees_the_object_and_only_that() {
        let mut places = Places::new(10);
        let found = bundled(&mut places, 100, &[1, 2]);
        assert_eq!(places.take(1, &[1; 32]), [found[0]]);
        assert!(!places.drop_from(found[0]));
        places.leave(found[0]);
        assert_eq!(places.take(1, &[2; 32]), [found[1]]);
        assert!(places.drop_from(found[1]));
        places.leave(found[1]);
        assert!(places.named(1, &[100; 32]).is_some());
        places.vanish(found[1]);
        assert_eq!((places.bundles(), places.free.len()), (0, 1));
        assert_eq!(bundled(&mut places, 101, &[7])[0].bundle, found[0].bundle, "used again");
    }

    #[test]
    fn what_is_known_is_bounded_and_bundles_are_not_learnt_twice() {
        let mut places = Places::new(2);
        let found = bundled(&mut places, 100, &[1, 2, 3]);
        assert_eq!((places.len(), places.find(1, &[3; 32])), (2, None));
        assert!(places.learn_bundle(1, [100; 32], &head(&[1])).is_none());
        assert_eq!(places.learn(1, [1; 32], Place::ALONE), None);
        assert_eq!(places.within(1, &[2; 32], &[100; 32]), Some(found[1]));
        assert_eq!(places.within(1, &[2; 32], &[9; 32]), None);
        assert_eq!(places.within(2, &[2; 32], &[100; 32]), None);
    }
}
