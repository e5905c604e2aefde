//! The last changes of what can be found where, numbered, for whoever wants to follow.

use std::collections::VecDeque;

use super::le::{part, put_u16, put_u32, u16_at, u32_at};
use super::record::Key;

/// Changes kept; who falls further behind must ask for everything anew.
const KEPT: usize = 1 << 16;
/// Bytes of a change on the wire.
pub const CHANGE: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    Stored = 1,
    Removed = 2,
    /// Nothing of the tier can be found any more.
    Cleared = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub what: What,
    pub tier: u8,
    pub namespace: u16,
    pub len: u32,
    pub key: Key,
}

impl Note {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + CHANGE, 0);
        let raw = &mut out[at..];
        raw[0] = self.what as u8;
        raw[1] = self.tier;
        put_u16(raw, 2, self.namespace);
        put_u32(raw, 4, self.len);
        raw[8..].copy_from_slice(&self.key);
    }

    pub fn decode(raw: &[u8]) -> Option<Self> {
        let what = match raw.first()? {
            1 => What::Stored,
            2 => What::Removed,
            3 => What::Cleared,
            _ => return None,
        };
        (raw.len() == CHANGE).then(|| Self {
            what,
            tier: raw[1],
            namespace: u16_at(raw, 2),
            len: u32_at(raw, 4),
            key: part(raw, 8),
        })
    }
}

#[derive(Default)]
pub struct ChangeLog {
    notes: VecDeque<Note>,
    /// Number of the next change; the first is 1.
    next: u64,
}

impl ChangeLog {
    pub fn new() -> Self {
        Self { notes: VecDeque::new(), next: 1 }
    }

    pub fn push(&mut self, note: Note) {
        if self.notes.len() == KEPT {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
        self.next += 1;
    }

    /// Number of the next change.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Number of the oldest change that is kept.
    pub fn oldest(&self) -> u64 {
        self.next - self.notes.len() as u64
    }

    /// Up to `most` changes from number `from` on, and whether none was missed.
    pub fn since(&self, from: u64, most: usize) -> (bool, Vec<Note>) {
        let skip = from.saturating_sub(self.oldest()) as usize;
        let notes = self.notes.iter().skip(skip).take(most).copied().collect();
        (from >= self.oldest(), notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(n: u64) -> Note {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        Note { what: What::Stored, tier: 2, namespace: 1, len: 5, key }
    }

    #[test]
    fn who_keeps_up_misses_nothing_and_who_does_not_is_told() {
        let mut log = ChangeLog::new();
        for n in 1..=10 {
            log.push(note(n));
        }
        assert_eq!(log.since(4, 3), (true, vec![note(4), note(5), note(6)]));
        assert_eq!(log.since(11, 3), (true, vec![]));
        for n in 11..=KEPT as u64 + 5 {
            log.push(note(n));
        }
        let (complete, notes) = log.since(1, 1);
        assert_eq!((complete, notes, log.oldest()), (false, vec![note(6)], 6));
    }

    #[test]
    fn a_note_comes_back() {
        let mut out = Vec::new();
        note(7).encode(&mut out);
        assert_eq!(Note::decode(&out), Some(note(7)));
        assert_eq!(Note::decode(&[9; CHANGE]), None);
    }
}
