//! All that is known of the store, walked some at a time; and what a whole listing of it did not name, which
//! is gone. What is learnt while a listing runs, or was seen by it, carries its number. Pure.

use super::places::{Block, First, Place, Places, SHARDS};
use super::record::Key;

/// What a listing did not name: blocks that lie alone, one place in each bundle, where to go on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unlisted {
    pub keys: Vec<Key>,
    pub bundles: Vec<Place>,
    pub next: Option<usize>,
}

impl Places {
    /// From a shard on until there were `most` blocks; the next shard, None after the last. What is known
    /// all the time is walked over once.
    fn walk_shards(
        &self,
        from: usize,
        most: usize,
        mut take: impl FnMut(&Block, &First),
    ) -> Option<usize> {
        let mut left = most.max(1);
        for at in from..SHARDS {
            if left == 0 {
                return Some(at);
            }
            self.shards[at].iter().for_each(|(block, first)| take(block, first));
            left = left.saturating_sub(self.shards[at].len());
        }
        None
    }

    /// Every block: its namespace and key.
    pub fn walk(&self, from: usize, most: usize, mut take: impl FnMut(u16, &Key)) -> Option<usize> {
        self.walk_shards(from, most, |(namespace, key), _| take(*namespace, key))
    }

    /// All of a namespace will be listed.
    pub fn begin_listing(&mut self, namespace: u16) {
        let number = self.listings.entry(namespace).or_default();
        *number = number.wrapping_add(1);
    }

    /// At the end of a listing, `most` blocks or bundles at a time.
    pub fn unlisted(&self, namespace: u16, from: usize, most: usize) -> Unlisted {
        let number = self.listings.get(&namespace).copied().unwrap_or_default();
        let mut found = Unlisted::default();
        if from < SHARDS {
            let next = self.walk_shards(from, most, |(which, key), first| {
                if *which == namespace && first.place == Place::ALONE && first.seen != number {
                    found.keys.push(*key);
                }
            });
            found.next = Some(next.unwrap_or(SHARDS));
            return found;
        }
        let (begin, end) = (from - SHARDS, self.bundles.len());
        let to = begin.saturating_add(most).min(end);
        for at in begin..to {
            let bundle = self.bundles[at].as_ref();
            let stale = |b: &&super::places::Bundle| b.namespace == namespace && b.seen != number;
            if bundle.filter(stale).is_some() {
                found.bundles.push(Place { bundle: at as u32 + 1, slot: 0 });
            }
        }
        found.next = (to < end).then_some(to + SHARDS);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::bundle::Head;
    use super::*;

    fn all(places: &Places, namespace: u16) -> Unlisted {
        let (mut all, mut next) = (Unlisted::default(), Some(0));
        while let Some(from) = next {
            let some = places.unlisted(namespace, from, 1);
            all.keys.extend(some.keys);
            all.bundles.extend(some.bundles);
            next = some.next;
        }
        all.keys.sort_unstable();
        all
    }

    fn bundle(places: &mut Places, keys: &[u8]) -> [u8; 32] {
        let keys: Vec<Key> = keys.iter().map(|n| [*n; 32]).collect();
        let head = Head { namespace: [9; 32], record_bytes: 8192, keys };
        for (place, key) in
            places.learn_bundle(1, head.name(), &head).unwrap().iter().zip(&head.keys)
        {
            places.learn(1, *key, *place);
        }
        head.name()
    }

    #[test]
    fn what_a_listing_does_not_name_is_gone_and_nothing_else() {
        let mut places = Places::new(100);
        for n in 1..=3 {
            places.learn(1, [n; 32], Place::ALONE);
            places.learn(2, [n; 32], Place::ALONE);
        }
        let (one, two) = (bundle(&mut places, &[3, 4]), bundle(&mut places, &[5, 6]));
        assert_eq!(all(&places, 1), Unlisted::default(), "nothing was listed");
        places.begin_listing(1);
        assert!(places.see_bundle(1, &one) && !places.see_bundle(2, &one));
        assert_eq!(places.learn(1, [2; 32], Place::ALONE), Some(false));
        assert_eq!(places.learn(1, [7; 32], Place::ALONE), Some(true), "sent meanwhile");
        let gone = all(&places, 1);
        assert_eq!(gone.keys, [[1; 32], [3; 32]]);
        assert_eq!(gone.bundles.len(), 1);
        assert!(places.lose(1, &[1; 32], Place::ALONE) && !places.lose(1, &[3; 32], Place::ALONE));
        assert_eq!(places.vanish_whole(gone.bundles[0]), [[5; 32], [6; 32]]);
        assert!(places.named(1, &two).is_none() && places.named(1, &one).is_some());
        assert_eq!(all(&places, 1), Unlisted::default());
        assert_eq!(all(&places, 2), Unlisted::default(), "a namespace of its own");
    }

    #[test]
    fn a_walk_names_every_block_once() {
        let mut places = Places::new(10_000);
        for n in 0..5000_u32 {
            let mut key = [7; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            places.learn(1, key, Place::ALONE);
        }
        let (mut seen, mut next, mut rounds) = (Vec::new(), Some(0), 0);
        while let Some(from) = next {
            next = places.walk(from, 100, |_, key| seen.push(*key));
            rounds += 1;
        }
        assert!((40..=60).contains(&rounds), "{rounds}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 5000);
    }
}
