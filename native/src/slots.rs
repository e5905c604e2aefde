//! Tables of reusable slots in shared memory, any process taking and freeing them.
//!
//! Each tenant of a slot gets a new generation, which its handle carries: what is written or released
//! with the handle of an earlier tenant is told apart and ignored.

use std::sync::atomic::Ordering;

use crate::shared::Shared;

/// One tenancy of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    pub slot: usize,
    pub generation: u32,
}

impl Handle {
    pub fn pack(self) -> u64 {
        (u64::from(self.generation) << 32) | self.slot as u64
    }

    pub fn unpack(packed: u64, slots: usize, noun: &str) -> Result<Self, String> {
        let handle = Self { slot: packed as u32 as usize, generation: (packed >> 32) as u32 };
        match handle.slot < slots && handle.generation > 0 {
            true => Ok(handle),
            false => Err(format!("{packed} is not a handle of one of {slots} {noun}")),
        }
    }
}

/// Takes a free slot among `slots`, whose state cells (generation << 1 | taken) start at `first`: the one
/// used least, so that late writes of an earlier tenant meet a successor as rarely as can be.
pub fn take_slot(shared: &Shared, first: usize, slots: usize) -> Option<Handle> {
    loop {
        let state = |slot: usize| shared.cell(first + slot).load(Ordering::Acquire);
        let free = (0..slots).map(|slot| (state(slot), slot)).filter(|(old, _)| old & 1 == 0);
        let (old, slot) = free.min()?;
        let generation = ((old >> 1) as u32).wrapping_add(1).max(1);
        let new = (u64::from(generation) << 1) | 1;
        let cell = shared.cell(first + slot);
        // Another process was quicker: look again.
        if cell.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(Handle { slot, generation });
        }
    }
}

/// Frees a slot; false if the handle's tenant has left it already.
pub fn free_slot(shared: &Shared, first: usize, handle: Handle) -> bool {
    let taken = (u64::from(handle.generation) << 1) | 1;
    let cell = shared.cell(first + handle.slot);
    cell.compare_exchange(taken, taken - 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The handle of a slot's present tenant.
pub fn tenant(shared: &Shared, first: usize, slot: usize) -> Option<Handle> {
    let state = shared.cell(first + slot).load(Ordering::Acquire);
    (state & 1 == 1).then_some(Handle { slot, generation: (state >> 1) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_under_a_new_generation() {
        let shared = Shared::open("test", 1, &[], 2, None).unwrap();
        let a = take_slot(&shared, 0, 2).unwrap();
        let b = take_slot(&shared, 0, 2).unwrap();
        assert_eq!(take_slot(&shared, 0, 2), None);
        assert!(free_slot(&shared, 0, a) && !free_slot(&shared, 0, a));
        let c = take_slot(&shared, 0, 2).unwrap();
        assert_eq!((c.slot, c.generation), (a.slot, a.generation + 1));
        assert_eq!((tenant(&shared, 0, 0), tenant(&shared, 0, 1)), (Some(c), Some(b)));
        assert_eq!(Handle::unpack(c.pack(), 2, "things"), Ok(c));
        assert!(Handle::unpack(0, 2, "things").is_err());
        assert!(Handle::unpack(7 | (1 << 32), 2, "things").is_err());
    }
}
