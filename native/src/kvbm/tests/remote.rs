//! What the remote tier wants and knows.

use std::time::Duration;

use super::*;

const ALL: Room = Room { fetches: 9, ahead: 9, sends: 9 };
const SPACE: (u16, Fingerprint) = (1, [9; 32]);

fn remote(known_max: usize, bundling: Bundling) -> Remote {
    let options = RemoteOptions { known_max, upload: Upload::All, bundling };
    Remote::new(options, Arc::new(Desk::default())).unwrap()
}

fn errands(remote: &mut Remote) -> Vec<Errand> {
    remote.hand_over();
    remote.desk.take(ALL, Duration::ZERO).unwrap()
}

fn bundle(remote: &mut Remote, keys: &[Key]) -> Name {
    let head = Head { namespace: [9; 32], record_bytes: 8192, keys: keys.to_vec() };
    remote.learn_bundle(1, head.name(), &head);
    head.name()
}

#[test]
fn what_is_waited_for_comes_first_and_once() {
    let mut remote = remote(10, Bundling::OFF);
    remote.offer(SPACE, ([1; 32], 5), 0);
    assert!(!remote.want(SPACE, ([2; 32], 5), None, 0), "it is not there");
    remote.learn(1, [2; 32], Place::ALONE);
    remote.learn(1, [3; 32], Place::ALONE);
    assert!(remote.want(SPACE, ([2; 32], 5), None, 0));
    let waiter = || Some(Waiter { token: 7, target: Target::Buffer });
    assert!(remote.want(SPACE, ([3; 32], 5), waiter(), 0));
    assert!(remote.want(SPACE, ([3; 32], 5), waiter(), 0));
    let errands = errands(&mut remote);
    let kinds: Vec<Kind> = errands.iter().map(|errand| errand.kind).collect();
    assert_eq!(kinds, [Kind::Fetch, Kind::Ahead, Kind::Send]);
    let ticket = errands[0].pieces[0].ticket;
    assert_eq!(remote.take(ticket).unwrap().waiters.len(), 2);
    assert!(remote.take(ticket).is_none());
    assert_eq!((remote.wants(), remote.ahead()), (1, 1));
}

#[test]
fn who_waits_for_another_length_gets_nothing_of_it() {
    let mut remote = remote(10, Bundling::OFF);
    remote.learn(1, [2; 32], Place::ALONE);
    let waiter = |token| Some(Waiter { token, target: Target::Buffer });
    assert!(remote.want(SPACE, ([2; 32], 5000), waiter(7), 0));
    assert!(!remote.want(SPACE, ([2; 32], 4096), waiter(8), 0));
    let ticket = errands(&mut remote)[0].pieces[0].ticket;
    let waiters = remote.take(ticket).unwrap().waiters;
    assert_eq!(waiters.iter().map(|waiter| waiter.token).collect::<Vec<_>>(), [7]);
}

#[test]
fn what_is_known_is_bounded_and_not_offered_in_a_pause() {
    let mut remote = remote(2, Bundling::OFF);
    assert!(remote.learn(1, [1; 32], Place::ALONE) && remote.learn(1, [2; 32], Place::ALONE));
    assert!(!remote.learn(1, [1; 32], Place::ALONE) && !remote.learn(1, [3; 32], Place::ALONE));
    assert_eq!((remote.len(), remote.stats.left_out), (2, 1));
    assert!(remote.offers(1, &[1; 32]) && !remote.offers(2, &[1; 32]));
    remote.is_paused = true;
    assert!(!remote.offers(1, &[1; 32]) && remote.knows(1, &[1; 32]));
    remote.offer(SPACE, ([1; 32], 5), 0);
    assert!(errands(&mut remote).is_empty(), "it is there already");
}

#[test]
fn fetches_nobody_reports_on_are_found() {
    let mut remote = remote(2, Bundling::OFF);
    remote.learn(1, [2; 32], Place::ALONE);
    remote.want(SPACE, ([2; 32], 5), None, 100);
    assert!(remote.overdue(FETCH_MAX_US).is_empty());
    assert_eq!(remote.overdue(FETCH_MAX_US + 101), [1]);
}

#[test]
fn small_blocks_go_together_and_come_together() {
    let mut remote = remote(9, Bundling { bytes: 5 * 4096, below: 4096, wait_us: 100 });
    for n in [1, 2, 3] {
        remote.offer(SPACE, ([n; 32], 4096), 10);
    }
    remote.offer(SPACE, ([4; 32], 4097), 10);
    let sent: Vec<usize> = errands(&mut remote).iter().map(|e| e.pieces.len()).collect();
    assert_eq!((sent, remote.gathered()), (vec![2, 1], 1));
    assert!(remote.due(109).is_empty());
    assert_eq!(remote.due(110), [(1, vec![[3; 32]])]);
    bundle(&mut remote, &[[1; 32], [2; 32]]);
    remote.learn(1, [5; 32], Place::ALONE);
    for n in [2, 5, 1] {
        assert!(remote.want(SPACE, ([n; 32], 4096), None, 10));
    }
    let errands = errands(&mut remote);
    assert_eq!(errands.len(), 2);
    assert_eq!((errands[0].pieces.len(), errands[0].range()), (2, Some((4096, 4096 * 5))));
}

#[test]
fn a_drop_marks_and_the_last_one_deletes() {
    let mut remote = remote(9, Bundling::OFF);
    let name = bundle(&mut remote, &[[1; 32], [2; 32], [3; 32]]);
    remote.learn(1, [2; 32], Place::ALONE);
    assert!(remote.erase(SPACE, [2; 32]) && !remote.erase(SPACE, [2; 32]));
    let found = errands(&mut remote);
    let kinds: Vec<Kind> = found.iter().map(|errand| errand.kind).collect();
    assert_eq!(kinds, [Kind::Delete, Kind::Mark]);
    assert_eq!(remote.marked(SPACE, &name, &[[3; 32], [2; 32]]), [[3; 32]]);
    assert!(remote.erase(SPACE, [1; 32]) && remote.is_empty());
    let found = errands(&mut remote);
    assert_eq!((found.len(), found[0].kind), (1, Kind::Delete));
    assert_eq!(found[0].bundle.map(|within| within.name), Some(name));
    assert!(remote.places.named(1, &name).is_none());
}

#[test]
fn one_who_deletes_himself_is_told_what_and_nothing_waits_at_the_desk() {
    let mut remote = remote(9, Bundling::OFF);
    let name = bundle(&mut remote, &[[1; 32], [2; 32], [3; 32]]);
    remote.learn(1, [4; 32], Place::ALONE);
    assert!(remote.erase(SPACE, [1; 32]));
    let mut his = Vec::new();
    for n in [2, 4, 3] {
        assert!(remote.erase_for(SPACE, [n; 32], &mut his));
    }
    assert!(!remote.erase_for(SPACE, [4; 32], &mut his));
    let kinds: Vec<Kind> = his.iter().map(|errand| errand.kind).collect();
    assert_eq!(kinds, [Kind::Delete, Kind::Delete], "the mark went with the bundle");
    let keys: Vec<Key> = his[1].pieces.iter().map(|piece| piece.key).collect();
    assert_eq!((keys, his[1].bundle.unwrap().name), (vec![[3; 32], [2; 32]], name));
    assert_eq!(errands(&mut remote)[0].kind, Kind::Mark, "of who did not");
}

#[test]
fn what_could_not_be_deleted_is_where_it_was() {
    let mut remote = remote(9, Bundling::OFF);
    let name = bundle(&mut remote, &[[1; 32], [2; 32]]);
    assert!(remote.erase(SPACE, [2; 32]));
    let place = remote.places.restore(1, &[2; 32], &name).unwrap();
    assert!(remote.learn(1, [2; 32], place));
    assert_eq!((place.slot, remote.places.restore(1, &[9; 32], &name)), (1, None));
    let mut his = Vec::new();
    assert!(remote.erase_for(SPACE, [1; 32], &mut his));
    assert_eq!(his[0].kind, Kind::Mark, "one is left");
    assert!(remote.erase_for(SPACE, [2; 32], &mut his));
    assert_eq!(his[0].kind, Kind::Delete);
}

#[test]
fn two_who_drop_a_half_each_leave_nothing() {
    let mut remote = remote(9, Bundling::OFF);
    let name = bundle(&mut remote, &[[1; 32], [2; 32]]);
    assert!(remote.erase(SPACE, [1; 32]));
    assert_eq!(errands(&mut remote)[0].kind, Kind::Mark);
    assert_eq!(remote.marked(SPACE, &name, &[[1; 32], [2; 32]]), [[2; 32]]);
    assert_eq!(errands(&mut remote)[0].kind, Kind::Delete);
    assert!(remote.places.named(1, &name).is_none() && remote.is_empty());
}
