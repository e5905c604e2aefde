//! The capacity is never exceeded, whatever else lies in the directory; what was used stays longest.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::harness::{options, Dir, Rig};
use crate::kvbm::options::DiskOptions;

const LEN: usize = 10_000;

/// Bytes on disk below a directory, like `du`.
fn used(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let each = entries.flatten().map(|entry| {
        let Ok(meta) = entry.path().symlink_metadata() else { return 0 };
        let below = if meta.is_dir() { used(&entry.path()) } else { 0 };
        below + meta.blocks() * 512
    });
    each.sum()
}

fn store_some(rig: &mut Rig, from: u64, count: u64) {
    for n in from..from + count {
        let _ = rig.store(n, LEN);
    }
}

#[test]
fn ten_times_the_capacity_goes_through_and_never_more_than_it_is_used() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    let capacity = rig.disk.space().capacity;
    for n in 0..10 * capacity / LEN as u64 {
        rig.store(n, LEN).unwrap();
        if n % 7 == 0 {
            assert!(used(&dir.0) <= capacity, "{} of {capacity}", used(&dir.0));
            assert!(rig.disk.space().used() <= capacity);
        }
    }
    assert!(rig.disk.catalog().payload_bytes() > capacity / 3);
    assert!(rig.disk.stats.segments_freed > 20);
}

#[test]
fn it_holds_after_opening_again_and_when_less_is_allowed() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    store_some(&mut rig, 0, 1000);
    rig.close();
    let options = DiskOptions { capacity: 2 << 20, ..options(&dir) };
    let mut rig = Rig::new(options);
    rig.until(|rig| (rig.disk.space().used() <= 2 << 20).then_some(()));
    for n in 1000..1500 {
        rig.store(n, LEN).unwrap();
        assert!(used(&dir.0) <= 2 << 20);
    }
    rig.expect(1499, LEN);
}

#[test]
fn files_of_others_count() {
    let dir = Dir::new();
    std::fs::write(dir.0.join("somebody's"), vec![7; 1 << 20]).unwrap();
    let mut rig = Rig::new(DiskOptions { look_us: 10_000, ..options(&dir) });
    store_some(&mut rig, 0, 600);
    assert!(used(&dir.0) <= rig.disk.space().capacity);
    std::fs::write(dir.0.join("kvbm-v1/more"), vec![7; 1 << 20]).unwrap();
    rig.until(|rig| {
        rig.skip_us += 10_000;
        (used(&dir.0) <= rig.disk.space().capacity).then_some(())
    });
    store_some(&mut rig, 600, 600);
    assert!(used(&dir.0) <= rig.disk.space().capacity);
    assert!(dir.0.join("somebody's").exists() && dir.0.join("kvbm-v1/more").exists());
    rig.expect(1199, LEN);
}

#[test]
fn blocks_in_use_outlive_others_and_writes_stay_bounded() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    store_some(&mut rig, 0, 20);
    for n in 1000..4000 {
        rig.store(n, LEN).unwrap();
        if n % 5 == 0 {
            for hot in 0..3 {
                rig.expect(hot, LEN);
            }
        }
    }
    assert!((3..20).all(|n| !rig.has(n)));
    let (stored, again) = (rig.disk.stats.stored_bytes, rig.disk.stats.reinserted_bytes);
    assert!(again > 0 && again * 10 <= stored * 3, "{again} of {stored}");
}

#[test]
fn when_everything_is_used_the_bound_still_holds() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    for n in 0..3000 {
        rig.store(n, LEN).unwrap();
        rig.load(n).unwrap();
    }
    let (stored, again) = (rig.disk.stats.stored_bytes, rig.disk.stats.reinserted_bytes);
    assert!(again > 0 && again * 10 <= stored * 3, "{again} of {stored}");
}

#[test]
fn pinned_segments_stay_and_a_store_full_of_them_refuses_quietly() {
    let dir = Dir::new();
    let mut rig = Rig::new(DiskOptions { backlog_bytes: 64 << 10, ..options(&dir) });
    rig.store(0, LEN).unwrap();
    rig.disk.pin(rig.ns, &super::harness::key(0)).unwrap();
    for n in 1..2000 {
        rig.store(n, LEN).unwrap();
    }
    rig.expect(0, LEN);
    rig.disk.unpin_all();
    for n in 2000..4000 {
        rig.store(n, LEN).unwrap();
    }
    assert_eq!(rig.disk.pinned(), 0);
}

#[test]
fn deleted_segment_files_are_misses() {
    let dir = Dir::new();
    let mut rig = Rig::new(DiskOptions { look_us: 10_000, ..options(&dir) });
    store_some(&mut rig, 0, 200);
    rig.settle();
    for file in dir.files("segment-") {
        std::fs::remove_file(file).unwrap();
    }
    rig.until(|rig| {
        rig.skip_us += 10_000;
        (rig.disk.catalog().is_empty() && rig.disk.space().segments < 600 << 10).then_some(())
    });
    assert!(rig.load(3).is_err());
    for n in 200..400 {
        rig.store(n, LEN).unwrap();
    }
    rig.expect(399, LEN);
    assert!(rig.disk.health().is_good());
}

#[test]
fn a_removed_directory_is_noticed() {
    let dir = Dir::new();
    let mut rig = Rig::new(DiskOptions { look_us: 10_000, ..options(&dir) });
    store_some(&mut rig, 0, 20);
    rig.settle();
    let path = dir.0.join("kvbm-v1");
    // A segment may be made meanwhile.
    while path.exists() {
        let _ = std::fs::remove_dir_all(&path);
    }
    rig.until(|rig| {
        rig.skip_us += 10_000;
        rig.disk.health().is_lost.then_some(())
    });
    assert_eq!(rig.store(100, LEN), Err("Degraded".into()));
    assert!((0..20).all(|n| !rig.has(n)));
}
