//! Storing, loading, dropping, closing, opening again.

use std::collections::HashSet;

use super::harness::{key, namespace, options, Dir, Rig};
use crate::kvbm::admission::Policy;
use crate::kvbm::disk::{Change, Disk};
use crate::kvbm::folder::Direct;
use crate::kvbm::loads::Load;
use crate::kvbm::mover::Target;
use crate::kvbm::options::{DiskOptions, IoKind};
use crate::kvbm::record::{note, PAGE};
use crate::kvbm::stores::Stored;
use crate::kvbm::Refusal;

const LEN: usize = 10_000;

fn every_way() -> Vec<(IoKind, Direct)> {
    let kinds = [IoKind::Threads, IoKind::Uring];
    kinds.into_iter().flat_map(|kind| [(kind, Direct::Auto), (kind, Direct::Never)]).collect()
}

#[test]
fn what_is_stored_is_loaded_by_every_kind_of_io() {
    for (io, direct) in every_way() {
        let dir = Dir::new();
        let mut rig = Rig::new(DiskOptions { io, direct, ..options(&dir) });
        for (n, len) in [(1, 1), (2, PAGE), (3, PAGE + 1), (4, 100_000)] {
            assert_eq!(rig.store(n, len), Ok(Stored::Queued));
            rig.expect(n, len);
        }
        assert_eq!(rig.store(3, PAGE + 1), Ok(Stored::There));
        assert_eq!(rig.load(9), Err("Absent".into()));
        assert_eq!((rig.disk.stats.stored, rig.disk.stats.loaded), (4, 4));
    }
}

#[test]
fn a_note_comes_back_with_its_block() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    rig.store(7, LEN).unwrap();
    let token = rig.begin_load(7).unwrap();
    let buffer = rig.outcome(token).unwrap().unwrap();
    assert_eq!(note(&buffer), 7_u64.to_le_bytes());
    rig.disk.give_back(buffer);
}

#[test]
fn two_that_store_the_same_block_are_both_told() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    let (first, _) = rig.begin_store(1, LEN).unwrap();
    let (second, stored) = rig.begin_store(1, LEN).unwrap();
    assert_eq!(stored, Stored::Queued);
    rig.outcome(first).unwrap();
    rig.outcome(second).unwrap();
    assert_eq!((rig.disk.stats.stored, rig.disk.stats.deduped), (1, 1));
}

#[test]
fn a_closed_store_opens_with_everything_in_it() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..50 {
        rig.store(n, LEN).unwrap();
    }
    assert!(rig.drop_block(7) && !rig.drop_block(7));
    rig.close();
    for _ in 0..3 {
        let mut rig = Rig::new(options(&dir));
        assert_eq!(rig.disk.stats.recovered, 49);
        for n in 0..50 {
            if n == 7 {
                assert!(!rig.has(n));
            } else {
                rig.expect(n, LEN);
            }
        }
        assert_eq!(rig.store(8, LEN), Ok(Stored::There));
        rig.close();
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_crash_at_any_time() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..60 {
        rig.store(n, LEN).unwrap();
        if n % 3 == 0 {
            let copy = dir.copy();
            let mut after = Rig::new(options(&copy));
            for m in 0..=n {
                after.expect(m, LEN);
            }
        }
    }
}

#[test]
fn namespaces_do_not_share() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    rig.store(1, LEN).unwrap();
    let other = rig.disk.namespace(&namespace(2)).unwrap();
    assert_ne!(other, rig.ns);
    assert!(rig.disk.find(other, &key(1)).is_none());
    let mine = rig.ns;
    rig.ns = other;
    rig.store(1, 2 * LEN).unwrap();
    rig.close();
    let mut rig = Rig::new(options(&dir));
    assert_eq!(rig.ns, mine);
    rig.expect(1, LEN);
    rig.ns = rig.disk.namespace(&namespace(2)).unwrap();
    rig.expect(1, 2 * LEN);
}

#[test]
fn a_block_of_another_length_is_not_the_one_asked_for() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    rig.store(1, LEN).unwrap();
    let (token, namespace) = (rig.draw(), rig.ns);
    let load = Load { token, namespace, key: key(1), target: Target::Buffer };
    assert_eq!(rig.disk.load(load, Some(LEN as u32 + 1)), Err(Refusal::Absent));
}

#[test]
fn a_second_owner_is_refused_and_told_who_the_first_is() {
    let dir = Dir::new();
    let _rig = Rig::new(options(&dir));
    let error = Disk::open(options(&dir)).err().unwrap().to_string();
    assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
}

#[test]
fn admission_by_reuse_takes_the_second_offer() {
    let dir = Dir::new();
    let mut rig = Rig::new(DiskOptions { policy: Policy::Reuse(2), ..options(&dir) });
    assert_eq!(rig.store(1, LEN), Err("Policy".into()));
    assert_eq!(rig.store(1, LEN), Ok(Stored::Queued));
}

#[test]
fn changes_tell_what_can_be_found() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..1000 {
        rig.store(n, LEN).unwrap();
    }
    rig.drop_block(999);
    rig.settle();
    let mut there = HashSet::new();
    for change in std::mem::take(&mut rig.changes) {
        match change {
            Change::Stored { key, .. } => assert!(there.insert(key)),
            Change::Removed { key, .. } => assert!(there.remove(&key)),
            Change::Cleared => there.clear(),
            Change::Used { .. } => panic!("nobody asked for that"),
        }
    }
    assert_eq!(there.len(), rig.disk.catalog().len());
    assert!((0..1000).all(|n| there.contains(&key(n)) == rig.has(n)));
}

#[test]
fn a_checkpoint_replaces_the_journal_and_loses_nothing() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    let mut n = 0;
    while rig.disk.stats.checkpoints < 3 {
        rig.store(n, 100).unwrap();
        n += 1;
    }
    let kept: Vec<u64> = (0..n).filter(|&n| rig.has(n)).collect();
    assert_eq!((dir.files("snapshot-").len(), dir.files("journal-").len()), (1, 1));
    let copy = dir.copy();
    let mut after = Rig::new(options(&copy));
    assert_eq!(after.disk.catalog().len(), kept.len());
    for n in kept {
        after.expect(n, 100);
    }
}

#[test]
fn scrubbing_reads_everything_once() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..40 {
        rig.store(n, LEN).unwrap();
    }
    rig.disk.scrub(0);
    let report = rig.until(|rig| rig.disk.scrub_report().filter(|report| report.is_done));
    assert_eq!((report.checked, report.bad), (40, 0));
}
