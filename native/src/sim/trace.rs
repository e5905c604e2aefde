//! A trace: when requests arrive, how long they are, and which blocks their prompts are made of.

use super::cache::Blocks;
use crate::hash::Random;

/// Requests in the order of their arrival.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Tokens of a block; the last block of a prompt may be shorter.
    pub block: u32,
    pub rows: Vec<Row>,
    /// Blocks of all rows, one after another: chain hashes, so that an equal id means an equal prefix.
    pub blocks: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub at_s: f64,
    pub input: u32,
    pub output: u32,
    first: u32,
    count: u32,
}

/// The columns of a trace, as whoever reads the file hands them over.
pub struct Columns<'a> {
    pub at_s: &'a [f64],
    pub input: &'a [u32],
    pub output: &'a [u32],
    /// Blocks of each row.
    pub counts: &'a [u32],
    pub blocks: &'a [u64],
}

impl Trace {
    /// An error says which row cannot be: times must not fall, lengths must agree with the blocks.
    pub fn new(block: u32, columns: &Columns) -> Result<Self, String> {
        let Columns { at_s, input, output, counts, blocks } = columns;
        let rows = at_s.len();
        if block == 0 || [input.len(), output.len(), counts.len()] != [rows; 3] {
            return Err("a trace needs a block size and columns of one length".into());
        }
        // Ids get small: an engine announces them as tokens.
        let mut known = Blocks::<u64>::default();
        let small = |&id: &u64| {
            let next = known.len() as u64;
            *known.entry(id).or_insert(next)
        };
        let blocks: Vec<u64> = blocks.iter().map(small).collect();
        if known.len() > u32::MAX as usize - 1 {
            return Err("a trace has at most 2^32 - 2 different blocks".into());
        }
        let mut trace = Self { block, rows: Vec::with_capacity(rows), blocks };
        let (mut first, mut last) = (0u32, 0.0f64);
        for i in 0..rows {
            let wanted = input[i].div_ceil(block);
            if counts[i] != wanted || input[i] == 0 || output[i] == 0 {
                return Err(format!(
                    "row {i}: {} tokens in and {} out need {wanted} blocks of {block}, it has {}",
                    input[i], output[i], counts[i]
                ));
            }
            if !(at_s[i] >= last && at_s[i].is_finite()) {
                return Err(format!(
                    "row {i}: arrives at {} s, the one before at {last} s",
                    at_s[i]
                ));
            }
            last = at_s[i];
            let row = Row { at_s: last, input: input[i], output: output[i], first, count: wanted };
            trace.rows.push(row);
            first = first.checked_add(wanted).ok_or("a trace has at most 2^32 blocks")?;
        }
        match first as usize == trace.blocks.len() {
            true => Ok(trace),
            false => Err(format!("the rows have {first} blocks, there are {}", trace.blocks.len())),
        }
    }

    /// The row of a seq: prefill legs lie behind all rows, in their order.
    pub fn row_of(&self, seq: usize) -> usize {
        if seq < self.rows.len() {
            seq
        } else {
            seq - self.rows.len()
        }
    }

    pub fn blocks(&self, row: usize) -> &[u64] {
        let Row { first, count, .. } = self.rows[row];
        &self.blocks[first as usize..(first + count) as usize]
    }

    /// From the first arrival to the last.
    pub fn span_s(&self) -> f64 {
        match (self.rows.first(), self.rows.last()) {
            (Some(first), Some(last)) => last.at_s - first.at_s,
            _ => 0.0,
        }
    }

    /// Prompt tokens whose blocks came before: what one endless cache would save.
    pub fn reusable(&self) -> u64 {
        let mut seen = Blocks::<()>::default();
        let mut tokens = 0;
        for (at, row) in self.rows.iter().enumerate() {
            let ids = self.blocks(at);
            let known = ids.iter().take_while(|id| seen.contains_key(id)).count() as u64;
            tokens += (known * u64::from(self.block)).min(u64::from(row.input));
            seen.extend(ids.iter().map(|&id| (id, ())));
        }
        tokens
    }

    /// Arrival times in seconds at a speed, each moved by up to `spread_s` inside its tick, with the row.
    pub fn arrivals(&self, speed: f64, spread_s: f64, seed: u64) -> Vec<(f64, usize)> {
        let mut random = Random(crate::hash::mix(seed ^ 0x7261_6365));
        let mut draw = || random.below(1 << 53) as f64 / (1u64 << 53) as f64;
        let rows = self.rows.iter().enumerate();
        let mut all: Vec<_> =
            rows.map(|(i, row)| ((row.at_s + spread_s * draw()) / speed, i)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        all
    }
}
