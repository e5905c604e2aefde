//! Disks that fail: errors, short and torn transfers, refused O_DIRECT, full file systems.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::harness::{options, payload, Dir, Rig};
use crate::kvbm::crew::Threads;
use crate::kvbm::folder::Direct;
use crate::kvbm::io::{Class, Direction, Io, IoBackend};
use crate::kvbm::mover::Failure;
use crate::kvbm::options::DiskOptions;
use crate::kvbm::points::{Points, Trouble};

const LEN: usize = 10_000;

/// What happens to one transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Errno(i32),
    /// Only so many bytes move, and the transfer says so.
    Short(usize),
    /// Only so many bytes move, and the transfer says that all did.
    Torn(usize),
    Delay(Duration),
}

type Rule = Box<dyn Fn(&Io) -> Option<Fault> + Send>;

/// Another backend, with a rule between.
pub struct Faulty {
    inner: Threads,
    rule: Mutex<Rule>,
}

impl Faulty {
    pub fn new(rule: impl Fn(&Io) -> Option<Fault> + Send + 'static) -> Arc<Self> {
        let inner = Threads::new(4).unwrap();
        Arc::new(Self { inner, rule: Mutex::new(Box::new(rule)) })
    }

    pub fn heal(&self) {
        *self.rule.lock().unwrap() = Box::new(|_| None);
    }
}

impl IoBackend for Faulty {
    fn submit(&self, mut io: Io) {
        let fault = (self.rule.lock().unwrap())(&io);
        match fault {
            None => self.inner.submit(io),
            Some(Fault::Errno(errno)) => {
                std::thread::spawn(move || {
                    (io.done)(io.buffer, Err(io::Error::from_raw_os_error(errno)));
                });
            }
            Some(Fault::Delay(time)) => std::thread::scope(|_| {
                // A thread of its own: the others are not held up.
                let inner = Threads::new(1).unwrap();
                std::thread::spawn(move || {
                    std::thread::park_timeout(time);
                    inner.submit(io);
                    drop(inner);
                });
            }),
            Some(Fault::Short(bytes)) => {
                io.len = bytes.min(io.len);
                self.inner.submit(io);
            }
            Some(Fault::Torn(bytes)) => {
                let (len, done) = (io.len, io.done);
                io.len = bytes.min(len);
                io.done = Box::new(move |buffer, result| done(buffer, result.map(|_| len)));
                self.inner.submit(io);
            }
        }
    }

    fn name(&self) -> &'static str {
        "faulty"
    }
}

fn writes(io: &Io) -> bool {
    io.direction == Direction::Write && io.class == Class::Record
}

fn reads(io: &Io) -> bool {
    io.direction == Direction::Read
}

#[test]
fn a_failed_write_fails_its_store_and_stops_others_until_a_probe_succeeds() {
    for errno in [libc::EIO, libc::ENOSPC, libc::EROFS] {
        let dir = Dir::new();
        let faulty = Faulty::new(move |io| writes(io).then_some(Fault::Errno(errno)));
        let options = DiskOptions { look_us: 1_000_000, ..options(&dir) };
        let mut rig = Rig::with_backend(options, faulty.clone());
        assert_eq!(rig.store(1, LEN), Err(format!("Io({errno})")));
        assert!(!rig.has(1) && !rig.disk.health().is_good());
        assert_eq!(rig.store(2, LEN), Err("Degraded".into()));
        faulty.heal();
        rig.skip_us += 2_000_000;
        rig.until(|rig| rig.disk.health().is_good().then_some(()));
        rig.store(2, LEN).unwrap();
        rig.expect(2, LEN);
    }
}

#[test]
fn a_disk_in_trouble_still_gives_what_it_has() {
    let dir = Dir::new();
    let faulty = Faulty::new(|io| (writes(io) && io.offset > 100_000).then_some(Fault::Errno(5)));
    let mut rig = Rig::with_backend(options(&dir), faulty);
    for n in 0..5 {
        rig.store(n, LEN).unwrap();
    }
    while rig.store(100, LEN).is_ok() {
        rig.drop_block(100);
    }
    for n in 0..5 {
        rig.expect(n, LEN);
    }
}

#[test]
fn a_torn_write_is_never_taken_for_the_block() {
    for bytes in [0, 4096, 8192] {
        let dir = Dir::new();
        let faulty = Faulty::new(move |io| writes(io).then_some(Fault::Torn(bytes)));
        let mut rig = Rig::with_backend(options(&dir), faulty.clone());
        rig.store(1, LEN).unwrap();
        faulty.heal();
        assert!(rig.load(1).is_err());
        assert!(!rig.has(1));
        assert_eq!(rig.disk.stats.corrupt, 1);
        rig.store(1, LEN).unwrap();
        rig.expect(1, LEN);
    }
}

#[test]
fn a_short_read_is_a_miss() {
    let dir = Dir::new();
    let faulty = Faulty::new(|io| reads(io).then_some(Fault::Short(4096)));
    let mut rig = Rig::with_backend(options(&dir), faulty);
    rig.store(1, LEN).unwrap();
    assert!(rig.load(1).unwrap_err().contains("Short"));
    assert!(!rig.has(1));
}

#[test]
fn a_block_that_cannot_be_read_is_asked_for_once() {
    let dir = Dir::new();
    let faulty = Faulty::new(|io| reads(io).then_some(Fault::Errno(libc::EIO)));
    let mut rig = Rig::with_backend(options(&dir), faulty);
    rig.store(1, LEN).unwrap();
    assert_eq!(rig.load(1), Err(format!("Io({})", libc::EIO)));
    assert_eq!(rig.load(1), Err("Absent".into()));
}

#[test]
fn o_direct_that_is_refused_at_a_transfer_is_given_up() {
    let dir = Dir::new();
    let count = AtomicU32::new(0);
    let faulty = Faulty::new(move |io| {
        let first = io.class == Class::Record && count.fetch_add(1, Ordering::Relaxed) < 1;
        first.then_some(Fault::Errno(libc::EINVAL))
    });
    let options = DiskOptions { direct: Direct::Auto, ..options(&dir) };
    let mut rig = Rig::with_backend(options, faulty);
    if !rig.disk.is_direct() {
        return; // The file system of the temporary directory has none.
    }
    rig.store(1, LEN).unwrap();
    assert!(!rig.disk.is_direct() && rig.disk.health().direct_refused);
    assert!(rig.disk.health().is_good());
    rig.expect(1, LEN);
}

#[test]
fn o_direct_that_is_refused_when_a_store_opens_is_given_up() {
    let dir = Dir::new();
    let points = Points::for_tests();
    points.set("direct", Trouble::Errno(libc::EINVAL), 0, 1);
    let direct = Direct::Auto;
    let mut rig = Rig::new(DiskOptions { points, direct, ..options(&dir) });
    assert!(!rig.disk.is_direct());
    rig.store(1, LEN).unwrap();
    rig.expect(1, LEN);
}

#[test]
fn a_slow_disk_holds_up_nobody_who_gave_up() {
    let dir = Dir::new();
    let delay = Fault::Delay(Duration::from_millis(300));
    let faulty = Faulty::new(move |io| reads(io).then_some(delay));
    let mut rig = Rig::with_backend(options(&dir), faulty);
    rig.store(1, LEN).unwrap();
    let token = rig.begin_load(1).unwrap();
    rig.poll();
    rig.disk.abandon(|other| other == token);
    rig.settle();
    assert!(rig.out.is_empty());
    assert!(rig.has(1));
}

#[test]
fn a_journal_that_cannot_be_written_acknowledges_nothing_and_heals_by_a_new_one() {
    let dir = Dir::new();
    let points = Points::for_tests();
    let options = DiskOptions { points: points.clone(), look_us: 1_000_000, ..options(&dir) };
    let mut rig = Rig::new(options.clone());
    rig.store(1, LEN).unwrap();
    points.set("journal.write", Trouble::Errno(libc::EIO), 0, 1);
    assert_eq!(rig.store(2, LEN), Err(format!("Io({})", libc::EIO)));
    assert!(!rig.has(2) && rig.has(1));
    assert_eq!(rig.store(3, LEN), Err("Degraded".into()));
    rig.skip_us += 2_000_000;
    rig.until(|rig| (rig.disk.stats.checkpoints > 0).then_some(()));
    rig.store(3, LEN).unwrap();
    let copy = dir.copy();
    let mut after = Rig::new(DiskOptions { dir: copy.0.clone(), ..options });
    assert!(!after.has(2));
    for n in [1, 3] {
        after.expect(n, LEN);
    }
}

#[test]
fn a_failing_flush_or_snapshot_stops_stores_and_heals() {
    for point in ["sync.data", "sync.journal", "snapshot.part", "journal.create"] {
        let dir = Dir::new();
        let points = Points::for_tests();
        let options = DiskOptions { points: points.clone(), look_us: 100_000, ..options(&dir) };
        let mut rig = Rig::new(options);
        points.set(point, Trouble::Errno(libc::EIO), 0, 1);
        let (mut n, mut refused) = (0, false);
        while !refused && n < 5000 {
            rig.skip_us += 1000;
            refused = rig.store(n, 100).is_err();
            n += 1;
        }
        assert!(refused, "{point}");
        rig.skip_us += 200_000;
        rig.until(|rig| rig.disk.health().is_good().then_some(()));
        rig.store(n, 100).unwrap();
        rig.expect(n, 100);
        for n in 0..n {
            // The oldest are being evicted meanwhile.
            match rig.load(n) {
                Ok(bytes) => assert!(bytes == payload(n, 100), "{n} after {point}"),
                Err(why) => assert!(why == "Absent" || why == "Cancelled", "{n}: {why}"),
            }
        }
    }
}

#[test]
fn a_full_file_system_makes_the_store_go_on_with_the_segments_it_has() {
    let dir = Dir::new();
    let points = Points::for_tests();
    let mut rig = Rig::new(DiskOptions { points: points.clone(), ..options(&dir) });
    for n in 0..40 {
        rig.store(n, LEN).unwrap();
    }
    points.set("segment.create", Trouble::Errno(libc::ENOSPC), 0, u64::MAX);
    for n in 40..400 {
        rig.store(n, LEN).unwrap();
    }
    assert!(rig.disk.health().is_good());
    assert!(rig.disk.stats.segments_freed > 5);
    rig.expect(399, LEN);
}

#[test]
fn cancelled_is_not_damage() {
    let dir = Dir::new();
    let mut rig = Rig::new(options(&dir));
    rig.store(1, LEN).unwrap();
    let token = rig.begin_load(1).unwrap();
    rig.drop_block(1);
    assert_eq!(rig.outcome(token).err(), Some(Failure::Cancelled));
    assert_eq!(rig.disk.stats.corrupt, 0);
}
