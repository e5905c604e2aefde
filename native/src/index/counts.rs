//! What became of blocks and events: of a batch, and of all of them.

use crate::events::{Fault, Header};

/// Why blocks of an event were not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignored {
    /// A medium we have no tier for.
    Medium,
    /// A group of the engine's cache that says nothing of prefixes, or is not known.
    Group,
    /// The tail of a block, smaller than the group's blocks.
    Partial,
    /// Removed, but never seen.
    Absent,
    /// The index is at its limit.
    Full,
    /// An event whose name we do not know (one per event).
    Event,
}

impl Ignored {
    pub const COUNT: usize = 6;
    pub const NAMES: [&'static str; Self::COUNT] =
        ["medium", "group", "partial", "absent", "full", "event"];
}

/// Blocks, unless said otherwise.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Counts {
    /// Copies taken, waiting ones not included.
    pub stored: u64,
    /// Copies gone.
    pub removed: u64,
    /// `AllBlocksCleared` events.
    pub cleared: u64,
    /// Put aside until their parent is known.
    pub orphaned: u64,
    /// Announced without tokens and put aside until a twin with tokens is known.
    pub untold: u64,
    /// Put aside earlier, known now.
    pub adopted: u64,
    /// Put aside for a parent, and gone before it was known.
    pub lost: u64,
    /// Times an engine's block size changed and all its blocks were dropped.
    pub resized: u64,
    /// Taken out to keep the limit.
    pub evicted: u64,
    pub ignored: [u64; Ignored::COUNT],
    /// Events, or batches, that could not be read.
    pub malformed: [u64; Fault::COUNT],
}

impl Counts {
    pub fn ignore(&mut self, why: Ignored, blocks: usize) {
        self.ignored[why as usize] += blocks as u64;
    }

    pub fn add(&mut self, other: &Counts) {
        self.stored += other.stored;
        self.removed += other.removed;
        self.cleared += other.cleared;
        self.orphaned += other.orphaned;
        self.untold += other.untold;
        self.adopted += other.adopted;
        self.lost += other.lost;
        self.resized += other.resized;
        self.evicted += other.evicted;
        for (sum, more) in self.ignored.iter_mut().zip(other.ignored) {
            *sum += more;
        }
        for (sum, more) in self.malformed.iter_mut().zip(other.malformed) {
            *sum += more;
        }
    }
}

/// What a batch came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    pub header: Header,
    pub counts: Counts,
    /// `session_id` of the last event that had one.
    pub session: Option<String>,
}

/// Sizes now, counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexStats {
    /// (block, engine) pairs.
    pub pairs: usize,
    /// Distinct blocks.
    pub blocks: usize,
    pub bytes: usize,
    pub orphans: usize,
    pub predicted: usize,
    pub engines: usize,
    pub counts: Counts,
}
