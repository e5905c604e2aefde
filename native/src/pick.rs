//! Choosing one engine of an upstream, by position among its engines. `None`: nobody is eligible.
//!
//! Eligibility is a mask, one byte per engine, not zero = may be picked; the caller keeps it. No pick
//! draws its own random numbers: the seed is an argument.

use crate::hash::{mix, text, Random};
use crate::ledger::Ledger;
use crate::slots::Handle;

/// Largest weight of an engine; sums of all weights stay far inside 64 bits.
pub const WEIGHT_MAX: u32 = 1 << 20;

pub fn check_weights(weights: &[u32]) -> Result<(), String> {
    match weights.iter().find(|&&weight| !(1..=WEIGHT_MAX).contains(&weight)) {
        Some(weight) => Err(format!("a weight must be from 1 to {WEIGHT_MAX}, got {weight}")),
        None => Ok(()),
    }
}

pub fn check_mask(eligible: &[u8], engines: usize) -> Result<(), String> {
    match eligible.len() == engines {
        true => Ok(()),
        false => Err(format!("the mask has {} bytes for {engines} engines", eligible.len())),
    }
}

fn positions(eligible: &[u8]) -> impl Iterator<Item = usize> + '_ {
    eligible.iter().enumerate().filter(|(_, &may)| may != 0).map(|(i, _)| i)
}

/// One engine as a pick by load sees it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub engine: Handle,
    pub weight: u32,
    /// Most requests in flight from all workers; 0 = no limit.
    pub max_conns: u32,
}

impl Candidate {
    fn is_full(&self, inflight: u64) -> bool {
        self.max_conns != 0 && inflight >= u64::from(self.max_conns)
    }
}

/// Fewest requests in flight per weight, engines at their limit left out. Ties are broken at random, in
/// proportion to weight, so that an idle upstream is not always entered at its first engine.
pub fn least(ledger: &Ledger, all: &[Candidate], eligible: &[u8], seed: u64) -> Option<usize> {
    let mut random = Random(seed);
    let mut best: Option<(usize, u64, u64)> = None;
    let mut tied_weight = 0u64;
    for i in positions(eligible) {
        let candidate = &all[i];
        let inflight = ledger.inflight(candidate.engine);
        if candidate.is_full(inflight) {
            continue;
        }
        let weight = u64::from(candidate.weight);
        // inflight / weight against the best one's, without division.
        let order = best.map(|(_, load, per)| (inflight * per).cmp(&(load * weight)));
        match order {
            Some(std::cmp::Ordering::Greater) => continue,
            Some(std::cmp::Ordering::Equal) => {
                tied_weight += weight;
                if random.below(tied_weight) >= weight {
                    continue;
                }
            }
            Some(std::cmp::Ordering::Less) | None => tied_weight = weight,
        }
        best = Some((i, inflight, weight));
    }
    best.map(|(i, _, _)| i)
}

/// Drawn at random in proportion to weight, engines at their limit left out. `two`: of two that differ, the
/// one with fewer requests in flight per weight; the first drawn where they are equal.
pub fn random(
    ledger: &Ledger,
    all: &[Candidate],
    eligible: &[u8],
    seed: u64,
    two: bool,
) -> Option<usize> {
    let mut random = Random(seed);
    let fits = |i: &usize| !all[*i].is_full(ledger.inflight(all[*i].engine));
    let mut left: Vec<usize> = positions(eligible).filter(fits).collect();
    let mut draw = |left: &mut Vec<usize>| {
        let total = left.iter().map(|&i| u64::from(all[i].weight)).sum::<u64>();
        let mut at = if total == 0 { 0 } else { random.below(total) };
        let place = left.iter().position(|&i| {
            let weight = u64::from(all[i].weight);
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        })?;
        Some(left.swap_remove(place))
    };
    let first = draw(&mut left)?;
    let Some(second) = two.then(|| draw(&mut left)).flatten() else { return Some(first) };
    let load =
        |i: usize, other: usize| ledger.inflight(all[i].engine) * u64::from(all[other].weight);
    Some(if load(second, first) < load(first, second) { second } else { first })
}

/// Clears the engines at their limit out of a mask; false if none was.
pub fn leave_out_full(ledger: &Ledger, all: &[Candidate], eligible: &mut [u8]) -> bool {
    let mut changed = false;
    for (candidate, may) in all.iter().zip(eligible) {
        let limited = *may != 0 && candidate.max_conns != 0;
        if limited && candidate.is_full(ledger.inflight(candidate.engine)) {
            *may = 0;
            changed = true;
        }
    }
    changed
}

/// Smooth weighted round robin: turns are spread evenly, not in runs of one engine.
///
/// Each turn every eligible engine gains its weight; the one with most is picked and pays what all
/// gained together.
#[derive(Debug, Clone)]
pub struct RoundRobin {
    weights: Vec<u32>,
    credit: Vec<i64>,
}

impl RoundRobin {
    pub fn new(weights: Vec<u32>) -> Result<Self, String> {
        check_weights(&weights)?;
        let credit = vec![0; weights.len()];
        Ok(Self { weights, credit })
    }

    pub fn len(&self) -> usize {
        self.weights.len()
    }

    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    pub fn next(&mut self, eligible: &[u8]) -> Option<usize> {
        let mut total = 0;
        let mut best = None;
        for i in positions(eligible) {
            let weight = i64::from(self.weights[i]);
            self.credit[i] += weight;
            total += weight;
            match best {
                Some(b) if self.credit[i] <= self.credit[b] => {}
                _ => best = Some(i),
            }
        }
        self.credit[best?] -= total;
        best
    }

    /// The same turns for another list of engines: `from[i]` is where engine i was, or `None` if new.
    pub fn rebuilt(&self, weights: Vec<u32>, from: &[Option<usize>]) -> Result<Self, String> {
        let mut next = Self::new(weights)?;
        if from.len() != next.len() {
            return Err(format!("{} origins for {} engines", from.len(), next.len()));
        }
        for (credit, origin) in next.credit.iter_mut().zip(from) {
            if let Some(old) = origin {
                *credit = *self.credit.get(*old).ok_or("an origin is no engine of before")?;
            }
        }
        // Turns owed are a sum of zero; what engines that left were owed would unbalance it for good.
        let sum: i64 = next.credit.iter().sum();
        let len = next.len().max(1) as i64;
        for (i, credit) in next.credit.iter_mut().enumerate() {
            *credit -= sum.div_euclid(len) + i64::from((i as i64) < sum.rem_euclid(len));
        }
        Ok(next)
    }
}

/// Weighted rendezvous hashing: every key ranks all engines, each key by itself.
///
/// An engine that comes takes only what it ranks first for, one that leaves gives up only its own keys,
/// a change of weight moves only its share; which engine is next after a failure differs from key to key.
/// Depends on names and weights alone: processes and machines agree without talking.
#[derive(Debug, Clone)]
pub struct HashRing {
    seeds: Vec<u64>,
    weights: Vec<u32>,
    equal: bool,
}

impl HashRing {
    pub fn new(names: &[String], weights: Vec<u32>) -> Result<Self, String> {
        check_weights(&weights)?;
        if names.len() != weights.len() {
            return Err(format!("{} names for {} weights", names.len(), weights.len()));
        }
        let equal = weights.windows(2).all(|pair| pair[0] == pair[1]);
        Ok(Self { seeds: names.iter().map(|n| text(n.as_bytes())).collect(), weights, equal })
    }

    pub fn len(&self) -> usize {
        self.weights.len()
    }

    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Uniform in (0, 1), of the key and the engine.
    fn draw(&self, key: u64, i: usize) -> f64 {
        let bits = mix(key ^ self.seeds[i]) >> 11;
        (bits as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// The lowest rank wins: exponentially distributed with the weight as rate, so that engine i wins a
    /// share of weight_i / sum. With equal weights the order needs no logarithm.
    fn rank(&self, key: u64, i: usize) -> f64 {
        match self.equal {
            true => -self.draw(key, i),
            false => -self.draw(key, i).ln() / f64::from(self.weights[i]),
        }
    }

    pub fn pick(&self, key: &[u8], eligible: &[u8]) -> Option<usize> {
        let key = text(key);
        let ranked = positions(eligible).map(|i| (self.rank(key, i), i));
        ranked.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, i)| i)
    }

    /// The first `limit` engines for a key, best first.
    pub fn order(&self, key: &[u8], eligible: &[u8], limit: usize) -> Vec<usize> {
        let key = text(key);
        let mut ranked: Vec<_> = positions(eligible).map(|i| (self.rank(key, i), i)).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        ranked.into_iter().take(limit).map(|(_, i)| i).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Work;

    #[test]
    fn round_robin_is_smooth() {
        let mut turns = RoundRobin::new(vec![5, 1, 1]).unwrap();
        let picks: Vec<_> = (0..7).map(|_| turns.next(&[1, 1, 1]).unwrap()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(turns.next(&[0, 0, 0]), None);
        assert_eq!(turns.next(&[0, 0, 1]), Some(2));
        assert!(RoundRobin::new(vec![0]).is_err());
    }

    #[test]
    fn turns_survive_a_reload() {
        let mut turns = RoundRobin::new(vec![3, 2, 1]).unwrap();
        assert_eq!((0..4).filter_map(|_| turns.next(&[1, 1, 1])).last(), Some(2));
        let mut same = turns.rebuilt(vec![3, 2, 1], &[Some(0), Some(1), Some(2)]).unwrap();
        assert_eq!(same.credit, turns.credit);
        assert_eq!(same.next(&[1; 3]), turns.next(&[1; 3]));
        let other = turns.rebuilt(vec![1, 1], &[Some(2), None]).unwrap();
        assert_eq!(other.credit.iter().sum::<i64>(), 0);
        assert!(turns.rebuilt(vec![1], &[Some(3)]).is_err());
        assert!(turns.rebuilt(vec![1], &[]).is_err());
        assert!(turns.rebuilt(vec![], &[]).unwrap().is_empty());
    }

    #[test]
    fn least_weighs_and_breaks_ties_by_weight() {
        let ledger = Ledger::open(1, 4, None).unwrap();
        ledger.shared.bind(0).unwrap();
        let all: Vec<_> = [(1, 0), (3, 0), (1, 2)]
            .map(|(weight, max_conns)| Candidate {
                engine: ledger.add_engine().unwrap(),
                weight,
                max_conns,
            })
            .into();
        let mut hits = [0; 3];
        (0..5000).for_each(|seed| hits[least(&ledger, &all, &[1, 1, 1], seed).unwrap()] += 1);
        for (hit, share) in hits.iter().zip([0.2, 0.6, 0.2]) {
            assert!((f64::from(*hit) / 5000.0 - share).abs() < 0.03, "{hits:?}");
        }
        let take = |i: usize| ledger.acquire(all[i].engine, Work::default()).unwrap();
        assert!([0, 1, 1, 2, 2].into_iter().all(take));
        assert_eq!(least(&ledger, &all, &[1, 1, 1], 1), Some(1));
        assert_eq!(least(&ledger, &all, &[0, 0, 1], 1), None);
        let mut mask = [1, 1, 1];
        assert!(leave_out_full(&ledger, &all, &mut mask));
        assert_eq!(mask, [1, 1, 0]);
        assert!(!leave_out_full(&ledger, &all, &mut mask));
    }

    #[test]
    fn keys_move_no_more_than_they_must() {
        let names: Vec<String> = (0..10).map(|i| format!("10.0.0.{i}:8000")).collect();
        let ring = HashRing::new(&names, vec![1; 10]).unwrap();
        let fewer = HashRing::new(&names[..9], vec![1; 9]).unwrap();
        let mut weights = vec![1; 10];
        weights[3] = 2;
        let heavier = HashRing::new(&names, weights).unwrap();
        let mut counts = [0; 10];
        let mut heavy = 0;
        for key in 0..20_000u32 {
            let key = key.to_le_bytes();
            let place = ring.pick(&key, &[1; 10]).unwrap();
            counts[place] += 1;
            let order = ring.order(&key, &[1; 10], 10);
            assert_eq!(order[0], place);
            let mut without = [1; 10];
            without[place] = 0;
            assert_eq!(ring.pick(&key, &without), Some(order[1]));
            if place != 9 {
                assert_eq!(fewer.pick(&key, &[1; 9]), Some(place));
            }
            let with_weight = heavier.pick(&key, &[1; 10]).unwrap();
            assert!(with_weight == place || with_weight == 3);
            heavy += u32::from(with_weight == 3);
        }
        assert!(counts.iter().all(|&n| (1850..2150).contains(&n)), "{counts:?}");
        assert!((3500..3770).contains(&heavy), "{heavy}");
        assert_eq!(ring.pick(b"k", &[0; 10]), None);
    }
}
