//! The host tier by itself: who holds what, what goes first, what is told.

use std::collections::HashSet;

use crate::hash::Random;
use crate::kvbm::arena::generation;
use crate::kvbm::host::{Host, Named, Reserved, Seat};
use crate::kvbm::works::Owner;

const OWNER: Owner = Owner { at: 1, usage: 1 };
const LEN: u32 = 256 << 10;

fn named(n: u64) -> Named {
    Named { namespace: 0, key: *blake3::hash(&n.to_le_bytes()).as_bytes(), len: LEN }
}

fn put(host: &mut Host, n: u64) -> Option<Seat> {
    let Reserved::Seat(seat) = host.reserve(named(n), None, OWNER) else { return None };
    host.commit(seat, OWNER).map(|_| seat)
}

fn find(host: &Host, n: u64) -> Option<Seat> {
    host.find(0, &named(n).key, LEN)
}

#[test]
fn a_block_is_found_once_it_is_committed_by_its_writer() {
    let mut host = Host::new(8 << 20).unwrap();
    let Reserved::Seat(seat) = host.reserve(named(1), None, OWNER) else { panic!() };
    assert_eq!(find(&host, 1), None);
    assert_eq!(host.reserve(named(1), None, OWNER), Reserved::Busy);
    assert_eq!(host.commit(seat, Owner { at: 2, usage: 1 }), None);
    assert_eq!(host.commit(seat, OWNER), Some(named(1)));
    assert_eq!(host.reserve(named(1), None, OWNER), Reserved::There(seat));
    assert_eq!(find(&host, 1), Some(seat));
    assert_eq!(host.find(1, &named(1).key, LEN), None);
    assert_eq!(host.find(0, &named(1).key, LEN + 1), None);
}

#[test]
fn what_is_held_stays_and_the_rest_makes_room() {
    let mut host = Host::new(8 << 20).unwrap();
    let first = put(&mut host, 0).unwrap();
    assert!(host.hold(first));
    for n in 1..200 {
        assert!(put(&mut host, n).is_some());
    }
    assert_eq!(find(&host, 0), Some(first));
    assert_eq!(host.take_gone().len(), 200 - host.len());
    let seats: Vec<Seat> = (0..200).filter_map(|n| find(&host, n)).collect();
    assert!(seats.iter().all(|&seat| host.hold(seat)));
    assert_eq!(host.reserve(named(999), None, OWNER), Reserved::Full);
    seats.iter().for_each(|&seat| host.release(seat));
    assert!(put(&mut host, 999).is_some());
}

#[test]
fn a_reader_is_told_that_its_slot_went_to_another_block() {
    let mut host = Host::new(8 << 20).unwrap();
    let seat = put(&mut host, 0).unwrap();
    let word = |host: &Host| generation(&host.arena.memory, seat.page);
    assert_eq!(word(&host), u64::from(seat.generation));
    (1..200).for_each(|n| {
        put(&mut host, n);
    });
    assert_ne!(word(&host), u64::from(seat.generation));
    assert!(!host.hold(seat));
}

#[test]
fn a_dropped_block_is_not_found_whoever_has_it() {
    let mut host = Host::new(8 << 20).unwrap();
    let seat = put(&mut host, 0).unwrap();
    assert!(host.hold(seat) && host.remove(0, &named(0).key));
    assert_eq!(find(&host, 0), None);
    let again = put(&mut host, 0).unwrap();
    assert_ne!(again, seat);
    host.release(seat);
    assert_eq!(find(&host, 0), Some(again));
    let Reserved::Seat(writing) = host.reserve(named(5), None, OWNER) else { panic!() };
    host.remove(0, &named(5).key);
    assert_eq!(host.commit(writing, OWNER), None);
    assert_eq!((find(&host, 5), host.len()), (None, 1));
}

#[test]
fn leaves_of_a_chain_go_first() {
    let mut host = Host::new(8 << 20).unwrap();
    let mut parent = None;
    let mut n = 0;
    while host.take_gone().is_empty() {
        let Reserved::Seat(seat) = host.reserve(named(n), parent, OWNER) else { panic!() };
        host.commit(seat, OWNER);
        (parent, n) = (Some(named(n).key), n + 1);
    }
    // The one that went is the last but one: the end of the chain as it was then.
    let missing: Vec<u64> = (0..n).filter(|&n| find(&host, n).is_none()).collect();
    assert_eq!(missing, [n - 2]);
}

#[test]
fn random_use_keeps_every_count_right() {
    let mut host = Host::new(8 << 20).unwrap();
    let mut random = Random(4);
    let (mut held, mut writing) = (Vec::new(), Vec::new());
    for _ in 0..20_000 {
        let n = random.below(100);
        match random.below(8) {
            0 | 1 => {
                if let Reserved::Seat(seat) = host.reserve(named(n), None, OWNER) {
                    writing.push(seat);
                }
            }
            2 | 3 if !writing.is_empty() => {
                let seat = writing.swap_remove(random.below(writing.len() as u64) as usize);
                if random.below(4) == 0 {
                    host.abandon(seat);
                } else {
                    host.commit(seat, OWNER);
                }
            }
            4 => held.extend(find(&host, n).filter(|&seat| host.hold(seat))),
            5 | 6 if !held.is_empty() => {
                let seat = held.swap_remove(random.below(held.len() as u64) as usize);
                host.release(seat);
            }
            7 => {
                host.remove(0, &named(n).key);
            }
            _ => {}
        }
        let seats: HashSet<u32> = (0..100).filter_map(|n| find(&host, n)).map(|s| s.page).collect();
        assert!(seats.len() <= host.len());
    }
    held.drain(..).for_each(|seat| host.release(seat));
    writing.drain(..).for_each(|seat| host.abandon(seat));
    assert_eq!(host.held(), 0);
    (0..100).for_each(|n| {
        host.remove(0, &named(n).key);
    });
    assert!(host.is_empty());
}
