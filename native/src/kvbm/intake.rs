//! What has come of one fetch so far: blocks are handed on as soon as all their bytes are there, each once,
//! and verified.

use super::errand::{Errand, Piece};
use super::remote::{Fetched, Miss};
use super::view::View;

type Blocks = Vec<(u64, Result<Fetched, Miss>)>;

pub struct Intake {
    /// Its pieces are in the order of their bytes.
    errand: Errand,
    told: usize,
    bad: usize,
}

impl Intake {
    pub fn of(mut errand: Errand) -> Self {
        errand.pieces.sort_by_key(|piece| piece.slot);
        Self { errand, told: 0, bad: 0 }
    }

    pub fn path(&self) -> Option<String> {
        self.errand.path()
    }

    pub fn range(&self) -> Option<(u64, u64)> {
        self.errand.range()
    }

    /// Blocks of a bundle that are whole by now and were not before.
    pub fn whole(&mut self, data: &View) -> Blocks {
        let waiting = self.errand.pieces[self.told..].iter();
        let is_there =
            |piece: &&Piece| self.errand.place(piece).is_some_and(|(_, to)| to <= data.len());
        self.take(waiting.take_while(is_there).count(), data)
    }

    /// The others, when nothing more comes.
    pub fn rest(&mut self, data: &View) -> Blocks {
        self.take(self.errand.pieces.len() - self.told, data)
    }

    /// The others, when there is nothing of them.
    pub fn missed(&self, miss: Miss) -> Blocks {
        let pieces = self.errand.pieces[self.told..].iter();
        pieces.map(|piece| (piece.ticket, Err(miss))).collect()
    }

    fn take(&mut self, count: usize, data: &View) -> Blocks {
        let pieces = self.errand.pieces[self.told..self.told + count].iter();
        let blocks: Blocks =
            pieces.map(|piece| Fetched::piece(&self.errand, piece, data)).collect();
        self.told += count;
        self.bad += blocks.iter().filter(|(_, result)| result.is_err()).count();
        blocks
    }

    /// What was wrong with the blocks that came.
    pub fn damage(&self) -> Option<String> {
        let all = self.errand.pieces.len();
        (self.bad > 0).then(|| format!("{} of {all} blocks damaged and deleted", self.bad))
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::kvbm::bundle::start;
    use crate::kvbm::errand::{Kind, Within};
    use crate::kvbm::record::{self, Damage, Header, Spot, PAGE};

    const LEN: usize = 5000;

    fn record(n: u8) -> Vec<u8> {
        let mut bytes = vec![0; record::bytes(LEN)];
        let payload = &mut bytes[PAGE..PAGE + LEN];
        payload.fill(n);
        let header = Header {
            spot: Spot { store: 0, segment: 0, page: 0 },
            seq: 0,
            written_ms: 0,
            len: LEN as u32,
            key: [n; 32],
            namespace: [9; 32],
            payload_hash: xxh3_64(payload),
        };
        header.encode(&[], &mut bytes);
        bytes
    }

    fn errand(slots: &[u8]) -> Errand {
        let bundle = Within { name: [1; 32], record_bytes: record::bytes(LEN) as u32 };
        let piece = |&slot| Piece { ticket: u64::from(slot), key: [slot; 32], slot };
        let pieces = slots.iter().map(piece).collect();
        Errand { kind: Kind::Fetch, namespace: [9; 32], pieces, bundle: Some(bundle) }
    }

    fn tickets(blocks: &Blocks) -> Vec<(u64, Option<Miss>)> {
        blocks.iter().map(|(ticket, result)| (*ticket, result.as_ref().err().copied())).collect()
    }

    #[test]
    fn blocks_are_handed_on_when_they_are_whole_and_once() {
        let mut intake = Intake::of(errand(&[4, 2]));
        let (from, to) = intake.range().unwrap();
        assert_eq!((from, to), (start(record(0).len() as u32, 2), start(record(0).len() as u32, 5)));
        let all: Vec<u8> = [2, 3, 4].into_iter().flat_map(record).collect();
        let (mut data, mut seen) = (View::default(), Vec::new());
        for piece in all.chunks(3000) {
            let before = data.len();
            data.push(piece.to_vec());
            for told in tickets(&intake.whole(&data)) {
                seen.push((told, before < record(0).len()));
            }
        }
        assert_eq!(seen, [((2, None), true), ((4, None), false)]);
        assert!(intake.rest(&data).is_empty() && intake.damage().is_none());
    }

    #[test]
    fn what_does_not_come_is_told_once_and_what_came_is_kept() {
        let mut intake = Intake::of(errand(&[0, 1, 2]));
        let mut bad = record(1);
        bad[PAGE] ^= 1;
        let data = View::of([record(0), bad, record(2)[..PAGE].to_vec()].concat());
        let damaged = |ticket, why| (ticket, Some(Miss::Damaged(why)));
        assert_eq!(tickets(&intake.whole(&data)), [(0, None), damaged(1, Damage::Payload)]);
        assert_eq!(tickets(&intake.missed(Miss::Failed)), [(2, Some(Miss::Failed))]);
        assert_eq!(tickets(&intake.rest(&data)), [damaged(2, Damage::Short)]);
        assert_eq!(intake.damage().unwrap(), "2 of 3 blocks damaged and deleted");
    }

    #[test]
    fn a_block_alone_is_verified_at_the_end() {
        let mut alone = errand(&[7]);
        alone.bundle = None;
        let mut intake = Intake::of(alone);
        let data = View::of(record(7));
        assert!(intake.whole(&data).is_empty());
        assert_eq!(tickets(&intake.rest(&data)), [(7, None)]);
    }
}
