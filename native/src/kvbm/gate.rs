//! Who may touch the slots of a job: a word in memory that client and daemon share.
//!
//! Whoever copies to or from a client's slot enters the gate first and leaves it afterwards. Either side
//! closes it; once it is closed and nobody is inside, the slots are the client's again, whatever still
//! goes on with the block elsewhere. So a client needs no answer from a daemon that hangs.
//!
//! A gate is used for one job after another; each use has its number, so that a straggler of an earlier
//! job does not get through the gate of a later one.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::Arc;

use super::memory::Memory;

const CLOSED: u64 = 1 << 31;
const INSIDE: u64 = CLOSED - 1;

/// One gate and the use of it that a job belongs to.
#[derive(Clone)]
pub struct Gate {
    memory: Arc<Memory>,
    at: usize,
    usage: u32,
}

impl Gate {
    pub fn new(memory: Arc<Memory>, at: usize, usage: u32) -> Self {
        Self { memory, at, usage }
    }

    /// Client: begin another use of a gate that is closed and empty.
    pub fn open(&self) {
        self.memory.word(self.at).store(u64::from(self.usage) << 32, Release);
    }

    /// False: it is closed, or a later use has begun.
    pub fn enter(&self) -> bool {
        let word = self.memory.word(self.at);
        let mut seen = word.load(Acquire);
        loop {
            let open = seen >> 32 == u64::from(self.usage) && seen & CLOSED == 0;
            if !open || seen & INSIDE == INSIDE {
                return false;
            }
            match word.compare_exchange_weak(seen, seen + 1, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    pub fn leave(&self) {
        self.memory.word(self.at).fetch_sub(1, Release);
    }

    /// True: nobody is inside, and nobody will be.
    pub fn close(&self) -> bool {
        let word = self.memory.word(self.at);
        let mut seen = word.load(Relaxed);
        loop {
            if seen >> 32 != u64::from(self.usage) {
                return true;
            }
            match word.compare_exchange_weak(seen, seen | CLOSED, AcqRel, Acquire) {
                Ok(_) => return seen & INSIDE == 0,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(usage: u32, memory: &Arc<Memory>) -> Gate {
        Gate::new(Arc::clone(memory), 8, usage)
    }

    #[test]
    fn a_closed_gate_lets_nobody_in_and_says_when_it_is_empty() {
        let memory = Arc::new(Memory::create(c"gate", 4096).unwrap());
        let first = gate(1, &memory);
        first.open();
        assert!(first.enter() && first.enter());
        assert!(!first.close());
        assert!(!first.enter());
        first.leave();
        assert!(!first.close());
        first.leave();
        assert!(first.close());
    }

    #[test]
    fn a_straggler_of_an_earlier_use_stays_out() {
        let memory = Arc::new(Memory::create(c"gate", 4096).unwrap());
        let (first, second) = (gate(1, &memory), gate(2, &memory));
        first.open();
        assert!(first.close());
        second.open();
        assert!(!first.enter());
        assert!(first.close() && second.enter());
    }
}
