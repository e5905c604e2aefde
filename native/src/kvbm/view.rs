//! Bytes that live as long as somebody looks at them, whoever allocated them. Nobody writes to them.
//!
//! What came over a network came in pieces, and stays in them: to put them together is to copy them.

use std::ops::Deref;
use std::sync::Arc;

/// Memory that does not move or change while it is held.
pub trait Held: Send + Sync {
    fn bytes(&self) -> &[u8];
}

impl Held for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A part of such memory; the whole of it is held.
#[derive(Clone)]
struct Piece {
    whole: Arc<dyn Held>,
    from: usize,
    len: usize,
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole.bytes()[self.from..self.from + self.len]
    }
}

/// One row of bytes in as many pieces as it came in.
#[derive(Clone, Default)]
pub struct View {
    pieces: Vec<Piece>,
    len: usize,
}

impl View {
    pub fn of(whole: impl Held + 'static) -> Self {
        let mut view = Self::default();
        view.push(whole);
        view
    }

    /// These bytes follow.
    pub fn push(&mut self, whole: impl Held + 'static) {
        let len = whole.bytes().len();
        self.pieces.push(Piece { whole: Arc::new(whole), from: 0, len });
        self.len += len;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &**piece)
    }

    /// `len` bytes from `from` on; None: they are not all there.
    pub fn part(&self, from: usize, len: usize) -> Option<Self> {
        if from.checked_add(len).is_none_or(|end| end > self.len) {
            return None;
        }
        let (mut at, mut part) = (0, Self::default());
        for piece in &self.pieces {
            let (first, last) = (from.max(at), (from + len).min(at + piece.len));
            if first < last {
                let (from, len) = (piece.from + first - at, last - first);
                part.pieces.push(Piece { whole: Arc::clone(&piece.whole), from, len });
                part.len += len;
            }
            at += piece.len;
        }
        Some(part)
    }

    /// Copy the bytes from `from` on, which are all there.
    pub fn copy_to(&self, from: usize, mut into: &mut [u8]) {
        let mut skip = from;
        for piece in self.pieces() {
            let skipped = skip.min(piece.len());
            let piece = &piece[skipped..];
            skip -= skipped;
            let (now, later) = into.split_at_mut(piece.len().min(into.len()));
            now.copy_from_slice(&piece[..now.len()]);
            into = later;
        }
        assert!(into.is_empty(), "bytes that are not there");
    }

    /// The first bytes, `most` or all there are.
    pub fn first(&self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most.min(self.len)];
        self.copy_to(0, &mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(view: &View) -> Vec<u8> {
        view.first(usize::MAX)
    }

    #[test]
    fn a_part_of_a_part_is_inside_the_part() {
        let whole = View::of((0..10).collect::<Vec<u8>>());
        let part = whole.part(2, 5).unwrap();
        drop(whole);
        assert_eq!(bytes(&part), [2, 3, 4, 5, 6]);
        assert_eq!(bytes(&part.part(1, 4).unwrap()), [3, 4, 5, 6]);
        assert!(part.part(1, 5).is_none() && part.part(usize::MAX, 2).is_none());
    }

    #[test]
    fn pieces_are_one_row_of_bytes_however_they_are_cut() {
        let all: Vec<u8> = (0..20).collect();
        for cut in 0..20 {
            let mut view = View::of(all[..cut].to_vec());
            view.push(all[cut..cut.max(13)].to_vec());
            view.push(all[cut.max(13)..].to_vec());
            assert_eq!((view.len(), bytes(&view)), (20, all.clone()));
            for from in 0..20 {
                let part = view.part(from, 20 - from).unwrap();
                assert_eq!(bytes(&part), all[from..]);
                assert_eq!(part.pieces().map(<[u8]>::len).sum::<usize>(), part.len());
                let mut into = [0; 3];
                if from <= 17 {
                    view.copy_to(from, &mut into);
                    assert_eq!(into, all[from..from + 3]);
                    assert_eq!(bytes(&view.part(from, 3).unwrap()), all[from..from + 3]);
                }
            }
        }
    }
}
