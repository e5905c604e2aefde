//! Reading blocks: a queue, transfers under way, what comes of them.

use super::buffer::Buffer;
use super::catalog::Place;
use super::commands::ASKED;
use super::disk::{Change, Disk, Outcome};
use super::mover::{Errand, Failure, Target};
use super::record::{self, Expected, Key, Spot};
use super::Refusal;

/// Loads that may wait.
const QUEUE_MAX: usize = 1 << 16;
/// Blocks that are read at once to learn how long that takes.
const SAMPLES: usize = 8;
/// Reads that fail one after the other until the disk counts as in trouble.
const READ_ERRORS_MAX: u32 = 8;

pub struct Load {
    pub token: u64,
    pub namespace: u16,
    pub key: Key,
    pub target: Target,
}

/// A block between a file and its place.
pub(super) enum Flight {
    Load {
        token: Option<u64>,
        block: Block,
        target: Target,
        began_us: u64,
    },
    /// Blocks one behind the other, in one transfer.
    Write {
        run: Vec<Written>,
        began_us: u64,
    },
    /// A block that is read to be carried over from a segment that is being emptied.
    Copy {
        block: Block,
    },
    Scrub {
        block: Block,
    },
    /// A block that is read to see how long that takes.
    Sample {
        block: Block,
        began_us: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub namespace: u16,
    pub key: Key,
    pub place: Place,
}

/// A block on its way down, under the number of its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub block: Block,
    pub seq: u64,
    /// Where it is carried over from.
    pub from: Option<Place>,
}

impl Flight {
    /// What is read.
    fn block(&self) -> Option<Block> {
        match self {
            Flight::Load { block, .. } | Flight::Sample { block, .. } => Some(*block),
            Flight::Copy { block } | Flight::Scrub { block } => Some(*block),
            Flight::Write { .. } => None,
        }
    }
}

impl Disk {
    /// Where a block is, if it is: its number in the catalog and the bytes of its payload.
    pub fn find(&self, namespace: u16, key: &Key) -> Option<(u32, u32)> {
        let at = self.catalog.get(namespace, key)?;
        Some((at, self.catalog.known(at).place.len))
    }

    /// Count a use of a block that was not loaded from here.
    pub fn touch(&mut self, namespace: u16, key: &Key) -> bool {
        let at = self.catalog.get(namespace, key);
        at.inspect(|&at| self.catalog.hit(at)).is_some()
    }

    /// Begin to load a block of `len` bytes; its outcome carries the token.
    pub fn load(&mut self, load: Load, len: Option<u32>) -> Result<(), Refusal> {
        let found = self.find(load.namespace, &load.key);
        let fits = found.is_some_and(|(_, there)| len.is_none_or(|len| len == there));
        if !fits {
            return Err(self.refuse(Refusal::Absent));
        }
        if self.is_closing {
            return Err(self.refuse(Refusal::Closed));
        }
        if self.loads.len() >= QUEUE_MAX {
            return Err(self.refuse(Refusal::Busy));
        }
        self.loads.push_back(load);
        Ok(())
    }

    /// Microseconds until a load of so many bytes more would be there, by how the last ones went.
    pub fn expected_load_us(&self, bytes: u64) -> u64 {
        let waiting = self.loads.len() + self.in_flight;
        let each = bytes.max(1);
        let total = each.saturating_mul(waiting as u64).saturating_add(bytes);
        (total as f64 / (1 << 20) as f64 * self.read_us_per_mib) as u64
    }

    /// Nanoseconds per MiB, and bytes that wait or are under way.
    pub fn load_cost(&self) -> (u64, u64) {
        let waiting = (self.loads.len() + self.in_flight) as u64;
        let each = self.catalog.payload_bytes() / self.catalog.len().max(1) as u64;
        ((self.read_us_per_mib * 1000.0) as u64, waiting * each)
    }

    /// Forget what waits for these tokens; no outcome of theirs will come. Transfers under way end by
    /// themselves: the gate of their job keeps them off its slots.
    pub fn abandon(&mut self, is_given_up: impl Fn(u64) -> bool) {
        self.loads.retain(|load| !is_given_up(load.token));
        for flight in self.flights.iter_mut().flatten() {
            if let (Flight::Load { token, .. }, _) = flight {
                *token = token.filter(|&token| !is_given_up(token));
            }
        }
        for tokens in self.pending.values_mut() {
            tokens.retain(|&token| !is_given_up(token));
        }
        let (pending, doomed) = (&mut self.pending, &self.doomed);
        let queued = &mut self.queued_store_bytes;
        self.stores.retain(|store| {
            let name = (store.namespace, store.key);
            let wanted = doomed.contains_key(&name)
                || pending.get(&name).is_some_and(|tokens| !tokens.is_empty());
            if !wanted {
                pending.remove(&name);
                *queued -= record::bytes(store.len as usize) as u64;
            }
            wanted
        });
        self.out.retain(|outcome| !is_given_up(outcome.token));
    }

    pub(super) fn pump_loads(&mut self) {
        while self.in_flight < self.options.depth {
            let Some(load) = self.loads.front() else { return };
            let Some(at) = self.catalog.get(load.namespace, &load.key) else {
                let token = load.token;
                self.loads.pop_front();
                self.fail(token, Failure::Cancelled);
                continue;
            };
            let place = self.catalog.known(at).place;
            let Some(buffer) = self.pool.take(record::bytes(place.len as usize)) else { return };
            let Some(Load { token, namespace, key, target }) = self.loads.pop_front() else {
                return;
            };
            let block = Block { namespace, key, place };
            let began_us = self.now_us;
            self.launch_read(Flight::Load { token: Some(token), block, target, began_us }, buffer);
        }
    }

    /// Send a block's record on its way up.
    pub(super) fn launch_read(&mut self, flight: Flight, buffer: Buffer) {
        let Some(block) = flight.block() else { return self.pool.give(buffer) };
        let target = match &flight {
            Flight::Load { target, .. } => target.clone(),
            _ => Target::Buffer,
        };
        let at = self.enter(flight);
        self.read_again(at, block, target, buffer, true);
    }

    fn read_again(&mut self, at: u32, block: Block, target: Target, buffer: Buffer, first: bool) {
        let Block { namespace, key, place } = block;
        let print = self.namespaces.fingerprint(namespace).copied().unwrap_or_default();
        let store = self.folder.store;
        let Some(segment) = self.segments.get_mut(place.segment) else {
            // Segments stay while a catalog entry points to them.
            return self.read(at, buffer, Err(Failure::Io(libc::ENOENT)));
        };
        segment.readers += u32::from(first);
        let spot = Spot { store, segment: segment.id, page: place.page };
        let expected = Expected { spot, key, namespace: print, len: place.len };
        let file = segment.file.clone();
        self.mover.read(Errand { flight: at, file, buffer }, expected, target);
    }

    /// A record was read, or not.
    pub(super) fn read(&mut self, at: u32, buffer: Buffer, result: Result<(), Failure>) {
        let Some((flight, _)) = self.flights[at as usize].as_ref() else { return };
        let Some(block) = flight.block() else { return };
        if result == Err(Failure::Io(libc::EINVAL)) {
            let target = match flight {
                Flight::Load { target, .. } => target.clone(),
                _ => Target::Buffer,
            };
            if self.gives_up_direct(at) {
                return self.read_again(at, block, target, buffer, false);
            }
        }
        let Some(flight) = self.leave(at) else { return };
        if let Some(segment) = self.segments.get_mut(block.place.segment) {
            segment.readers -= 1;
        }
        let here = self.catalog.get(block.namespace, &block.key);
        let here = here.filter(|&at| self.catalog.known(at).place == block.place);
        match result {
            Ok(()) => self.health.read_errors = 0,
            Err(Failure::Damaged(_)) => {
                self.stats.corrupt += 1;
                self.forget(&block, here.is_some());
            }
            Err(Failure::Io(errno)) => {
                self.stats.io_errors += 1;
                self.health.read_errors += 1;
                if self.health.read_errors >= READ_ERRORS_MAX {
                    self.trouble(&std::io::Error::from_raw_os_error(errno));
                }
                // Asking again for a block that cannot be read helps nobody.
                self.forget(&block, here.is_some());
            }
            Err(Failure::Cancelled | Failure::Region) => {}
        }
        match flight {
            Flight::Load { token, target, began_us, .. } => {
                // What is read to be looked at or sent is not used.
                let is_used = token.is_none_or(|token| token & ASKED == 0);
                if let (Ok(()), Some(here), true) = (result, here, is_used) {
                    self.catalog.hit(here);
                    if self.options.tells_use {
                        let Block { namespace, key, .. } = block;
                        self.changes.push(Change::Used { namespace, key });
                    }
                }
                let bytes = u64::from(block.place.len);
                self.landed(token, target, result, buffer, (began_us, bytes));
            }
            Flight::Copy { block } => self.copy_read(block, here.is_some(), buffer, result),
            Flight::Scrub { .. } => {
                self.pool.give(buffer);
                self.scrub_read(result.is_ok());
            }
            Flight::Sample { began_us, .. } => {
                self.pool.give(buffer);
                if result.is_ok() {
                    self.took(began_us, u64::from(block.place.len));
                }
            }
            Flight::Write { .. } => self.pool.give(buffer),
        }
    }

    /// Read a block for nobody, to learn how long that takes; unless more is under way, which tells it
    /// too.
    pub fn sample(&mut self, namespace: u16, key: &Key) {
        let idle = self.in_flight < SAMPLES && self.loads.is_empty() && !self.is_closing;
        let Some(at) = self.catalog.get(namespace, key).filter(|_| idle) else { return };
        let place = self.catalog.known(at).place;
        let Some(buffer) = self.pool.take(record::bytes(place.len as usize)) else { return };
        let block = Block { namespace, key: *key, place };
        self.launch_read(Flight::Sample { block, began_us: self.now_us }, buffer);
    }

    fn took(&mut self, began_us: u64, bytes: u64) {
        let spent = self.now_us - began_us.max(self.health.last_read_us).min(self.now_us);
        self.health.last_read_us = self.now_us;
        learn(&mut self.read_us_per_mib, spent, bytes);
    }

    fn landed(
        &mut self,
        token: Option<u64>,
        target: Target,
        result: Result<(), Failure>,
        buffer: Buffer,
        (began_us, bytes): (u64, u64),
    ) {
        match result {
            Ok(()) => {
                self.stats.loaded += 1;
                self.stats.loaded_bytes += bytes;
                self.took(began_us, bytes);
            }
            Err(_) => self.stats.load_failed += 1,
        }
        let keep = result.is_ok() && token.is_some() && matches!(target, Target::Buffer);
        let buffer = if keep {
            Some(buffer)
        } else {
            self.pool.give(buffer);
            None
        };
        if let Some(token) = token {
            self.out.push(Outcome { token, result: result.map(|()| buffer) });
        }
    }

    pub(super) fn fail(&mut self, token: u64, why: Failure) {
        self.out.push(Outcome { token, result: Err(why) });
    }

    pub(super) fn enter(&mut self, flight: Flight) -> u32 {
        self.in_flight += 1;
        let flight = (flight, self.folder.is_direct());
        // There are never more of them than `depth` and a few.
        match self.flights.iter().position(Option::is_none) {
            Some(at) => {
                self.flights[at] = Some(flight);
                at as u32
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() as u32 - 1
            }
        }
    }

    pub(super) fn leave(&mut self, at: u32) -> Option<Flight> {
        let (flight, _) = self.flights.get_mut(at as usize)?.take()?;
        self.in_flight -= 1;
        Some(flight)
    }

    /// Whether a transfer that was refused as invalid is to be tried again: once, without O_DIRECT.
    pub(super) fn gives_up_direct(&mut self, at: u32) -> bool {
        let Some(Some((_, direct))) = self.flights.get_mut(at as usize) else { return false };
        let again = std::mem::take(direct);
        // Others that were under way are refused too.
        if again && self.folder.is_direct() {
            self.go_buffered();
        }
        again
    }
}

/// Move an average of microseconds per MiB a tenth of the way.
pub(super) fn learn(average: &mut f64, spent_us: u64, bytes: u64) {
    let each = spent_us as f64 / (bytes.max(1) as f64 / (1 << 20) as f64);
    *average += (each - *average) * 0.1;
}
