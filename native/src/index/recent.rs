//! Where prompts were sent a moment ago: siblings that come before the engine has announced anything
//! shall follow. Entries live for seconds and are bounded in number; the oldest go first.
//!
//! A prompt enters with its whole chain and leaves with it, and a block lives at least as long as any
//! block after it, so what an engine has of a chain here has no holes and can be searched by halves.

use std::collections::VecDeque;

use super::spread::SpreadMap;

/// Blocks kept, prompts that share them counted again.
const BLOCKS_MAX: usize = 1 << 18;
/// Prompts looked at for their end of life with every prompt that enters.
const SWEEP: usize = 8;

/// Who is about to hold a block, and until when.
enum Holders {
    One(u16, f64),
    Many(Vec<(u16, f64)>),
}

impl Holders {
    fn as_slice(&self) -> Vec<(u16, f64)> {
        match self {
            Holders::One(slot, until) => vec![(*slot, *until)],
            Holders::Many(holders) => holders.to_vec(),
        }
    }

    fn until(&self, slot: u16) -> Option<f64> {
        match self {
            Holders::One(one, until) => (*one == slot).then_some(*until),
            Holders::Many(many) => many.iter().find(|it| it.0 == slot).map(|it| it.1),
        }
    }

    fn set(&mut self, slot: u16, until: f64) {
        match self {
            Holders::One(one, old) if *one == slot => *old = old.max(until),
            Holders::One(one, old) => {
                *self = Holders::Many(vec![(*one, *old), (slot, until)]);
            }
            Holders::Many(many) => match many.iter_mut().find(|it| it.0 == slot) {
                Some(holder) => holder.1 = holder.1.max(until),
                None => many.push((slot, until)),
            },
        }
    }
}

#[derive(Default)]
pub struct Recent {
    blocks: SpreadMap<u64, Holders>,
    prompts: VecDeque<(f64, u16, Box<[u64]>)>,
    held: usize,
}

impl Recent {
    /// Blocks of all prompts.
    pub fn len(&self) -> usize {
        self.held
    }

    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    pub fn bytes(&self) -> usize {
        self.blocks.capacity() * (size_of::<(u64, Holders)>() + 1)
            + self.held * 8
            + self.prompts.capacity() * 32
    }

    /// A prompt with this chain was sent to the slot; it counts until `until`.
    pub fn push(&mut self, slot: u16, chain: &[u64], now: f64, until: f64) {
        for _ in 0..SWEEP {
            match self.prompts.front() {
                Some((end, ..)) if *end <= now => self.pop(),
                _ => break,
            }
        }
        let chain = &chain[..chain.len().min(BLOCKS_MAX)];
        if chain.is_empty() || until <= now {
            return;
        }
        while self.held + chain.len() > BLOCKS_MAX {
            self.pop();
        }
        for sequence in chain {
            self.blocks
                .entry(*sequence)
                .and_modify(|holders| holders.set(slot, until))
                .or_insert(Holders::One(slot, until));
        }
        self.held += chain.len();
        self.prompts.push_back((until, slot, chain.into()));
    }

    /// Takes out the oldest prompt, and those of its blocks no younger one has.
    fn pop(&mut self) {
        let Some((end, slot, chain)) = self.prompts.pop_front() else { return };
        self.drop_blocks(slot, &chain, end);
    }

    /// Takes out a slot's part in blocks that end no later than `end`.
    fn drop_blocks(&mut self, slot: u16, chain: &[u64], end: f64) {
        self.held -= chain.len();
        for sequence in chain {
            let Some(holders) = self.blocks.get_mut(sequence) else { continue };
            let left = match holders {
                Holders::One(one, until) => !(*one == slot && *until <= end),
                Holders::Many(many) => {
                    many.retain(|(one, until)| !(*one == slot && *until <= end));
                    !many.is_empty()
                }
            };
            if !left {
                self.blocks.remove(sequence);
            }
        }
    }

    /// Forgets a slot's prompts.
    pub fn forget(&mut self, slot: u16) {
        let prompts = std::mem::take(&mut self.prompts);
        let (gone, kept) = prompts.into_iter().partition::<VecDeque<_>, _>(|it| it.1 == slot);
        self.prompts = kept;
        for (_, slot, chain) in gone {
            self.drop_blocks(slot, &chain, f64::INFINITY);
        }
    }

    /// Blocks of the chain that are on their way to each slot. `slots` are wanted; `found` is called for
    /// those that have any.
    pub fn lookup(
        &self,
        chain: &[u64],
        slots: &[u16],
        now: f64,
        mut found: impl FnMut(u16, usize),
    ) {
        let alive = |at: usize, slot: u16| {
            let until = self.blocks.get(&chain[at]).and_then(|holders| holders.until(slot));
            until.is_some_and(|until| until > now)
        };
        let Some(first) = chain.first().and_then(|sequence| self.blocks.get(sequence)) else {
            return;
        };
        for (slot, _) in first.as_slice() {
            if !slots.contains(&slot) || !alive(0, slot) {
                continue;
            }
            // Present up to `low`, absent from `high` on.
            let (mut low, mut high) = (0, chain.len());
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match alive(middle, slot) {
                    true => low = middle,
                    false => high = middle,
                }
            }
            found(slot, high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{mix, Random};
    use std::collections::HashMap;

    fn chain(of: &[u64]) -> Vec<u64> {
        of.iter()
            .scan(0, |last, id| {
                *last = mix(*last ^ (id + 1)) & !15;
                Some(*last)
            })
            .collect()
    }

    fn lookup(recent: &Recent, of: &[u64], slots: &[u16], now: f64) -> Vec<(u16, usize)> {
        let mut all = Vec::new();
        recent.lookup(&chain(of), slots, now, |slot, blocks| all.push((slot, blocks)));
        all.sort();
        all
    }

    #[test]
    fn siblings_follow_until_the_time_is_over() {
        let mut recent = Recent::default();
        recent.push(1, &chain(&[1, 2, 3]), 0.0, 5.0);
        recent.push(2, &chain(&[1, 2, 9, 9]), 1.0, 6.0);
        assert_eq!(lookup(&recent, &[1, 2, 3, 4], &[1, 2, 3], 2.0), [(1, 3), (2, 2)]);
        assert_eq!(lookup(&recent, &[1, 2, 3, 4], &[2], 2.0), [(2, 2)]);
        assert_eq!(lookup(&recent, &[1, 2, 3, 4], &[1, 2], 5.0), [(2, 2)]);
        assert_eq!(lookup(&recent, &[7], &[1, 2], 2.0), []);
        recent.forget(2);
        assert_eq!(lookup(&recent, &[1, 2, 9], &[1, 2], 2.0), [(1, 2)]);
        recent.push(1, &[], 100.0, 105.0);
        assert!(recent.is_empty() && recent.blocks.is_empty());
    }

    #[test]
    fn it_finds_what_a_list_of_prompts_says() {
        let mut random = Random(1);
        let mut recent = Recent::default();
        let mut prompts: Vec<(f64, u16, Vec<u64>)> = Vec::new();
        for step in 0..2000 {
            let now = f64::from(step) / 10.0;
            let of: Vec<u64> = (0..1 + random.below(6)).map(|_| random.below(2)).collect();
            let slot = random.below(4) as u16;
            recent.push(slot, &chain(&of), now, now + 5.0);
            prompts.push((now + 5.0, slot, of));
            let asked: Vec<u64> = (0..7).map(|_| random.below(2)).collect();
            let mut expected: HashMap<u16, usize> = HashMap::new();
            for (_, slot, of) in prompts.iter().filter(|prompt| prompt.0 > now) {
                let common = of.iter().zip(&asked).take_while(|(a, b)| a == b).count();
                let best = expected.entry(*slot).or_default();
                *best = common.max(*best);
            }
            let mut expected: Vec<_> = expected.into_iter().filter(|it| it.1 > 0).collect();
            expected.sort();
            assert_eq!(lookup(&recent, &asked, &[0, 1, 2, 3], now), expected);
            assert!(recent.prompts.len() < 60, "what is over goes");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut recent = Recent::default();
        for prompt in 0..100u64 {
            let of: Vec<u64> = (0..4000).map(|at| prompt * 10_000 + at).collect();
            recent.push(0, &chain(&of), 0.0, 5.0);
        }
        assert!(recent.len() <= BLOCKS_MAX && recent.blocks.len() <= BLOCKS_MAX);
        let last: Vec<u64> = (0..4000).map(|at| 99 * 10_000 + at).collect();
        assert_eq!(lookup(&recent, &last, &[0], 1.0), [(0, 4000)]);
        recent.push(0, &vec![16; BLOCKS_MAX + 5], 0.0, 5.0);
        assert_eq!(recent.len(), BLOCKS_MAX);
    }
}
