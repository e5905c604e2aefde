//! What engines looked up in shared memory, told to the daemon from time to time: it sees no such lookup
//! itself, and hits by tier are what operators ask for first.

use super::board::clock_us;
use super::client::{Client, OUTBOX_MAX};
use super::hub::Hub;
use super::le::{put_u64, u64_at};
use super::message::tier;
use super::wire::{Frame, Head, Op};

const REPORT_US: u64 = 1_000_000;
const FIELDS: usize = 6;

/// Counts since the last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    pub lookups: u64,
    /// Blocks by tier: missed, in the arena, on disk, remote.
    pub blocks: [u64; 4],
    /// Found, and not offered since computing them is quicker.
    pub gated: u64,
}

impl Found {
    pub fn count(&mut self, tiers: &[u8]) {
        self.lookups += 1;
        for &at in tiers.iter().filter(|&&at| at <= tier::REMOTE) {
            self.blocks[at as usize] += 1;
        }
    }

    pub fn add(&mut self, other: &Found) {
        self.lookups = self.lookups.saturating_add(other.lookups);
        self.gated = self.gated.saturating_add(other.gated);
        for (sum, more) in self.blocks.iter_mut().zip(other.blocks) {
            *sum = sum.saturating_add(more);
        }
    }

    fn encode(&self) -> Vec<u8> {
        let [missed, host, disk, remote] = self.blocks;
        let mut out = vec![0; FIELDS * 8];
        for (at, value) in [self.lookups, missed, host, disk, remote, self.gated].iter().enumerate()
        {
            put_u64(&mut out, at * 8, *value);
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != FIELDS * 8 {
            return None;
        }
        let [lookups, missed, host, disk, remote, gated] =
            std::array::from_fn(|at| u64_at(bytes, at * 8).min(u64::from(u32::MAX)));
        Some(Self { lookups, blocks: [missed, host, disk, remote], gated })
    }
}

impl Client {
    /// Counts of this client, named.
    pub fn figures(&self) -> [(&'static str, u64); 12] {
        let stats = self.stats;
        [
            ("connects", self.link().connects),
            ("restarts", stats.restarts),
            ("lookups", stats.lookups),
            ("table_lookups", stats.table_lookups),
            ("gated", stats.gated),
            ("lookup_timeouts", stats.lookup_timeouts),
            ("late_answers", stats.late_answers),
            ("skipped", stats.skipped),
            ("jobs", stats.jobs),
            ("jobs_refused", stats.jobs_refused),
            ("jobs_lost", stats.jobs_lost),
            ("jobs_late", stats.jobs_late),
        ]
    }

    /// Send without waiting for an answer; dropped without a daemon.
    pub fn tell(&mut self, head: &Head, payload: &[u8]) {
        let now_us = clock_us();
        if self.link.is_usable(now_us) && self.link.waiting() < OUTBOX_MAX {
            self.link.push(head, payload);
            self.advance(now_us);
        }
    }

    /// Tell what was found since the last time, if that is due.
    pub(super) fn report(&mut self, now_us: u64) {
        let due = now_us >= self.reported_us + REPORT_US;
        if due && self.found != Found::default() && self.link.is_usable(now_us) {
            self.reported_us = now_us;
            let found = std::mem::take(&mut self.found);
            self.link.push(&Head::new(Op::Report), &found.encode());
        }
    }
}

impl Hub {
    pub(super) fn reported(&mut self, frame: &Frame) -> Result<(), &'static str> {
        let found = Found::decode(&frame.payload).ok_or("a report has six numbers")?;
        self.reported.add(&found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_back_and_cannot_overflow() {
        let mut found = Found { gated: 4, ..Found::default() };
        found.count(&[0, 1, 2, 2, 3, 255]);
        assert_eq!(found.blocks, [1, 1, 2, 1]);
        assert_eq!(Found::decode(&found.encode()), Some(found));
        assert_eq!(Found::decode(&[0; 47]), None);
        let huge = Found::decode(&[255; 48]).unwrap();
        assert_eq!(huge.lookups, u64::from(u32::MAX));
        let mut sum = Found { lookups: u64::MAX, ..Found::default() };
        sum.add(&huge);
        assert_eq!(sum.lookups, u64::MAX);
    }
}
