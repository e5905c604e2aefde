//! Bytes that live as long as somebody looks at them, whoever allocated them. Nobody writes to them.

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
pub struct View {
    whole: Arc<dyn Held>,
    from: usize,
    len: usize,
}

impl View {
    pub fn of(whole: impl Held + 'static) -> Self {
        let len = whole.bytes().len();
        Self { whole: Arc::new(whole), from: 0, len }
    }

    /// `len` bytes from `from` on; None: they are not all there.
    pub fn part(&self, from: usize, len: usize) -> Option<Self> {
        let inside = from.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| Self { whole: Arc::clone(&self.whole), from: self.from + from, len })
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole.bytes()[self.from..self.from + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_part_is_inside_the_part() {
        let whole = View::of((0..10).collect::<Vec<u8>>());
        let part = whole.part(2, 5).unwrap();
        drop(whole);
        assert_eq!(&part[..], [2, 3, 4, 5, 6]);
        assert_eq!(&part.part(1, 4).unwrap()[..], [3, 4, 5, 6]);
        assert!(part.part(1, 5).is_none() && part.part(usize::MAX, 2).is_none());
    }
}
