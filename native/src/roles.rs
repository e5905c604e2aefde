//! Which engines prefill, which answer, which do both: roles that follow the load.
//!
//! A role restricts what an engine is given, so that engines that do both are the best while there is
//! room: each request then finds its own way (`pair.rs`). When prompts or answers overload the team, an
//! engine that is kept free of the other kind does its own a little better; and one that was kept so for
//! a load that has turned is in the way. Both follow from one prediction,
//!
//! ```text
//! pressure = least over x of max(wait(p + κ(m - x)) / (TTFT SLO - own), step(d + κx) / TPOT SLO)
//! ```
//!
//! for p, d and m engines of each role, x of the m answering at this moment, and κ < 1 for what mixing
//! loses. wait is the 90th percentile of the time in the queue of so many engines that prefill (after
//! Sakasegawa's form of the Allen-Cunneen formula), step the time per token of the requests that run.
//! A prompt's own prefill is left out: no number of engines makes it shorter.
//!
//! One engine moves at a time, after its gain was predicted in several looks one after another, not
//! before the last one has rid itself of the work it gave up and has stayed for `dwell_s`. There is
//! always an engine that may prefill and one that may answer.

use crate::fit::Fit;
use crate::load::Load;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Prefill,
    Decode,
    Mixed,
}

impl Role {
    pub const NAMES: [&'static str; 3] = ["prefill", "decode", "mixed"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub fn letter(self) -> char {
        ['p', 'd', 'm'][self as usize]
    }

    pub fn may_prefill(self) -> bool {
        self != Role::Decode
    }

    pub fn may_decode(self) -> bool {
        self != Role::Prefill
    }
}

/// What the operator wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    pub ttft_slo_ms: f64,
    pub tpot_slo_ms: f64,
    /// An engine keeps a role, and the team its roles, for at least so long.
    pub dwell_s: f64,
    /// Old work may take so long to end before it is not waited for any more.
    pub drain_s: f64,
}

/// The load of the whole team.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Demand {
    /// Prefill work that arrives, in engines that it would keep busy; and that of one prompt.
    pub engines: f64,
    pub own_ms: f64,
    /// Requests that run, or will when their prompt is done, and the KV that they hold.
    pub requests: f64,
    pub kv_tokens: f64,
}

impl Demand {
    /// Of engines' loads. `rate`: prompts per second.
    pub fn of(loads: &[Load], rate: f64) -> Self {
        let sum = |of: fn(&Load) -> f64| loads.iter().map(of).sum::<f64>();
        let engines = sum(|load| load.share);
        Self {
            engines,
            own_ms: if rate > 0.0 { engines / rate * 1e3 } else { 0.0 },
            requests: sum(|load| load.inflight as f64),
            kv_tokens: sum(|load| load.kv_tokens as f64),
        }
    }
}

/// An engine changes its role.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Move {
    pub place: usize,
    pub from: Role,
    pub to: Role,
    /// Pressure as it was, and as it is predicted to be.
    pub before: f64,
    pub after: f64,
}

/// What mixing is taken to lose.
const MIXED: f64 = 0.9;
/// Above this pressure engines are kept for one kind of work: well over what the SLOs allow. Where it
/// is predicted to be below the other without that, they are not.
const HIGH: f64 = 1.5;
const LOW: f64 = 1.0;
/// A move must lower the pressure by this share.
const GAIN: f64 = 0.04;
/// Looks in a row that must agree on a move, and for what share of the dwell they must.
const CONFIRM: u32 = 3;
const CONFIRM_DWELL: f64 = 0.5;
/// (ca² + cs²) / 2 of arrivals and prefills: recorded traffic comes in bursts.
const BURSTS: f64 = 4.0;
/// ln 10 of an exponential tail: from the mean wait to the 90th percentile.
const P90: f64 = 2.3;
/// More load than engines is worse than any wait; by how much over counts.
const MOST: f64 = 1000.0;
/// Steps in which the split of the mixed engines is looked for.
const SPLITS: u32 = 16;

/// Engines by role.
type Counts = [usize; 3];

#[derive(Debug, Clone, Copy, PartialEq)]
struct Wish {
    from: Role,
    to: Role,
    before: f64,
    after: f64,
}

#[derive(Debug, Clone)]
pub struct Controller {
    settings: Settings,
    roles: Vec<Role>,
    /// Those that were declared able to do both.
    movable: Vec<bool>,
    wish: Option<Wish>,
    agreed: u32,
    agreed_s: f64,
    moved_s: f64,
    /// The engine that moved last, until its old work is over.
    draining: Option<usize>,
    pub stuck: u64,
}

impl Controller {
    /// Engines begin with `roles`; an error says what cannot be.
    pub fn new(settings: Settings, roles: Vec<Role>, movable: Vec<bool>) -> Result<Self, String> {
        let Settings { ttft_slo_ms, tpot_slo_ms, dwell_s, drain_s } = settings;
        if [ttft_slo_ms, tpot_slo_ms, dwell_s, drain_s].iter().any(|x| !(x.is_finite() && *x > 0.0))
        {
            return Err("roles follow two SLOs, a dwell and a drain above zero".into());
        }
        let able = |may: fn(Role) -> bool| roles.iter().any(|&role| may(role));
        if roles.len() != movable.len() || !able(Role::may_prefill) || !able(Role::may_decode) {
            return Err("there must be an engine that may prefill and one that may answer".into());
        }
        let (wish, agreed, draining, stuck) = Default::default();
        Ok(Self {
            settings,
            roles,
            movable,
            wish,
            agreed,
            agreed_s: f64::NEG_INFINITY,
            moved_s: f64::NEG_INFINITY,
            draining,
            stuck,
        })
    }

    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// Somebody sets a role, whatever the load.
    pub fn set(&mut self, place: usize, role: Role, now_s: f64) -> Result<(), String> {
        let mut roles = self.roles.clone();
        match (roles.get_mut(place), self.movable.get(place)) {
            (Some(old), Some(true)) => *old = role,
            (Some(old), _) if *old == role => {}
            (Some(_), _) => return Err(format!("engine {place} was not declared for both roles")),
            _ => return Err(format!("there is no engine {place}")),
        }
        let able = |may: fn(Role) -> bool| roles.iter().any(|&role| may(role));
        if !able(Role::may_prefill) || !able(Role::may_decode) {
            return Err("there must be an engine that may prefill and one that may answer".into());
        }
        (self.roles, self.moved_s, self.draining) = (roles, now_s, Some(place));
        (self.wish, self.agreed) = (None, 0);
        Ok(())
    }

    /// Looks at the load; the role that changes, if one does.
    pub fn look(&mut self, loads: &[Load], demand: &Demand, fit: &Fit, now_s: f64) -> Option<Move> {
        self.drain(loads, now_s);
        let wish = self.wish(demand, fit);
        let kind = |wish: Option<Wish>| wish.map(|wish| (wish.from, wish.to));
        if kind(wish) != kind(self.wish) {
            (self.agreed, self.agreed_s) = (0, now_s);
        }
        self.agreed += 1;
        self.wish = wish;
        let wish = wish?;
        let rests = now_s - self.moved_s < self.settings.dwell_s;
        let lasts = now_s - self.agreed_s >= CONFIRM_DWELL * self.settings.dwell_s;
        if rests || self.draining.is_some() || self.agreed < CONFIRM || !lasts {
            return None;
        }
        let place = self.least(&wish, loads)?;
        self.roles[place] = wish.to;
        (self.moved_s, self.draining) = (now_s, Some(place));
        (self.wish, self.agreed) = (None, 0);
        let Wish { from, to, before, after } = wish;
        Some(Move { place, from, to, before, after })
    }

    /// Whether the engine that moved is rid of what it no longer does.
    fn drain(&mut self, loads: &[Load], now_s: f64) {
        let Some(place) = self.draining else { return };
        let left = match self.roles[place] {
            Role::Prefill => loads[place].running(),
            Role::Decode => (loads[place].drain_ms > 0.0) as u64,
            Role::Mixed => 0,
        };
        let over = now_s - self.moved_s > self.settings.drain_s;
        if left == 0 || over {
            self.stuck += u64::from(left > 0);
            self.draining = None;
        }
    }

    fn counts(&self) -> Counts {
        let count = |role: Role| self.roles.iter().filter(|&&known| known == role).count();
        [count(Role::Prefill), count(Role::Decode), count(Role::Mixed)]
    }

    /// The pressure of the roles as they are.
    pub fn pressure(&self, demand: &Demand, fit: &Fit) -> f64 {
        pressure(&self.settings, self.counts(), demand, fit)
    }

    /// The move that helps most: to one kind when the pressure is high, back when it is low.
    fn wish(&self, demand: &Demand, fit: &Fit) -> Option<Wish> {
        use Role::{Decode, Mixed, Prefill};
        let counts = self.counts();
        let before = pressure(&self.settings, counts, demand, fit);
        let moves = [(Prefill, Mixed), (Decode, Mixed), (Mixed, Prefill), (Mixed, Decode)];
        let movable = |role: Role| {
            self.roles.iter().zip(&self.movable).any(|(&known, &may)| may && known == role)
        };
        let wishes =
            moves.into_iter().filter(|&(from, _)| movable(from)).filter_map(|(from, to)| {
                let mut next = counts;
                next[from as usize] -= 1;
                next[to as usize] += 1;
                let [p, d, m] = next;
                let after = pressure(&self.settings, next, demand, fit);
                let helps = (to == Mixed || before > HIGH) && after < before * (1.0 - GAIN);
                let rests = to == Mixed && after < LOW;
                ((p + m > 0 && d + m > 0) && (helps || rests)).then_some(Wish {
                    from,
                    to,
                    before,
                    after,
                })
            });
        wishes.min_by(|a, b| a.after.total_cmp(&b.after))
    }

    /// The engine with the least work to get rid of.
    fn least(&self, wish: &Wish, loads: &[Load]) -> Option<usize> {
        let may = |&at: &usize| self.movable[at] && self.roles[at] == wish.from;
        let work = |at: usize| match wish.to {
            Role::Prefill => loads[at].kv_tokens as f64,
            Role::Decode => loads[at].drain_ms,
            Role::Mixed => loads[at].inflight as f64,
        };
        (0..self.roles.len()).filter(may).min_by(|&a, &b| work(a).total_cmp(&work(b)))
    }
}

/// See the module's text.
fn pressure(settings: &Settings, [p, d, m]: Counts, demand: &Demand, fit: &Fit) -> f64 {
    let [p, d, m] = [p, d, m].map(|count| count as f64);
    let split = |part: u32| {
        let x = m * f64::from(part) / f64::from(SPLITS);
        let prefill = prefill_pressure(settings, p + MIXED * (m - x), demand);
        prefill.max(decode_pressure(settings, d + MIXED * x, demand, fit))
    };
    (0..=SPLITS).map(split).fold(f64::INFINITY, f64::min)
}

fn prefill_pressure(settings: &Settings, engines: f64, demand: &Demand) -> f64 {
    if demand.engines <= 0.0 {
        return 0.0;
    }
    let used = demand.engines / engines.max(1e-9);
    if used >= 1.0 {
        return MOST * used.min(1e6);
    }
    let waits = used.powf((2.0 * (engines + 1.0)).sqrt() - 1.0) / (engines * (1.0 - used));
    let p90_ms = P90 * BURSTS * demand.own_ms * waits;
    // A prompt that takes all of its SLO by itself is not what engines are moved for.
    let room_ms = (settings.ttft_slo_ms - demand.own_ms).max(0.25 * settings.ttft_slo_ms);
    (p90_ms / room_ms).min(MOST)
}

fn decode_pressure(settings: &Settings, engines: f64, demand: &Demand, fit: &Fit) -> f64 {
    if demand.requests <= 0.0 {
        return 0.0;
    }
    let engines = engines.max(1e-9);
    let step_ms = fit.decode_ms(demand.requests / engines, demand.kv_tokens / engines);
    step_ms / settings.tpot_slo_ms
}

#[cfg(test)]
#[path = "roles_test.rs"]
mod tests;
