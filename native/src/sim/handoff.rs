//! KV that moves from the engine of a prefill to that of the answer, over links that both share.
//!
//! Every engine has one link, which sends one transfer and receives one at a time. The engine of the
//! answer fetches in the order in which prefills end, once it has memory for the whole prompt; only
//! what it has not cached moves. The other engine holds its blocks until then.

use std::collections::VecDeque;

use super::engine::{Engine, Floor};
use crate::link::Link;

impl Engine {
    /// Takes memory for a prompt whose KV will come; the tokens that it lacks. `None`: there is no room.
    pub(super) fn reserve(&mut self, seq: usize, floor: &mut Floor) -> Option<u32> {
        let ids = floor.blocks(seq);
        let input = floor.seqs[seq].input;
        let found = self.cache.prefix(ids);
        let there = floor.block_end(seq, found as u32).min(input.saturating_sub(1) / 16 * 16);
        let held = self.used() + self.cache.unpinned_of(&ids[..found]);
        if held + u64::from(input - there) > floor.settings.capacity {
            return None;
        }
        let block = floor.trace.block;
        for (i, &id) in ids[..found].iter().enumerate() {
            self.cache.pin(id, floor.block_end(seq, i as u32 + 1) - i as u32 * block);
        }
        let private = u64::from(input - floor.block_end(seq, found as u32));
        self.room(private, floor);
        self.private += private;
        let it = &mut floor.seqs[seq];
        (it.pinned, it.private, it.there) = (found as u32, private, input - 1);
        (it.is_ready, it.is_admitted) = (true, true);
        Some(input - there)
    }

    /// The KV of a seq has come.
    pub(super) fn deliver(&mut self, seq: usize) {
        self.come.push_back(seq);
    }
}

/// Transfers under way and to come.
pub struct Links {
    link: Link,
    /// When each engine's link is free to send, and to receive.
    sends_s: Vec<f64>,
    receives_s: Vec<f64>,
    /// What each engine has to fetch.
    pub queues: Vec<VecDeque<usize>>,
    pub tokens: u64,
    pub transfers: u64,
    pub busy_s: f64,
}

impl Links {
    pub fn new(link: Link, engines: usize) -> Self {
        Self {
            link,
            sends_s: vec![0.0; engines],
            receives_s: vec![0.0; engines],
            queues: vec![VecDeque::new(); engines],
            tokens: 0,
            transfers: 0,
            busy_s: 0.0,
        }
    }

    /// Books a transfer; when it is over.
    pub fn book(&mut self, from: usize, to: usize, tokens: u32, now_s: f64) -> f64 {
        let begin_s = now_s.max(self.sends_s[from]).max(self.receives_s[to]);
        let took_s = self.link.transfer_ms(f64::from(tokens)) * 1e-3;
        self.sends_s[from] = begin_s + took_s;
        self.receives_s[to] = begin_s + took_s;
        self.tokens += u64::from(tokens);
        self.transfers += 1;
        self.busy_s += took_s;
        begin_s + took_s
    }
}
