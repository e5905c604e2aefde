//! Policies of other routers, written from their documents, to compare with.
//!
//! All of them see an exact index without delay, one book for all gateways, and the engines' own
//! counts where the original reads them: none is handicapped by what it knows.

use super::cache::Blocks;
use super::run::{Arrival, Router};
use crate::fit::Fit;
use crate::hash::Random;
use crate::pick::HashRing;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    RoundRobin,
    Random,
    LeastRequests,
    PowerOfTwo,
    /// The first three blocks of the prompt decide.
    ConsistentHash,
    /// SGLang: the shortest queue when out of balance, else the best match above 0.3, else the
    /// smallest tree.
    Sglang,
    /// Dynamo 1.6 with its defaults: prefill blocks to compute and blocks held, in blocks of 16.
    Dynamo,
    /// llm-d: 3 × prefix + 2 × queue + 2 × free memory, each from 0 to 1.
    LlmdBlend,
    /// llm-d: engines with 0.8 of the prompt until they are 14 s of prefill behind.
    LlmdSticky,
    /// vllm-router kv_aware: (uncached + tokens being prefilled) × (requests + 1).
    VllmKvAware,
    /// Modelled prefill work ahead and the request's own.
    PredictedTtft,
}

impl Baseline {
    pub const ALL: [(&'static str, Baseline); 11] = [
        ("round_robin", Baseline::RoundRobin),
        ("random", Baseline::Random),
        ("least_requests", Baseline::LeastRequests),
        ("power_of_two", Baseline::PowerOfTwo),
        ("consistent_hash", Baseline::ConsistentHash),
        ("sglang_cache_aware", Baseline::Sglang),
        ("dynamo", Baseline::Dynamo),
        ("llmd_blend", Baseline::LlmdBlend),
        ("llmd_sticky", Baseline::LlmdSticky),
        ("vllm_kv_aware", Baseline::VllmKvAware),
        ("predicted_ttft", Baseline::PredictedTtft),
    ];
}

/// What a router knows of an engine by what it sent there.
#[derive(Default)]
struct Page {
    inflight: u64,
    /// Tokens to compute of requests without a first token.
    prefill_tokens: u64,
    /// Work of the same, and by when it should be done.
    ready_s: f64,
    /// Distinct prompt tokens of requests in flight, by block.
    active: Blocks<u32>,
    active_tokens: u64,
    /// Tokens ever sent there that were not there before.
    tree_tokens: u64,
}

#[derive(Clone, Copy, Default)]
struct Sent {
    uncached: u32,
}

pub struct Book {
    policy: Baseline,
    fit: Fit,
    pages: Vec<Page>,
    sent: Vec<Sent>,
    turn: usize,
    ring: HashRing,
}

/// The lowest score wins, ties at random.
fn lowest(seed: u64, scores: impl Iterator<Item = (usize, f64)>) -> usize {
    let mut random = Random(seed);
    let (mut best, mut tied) = ((0, f64::INFINITY), 0);
    for (at, score) in scores {
        if score < best.1 {
            (best, tied) = ((at, score), 1);
        } else if score == best.1 {
            tied += 1;
            if random.below(tied) == 0 {
                best.0 = at;
            }
        }
    }
    best.0
}

const DYNAMO_BLOCK: f64 = 16.0;

impl Book {
    pub fn new(policy: Baseline, engines: usize, rows: usize, fit: Fit) -> Self {
        let names: Vec<String> = (0..engines).map(|at| format!("engine-{at}")).collect();
        Self {
            policy,
            fit,
            pages: (0..engines).map(|_| Page::default()).collect(),
            sent: vec![Sent::default(); rows],
            turn: 0,
            ring: HashRing::new(&names, vec![1; engines]).expect("weights of one"),
        }
    }

    fn choose(&mut self, arrival: &Arrival) -> usize {
        let engines = self.pages.len();
        let inflight = |at: usize| self.pages[at].inflight as f64;
        match self.policy {
            Baseline::RoundRobin => {
                self.turn += 1;
                (self.turn - 1) % engines
            }
            Baseline::Random => Random(arrival.seed).below(engines as u64) as usize,
            Baseline::LeastRequests => {
                lowest(arrival.seed, (0..engines).map(|at| (at, inflight(at))))
            }
            Baseline::PowerOfTwo => {
                let mut random = Random(arrival.seed);
                let one = random.below(engines as u64) as usize;
                let step = 1 + random.below(engines.max(2) as u64 - 1) as usize;
                let two = (one + step) % engines;
                if inflight(two) < inflight(one) {
                    two
                } else {
                    one
                }
            }
            Baseline::ConsistentHash => {
                let ids = arrival.trace.blocks(arrival.row);
                let id = ids[ids.len().min(3) - 1];
                self.ring.pick(&id.to_le_bytes(), &vec![1; engines]).unwrap_or(0)
            }
            Baseline::Sglang => self.sglang(arrival),
            Baseline::Dynamo => self.dynamo(arrival),
            Baseline::LlmdBlend => self.llmd_blend(arrival),
            Baseline::LlmdSticky => self.llmd_sticky(arrival),
            Baseline::VllmKvAware => {
                let score = |at: usize| {
                    let page = &self.pages[at];
                    let uncached = f64::from(arrival.input() - arrival.cached(at));
                    (uncached + page.prefill_tokens as f64) * (page.inflight as f64 + 1.0)
                };
                lowest(arrival.seed, (0..engines).map(|at| (at, score(at))))
            }
            Baseline::PredictedTtft => {
                let score = |at: usize| {
                    let ahead = (self.pages[at].ready_s - arrival.now_s).max(0.0) * 1e3;
                    ahead + self.own_ms(arrival, at)
                };
                lowest(arrival.seed, (0..engines).map(|at| (at, score(at))))
            }
        }
    }

    fn own_ms(&self, arrival: &Arrival, at: usize) -> f64 {
        let cached = f64::from(arrival.cached(at));
        let chunk = f64::from(arrival.options.settings.chunk);
        self.fit.prefill_ms(f64::from(arrival.input()) - cached, cached, chunk)
    }

    fn sglang(&self, arrival: &Arrival) -> usize {
        let all = 0..self.pages.len();
        let inflight = |at: usize| self.pages[at].inflight;
        let most = all.clone().map(inflight).max().unwrap_or(0);
        let fewest = all.clone().map(inflight).min().unwrap_or(0);
        if most - fewest > 64 && most as f64 > 1.5 * fewest as f64 {
            return lowest(arrival.seed, all.map(|at| (at, inflight(at) as f64)));
        }
        let best = lowest(arrival.seed, all.clone().map(|at| (at, -f64::from(arrival.cached(at)))));
        if f64::from(arrival.cached(best)) > 0.3 * f64::from(arrival.input()) {
            return best;
        }
        lowest(arrival.seed, all.map(|at| (at, self.pages[at].tree_tokens as f64)))
    }

    fn dynamo(&self, arrival: &Arrival) -> usize {
        let score = |at: usize| {
            let page = &self.pages[at];
            let raw = page.prefill_tokens as f64 + f64::from(arrival.input());
            let prefill = (raw - f64::from(arrival.cached(at))).max(0.0);
            // Blocks that requests in flight share count once.
            let block = arrival.trace.block;
            let ids = arrival.trace.blocks(arrival.row);
            let new = ids.iter().enumerate().filter(|(_, id)| !page.active.contains_key(id));
            let new: u64 =
                new.map(|(i, _)| u64::from(block.min(arrival.input() - i as u32 * block))).sum();
            (prefill + (page.active_tokens + new) as f64) / DYNAMO_BLOCK
        };
        lowest(arrival.seed, (0..self.pages.len()).map(|at| (at, score(at))))
    }

    fn llmd_blend(&self, arrival: &Arrival) -> usize {
        let queue = |at: usize| arrival.engines[at].waiting() as f64;
        let all = 0..self.pages.len();
        let most = all.clone().map(queue).fold(0.0, f64::max);
        let fewest = all.clone().map(queue).fold(f64::INFINITY, f64::min);
        let score = |at: usize| {
            let prefix = f64::from(arrival.cached(at)) / f64::from(arrival.input());
            let short = if most > fewest { (most - queue(at)) / (most - fewest) } else { 1.0 };
            let used = arrival.engines[at].used() as f64 / arrival.options.settings.capacity as f64;
            3.0 * prefix + 2.0 * short + 2.0 * (1.0 - used)
        };
        lowest(arrival.seed, all.map(|at| (at, -score(at))))
    }

    fn llmd_sticky(&self, arrival: &Arrival) -> usize {
        let tokens = |at: usize| {
            self.pages[at].prefill_tokens as f64 + f64::from(arrival.input() - arrival.cached(at))
        };
        let all = 0..self.pages.len();
        let is_warm =
            |at: &usize| f64::from(arrival.cached(*at)) >= 0.8 * f64::from(arrival.input());
        let coldest = lowest(arrival.seed, all.clone().map(|at| (at, tokens(at))));
        let warm = all.filter(is_warm).map(|at| (at, tokens(at)));
        let warm: Vec<_> = warm.collect();
        if warm.is_empty() {
            return coldest;
        }
        let best = lowest(arrival.seed, warm.into_iter());
        // Peak prefill rate × 14 s: so far behind, its cache is worth nothing any more.
        let most = 14_000.0 / self.fit.b;
        if tokens(best) - tokens(coldest) > most {
            coldest
        } else {
            best
        }
    }
}

impl Router for Book {
    fn pick(&mut self, arrival: &Arrival) -> usize {
        let at = self.choose(arrival);
        let cached = arrival.cached(at);
        let own_s = self.own_ms(arrival, at) * 1e-3;
        let uncached = arrival.input() - cached;
        let page = &mut self.pages[at];
        page.inflight += 1;
        page.prefill_tokens += u64::from(uncached);
        page.tree_tokens += u64::from(uncached);
        page.ready_s = page.ready_s.max(arrival.now_s) + own_s;
        if self.policy == Baseline::Dynamo {
            let block = arrival.trace.block;
            for (i, &id) in arrival.trace.blocks(arrival.row).iter().enumerate() {
                let users = page.active.entry(id).or_insert(0);
                *users += 1;
                if *users == 1 {
                    let tokens = block.min(arrival.input() - i as u32 * block);
                    page.active_tokens += u64::from(tokens);
                }
            }
        }
        self.sent[arrival.row] = Sent { uncached };
        at
    }

    fn first(&mut self, row: usize, engine: usize, _now_s: f64) {
        self.pages[engine].prefill_tokens -= u64::from(self.sent[row].uncached);
    }

    fn done(&mut self, trace: &super::trace::Trace, row: usize, engine: usize, _now_s: f64) {
        let page = &mut self.pages[engine];
        page.inflight -= 1;
        if self.policy == Baseline::Dynamo {
            for (i, &id) in trace.blocks(row).iter().enumerate() {
                let users = page.active.entry(id).or_insert(1);
                *users -= 1;
                if *users == 0 {
                    page.active.remove(&id);
                    let tokens = trace.block.min(trace.rows[row].input - i as u32 * trace.block);
                    page.active_tokens -= u64::from(tokens);
                }
            }
        }
    }
}
