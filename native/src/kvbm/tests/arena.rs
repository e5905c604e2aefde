//! The arena through client and daemon: written, found, shared, evicted to disk and fetched again.

use std::time::{Duration, Instant};

use super::daemon::{figure, hello, hub_options, Engine, BLOCK};
use super::harness::{payload, Dir};
use crate::kvbm::client::Want;
use crate::kvbm::core::Core;
use crate::kvbm::host::Seat;
use crate::kvbm::hub::HubOptions;
use crate::kvbm::link::State;
use crate::kvbm::message::{status, tier};
use crate::kvbm::record::{Key, PAGE};

const SECOND: u64 = 1_000_000;

fn options(dir: &Dir) -> HubOptions {
    let mut options = HubOptions { host_bytes: 4 << 20, ..hub_options(dir) };
    if let Some(disk) = &mut options.disk {
        disk.capacity = 64 << 20;
    }
    options
}

impl Engine {
    fn keys(&mut self, blocks: &[u64]) -> Vec<Key> {
        blocks.iter().map(|&n| self.key(n)).collect()
    }

    fn tiers(&mut self, blocks: &[u64]) -> Vec<u8> {
        let keys = self.keys(blocks);
        self.client.lookup(&keys, true)
    }

    fn write(&self, seat: Seat, n: u64) {
        let bytes = payload(n, BLOCK);
        let at = self.client.arena().unwrap().bytes(seat.page as usize * PAGE, BLOCK);
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, BLOCK) };
    }

    fn shows(&self, seat: Seat, n: u64) -> bool {
        let at = self.client.arena().unwrap().bytes(seat.page as usize * PAGE, BLOCK);
        let mut bytes = vec![0; BLOCK];
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), BLOCK) };
        bytes == payload(n, BLOCK) && self.client.is_valid(seat)
    }

    /// Put blocks into the arena; how many there was something to write for.
    fn put(&mut self, blocks: &[u64]) -> usize {
        let keys = self.keys(blocks);
        let reserved = self.client.reserve(&keys, true);
        let ours = blocks.iter().zip(reserved).filter(|(_, (s, _))| *s == status::OK);
        let ours: Vec<(u64, Seat)> = ours.map(|(&n, (_, seat))| (n, seat)).collect();
        ours.iter().for_each(|&(n, seat)| self.write(seat, n));
        let seats: Vec<Seat> = ours.iter().map(|&(_, seat)| seat).collect();
        let statuses = self.client.commit(&seats, false);
        assert!(statuses.iter().all(|&s| s == status::OK));
        ours.len()
    }

    fn fetch(&mut self, blocks: &[u64]) -> (Vec<u8>, Vec<Seat>) {
        let keys = self.keys(blocks);
        let job = 1 << 40 | self.client.stats.jobs;
        assert!(self.client.fetch(job, &keys, 10 * SECOND));
        self.until(|engine| {
            let at = engine.done.iter().position(|done| done.job == job)?;
            let done = engine.done.swap_remove(at);
            Some((done.statuses, done.seats))
        })
    }

    /// Fetch blocks, look at them, let them go.
    fn expect(&mut self, blocks: &[u64]) {
        let (statuses, seats) = self.fetch(blocks);
        assert_eq!(statuses, vec![status::OK; blocks.len()]);
        assert!(blocks.iter().zip(&seats).all(|(&n, &seat)| self.shows(seat, n)));
        self.client.release(&seats);
    }
}

#[test]
fn blocks_are_written_found_and_shared() {
    let dir = Dir::new();
    let core = Core::start(options(&dir)).unwrap();
    let mut one = Engine::up(&dir);
    assert_eq!(one.put(&[1, 2, 3]), 3);
    assert_eq!(one.tiers(&[1, 2, 3, 4]), [1, 1, 1, 0]);
    assert_eq!(one.put(&[2, 3, 4]), 1);
    let mut two = Engine::up(&dir);
    two.expect(&[1, 2, 3, 4]);
    let mut other = Engine::new(options(&dir).socket, hello(2));
    other.until(|engine| (engine.client.connect() == State::Up).then_some(()));
    assert_eq!(other.tiers(&[1]), [tier::MISS]);
    two.until(|_| (figure(&core, "host_held") == 0).then_some(()));
    two.until(|_| (figure(&core, "disk_stored") == 4).then_some(()));
    // Who asks for a region's sake is told of what can be loaded there.
    assert_eq!(two.lookup(1..5), [tier::DISK; 4]);
    assert_eq!(two.load(&[(3, 0)]), [status::OK]);
    assert!(two.holds(0, 3));
}

#[test]
fn what_the_arena_gives_up_comes_back_from_disk() {
    let dir = Dir::new();
    let core = Core::start(options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    for n in 0..400 {
        assert_eq!(engine.put(&[n]), 1, "{n}");
        engine.until(|_| (figure(&core, "disk_stored") > n).then_some(()));
    }
    assert!(figure(&core, "host_evicted") > 100);
    let tiers = engine.tiers(&(0..100).collect::<Vec<_>>());
    assert!(tiers.contains(&tier::DISK), "{tiers:?}");
    let on_disk: Vec<u64> = (0..100).filter(|&n| tiers[n as usize] == tier::DISK).collect();
    engine.expect(&on_disk[..8]);
    assert_eq!(engine.tiers(&on_disk[..8]), [tier::HOST; 8]);
    assert_eq!(engine.fetch(&[9999]).0, [1]);
    engine.until(|_| (figure(&core, "host_held") == 0).then_some(()));
}

#[test]
fn two_that_fetch_the_same_block_share_one_load() {
    let dir = Dir::new();
    let core = Core::start(options(&dir)).unwrap();
    let (mut one, mut two) = (Engine::up(&dir), Engine::up(&dir));
    one.store(&[(1, 0)]);
    let key = one.key(1);
    assert!(one.client.fetch(1, &[key], SECOND) && two.client.fetch(1, &[key], SECOND));
    for engine in [&mut one, &mut two] {
        assert_eq!(engine.end_of(1), [status::OK]);
    }
    assert_eq!(figure(&core, "host_filled"), 1);
    assert_eq!(figure(&core, "host_held"), 1);
}

#[test]
fn a_client_that_vanishes_gives_its_slots_back() {
    let dir = Dir::new();
    let core = Core::start(options(&dir)).unwrap();
    for round in 0..10 {
        let mut engine = Engine::up(&dir);
        engine.put(&[round]);
        engine.fetch(&[round]);
        let keys = engine.keys(&[1000 + round, 2000 + round]);
        assert!(engine.client.reserve(&keys, false).iter().all(|(s, _)| *s == status::OK));
        drop(engine);
    }
    let mut last = Engine::up(&dir);
    last.until(|_| (figure(&core, "host_held") == 0).then_some(()));
    assert_eq!(last.tiers(&[1000, 2000, 0]), [0, 0, 1]);
}

#[test]
fn a_full_arena_says_so_and_what_is_held_is_not_touched() {
    let dir = Dir::new();
    let core = Core::start(options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    let mut held = Vec::new();
    for n in 0.. {
        let keys = engine.keys(&[n]);
        let (status, seat) = engine.client.reserve(&keys, false)[0];
        if status == status::FULL {
            break;
        }
        assert_eq!(status, status::OK);
        engine.write(seat, n);
        engine.client.commit(&[seat], false);
        let (statuses, seats) = engine.fetch(&[n]);
        assert_eq!(statuses, [status::OK]);
        held.push((n, seats[0]));
    }
    assert!(held.len() > 100);
    assert!(held.iter().all(|&(n, seat)| engine.shows(seat, n)));
    assert!(figure(&core, "host_full") > 0);
    let seats: Vec<Seat> = held.iter().map(|&(_, seat)| seat).collect();
    engine.client.release(&seats);
    engine.until(|engine| (engine.put(&[50_000]) == 1).then_some(()));
}

#[test]
fn a_dropped_block_goes_from_arena_and_disk_even_while_it_is_on_its_way() {
    let dir = Dir::new();
    let core = Core::start(options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    for n in 0..50 {
        engine.put(&[n]);
        // Usually before the disk has it.
        let key = engine.key(n);
        let mut head = crate::kvbm::wire::Head::new(crate::kvbm::wire::Op::Drop);
        head.count = 1;
        assert_eq!(engine.client.request(head, &key, SECOND).unwrap().head.count, 1);
        assert_eq!(engine.tiers(&[n]), [tier::MISS]);
    }
    engine.until(|_| (figure(&core, "host_held") == 0).then_some(()));
    assert_eq!(engine.tiers(&(0..50).collect::<Vec<_>>()), [tier::MISS; 50]);
    assert_eq!(figure(&core, "disk_blocks"), 0);
}

#[test]
fn a_seat_is_committed_once_and_by_its_owner_only() {
    let dir = Dir::new();
    let _core = Core::start(options(&dir)).unwrap();
    let (mut one, mut two) = (Engine::up(&dir), Engine::up(&dir));
    let keys = one.keys(&[1, 2]);
    let seats: Vec<Seat> = one.client.reserve(&keys, false).iter().map(|(_, s)| *s).collect();
    assert_eq!(two.client.commit(&seats, false), [status::BAD_REQUEST; 2]);
    assert_eq!(one.client.commit(&seats[..1], true), [status::OK]);
    assert_eq!(one.client.commit(&seats, false), [status::BAD_REQUEST, status::OK]);
    assert_eq!(one.tiers(&[1, 2]), [0, 1]);
}

#[test]
fn nobody_waits_for_the_arena() {
    let dir = Dir::new();
    let core = Core::start(options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    drop(core);
    let began = Instant::now();
    let keys = engine.keys(&[1]);
    engine.until(|engine| (engine.client.link().state == State::Down).then_some(()));
    assert_eq!(engine.client.reserve(&keys, false)[0].0, status::LOST);
    assert!(!engine.client.fetch(5, &keys, SECOND));
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(engine.client.count(Want::Fetch), 0);
}

#[test]
fn blocks_that_go_to_disk_only_when_they_leave_do_so() {
    let dir = Dir::new();
    let core = Core::start(HubOptions { spill: true, ..options(&dir) }).unwrap();
    let mut engine = Engine::up(&dir);
    for n in 0..20 {
        engine.put(&[n]);
    }
    assert_eq!(figure(&core, "disk_stored"), 0);
    let mut n = 20;
    while figure(&core, "disk_stored") < 200 {
        engine.put(&[n]);
        n += 1;
        assert!(n < 5000);
    }
    engine.until(|_| (figure(&core, "host_held") == 0).then_some(()));
    let found = (0..n).filter(|&n| engine.tiers(&[n]) != [tier::MISS]).count() as u64;
    // What came too fast for the disk went without it.
    assert!(found >= figure(&core, "host_blocks") + 190, "{found} of {n}");
    let below: Vec<u64> = (0..n).filter(|&n| engine.tiers(&[n]) == [tier::DISK]).take(5).collect();
    engine.expect(&below);
}
