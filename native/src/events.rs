//! KV cache events as vLLM publishes them: one MessagePack batch -> events, decoded in place.
//!
//! A batch is `[ts, events, rank?]`. Since 0.32 an event is a map with its name under `type`; before it
//! was an array that starts with the name. Both are taken, fields in any order, absent, null, unknown or
//! more than we know. An event that makes no sense is counted and passed over; only bytes that are no
//! MessagePack end a batch early. (`vllm/distributed/kv_events.py`)

use crate::msgpack::Reader;

/// Blocks of one event, and their tokens; one that has more makes no sense.
const BLOCKS_MAX: usize = 1 << 20;
const TOKENS_MAX: usize = 1 << 24;
/// Room for numbers that is kept between batches.
const KEPT: usize = 1 << 16;

/// Why something could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The bytes end too early or are no MessagePack: the rest of the batch is lost.
    Framing,
    /// The payload is no `[ts, events, ...]`.
    Batch,
    /// An event is neither a map nor an array, or has no name.
    Event,
    /// A field of an event is not of its type, or out of its range.
    Field,
}

impl Fault {
    pub const COUNT: usize = 4;
    pub const NAMES: [&'static str; Self::COUNT] = ["framing", "batch", "event", "field"];
}

/// Blocks that have become reusable.
#[derive(Clone, Copy, Default)]
pub struct Stored<'a> {
    /// The engine's own hashes, as 64-bit numbers.
    pub hashes: &'a [u64],
    /// The block before the first; None where the first begins a prompt.
    pub parent: Option<u64>,
    pub tokens: &'a [u32],
    pub block_size: u32,
    pub lora_id: Option<i64>,
    pub lora_name: Option<&'a [u8]>,
    /// An array: per block null or an array of keys.
    pub extra_keys: Option<Reader<'a>>,
    pub kind: Option<&'a [u8]>,
    /// Tokens; 0 for none.
    pub window: u32,
    pub session: Option<&'a [u8]>,
    pub place: Place<'a>,
}

/// In which group, and where, the blocks are or were.
#[derive(Clone, Copy, Default)]
pub struct Place<'a> {
    pub group: Option<u32>,
    pub medium: Option<&'a [u8]>,
    pub locality: Option<&'a [u8]>,
    pub ownership: Option<&'a [u8]>,
}

pub enum Event<'a> {
    Stored(Stored<'a>),
    /// Hashes of blocks of which one copy is gone.
    Removed(&'a [u64], Place<'a>),
    Cleared,
    /// An event of a name we do not know.
    Other,
}

/// What a batch says of itself.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Header {
    /// Seconds since the epoch, by the engine's clock.
    pub ts: f64,
    pub rank: Option<i64>,
    pub faults: [u32; Fault::COUNT],
}

#[derive(Clone, Copy)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Window,
    Locality,
    Ownership,
    Session,
}

/// Fields in the order of an event written as an array.
const STORED: [Field; 14] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
    Field::Window,
    Field::Locality,
    Field::Ownership,
    Field::Session,
];
const REMOVED: [Field; 5] =
    [Field::Hashes, Field::Medium, Field::Group, Field::Locality, Field::Ownership];

impl Field {
    fn of(name: &[u8]) -> Option<Field> {
        Some(match name {
            b"block_hashes" => Field::Hashes,
            b"parent_block_hash" => Field::Parent,
            b"token_ids" => Field::Tokens,
            b"block_size" => Field::BlockSize,
            b"lora_id" => Field::LoraId,
            b"medium" => Field::Medium,
            b"lora_name" => Field::LoraName,
            b"extra_keys" => Field::ExtraKeys,
            b"group_idx" => Field::Group,
            b"kv_cache_spec_kind" => Field::Kind,
            b"kv_cache_spec_sliding_window" => Field::Window,
            b"locality" => Field::Locality,
            b"ownership" => Field::Ownership,
            b"session_id" => Field::Session,
            _ => return None,
        })
    }
}

/// Buffers for the lists of one event at a time.
#[derive(Default)]
pub struct Decoder {
    hashes: Vec<u64>,
    tokens: Vec<u32>,
}

impl Decoder {
    /// Hands every event of a batch to `sink`, in order.
    pub fn decode(&mut self, payload: &[u8], mut sink: impl FnMut(Event<'_>)) -> Header {
        self.hashes.shrink_to(KEPT);
        self.tokens.shrink_to(KEPT);
        let mut header = Header::default();
        let mut fault = |fault: Fault| header.faults[fault as usize] += 1;
        let mut reader = Reader::new(payload);
        let (items, ts) = match reader.array().filter(|items| *items >= 2) {
            Some(items) => (items, reader.float()),
            None => (0, None),
        };
        let Some((ts, events)) = ts.and_then(|ts| Some((ts, reader.array()?))) else {
            fault(Fault::Batch);
            return header;
        };
        for _ in 0..events {
            let start = reader;
            match self.event(&mut reader) {
                Ok(event) => sink(event),
                Err(what) => {
                    reader = start;
                    if reader.skip().is_none() {
                        fault(Fault::Framing);
                        return Header { ts, ..header };
                    }
                    fault(what);
                }
            }
        }
        let mut rank = None;
        if items > 2 && !reader.nil() {
            rank = reader.signed();
            if rank.is_none() {
                fault(if reader.skip().is_some() { Fault::Field } else { Fault::Framing });
            }
        }
        Header { ts, rank, ..header }
    }

    fn event<'s, 'a: 's>(&'s mut self, reader: &mut Reader<'a>) -> Result<Event<'s>, Fault> {
        self.hashes.clear();
        self.tokens.clear();
        let mut event = Stored::default();
        let mut name = None;
        if let Some(pairs) = reader.map() {
            for _ in 0..pairs {
                let key = reader.bytes().ok_or(Fault::Event)?;
                if key == b"type" {
                    name = Some(reader.bytes().ok_or(Fault::Event)?);
                } else if let Some(field) = Field::of(key) {
                    self.field(field, reader, &mut event).ok_or(Fault::Field)?;
                } else {
                    reader.skip().ok_or(Fault::Framing)?;
                }
            }
        } else {
            let items = reader.array().filter(|items| *items > 0).ok_or(Fault::Event)?;
            let tag = reader.bytes().ok_or(Fault::Event)?;
            let fields: &[Field] = match tag {
                b"BlockStored" => &STORED,
                b"BlockRemoved" => &REMOVED,
                _ => &[],
            };
            for at in 0..items - 1 {
                match fields.get(at) {
                    Some(field) => self.field(*field, reader, &mut event).ok_or(Fault::Field)?,
                    None => reader.skip().ok_or(Fault::Framing)?,
                }
            }
            name = Some(tag);
        }
        let event = Stored { hashes: &self.hashes, tokens: &self.tokens, ..event };
        match name.ok_or(Fault::Event)? {
            b"BlockStored" => Ok(Event::Stored(event)),
            b"BlockRemoved" => Ok(Event::Removed(event.hashes, event.place)),
            b"AllBlocksCleared" => Ok(Event::Cleared),
            _ => Ok(Event::Other),
        }
    }

    fn field<'a>(
        &mut self,
        field: Field,
        reader: &mut Reader<'a>,
        event: &mut Stored<'a>,
    ) -> Option<()> {
        if reader.nil() {
            return Some(());
        }
        let small = |value: u64| u32::try_from(value).ok();
        match field {
            Field::Hashes => hashes(reader, &mut self.hashes)?,
            Field::Tokens => tokens(reader, &mut self.tokens)?,
            Field::Parent => event.parent = Some(hash(reader)?),
            Field::BlockSize => event.block_size = small(reader.unsigned()?)?,
            Field::LoraId => event.lora_id = Some(reader.signed()?),
            Field::LoraName => event.lora_name = Some(reader.bytes()?),
            Field::Medium => event.place.medium = Some(reader.bytes()?),
            Field::Locality => event.place.locality = Some(reader.bytes()?),
            Field::Ownership => event.place.ownership = Some(reader.bytes()?),
            Field::Group => event.place.group = Some(small(reader.unsigned()?)?),
            Field::Kind => event.kind = Some(reader.bytes()?),
            Field::Window => event.window = small(reader.unsigned()?)?,
            Field::Session => event.session = Some(reader.bytes()?),
            Field::ExtraKeys => {
                event.extra_keys = Some(*reader);
                reader.skip()?;
            }
        }
        Some(())
    }
}

/// The head of a list of at most so many. The announced length is not believed when memory is asked for.
fn list<T>(reader: &mut Reader<'_>, out: &mut Vec<T>, most: usize) -> Option<usize> {
    let items = reader.array().filter(|items| *items <= most)?;
    out.clear();
    out.reserve(items.min(reader.left()));
    Some(items)
}

fn hashes(reader: &mut Reader<'_>, out: &mut Vec<u64>) -> Option<()> {
    for _ in 0..list(reader, out, BLOCKS_MAX)? {
        out.push(hash(reader)?);
    }
    Some(())
}

/// Reads an array of token ids, which are most of what an engine sends.
fn tokens(reader: &mut Reader<'_>, out: &mut Vec<u32>) -> Option<()> {
    let items = list(reader, out, TOKENS_MAX)?;
    loop {
        reader.run(items - out.len(), |id| out.push(id));
        if out.len() == items {
            return Some(());
        }
        out.push(u32::try_from(reader.unsigned()?).ok()?);
    }
}

/// A block hash: a number, signed or not, or bytes of which the last eight count, big-endian, as vLLM
/// itself shortens them (`maybe_convert_block_hash`).
#[inline]
fn hash(reader: &mut Reader<'_>) -> Option<u64> {
    if let Some(value) = reader.unsigned() {
        return Some(value);
    }
    if let Some(value) = reader.signed() {
        return Some(value as u64);
    }
    let bytes = reader.bytes().filter(|bytes| !bytes.is_empty())?;
    let last = &bytes[bytes.len().saturating_sub(8)..];
    Some(last.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
#[path = "events_test.rs"]
mod tests;
