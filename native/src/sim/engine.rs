//! A simulated engine: continuous batching with chunked prefill and a prefix cache, as vLLM schedules.
//!
//! A step serves the running requests first (one token each, or the next chunk of a prompt) within the
//! token budget, then admits waiting ones in the order of their arrival. Blocks are cached as they are
//! scheduled. When no block is left, the latest request is put back and starts anew.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::cache::{Blocks, Cache};
use super::store::Store;
use super::trace::Trace;
use crate::cost::Leg;
use crate::fit::Fit;

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub fit: Fit,
    /// KV tokens that fit; with `shared`, no bound.
    pub capacity: u64,
    /// Tokens of a step.
    pub chunk: u32,
    pub max_seqs: usize,
}

/// A request in an engine.
#[derive(Debug, Clone, Default)]
pub struct Seq {
    pub engine: usize,
    pub input: u32,
    pub output: u32,
    /// Prompt tokens found in the cache when it was first admitted.
    pub hit: u32,
    pub first_s: f64,
    pub last_s: f64,
    pub preempted: u32,
    pub leg: Leg,
    /// Its KV came from elsewhere: it holds what it needs, and has its last token to compute.
    pub(super) is_ready: bool,
    /// Its prompt counts in what is kept for other engines.
    is_held: bool,
    /// Of blocks that come from the store, until they are there.
    pub(super) load_ms: f64,
    /// Tokens computed or found; tokens made; blocks pinned; memory beside them.
    pub(super) there: u32,
    made: u32,
    pub(super) pinned: u32,
    pub(super) private: u64,
    admitted: u64,
    pub(super) is_admitted: bool,
    /// The decode step it joined at.
    since: u64,
}

impl Seq {
    pub fn new(engine: usize, input: u32, output: u32, leg: Leg) -> Self {
        Self { engine, input, output, leg, ..Self::default() }
    }
}

/// What an engine says while it works.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Said {
    /// Blocks `from..to` of a row's prompt are cached.
    Stored {
        row: usize,
        from: u32,
        to: u32,
    },
    Removed(u64),
    /// Of a seq: those behind the trace's rows are prefill legs.
    First(usize),
    Done(usize),
}

#[derive(Default)]
pub struct Engine {
    pub cache: Cache,
    waiting: VecDeque<usize>,
    /// Requests whose KV has come: they hold their memory and go before those that wait.
    pub(super) come: VecDeque<usize>,
    /// Requests whose prompt is being computed, in the order of admission.
    filling: Vec<usize>,
    /// Requests that decode, by the decode step that ends them; stale entries are skipped.
    ends: BinaryHeap<Reverse<(u64, usize, u64)>>,
    decoding: usize,
    decoding_kv: u64,
    decode_steps: u64,
    pub(super) private: u64,
    /// Prompts that other engines will fetch.
    held: u64,
    stamp: u64,
    pub busy_s: f64,
    pub steps: u64,
    /// Whether the step under way serves the requests that decode.
    decodes: bool,
}

/// What an engine works with.
pub struct Floor<'a> {
    pub settings: &'a Settings,
    pub trace: &'a Trace,
    pub seqs: &'a mut [Seq],
    /// Blocks that any engine ever had, where all share one endless cache.
    pub shared: Option<&'a mut Blocks<()>>,
    pub store: Option<&'a mut Store>,
    pub said: &'a mut Vec<Said>,
}

impl<'a> Floor<'a> {
    /// Blocks of a seq's prompt.
    pub(super) fn blocks(&self, seq: usize) -> &'a [u64] {
        self.trace.blocks(self.trace.row_of(seq))
    }

    pub(super) fn block_end(&self, row: usize, blocks: u32) -> u32 {
        (blocks * self.trace.block).min(self.seqs[row].input)
    }
}

impl Engine {
    pub fn add(&mut self, row: usize) {
        self.waiting.push_back(row);
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.come.is_empty()
            && self.filling.is_empty()
            && self.decoding == 0
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn decoding(&self) -> usize {
        self.decoding
    }

    /// Tokens in use, which eviction cannot free.
    pub fn used(&self) -> u64 {
        self.cache.resident() - self.cache.unpinned() + self.private
    }

    /// Frees room for `tokens` more; false if what is in use leaves none.
    pub(super) fn room(&mut self, tokens: u64, floor: &mut Floor) -> bool {
        if floor.shared.is_some() {
            return true;
        }
        let capacity = floor.settings.capacity;
        if self.used() + tokens > capacity {
            return false;
        }
        while self.cache.resident() + self.private + tokens > capacity {
            let Some(id) = self.cache.evict() else { return false };
            floor.said.push(Said::Removed(id));
        }
        true
    }

    /// Decides the next step; its length in ms, or `None` when there is nothing to do.
    pub fn begin(&mut self, floor: &mut Floor) -> Option<f64> {
        let mut budget = floor.settings.chunk;
        while self.decoding > 0 && !self.room(self.decoding as u64, floor) {
            self.preempt(floor);
        }
        self.decodes = self.decoding > 0;
        if self.decodes {
            self.private += self.decoding as u64;
            budget = budget.saturating_sub(self.decoding as u32);
        }
        let mut linear = 0.0;
        let mut at = 0;
        while at < self.filling.len() && budget > 0 {
            let row = self.filling[at];
            match self.advance(row, budget, floor) {
                Some((n, work)) => {
                    budget -= n;
                    linear += work;
                    at += 1;
                }
                // It has no room: it waits for others to end, or falls if it is the only one.
                None if self.decoding == 0 && at == 0 => self.preempt(floor),
                None => break,
            }
        }
        let full = at < self.filling.len();
        while !full && budget > 0 && self.decoding + self.filling.len() < floor.settings.max_seqs {
            let next = self.come.front().or(self.waiting.front());
            let Some(&row) = next else { break };
            if !self.admit(row, floor) {
                break;
            }
            let Some((n, work)) = self.advance(row, budget, floor) else {
                self.drop_blocks(row, floor);
                break;
            };
            floor.seqs[row].is_ready = false;
            if self.come.pop_front().is_none() {
                self.waiting.pop_front();
            }
            self.stamp += 1;
            floor.seqs[row].admitted = self.stamp;
            self.filling.push(row);
            budget -= n;
            linear += work + std::mem::take(&mut floor.seqs[row].load_ms);
        }
        if linear == 0.0 && !self.decodes {
            return None;
        }
        let fit = &floor.settings.fit;
        let ms = fit.step_ms(linear, self.decoding as f64, self.decoding_kv as f64);
        self.steps += 1;
        self.busy_s += ms * 1e-3;
        Some(ms)
    }

    /// Takes the cached prefix of a waiting request.
    fn admit(&mut self, row: usize, floor: &mut Floor) -> bool {
        if floor.seqs[row].is_ready {
            return true;
        }
        // Engines that fetch from each other must not fill up with what the other one has no room for.
        let input = u64::from(floor.seqs[row].input);
        let is_leg = floor.seqs[row].leg == Leg::Prefill;
        if is_leg && self.held > 0 && 2 * (self.held + input) > floor.settings.capacity {
            return false;
        }
        let ids = floor.blocks(row);
        let found = match &floor.shared {
            Some(shared) => ids.iter().take_while(|id| shared.contains_key(id)).count(),
            None => self.cache.prefix(ids),
        };
        let there = floor.block_end(row, found as u32);
        // The last token of a prompt is always computed, and with it the 16 tokens of its block.
        let most = floor.seqs[row].input.saturating_sub(1) / 16 * 16;
        let there = there.min(most);
        if floor.shared.is_none() {
            let rest = floor.settings.chunk.min(floor.seqs[row].input - there);
            let held = self.used() + self.cache.unpinned_of(&ids[..found]);
            if held + u64::from(rest) > floor.settings.capacity {
                return false;
            }
            for (i, &id) in ids[..found].iter().enumerate() {
                self.cache
                    .pin(id, floor.block_end(row, i as u32 + 1) - i as u32 * floor.trace.block);
            }
        }
        let found = (found + self.load(row, found, there, floor)) as u32;
        let there = floor.block_end(row, found).min(most);
        let seq = &mut floor.seqs[row];
        (seq.there, seq.pinned, seq.is_held) = (there, found, is_leg);
        self.held += if is_leg { input } else { 0 };
        if !seq.is_admitted {
            seq.is_admitted = true;
            seq.hit = there;
        }
        true
    }

    /// Computes up to `budget` more tokens of a prompt: how many, and their work in ms. A request that
    /// was put back has the tokens it made to compute as well.
    fn advance(&mut self, row: usize, budget: u32, floor: &mut Floor) -> Option<(u32, f64)> {
        let seq = &floor.seqs[row];
        let (there, made) = (seq.there, seq.made);
        let n = (seq.input + made - there).min(budget);
        if !floor.seqs[row].is_ready && !self.room(u64::from(n), floor) {
            return None;
        }
        let to = there + n;
        let input = floor.seqs[row].input;
        let full =
            if to >= input { input.div_ceil(floor.trace.block) } else { to / floor.trace.block };
        let from = floor.seqs[row].pinned;
        for at in from..full.max(from) {
            let id = floor.blocks(row)[at as usize];
            let tokens = floor.trace.block.min(input - at * floor.trace.block);
            let came = match &mut floor.shared {
                Some(shared) => shared.insert(id, ()).is_none(),
                None => self.cache.pin(id, tokens),
            };
            let row = floor.trace.row_of(row);
            if let Some(store) = &mut floor.store {
                store.keep(row, at, id, tokens);
            }
            match floor.said.last_mut() {
                Some(Said::Stored { row: last, to, .. }) if came && *last == row && *to == at => {
                    *to += 1;
                }
                _ if came => floor.said.push(Said::Stored { row, from: at, to: at + 1 }),
                _ => {}
            }
        }
        let seq = &mut floor.seqs[row];
        seq.pinned = full.max(from);
        seq.there = to;
        let covered = (seq.pinned * floor.trace.block).min(input);
        let private = u64::from(to.saturating_sub(covered));
        self.private = self.private + private - seq.private;
        seq.private = private;
        Some((n, floor.settings.fit.tokens_ms(f64::from(n), f64::from(there))))
    }

    /// Ends the step that `begin` decided.
    pub fn end(&mut self, now_s: f64, floor: &mut Floor) {
        if self.decodes {
            self.decode_steps += 1;
            self.decoding_kv += self.decoding as u64;
            while let Some(&Reverse((at, row, stamp))) = self.ends.peek() {
                if at > self.decode_steps {
                    break;
                }
                self.ends.pop();
                if floor.seqs[row].admitted == stamp {
                    self.settle_decode(row, floor);
                    self.decoding -= 1;
                    self.finish(row, now_s, floor);
                }
            }
        }
        let mut at = 0;
        while at < self.filling.len() {
            let row = self.filling[at];
            let seq = &mut floor.seqs[row];
            if seq.there < seq.input + seq.made {
                at += 1;
                continue;
            }
            self.filling.remove(at);
            if seq.made == 0 {
                seq.first_s = now_s;
                floor.said.push(Said::First(row));
            }
            seq.made += 1;
            if seq.made >= seq.output {
                self.finish(row, now_s, floor);
                continue;
            }
            let left = u64::from(seq.output - seq.made);
            self.ends.push(Reverse((self.decode_steps + left, row, seq.admitted)));
            self.decoding += 1;
            self.decoding_kv += u64::from(seq.there);
            seq.since = self.decode_steps;
        }
    }

    /// Writes down what a decoding request has made, and takes it out of the sum of contexts.
    fn settle_decode(&mut self, row: usize, floor: &mut Floor) {
        let seq = &mut floor.seqs[row];
        let made = (self.decode_steps - seq.since) as u32;
        seq.made += made;
        seq.private += u64::from(made);
        seq.there += made;
        self.decoding_kv -= u64::from(seq.there);
    }

    fn finish(&mut self, row: usize, now_s: f64, floor: &mut Floor) {
        floor.seqs[row].last_s = now_s;
        // What was computed for another engine stays until that one has it.
        if floor.seqs[row].leg != Leg::Prefill {
            self.drop_blocks(row, floor);
        }
        floor.seqs[row].admitted = 0;
        floor.said.push(Said::Done(row));
    }

    /// Frees a request's blocks, the last one first, so that the start of a prompt stays longest.
    pub(super) fn drop_blocks(&mut self, row: usize, floor: &mut Floor) {
        let seq = &mut floor.seqs[row];
        self.private -= seq.private;
        if std::mem::take(&mut seq.is_held) {
            self.held -= u64::from(seq.input);
        }
        let pinned = std::mem::take(&mut seq.pinned) as usize;
        (seq.private, seq.there) = (0, 0);
        if floor.shared.is_none() {
            floor.blocks(row)[..pinned].iter().rev().for_each(|&id| self.cache.unpin(id));
        }
    }

    /// Puts the request that was admitted last back to the front of those that wait.
    fn preempt(&mut self, floor: &mut Floor) {
        let filling = self.filling.last().map(|&row| (floor.seqs[row].admitted, row));
        let live =
            self.ends.iter().filter(|Reverse((_, row, at))| floor.seqs[*row].admitted == *at);
        let decoding = live.map(|&Reverse((_, row, at))| (at, row)).max();
        let Some((_, row)) = filling.max(decoding) else { return };
        if filling.map(|(_, last)| last) == Some(row) {
            self.filling.pop();
        } else {
            self.settle_decode(row, floor);
            self.decoding -= 1;
        }
        self.drop_blocks(row, floor);
        floor.seqs[row].admitted = 0;
        floor.seqs[row].preempted += 1;
        self.waiting.push_front(row);
    }
}
