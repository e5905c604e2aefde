//! KVM1: what client and daemon say to each other over a unix stream socket.
//!
//! A frame is a 64-byte head and a payload of at most 1 MiB, little-endian, with a CRC-32C over both.
//! Blocks never travel in frames. A bad frame ends the connection: there is no way to find the next.

use super::le::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use super::record::checksum;

pub const HEAD: usize = 64;
pub const PAYLOAD_MAX: usize = 1 << 20;
pub const BATCH_MAX: usize = 4096;
pub const VERSION: u16 = 1;
const MAGIC: u32 = u32::from_le_bytes(*b"KVM1");
const CRC: usize = 28;
/// Set in the op of an answer.
pub const ANSWER: u8 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    Hello = 1,
    Region = 2,
    Lookup = 3,
    Store = 4,
    Load = 5,
    /// Pushed: a job is over.
    Done = 6,
    Touch = 7,
    Pin = 8,
    Unpin = 9,
    Drop = 10,
    Cancel = 11,
    Events = 12,
    /// Pushed: what changed.
    Event = 13,
    Ping = 14,
    Stats = 15,
    /// Answer to anything: a code and a text for people.
    Error = 16,
    /// Slots of the arena to write blocks to.
    Reserve = 17,
    /// They are written, or given back unwritten.
    Commit = 18,
    /// A job: blocks into the arena, held there.
    Fetch = 19,
    /// Held no more.
    Release = 20,
    /// Blocks that will be asked for soon; not answered.
    Prefetch = 21,
    /// What was looked up in shared memory; not answered.
    Report = 22,
}

impl Op {
    pub fn of(raw: u8) -> Option<Self> {
        use Op::*;
        let all = [
            Hello, Region, Lookup, Store, Load, Done, Touch, Pin, Unpin, Drop, Cancel, Events,
            Event, Ping, Stats, Error, Reserve, Commit, Fetch, Release, Prefetch, Report,
        ];
        all.into_iter().find(|&op| op as u8 == raw)
    }
}

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub op: Op,
    pub is_answer: bool,
    pub flags: u8,
    /// Items of the payload.
    pub count: u32,
    /// Repeated in the answer.
    pub request: u64,
    pub job: u64,
    /// Microseconds that a job may take.
    pub deadline_us: u64,
    pub extra: u64,
}

impl Head {
    pub fn new(op: Op) -> Self {
        Self {
            op,
            is_answer: false,
            flags: 0,
            count: 0,
            request: 0,
            job: 0,
            deadline_us: 0,
            extra: 0,
        }
    }

    pub fn answer(&self) -> Self {
        Self { is_answer: true, flags: 0, count: 0, deadline_us: 0, extra: 0, ..*self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub head: Head,
    pub payload: Vec<u8>,
}

/// Append a frame to what is to be sent.
pub fn put_frame(out: &mut Vec<u8>, head: &Head, payload: &[u8]) {
    let at = out.len();
    out.resize(at + HEAD, 0);
    out.extend_from_slice(payload);
    let raw = &mut out[at..];
    put_u32(raw, 0, MAGIC);
    put_u16(raw, 4, VERSION);
    raw[6] = head.op as u8 | if head.is_answer { ANSWER } else { 0 };
    raw[7] = head.flags;
    put_u32(raw, 12, head.count);
    put_u64(raw, 16, head.request);
    put_u32(raw, 24, payload.len() as u32);
    put_u64(raw, 32, head.job);
    put_u64(raw, 40, head.deadline_us);
    put_u64(raw, 48, head.extra);
    let crc = checksum(raw, CRC);
    put_u32(raw, CRC, crc);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    Magic,
    Version,
    Op,
    Size,
    Checksum,
}

/// The first frame of what was received, and the bytes it took; None: more must come.
pub fn take_frame(bytes: &[u8]) -> Result<Option<(Frame, usize)>, BadFrame> {
    // What is wrong already need not be waited for.
    if bytes.len() >= 4 && u32_at(bytes, 0) != MAGIC {
        return Err(BadFrame::Magic);
    }
    if bytes.len() < HEAD {
        return Ok(None);
    }
    if u16_at(bytes, 4) != VERSION {
        return Err(BadFrame::Version);
    }
    let len = u32_at(bytes, 24) as usize;
    if len > PAYLOAD_MAX {
        return Err(BadFrame::Size);
    }
    let op = Op::of(bytes[6] & !ANSWER).ok_or(BadFrame::Op)?;
    let Some(raw) = bytes.get(..HEAD + len) else { return Ok(None) };
    if u32_at(raw, CRC) != checksum(raw, CRC) {
        return Err(BadFrame::Checksum);
    }
    let head = Head {
        op,
        is_answer: raw[6] & ANSWER != 0,
        flags: raw[7],
        count: u32_at(raw, 12),
        request: u64_at(raw, 16),
        job: u64_at(raw, 32),
        deadline_us: u64_at(raw, 40),
        extra: u64_at(raw, 48),
    };
    Ok(Some((Frame { head, payload: raw[HEAD..].to_vec() }, HEAD + len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;

    fn sample() -> Vec<u8> {
        let head = Head { count: 2, request: 7, job: 9, extra: 3, ..Head::new(Op::Lookup) };
        let mut out = Vec::new();
        put_frame(&mut out, &head, &[5; 64]);
        out
    }

    #[test]
    fn a_frame_comes_back_whole_or_not_yet() {
        let bytes = sample();
        for cut in 0..bytes.len() {
            assert_eq!(take_frame(&bytes[..cut]), Ok(None));
        }
        let (frame, used) = take_frame(&bytes).unwrap().unwrap();
        assert_eq!((used, frame.payload.len()), (bytes.len(), 64));
        assert_eq!((frame.head.request, frame.head.job, frame.head.extra), (7, 9, 3));
        let two = [bytes.clone(), bytes.clone()].concat();
        assert_eq!(take_frame(&two).unwrap().unwrap().1, bytes.len());
    }

    #[test]
    fn every_flipped_bit_is_refused_or_waited_for() {
        let bytes = sample();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(take_frame(&bad), Ok(Some(_))), "bit {bit}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        let mut random = Random(5);
        for _ in 0..1000 {
            let bytes: Vec<u8> = (0..200).map(|_| random.below(256) as u8).collect();
            assert!(take_frame(&bytes).is_err());
        }
    }
}
