//! A map of u64 to u64 that wastes little memory: one flat array in which the keys stay sorted.
//!
//! Keys must be spread evenly over their range (mixed hashes). A key's home is its place in proportion
//! to the range, a collision moves the larger key on, so the whole array is in key order with gaps. From
//! that follow: a search ends at the first larger key; deletion leaves no tombstones; growth is one
//! sequential copy, which allows small steps and so 20 to 26 bytes an entry.

/// The key of a free cell.
const FREE: u64 = 0;
/// Cells past the last home. The last cell of all stays free, so that a search always ends.
const TAIL: usize = 24;
const SMALLEST: usize = 8;

type Cell = [u64; 2];

#[derive(Default)]
pub struct Table {
    cells: Box<[Cell]>,
    /// Cells that are some key's home; 0 until the first insertion.
    homes: usize,
    len: usize,
}

/// The key as it is stored: no key is the mark of a free cell.
#[inline]
fn stored(key: u64) -> u64 {
    key.max(1)
}

impl Table {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.cells)
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        ((u128::from(key) * self.homes as u128) >> 64) as usize
    }

    /// The first cell that is free or has this key or a larger one.
    #[inline]
    fn seek(&self, key: u64) -> usize {
        let mut at = self.home(key);
        while self.cells[at][0] != FREE && self.cells[at][0] < key {
            at += 1;
        }
        at
    }

    /// Asks for the memory in which the key would be.
    #[inline]
    pub fn prefetch(&self, key: u64) {
        #[cfg(target_arch = "x86_64")]
        if self.homes > 0 {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            let cell = &raw const self.cells[self.home(key)];
            // SAFETY: a prefetch of an address reads nothing and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(cell.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = key;
    }

    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        if self.homes == 0 {
            return None;
        }
        let key = stored(key);
        let cell = &self.cells[self.seek(key)];
        (cell[0] == key).then_some(cell[1])
    }

    #[inline]
    pub fn get_mut(&mut self, key: u64) -> Option<&mut u64> {
        if self.homes == 0 {
            return None;
        }
        let key = stored(key);
        let at = self.seek(key);
        let cell = &mut self.cells[at];
        (cell[0] == key).then_some(&mut cell[1])
    }

    /// Sets the value of a key, new or not.
    pub fn insert(&mut self, key: u64, value: u64) {
        let key = stored(key);
        if self.len >= self.homes - self.homes / 5 {
            self.resize((self.homes + self.homes / 4).max(SMALLEST));
        }
        loop {
            let at = self.seek(key);
            if self.cells[at][0] == key {
                self.cells[at][1] = value;
                return;
            }
            let mut free = at;
            while self.cells[free][0] != FREE {
                free += 1;
            }
            if free + 1 < self.cells.len() {
                self.cells.copy_within(at..free, at + 1);
                self.cells[at] = [key, value];
                self.len += 1;
                return;
            }
            self.resize(self.homes + self.homes / 4);
        }
    }

    pub fn remove(&mut self, key: u64) -> Option<u64> {
        if self.homes == 0 {
            return None;
        }
        let key = stored(key);
        let at = self.seek(key);
        if self.cells[at][0] != key {
            return None;
        }
        let value = self.cells[at][1];
        let mut end = at + 1;
        while self.cells[end][0] != FREE && self.home(self.cells[end][0]) < end {
            end += 1;
        }
        self.cells.copy_within(at + 1..end, at);
        self.cells[end - 1] = [FREE, 0];
        self.len -= 1;
        if self.len * 5 < self.homes * 2 && self.homes > 64 {
            self.resize(self.len + self.len / 2);
        }
        Some(value)
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.cells.iter().filter(|cell| cell[0] != FREE).map(|cell| (cell[0], cell[1]))
    }

    /// The entry of the smallest key that is at least this one.
    pub fn next(&self, key: u64) -> Option<(u64, u64)> {
        if self.homes == 0 {
            return None;
        }
        let rest = &self.cells[self.seek(stored(key))..];
        rest.iter().find(|cell| cell[0] != FREE).map(|cell| (cell[0], cell[1]))
    }

    pub fn into_entries(self) -> impl Iterator<Item = (u64, u64)> + Send {
        let cells = self.cells;
        (0..cells.len()).map(move |at| (cells[at][0], cells[at][1])).filter(|cell| cell.0 != FREE)
    }

    fn resize(&mut self, homes: usize) {
        let mut next = Table { cells: vec![[0; 2]; homes + TAIL].into(), homes, len: self.len };
        let mut place = 0;
        for cell in self.cells.iter().filter(|cell| cell[0] != FREE) {
            place = place.max(next.home(cell[0]));
            if place + 1 >= next.cells.len() {
                // A crowd at the upper end of the range: more room spreads it.
                return self.resize(homes + homes / 4 + 1);
            }
            next.cells[place] = *cell;
            place += 1;
        }
        *self = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Random;
    use std::collections::BTreeMap;

    fn check(table: &Table, expected: &BTreeMap<u64, u64>) {
        assert_eq!(table.len(), expected.len());
        let entries: Vec<_> = table.iter().collect();
        assert_eq!(entries, expected.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
        for (key, value) in expected {
            assert_eq!(table.get(*key), Some(*value));
        }
    }

    #[test]
    fn it_is_a_map_under_random_insertions_and_removals() {
        // Keys over the whole range, and crowds at both ends of it.
        for (seed, range, shift) in
            [(1, u64::MAX, 0), (2, 1 << 12, 0), (3, 1 << 10, 54), (4, 300, 0)]
        {
            let (mut table, mut expected) = (Table::default(), BTreeMap::new());
            let mut random = Random(seed);
            let full = if range == u64::MAX { 3000 } else { range / 2 };
            for step in 0..20_000u64 {
                let pool = random.below(full);
                let key = match range {
                    u64::MAX => crate::hash::mix(pool + 1),
                    _ => (pool << shift) | if shift > 0 { (1 << shift) - 1 } else { 1 },
                };
                // Three phases: it grows, shrinks, grows again.
                let add = random.below(10) < if (7_000..14_000).contains(&step) { 2 } else { 8 };
                if add {
                    table.insert(key, step);
                    expected.insert(key, step);
                } else {
                    assert_eq!(table.remove(key), expected.remove(&key));
                }
                assert_eq!(table.get(key), expected.get(&key).copied());
                if step % 997 == 0 {
                    check(&table, &expected);
                }
            }
            check(&table, &expected);
            for key in expected.keys() {
                assert!(table.remove(*key).is_some());
            }
            assert!(table.is_empty() && table.iter().next().is_none());
        }
    }

    #[test]
    fn it_takes_at_most_26_bytes_an_entry() {
        let mut table = Table::default();
        for at in 1..200_000u64 {
            table.insert(crate::hash::mix(at), at);
            if at > 2000 {
                assert!(table.bytes() as u64 <= 26 * at, "{} bytes for {at}", table.bytes());
            }
        }
        let full = table.bytes();
        for at in 1..199_000u64 {
            table.remove(crate::hash::mix(at));
        }
        assert!(table.bytes() * 20 < full, "what is removed is given back");
    }

    #[test]
    fn the_next_entry_is_the_one_with_the_next_key() {
        let mut table = Table::default();
        assert_eq!(table.next(0), None);
        for at in 1..100u64 {
            table.insert(at << 57, at);
        }
        assert_eq!(table.next(0), Some((1 << 57, 1)));
        assert_eq!(table.next((5 << 57) + 1), Some((6 << 57, 6)));
        assert_eq!(table.next(u64::MAX), None);
    }

    #[test]
    fn no_key_is_the_mark_of_a_free_cell() {
        let mut table = Table::default();
        assert_eq!((table.get(0), table.remove(0)), (None, None));
        table.insert(0, 7);
        assert_eq!(table.get(0), Some(7));
        assert_eq!(table.remove(0), Some(7));
    }
}
