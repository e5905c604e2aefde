//! How a prompt's prefix is measured against what engines hold.
//!
//! The walk goes block by block and keeps the engines that still have all of them as bits of a mask, so
//! a block costs one search and one AND, however many engines there are. It does not jump: a search that
//! jumps ahead cannot see a hole that an eviction has left, and what lies past a hole is no hit.

use super::group::{Group, Role};
use super::holders::{Holders, WORDS_MAX};
use super::sizes::Sizes;
use super::slot::Slot;

/// Blocks whose cells are asked for ahead of their turn.
const AHEAD: usize = 24;

/// A lane whose blocks matter near a prefix's end only.
#[derive(Clone, Copy, Debug)]
struct Tail {
    lane: u16,
    /// Blocks that must be there, the last one at the prefix's end.
    needs: u32,
    /// Blocks of the whole groups to one of this group.
    stride: u32,
}

impl Tail {
    /// Of a group that needs so many of its blocks. Its blocks are seen where they end with one of
    /// ours, whichever are the larger ones.
    fn of(group: &Group, needs: u32, size: u32) -> Tail {
        let (theirs, ours) = (u64::from(group.size), u64::from(size));
        let (mut a, mut b) = (theirs, ours);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        let common = theirs / a * ours;
        let needs = (u64::from(needs) * theirs).div_ceil(common).max(1);
        let clip = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Tail { lane: group.lane, needs: clip(needs), stride: clip(common / ours) }
    }
}

/// What a lookup must know of an engine.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Tokens per block; 0 for a slot that nobody has.
    pub block_size: u32,
    /// True if the engine has said its block size.
    pub told: bool,
    pub sizes: Sizes,
    /// Lanes that must have every block.
    whole: Vec<u16>,
    tails: Vec<Tail>,
    /// The lane of blocks assumed from routing decisions.
    pub assumed: Option<u16>,
    /// The lane of the store that it can load from.
    pub store: Option<u16>,
}

impl View {
    /// Of an engine whose blocks are of `otherwise` tokens where it has not said.
    pub fn of(slot: &Slot, otherwise: u32) -> View {
        let told = slot.block_size() > 0;
        let size = if told { slot.block_size() } else { otherwise };
        let mut view = View { block_size: size, told, ..View::default() };
        // An engine whose groups are all windows keeps no whole prefix; it is credited with what it
        // would be credited with if it did, which is less.
        let windows_only = slot.groups.iter().all(|group| group.role != Role::Whole);
        for group in &slot.groups {
            match group.role.needs(group.size) {
                Some(needs) if !windows_only => {
                    view.tails.push(Tail::of(group, needs, size));
                }
                _ => view.whole.push(group.lane),
            }
        }
        view
    }
}

/// Tokens of a prompt's prefix that an engine has, contiguous from the start, in the order in which the
/// engine would use them. Whole blocks, never the prompt's last token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    pub device: u32,
    pub host: u32,
    pub disk: u32,
    pub remote: u32,
    /// Beyond the others: sent there a moment ago, not announced yet.
    pub predicted: u32,
}

impl Overlap {
    /// Tokens that need no computing there.
    pub fn total(&self) -> u32 {
        self.device + self.host + self.disk + self.remote + self.predicted
    }
}

/// Per lane: blocks on the device, then in the three tiers below.
#[derive(Clone, Copy, Default)]
struct Run {
    device: u32,
    below: [u32; 3],
}

/// Memory of a walk, kept between walks.
#[derive(Default)]
pub struct Walk {
    runs: Vec<Run>,
    /// Device masks block by block, where a tail has to be looked at.
    rows: Vec<u64>,
    words: usize,
    /// Of each store: its lane, and the words of a mask of the lanes that reach it.
    stores: Vec<(u16, [u64; WORDS_MAX])>,
}

impl Walk {
    /// Follows the chain as far as any lane of these views has it.
    pub fn follow<'v>(
        &mut self,
        holders: &Holders,
        chain: &[u64],
        views: impl Iterator<Item = &'v View> + Clone,
    ) {
        match holders.words() {
            ..=1 => self.walk::<1>(holders, chain, views),
            2 => self.walk::<2>(holders, chain, views),
            3..=4 => self.walk::<4>(holders, chain, views),
            5..=8 => self.walk::<8>(holders, chain, views),
            _ => self.walk::<WORDS_MAX>(holders, chain, views),
        }
    }

    fn walk<'v, const W: usize>(
        &mut self,
        holders: &Holders,
        chain: &[u64],
        views: impl Iterator<Item = &'v View> + Clone,
    ) {
        self.words = W;
        self.runs.clear();
        self.runs.resize(W * 64, Run::default());
        self.rows.clear();
        let keep = views.clone().any(|view| !view.tails.is_empty());
        let (mut alive, mut below) = ([0u64; W], [0u64; W]);
        self.gather(views.clone());
        let lanes = |view: &'v View| view.whole.iter().chain(&view.assumed).chain(&view.store);
        for lane in views.flat_map(lanes) {
            // A lane beyond the words in use holds nothing yet.
            if let Some(word) = alive.get_mut(*lane as usize / 64) {
                *word |= 1 << (lane % 64);
            }
        }
        chain.iter().take(AHEAD).for_each(|sequence| holders.prefetch(*sequence));
        for (at, sequence) in chain.iter().enumerate() {
            if let Some(ahead) = chain.get(at + AHEAD) {
                holders.prefetch(*ahead);
            }
            let Some(masks) = holders.masks::<W>(*sequence) else {
                return self.end(&alive, at);
            };
            if keep {
                self.rows.extend_from_slice(&masks[0]);
            }
            let shared = (!self.stores.is_empty()).then(|| self.shared(&masks));
            let mut any = 0;
            for word in 0..W {
                let left = alive[word] & !masks[0][word];
                if left != 0 {
                    self.end_word(word, left, at);
                    alive[word] &= masks[0][word];
                }
                let mut lower = [masks[1][word], masks[2][word], masks[3][word]];
                if let Some(shared) = &shared {
                    lower.iter_mut().zip(shared).for_each(|(mask, row)| *mask |= row[word]);
                }
                below[word] = (below[word] | left) & (lower[0] | lower[1] | lower[2]);
                if below[word] != 0 {
                    self.count(word, below[word], lower);
                }
                any |= alive[word] | below[word];
            }
            if any == 0 {
                return;
            }
        }
        self.end(&alive, chain.len());
    }

    /// Who reaches which store. Nothing to do where there is none.
    fn gather<'v>(&mut self, views: impl Iterator<Item = &'v View>) {
        self.stores.clear();
        for view in views {
            let Some(store) = view.store else { continue };
            let at = self.stores.iter().position(|it| it.0 == store).unwrap_or_else(|| {
                self.stores.push((store, [0; WORDS_MAX]));
                self.stores.len() - 1
            });
            for lane in &view.whole {
                self.stores[at].1[*lane as usize / 64] |= 1 << (lane % 64);
            }
        }
    }

    /// In which tiers below the device a block lies for the lanes that reach a store.
    fn shared<const W: usize>(&self, masks: &[[u64; W]; 4]) -> [[u64; W]; 3] {
        let mut shared = [[0; W]; 3];
        for (lane, reach) in &self.stores {
            let at = *lane as usize / 64;
            for (tier, row) in shared.iter_mut().enumerate() {
                let word = masks[tier + 1].get(at).copied().unwrap_or(0);
                if word >> (lane % 64) & 1 == 1 {
                    row.iter_mut().zip(reach).for_each(|(word, reach)| *word |= reach);
                }
            }
        }
        shared
    }

    fn end(&mut self, alive: &[u64], blocks: usize) {
        for (word, lanes) in alive.iter().enumerate() {
            self.end_word(word, *lanes, blocks);
        }
    }

    fn end_word(&mut self, word: usize, lanes: u64, blocks: usize) {
        for lane in bits(lanes) {
            self.runs[word * 64 + lane].device = blocks as u32;
        }
    }

    fn count(&mut self, word: usize, lanes: u64, lower: [u64; 3]) {
        for lane in bits(lanes) {
            let tier = lower.iter().position(|mask| mask >> lane & 1 == 1).unwrap_or(0);
            self.runs[word * 64 + lane].below[tier] += 1;
        }
    }

    /// What an engine has of the chain that was followed.
    pub fn overlap(&self, view: &View) -> Overlap {
        let size = view.block_size;
        let run = |lane: &u16| self.runs.get(*lane as usize).copied().unwrap_or_default();
        let tokens = |run: Run, device: u32, below: bool| Overlap {
            device: device * size,
            host: if below { run.below[0] * size } else { 0 },
            disk: if below { run.below[1] * size } else { 0 },
            remote: if below { run.below[2] * size } else { 0 },
            predicted: 0,
        };
        let told = match &view.whole[..] {
            [] => match view.store {
                Some(lane) => tokens(run(&lane), 0, true),
                None => Overlap::default(),
            },
            [lane] if view.tails.is_empty() => tokens(run(lane), run(lane).device, true),
            // Which lower blocks of which group a connector would load is not told: no credit for them.
            lanes => {
                let whole = lanes.iter().map(|lane| run(lane).device).min().unwrap_or(0);
                tokens(Run::default(), self.boundary(&view.tails, whole), false)
            }
        };
        match view.assumed.map(|lane| run(&lane)) {
            Some(assumed) if assumed.device * size > told.total() => {
                tokens(assumed, assumed.device, true)
            }
            _ => told,
        }
    }

    /// The longest prefix of at most so many blocks at whose end every tail is there.
    fn boundary(&self, tails: &[Tail], mut blocks: u32) -> u32 {
        loop {
            let shorter = tails.iter().fold(blocks, |blocks, tail| self.tail(tail, blocks));
            if shorter == blocks {
                return blocks;
            }
            blocks = shorter;
        }
    }

    /// The longest prefix of at most so many blocks that ends with what the tail needs.
    fn tail(&self, tail: &Tail, blocks: u32) -> u32 {
        let (word, bit) = (tail.lane as usize / 64, tail.lane % 64);
        let has = |block: u32| match self.rows.get((block - 1) as usize * self.words + word) {
            Some(row) => row >> bit & 1 == 1,
            None => false,
        };
        let mut end = blocks - blocks % tail.stride;
        let mut from = end;
        // Towards the start, for a run of what is needed; one that reaches the start is enough.
        while from > 0 {
            if !has(from) {
                end = from - tail.stride;
            } else if (end - from) / tail.stride + 1 >= tail.needs {
                return end;
            }
            from -= tail.stride;
        }
        end
    }
}

/// Positions of the bits that are set.
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}
