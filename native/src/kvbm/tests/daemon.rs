//! Client and daemon together: jobs over a borrowed region, restarts, deaths, silence.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::harness::{options, payload, Dir};
use crate::kvbm::changes::What;
use crate::kvbm::client::{Client, Completed, Want};
use crate::kvbm::commands::{Command, Figure};
use crate::kvbm::core::Core;
use crate::kvbm::hub::HubOptions;
use crate::kvbm::link::{Lent, State};
use crate::kvbm::message::{status, tier, Hello, Item};
use crate::kvbm::options::DiskOptions;
use crate::kvbm::record::Key;
use crate::kvbm::wire::{Head, Op};

pub const BLOCK: usize = 20_000;
const STRIDE: u64 = 20_480;
const SLOTS: u32 = 64;
const SECOND: u64 = 1_000_000;

pub fn hub_options(dir: &Dir) -> HubOptions {
    HubOptions {
        socket: dir.0.join("kvbm.sock"),
        socket_mode: 0o600,
        allow_uids: vec![],
        token: vec![],
        conns_max: 64,
        load_us: 2 * SECOND,
        store_us: 10 * SECOND,
        host_bytes: 0,
        spill: false,
        table_blocks: 0,
        orphan_us: 100_000,
        remote: None,
        disk: Some(DiskOptions { dir: dir.0.join("disk"), ..options(dir) }),
    }
}

pub fn hello(n: u8) -> Hello {
    Hello {
        versions: (1, 1),
        probe: [n; 32],
        block_bytes: BLOCK as u32,
        engine: format!("engine-{n}"),
        token: vec![],
        descriptor: b"{\"model\":\"m\"}".to_vec(),
    }
}

/// An engine: a client and the memory it lends.
pub struct Engine {
    pub client: Client,
    pub region: File,
    pub done: Vec<Completed>,
    job: u64,
}

pub fn memory(bytes: u64) -> File {
    let fd = unsafe { libc::memfd_create(c"region".as_ptr(), libc::MFD_CLOEXEC) };
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes).unwrap();
    file
}

impl Engine {
    pub fn new(socket: PathBuf, hello: Hello) -> Self {
        let region = memory(STRIDE * u64::from(SLOTS));
        let mut client = Client::new(socket, hello, 200_000);
        let fd = Arc::new(OwnedFd::from(region.try_clone().unwrap()));
        client.lend(Lent { fd, stride: STRIDE, slots: SLOTS });
        Self { client, region, done: Vec::new(), job: 0 }
    }

    pub fn up(dir: &Dir) -> Self {
        let mut engine = Self::new(dir.0.join("kvbm.sock"), hello(1));
        engine.until(|engine| (engine.client.connect() == State::Up).then_some(()));
        engine
    }

    pub fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let completed = self.client.poll();
            self.done.extend(completed);
            if let Some(found) = done(self) {
                return found;
            }
            assert!(Instant::now() < end, "nothing came: {}", self.client.link().trouble);
            std::thread::park_timeout(Duration::from_micros(200));
        }
    }

    pub fn key(&mut self, n: u64) -> Key {
        self.client.key(blake3::hash(&n.to_le_bytes()).as_bytes(), 0).unwrap()
    }

    pub fn fill(&self, slot: u32, n: u64) {
        let bytes = payload(n, BLOCK);
        self.region.write_all_at(&bytes, u64::from(slot) * STRIDE).unwrap();
    }

    pub fn holds(&self, slot: u32, n: u64) -> bool {
        let mut bytes = vec![0; BLOCK];
        self.region.read_exact_at(&mut bytes, u64::from(slot) * STRIDE).unwrap();
        bytes == payload(n, BLOCK)
    }

    pub fn begin(&mut self, want: Want, blocks: &[(u64, u32)], deadline_us: u64) -> Option<u64> {
        self.job += 1;
        let items = blocks.iter().map(|&(n, slot)| Item {
            key: self.key(n),
            slot,
            note: n.to_le_bytes().into(),
        });
        let items = items.collect();
        self.client.begin(want, self.job, 0, items, deadline_us).then_some(self.job)
    }

    pub fn end_of(&mut self, job: u64) -> Vec<u8> {
        self.until(|engine| {
            let at = engine.done.iter().position(|done| done.job == job)?;
            Some(engine.done.swap_remove(at).statuses)
        })
    }

    pub fn store(&mut self, blocks: &[(u64, u32)]) -> Vec<u8> {
        blocks.iter().for_each(|&(n, slot)| self.fill(slot, n));
        let job = self.begin(Want::Store, blocks, 10 * SECOND).expect("a job");
        self.end_of(job)
    }

    pub fn load(&mut self, blocks: &[(u64, u32)]) -> Vec<u8> {
        let job = self.begin(Want::Load, blocks, 10 * SECOND).expect("a job");
        self.end_of(job)
    }

    pub fn lookup(&mut self, blocks: std::ops::Range<u64>) -> Vec<u8> {
        let keys: Vec<Key> = blocks.map(|n| self.key(n)).collect();
        self.client.lookup(&keys, false)
    }
}

pub fn figure(core: &Core, name: &str) -> u64 {
    let all = core.ask(Command::Figures, Duration::from_secs(10)).expect("figures");
    match all.into_iter().find(|(other, _)| *other == name) {
        Some((_, Figure::Count(n))) => n,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn blocks_go_down_and_come_back() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    assert_eq!(engine.lookup(0..8), [tier::MISS; 8]);
    let blocks: Vec<(u64, u32)> = (0..8).map(|n| (n, n as u32)).collect();
    assert_eq!(engine.store(&blocks), [status::OK; 8]);
    assert_eq!(engine.lookup(0..9), [2, 2, 2, 2, 2, 2, 2, 2, 0]);
    let elsewhere: Vec<(u64, u32)> = (0..8).map(|n| (n, 40 + n as u32)).collect();
    assert_eq!(engine.load(&elsewhere), [status::OK; 8]);
    assert!(elsewhere.iter().all(|&(n, slot)| engine.holds(slot, n)));
    // Stored again: nothing is written.
    assert_eq!(engine.store(&blocks), [status::OK; 8]);
    assert_eq!((figure(&core, "disk_stored"), figure(&core, "disk_deduped")), (8, 8));
    assert_eq!(engine.load(&[(100, 0)]), [1]);
}

#[test]
fn another_engine_of_the_same_namespace_finds_them_and_others_do_not() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut one = Engine::up(&dir);
    one.store(&[(1, 0)]);
    let mut two = Engine::up(&dir);
    assert_eq!(two.load(&[(1, 5)]), [status::OK]);
    assert!(two.holds(5, 1));
    let mut other = Engine::new(dir.0.join("kvbm.sock"), hello(2));
    other.until(|engine| (engine.client.connect() == State::Up).then_some(()));
    assert_eq!(other.lookup(1..2), [tier::MISS]);
    // The same model with another hash seed: that is said aloud.
    assert_eq!(other.client.link().welcome.unwrap().differing_probes, 1);
    assert_eq!(figure(&core, "probe_differs"), 1);
}

#[test]
fn a_restarted_daemon_is_found_and_has_everything() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0), (2, 1)]);
    drop(core);
    engine.until(|engine| (engine.client.link().state == State::Down).then_some(()));
    assert_eq!(engine.lookup(1..3), [tier::MISS; 2]);
    assert!(engine.begin(Want::Load, &[(1, 0)], SECOND).is_none());
    let began = Instant::now();
    let _core = Core::start(hub_options(&dir)).unwrap();
    engine.until(|engine| (engine.lookup(1..3) == [tier::DISK; 2]).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(engine.client.stats.restarts, 1);
    assert_eq!(engine.load(&[(1, 9)]), [status::OK]);
    assert!(engine.holds(9, 1));
}

#[test]
fn without_a_daemon_everything_is_a_miss_at_once() {
    let dir = Dir::new();
    let mut engine = Engine::new(dir.0.join("nobody.sock"), hello(1));
    for _ in 0..100 {
        assert_eq!(engine.lookup(0..4), [tier::MISS; 4]);
        assert!(engine.begin(Want::Store, &[(1, 0)], SECOND).is_none());
        assert!(engine.client.poll().is_empty());
    }
    assert!(engine.client.link().connects < 20);
    assert!(engine.client.link().trouble.contains("nobody.sock"));
}

#[test]
fn a_load_that_is_late_ends_and_touches_its_slot_no_more() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0)]);
    // No time at all: over at the daemon's next look.
    let job = engine.begin(Want::Load, &[(1, 7)], 1).unwrap();
    let statuses = engine.end_of(job);
    assert!([status::TIMEOUT, status::OK, 5].contains(&statuses[0]), "{statuses:?}");
    let before = engine.holds(7, 1);
    assert_eq!(before, statuses[0] == status::OK);
    engine.load(&[(1, 8)]);
    assert_eq!(engine.holds(7, 1), before);
    drop(core);
}

#[test]
fn a_cancelled_job_leaves_its_slots_alone() {
    let dir = Dir::new();
    let _core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0)]);
    for _ in 0..50 {
        let job = engine.begin(Want::Load, &[(1, 7)], SECOND).unwrap();
        engine.client.cancel(job);
        let statuses = engine.end_of(job);
        // From here on the slot is the engine's.
        engine.fill(7, 99);
        if statuses[0] != status::OK {
            assert_eq!(statuses[0], status::CANCELLED);
        }
        engine.load(&[(1, 8)]);
        assert!(engine.holds(7, 99), "written after it was given back");
    }
}

#[test]
fn an_engine_that_vanishes_leaves_nothing_behind() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    for _ in 0..20 {
        let mut engine = Engine::up(&dir);
        engine.store(&[(1, 0)]);
        let key = engine.key(1);
        let mut head = Head::new(Op::Pin);
        (head.count, head.extra) = (1, 60_000);
        assert_eq!(engine.client.request(head, &key, SECOND).unwrap().payload, [1]);
        assert_eq!(figure(&core, "disk_pinned_segments"), 1);
        engine.begin(Want::Load, &[(1, 3)], SECOND).unwrap();
        drop(engine);
        let mut other = Engine::up(&dir);
        other.until(|_| (figure(&core, "disk_pinned_segments") == 0).then_some(()));
        other.until(|_| (figure(&core, "jobs_under_way") == 0).then_some(()));
    }
    let mut last = Engine::up(&dir);
    last.until(|_| (figure(&core, "sessions") == 1).then_some(()));
}

#[test]
fn blocks_are_dropped_by_clients_and_by_the_daemons_owner() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0), (2, 1), (3, 2)]);
    let mut head = Head::new(Op::Drop);
    head.count = 2;
    let keys = [engine.key(1), engine.key(9)].concat();
    assert_eq!(engine.client.request(head, &keys, SECOND).unwrap().head.count, 1);
    assert_eq!(engine.lookup(1..4), [0, 2, 2]);
    let namespace = engine.client.link().welcome.unwrap().fingerprint;
    let keys = vec![engine.key(2), engine.key(9)];
    let ask = |reply| Command::Drop { namespace, keys, is_local: false, reply };
    let dropped = core.ask(ask, Duration::from_secs(10)).unwrap();
    assert_eq!((dropped.host, dropped.disk, dropped.remote), (0, 1, 0));
    assert_eq!(engine.lookup(1..4), [0, 0, 2]);
    let list =
        core.ask(|reply| Command::List { from: 0, most: 100, reply }, Duration::from_secs(9));
    assert_eq!(list.unwrap().0[0].key, engine.key(3));
}

#[test]
fn a_record_can_be_taken_out_and_put_into_another_store() {
    let (dir, other) = (Dir::new(), Dir::new());
    let core = Core::start(hub_options(&dir)).unwrap();
    let second = Core::start(hub_options(&other)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0)]);
    let (namespace, key) = (engine.client.link().welcome.unwrap().fingerprint, engine.key(1));
    let wait = Duration::from_secs(10);
    let record = core.ask(|reply| Command::Read { namespace, key, reply }, wait).unwrap().unwrap();
    let put =
        |record| second.ask(|reply| Command::Insert { record, reply }, wait).expect("an answer");
    assert!(put(record.clone()).unwrap().contains("namespace"));
    let mut there = Engine::up(&other);
    let mut bad = record.clone();
    bad[5000] ^= 1;
    assert!(put(bad).unwrap().contains("bad record"));
    assert_eq!(put(record.clone()), None);
    assert_eq!(put(record), None);
    assert_eq!(there.load(&[(1, 4)]), [status::OK]);
    assert!(there.holds(4, 1));
}

#[test]
fn followers_are_told_what_changes() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0)]);
    let mut head = Head::new(Op::Events);
    head.extra = 1;
    assert!(engine.client.request(head, &[], SECOND).is_some());
    engine.store(&[(2, 0)]);
    let keys = [engine.key(1), engine.key(2)];
    let mut notes = Vec::new();
    engine.until(|engine| {
        notes.extend(engine.client.take_changes());
        (notes.len() == 2).then_some(())
    });
    assert!(notes.iter().zip(&keys).all(|(note, key)| note.key == *key));
    assert!(notes.iter().all(|note| note.what == What::Stored && note.tier == tier::DISK));
    assert_eq!(figure(&core, "changes"), 2);
}

#[test]
fn a_removed_directory_is_opened_anew() {
    let dir = Dir::new();
    let mut options = hub_options(&dir);
    if let Some(disk) = &mut options.disk {
        disk.look_us = 50_000;
    }
    let core = Core::start(options).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0)]);
    let path = dir.0.join("disk");
    while path.exists() {
        let _ = std::fs::remove_dir_all(&path);
    }
    engine.until(|engine| (engine.lookup(1..2) == [tier::MISS]).then_some(()));
    engine.until(|engine| (engine.store(&[(1, 0)]) == [status::OK]).then_some(()));
    assert_eq!(engine.load(&[(1, 5)]), [status::OK]);
    assert!(engine.holds(5, 1));
    drop(core);
}

#[test]
fn a_silent_daemon_costs_one_lookups_patience_and_ends_nothing_late() {
    let dir = Dir::new();
    let socket = dir.0.join("kvbm.sock");
    // Somebody listens and never answers.
    let _listener = crate::kvbm::socket::listen(&socket, 0o600).unwrap();
    let mut engine = Engine::new(socket, hello(1));
    for _ in 0..50 {
        assert_eq!(engine.lookup(0..4), [tier::MISS; 4]);
        assert!(engine.begin(Want::Load, &[(1, 0)], SECOND).is_none());
    }
}
