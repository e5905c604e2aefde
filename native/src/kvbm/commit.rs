//! What happens once a journal entry is in the file: blocks begin to exist, drops are answered.

use std::io;

use super::catalog::Place;
use super::disk::{Change, Disk, Outcome};
use super::loads::Block;
use super::log::Entry;
use super::mover::Failure;
use super::record::Key;
use super::segments::State;

pub(super) enum Commit {
    Put(Block),
    /// A block was carried over from a segment that is being emptied.
    Copy {
        from: Place,
        to: Block,
    },
    Drop {
        token: u64,
    },
}

impl Disk {
    /// Forget a block for good; the outcome says when that is written down. False: it is not there.
    pub fn drop_block(&mut self, namespace: u16, key: &Key, token: u64) -> bool {
        if !self.remove(namespace, key) {
            // It may be on its way: then it goes as soon as it has come.
            let coming = self.pending.contains_key(&(namespace, *key));
            if coming {
                self.doomed.entry((namespace, *key)).or_default().push(token);
            }
            return coming;
        }
        self.stats.dropped += 1;
        let number = self.journal.append(&Entry::Delete { namespace, key: *key });
        if self.journal.is_broken {
            self.fail(token, Failure::Io(libc::EIO));
        } else {
            self.commits.push_back((number, Commit::Drop { token }));
        }
        true
    }

    /// Forget a block that cannot be read, if the catalog still points to it.
    pub(super) fn forget(&mut self, block: &Block, is_here: bool) {
        if is_here && self.remove(block.namespace, &block.key) {
            let (namespace, key) = (block.namespace, block.key);
            self.journal.append(&Entry::Delete { namespace, key });
        }
    }

    fn remove(&mut self, namespace: u16, key: &Key) -> bool {
        let removed = self.catalog.remove(namespace, key);
        if removed {
            self.changes.push(Change::Removed { namespace, key: *key });
        }
        removed
    }

    pub(super) fn pump_journal(&mut self) {
        if let Some(pages) = self.journal.next_write() {
            if let Err(error) = self.folder.points.pass("journal.write") {
                return self.journal_written(Err(error));
            }
            let file = self.journal.file.clone();
            self.mover.journal(file, pages.offset, pages.buffer, pages.len);
        }
    }

    pub(super) fn journal_written(&mut self, result: io::Result<()>) {
        self.journal.finished(result.is_ok());
        if let Err(error) = result {
            self.trouble(&error);
            self.checkpoint.want();
            for (_, commit) in std::mem::take(&mut self.commits) {
                self.undo(commit);
            }
            return;
        }
        if self.folder.points.pass("journal.written").is_err() {
            return;
        }
        let written = self.journal.written();
        while self.commits.front().is_some_and(|(number, _)| *number <= written) {
            if let Some((_, commit)) = self.commits.pop_front() {
                self.apply(commit);
            }
        }
    }

    fn apply(&mut self, commit: Commit) {
        match commit {
            Commit::Put(block) => {
                self.release_writer(block.place.segment);
                if !self.insert(&block) {
                    let failure = Failure::Io(libc::ENOSPC);
                    return self.store_failed(block.namespace, &block.key, failure);
                }
                let Block { namespace, key, place } = block;
                self.stats.stored += 1;
                self.stats.stored_bytes += u64::from(place.len);
                self.changes.push(Change::Stored { namespace, key, len: place.len });
                for token in self.pending.remove(&(namespace, key)).unwrap_or_default() {
                    self.out.push(Outcome { token, result: Ok(None) });
                }
                for token in self.doomed.remove(&(namespace, key)).unwrap_or_default() {
                    self.drop_block(namespace, &key, token);
                }
            }
            Commit::Copy { from, to } => {
                let here = self.catalog.get(to.namespace, &to.key);
                if here.is_some_and(|at| self.catalog.known(at).place == from) && self.insert(&to) {
                    self.stats.reinserted += 1;
                    self.stats.reinserted_bytes += u64::from(to.place.len);
                }
                self.copy_ended(to.place.segment);
            }
            Commit::Drop { token } => self.out.push(Outcome { token, result: Ok(None) }),
        }
    }

    fn undo(&mut self, commit: Commit) {
        let failure = Failure::Io(libc::EIO);
        match commit {
            Commit::Put(block) => {
                self.release_writer(block.place.segment);
                self.store_failed(block.namespace, &block.key, failure);
            }
            Commit::Copy { to, .. } => self.copy_ended(to.place.segment),
            Commit::Drop { token } => self.fail(token, failure),
        }
    }

    fn insert(&mut self, block: &Block) -> bool {
        let Some(segment) = self.segments.get_mut(block.place.segment) else { return false };
        // Its file vanished while the block was on its way.
        if segment.state == State::Leaving {
            return false;
        }
        self.catalog.put(block.namespace, block.key, block.place, &mut segment.chain)
    }
}
