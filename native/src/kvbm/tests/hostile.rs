//! Clients that mean no good, or are broken: the daemon serves everybody else.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::daemon::{figure, hello, hub_options, memory, Engine, BLOCK};
use super::harness::Dir;
use crate::hash::Random;
use crate::kvbm::client::Want;
use crate::kvbm::core::Core;
use crate::kvbm::hub::HubOptions;
use crate::kvbm::link::{Lent, State};
use crate::kvbm::message::{put_region, status, Item, Job};
use crate::kvbm::socket::{connect, receive, send};
use crate::kvbm::wire::{put_frame, take_frame, Head, Op};

fn frame(op: Op, count: u32, payload: &[u8]) -> Vec<u8> {
    let (mut out, mut head) = (Vec::new(), Head::new(op));
    (head.count, head.request) = (count, 1);
    put_frame(&mut out, &head, payload);
    out
}

/// The daemon's answer, or nothing when it closed the connection.
fn answer(fd: &OwnedFd) -> Option<(Op, String)> {
    let (mut bytes, mut fds) = (Vec::new(), VecDeque::new());
    for _ in 0..1000 {
        let mut room = [0; 4096];
        match receive(fd, &mut room, &mut fds) {
            Ok(0) => return None,
            Ok(count) => bytes.extend_from_slice(&room[..count]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            Err(_) => return None,
        }
        if let Ok(Some((frame, _))) = take_frame(&bytes) {
            return Some((frame.head.op, String::from_utf8_lossy(&frame.payload).into()));
        }
    }
    panic!("neither an answer nor an end");
}

fn all_is_well(dir: &Dir) {
    let mut engine = Engine::up(dir);
    assert_eq!(engine.store(&[(1, 0)]), [status::OK]);
    assert_eq!(engine.load(&[(1, 1)]), [status::OK]);
    assert!(engine.holds(1, 1));
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut random = Random(9);
    for _ in 0..50 {
        let fd = connect(&hub_options(&dir).socket).unwrap();
        let junk: Vec<u8> = (0..random.below(5000) + 4).map(|_| random.below(256) as u8).collect();
        let _ = send(&fd, &junk, &[]);
        assert_eq!(answer(&fd), None);
    }
    assert!(figure(&core, "bad_frames") >= 50);
    all_is_well(&dir);
}

#[test]
fn well_formed_nonsense_is_answered_with_an_error() {
    let dir = Dir::new();
    let _core = Core::start(hub_options(&dir)).unwrap();
    let ops = [Op::Lookup, Op::Store, Op::Load, Op::Touch, Op::Pin, Op::Drop, Op::Region];
    for op in ops {
        let fd = connect(&hub_options(&dir).socket).unwrap();
        send(&fd, &frame(op, 1, &[0; 100]), &[]).unwrap();
        let (answer_op, text) = answer(&fd).unwrap();
        assert_eq!((answer_op, text.as_str()), (Op::Error, "say HELLO first"));
        let fd = connect(&hub_options(&dir).socket).unwrap();
        send(&fd, &frame(Op::Hello, 0, &hello(1).encode()), &[]).unwrap();
        assert_eq!(answer(&fd).unwrap().0, Op::Hello);
        for (count, len) in [(0, 5), (u32::MAX, 64), (5000, 160_000), (1, 7)] {
            send(&fd, &frame(op, count, &vec![0; len]), &[]).unwrap();
            assert_eq!(answer(&fd).unwrap().0, Op::Error, "{op:?} {count} {len}");
        }
    }
    all_is_well(&dir);
}

#[test]
fn random_frames_in_a_session_break_nobody_else() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let mut random = Random(21);
    let region = memory(1 << 20);
    for _ in 0..60 {
        let fd = connect(&hub_options(&dir).socket).unwrap();
        let mut bytes = frame(Op::Hello, 0, &hello(1).encode());
        let _ = send(&fd, &bytes, &[]);
        let offer = frame(Op::Region, 0, &put_region(BLOCK as u64, 16));
        let _ = send(&fd, &offer, &[region.as_raw_fd()]);
        for _ in 0..20 {
            let item = || Item { key: [7; 32], slot: 3, note: Box::new([]) };
            let job = Job { region: 0, gate: 5, usage: 1, items: vec![item(), item()] };
            let mut payload = job.encode().0;
            for _ in 0..random.below(3) {
                let at = random.below(payload.len() as u64) as usize;
                payload[at] = random.below(256) as u8;
            }
            let op = Op::of(random.below(16) as u8 + 1).unwrap();
            bytes = frame(op, random.below(4) as u32, &payload);
            let _ = send(&fd, &bytes, &[]);
        }
    }
    all_is_well(&dir);
    assert!(figure(&core, "connections_accepted") >= 60);
}

#[test]
fn regions_that_are_none_are_refused() {
    let dir = Dir::new();
    let _core = Core::start(hub_options(&dir)).unwrap();
    let file = dir.0.join("file");
    std::fs::write(&file, [0; 100]).unwrap();
    let tries: Vec<(OwnedFd, u64, u32)> = vec![
        (File::open("/").unwrap().into(), BLOCK as u64, 1),
        (File::open("/dev/null").unwrap().into(), BLOCK as u64, 1),
        (memory(1 << 20).into(), BLOCK as u64, u32::MAX),
        (memory(1 << 20).into(), 100, 1),
    ];
    for (fd, stride, slots) in tries {
        let socket = connect(&hub_options(&dir).socket).unwrap();
        send(&socket, &frame(Op::Hello, 0, &hello(1).encode()), &[]).unwrap();
        assert_eq!(answer(&socket).unwrap().0, Op::Hello);
        let offer = frame(Op::Region, 0, &put_region(stride, slots));
        send(&socket, &offer, &[fd.as_raw_fd()]).unwrap();
        assert_eq!(answer(&socket).unwrap().0, Op::Error);
        send(&socket, &frame(Op::Region, 0, &put_region(stride, 1)), &[]).unwrap();
        assert!(answer(&socket).unwrap().1.contains("descriptor") || stride == 100);
    }
    all_is_well(&dir);
}

#[test]
fn a_region_that_is_cut_short_fails_its_own_jobs() {
    let dir = Dir::new();
    let _core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    engine.store(&[(1, 0)]);
    engine.region.set_len(0).unwrap();
    let job = engine.begin(Want::Load, &[(1, 3)], 1_000_000).unwrap();
    assert_eq!(engine.end_of(job), [status::REGION]);
    let job = engine.begin(Want::Store, &[(2, 3)], 1_000_000).unwrap();
    assert_eq!(engine.end_of(job), [status::REGION]);
    assert_eq!(engine.region.metadata().unwrap().len(), 0);
    all_is_well(&dir);
}

#[test]
fn a_wrong_token_or_too_many_connections_are_turned_away() {
    let dir = Dir::new();
    let options = HubOptions { token: b"secret".to_vec(), conns_max: 4, ..hub_options(&dir) };
    let core = Core::start(options.clone()).unwrap();
    for token in [&b""[..], b"secreT", b"secret1", b"wrong"] {
        let fd = connect(&options.socket).unwrap();
        let mut wrong = hello(1);
        wrong.token = token.to_vec();
        send(&fd, &frame(Op::Hello, 0, &wrong.encode()), &[]).unwrap();
        assert!(answer(&fd).unwrap().1.contains("token"));
        assert_eq!(answer(&fd), None);
    }
    let held: Vec<OwnedFd> = (0..40).map(|_| connect(&options.socket).unwrap()).collect();
    assert_eq!(answer(&held[39]), None);
    assert!(figure(&core, "connections_refused_full") > 0);
    drop(held);
    let mut right = hello(1);
    right.token = b"secret".to_vec();
    let mut engine = Engine::new(options.socket, right);
    engine.until(|engine| (engine.client.connect() == State::Up).then_some(()));
}

#[test]
fn whoever_sends_descriptors_by_the_dozen_is_cut_off() {
    let dir = Dir::new();
    let _core = Core::start(hub_options(&dir)).unwrap();
    let (fd, region) = (connect(&hub_options(&dir).socket).unwrap(), memory(4096));
    let raw = region.as_raw_fd();
    for _ in 0..4 {
        let _ = send(&fd, &frame(Op::Ping, 0, &[]), &[raw; 8]);
    }
    while answer(&fd).is_some() {}
    all_is_well(&dir);
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let dir = Dir::new();
    let core = Core::start(hub_options(&dir)).unwrap();
    let fd = connect(&hub_options(&dir).socket).unwrap();
    send(&fd, &frame(Op::Hello, 0, &hello(1).encode()), &[]).unwrap();
    // A small question with a long answer.
    let asking = frame(Op::Stats, 0, &[]).repeat(64);
    let mut sent = 0;
    let gone = (0..100_000).find_map(|_| match send(&fd, &asking[sent % 64..], &[]) {
        Ok(count) => {
            sent += count;
            None
        }
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
            std::thread::park_timeout(Duration::from_micros(100));
            None
        }
        Err(error) => Some(error.kind()),
    });
    assert!(gone.is_some(), "{sent} bytes were taken");
    assert_eq!((figure(&core, "sessions"), figure(&core, "bad_frames")), (0, 0));
    all_is_well(&dir);
}

#[test]
fn a_region_lent_twice_has_two_numbers() {
    let dir = Dir::new();
    let _core = Core::start(hub_options(&dir)).unwrap();
    let mut engine = Engine::up(&dir);
    let fd: Arc<OwnedFd> = Arc::new(memory(1 << 20).into());
    let second = engine.client.lend(Lent { fd, stride: BLOCK as u64, slots: 8 });
    assert_eq!(second, 1);
    engine.until(|engine| (engine.client.connect() == State::Up).then_some(()));
    assert_eq!(engine.store(&[(1, 0)]), [status::OK]);
}
