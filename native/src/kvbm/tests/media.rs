//! Bytes on disk that change, vanish, or come back: misses or the right bytes, nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::harness::{options, payload, Dir, Rig};
use crate::hash::Random;
use crate::kvbm::disk::Disk;
use crate::kvbm::options::DiskOptions;
use crate::kvbm::record::PAGE;

const LEN: usize = 10_000;

/// Blocks of 10 bytes first, so that a journal fills; long ones behind them.
const SHORT: u64 = 800;

/// A store with a snapshot, a journal behind it and an open segment, as a crash leaves it.
fn crashed() -> (Dir, u64) {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..SHORT + 30 {
        rig.store(n, len_of(n)).unwrap();
    }
    rig.until(|rig| (rig.disk.stats.checkpoints > 0).then_some(()));
    (dir.copy(), SHORT + 30)
}

fn len_of(n: u64) -> usize {
    if n < SHORT {
        10
    } else {
        LEN
    }
}

/// Everything that can be found is right; how much that is.
fn check(dir: &Dir, blocks: u64) -> u64 {
    let Ok(disk) = Disk::open(options(dir)) else { return 0 };
    drop(disk);
    let mut rig = Rig::new(options(dir));
    let mut good = 0;
    for n in 0..blocks {
        if !rig.has(n) {
            continue;
        }
        match rig.load(n) {
            Ok(bytes) => {
                assert!(bytes == payload(n, len_of(n)), "block {n}");
                good += 1;
            }
            Err(_) => assert!(!rig.has(n), "a block that failed is forgotten"),
        }
    }
    // It is still a store.
    rig.store(1 << 40, LEN).unwrap();
    rig.expect(1 << 40, LEN);
    rig.close();
    good
}

fn damage(path: &Path, random: &mut Random) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let at = random.below(len);
    let page = |n: u64| n / PAGE as u64 * PAGE as u64;
    match random.below(6) {
        0 => file.set_len(at).unwrap(),
        1 => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
        }
        2 => {
            let zeros = vec![0; (random.below(100_000) as usize).min((len - at) as usize)];
            file.write_all_at(&zeros, at).unwrap();
        }
        3 => {
            // Two pages change places.
            let (one, two) = (page(random.below(len)), page(random.below(len)));
            let (mut first, mut second) = (vec![0; PAGE], vec![0; PAGE]);
            file.read_at(&mut first, one).unwrap();
            file.read_at(&mut second, two).unwrap();
            file.write_all_at(&first, two).unwrap();
            file.write_all_at(&second, one).unwrap();
        }
        4 => {
            // A page is there twice.
            let mut bytes = vec![0; PAGE];
            file.read_at(&mut bytes, page(at)).unwrap();
            file.write_all_at(&bytes, page(random.below(len))).unwrap();
        }
        _ => std::fs::remove_file(path).unwrap(),
    }
}

#[test]
fn any_file_may_be_torn_in_any_way() {
    let (whole, blocks) = crashed();
    assert_eq!(check(&whole.copy(), blocks), {
        let rig = Rig::new(options(&whole.copy()));
        rig.disk.catalog().len() as u64
    });
    let mut random = Random(11);
    for kind in ["segment-", "journal-", "snapshot-", "namespace-", "superblock"] {
        let mut found = 0;
        for _ in 0..12 {
            let copy = whole.copy();
            let files = copy.files(kind);
            let file = &files[random.below(files.len() as u64) as usize];
            damage(file, &mut random);
            found += check(&copy, blocks);
        }
        if kind == "segment-" {
            assert!(found > 0);
        }
    }
}

#[test]
fn two_segments_that_change_places_are_told_apart() {
    let (dir, blocks) = crashed();
    let files = dir.files("segment-");
    let other = dir.0.join("other");
    std::fs::rename(&files[0], &other).unwrap();
    std::fs::rename(&files[1], &files[0]).unwrap();
    std::fs::rename(&other, &files[1]).unwrap();
    check(&dir, blocks);
}

#[test]
fn a_segment_of_another_store_is_not_taken_for_ours() {
    let (one, blocks) = crashed();
    let (two, _) = crashed();
    for (mine, theirs) in one.files("segment-").iter().zip(two.files("segment-")) {
        std::fs::copy(theirs, mine).unwrap();
    }
    assert_eq!(check(&one, blocks), 0);
}

#[test]
fn a_damaged_superblock_is_an_error_that_says_what_to_do() {
    let (dir, _) = crashed();
    std::fs::write(&dir.files("superblock")[0], b"no superblock").unwrap();
    let error = Disk::open(options(&dir)).err().unwrap().to_string();
    assert!(error.contains("superblock") && error.contains("reset"), "{error}");
    let mut rig = Rig::new(DiskOptions { reset: true, ..options(&dir) });
    assert!(rig.disk.catalog().is_empty());
    rig.store(1, LEN).unwrap();
}

#[test]
fn one_torn_page_of_the_superblock_costs_nothing() {
    let (dir, blocks) = crashed();
    let file = File::options().write(true).open(&dir.files("superblock")[0]).unwrap();
    file.write_all_at(&[0; PAGE], 0).unwrap();
    assert!(check(&dir, blocks) > 0);
}

#[test]
fn records_behind_the_journal_are_found_unless_the_journal_is_damaged() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..8 {
        rig.store(n, LEN).unwrap();
    }
    let copy = dir.copy();
    let journal = &copy.files("journal-")[0];
    let file = File::options().read(true).write(true).open(journal).unwrap();
    // Its only page in use is torn, as by a power cut.
    file.write_all_at(&[1; 64], 0).unwrap();
    let rig = Rig::new(options(&copy));
    assert!(rig.disk.catalog().is_empty(), "an unknown segment is not believed");
}

#[test]
fn what_was_dropped_stays_away_even_when_its_record_is_found_again() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..8 {
        rig.store(n, LEN).unwrap();
    }
    rig.drop_block(7);
    for round in 0..3 {
        let copy = dir.copy();
        let after = Rig::new(options(&copy));
        assert!(!after.has(7) && after.has(6), "{round}");
        after.close();
        assert!(!Rig::new(options(&copy)).has(7));
    }
}
