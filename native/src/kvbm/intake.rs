//! What has come of one fetch so far: blocks are verified while they come, each is handed on as soon as all
//! its bytes are there, and once.
//!
//! A payload is written to the slot of whoever waits for it while it is in the cache, before its checksum
//! is known. So a slot is good only when its block is told as landed, and nothing is written to one unless
//! the header says that this is the block, of the slot's length. Where the slot's gate is closed, or the
//! checksum is another, the block has not landed.

use xxhash_rust::xxh3::Xxh3;

use super::errand::{Errand, Landing, Piece};
use super::mover::deliver_payload;
use super::record::{self, Damage, Fingerprint, Header, PAGE};
use super::remote::{Fetched, Miss};
use super::view::View;

type Blocks = Vec<(u64, Result<Fetched, Miss>)>;

/// A block whose header page is here.
struct Coming {
    header: Header,
    note: Box<[u8]>,
    hasher: Xxh3,
    /// Bytes of its payload that were hashed.
    fed: usize,
    landing: Option<Landing>,
}

impl Coming {
    fn of(page: &[u8], namespace: &Fingerprint, piece: &Piece) -> Result<Self, Damage> {
        let header = Header::decode(page)?;
        let is_right = |landing: &&Landing| {
            header.len == landing.len && header.key == piece.key && header.namespace == *namespace
        };
        let landing = piece.landing.as_ref().filter(is_right).cloned();
        let note = record::note(page).into();
        Ok(Self { header, note, hasher: Xxh3::new(), fed: 0, landing })
    }

    /// `there` bytes of the record are there, which begins `from` bytes into `data`.
    fn feed(&mut self, data: &View, from: usize, there: usize) {
        let end = there.min(PAGE + self.header.len as usize);
        let known = PAGE + self.fed;
        let Some(news) = data.part(from + known, end.saturating_sub(known)) else { return };
        for bytes in news.pieces() {
            self.hasher.update(bytes);
            let target = self.landing.as_ref().map(|landing| landing.target.behind(self.fed));
            if target.is_some_and(|target| deliver_payload([bytes], &target).is_err()) {
                self.landing = None;
            }
            self.fed += bytes.len();
        }
    }

    /// What was not fed was not verified: a payload that does not end with its record is none.
    fn end(self, data: &View, from: usize) -> Result<Fetched, Damage> {
        let len = self.header.len as usize;
        let payload = data.part(from + PAGE, len).filter(|_| self.fed == len);
        let payload = payload.ok_or(Damage::Short)?;
        if self.hasher.digest() != self.header.payload_hash {
            return Err(Damage::Payload);
        }
        let Self { header, note, landing, .. } = self;
        Ok(Fetched { header, note, payload, landed: landing.map(|landing| landing.token) })
    }
}

pub struct Intake {
    /// Its pieces are in the order of their bytes.
    errand: Errand,
    told: usize,
    bad: usize,
    /// The first one that was not told.
    coming: Option<Result<Coming, Damage>>,
}

impl Intake {
    pub fn of(mut errand: Errand) -> Self {
        errand.pieces.sort_by_key(|piece| piece.slot);
        Self { errand, told: 0, bad: 0, coming: None }
    }

    pub fn path(&self) -> Option<String> {
        self.errand.path()
    }

    pub fn range(&self) -> Option<(u64, u64)> {
        self.errand.range()
    }

    /// `data` is all that has come: blocks of a bundle that are whole by now and were not before.
    pub fn whole(&mut self, data: &View) -> Blocks {
        let mut blocks = Vec::new();
        while let Some((_, end)) = self.feed(data) {
            if end.is_none_or(|end| data.len() < end) {
                break;
            }
            blocks.extend(self.take(data));
        }
        blocks
    }

    /// The others, when nothing more comes.
    pub fn rest(&mut self, data: &View) -> Blocks {
        let mut blocks = Vec::new();
        while self.feed(data).is_some() {
            blocks.extend(self.take(data));
        }
        blocks
    }

    /// The others, when there is nothing of them.
    pub fn missed(&self, miss: Miss) -> Blocks {
        let pieces = self.errand.pieces[self.told..].iter();
        pieces.map(|piece| (piece.ticket, Err(miss))).collect()
    }

    /// Where the next block lies, whose bytes are looked at as far as they are there. None: all were told.
    fn feed(&mut self, data: &View) -> Option<(usize, Option<usize>)> {
        let piece = self.errand.pieces.get(self.told)?;
        let place = self.errand.place(piece);
        let from = place.map_or(0, |(from, _)| from);
        let there = place.map_or(data.len(), |(_, to)| to.min(data.len())).saturating_sub(from);
        if self.coming.is_none() && there >= PAGE {
            let page = data.part(from, PAGE)?.first(PAGE);
            self.coming = Some(Coming::of(&page, &self.errand.namespace, piece));
        }
        if let Some(Ok(coming)) = &mut self.coming {
            coming.feed(data, from, there);
        }
        Some((from, place.map(|(_, to)| to)))
    }

    /// The next block is told, with what is there of it.
    fn take(&mut self, data: &View) -> Option<(u64, Result<Fetched, Miss>)> {
        let piece = self.errand.pieces.get(self.told)?;
        let from = self.errand.place(piece).map_or(0, |(from, _)| from);
        let found = match self.coming.take() {
            Some(coming) => coming.and_then(|coming| coming.end(data, from)),
            None if self.errand.bundle.is_some() => Err(Damage::Short),
            None => Err(Damage::Header),
        };
        self.told += 1;
        self.bad += usize::from(found.is_err());
        Some((piece.ticket, found.map_err(Miss::Damaged)))
    }

    /// What was wrong with the blocks that came.
    pub fn damage(&self) -> Option<String> {
        let all = self.errand.pieces.len();
        (self.bad > 0).then(|| format!("{} of {all} blocks damaged and deleted", self.bad))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::sync::Arc;

    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::kvbm::bundle::start;
    use crate::kvbm::errand::{Kind, Within};
    use crate::kvbm::gate::Gate;
    use crate::kvbm::memory::Memory;
    use crate::kvbm::mover::{Slot, Target};
    use crate::kvbm::record::Spot;
    use crate::kvbm::region::Region;

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
        let piece = |&slot| Piece { ticket: u64::from(slot), slot, ..Piece::of([slot; 32]) };
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
        assert_eq!(
            (from, to),
            (start(record(0).len() as u32, 2), start(record(0).len() as u32, 5))
        );
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

    /// A block alone, of a client's slot of `len` bytes; the slot's region and gate.
    fn landing(n: u8, len: usize) -> (Errand, Arc<Region>, Gate) {
        let fd = unsafe { libc::memfd_create(c"region".as_ptr(), libc::MFD_CLOEXEC) };
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(3 * LEN as u64).unwrap();
        let region = Arc::new(Region::adopt(file.into(), LEN as u64, 3).unwrap());
        let gate = Gate::new(Arc::new(Memory::create(c"gate", 4096).unwrap()), 8, 1);
        gate.open();
        let slot = Slot { region: region.clone(), offset: LEN as u64, gate: gate.clone() };
        let mut alone = errand(&[n]);
        alone.bundle = None;
        let target = Target::Slot(slot);
        alone.pieces[0].landing = Some(Landing { token: 77, target, len: len as u32 });
        (alone, region, gate)
    }

    /// What becomes of `record` that comes in pieces: who has it, and all slots.
    fn landed(
        errand: Errand,
        region: &Region,
        record: &[u8],
    ) -> (Result<Option<u64>, Miss>, Vec<u8>) {
        let (mut intake, mut data) = (Intake::of(errand), View::default());
        for piece in record.chunks(1700) {
            data.push(piece.to_vec());
            assert!(intake.whole(&data).is_empty());
        }
        let (_, result) = intake.rest(&data).pop().unwrap();
        let mut slots = vec![0; 3 * LEN];
        region.read(0, &mut slots).unwrap();
        (result.map(|fetched| fetched.landed), slots)
    }

    #[test]
    fn a_payload_lands_in_its_slot_and_nowhere_else() {
        let (errand, region, _) = landing(7, LEN);
        let wanted = [vec![0; LEN], vec![7; LEN], vec![0; LEN]].concat();
        assert!(landed(errand, &region, &record(7)) == (Ok(Some(77)), wanted));
    }

    #[test]
    fn what_is_not_the_block_of_that_slot_is_not_written_to_it() {
        let untouched = vec![0; 3 * LEN];
        for (n, len, bytes) in [(7, LEN - 1, record(7)), (7, LEN, record(8))] {
            let (errand, region, _) = landing(n, len);
            assert!(landed(errand, &region, &bytes) == (Ok(None), untouched.clone()));
        }
        let (errand, region, gate) = landing(7, LEN);
        gate.close();
        assert!(landed(errand, &region, &record(7)) == (Ok(None), untouched));
    }

    #[test]
    fn what_fails_its_checksum_has_not_landed() {
        let (errand, region, _) = landing(7, LEN);
        let mut bad = record(7);
        bad[PAGE + LEN - 1] ^= 1;
        let damaged = Err(Miss::Damaged(Damage::Payload));
        assert_eq!(landed(errand, &region, &bad).0, damaged);
        let (errand, region, _) = landing(7, LEN);
        let short = Err(Miss::Damaged(Damage::Short));
        assert_eq!(landed(errand, &region, &record(7)[..PAGE + LEN - 1]).0, short);
        let (errand, region, _) = landing(7, LEN);
        let none = Err(Miss::Damaged(Damage::Header));
        assert_eq!(landed(errand, &region, &record(7)[..PAGE - 1]).0, none);
    }

    #[test]
    fn a_payload_longer_than_its_record_is_none() {
        // Its header is whole, and its checksum that of the bytes up to the next record.
        let (mut bytes, room) = (record(0), record::bytes(LEN) - PAGE);
        let mut header = Header::decode(&bytes).unwrap();
        header.len = room as u32 + 1;
        header.payload_hash = xxh3_64(&bytes[PAGE..]);
        header.encode(&[], &mut bytes);
        let mut intake = Intake::of(errand(&[0, 1]));
        let blocks = intake.whole(&View::of([bytes, record(1)].concat()));
        assert_eq!(tickets(&blocks), [(0, Some(Miss::Damaged(Damage::Short))), (1, None)]);
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
