//! What the remote tier wants of the object store: one request each, of one block or of neighbours in a
//! bundle.

use super::bundle::{start, Name};
use super::mover::Target;
use super::namespace::hex;
use super::record::{Fingerprint, Key};

/// Bytes nobody asked for that are read so that two blocks of a bundle come in one request.
const GAP_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Fetch,
    /// A fetch that nobody waits for yet.
    Ahead,
    /// Several blocks go as a bundle.
    Send,
    /// A block's object, or a bundle with all that belongs to it.
    Delete,
    /// Blocks of a bundle were dropped: say so beside it.
    Mark,
}

/// A client's slot that a block's payload may be written to while it comes, and is good when the block was
/// verified and somebody said so.
#[derive(Clone)]
pub struct Landing {
    /// Whose it is.
    pub token: u64,
    pub target: Target,
    /// The slot's bytes: a block of another length is not for it.
    pub len: u32,
}

#[derive(Clone)]
pub struct Piece {
    /// Of a fetch: what to report it under.
    pub ticket: u64,
    pub key: Key,
    /// Which record of the bundle.
    pub slot: u8,
    pub landing: Option<Landing>,
}

impl Piece {
    pub fn of(key: Key) -> Self {
        Self { ticket: 0, key, slot: 0, landing: None }
    }
}

/// The bundle that an errand is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within {
    pub name: Name,
    pub record_bytes: u32,
}

#[derive(Clone)]
pub struct Errand {
    pub kind: Kind,
    pub namespace: Fingerprint,
    pub pieces: Vec<Piece>,
    pub bundle: Option<Within>,
}

impl Errand {
    pub fn of(kind: Kind, namespace: Fingerprint, keys: impl IntoIterator<Item = Key>) -> Self {
        let pieces = keys.into_iter().map(Piece::of).collect();
        Self { kind, namespace, pieces, bundle: None }
    }

    /// The object that a fetch is about, as `kvbm.remote.layout` names it.
    pub fn path(&self) -> Option<String> {
        let print = hex(&self.namespace);
        if let Some(bundle) = &self.bundle {
            return Some(format!("v1/{print}/bundles/{}", hex(&bundle.name)));
        }
        let key = hex(&self.pieces.first()?.key);
        Some(format!("v1/{print}/{}/{key}", &key[..2]))
    }

    /// The bytes of a bundle that hold all pieces: from, to.
    pub fn range(&self) -> Option<(u64, u64)> {
        let record_bytes = self.bundle?.record_bytes;
        let slots = self.pieces.iter().map(|piece| usize::from(piece.slot));
        let (first, last) = (slots.clone().min()?, slots.max()?);
        Some((start(record_bytes, first), start(record_bytes, last + 1)))
    }

    /// Where a piece lies in those bytes: from, to. None: all there is, is one block.
    pub fn place(&self, piece: &Piece) -> Option<(usize, usize)> {
        let (record_bytes, (first, _)) = (self.bundle?.record_bytes, self.range()?);
        let from = (start(record_bytes, piece.slot.into()) - first) as usize;
        Some((from, from + record_bytes as usize))
    }

    /// Take the other one's blocks along, if one request can bring both.
    pub fn merge(&mut self, other: &Errand) -> bool {
        let same = self.kind == other.kind && self.namespace == other.namespace;
        if !same || self.bundle.is_none() || self.bundle != other.bundle {
            return false;
        }
        let (Some((from, to)), Some((its_from, its_to))) = (self.range(), other.range()) else {
            return false;
        };
        let is_fetch = matches!(self.kind, Kind::Fetch | Kind::Ahead);
        if is_fetch && (its_from > to + GAP_MAX || from > its_to + GAP_MAX) {
            return false;
        }
        self.pieces.extend_from_slice(&other.pieces);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvbm::record::PAGE;

    fn errand(kind: Kind, name: u8, slot: u8) -> Errand {
        let pieces = vec![Piece { ticket: 1, slot, ..Piece::of([slot; 32]) }];
        let record_bytes = 17 * PAGE as u32;
        let bundle = Some(Within { name: [name; 32], record_bytes });
        Errand { kind, namespace: [9; 32], pieces, bundle }
    }

    #[test]
    fn neighbours_of_a_bundle_come_together() {
        let mut one = errand(Kind::Fetch, 1, 3);
        assert!(one.merge(&errand(Kind::Fetch, 1, 5)) && one.merge(&errand(Kind::Fetch, 1, 2)));
        let page = PAGE as u64;
        assert_eq!(one.range(), Some(((1 + 17 * 2) * page, (1 + 17 * 6) * page)));
        for other in
            [errand(Kind::Ahead, 1, 4), errand(Kind::Fetch, 2, 4), errand(Kind::Fetch, 1, 60)]
        {
            assert!(!one.merge(&other));
        }
        assert_eq!(one.pieces.len(), 3);
        let mut mark = errand(Kind::Mark, 1, 0);
        assert!(mark.merge(&errand(Kind::Mark, 1, 120)), "no bytes are read for it");
        let mut alone = Errand::of(Kind::Fetch, [9; 32], [[1; 32]]);
        assert!(!alone.merge(&alone.clone()) && alone.range().is_none());
    }
}
