//! `kill -9` at any time: a child works on a store and tells what was acknowledged; it is killed, by its
//! parent or at a named place, and the parent opens what is left.
//!
//! `KVBM_TORTURE_LOOPS=1000 cargo test torture` for a long one.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::harness::{options, Dir, Rig};
use crate::hash::Random;
use crate::kvbm::options::{DiskOptions, IoKind};
use crate::kvbm::points::Points;
use crate::kvbm::stores::Stored;

const POINTS: [&str; 13] = [
    "record.written",
    "journal.write",
    "journal.written",
    "journal.create",
    "segment.create",
    "segment.recycle",
    "segment.renamed",
    "segment.forgotten",
    "snapshot.part",
    "snapshot.synced",
    "snapshot.renamed",
    "snapshot.replaced",
    "sync.journal",
];

/// Ready again within this, promised; measured far below.
const READY: Duration = Duration::from_secs(5);

fn len_of(n: u64) -> usize {
    [1, 100, 4096, 20_000, 60_000][(n % 5) as usize]
}

fn torture_options(dir: std::path::PathBuf, capacity: u64, seed: u64) -> DiskOptions {
    DiskOptions {
        dir,
        capacity,
        io: if seed % 2 == 0 { IoKind::Threads } else { IoKind::Auto },
        ..options(&Dir(std::path::PathBuf::new()))
    }
}

/// The child's part; without its environment it does nothing.
#[test]
fn child_of_the_torture() {
    let Ok(dir) = std::env::var("KVBM_TORTURE_DIR") else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (seed, first) = (number("KVBM_TORTURE_SEED"), number("KVBM_TORTURE_FIRST"));
    let points = Points::parse(&std::env::var("KVBM_TORTURE_POINTS").unwrap()).unwrap();
    let options = torture_options(dir.into(), number("KVBM_TORTURE_CAPACITY"), seed);
    let mut rig = Rig::new(DiskOptions { points, ..options });
    let mut out = std::io::stderr();
    let mut say = |what: char, n: u64| writeln!(out, "kvbm {what} {n}").unwrap();
    let (mut random, mut waiting) = (Random(seed), HashMap::new());
    let mut next = first;
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if waiting.len() < 8 {
            say('o', next);
            match rig.begin_store(next, len_of(next)) {
                Ok((token, Stored::Queued)) => {
                    waiting.insert(token, next);
                }
                Ok((_, Stored::There)) => say('s', next),
                Err(_) => {}
            }
            next += 1;
        }
        if random.below(40) == 0 && next > first {
            let n = first + random.below(next - first);
            let busy = waiting.values().any(|&other| other == n);
            if !busy && rig.has(n) {
                say('t', n);
                if rig.drop_block(n) {
                    say('d', n);
                }
            }
        }
        if random.below(10) == 0 && next > first {
            // Being used makes blocks survive their segment.
            let _ = rig.begin_load(first + random.below(next - first));
        }
        rig.poll();
        for outcome in std::mem::take(&mut rig.out) {
            if let Some(n) = waiting.remove(&outcome.token) {
                if outcome.result.is_ok() {
                    say('s', n);
                }
            } else if let Ok(Some(buffer)) = outcome.result {
                rig.disk.give_back(buffer);
            }
        }
        if waiting.len() >= 8 {
            rig.disk.inbox().bell.wait(Duration::from_millis(5));
        }
    }
}

#[derive(Default)]
struct Told {
    offered: HashSet<u64>,
    stored: HashSet<u64>,
    /// Drops that were begun; those that were acknowledged.
    dropping: HashSet<u64>,
    dropped: HashSet<u64>,
}

fn start(dir: &Dir, capacity: u64, seed: u64, first: u64, points: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kvbm::tests::torture::child_of_the_torture", "--nocapture"])
        .env("KVBM_TORTURE_DIR", &dir.0)
        .env("KVBM_TORTURE_SEED", seed.to_string())
        .env("KVBM_TORTURE_FIRST", first.to_string())
        .env("KVBM_TORTURE_CAPACITY", capacity.to_string())
        .env("KVBM_TORTURE_POINTS", points)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Let the child work until it dies by itself or has said `lines` lines; take down what it said.
fn listen(mut child: Child, lines: u64, told: &mut Told) {
    let mut heard = 0;
    let pipe = BufReader::new(child.stderr.take().unwrap());
    for line in pipe.lines() {
        let line = line.unwrap();
        let Some(rest) = line.strip_prefix("kvbm ") else { continue };
        // A line that was cut short by the kill ends the pipe.
        let Some((what, n)) = rest.split_once(' ') else { break };
        let Ok(n) = n.parse() else { break };
        match what {
            "o" => told.offered.insert(n),
            "s" => told.stored.insert(n),
            "t" => told.dropping.insert(n),
            _ => told.dropped.insert(n),
        };
        heard += 1;
        if heard == lines {
            child.kill().unwrap();
        }
    }
    let _ = child.kill();
    child.wait().unwrap();
}

fn torture(loops: u64, capacity: u64, seed: u64) {
    let (dir, mut random) = (Dir::new(), Random(seed));
    let mut evicting = false;
    let mut told = Told::default();
    for turn in 0..loops {
        let point = POINTS[random.below(POINTS.len() as u64) as usize];
        let by_parent = random.below(3) == 0;
        let points = format!("{point}=kill@{}", random.below(60));
        let points = if by_parent { "" } else { &points };
        let first = (turn + 1) * 100_000;
        let child = start(&dir, capacity, seed + turn, first, points);
        listen(child, 100 + random.below(1500), &mut told);
        let began = Instant::now();
        let mut rig = Rig::new(torture_options(dir.0.clone(), capacity, 0));
        assert!(began.elapsed() < READY, "ready after {:?}", began.elapsed());
        evicting |= rig.disk.space().used() > capacity / 2;
        for &n in &told.offered {
            let what = format!("block {n} after {turn} turns, {points}");
            if told.dropped.contains(&n) {
                assert!(!rig.has(n), "dropped {what}");
            } else if rig.has(n) {
                // All of what the child did last, some of what was seen before.
                if n >= first || random.below(20) == 0 {
                    rig.expect(n, len_of(n));
                }
            } else if told.stored.contains(&n) {
                assert!(evicting || told.dropping.contains(&n), "lost {what}");
            }
        }
        let known = rig.disk.catalog().len();
        let good = told.offered.iter().filter(|&&n| rig.has(n)).count();
        assert_eq!(known, good, "phantoms after {turn} turns, {points}");
        assert_eq!(rig.disk.stats.corrupt, 0);
        assert!(rig.disk.space().used() <= capacity);
        if random.below(2) == 0 {
            rig.close();
        }
    }
    assert!(told.stored.len() > 50, "the child did its work");
}

fn loops() -> u64 {
    std::env::var("KVBM_TORTURE_LOOPS").map_or(8, |n| n.parse().unwrap())
}

#[test]
fn torture_loses_nothing_that_was_acknowledged() {
    torture(loops(), 4 << 30, 1);
}

#[test]
fn torture_while_blocks_are_evicted() {
    torture(loops(), 4 << 20, 1000);
}
