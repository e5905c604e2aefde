use super::*;
use crate::blocks;
use crate::index::PAIR_BYTES;
use crate::prompt::Prompt;

const SIZE: usize = 16;

fn ids(from: u32, blocks: u32) -> Vec<u32> {
    (from..from + blocks * SIZE as u32).collect()
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(0xa0 | text.len() as u8);
    out.extend(text.as_bytes());
}

fn numbers(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>) {
    out.push(0xdc);
    out.extend((numbers.len() as u16).to_be_bytes());
    for number in numbers {
        out.push(0xcf);
        out.extend(number.to_be_bytes());
    }
}

/// A batch of one event: what an engine says of its device, with tokens, or a store without. Blocks
/// from the `first` on of what `of` is the beginning of.
fn event(name: &str, of: &[u32], place: Option<(&str, &str)>, tokens: bool) -> Vec<u8> {
    part(name, of, 0, place, tokens)
}

fn part(
    name: &str,
    of: &[u32],
    first: usize,
    place: Option<(&str, &str)>,
    tokens: bool,
) -> Vec<u8> {
    let hashes = blocks::chain(of, SIZE, 0);
    let fields = if tokens { 4 } else { 2 } + if place.is_some() { 2 } else { 0 };
    let mut out = vec![0x92, 1, 0x91, 0x80 | fields];
    text(&mut out, "type");
    text(&mut out, name);
    text(&mut out, "block_hashes");
    numbers(&mut out, hashes[first..].iter().copied());
    if tokens {
        text(&mut out, "token_ids");
        numbers(&mut out, of.iter().map(|id| u64::from(*id)));
        text(&mut out, "block_size");
        out.push(SIZE as u8);
    }
    if let Some((medium, locality)) = place {
        text(&mut out, "medium");
        text(&mut out, medium);
        text(&mut out, "locality");
        text(&mut out, locality);
    }
    out
}

const DISK: Option<(&str, &str)> = Some(("STORAGE", "LOCAL"));
const REMOTE: Option<(&str, &str)> = Some(("STORAGE", "REMOTE"));

struct Fleet {
    index: Index,
    engines: [u16; 2],
    store: u16,
}

impl Fleet {
    fn new() -> Self {
        let index = Index::new(1 << 20, 7);
        let store = index.add_store().unwrap();
        let engines = [0, 1].map(|_| index.add_engine().unwrap());
        engines.iter().for_each(|slot| index.reach(*slot, Some(store)));
        Self { index, engines, store }
    }

    fn computes(&self, at: usize, of: &[u32]) {
        self.index.apply(self.engines[at], &event("BlockStored", of, None, true));
    }

    fn evicts(&self, at: usize, of: &[u32], first: usize) {
        self.index.apply(self.engines[at], &part("BlockRemoved", of, first, None, false));
    }

    fn keeps(&self, of: &[u32], place: Option<(&str, &str)>) -> Applied {
        self.index.apply(self.store, &event("BlockStored", of, place, false))
    }

    /// Tokens on the device, on disk, remote, of a prompt that goes on behind `of`.
    fn has(&self, at: usize, of: &[u32]) -> (u32, u32, u32) {
        let mut out = Vec::new();
        let ids = [of, &[0]].concat();
        self.index.lookup(&Prompt::new(&ids[..], 0, true), &self.engines, 0.0, &mut out);
        (out[at].device, out[at].disk, out[at].remote)
    }
}

#[test]
fn what_one_engine_computed_and_the_store_keeps_is_credited_to_all_that_reach_it() {
    let fleet = Fleet::new();
    let prompt = ids(100, 4);
    fleet.computes(0, &prompt);
    let applied = fleet.keeps(&prompt, DISK);
    assert_eq!((applied.counts.stored, applied.counts.adopted), (4, 4));
    assert_eq!(fleet.has(0, &prompt), (64, 0, 0), "its own comes first");
    assert_eq!(fleet.has(1, &prompt), (0, 64, 0));
    fleet.evicts(0, &prompt, 2);
    assert_eq!(fleet.has(0, &prompt), (32, 32, 0));
    fleet.evicts(0, &prompt[..32], 0);
    assert_eq!(fleet.has(0, &prompt), (0, 64, 0), "nobody has it any more");
    fleet.index.apply(fleet.store, &part("BlockRemoved", &prompt[..32], 1, DISK, false));
    assert_eq!((fleet.has(0, &prompt), fleet.has(1, &prompt)), ((0, 16, 0), (0, 16, 0)));
}

#[test]
fn the_store_may_speak_first() {
    let fleet = Fleet::new();
    let prompt = ids(100, 4);
    let applied = fleet.keeps(&prompt, REMOTE);
    assert_eq!((applied.counts.untold, applied.counts.adopted), (4, 0));
    fleet.keeps(&prompt[..16], DISK);
    assert_eq!(fleet.index.sizes(fleet.store).waiting, 4);
    assert_eq!(fleet.has(1, &prompt), (0, 0, 0));
    fleet.computes(0, &prompt);
    assert_eq!(fleet.has(1, &prompt), (0, 16, 48));
    assert_eq!((fleet.index.sizes(fleet.store).waiting, fleet.index.sizes(fleet.store).held), (0, 4));
}

#[test]
fn a_hole_ends_the_credit() {
    let fleet = Fleet::new();
    let prompt = ids(100, 4);
    fleet.computes(0, &prompt);
    fleet.keeps(&prompt[..16], DISK);
    fleet.index.apply(fleet.store, &event("BlockStored", &prompt, REMOTE, false));
    fleet.index.apply(fleet.store, &event("BlockRemoved", &prompt[..32], REMOTE, false));
    assert_eq!(fleet.has(1, &prompt), (0, 16, 0));
}

#[test]
fn an_engine_that_comes_later_reaches_all_and_one_that_leaves_reaches_nothing() {
    let fleet = Fleet::new();
    let prompt = ids(100, 4);
    fleet.computes(0, &prompt);
    fleet.keeps(&prompt, DISK);
    fleet.index.reach(fleet.engines[1], None);
    assert_eq!(fleet.has(1, &prompt), (0, 0, 0));
    fleet.index.remove_engine(fleet.engines[0]);
    let slot = fleet.index.add_engine().unwrap();
    assert_eq!(slot, fleet.engines[0]);
    assert_eq!(fleet.has(0, &prompt), (0, 0, 0), "the slot is another engine's");
    fleet.index.reach(slot, Some(fleet.store));
    assert_eq!(fleet.has(0, &prompt), (0, 64, 0), "although it has said nothing yet");
}

#[test]
fn who_knows_is_asked_when_an_engine_begins_to_reach_a_store() {
    let fleet = Fleet::new();
    let prompt = ids(100, 4);
    fleet.index.reach(fleet.engines[0], None);
    fleet.computes(0, &prompt);
    fleet.keeps(&prompt, DISK);
    assert_eq!(fleet.has(1, &prompt), (0, 0, 0));
    fleet.index.reach(fleet.engines[0], Some(fleet.store));
    assert_eq!(fleet.has(1, &prompt), (0, 64, 0));
}

#[test]
fn a_store_that_is_cleared_or_gone_is_credited_to_nobody() {
    let fleet = Fleet::new();
    let prompt = ids(100, 4);
    fleet.computes(0, &prompt);
    fleet.keeps(&prompt, DISK);
    fleet.index.clear(fleet.store);
    assert_eq!(fleet.has(1, &prompt), (0, 0, 0));
    fleet.keeps(&prompt, DISK);
    assert_eq!(fleet.has(1, &prompt), (0, 64, 0), "the engine still knows");
    fleet.index.clear(fleet.engines[0]);
    assert_eq!(fleet.has(0, &prompt), (0, 64, 0), "an engine's restart leaves the store");
    fleet.index.remove_engine(fleet.store);
    assert_eq!((fleet.has(0, &prompt), fleet.has(1, &prompt)), ((0, 0, 0), (0, 0, 0)));
    assert_eq!(fleet.keeps(&prompt, DISK), Applied::default());
    for _ in 0..4 {
        fleet.index.stats();
    }
    assert_eq!(fleet.index.stats().pairs, 0);
    let again = fleet.index.add_store().unwrap();
    assert_eq!(again, fleet.store);
}

#[test]
fn a_full_index_takes_no_more_of_a_store() {
    let index = Index::new(8 * PAIR_BYTES, 7);
    let store = index.add_store().unwrap();
    let prompt = ids(100, 12);
    let applied = index.apply(store, &event("BlockStored", &prompt, DISK, false));
    assert_eq!(applied.counts.ignored[Ignored::Full as usize], 4);
    assert_eq!((index.sizes(store).waiting, index.sizes(store).short), (8, 4));
}

#[test]
fn two_stores_are_two() {
    let fleet = Fleet::new();
    let other = fleet.index.add_store().unwrap();
    fleet.index.reach(fleet.engines[1], Some(other));
    let prompt = ids(100, 4);
    fleet.computes(0, &prompt);
    fleet.keeps(&prompt, DISK);
    assert_eq!(fleet.has(1, &prompt), (0, 0, 0));
    fleet.index.apply(other, &event("BlockStored", &prompt[..32], DISK, false));
    fleet.computes(1, &prompt[..32]);
    fleet.evicts(1, &prompt[..32], 0);
    assert_eq!(fleet.has(1, &prompt), (0, 32, 0));
}

#[test]
fn what_is_no_batch_changes_nothing() {
    let fleet = Fleet::new();
    assert_ne!(fleet.index.apply(fleet.store, b"\xff\x00").counts.malformed, [0; 4]);
    assert_eq!(fleet.index.sizes(fleet.store).waiting, 0);
    assert_eq!(fleet.index.apply(FIRST + 9, b""), Applied::default());
}
