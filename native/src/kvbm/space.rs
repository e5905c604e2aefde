//! How much of the disk the store may still take. Everything in its directory counts, ours or not.

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    pub capacity: u64,
    /// Blocks of the segments' files on disk, and of those being made.
    pub segments: u64,
    /// Everything else below the directory when it was last counted, and what was made since.
    pub other: u64,
    /// Kept free for the next journal and snapshot.
    pub reserve: u64,
}

impl Space {
    pub fn used(&self) -> u64 {
        self.segments + self.other
    }

    pub fn fits(&self, bytes: u64) -> bool {
        self.used() + self.reserve + bytes <= self.capacity
    }

    /// Something must go.
    pub fn is_over(&self) -> bool {
        !self.fits(0)
    }

    /// Segments of that size the capacity has room for, beside everything else.
    pub fn segments_max(&self, bytes: u64) -> u64 {
        self.capacity.saturating_sub(self.other + self.reserve) / bytes.max(1)
    }
}
