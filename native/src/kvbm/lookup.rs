//! A client's questions, answered in time or not at all.

use std::os::fd::AsRawFd;

use super::board::clock_us;
use super::client::Client;
use super::message::{put_keys, tier, WITH_SEATS};
use super::record::Key;
use super::wire::{Frame, Head, Op, BATCH_MAX};

/// Lookups without an answer in time, one after the other, until no more are sent for a while.
const TIMEOUTS: u32 = 3;
const PAUSE_US: u64 = 500_000;
/// An answer that came late is used if it is asked for again within this.
const LATE_US: u64 = 200_000;
const LATE_MAX: usize = 16_384;

impl Client {
    /// Where each block is. Everything is a miss without a daemon; unknown when it does not answer in
    /// time. Keys behind the first 4096 are misses.
    /// The arena counts only for who asks for it.
    pub fn lookup(&mut self, keys: &[Key], with_arena: bool) -> Vec<u8> {
        let now_us = clock_us();
        let mut tiers = vec![tier::MISS; keys.len()];
        let asked = &keys[..keys.len().min(BATCH_MAX)];
        if asked.is_empty() {
            return tiers;
        }
        if let Some(known) = self.read_table(asked, with_arena, now_us) {
            tiers[..asked.len()].copy_from_slice(&known);
            return tiers;
        }
        self.advance(now_us);
        if let Some(known) = self.late_answer(asked, now_us) {
            tiers[..asked.len()].copy_from_slice(&known);
            return tiers;
        }
        if !self.link.is_usable(now_us) || now_us < self.paused_until_us {
            self.stats.skipped += 1;
            return tiers;
        }
        self.stats.lookups += 1;
        let payload = put_keys(asked);
        let mut head = Head::new(Op::Lookup);
        head.count = asked.len() as u32;
        head.flags = if with_arena { WITH_SEATS } else { 0 };
        match self.request(head, &payload, self.lookup_us) {
            Some(frame) if frame.payload.len() == asked.len() => {
                self.timeouts = 0;
                tiers[..asked.len()].copy_from_slice(&frame.payload);
            }
            Some(_) => {}
            None => {
                tiers[..asked.len()].fill(tier::UNKNOWN);
                self.late_requests.push_back((self.request, asked.to_vec()));
                if self.late_requests.len() > 4 {
                    self.late_requests.pop_front();
                }
                self.was_late();
            }
        }
        tiers
    }

    /// The answer from shared memory; None: the daemon must be asked.
    fn read_table(&mut self, keys: &[Key], with_arena: bool, now_us: u64) -> Option<Vec<u8>> {
        self.look(now_us);
        let table = self.link.table.as_ref().filter(|_| self.link.is_usable(now_us))?;
        let tiers: Vec<u8> = keys.iter().map(|key| table.find(key, with_arena)).collect();
        if table.is_partial() && tiers.contains(&tier::MISS) {
            return None;
        }
        self.stats.table_lookups += 1;
        self.found.count(&tiers);
        Some(tiers)
    }

    /// Microseconds until so many blocks of each tier would be loaded, by how loads go now. 0 without a
    /// daemon.
    pub fn expected_us(&self, disk: u64, remote: u64) -> u64 {
        let bytes = |blocks: u64| blocks * u64::from(self.link.hello().block_bytes);
        let Some(table) = &self.link.table else { return 0 };
        let near = if disk > 0 { table.expected_us(bytes(disk)) } else { 0 };
        let far = if remote > 0 { table.expected_remote_us(bytes(remote)) } else { 0 };
        near.saturating_add(far)
    }

    /// Blocks that were found and computed all the same, since that is quicker.
    pub fn count_gated(&mut self, blocks: u64) {
        self.stats.gated += blocks;
        self.found.gated += blocks;
    }

    fn late_answer(&mut self, keys: &[Key], now_us: u64) -> Option<Vec<u8>> {
        if self.late.is_empty() {
            return None;
        }
        let fresh = |key: &Key| {
            self.late.get(key).filter(|(_, at_us)| now_us < at_us + LATE_US).map(|(tier, _)| *tier)
        };
        let known: Option<Vec<u8>> = keys.iter().map(fresh).collect();
        known.as_ref()?;
        keys.iter().for_each(|key| {
            self.late.remove(key);
        });
        self.stats.late_answers += 1;
        known
    }

    /// Ask what a scheduler needs to know now; None without a daemon, or without an answer in time.
    pub(super) fn ask_quickly(&mut self, head: Head, payload: &[u8]) -> Option<Vec<u8>> {
        let now_us = clock_us();
        self.advance(now_us);
        if !self.link.is_usable(now_us) || now_us < self.paused_until_us {
            self.stats.skipped += 1;
            return None;
        }
        let answer = self.request(head, payload, self.lookup_us);
        match answer {
            Some(_) => self.timeouts = 0,
            None => self.was_late(),
        }
        answer.map(|frame| frame.payload)
    }

    /// Nothing is waited for: several answers did not come in time.
    pub(super) fn is_paused(&self) -> bool {
        clock_us() < self.paused_until_us
    }

    fn was_late(&mut self) {
        self.stats.lookup_timeouts += 1;
        self.timeouts += 1;
        if self.timeouts >= TIMEOUTS {
            self.timeouts = 0;
            self.paused_until_us = clock_us() + PAUSE_US;
        }
    }

    /// Send and wait for the answer, at most for `patience_us`.
    pub fn request(&mut self, mut head: Head, payload: &[u8], patience_us: u64) -> Option<Frame> {
        self.request += 1;
        head.request = self.request;
        self.awaited = head.request;
        self.link.push(&head, payload);
        let end_us = clock_us() + patience_us;
        loop {
            let now_us = clock_us();
            self.advance(now_us);
            if let Some(frame) = self.answers.remove(&head.request) {
                self.awaited = 0;
                return (frame.head.op != Op::Error).then_some(frame);
            }
            if now_us >= end_us || self.link.fd().is_none() {
                self.awaited = 0;
                return None;
            }
            self.wait(end_us - now_us);
        }
    }

    fn wait(&self, most_us: u64) {
        let Some(fd) = self.link.fd() else { return };
        let write = if self.link.waiting() > 0 { libc::POLLOUT } else { 0 };
        let mut poll =
            libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | write, revents: 0 };
        let time = libc::timespec {
            tv_sec: (most_us / 1_000_000) as libc::time_t,
            tv_nsec: (most_us % 1_000_000 * 1000) as libc::c_long,
        };
        unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) };
    }

    pub(super) fn take_late(&mut self, frame: &Frame, now_us: u64) {
        let request = frame.head.request;
        let Some(at) = self.late_requests.iter().position(|(r, _)| *r == request) else { return };
        let Some((_, keys)) = self.late_requests.remove(at) else { return };
        self.late.retain(|_, (_, at_us)| now_us < *at_us + LATE_US);
        if self.late.len() < LATE_MAX {
            let tiers = keys.into_iter().zip(&frame.payload);
            self.late.extend(tiers.map(|(key, &tier)| (key, (tier, now_us))));
        }
    }
}
