//! What it costs to send a request to an engine, in milliseconds, and who is cheapest.
//!
//! ```text
//! cost = drain + own + fetch + ext + repl + slow + late + session
//! ```
//!
//! - drain: prefill work ahead of it there, and the wait for memory where there is none left;
//! - own: the prefill of its tokens that are not cached there, in steps that serve those who run there
//!   as well: the smaller the steps, the more it matters how many those are;
//! - fetch: getting those cached in lower tiers, where that is quicker than computing them;
//! - ext: what its prefill and its KV take from the requests that are there and still in time;
//! - repl: what a second copy of blocks that lie elsewhere costs once it has displaced others;
//! - slow: what the prefill of others will take from its answer, by the share of its time that the
//!   engine has spent on prefill of late;
//! - late: missing the time to the first token that was asked for, where another engine would meet it;
//! - session: leaving the engine where its session was.
//!
//! All are of the same step-time fit, so that none needs a weight to be comparable. A request that
//! is late wherever it goes has little to lose by waiting: its own delay counts a tenth, and it goes
//! where it takes least from requests that are in time. Without an SLO nothing is ever late.

use crate::fit::Fit;
use crate::hash::Random;
use crate::index::Overlap;
use crate::link::Link;
use crate::load::Load;

/// What is known of an engine before any request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Engine {
    pub fit: Fit,
    /// Tokens of a step.
    pub chunk: f64,
    /// KV tokens that fit on the device; 0 = not known.
    pub capacity: u64,
    /// Longest prompt and answer it takes; 0 = not known.
    pub context: u64,
    pub max_conns: u32,
    /// Reading a token's KV from host memory, disk, another machine.
    pub fetch_ms: [f64; 3],
    /// Getting KV that another engine computed.
    pub link: Link,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Scales what overlap is worth: 0 = as if nothing were cached.
    pub overlap_weight: f64,
    /// What is left of the time to the first token; 0 = there is no SLO.
    pub ttft_slo_ms: f64,
    /// Time per token of the answer; 0 = there is no SLO.
    pub tpot_slo_ms: f64,
    /// Tokens that the answer should have.
    pub output: f64,
    /// Where its session was last, if anywhere.
    pub session_place: Option<usize>,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            overlap_weight: 1.0,
            ttft_slo_ms: 0.0,
            tpot_slo_ms: 0.0,
            output: OUTPUT,
            session_place: None,
        }
    }
}

impl Ask {
    /// So many delayed requests count as this one delayed by as much, on an engine of this time per
    /// token.
    pub(crate) fn others(&self, itl_ms: f64) -> f64 {
        match self.tpot_slo_ms > 0.0 {
            true => {
                let slack = (self.tpot_slo_ms - itl_ms) / itl_ms;
                (SLACK * slack).clamp(SLACK_BOUNDS.0, SLACK_BOUNDS.1)
            }
            false => OTHERS,
        }
    }
}

/// Milliseconds each, as in the module's text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Terms {
    pub drain: f64,
    pub own: f64,
    pub fetch: f64,
    pub ext: f64,
    pub repl: f64,
    pub slow: f64,
    pub late: f64,
    pub session: f64,
}

impl Terms {
    pub const NAMES: [&'static str; 8] =
        ["drain", "own", "fetch", "ext", "repl", "slow", "late", "session"];

    pub fn values(&self) -> [f64; 8] {
        let Self { drain, own, fetch, ext, repl, slow, late, session } = *self;
        [drain, own, fetch, ext, repl, slow, late, session]
    }

    pub fn sum(&self) -> f64 {
        self.values().iter().sum()
    }
}

/// What an engine does of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Leg {
    /// All of it.
    #[default]
    Whole,
    /// Its prefill alone.
    Prefill,
    /// Its answer, with KV that comes from elsewhere.
    Decode,
}

/// Why an engine was not weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Down, draining, benched, of another role, asked before: the caller's mask.
    Masked,
    /// Its adapter is not loaded there.
    Lora,
    /// The prompt is longer than it takes.
    Context,
    /// It has `max_conns` requests.
    Full,
}

impl Filter {
    pub const NAMES: [&'static str; 4] = ["masked", "lora", "context", "full"];
}

/// One engine as the decision sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Row {
    pub overlap: Overlap,
    pub load: Load,
    pub filter: Option<Filter>,
    /// It has memory left: what is stored there displaces nothing.
    pub has_room: bool,
    pub terms: Terms,
    /// Prefill of this request there.
    pub work_ms: f64,
    /// Modelled time to its first token there, and per token after it.
    pub ttft_ms: f64,
    pub tpot_ms: f64,
    pub leg: Leg,
    /// Modelled transfer of its KV, once it begins; of a decode leg.
    pub transfer_ms: f64,
}

/// An answer's tokens, until they are learnt.
pub const OUTPUT: f64 = 200.0;
/// So many delayed requests count as this request delayed by as much, where nobody minds how fast
/// answers are; else so many times what an answer can be slower than alone, within bounds.
const OTHERS: f64 = 8.0;
const SLACK: f64 = 6.0;
const SLACK_BOUNDS: (f64, f64) = (2.0, 16.0);
/// Uses that the blocks displaced by a second copy would have seen.
const REUSES: f64 = 4.0;
/// What the own delay of a request counts that is late everywhere.
const HOPELESS: f64 = 0.1;
/// What missing an SLO costs, in times that SLO.
const MISSED: f64 = 2.0;
/// Share of its whole prefill that leaving a session's engine is taken to cost.
const SESSION: f64 = 0.25;
/// Above it, the share of prefill says no more how slow answers are: the engine is overloaded.
pub(crate) const SHARE_MOST: f64 = 0.8;
/// Of the KV memory, what requests can fill before new ones wait.
const FILLED: f64 = 0.95;

/// What of a prompt an engine must do.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Parts {
    /// Tokens to compute behind those that are there.
    uncached: f64,
    there: f64,
    fetch_ms: f64,
}

/// A tier is used where loading is quicker than computing; else what lies behind it is out of reach.
fn parts(engine: &Engine, overlap: &Overlap, tokens: f64, weight: f64) -> Parts {
    let mut there = f64::from(overlap.device);
    let mut fetch_ms = 0.0;
    let lower = [overlap.host, overlap.disk, overlap.remote].map(f64::from);
    let reached = lower.into_iter().zip(engine.fetch_ms).all(|(n, per_token)| {
        let is_worth = n * per_token <= engine.fit.tokens_ms(n, there);
        if is_worth {
            there += n;
            fetch_ms += n * per_token;
        }
        is_worth
    });
    if reached {
        there += f64::from(overlap.predicted);
    }
    let there = (there * weight).min(tokens);
    Parts { uncached: tokens - there, there, fetch_ms: fetch_ms * weight.min(1.0) }
}

impl Engine {
    /// How long a request waits until KV memory is freed, where it does not fit in: answers end, and
    /// free what they hold, at the rate at which they are given.
    pub(crate) fn memory_ms(&self, load: &Load, tokens: f64, output: f64, itl_ms: f64) -> f64 {
        let held = load.kv_tokens as f64;
        let excess = held + tokens - FILLED * self.capacity as f64;
        match self.capacity > 0 && excess > 0.0 && held > 0.0 {
            true => (excess / held).min(1.0) * output * itl_ms,
            false => 0.0,
        }
    }

    /// What its KV adds to the answer of each request there, in the mean.
    pub(crate) fn dearer_ms(&self, tokens: f64, ask: &Ask) -> f64 {
        (self.fit.hb + self.fit.hk * tokens) * ask.output / 2.0
    }

    /// Fills in what depends on this engine alone.
    fn weigh(&self, row: &mut Row, tokens: f64, ask: &Ask) {
        let load = &row.load;
        let real = parts(self, &row.overlap, tokens, 1.0);
        let beside = load.running() as f64 * self.fit.hb + load.kv_tokens as f64 * self.fit.hk;
        let prefill_ms = |parts: &Parts| {
            let steps = (parts.uncached / self.chunk).ceil();
            self.fit.work_ms(parts.uncached, parts.there, self.chunk) + steps * beside
        };
        let work_ms = prefill_ms(&real);
        let parts = match ask.overlap_weight == 1.0 {
            true => real,
            false => parts(self, &row.overlap, tokens, ask.overlap_weight),
        };
        let own = prefill_ms(&parts);
        let running = load.running() as f64;
        let itl_ms = self.fit.decode_ms(running + 1.0, load.kv_tokens as f64 + tokens);
        let drain = load.drain_ms + self.memory_ms(load, tokens, ask.output, itl_ms);
        // Those that are late already lose nothing more.
        let in_time = load.inflight.saturating_sub(load.late) as f64;
        let dearer = self.dearer_ms(tokens, ask);
        row.terms = Terms {
            drain,
            own,
            fetch: parts.fetch_ms,
            ext: (own + dearer) * in_time / ask.others(itl_ms),
            repl: 0.0,
            slow: ask.output * itl_ms * load.share,
            late: 0.0,
            session: 0.0,
        };
        row.work_ms = work_ms;
        row.ttft_ms = drain + work_ms + real.fetch_ms;
        row.tpot_ms = itl_ms / (1.0 - load.share.min(SHARE_MOST));
    }
}

/// Fills in every term but `late`, each row in its engine's place.
pub(crate) fn fill(engines: &[Engine], rows: &mut [Row], tokens: f64, ask: &Ask) {
    let mut most = 0.0f64;
    for (row, engine) in rows.iter_mut().zip(engines) {
        engine.weigh(row, tokens, ask);
        if row.filter.is_none() {
            most = most.max(f64::from(row.overlap.total()) * ask.overlap_weight);
        }
    }
    for (place, (row, engine)) in rows.iter_mut().zip(engines).enumerate() {
        let there = f64::from(row.overlap.total()) * ask.overlap_weight;
        if !row.has_room {
            row.terms.repl = REUSES * engine.fit.b * (most - there).max(0.0).min(tokens);
        }
        if ask.session_place.is_some_and(|session| session != place) {
            row.terms.session = SESSION * engine.fit.tokens_ms(tokens, 0.0);
        }
    }
}

/// Weighs the engines that are not filtered, each row in its engine's place.
pub fn weigh(engines: &[Engine], rows: &mut [Row], tokens: f64, ask: &Ask) {
    fill(engines, rows, tokens, ask);
    let open = rows.iter().filter(|row| row.filter.is_none());
    let soonest = open.map(|row| row.ttft_ms).fold(f64::INFINITY, f64::min);
    let due = Due { slo_ms: ask.ttft_slo_ms, soonest_ms: soonest };
    rows.iter_mut().for_each(|row| due.judge(&mut row.terms, row.ttft_ms));
}

/// What the SLO of the first token makes of terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// 0 = there is none.
    pub slo_ms: f64,
    /// Time to the first token where that is soonest.
    pub soonest_ms: f64,
}

impl Due {
    pub fn judge(&self, terms: &mut Terms, ttft_ms: f64) {
        if self.slo_ms <= 0.0 {
            return;
        }
        if self.soonest_ms > self.slo_ms {
            terms.drain *= HOPELESS;
            terms.slow *= HOPELESS;
        } else if ttft_ms > self.slo_ms {
            terms.late += MISSED * self.slo_ms;
        }
    }
}

/// The cheapest engine; ties at random by `seed`.
pub fn cheapest(rows: &[Row], seed: u64) -> Option<usize> {
    let open = rows.iter().enumerate().filter(|(_, row)| row.filter.is_none());
    least(open.map(|(place, row)| (place, row.terms.sum())), &mut Random(seed))
}

/// What comes with the least cost; ties at random.
pub(crate) fn least<T>(costs: impl Iterator<Item = (T, f64)>, random: &mut Random) -> Option<T> {
    let mut best: Option<(T, f64)> = None;
    let mut tied = 0;
    for (it, cost) in costs {
        match best {
            Some((_, least)) if cost > least => continue,
            Some((_, least)) if cost == least => {
                tied += 1;
                if random.below(tied) > 0 {
                    continue;
                }
            }
            _ => tied = 1,
        }
        best = Some((it, cost));
    }
    best.map(|(it, _)| it)
}

#[cfg(test)]
#[path = "cost_test.rs"]
mod tests;
