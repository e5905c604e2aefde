//! The payloads of KVM1's frames. Everything that is read here came from somebody else.

use super::host::Seat;
use super::le::{part, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use super::namespace::{Probe, DESCRIPTOR_MAX};
use super::record::{Fingerprint, Key, NOTE_MAX, PAYLOAD_MAX};
use super::wire::BATCH_MAX;

/// Gates of a session: jobs it may have under way.
pub const GATES: u32 = 1024;
pub const ENGINE_MAX: usize = 256;
pub const TOKEN_MAX: usize = 256;
/// A store's frame carries notes.
pub const WITH_NOTES: u8 = 1;
/// Each block continues the one before it.
pub const CHAIN: u8 = 2;
/// Slots are given back unwritten.
pub const DISCARD: u8 = 4;
/// The end of a job tells where the blocks are; a lookup asks for the arena too.
pub const WITH_SEATS: u8 = 8;

/// What becomes of one block of a job.
pub mod status {
    pub const OK: u8 = 0;
    // 1 to 7: the codes of `Refusal`.
    pub const IO: u8 = 16;
    pub const DAMAGED: u8 = 17;
    pub const CANCELLED: u8 = 18;
    pub const REGION: u8 = 19;
    pub const TIMEOUT: u8 = 20;
    /// The daemon is gone or does not answer.
    pub const LOST: u8 = 21;
    pub const BAD_REQUEST: u8 = 22;
    /// Nothing to write: the block is in the arena.
    pub const THERE: u8 = 23;
    /// Every slot of the arena is held.
    pub const FULL: u8 = 24;
}

/// Where a block is.
pub mod tier {
    pub const MISS: u8 = 0;
    pub const HOST: u8 = 1;
    pub const DISK: u8 = 2;
    pub const REMOTE: u8 = 3;
    /// No answer in time.
    pub const UNKNOWN: u8 = 255;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub versions: (u16, u16),
    pub probe: Probe,
    /// Bytes of every block's payload.
    pub block_bytes: u32,
    pub engine: String,
    pub token: Vec<u8>,
    pub descriptor: Vec<u8>,
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 60];
        put_u16(&mut out, 0, self.versions.0);
        put_u16(&mut out, 2, self.versions.1);
        out[8..40].copy_from_slice(&self.probe);
        put_u32(&mut out, 40, self.block_bytes);
        put_u32(&mut out, 48, self.engine.len() as u32);
        put_u32(&mut out, 52, self.token.len() as u32);
        put_u32(&mut out, 56, self.descriptor.len() as u32);
        out.extend_from_slice(self.engine.as_bytes());
        out.extend_from_slice(&self.token);
        out.extend_from_slice(&self.descriptor);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() < 60 {
            return Err("HELLO is too short");
        }
        let sizes: [usize; 3] = std::array::from_fn(|at| u32_at(bytes, 48 + 4 * at) as usize);
        let [engine, token, descriptor] = sizes;
        if engine > ENGINE_MAX || token > TOKEN_MAX || descriptor > DESCRIPTOR_MAX {
            return Err("a part of HELLO is too long");
        }
        if bytes.len() != 60 + engine + token + descriptor {
            return Err("HELLO has another length than it says");
        }
        let block_bytes = u32_at(bytes, 40);
        if block_bytes == 0 || block_bytes as usize > PAYLOAD_MAX {
            return Err("blocks must have from 1 byte to 64 MiB");
        }
        let (name, rest) = bytes[60..].split_at(engine);
        let (token, descriptor) = rest.split_at(token);
        let engine = std::str::from_utf8(name).map_err(|_| "the engine's name is not UTF-8")?;
        Ok(Self {
            versions: (u16_at(bytes, 0), u16_at(bytes, 2)),
            probe: part(bytes, 8),
            block_bytes,
            engine: engine.into(),
            token: token.to_vec(),
            descriptor: descriptor.to_vec(),
        })
    }
}

/// The daemon's answer to HELLO; the session's shared memory comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Another one: the daemon was started anew.
    pub boot: u64,
    pub fingerprint: Fingerprint,
    pub board_bytes: u32,
    /// 0: there is no arena. Else its memory comes behind the board's.
    pub arena_bytes: u64,
    /// 0: there is no table to look things up in. Else its memory comes last.
    pub table_bytes: u64,
    /// Others use the same descriptor with another probe: their hashes have another seed.
    pub differing_probes: u32,
}

impl Welcome {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 64];
        put_u64(&mut out, 0, self.boot);
        out[8..40].copy_from_slice(&self.fingerprint);
        put_u32(&mut out, 40, self.board_bytes);
        put_u32(&mut out, 44, self.differing_probes);
        put_u64(&mut out, 48, self.arena_bytes);
        put_u64(&mut out, 56, self.table_bytes);
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == 64).then(|| Self {
            boot: u64_at(bytes, 0),
            fingerprint: part(bytes, 8),
            board_bytes: u32_at(bytes, 40),
            differing_probes: u32_at(bytes, 44),
            arena_bytes: u64_at(bytes, 48),
            table_bytes: u64_at(bytes, 56),
        })
    }
}

pub fn put_keys<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Vec<u8> {
    keys.into_iter().flatten().copied().collect()
}

pub fn keys(count: u32, bytes: &[u8]) -> Result<Vec<Key>, &'static str> {
    let count = count as usize;
    if count > BATCH_MAX || bytes.len() != count * 32 {
        return Err("not as many keys as said, or too many");
    }
    Ok(bytes.chunks_exact(32).map(|raw| part(raw, 0)).collect())
}

/// One block of a job and its slot in the region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub key: Key,
    pub slot: u32,
    pub note: Box<[u8]>,
}

/// A store or a load of blocks between a region and the tiers below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub region: u32,
    pub gate: u32,
    pub usage: u32,
    pub items: Vec<Item>,
}

const JOB_HEAD: usize = 16;
const ITEM: usize = 36;

impl Job {
    /// Notes are written only if one of them is not empty; the flags say so.
    pub fn encode(&self) -> (Vec<u8>, u8) {
        let mut out = vec![0; JOB_HEAD];
        put_u32(&mut out, 0, self.region);
        put_u32(&mut out, 4, self.gate);
        put_u32(&mut out, 8, self.usage);
        for item in &self.items {
            out.extend_from_slice(&item.key);
            out.extend_from_slice(&item.slot.to_le_bytes());
        }
        if self.items.iter().all(|item| item.note.is_empty()) {
            return (out, 0);
        }
        for item in &self.items {
            out.extend_from_slice(&(item.note.len() as u16).to_le_bytes());
            out.extend_from_slice(&item.note);
        }
        (out, WITH_NOTES)
    }

    pub fn decode(count: u32, flags: u8, bytes: &[u8]) -> Result<Self, &'static str> {
        let count = count as usize;
        let fixed = JOB_HEAD + count.min(BATCH_MAX) * ITEM;
        if count == 0 || count > BATCH_MAX || bytes.len() < fixed {
            return Err("a job without items, with too many, or cut short");
        }
        let mut notes = &bytes[fixed..];
        let mut items = Vec::with_capacity(count);
        for raw in bytes[JOB_HEAD..fixed].chunks_exact(ITEM) {
            let mut note: &[u8] = &[];
            if flags & WITH_NOTES != 0 {
                let (len, rest) = notes.split_at_checked(2).ok_or("notes are missing")?;
                let len = usize::from(u16_at(len, 0));
                if len > NOTE_MAX {
                    return Err("a note is too long");
                }
                (note, notes) = rest.split_at_checked(len).ok_or("a note is cut short")?;
            }
            items.push(Item { key: part(raw, 0), slot: u32_at(raw, 32), note: note.into() });
        }
        if !notes.is_empty() {
            return Err("something lies behind the items");
        }
        let (region, gate, usage) = (u32_at(bytes, 0), u32_at(bytes, 4), u32_at(bytes, 8));
        if gate >= GATES {
            return Err("there is no such gate");
        }
        Ok(Self { region, gate, usage, items })
    }
}

/// A job's end: what became of each block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub spent_us: u64,
    pub bytes: u64,
    pub statuses: Vec<u8>,
    /// Of a fetch: where each block is.
    pub seats: Vec<Seat>,
}

impl Finished {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 16];
        put_u64(&mut out, 0, self.spent_us);
        put_u64(&mut out, 8, self.bytes);
        out.extend_from_slice(&self.statuses);
        out.extend_from_slice(&put_seats(&self.seats));
        out
    }

    pub fn decode(count: u32, bytes: &[u8]) -> Option<Self> {
        let rest = bytes.get(16..)?;
        let (statuses, places) = rest.split_at_checked(count as usize)?;
        let seats = if places.is_empty() { Vec::new() } else { seats(count, places).ok()? };
        let (spent_us, bytes) = (u64_at(bytes, 0), u64_at(bytes, 8));
        Some(Self { spent_us, bytes, statuses: statuses.to_vec(), seats })
    }
}

/// Where blocks are in the arena.
pub fn put_seats(seats: &[Seat]) -> Vec<u8> {
    let words = seats.iter().flat_map(|seat| [seat.page, seat.generation]);
    words.flat_map(u32::to_le_bytes).collect()
}

pub fn seats(count: u32, bytes: &[u8]) -> Result<Vec<Seat>, &'static str> {
    let count = count as usize;
    if count > BATCH_MAX || bytes.len() != count * 8 {
        return Err("not as many slots as said, or too many");
    }
    let each = bytes.chunks_exact(8);
    Ok(each.map(|raw| Seat { page: u32_at(raw, 0), generation: u32_at(raw, 4) }).collect())
}

/// A region's slots: bytes from one to the next, and how many.
pub fn put_region(stride: u64, slots: u32) -> Vec<u8> {
    let mut out = vec![0; 12];
    put_u64(&mut out, 0, stride);
    put_u32(&mut out, 8, slots);
    out
}

pub fn region(bytes: &[u8]) -> Result<(u64, u32), &'static str> {
    if bytes.len() != 12 {
        return Err("REGION has another length");
    }
    Ok((u64_at(bytes, 0), u32_at(bytes, 8)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    fn hello() -> Hello {
        Hello {
            versions: (1, 1),
            probe: [3; 32],
            block_bytes: 1 << 20,
            engine: "engine-0".into(),
            token: vec![],
            descriptor: b"{}".to_vec(),
        }
    }

    fn job(notes: bool) -> Job {
        let note: &[u8] = if notes { b"note" } else { b"" };
        let items = (0..3).map(|n| Item { key: [n; 32], slot: n.into(), note: note.into() });
        Job { region: 1, gate: 2, usage: 3, items: items.collect() }
    }

    #[test]
    fn messages_come_back() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
        for job in [job(false), job(true)] {
            let (bytes, flags) = job.encode();
            assert_eq!(Job::decode(3, flags, &bytes), Ok(job));
        }
        let seat = Seat { page: 7, generation: 9 };
        let (statuses, seats) = (vec![0, 20], vec![seat, seat]);
        let done = Finished { spent_us: 5, bytes: 6, statuses, seats };
        assert_eq!(Finished::decode(2, &done.encode()), Some(done));
        assert_eq!(region(&put_region(4096, 7)), Ok((4096, 7)));
        assert_eq!(keys(2, &put_keys(&[[1; 32], [2; 32]])), Ok(vec![[1; 32], [2; 32]]));
    }

    #[test]
    fn whatever_comes_is_read_or_refused() {
        let mut random = Random(3);
        let seeds = [hello().encode(), job(false).encode().0, job(true).encode().0];
        for round in 0..30_000_u64 {
            let mut bytes = seeds[(round % 3) as usize].clone();
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            let _ = Hello::decode(&bytes);
            let _ = Job::decode(random.below(5000) as u32, random.below(4) as u8, &bytes);
            let _ = keys(random.below(5000) as u32, &bytes);
            let _ = region(&bytes);
            let _ = Welcome::decode(&bytes);
            let _ = Finished::decode(random.below(100) as u32, &bytes);
        }
    }
}
