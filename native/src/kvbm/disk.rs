//! The disk tier: one directory, one owner.
//!
//! The owner calls `store`, `load`, `drop_block`, and `poll` whenever the bell of the inbox rang or time
//! has passed; none of them waits for a disk. Whatever takes time is done by the mover (blocks) and the
//! keeper (files) and comes back through the inbox.
//!
//! A block exists once its journal entry is written; the entry is written once its bytes are.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::admission::Admission;
use super::buffer::{Buffer, Pool};
use super::catalog::Catalog;
use super::checkpoint::Checkpoint;
use super::commit::Commit;
use super::crew::Crew;
use super::evict::Eviction;
use super::folder::Folder;
use super::health::Health;
use super::inbox::Inbox;
use super::io::IoBackend;
use super::journal::Journal;
use super::keeper::{Answer, Keeper, Order};
use super::loads::{Flight, Load};
use super::log::Entry;
use super::mover::{Failure, Moved, Mover};
use super::namespace::{Namespace, Namespaces};
use super::options::DiskOptions;
use super::pins::Pins;
use super::record::Key;
use super::scrub::Scrub;
use super::segments::{Segments, State};
use super::space::Space;
use super::stores::Store;
use super::{recovery, Refusal};

/// What comes back through the inbox.
pub enum Event {
    Moved(Moved),
    Kept(Answer),
}

impl From<Moved> for Event {
    fn from(moved: Moved) -> Self {
        Event::Moved(moved)
    }
}

/// How a store, a load or a drop ended. A load into the store's own memory brings its buffer: the
/// payload lies behind the first page, and the buffer goes back by `give_back`.
pub struct Outcome {
    pub token: u64,
    pub result: Result<Option<Buffer>, Failure>,
}

/// What others may find or not find any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Stored {
        namespace: u16,
        key: Key,
        len: u32,
    },
    Removed {
        namespace: u16,
        key: Key,
    },
    /// It was loaded; told only where the options say so.
    Used {
        namespace: u16,
        key: Key,
    },
    Cleared,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub stored: u64,
    pub stored_bytes: u64,
    pub loaded: u64,
    pub loaded_bytes: u64,
    pub deduped: u64,
    pub refused: [u64; 8],
    pub store_failed: u64,
    pub load_failed: u64,
    pub corrupt: u64,
    pub evicted: u64,
    pub dropped: u64,
    pub reinserted: u64,
    pub reinserted_bytes: u64,
    pub segments_freed: u64,
    pub synced: u64,
    pub sync_failed: u64,
    pub checkpoints: u64,
    pub io_errors: u64,
    pub scrubbed: u64,
    pub recovered: u64,
    pub recovery_us: u64,
}

pub struct Disk {
    pub(super) options: DiskOptions,
    pub(super) folder: Arc<Folder>,
    pub(super) catalog: Catalog,
    pub(super) segments: Segments,
    pub(super) journal: Journal,
    pub(super) space: Space,
    pub(super) admission: Admission,
    pub(super) health: Health,
    pub(super) namespaces: Namespaces,
    pub(super) pool: Pool,
    pub(super) loads: VecDeque<Load>,
    pub(super) stores: VecDeque<Store>,
    pub(super) queued_store_bytes: u64,
    /// Drops of blocks that are on their way.
    pub(super) doomed: HashMap<(u16, Key), Vec<u64>>,
    /// Blocks between `store` and their journal entry, and who waits for them.
    pub(super) pending: HashMap<(u16, Key), Vec<u64>>,
    /// Each with whether it may be for O_DIRECT that it is refused.
    pub(super) flights: Vec<Option<(Flight, bool)>>,
    pub(super) in_flight: usize,
    /// Blocks that are being carried over from the segment that is emptied.
    pub(super) copies: u32,
    pub(super) commits: VecDeque<(u64, Commit)>,
    pub(super) eviction: Option<Eviction>,
    pub(super) checkpoint: Checkpoint,
    pub(super) scrub: Option<Scrub>,
    pub(super) pins: Pins,
    pub(super) segments_asked: u32,
    pub(super) unsynced_bytes: u64,
    pub(super) synced_at_us: u64,
    /// Segments of smaller ids are flushed.
    pub(super) synced_from: u64,
    pub(super) is_syncing: bool,
    pub(super) looked_at_us: u64,
    pub(super) is_looking: bool,
    pub(super) seq: u64,
    pub(super) is_closing: bool,
    pub(super) read_us_per_mib: f64,
    pub(super) write_us_per_mib: f64,
    pub(super) now_us: u64,
    pub(super) out: Vec<Outcome>,
    pub(super) changes: Vec<Change>,
    pub stats: DiskStats,
    events: Vec<Event>,
    pub(super) inbox: Arc<Inbox<Event>>,
    // Dropped in this order: whoever may still report comes first.
    pub(super) mover: Mover<Event>,
    pub(super) keeper: Keeper,
}

impl Disk {
    /// Open or make the store in `options.dir` and find what is in it; errors are for people.
    pub fn open(options: DiskOptions) -> io::Result<Self> {
        let backend = options.backend()?;
        Self::open_with(options, backend)
    }

    /// The same over a backend of the caller's.
    pub fn open_with(options: DiskOptions, backend: Arc<dyn IoBackend>) -> io::Result<Self> {
        options.check()?;
        let (dir, direct) = (options.dir.clone(), options.direct);
        let folder = Folder::open(&dir, direct, options.reset, options.points.clone())?;
        let folder = Arc::new(folder);
        let found = recovery::recover(&folder, &options)?;
        let inbox = Arc::new(Inbox::new()?);
        let crew = Arc::new(Crew::new("kvbm-copy", options.copy_threads)?);
        let answers = Arc::clone(&inbox);
        let keeper = Keeper::new(Arc::clone(&folder), move |a| answers.push(Event::Kept(a)))?;
        let mover = Mover::new(backend, crew, Arc::clone(&inbox), options.points.clone());
        let mut disk = Self {
            folder,
            catalog: found.catalog,
            segments: found.segments,
            journal: found.journal,
            space: found.space,
            admission: Admission::new(options.policy, options.write_rate),
            health: Health::default(),
            namespaces: found.namespaces,
            pool: Pool::new(options.buffer_bytes),
            loads: VecDeque::new(),
            stores: VecDeque::new(),
            queued_store_bytes: 0,
            doomed: HashMap::new(),
            pending: HashMap::new(),
            flights: Vec::new(),
            in_flight: 0,
            copies: 0,
            commits: VecDeque::new(),
            eviction: None,
            checkpoint: Checkpoint::default(),
            scrub: None,
            pins: Pins::default(),
            segments_asked: 0,
            unsynced_bytes: 0,
            synced_at_us: 0,
            synced_from: 0,
            is_syncing: false,
            looked_at_us: 0,
            is_looking: false,
            seq: found.next_seq,
            is_closing: false,
            read_us_per_mib: 1000.0,
            write_us_per_mib: 1000.0,
            now_us: 0,
            out: Vec::new(),
            changes: Vec::new(),
            stats: DiskStats {
                recovered: found.recovered,
                recovery_us: found.took_us,
                ..DiskStats::default()
            },
            events: Vec::new(),
            inbox,
            mover,
            keeper,
            options,
        };
        if found.needs_checkpoint {
            disk.checkpoint.want();
        }
        found.found.iter().for_each(|entry| {
            disk.journal.append(entry);
        });
        Ok(disk)
    }

    /// Take what has come back, begin what can be begun. `out` gets the outcomes.
    pub fn poll(&mut self, now_us: u64, out: &mut Vec<Outcome>) {
        self.now_us = self.now_us.max(now_us);
        let mut events = std::mem::take(&mut self.events);
        self.inbox.drain(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Moved(Moved::Written { flight, buffer, results }) => {
                    self.written(flight, buffer, results);
                }
                Event::Moved(Moved::Read { flight, buffer, result }) => {
                    self.read(flight, buffer, result);
                }
                Event::Moved(Moved::Journal { result }) => self.journal_written(result),
                Event::Kept(answer) => self.kept(answer),
            }
        }
        self.events = events;
        self.tick();
        self.pump_loads();
        self.pump_stores();
        self.pump_eviction();
        self.pump_scrub();
        self.pump_checkpoint();
        self.pump_journal();
        out.append(&mut self.out);
    }

    /// What changed since the last call, in order.
    pub fn take_changes(&mut self, into: &mut Vec<Change>) {
        into.append(&mut self.changes);
    }

    /// Rung when `poll` has something to take.
    pub fn inbox(&self) -> &Arc<Inbox<Event>> {
        &self.inbox
    }

    /// The number of a namespace here; its descriptor is written down before any block of it.
    pub fn namespace(&mut self, namespace: &Namespace) -> Option<u16> {
        if let Some(at) = self.namespaces.number(&namespace.fingerprint()) {
            return Some(at);
        }
        let at = self.namespaces.add(namespace.clone())?;
        let (name, bytes) = namespace.file(at);
        self.keeper.order(Order::WriteWhole { name, bytes });
        Some(at)
    }

    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub fn space(&self) -> Space {
        self.space
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    pub fn is_direct(&self) -> bool {
        self.folder.is_direct()
    }

    pub fn io_name(&self) -> &'static str {
        self.mover.name()
    }

    /// Nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.loads.is_empty()
            && self.stores.is_empty()
            && self.in_flight == 0
            && self.commits.is_empty()
            && self.journal.is_quiet()
    }

    pub fn queued_loads(&self) -> usize {
        self.loads.len()
    }

    pub fn queued_store_bytes(&self) -> u64 {
        self.queued_store_bytes
    }

    pub fn give_back(&mut self, buffer: Buffer) {
        self.pool.give(buffer);
    }

    /// Refuse new work; when everything has ended, say where the open segment ends and flush. Blocks
    /// the caller, at most for `patience`; outcomes of what was under way go to `out`.
    pub fn close(&mut self, patience: Duration, out: &mut Vec<Outcome>) {
        let began = std::time::Instant::now();
        self.is_closing = true;
        let mut sealed = false;
        while began.elapsed() < patience {
            self.inbox.bell.clear();
            let spent = began.elapsed().as_micros() as u64;
            self.poll(self.now_us.max(spent), out);
            if !self.is_idle() || self.checkpoint.is_busy() {
                self.inbox.bell.wait(Duration::from_millis(20));
            } else if !sealed {
                sealed = true;
                self.seal_open();
            } else {
                break;
            }
        }
        let data = self.segments.files().map(|(_, file)| Arc::clone(file)).collect();
        let journal = Arc::clone(&self.journal.file);
        self.keeper.order(Order::Sync { data, journal });
    }

    pub(super) fn seal_open(&mut self) {
        let Some(at) = self.segments.open.take() else { return };
        if let Some(segment) = self.segments.get_mut(at) {
            segment.state = State::Sealed;
            let entry = Entry::SegmentSeal { segment: segment.id, pages: segment.end };
            self.journal.append(&entry);
        }
    }

    pub(super) fn refuse(&mut self, why: Refusal) -> Refusal {
        self.stats.refused[why as usize] += 1;
        why
    }

    fn kept(&mut self, answer: Answer) {
        match answer {
            Answer::Segment { file, id } => self.segment_made(id, file),
            Answer::Journal { epoch, file } => self.journal_made(epoch, file),
            Answer::SnapshotPart(done) => self.snapshot_part_done(done),
            Answer::SnapshotEnd(done) => self.snapshot_done(done),
            Answer::Synced(done) => self.synced(done),
            Answer::Deleted(done) | Answer::Written(done) => {
                if let Err(error) = done {
                    self.trouble(&error);
                }
            }
            Answer::Looked { other_bytes, in_place, gone } => {
                self.looked(other_bytes, in_place, &gone);
            }
            Answer::Probed(done) => self.probed(done),
        }
    }
}
