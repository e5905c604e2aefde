//! Where prompts were sent a moment ago: siblings that come before the engine has announced anything
//! shall follow. Entries live for seconds and are bounded in number; the oldest go first. One whose
//! request is over goes sooner: from then on the engine's events are the truth.
//!
//! A prompt enters with its whole chain and leaves with it, and a block lives at least as long as any
//! block after it, so what an engine has of a chain here has no holes and can be searched by halves.

use std::collections::VecDeque;

use super::spread::SpreadMap;
use super::{lock, Index};
use crate::prompt::Prompt;

/// Blocks kept, prompts that share them counted again.
const BLOCKS_MAX: usize = 1 << 18;
/// Prompts looked at for their end of life with every prompt that enters.
const SWEEP: usize = 8;

/// A slot that is about to hold a block: by how many prompts, and until when.
#[derive(Clone, Copy)]
struct Holder {
    slot: u16,
    prompts: u32,
    until: f64,
}

enum Holders {
    One(Holder),
    Many(Vec<Holder>),
}

impl Holders {
    fn as_slice(&self) -> &[Holder] {
        match self {
            Holders::One(one) => std::slice::from_ref(one),
            Holders::Many(many) => many,
        }
    }

    fn until(&self, slot: u16) -> Option<f64> {
        self.as_slice().iter().find(|it| it.slot == slot).map(|it| it.until)
    }

    fn add(&mut self, new: Holder) {
        let known = match self {
            Holders::One(one) => Some(one).filter(|it| it.slot == new.slot),
            Holders::Many(many) => many.iter_mut().find(|it| it.slot == new.slot),
        };
        if let Some(known) = known {
            known.prompts += 1;
            known.until = known.until.max(new.until);
            return;
        }
        match self {
            Holders::One(one) => *self = Holders::Many(vec![*one, new]),
            Holders::Many(many) => many.push(new),
        }
    }

    /// Takes out one prompt of a slot; false when nobody is left.
    fn drop_one(&mut self, slot: u16) -> bool {
        match self {
            Holders::One(one) => {
                one.prompts -= u32::from(one.slot == slot);
                one.prompts > 0
            }
            Holders::Many(many) => {
                many.retain_mut(|it| {
                    it.prompts -= u32::from(it.slot == slot);
                    it.prompts > 0
                });
                !many.is_empty()
            }
        }
    }
}

/// A prompt on its way; without blocks when it is over.
struct Sent {
    number: u64,
    until: f64,
    slot: u16,
    chain: Box<[u64]>,
}

#[derive(Default)]
pub struct Recent {
    blocks: SpreadMap<u64, Holders>,
    prompts: VecDeque<Sent>,
    /// Prompts whose request is over, and from when on they count no more.
    over: VecDeque<(f64, u64)>,
    next: u64,
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
            + self.prompts.capacity() * size_of::<Sent>()
            + self.over.capacity() * size_of::<(f64, u64)>()
    }

    /// A prompt with this chain was sent to the slot; it counts until `until`. Its number is for
    /// `settle`.
    pub fn push(&mut self, slot: u16, chain: &[u64], now: f64, until: f64) -> u64 {
        self.sweep(now);
        for _ in 0..SWEEP {
            match self.prompts.front() {
                Some(oldest) if oldest.until <= now || oldest.chain.is_empty() => self.pop(),
                _ => break,
            }
        }
        let number = self.next;
        self.next += 1;
        let chain = &chain[..chain.len().min(BLOCKS_MAX)];
        if chain.is_empty() || until <= now {
            return number;
        }
        while self.held + chain.len() > BLOCKS_MAX {
            self.pop();
        }
        let holder = Holder { slot, prompts: 1, until };
        for sequence in chain {
            self.blocks
                .entry(*sequence)
                .and_modify(|holders| holders.add(holder))
                .or_insert(Holders::One(holder));
        }
        self.held += chain.len();
        self.prompts.push_back(Sent { number, until, slot, chain: chain.into() });
        number
    }

    /// The request of a prompt is over: it counts until `at` at the latest. Times of calls do not fall.
    pub fn settle(&mut self, number: u64, at: f64) {
        if self.find(number).is_some() {
            self.over.push_back((at, number));
        }
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.prompts.binary_search_by_key(&number, |it| it.number).ok()
    }

    /// Takes out the prompts that are over by now.
    fn sweep(&mut self, now: f64) {
        while let Some((at, number)) = self.over.front().copied() {
            if at > now {
                break;
            }
            self.over.pop_front();
            if let Some(at) = self.find(number) {
                let sent = &mut self.prompts[at];
                let (slot, chain) = (sent.slot, std::mem::take(&mut sent.chain));
                self.drop_blocks(slot, &chain);
            }
        }
    }

    /// Takes out the oldest prompt.
    fn pop(&mut self) {
        let Some(Sent { slot, chain, .. }) = self.prompts.pop_front() else { return };
        self.drop_blocks(slot, &chain);
    }

    fn drop_blocks(&mut self, slot: u16, chain: &[u64]) {
        self.held -= chain.len();
        for sequence in chain {
            if self.blocks.get_mut(sequence).is_some_and(|holders| !holders.drop_one(slot)) {
                self.blocks.remove(sequence);
            }
        }
    }

    /// Forgets a slot's prompts.
    pub fn forget(&mut self, slot: u16) {
        let prompts = std::mem::take(&mut self.prompts);
        let (gone, kept) = prompts.into_iter().partition::<VecDeque<_>, _>(|it| it.slot == slot);
        self.prompts = kept;
        for Sent { slot, chain, .. } in gone {
            self.drop_blocks(slot, &chain);
        }
    }

    /// Blocks of the chain that are on their way to each slot. `slots` are wanted; `found` is called for
    /// those that have any.
    pub fn lookup(
        &mut self,
        chain: &[u64],
        slots: &[u16],
        now: f64,
        mut found: impl FnMut(u16, usize),
    ) {
        self.sweep(now);
        let alive = |at: usize, slot: u16| {
            let until = self.blocks.get(&chain[at]).and_then(|holders| holders.until(slot));
            until.is_some_and(|until| until > now)
        };
        let Some(first) = chain.first().and_then(|sequence| self.blocks.get(sequence)) else {
            return;
        };
        for &Holder { slot, .. } in first.as_slice() {
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

impl Index {
    /// A prompt was sent to an engine: until `ttl` seconds from `now` it counts as there. Its number.
    pub fn predict(&self, slot: u16, prompt: &Prompt, now: f64, ttl: f64) -> u64 {
        let size = self.shared.read().views.get(slot as usize).map_or(0, |view| view.block_size);
        let chain = if size > 0 { prompt.hashes(size as usize) } else { &[] };
        lock(&self.recent).push(slot, chain, now, now + ttl)
    }

    /// The request of a prediction is over: the engine's events are the truth from `at` on.
    pub fn settle(&self, prediction: u64, at: f64) {
        lock(&self.recent).settle(prediction, at);
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

    fn lookup(recent: &mut Recent, of: &[u64], slots: &[u16], now: f64) -> Vec<(u16, usize)> {
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
        assert_eq!(lookup(&mut recent, &[1, 2, 3, 4], &[1, 2, 3], 2.0), [(1, 3), (2, 2)]);
        assert_eq!(lookup(&mut recent, &[1, 2, 3, 4], &[2], 2.0), [(2, 2)]);
        assert_eq!(lookup(&mut recent, &[1, 2, 3, 4], &[1, 2], 5.0), [(2, 2)]);
        assert_eq!(lookup(&mut recent, &[7], &[1, 2], 2.0), []);
        recent.forget(2);
        assert_eq!(lookup(&mut recent, &[1, 2, 9], &[1, 2], 2.0), [(1, 2)]);
        recent.push(1, &[], 100.0, 105.0);
        assert!(recent.is_empty() && recent.blocks.is_empty());
    }

    #[test]
    fn a_prompt_whose_request_is_over_leaves_its_siblings() {
        let mut recent = Recent::default();
        let first = recent.push(1, &chain(&[1, 2, 3]), 0.0, 5.0);
        let second = recent.push(1, &chain(&[1, 2]), 0.5, 5.5);
        recent.settle(first, 1.5);
        assert_eq!(lookup(&mut recent, &[1, 2, 3], &[1], 1.0), [(1, 3)]);
        assert_eq!(lookup(&mut recent, &[1, 2, 3], &[1], 1.5), [(1, 2)]);
        recent.settle(second, 2.0);
        recent.settle(second, 2.0);
        recent.settle(99, 2.0);
        assert_eq!(lookup(&mut recent, &[1, 2, 3], &[1], 2.0), []);
        assert!(recent.is_empty() && recent.blocks.is_empty() && recent.over.is_empty());
        recent.push(1, &chain(&[1]), 2.0, 7.0);
        assert_eq!(recent.prompts.len(), 1, "what is over goes with the next that enters");
    }

    #[test]
    fn it_finds_what_a_list_of_prompts_says() {
        let mut random = Random(1);
        let mut recent = Recent::default();
        let mut prompts: Vec<(f64, u16, Vec<u64>)> = Vec::new();
        let mut numbers: Vec<u64> = Vec::new();
        for step in 0..2000 {
            let now = f64::from(step) / 10.0;
            let of: Vec<u64> = (0..1 + random.below(6)).map(|_| random.below(2)).collect();
            let slot = random.below(4) as u16;
            numbers.push(recent.push(slot, &chain(&of), now, now + 5.0));
            prompts.push((now + 5.0, slot, of));
            if random.below(2) == 0 {
                let over = prompts.len() - 1 - (random.below(20) as usize).min(prompts.len() - 1);
                recent.settle(numbers[over], now + 0.5);
                prompts[over].0 = prompts[over].0.min(now + 0.5);
            }
            let asked: Vec<u64> = (0..7).map(|_| random.below(2)).collect();
            let mut expected: HashMap<u16, usize> = HashMap::new();
            for (_, slot, of) in prompts.iter().filter(|prompt| prompt.0 > now) {
                let common = of.iter().zip(&asked).take_while(|(a, b)| a == b).count();
                let best = expected.entry(*slot).or_default();
                *best = common.max(*best);
            }
            let mut expected: Vec<_> = expected.into_iter().filter(|it| it.1 > 0).collect();
            expected.sort();
            assert_eq!(lookup(&mut recent, &asked, &[0, 1, 2, 3], now), expected);
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
        assert_eq!(lookup(&mut recent, &last, &[0], 1.0), [(0, 4000)]);
        recent.push(0, &vec![16; BLOCKS_MAX + 5], 0.0, 5.0);
        assert_eq!(recent.len(), BLOCKS_MAX);
    }
}
