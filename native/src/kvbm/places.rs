//! Where blocks lie in the object store: alone, or at a place of a bundle. Pure.
//!
//! A block may lie in several places, since machines bundle what they have. Memory is bounded by the
//! number of places known.

use std::collections::HashMap;

use super::bundle::{Head, Name};
use super::record::Key;

/// Which bundle (0: the block is an object of its own) and which record of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    bundle: u32,
    pub slot: u8,
}

impl Place {
    pub const ALONE: Place = Place { bundle: 0, slot: 0 };
}

#[derive(Debug, Clone, Copy)]
pub struct Bundle {
    pub namespace: u16,
    pub name: Name,
    pub record_bytes: u32,
    /// Blocks that were not dropped.
    left: u8,
    /// Blocks whose place is known.
    known: u8,
}

type Block = (u16, Key);

pub struct Places {
    most: usize,
    first: HashMap<Block, Place>,
    /// Of blocks with several places, the others.
    more: HashMap<Block, Vec<Place>>,
    spare: usize,
    bundles: Vec<Option<Bundle>>,
    free: Vec<u32>,
    by_name: HashMap<(u16, Name), u32>,
}

impl Places {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            first: HashMap::new(),
            more: HashMap::new(),
            spare: 0,
            bundles: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
        }
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    pub fn bundles(&self) -> usize {
        self.by_name.len()
    }

    pub fn find(&self, namespace: u16, key: &Key) -> Option<Place> {
        self.first.get(&(namespace, *key)).copied()
    }

    /// Whether a block is known to lie there.
    pub fn holds(&self, namespace: u16, key: &Key, place: Place) -> bool {
        let block = (namespace, *key);
        let others = self.more.get(&block).map_or(&[][..], |others| &others[..]);
        self.first.get(&block) == Some(&place) || others.contains(&place)
    }

    pub fn bundle(&self, place: Place) -> Option<&Bundle> {
        self.bundles.get((place.bundle as usize).checked_sub(1)?)?.as_ref()
    }

    pub fn has_bundle(&self, namespace: u16, name: &Name) -> bool {
        self.by_name.contains_key(&(namespace, *name))
    }

    /// A block lies there. None: there is no room for that. True: it was not known at all.
    pub fn learn(&mut self, namespace: u16, key: Key, place: Place) -> Option<bool> {
        let block = (namespace, key);
        if self.holds(namespace, &key, place) {
            return Some(false);
        }
        let is_news = !self.first.contains_key(&block);
        if self.first.len() + self.spare >= self.most {
            return None;
        }
        if is_news {
            self.first.insert(block, place);
        } else {
            self.more.entry(block).or_default().push(place);
            self.spare += 1;
        }
        if let Some(bundle) = self.bundle_mut(place) {
            bundle.known += 1;
        }
        Some(is_news)
    }

    /// A bundle lies there; where its blocks are. None: it is known, or there is no room.
    pub fn learn_bundle(&mut self, namespace: u16, name: Name, head: &Head) -> Option<Vec<Place>> {
        let is_full = self.by_name.len() >= self.most;
        if is_full || self.has_bundle(namespace, &name) {
            return None;
        }
        let left = head.keys.len() as u8;
        let bundle = Bundle { namespace, name, record_bytes: head.record_bytes, left, known: 0 };
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
        let mut others = self.more.remove(&block).unwrap_or_default();
        let was = others.len();
        let is_first = self.first.get(&block) == Some(&place);
        if !is_first && !others.contains(&place) {
            self.put_back(block, others, was);
            return false;
        }
        if is_first {
            match others.pop() {
                Some(next) => self.first.insert(block, next),
                None => self.first.remove(&block),
            };
        } else {
            others.retain(|other| *other != place);
        }
        self.put_back(block, others, was);
        self.leave(place);
        !self.first.contains_key(&block)
    }

    fn put_back(&mut self, block: Block, others: Vec<Place>, was: usize) {
        self.spare -= was - others.len();
        if !others.is_empty() {
            self.more.insert(block, others);
        }
    }

    /// A block was dropped from its bundle: true if it was the last one of it, whose object can go.
    pub fn drop_from(&mut self, place: Place) -> bool {
        let Some(bundle) = self.bundle_mut(place) else { return false };
        bundle.left = bundle.left.saturating_sub(1);
        bundle.left == 0
    }

    /// All places of a block, which is forgotten.
    pub fn take(&mut self, namespace: u16, key: &Key) -> Vec<Place> {
        let block = (namespace, *key);
        let mut all = self.more.remove(&block).unwrap_or_default();
        self.spare -= all.len();
        all.extend(self.first.remove(&block));
        all
    }

    /// The place of a block in one bundle.
    pub fn within(&self, namespace: u16, key: &Key, name: &Name) -> Option<Place> {
        let at = *self.by_name.get(&(namespace, *name))?;
        let others = self.more.get(&(namespace, *key)).map_or(&[][..], |others| &others[..]);
        let first = self.first.get(&(namespace, *key));
        first.into_iter().chain(others).find(|place| place.bundle == at).copied()
    }

    /// The object is gone: it would be news if it came again.
    pub fn vanish(&mut self, place: Place) {
        if let Some(Bundle { namespace, name, .. }) = self.bundle(place).copied() {
            self.by_name.remove(&(namespace, name));
            self.tidy(place);
        }
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
        assert!(places.has_bundle(1, &[100; 32]));
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
