//! Which hashes of one event came before in it.

use std::collections::HashSet;

/// Looks at each hash once, and only when asked.
#[derive(Default)]
pub struct Earlier {
    seen: HashSet<u64>,
    upto: usize,
}

impl Earlier {
    /// Whether the hash at a place stands before it, too. Later calls have later places.
    pub fn has(&mut self, hashes: &[u64], at: usize) -> bool {
        self.seen.extend(&hashes[self.upto..at]);
        self.upto = at;
        self.seen.contains(&hashes[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_a_search_finds() {
        let hashes = [4, 5, 4, 6, 7, 6, 5, 8];
        let mut earlier = Earlier::default();
        for at in [1, 2, 5, 6, 7] {
            assert_eq!(earlier.has(&hashes, at), hashes[..at].contains(&hashes[at]), "{at}");
        }
    }
}
