//! Holding on to blocks for a while: the segments they lie in are not emptied.

use std::collections::HashMap;

use super::disk::Disk;
use super::record::Key;

/// Segments with pins on them, by their ids, which are never used twice.
#[derive(Default)]
pub(super) struct Pins(HashMap<u64, u32>);

/// One pin; whoever holds it gives it back.
#[derive(Debug, PartialEq, Eq)]
pub struct Pin {
    segment: u64,
}

impl Disk {
    /// Hold on to a block's segment; None: the block is not there.
    pub fn pin(&mut self, namespace: u16, key: &Key) -> Option<Pin> {
        let at = self.catalog.get(namespace, key)?;
        let segment = self.segments.get(self.catalog.known(at).place.segment)?.id;
        *self.pins.0.entry(segment).or_default() += 1;
        Some(Pin { segment })
    }

    pub fn unpin(&mut self, pin: &Pin) {
        if let Some(count) = self.pins.0.get_mut(&pin.segment) {
            *count -= 1;
            if *count == 0 {
                self.pins.0.remove(&pin.segment);
            }
        }
    }

    pub fn unpin_all(&mut self) {
        self.pins.0.clear();
    }

    /// Segments with pins on them.
    pub fn pinned(&self) -> usize {
        self.pins.0.len()
    }

    pub(super) fn is_pinned(&self, segment: u64) -> bool {
        self.pins.0.contains_key(&segment)
    }
}
