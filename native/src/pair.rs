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
//! Beyond `cost.rs`: KV that is stored twice displaces something, at half a
//! prefill. What makes an answer slower counts less, the more room the SLO per token leaves. Who is late
//! on an engine whose memory is full still counts, as others wait for what it holds: a team that is
//! overloaded must not spend its decoders on prompts.

use crate::cost::{self, Ask, Engine, Leg, Row, Terms};
use crate::hash::Random;
use crate::load::Load;

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
/// Of a time per token at this share of its SLO, all that slows it down counts.
const TIGHT: f64 = 0.8;
/// What it counts where there is any amount of room.
const ROOMY: f64 = 0.8;
/// Above this share of its memory, an engine begins to be crowded: who is late there still holds memory
/// that others wait for.
const CROWDED: f64 = 0.5;
/// How many delayed requests count as this one delayed by as much, on an engine that is full.
const FULL_OTHERS: f64 = 2.0;
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

impl Weighing<'_> {
    fn local(&self, at: usize) -> Way {
        let (engine, mut row) = (&self.engines[at], self.rows[at]);
        let kv_tokens = row.load.kv_tokens as f64 + self.tokens;
        let itl_ms = engine.fit.decode_ms(row.load.running() as f64 + 1.0, kv_tokens);
        row.terms.slow *= self.tightness(row.tpot_ms);
        let work = row.terms.own + engine.dearer_ms(self.tokens, self.ask);
        row.terms.ext = work * self.others(engine, &row.load, itl_ms);
        let (ttft_ms, tpot_ms) = (row.ttft_ms, row.tpot_ms);
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
            slow: ask.output * itl_ms * load.share * self.tightness(itl_ms),
            late: 0.0,
            session: row.terms.session,
        };
        let tpot_ms = itl_ms / (1.0 - load.share.min(cost::SHARE_MOST));
        let ttft_ms = terms.drain + transfer_ms + itl_ms;
        Row { terms, work_ms: 0.0, ttft_ms, tpot_ms, leg: Leg::Decode, transfer_ms, ..row }
    }

    /// How much a slower answer matters: less, the more room its SLO leaves.
    fn tightness(&self, tpot_ms: f64) -> f64 {
        match self.ask.tpot_slo_ms {
            slo if slo > 0.0 => (tpot_ms / (TIGHT * slo)).clamp(ROOMY, 1.0),
            _ => 1.0,
        }
    }

    /// What a delay of an engine is multiplied by for the requests there, in times one's own.
    fn others(&self, engine: &Engine, load: &Load, itl_ms: f64) -> f64 {
        let filled = load.kv_tokens as f64 / engine.capacity.max(1) as f64;
        let crowded = match engine.capacity {
            0 => 0.0,
            _ => ((filled - CROWDED) / (1.0 - CROWDED)).clamp(0.0, 1.0),
        };
        let in_time = load.inflight.saturating_sub(load.late) as f64;
        let usual = self.ask.others(itl_ms);
        let others = usual + (FULL_OTHERS - usual) * crowded;
        (in_time + load.late as f64 * crowded) / others
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

    /// Adds what missing an SLO costs. A request that is late whatever is done waits cheaply.
    fn judge(&self, way: &mut Way, soonest_ms: f64) {
        let slo = self.ask.ttft_slo_ms;
        let legs = [Some(&mut way.decode.1), way.prefill.as_mut().map(|seated| &mut seated.1)];
        if slo > 0.0 && soonest_ms > slo {
            for terms in legs.into_iter().flatten().map(|row| &mut row.terms) {
                terms.drain *= cost::HOPELESS;
                terms.slow *= cost::HOPELESS;
            }
        } else if slo > 0.0 && way.ttft_ms > slo {
            way.decode.1.terms.late += cost::MISSED * slo;
        }
        let prefill = way.prefill.map_or(0.0, |(_, row)| row.terms.sum());
        way.cost_ms = prefill + way.decode.1.terms.sum();
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

/// The one of the least cost, as `cost` has it; ties at random.
fn cheapest(ways: &[Way], cost: impl Fn(&Way) -> f64, random: &mut Random) -> Option<Way> {
    let mut best: Option<(&Way, f64)> = None;
    let mut tied = 0;
    for way in ways {
        let own = cost(way);
        match best {
            Some((_, least)) if own > least => continue,
            Some((_, least)) if own == least => {
                tied += 1;
                if random.below(tied) > 0 {
                    continue;
                }
            }
            _ => tied = 1,
        }
        best = Some((way, own));
    }
    best.map(|(way, _)| *way)
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
    let mut whole = rows.to_vec();
    cost::weigh(engines, &mut whole, tokens, ask);
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
        let prefills: Vec<_> = prefills.iter().map(|&at| (at, weighing.prefill(at))).collect();
        for seated in decodes.iter().map(|&at| (at, weighing.decode(at))) {
            let others = prefills.iter().filter(|prefill| prefill.0 != seated.0);
            remote.extend(others.map(|&prefill| weighing.remote(prefill, seated)));
        }
    }
    let soonest = |ways: &[Way]| ways.iter().map(|way| way.ttft_ms).fold(f64::INFINITY, f64::min);
    let soonest_ms = soonest(&local).min(soonest(&remote));
    local.iter_mut().chain(&mut remote).for_each(|way| weighing.judge(way, soonest_ms));
    let mut random = Random(seed);
    // Among themselves, engines that do all of it are preferred as where there are no second legs.
    let local = cheapest(&local, |way| whole[way.decode.0].terms.sum(), &mut random)?;
    let remote = cheapest(&remote, |way| way.cost_ms, &mut random);
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
