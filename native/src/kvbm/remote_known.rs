//! What is known to lie in the object store, as whoever talks to it tells: what was found, sent, deleted.

use super::bundle::{Head, Name};
use super::changes::What;
use super::hub::Hub;
use super::places::Place;
use super::record::{Fingerprint, Key};
use super::remote::Errand;

/// Blocks and bundles that are looked at in one go at the end of a listing.
const WALKED_AT_ONCE: usize = 16_384;

impl Hub {
    /// Blocks are in the store; how many of them were news.
    pub(super) fn remote_known(&mut self, print: &Fingerprint, keys: &[Key]) -> usize {
        let Some(namespace) = self.namespaces.number(print) else { return 0 };
        let mut news = 0;
        for key in keys {
            let Some(remote) = &mut self.remote else { return 0 };
            if remote.learn(namespace, *key, Place::ALONE) {
                news += 1;
                self.note_remote(What::Stored, namespace, key);
            }
        }
        news
    }

    /// A block does not lie there any more. True: nowhere else either.
    pub(super) fn lose_remote(&mut self, namespace: u16, key: &Key, place: Place) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let gone = remote.places.lose(namespace, key, place);
        if gone {
            self.note_remote(What::Removed, namespace, key);
        }
        gone
    }

    pub(super) fn note_gone(&mut self, namespace: u16, keys: &[Key]) {
        keys.iter().for_each(|key| self.note_remote(What::Removed, namespace, key));
    }

    /// Objects of blocks that lie alone, and bundles, are gone; how many blocks lie nowhere any more.
    pub(super) fn remote_gone(
        &mut self,
        print: &Fingerprint,
        keys: &[Key],
        bundles: &[Name],
    ) -> usize {
        let Some(namespace) = self.namespaces.number(print) else { return 0 };
        let mut gone = 0;
        for key in keys {
            gone += usize::from(self.lose_remote(namespace, key, Place::ALONE));
        }
        for name in bundles {
            let Some(remote) = &mut self.remote else { return 0 };
            let Some(place) = remote.places.named(namespace, name) else { continue };
            let keys = remote.places.vanish_whole(place);
            self.note_gone(namespace, &keys);
            gone += keys.len();
        }
        gone
    }

    /// Blocks were found damaged in the store, and are deleted there by whoever found it.
    pub(super) fn remote_damaged(
        &mut self,
        print: &Fingerprint,
        name: Option<&Name>,
        keys: &[Key],
    ) {
        let Some(remote) = &mut self.remote else { return };
        remote.stats.corrupt += keys.len() as u64;
        match name {
            Some(name) => self.remote_marked(print, name, keys),
            None => {
                self.remote_gone(print, keys, &[]);
            }
        }
    }

    pub(super) fn begin_listing(&mut self, print: &Fingerprint) {
        let number = self.namespaces.number(print);
        if let (Some(remote), Some(number)) = (&mut self.remote, number) {
            remote.places.begin_listing(number);
        }
    }

    /// All of a namespace was listed: some of what is known and was not named is forgotten. How many blocks,
    /// and where to go on.
    pub(super) fn end_listing(
        &mut self,
        print: &Fingerprint,
        from: usize,
    ) -> (usize, Option<usize>) {
        let number = self.namespaces.number(print);
        let (Some(remote), Some(number)) = (&mut self.remote, number) else { return (0, None) };
        let found = remote.places.unlisted(number, from, WALKED_AT_ONCE);
        let mut gone = Vec::new();
        for place in found.bundles {
            gone.extend(remote.places.vanish_whole(place));
        }
        let alone = found.keys.into_iter();
        gone.extend(alone.filter(|key| remote.places.lose(number, key, Place::ALONE)));
        remote.stats.unlisted += gone.len() as u64;
        self.note_gone(number, &gone);
        (gone.len(), found.next)
    }

    /// Forget a block and have its object deleted. True: it was there.
    pub(super) fn drop_remote(&mut self, namespace: u16, key: &Key) -> bool {
        let print = self.namespaces.fingerprint(namespace).copied();
        let (Some(remote), Some(print)) = (&mut self.remote, print) else { return false };
        let known = remote.erase((namespace, print), *key);
        if known {
            self.note_remote(What::Removed, namespace, key);
        }
        known
    }

    /// The same, for one who deletes it himself.
    pub(super) fn erase_remote(
        &mut self,
        namespace: u16,
        key: &Key,
        errands: &mut Vec<Errand>,
    ) -> bool {
        let print = self.namespaces.fingerprint(namespace).copied();
        let (Some(remote), Some(print)) = (&mut self.remote, print) else { return false };
        let known = remote.erase_for((namespace, print), *key, errands);
        if known {
            self.note_remote(What::Removed, namespace, key);
        }
        known
    }

    /// A bundle lies in the store; how many of its blocks were news.
    pub(super) fn remote_bundle(&mut self, name: Name, head: &Head) -> usize {
        let namespace = self.namespaces.number(&head.namespace);
        let (Some(remote), Some(namespace)) = (&mut self.remote, namespace) else { return 0 };
        let news = remote.learn_bundle(namespace, name, head);
        news.iter().for_each(|key| self.note_remote(What::Stored, namespace, key));
        news.len()
    }

    /// Bundles that were not known.
    pub(super) fn remote_unknown(
        &mut self,
        print: &Fingerprint,
        mut names: Vec<Name>,
    ) -> Vec<Name> {
        let number = self.namespaces.number(print);
        let (Some(remote), Some(number)) = (&mut self.remote, number) else { return Vec::new() };
        names.retain(|name| !remote.places.see_bundle(number, name));
        names
    }

    /// Blocks of a bundle were dropped, by whomever.
    pub(super) fn remote_marked(&mut self, print: &Fingerprint, name: &Name, keys: &[Key]) {
        let number = self.namespaces.number(print);
        let (Some(remote), Some(number)) = (&mut self.remote, number) else { return };
        let gone = remote.marked((number, *print), name, keys);
        gone.iter().for_each(|key| self.note_remote(What::Removed, number, key));
    }

    /// What an errand should have deleted is there still. A bundle of which nothing was left is known again
    /// once it is listed.
    pub(super) fn remote_kept(&mut self, errand: &Errand) {
        let Some(namespace) = self.namespaces.number(&errand.namespace) else { return };
        for piece in &errand.pieces {
            let Some(remote) = &mut self.remote else { return };
            let place = match &errand.bundle {
                Some(within) => remote.places.restore(namespace, &piece.key, &within.name),
                None => Some(Place::ALONE),
            };
            if place.is_some_and(|place| remote.learn(namespace, piece.key, place)) {
                self.note_remote(What::Stored, namespace, &piece.key);
            }
        }
    }
}
