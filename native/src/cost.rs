//! What it costs to send a request to an engine, in milliseconds, and who is cheapest.
//!
//! ```text
//! cost = drain + own + fetch + ext + repl + session
//! ```
//!
//! drain: prefill work ahead of it there. own: the prefill of its tokens that are not cached there.
//! fetch: getting those cached in lower tiers, or computing them where that is quicker. ext: what its
//! prefill and its KV take from the requests that are there. repl: what a second copy of blocks that
//! lie elsewhere will cost once it has displaced others. session: leaving where the session was.
//! All are of the same step-time fit, so none needs a weight to be comparable.

use crate::fit::Fit;
use crate::hash::Random;
use crate::load::Load;

/// Prompt tokens that an engine has, by tier, each behind the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overlap {
    pub device: u32,
    pub host: u32,
    pub disk: u32,
    pub remote: u32,
    pub predicted: u32,
}

impl Overlap {
    pub fn total(&self) -> u32 {
        self.device + self.lower() + self.predicted
    }

    /// In tiers from which blocks have to be fetched.
    pub fn lower(&self) -> u32 {
        self.host + self.disk + self.remote
    }
}

/// What is constant of an engine.
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
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Scales what overlap is worth: 0 = as if nothing were cached.
    pub overlap_weight: f64,
    /// 0 = none.
    pub ttft_slo_ms: f64,
    pub tpot_slo_ms: f64,
    /// Where its session was last, if anywhere.
    pub session_place: Option<usize>,
}

impl Default for Ask {
    fn default() -> Self {
        Self { overlap_weight: 1.0, ttft_slo_ms: 0.0, tpot_slo_ms: 0.0, session_place: None }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Terms {
    pub drain: f64,
    pub own: f64,
    pub fetch: f64,
    pub ext: f64,
    pub repl: f64,
    pub session: f64,
}

impl Terms {
    pub const NAMES: [&'static str; 6] = ["drain", "own", "fetch", "ext", "repl", "session"];

    pub fn values(&self) -> [f64; 6] {
        [self.drain, self.own, self.fetch, self.ext, self.repl, self.session]
    }

    pub fn sum(&self) -> f64 {
        self.values().iter().sum()
    }
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub overlap: Overlap,
    pub load: Load,
    pub filter: Option<Filter>,
    pub terms: Terms,
    /// Prefill of this request there, whatever it is weighed with.
    pub work_ms: f64,
}

/// Requests whose delay counts as much as this request's own.
const OTHERS: f64 = 8.0;
/// Times that the blocks displaced by a second copy would have been used.
const REUSES: f64 = 4.0;
/// Share of its whole prefill that leaving a session's engine is taken to cost.
const SESSION: f64 = 0.25;

/// The tokens to compute, those credited, and the time to fetch what lies in lower tiers.
pub fn parts(engine: &Engine, overlap: &Overlap, tokens: f64, weight: f64) -> (f64, f64, f64) {
    let lower = [overlap.host, overlap.disk, overlap.remote].map(f64::from);
    let near = f64::from(overlap.device + overlap.predicted);
    let mut there = near * weight;
    let mut fetch = 0.0;
    for (n, per_token) in lower.iter().zip(engine.fetch_ms) {
        let load = n * per_token;
        if *n > 0.0 && load < engine.fit.tokens_ms(*n, there) {
            there += n * weight;
            fetch += load * weight;
        }
    }
    let there = there.min(tokens);
    (tokens - there, there, fetch)
}

/// The cost of one engine; `best` = the most tokens that any engine weighed has.
pub fn terms(engine: &Engine, row: &Row, tokens: f64, best: f64, ask: &Ask) -> Terms {
    let (n, there, fetch) = parts(engine, &row.overlap, tokens, ask.overlap_weight);
    let fit = &engine.fit;
    let own = fit.prefill_ms(n, there, engine.chunk);
    let (running, waiting) = (row.load.running() as f64, row.load.waiting as f64);
    let ext = own * (running + waiting) / OTHERS + fit.hk * tokens * running;
    let repl = REUSES * fit.b * (best * ask.overlap_weight - there).max(0.0);
    Terms { drain: row.load.drain_ms, own, fetch, ext, repl, session: 0.0 }
}

/// Weighs every engine that is not filtered. `place` tells the session's engine from the others.
pub fn weigh(engines: &[Engine], rows: &mut [Row], tokens: f64, ask: &Ask) {
    let weighed = rows.iter().filter(|row| row.filter.is_none());
    let best = weighed.map(|row| row.overlap.total()).max().unwrap_or(0);
    for (place, (row, engine)) in rows.iter_mut().zip(engines).enumerate() {
        let (n, there, _) = parts(engine, &row.overlap, tokens, 1.0);
        row.work_ms = engine.fit.prefill_ms(n, there, engine.chunk);
        row.terms = terms(engine, row, tokens, f64::from(best), ask);
        if ask.session_place.is_some_and(|session| session != place) {
            row.terms.session = SESSION * engine.fit.tokens_ms(tokens, 0.0);
        }
    }
}

/// The cheapest engine; ties at random by `seed`.
pub fn cheapest(rows: &[Row], seed: u64) -> Option<usize> {
    let mut random = Random(seed);
    let mut best: Option<(usize, f64)> = None;
    let mut tied = 0;
    for (place, row) in rows.iter().enumerate().filter(|(_, row)| row.filter.is_none()) {
        let cost = row.terms.sum();
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
        best = Some((place, cost));
    }
    best.map(|(place, _)| place)
}
