//! Small blocks that wait together are written in one transfer, and each still fails or lives alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::faults::{Fault, Faulty};
use super::harness::{key, options, Dir, Rig};
use crate::kvbm::folder::Direct;
use crate::kvbm::gate::Gate;
use crate::kvbm::io::{Class, Direction, Io};
use crate::kvbm::memory::Memory;
use crate::kvbm::mover::{Failure, Slot, Source};
use crate::kvbm::options::DiskOptions;
use crate::kvbm::region::Region;
use crate::kvbm::stores::Store;

const LEN: usize = 10_000;
const BLOCKS: u64 = 16;

/// A backend that counts the writes of records, and how one of them goes.
fn counting(
    rule: impl Fn(usize) -> Option<Fault> + Send + 'static,
) -> (Arc<Faulty>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let faulty = Faulty::new(move |io: &Io| {
        let writes = io.direction == Direction::Write && io.class == Class::Record;
        let nth = writes.then(|| counted.fetch_add(1, Ordering::Relaxed));
        nth.and_then(&rule)
    });
    (faulty, count)
}

fn begin_all(rig: &mut Rig) -> Vec<u64> {
    (0..BLOCKS).map(|n| rig.begin_store(n, LEN).unwrap().0).collect()
}

#[test]
fn blocks_that_wait_are_written_at_once_and_each_is_found_again() {
    let dir = Dir::new();
    let (backend, count) = counting(|_| None);
    let mut rig = Rig::with_backend(options(&dir), backend);
    for token in begin_all(&mut rig) {
        rig.outcome(token).unwrap();
    }
    let writes = count.load(Ordering::Relaxed);
    assert!(writes < BLOCKS as usize / 2, "{writes} writes of {BLOCKS} blocks");
    (0..BLOCKS).for_each(|n| rig.expect(n, LEN));
    let mut after = Rig::new(DiskOptions { dir: dir.copy().0.clone(), ..options(&dir) });
    (0..BLOCKS).for_each(|n| after.expect(n, LEN));
}

#[test]
fn a_run_that_is_refused_for_its_flags_is_written_again_whole() {
    let dir = Dir::new();
    let (backend, _) = counting(|nth| (nth < 2).then_some(Fault::Errno(libc::EINVAL)));
    let options = DiskOptions { direct: Direct::Auto, ..options(&dir) };
    let mut rig = Rig::with_backend(options, backend);
    if !rig.disk.is_direct() {
        return; // The file system of the temporary directory has none.
    }
    for token in begin_all(&mut rig) {
        rig.outcome(token).unwrap();
    }
    assert!(!rig.disk.is_direct() && rig.disk.health().is_good());
    (0..BLOCKS).for_each(|n| rig.expect(n, LEN));
}

#[test]
fn a_run_that_is_not_written_fails_each_of_its_stores_once() {
    let dir = Dir::new();
    let (backend, _) = counting(|nth| (nth == 0).then_some(Fault::Errno(libc::EIO)));
    let mut rig = Rig::with_backend(options(&dir), backend);
    let tokens = begin_all(&mut rig);
    let failed: Vec<bool> = tokens.iter().map(|&token| rig.outcome(token).is_err()).collect();
    assert!(failed.iter().any(|&failed| failed) && !rig.disk.health().is_good());
    for (n, failed) in failed.into_iter().enumerate() {
        assert_eq!(rig.has(n as u64), !failed, "block {n}");
    }
    rig.settle();
    assert!(rig.out.is_empty() && rig.disk.pending.is_empty());
}

/// A region of a client that has been cut short, so that nothing can be fetched from it.
fn gone() -> Source {
    let fd = unsafe { libc::memfd_create(c"region".as_ptr(), libc::MFD_CLOEXEC) };
    let fd = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    let file = std::fs::File::from(fd.try_clone().unwrap());
    file.set_len(LEN as u64).unwrap();
    let region = Arc::new(Region::adopt(fd, LEN as u64, 1).unwrap());
    file.set_len(0).unwrap();
    let gate = Gate::new(Arc::new(Memory::create(c"gates", 4096).unwrap()), 0, 1);
    gate.open();
    Source::Slot(Slot { region, offset: 0, gate })
}

#[test]
fn a_block_that_cannot_be_fetched_leaves_the_others_of_its_run_alone() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    let mut tokens = Vec::new();
    for n in 0..BLOCKS {
        if n % 3 != 1 {
            tokens.push((n, rig.begin_store(n, LEN).unwrap().0));
            continue;
        }
        let (token, note, len) = (rig.draw(), Box::default(), LEN as u32);
        let store = Store { namespace: rig.ns, key: key(n), len, note, source: gone() };
        rig.disk.store(store, token).unwrap();
        tokens.push((n, token));
    }
    for (n, token) in tokens {
        let result = rig.outcome(token).map(|_| ());
        let expected = if n % 3 == 1 { Err(Failure::Region) } else { Ok(()) };
        assert_eq!(result, expected, "block {n}");
    }
    assert!(rig.disk.health().is_good());
    for n in (0..BLOCKS).filter(|n| n % 3 != 1) {
        rig.expect(n, LEN);
    }
    let mut after = Rig::new(DiskOptions { dir: dir.copy().0.clone(), ..options(&dir) });
    assert_eq!((0..BLOCKS).filter(|&n| after.has(n)).count() as u64, BLOCKS - (BLOCKS + 1) / 3);
    (0..BLOCKS).filter(|n| n % 3 != 1).for_each(|n| after.expect(n, LEN));
}
