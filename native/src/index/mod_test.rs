use super::*;
use crate::blocks;
use crate::hash::Random;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a real engine published, message by message.
fn captured() -> Vec<Vec<u8>> {
    let text = include_str!("../../../tests/vectors/kv_events_vllm.jsonl");
    let frames = text.lines().filter(|line| line.contains("\"frame\""));
    frames
        .map(|line| {
            let payload = line.rsplit('"').nth(1).expect("the last string of the line");
            let byte = |at: usize| u8::from_str_radix(&payload[at..at + 2], 16).expect("hex");
            (0..payload.len()).step_by(2).map(byte).collect()
        })
        .collect()
}

fn device(index: &Index, slot: u16, ids: &[u32]) -> u32 {
    let mut out = Vec::new();
    index.lookup(&Prompt::new(ids, 0, true), &[slot], 0.0, &mut out);
    out[0].device
}

/// A batch of one event, `BlockStored` as an array, for blocks of 4 tokens.
fn stored(ids: &[u32], salt: u64) -> Vec<u8> {
    let mut out = vec![0x92, 1, 0x91, 0x96, 0xab];
    out.extend(b"BlockStored");
    out.push(0xdc);
    out.extend((ids.len() as u16 / 4).to_be_bytes());
    for sequence in blocks::chain(ids, 4, salt) {
        out.push(0xcf);
        out.extend(sequence.to_be_bytes());
    }
    out.extend([0xc0, 0xdc]);
    out.extend((ids.len() as u16).to_be_bytes());
    for id in ids {
        out.push(0xce);
        out.extend(id.to_be_bytes());
    }
    out.extend([4, 0xc0]);
    out
}

/// Messages of an engine with bytes changed, cut out and put in, in any order: whatever they say, the
/// index lives, keeps to its limit and can be emptied.
#[test]
fn no_message_breaks_the_index() {
    let frames = captured();
    assert_eq!(frames.len(), 14);
    let mut random = Random(11);
    let index = Index::new(300 * PAIR_BYTES, 5);
    let slots: Vec<u16> = (0..3).map(|_| index.add_engine().expect("a slot")).collect();
    let prompt: Vec<u32> = (100..196).collect();
    for round in 0..6000 {
        let mut payload = frames[random.below(frames.len() as u64) as usize].clone();
        payload.truncate(6000);
        for _ in 0..random.below(4) {
            let at = random.below(payload.len() as u64) as usize;
            match random.below(3) {
                0 => drop(payload.remove(at)),
                1 => payload.insert(at, random.below(256) as u8),
                _ => payload[at] = random.below(256) as u8,
            }
        }
        let slot = slots[random.below(3) as usize];
        index.apply(slot, &payload);
        match random.below(100) {
            0 => index.clear(slot),
            1 => index.assume(slot, &Prompt::new(&prompt[..], 0, true), 1000),
            2 => {
                index.predict(slot, &Prompt::new(&prompt[..], 0, true), f64::from(round), 5.0);
            }
            _ => {}
        }
        assert!(device(&index, slot, &prompt) < 96);
    }
    assert!(index.stats().pairs <= 300 + 2 * REAP, "{:?}", index.stats());
    slots.iter().for_each(|slot| index.remove_engine(*slot));
    (0..20).for_each(|_| index.reap());
    let stats = index.stats();
    assert_eq!((stats.pairs, stats.blocks, stats.engines, stats.orphans), (0, 0, 0, 0));
    assert_eq!(index.lanes.take(), Some(0), "all lanes are free again");
}

/// While one thread stores, resets and stores again, lookups see a prefix of what may be there.
#[test]
fn lookups_and_batches_run_side_by_side() {
    let index = Arc::new(Index::new(1 << 24, 3));
    let (still, busy) = (index.add_engine().expect("a slot"), index.add_engine().expect("a slot"));
    let ids: Vec<u32> = (0..4000).collect();
    index.apply(still, &stored(&ids, 0));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (index, stop, ids) = (index.clone(), stop.clone(), ids.clone());
        std::thread::spawn(move || {
            let cleared = [&[0x92, 1, 0x91, 0x91, 0xb0][..], b"AllBlocksCleared"].concat();
            for round in 0.. {
                index.apply(busy, &stored(&ids, 0));
                match round % 3 {
                    0 => drop(index.apply(busy, &cleared)),
                    1 => index.clear(busy),
                    _ => drop(index.apply(busy, &stored(&ids, 1))),
                }
                if stop.load(Relaxed) {
                    return;
                }
            }
        })
    };
    let mut seen = [0; 2];
    for _ in 0..3000 {
        assert_eq!(device(&index, still, &ids), 3996);
        let found = device(&index, busy, &ids);
        assert!(found % 4 == 0 && found <= 3996);
        seen[usize::from(found > 0)] += 1;
    }
    stop.store(true, Relaxed);
    writer.join().expect("the writer ends");
    index.clear(busy);
    assert_eq!(device(&index, busy, &ids), 0);
    (0..10).for_each(|_| index.reap());
    assert_eq!(index.stats().pairs, 1000);
}

#[test]
fn thousands_of_engines_share_one_map() {
    let index = Index::new(1 << 24, 3);
    let ids: Vec<u32> = (0..64).collect();
    let slots: Vec<u16> = std::iter::from_fn(|| index.add_engine()).collect();
    assert_eq!(slots.len(), holders::LANES_MAX);
    for (at, slot) in slots.iter().enumerate().filter(|(at, _)| at % 7 == 0) {
        index.apply(*slot, &stored(&ids[..4 * (1 + at % 16)], 0));
    }
    let mut out = Vec::new();
    index.lookup(&Prompt::new(&[&ids[..], &[0]].concat()[..], 0, true), &slots, 0.0, &mut out);
    for (at, overlap) in out.iter().enumerate() {
        let expected = if at % 7 == 0 { 4 * (1 + at % 16) } else { 0 };
        assert_eq!(overlap.total() as usize, expected, "engine {at}");
    }
}
