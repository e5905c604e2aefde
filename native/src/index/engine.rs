//! One engine of the index: what it announced, what it is taken to hold, and how its batches are read.

use super::assumed::Assumed;
use super::group::Role;
use super::sizes::Sizes;
use super::slot::Slot;
use super::view::View;
use crate::events::Decoder;

/// Tokens per block of an engine that has not said.
pub const BLOCK_SIZE: u32 = 16;

#[derive(Default)]
pub struct Engine {
    pub slot: Slot,
    pub assumed: Option<Assumed>,
    /// Tokens per block where it has not said; 0 for the usual ones.
    otherwise: u32,
    pub decoder: Decoder,
    /// The store that it can load from: its number and its lane.
    pub store: Option<(u16, u16)>,
    /// True once it is removed: a batch that waited for its lock comes too late.
    pub gone: bool,
}

impl Engine {
    pub fn new(otherwise: u32) -> Self {
        Self { otherwise, ..Self::default() }
    }

    /// Tokens per block, said or not.
    pub fn block_size(&self) -> u32 {
        match (self.slot.block_size(), self.otherwise) {
            (0, 0) => BLOCK_SIZE,
            (0, size) | (size, _) => size,
        }
    }

    /// What a lookup must know of it.
    pub fn view(&self) -> View {
        let mut view = View::of(&self.slot, self.block_size());
        view.assumed = self.assumed.as_ref().map(|assumed| assumed.lane);
        view.sizes = self.sizes();
        view.reaching(self.store)
    }

    pub fn sizes(&self) -> Sizes {
        Sizes {
            tokens: self.tokens(),
            held: self.slot.entries(),
            bytes: self.slot.bytes() + self.assumed.as_ref().map_or(0, Assumed::bytes),
            waiting: self.slot.waiting(),
            short: self.slot.short(),
        }
    }

    /// Tokens on the device: those of one group that keeps whole prefixes, or of the first one.
    fn tokens(&self) -> u64 {
        let assumed = self.assumed.as_ref().map_or(0, Assumed::len);
        let groups = &self.slot.groups;
        let group = groups.iter().find(|group| group.role == Role::Whole).or(groups.first());
        let told = group.map_or(0, |group| group.device as u64 * u64::from(group.size));
        told.max(assumed as u64 * u64::from(self.block_size()))
    }
}
