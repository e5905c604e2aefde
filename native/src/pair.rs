//! Where a request's prefill and its answer are made, chosen together: on one engine, or the KV moves.
//!
//! Every engine that may answer is weighed twice: with the whole request, as in `cost.rs`, and with the
//! answer alone behind each engine that may prefill. Then
//!
//! ```text
//! remote = P: drain + own + fetch + ext + repl
//!        + D: memory + wait + transfer of what D lacks + ext of the KV alone + repl + slow + session
//!        + late
//! ```
//!
//! so that what a prefill takes from the answers of D counts where it is made there, and the transfer
//! where it is not. A transfer begins when its prefill is done, behind those that D has to get by then.
//! The first token that a client sees is D's: the time to it ends with a step of D.
//!
//! An engine with the whole request is weighed as where no KV moves, so that a link too slow to be of use
//! changes nothing. Beyond that: KV that is stored twice displaces something, at half a prefill.
//!
//! An engine that does both may hold no prompt for others that takes more than half of its memory: two
//! that had such a prompt for each other would both wait for room until their leases end.

use crate::cost::{self, Ask, Due, Engine, Leg, Row, Terms};
use crate::hash::Random;

/// Who may do what: one byte per engine, 0 = may not. An engine of both kinds is in both.
#[derive(Debug, Clone, Copy)]
pub struct Masks<'a> {
    pub prefill: &'a [u8],
    pub decode: &'a [u8],
}

/// Whether the cost decides, or somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    Auto,
    Always,
    Never,
}

/// Why it was decided so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Local: there is little to compute.
    Short,
    /// Local: most of it is cached there.
    Hit,
    /// Local or remote: it costs less.
    Cheaper,
    /// Local or remote: the other would miss an SLO.
    Slo,
    /// Local: no engine may prefill for another.
    NoPrefill,
    /// It was asked for.
    Forced,
}

impl Reason {
    pub const NAMES: [&'static str; 6] = ["short", "hit", "cheaper", "slo", "no_prefill", "forced"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// A place with the row of what is done there.
pub type Seated = (usize, Row);

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    pub decode: Seated,
    /// `None`: the engine of the answer computes the prompt too.
    pub prefill: Option<Seated>,
    pub reason: Reason,
    /// What is to be transferred, and how long that takes once it begins; 0 where it is local.
    pub transfer_tokens: u64,
    pub transfer_ms: f64,
    /// Costs of the cheapest of either kind; infinite where there is none.
    pub local_ms: f64,
    pub remote_ms: f64,
}

/// Fewer tokens to compute are not worth a second leg's mention.
const SHORT_TOKENS: f64 = 256.0;
/// What KV that is stored twice displaces, in times its prefill: few blocks are used again.
const TWICE: f64 = 0.5;

/// One way to serve the request.
#[derive(Debug, Clone, Copy)]
struct Way {
    decode: Seated,
    prefill: Option<Seated>,
    ttft_ms: f64,
    tpot_ms: f64,
    cost_ms: f64,
}

struct Weighing<'a> {
    engines: &'a [Engine],
    rows: &'a [Row],
    tokens: f64,
    ask: &'a Ask,
}

impl Way {
    /// Adds what missing an SLO costs: once, where the first token is made.
    fn judge(&mut self, due: &Due) {
        due.judge(&mut self.decode.1.terms, self.ttft_ms);
        let prefill = self.prefill.as_mut().map_or(0.0, |(_, row)| {
            due.judge(&mut row.terms, 0.0);
            row.terms.sum()
        });
        self.cost_ms = prefill + self.decode.1.terms.sum();
    }
}

impl Weighing<'_> {
    fn local(&self, at: usize) -> Way {
        let row = self.rows[at];
        let Row { ttft_ms, tpot_ms, .. } = row;
        Way { decode: (at, row), prefill: None, ttft_ms, tpot_ms, cost_ms: row.terms.sum() }
    }

    /// The prefill leg alone. Its KV is held until it is fetched, not for an answer.
    fn prefill(&self, at: usize) -> Row {
        let (engine, row) = (&self.engines[at], self.rows[at]);
        let itl_ms = engine.fit.decode_ms(row.load.running() as f64, row.load.kv_tokens as f64);
        let in_time = row.load.inflight.saturating_sub(row.load.late) as f64;
        let drain = row.load.drain_ms;
        let ext = row.terms.own * in_time / self.ask.others(itl_ms);
        let terms = Terms { drain, ext, slow: 0.0, late: 0.0, session: 0.0, ..row.terms };
        let ttft_ms = drain + row.work_ms + row.terms.fetch;
        Row { terms, ttft_ms, tpot_ms: 0.0, leg: Leg::Prefill, ..row }
    }

    /// Whether an engine that answers too may hold the prompt until it is fetched.
    fn may_hold(&self, at: usize) -> bool {
        let capacity = self.engines[at].capacity as f64;
        capacity == 0.0 || 2.0 * self.tokens <= capacity
    }

    /// The answer's leg alone: what does not depend on the engine of the prefill.
    fn decode(&self, at: usize) -> Row {
        let (engine, row) = (&self.engines[at], self.rows[at]);
        let (load, ask) = (&row.load, self.ask);
        let kv_tokens = load.kv_tokens as f64 + self.tokens;
        // Those on their way will be running when this one is.
        let itl_ms = engine.fit.decode_ms(load.inflight as f64 + 1.0, kv_tokens);
        let there = f64::from(row.overlap.total()).min(self.tokens);
        let transfer_ms = engine.link.transfer_ms(self.tokens - there);
        let in_time = load.inflight.saturating_sub(load.late) as f64;
        let twice = TWICE * engine.fit.b * (self.tokens - there);
        let terms = Terms {
            drain: engine.memory_ms(load, self.tokens, ask.output, itl_ms),
            own: 0.0,
            fetch: transfer_ms,
            ext: engine.dearer_ms(self.tokens, ask) * in_time / ask.others(itl_ms),
            repl: if row.has_room { 0.0 } else { twice },
            slow: ask.output * itl_ms * load.share,
            late: 0.0,
            session: row.terms.session,
        };
        let tpot_ms = itl_ms / (1.0 - load.share.min(cost::SHARE_MOST));
        let ttft_ms = terms.drain + transfer_ms + itl_ms;
        Row { terms, work_ms: 0.0, ttft_ms, tpot_ms, leg: Leg::Decode, transfer_ms, ..row }
    }

    fn remote(&self, prefill: Seated, decode: Seated) -> Way {
        let (p, mut d) = (&prefill.1, decode.1);
        let wait = (d.load.transfer_ms - p.ttft_ms).max(0.0);
        d.terms.drain += wait;
        d.ttft_ms += wait;
        d.ttft_ms += p.ttft_ms;
        let ttft_ms = d.ttft_ms;
        let cost_ms = p.terms.sum() + d.terms.sum();
        Way { decode: (decode.0, d), prefill: Some(prefill), ttft_ms, tpot_ms: d.tpot_ms, cost_ms }
    }

    fn misses(&self, way: &Way) -> bool {
        let over = |slo: f64, ms: f64| slo > 0.0 && ms > slo;
        over(self.ask.ttft_slo_ms, way.ttft_ms) || over(self.ask.tpot_slo_ms, way.tpot_ms)
    }

    fn why_local(&self, local: &Way, remote: Option<&Way>, force: Force) -> Reason {
        let row = &local.decode.1;
        let there = f64::from(row.overlap.total());
        match (force, remote) {
            (Force::Never, _) => Reason::Forced,
            (_, None) => Reason::NoPrefill,
            _ if self.tokens - there < SHORT_TOKENS.min(self.tokens) => match there > 0.0 {
                true => Reason::Hit,
                false => Reason::Short,
            },
            _ if self.tokens < SHORT_TOKENS => Reason::Short,
            _ if 2.0 * there > self.tokens => Reason::Hit,
            (_, Some(remote)) if self.misses(remote) && !self.misses(local) => Reason::Slo,
            _ => Reason::Cheaper,
        }
    }
}

fn cheapest(ways: &[Way], random: &mut Random) -> Option<Way> {
    cost::least(ways.iter().map(|way| (*way, way.cost_ms)), random)
}

/// Decides. `rows` as they are seen, not weighed yet; `None`: no engine may answer.
pub fn decide(
    engines: &[Engine],
    rows: &mut [Row],
    masks: Masks,
    tokens: f64,
    ask: &Ask,
    (force, seed): (Force, u64),
) -> Option<Plan> {
    cost::fill(engines, rows, tokens, ask);
    let weighing = Weighing { engines, rows, tokens, ask };
    let may = |mask: &[u8]| {
        let ok = |at: &usize| mask[*at] != 0 && rows[*at].filter.is_none();
        (0..rows.len()).filter(ok).collect::<Vec<_>>()
    };
    let (prefills, decodes) = (may(masks.prefill), may(masks.decode));
    let mut local: Vec<_> = decodes.iter().map(|&at| weighing.local(at)).collect();
    let mut remote = Vec::new();
    if force != Force::Never {
        let may_hold = |&&at: &&usize| masks.decode[at] == 0 || weighing.may_hold(at);
        let prefills = prefills.iter().filter(may_hold);
        let prefills: Vec<_> = prefills.map(|&at| (at, weighing.prefill(at))).collect();
        for seated in decodes.iter().map(|&at| (at, weighing.decode(at))) {
            let others = prefills.iter().filter(|prefill| prefill.0 != seated.0);
            remote.extend(others.map(|&prefill| weighing.remote(prefill, seated)));
        }
    }
    let soonest = |ways: &[Way]| ways.iter().map(|way| way.ttft_ms).fold(f64::INFINITY, f64::min);
    let soonest_ms = soonest(&local).min(soonest(&remote));
    let due = Due { slo_ms: ask.ttft_slo_ms, soonest_ms };
    local.iter_mut().chain(&mut remote).for_each(|way| way.judge(&due));
    let mut random = Random(seed);
    let (local, remote) = (cheapest(&local, &mut random)?, cheapest(&remote, &mut random));
    let local_ms = local.cost_ms;
    let remote_ms = remote.map_or(f64::INFINITY, |way| way.cost_ms);
    let chosen = remote.filter(|way| force == Force::Always || way.cost_ms < local.cost_ms);
    let reason = match chosen {
        None => weighing.why_local(&local, remote.as_ref(), force),
        Some(_) if force == Force::Always => Reason::Forced,
        Some(way) if weighing.misses(&local) && !weighing.misses(&way) => Reason::Slo,
        Some(_) => Reason::Cheaper,
    };
    let Way { decode, prefill, .. } = chosen.unwrap_or(local);
    let there = u64::from(decode.1.overlap.total());
    let transfer_tokens = prefill.map_or(0, |_| (tokens as u64).saturating_sub(there));
    let transfer_ms = decode.1.transfer_ms;
    Some(Plan { decode, prefill, reason, transfer_tokens, transfer_ms, local_ms, remote_ms })
}

#[cfg(test)]
#[path = "pair_test.rs"]
mod tests;
