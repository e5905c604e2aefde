//! What a run comes to: requests in time, hits, times.

use super::run::{Outcome, Run};

/// A time of an answer, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    Ttft,
    Tpot,
    E2e,
}

impl Time {
    pub const NAMES: [(&'static str, Time); 3] =
        [("ttft", Time::Ttft), ("tpot", Time::Tpot), ("e2e", Time::E2e)];

    fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Time::Ttft => outcome.ttft_s,
            Time::Tpot => outcome.tpot_s,
            Time::E2e => outcome.ttft_s + outcome.tpot_s * f64::from(outcome.output - 1),
        }
    }
}

impl Run {
    /// Requests that arrived, the refused ones too.
    pub fn requests(&self) -> u64 {
        self.outcomes.len() as u64 + self.refused
    }

    /// Requests that met both; a bound of 0 = none. An answer of one token meets any time per token.
    pub fn good(&self, ttft_s: f64, tpot_s: f64) -> u64 {
        let within = |bound: f64, time: f64| bound == 0.0 || time <= bound;
        let good =
            self.outcomes.iter().filter(|o| within(ttft_s, o.ttft_s) && within(tpot_s, o.tpot_s));
        good.count() as u64
    }

    pub fn input_tokens(&self) -> u64 {
        self.outcomes.iter().map(|outcome| u64::from(outcome.input)).sum()
    }

    /// Prompt tokens that were found cached.
    pub fn hit_tokens(&self) -> u64 {
        self.outcomes.iter().map(|outcome| u64::from(outcome.hit)).sum()
    }

    /// Means over requests, 0.0 where there are none.
    pub fn mean(&self, time: Time) -> f64 {
        let sum: f64 = self.outcomes.iter().map(|outcome| time.of(outcome)).sum();
        sum / self.outcomes.len().max(1) as f64
    }

    /// The values below which these shares of requests lie.
    pub fn quantiles(&self, time: Time, shares: &[f64]) -> Vec<f64> {
        let mut values: Vec<f64> = self.outcomes.iter().map(|outcome| time.of(outcome)).collect();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| ((values.len() - 1) as f64 * share.clamp(0.0, 1.0)).round() as usize;
        let value = |&share: &f64| if values.is_empty() { 0.0 } else { values[at(share)] };
        shares.iter().map(value).collect()
    }

    /// Requests per engine.
    pub fn spread(&self) -> Vec<u64> {
        let mut counts = vec![0; self.busy_s.len()];
        self.outcomes.iter().for_each(|outcome| counts[outcome.engine] += 1);
        counts
    }
}
