//! What a simulated engine publishes: batches of KV events, in vLLM's form.
//!
//! A block of the trace is a block of one token here, its number; a prompt is its blocks' numbers and a
//! last token that no block holds, as an engine always computes the last token.

use super::engine::Said;
use super::trace::Trace;
use crate::prompt::Prompt;

/// The token behind every prompt's blocks.
const LAST: u32 = u32::MAX;

/// The prompt of a row, as the index is asked.
pub fn prompt(trace: &Trace, row: usize) -> Prompt {
    let ids = trace.blocks(row).iter().map(|&id| id as u32);
    Prompt::new(ids.chain([LAST]).collect::<Vec<u32>>(), 0, true)
}

fn number(out: &mut Vec<u8>, n: u64) {
    out.push(0xcf);
    out.extend(n.to_be_bytes());
}

fn list(out: &mut Vec<u8>, items: &[u64]) {
    out.push(0xdd);
    out.extend((items.len() as u32).to_be_bytes());
    items.iter().for_each(|&n| number(out, n));
}

fn name(out: &mut Vec<u8>, text: &str) {
    out.push(0xa0 | text.len() as u8);
    out.extend(text.as_bytes());
}

/// Hashes are an engine's own business: any bijection of the block's number will do.
fn hash(id: u64) -> u64 {
    crate::hash::mix(id + 1)
}

/// A batch with one event, written into `out`; nothing for what is no block event.
pub fn batch(trace: &Trace, said: Said, now_s: f64, out: &mut Vec<u8>) {
    out.clear();
    out.extend([0x93, 0xcb]);
    out.extend(now_s.to_be_bytes());
    out.push(0x91);
    match said {
        Said::Stored { row, from, to } => {
            let blocks = trace.blocks(row);
            let ids = &blocks[from as usize..to as usize];
            out.push(0x95);
            name(out, "BlockStored");
            list(out, &ids.iter().map(|&id| hash(id)).collect::<Vec<_>>());
            match from {
                0 => out.push(0xc0),
                _ => number(out, hash(blocks[from as usize - 1])),
            }
            list(out, ids);
            number(out, 1);
        }
        Said::Removed(id) => {
            out.push(0x92);
            name(out, "BlockRemoved");
            list(out, &[hash(id)]);
        }
        Said::First(_) | Said::Done(_) => return out.clear(),
    }
    out.push(0xc0);
}

/// The same of the store, which has blocks in host memory and tells no tokens.
pub fn kept(trace: &Trace, said: Said, now_s: f64, out: &mut Vec<u8>) {
    out.clear();
    out.extend([0x92, 0xcb]);
    out.extend(now_s.to_be_bytes());
    out.push(0x91);
    match said {
        Said::Stored { row, from, to } => {
            let ids = &trace.blocks(row)[from as usize..to as usize];
            out.push(0x97);
            name(out, "BlockStored");
            list(out, &ids.iter().map(|&id| hash(id)).collect::<Vec<_>>());
            out.push(0xc0);
            list(out, &[]);
            number(out, 0);
            out.push(0xc0);
        }
        Said::Removed(id) => {
            out.push(0x93);
            name(out, "BlockRemoved");
            list(out, &[hash(id)]);
        }
        Said::First(_) | Said::Done(_) => return out.clear(),
    }
    name(out, "CPU");
}

#[cfg(test)]
mod tests {
    use super::super::trace::Columns;
    use super::*;
    use crate::index::{Index, Overlap};

    #[test]
    fn the_index_learns_what_an_engine_announces() {
        let trace = Trace::new(
            512,
            &Columns {
                at_s: &[0.0, 1.0],
                input: &[2048, 1100],
                output: &[1, 1],
                counts: &[4, 3],
                blocks: &[7, 8, 9, 10, 7, 8, 11],
            },
        )
        .unwrap();
        let index = Index::new(1 << 20, 1);
        let slot = index.add_engine().unwrap();
        let (mut payload, mut found) = (Vec::new(), Vec::new());
        let mut apply = |said| {
            batch(&trace, said, 1.0, &mut payload);
            let applied = index.apply(slot, &payload);
            assert_eq!(applied.header.faults, [0; 4]);
        };
        apply(Said::Stored { row: 0, from: 0, to: 2 });
        apply(Said::Stored { row: 0, from: 2, to: 4 });
        apply(Said::Removed(3));
        for (row, blocks) in [(0, 3), (1, 2)] {
            index.lookup(&prompt(&trace, row), &[slot], 1.0, &mut found);
            assert_eq!(found, [Overlap { device: blocks, ..Overlap::default() }]);
        }
    }
}
