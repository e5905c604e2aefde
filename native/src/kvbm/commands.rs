//! What others of the daemon's process ask the hub: figures, lists, drops, scrubs, single records.

use std::collections::HashMap;
use std::sync::mpsc::SyncSender;

use super::admission::{Admission, Policy};
use super::bundle::{Head, Name};
use super::changes::Note;
use super::disk::Outcome;
use super::drops::{Dropped, Drops};
use super::host::Seat;
use super::hub::Hub;
use super::inventory::BlockRow;
use super::loads::Load;
use super::mover::{Failure, Source, Target};
use super::record::{self, Fingerprint, Header, Key, PAGE};
use super::remote::{Errand, Fetched, Miss};
use super::scrub::ScrubReport;
use super::stores::{Store, Stored};
use super::view::View;

/// Tokens of what is asked have this bit; those of jobs never do.
pub(super) const ASKED: u64 = 1 << 63;

pub enum Command {
    Figures(SyncSender<Vec<(&'static str, Figure)>>),
    Namespaces(SyncSender<Vec<NamespaceRow>>),
    /// Blocks of all tiers, from a place of the list on.
    List {
        from: u64,
        most: usize,
        reply: SyncSender<(Vec<BlockRow>, Option<u64>)>,
    },
    /// Forget blocks; `is_local`: not those of the store.
    Drop {
        namespace: Fingerprint,
        keys: Vec<Key>,
        is_local: bool,
        reply: SyncSender<Dropped>,
    },
    /// Verify everything, at so many bytes a second (0: no limit).
    Scrub {
        rate: u64,
        reply: SyncSender<bool>,
    },
    ScrubReport(SyncSender<Option<ScrubReport>>),
    /// A whole record: header page and payload, verified.
    Read {
        namespace: Fingerprint,
        key: Key,
        reply: SyncSender<Option<Vec<u8>>>,
    },
    /// Take in a record as `Read` gives it; None: it exists now, else why not.
    Insert {
        record: Vec<u8>,
        reply: SyncSender<Option<String>>,
    },
    /// Changes from a number on: whether none is missing, the number of the first, the changes.
    Changes {
        from: u64,
        most: usize,
        reply: SyncSender<(bool, u64, Vec<Note>)>,
    },
    /// What came of one request to the remote store, by ticket; whether that is all.
    RemoteEnded(Vec<(u64, Result<Fetched, Miss>)>, bool),
    /// A bundle is in the remote store; answered with how many of its blocks were news.
    RemoteBundle {
        name: Name,
        head: Head,
        reply: SyncSender<usize>,
    },
    /// Answered with those of the bundles that were not known.
    RemoteUnknown {
        namespace: Fingerprint,
        names: Vec<Name>,
        reply: SyncSender<Vec<Name>>,
    },
    /// Blocks of a bundle were dropped.
    RemoteMarked {
        namespace: Fingerprint,
        name: Name,
        keys: Vec<Key>,
    },
    /// Blocks are in the remote store; answered with how many of them were news.
    RemoteKnown {
        namespace: Fingerprint,
        keys: Vec<Key>,
        reply: SyncSender<usize>,
    },
    /// Objects of the store are gone; answered with how many blocks lie there no more.
    RemoteGone {
        namespace: Fingerprint,
        keys: Vec<Key>,
        bundles: Vec<Name>,
        reply: SyncSender<usize>,
    },
    /// Blocks of the store, alone or of a bundle, were found damaged and are deleted.
    RemoteDamaged {
        namespace: Fingerprint,
        name: Option<Name>,
        keys: Vec<Key>,
    },
    /// What an errand should have deleted is there still.
    RemoteKept(Errand),
    /// All of a namespace in the store will be listed.
    RemoteListing(Fingerprint),
    /// It was; answered with how many blocks were not named any more, and where to go on.
    RemoteListed {
        namespace: Fingerprint,
        from: usize,
        reply: SyncSender<(usize, Option<usize>)>,
    },
    /// The remote store is left alone, or asked again.
    RemotePause(bool),
    /// A block that came from the remote tier is in its place, or not.
    Carried {
        token: u64,
        result: Result<(), Failure>,
    },
    /// A slot of the arena that was read is not needed any more.
    LetGo(Seat),
    /// Blocks that will be asked for soon; answered with how many are to be brought nearer.
    Hint {
        namespace: Fingerprint,
        len: u32,
        keys: Vec<Key>,
        reply: SyncSender<usize>,
    },
    Durations(SyncSender<Vec<(&'static str, Vec<u64>, u64)>>),
    Tune(Tuning),
    Stop,
}

/// What can change while the daemon runs.
#[derive(Debug, Clone)]
pub struct Tuning {
    pub load_us: u64,
    pub store_us: u64,
    pub allow_uids: Vec<u32>,
    pub policy: Policy,
    pub write_rate: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Figure {
    Count(u64),
    Text(String),
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Figure::Count(n) => n.fmt(f),
            Figure::Text(text) => text.fmt(f),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceRow {
    pub number: u16,
    pub fingerprint: Fingerprint,
    pub probe: [u8; 32],
    pub descriptor: Vec<u8>,
}

pub(super) enum Waiting {
    Read {
        len: u32,
        reply: SyncSender<Option<Vec<u8>>>,
    },
    Insert(SyncSender<Option<String>>),
    /// Part of a drop.
    Drop(u64),
}

/// What was asked and is not answered yet.
#[derive(Default)]
pub(super) struct Asked {
    next: u64,
    pub(super) waiting: HashMap<u64, Waiting>,
    pub(super) drops: Drops,
}

impl Asked {
    pub(super) fn draw(&mut self) -> u64 {
        self.next += 1;
        ASKED | self.next
    }
}

// Whoever asked may have stopped waiting; then the answer is dropped.
impl Hub {
    pub(super) fn take_commands(&mut self) {
        self.commands.bell.clear();
        let mut all = Vec::new();
        self.commands.drain(&mut all);
        for command in all {
            self.command(command);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Figures(reply) => {
                let _ = reply.try_send(self.figures());
            }
            Command::Namespaces(reply) => {
                let _ = reply.try_send(self.namespace_rows());
            }
            Command::List { from, most, reply } => {
                let _ = reply.try_send(self.list(from, most));
            }
            Command::Drop { namespace, keys, is_local, reply } => {
                self.drop_asked(&namespace, &keys, is_local, reply);
            }
            Command::Scrub { rate, reply } => {
                let begun = self.disk.as_mut().map(|disk| disk.scrub(rate));
                let _ = reply.try_send(begun.is_some());
            }
            Command::ScrubReport(reply) => {
                let report = self.disk.as_ref().and_then(|disk| disk.scrub_report());
                let _ = reply.try_send(report);
            }
            Command::Read { namespace, key, reply } => self.read_asked(&namespace, key, reply),
            Command::Insert { record, reply } => self.insert_asked(&record, reply),
            Command::Changes { from, most, reply } => {
                let first = from.max(self.log.oldest());
                let (complete, notes) = self.log.since(from, most);
                let _ = reply.try_send((complete, first, notes));
            }
            Command::RemoteEnded(blocks, is_all) => self.remote_ended(blocks, is_all),
            Command::RemoteBundle { name, head, reply } => {
                let _ = reply.try_send(self.remote_bundle(name, &head));
            }
            Command::RemoteUnknown { namespace, names, reply } => {
                let _ = reply.try_send(self.remote_unknown(&namespace, names));
            }
            Command::RemoteMarked { namespace, name, keys } => {
                self.remote_marked(&namespace, &name, &keys);
            }
            Command::RemoteKnown { namespace, keys, reply } => {
                let _ = reply.try_send(self.remote_known(&namespace, &keys));
            }
            Command::RemoteGone { namespace, keys, bundles, reply } => {
                let _ = reply.try_send(self.remote_gone(&namespace, &keys, &bundles));
            }
            Command::RemoteDamaged { namespace, name, keys } => {
                self.remote_damaged(&namespace, name.as_ref(), &keys);
            }
            Command::RemoteKept(errand) => self.remote_kept(&errand),
            Command::RemoteListing(namespace) => self.begin_listing(&namespace),
            Command::RemoteListed { namespace, from, reply } => {
                let _ = reply.try_send(self.end_listing(&namespace, from));
            }
            Command::RemotePause(is_paused) => {
                if let Some(remote) = &mut self.remote {
                    remote.is_paused = is_paused;
                }
                self.sweep_remote();
            }
            Command::Carried { token, result } => {
                self.outcome(Outcome { token, result: result.map(|()| None) });
            }
            Command::LetGo(seat) => {
                if let Some(host) = &mut self.host {
                    host.release(seat);
                }
            }
            Command::Hint { namespace, len, keys, reply } => {
                let number = self.namespaces.number(&namespace);
                let _ = reply.try_send(number.map_or(0, |number| self.hint(number, len, &keys)));
            }
            Command::Durations(reply) => {
                let _ = reply.try_send(self.durations.rows());
            }
            Command::Tune(tuning) => self.tune(tuning),
            Command::Stop => self.stopping_us = self.stopping_us.or(Some(self.now_us)),
        }
    }

    fn tune(&mut self, tuning: Tuning) {
        let Tuning { load_us, store_us, allow_uids, policy, write_rate } = tuning;
        (self.options.load_us, self.options.store_us) = (load_us, store_us);
        self.options.allow_uids = allow_uids;
        for options in [self.options.disk.as_mut(), self.disk.as_mut().map(|d| &mut d.options)] {
            if let Some(options) = options {
                (options.policy, options.write_rate) = (policy, write_rate);
            }
        }
        if let Some(disk) = &mut self.disk {
            disk.admission = Admission::new(policy, write_rate);
        }
    }

    fn namespace_rows(&self) -> Vec<NamespaceRow> {
        let all = self.namespaces.iter();
        all.map(|(number, fingerprint, namespace)| NamespaceRow {
            number,
            fingerprint: *fingerprint,
            probe: namespace.probe,
            descriptor: namespace.descriptor.clone(),
        })
        .collect()
    }

    fn read_asked(&mut self, print: &Fingerprint, key: Key, reply: SyncSender<Option<Vec<u8>>>) {
        let token = self.asked.draw();
        let begun = self.disk.as_mut().and_then(|disk| {
            let namespace = disk.namespaces().number(print)?;
            let (_, len) = disk.find(namespace, &key)?;
            let load = Load { token, namespace, key, target: Target::Buffer };
            disk.load(load, None).ok().map(|()| len)
        });
        match begun {
            Some(len) => {
                self.asked.waiting.insert(token, Waiting::Read { len, reply });
            }
            None => self.read_arena(print, &key, reply),
        }
    }

    fn insert_asked(&mut self, bytes: &[u8], reply: SyncSender<Option<String>>) {
        let token = self.asked.draw();
        match self.insert(bytes, token) {
            Ok(Stored::Queued) => {
                self.asked.waiting.insert(token, Waiting::Insert(reply));
            }
            Ok(Stored::There) => {
                let _ = reply.try_send(None);
            }
            Err(why) => {
                let _ = reply.try_send(Some(why));
            }
        }
    }

    fn insert(&mut self, bytes: &[u8], token: u64) -> Result<Stored, String> {
        let header = Header::decode(bytes).map_err(|why| format!("no record: {why:?}"))?;
        record::verify_payload(bytes, &header).map_err(|why| format!("a bad record: {why:?}"))?;
        let disk = self.disk.as_mut().ok_or("there is no disk")?;
        let namespace = disk.namespaces().number(&header.namespace);
        let store = Store {
            namespace: namespace.ok_or("a record of a namespace that nobody has named")?,
            key: header.key,
            len: header.len,
            note: record::note(bytes).into(),
            source: Source::Bytes(View::of(bytes[PAGE..PAGE + header.len as usize].to_vec())),
        };
        disk.store(store, token).map_err(|why| format!("refused: {why:?}"))
    }

    pub(super) fn outcome_asked(&mut self, outcome: Outcome) {
        let Some(waiting) = self.asked.waiting.remove(&outcome.token) else {
            if let (Ok(Some(buffer)), Some(disk)) = (outcome.result, &mut self.disk) {
                disk.give_back(buffer);
            }
            return;
        };
        match waiting {
            Waiting::Read { len, reply } => {
                let buffer = outcome.result.ok().flatten();
                let bytes = buffer.as_ref().map(|b| b[..PAGE + len as usize].to_vec());
                let _ = reply.try_send(bytes);
                if let (Some(buffer), Some(disk)) = (buffer, &mut self.disk) {
                    disk.give_back(buffer);
                }
            }
            Waiting::Insert(reply) => {
                let _ = reply.try_send(outcome.result.err().map(|why| format!("failed: {why:?}")));
            }
            Waiting::Drop(group) => self.drop_ended(group, outcome.result.is_ok()),
        }
    }
}
