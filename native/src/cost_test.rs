//! What must hold of the cost whatever the numbers, and some decisions that others got wrong.

use super::*;
use crate::fit::builtin;

fn engine() -> Engine {
    let profile = builtin("h100-8b-tp1").unwrap();
    Engine {
        fit: profile.fit,
        chunk: profile.chunk_tokens as f64,
        capacity: profile.kv_tokens,
        context: 0,
        max_conns: 0,
        fetch_ms: profile.fetch_ms(),
        link: Link::of(profile.kv_bytes_per_token, 12.5, 2.0).unwrap(),
    }
}

fn load(waiting: u64, running: u64, drain_ms: f64) -> Load {
    Load {
        inflight: waiting + running,
        waiting,
        drain_ms,
        kv_tokens: 2000 * (waiting + running),
        ..Load::default()
    }
}

fn device(tokens: u32) -> Overlap {
    Overlap { device: tokens, ..Overlap::default() }
}

fn weighed(rows: &mut [Row], tokens: f64, ask: &Ask) -> Vec<f64> {
    weigh(&vec![engine(); rows.len()], rows, tokens, ask);
    rows.iter().map(|row| row.terms.sum()).collect()
}

/// A row drawn at random: some load, some overlap of a prompt of `tokens`.
fn drawn(random: &mut Random, tokens: u64) -> Row {
    let mut part = |most: u64| random.below(most.max(1)) as u32 / 16 * 16;
    let device = part(tokens);
    let host = part(tokens - u64::from(device));
    let predicted = part(tokens - u64::from(device + host));
    let overlap = Overlap { device, host, predicted, ..Overlap::default() };
    let (waiting, running) = (random.below(20), random.below(60));
    let load = Load {
        inflight: waiting + running,
        waiting,
        late: random.below(waiting + running + 1),
        drain_ms: random.below(5000) as f64,
        share: random.below(1000) as f64 / 1000.0,
        kv_tokens: random.below(600_000),
        ..Load::default()
    };
    Row { overlap, load, has_room: random.below(2) == 0, ..Row::default() }
}

#[test]
fn more_overlap_never_costs_more() {
    let mut random = Random(1);
    for _ in 0..3000 {
        let tokens = 64 + random.below(60_000);
        let ask = Ask { tpot_slo_ms: random.below(2) as f64 * 50.0, ..Ask::default() };
        let row = drawn(&mut random, tokens);
        let other = drawn(&mut random, tokens);
        let room = (tokens - u64::from(row.overlap.total())) as u32 / 16 * 16;
        let more = random.below(u64::from(room / 16 + 1)) as u32 * 16;
        let before = weighed(&mut [row, other], tokens as f64, &ask)[0];
        for tier in 0..3 {
            let mut better = row;
            *[
                &mut better.overlap.device,
                &mut better.overlap.host,
                &mut better.overlap.predicted,
            ][tier] += more;
            let after = weighed(&mut [better, other], tokens as f64, &ask)[0];
            assert!(after <= before + 1e-6, "{row:?} + {more} in {tier}: {before} -> {after}");
        }
    }
}

#[test]
fn more_load_never_costs_less() {
    let mut random = Random(2);
    for _ in 0..3000 {
        let tokens = 64 + random.below(60_000);
        let slo = random.below(2) as f64;
        let ask = Ask { ttft_slo_ms: slo * 2000.0, tpot_slo_ms: slo * 50.0, ..Ask::default() };
        let row = drawn(&mut random, tokens);
        let free = Row { overlap: device(tokens as u32 - 1), ..Row::default() };
        let before = weighed(&mut [row, free], tokens as f64, &ask)[0];
        let grown: [fn(&mut Load); 5] = [
            |load| load.drain_ms += 300.0,
            |load| load.kv_tokens += 20_000,
            |load| load.share = (load.share + 0.1).min(1.0),
            |load| load.inflight += 1,
            |load| (load.inflight, load.waiting) = (load.inflight + 1, load.waiting + 1),
        ];
        for grow in grown {
            let mut busier = row;
            grow(&mut busier.load);
            let after = weighed(&mut [busier, free], tokens as f64, &ask)[0];
            assert!(after >= before - 1e-6, "{row:?} {busier:?}: {before} -> {after}");
        }
    }
}

#[test]
fn the_terms_add_up_to_the_cost_and_none_is_negative() {
    let mut random = Random(3);
    for _ in 0..1000 {
        let tokens = 1 + random.below(60_000);
        let ask = Ask {
            overlap_weight: random.below(30) as f64 / 10.0,
            ttft_slo_ms: random.below(4000) as f64,
            tpot_slo_ms: random.below(60) as f64,
            output: 1.0 + random.below(2000) as f64,
            session_place: Some(random.below(3) as usize),
        };
        let mut rows = [0; 3].map(|_| drawn(&mut random, tokens));
        let costs = weighed(&mut rows, tokens as f64, &ask);
        for (row, cost) in rows.iter().zip(costs) {
            assert!(row.terms.values().iter().all(|term| term.is_finite() && *term >= 0.0));
            assert_eq!(row.terms.values().iter().sum::<f64>(), cost);
        }
    }
}

#[test]
fn a_hit_is_worth_some_load_and_not_any() {
    // Engines with much, some and little to do; the prefix lies with the busiest.
    let pick = |overlap: u32, drains: [f64; 3]| {
        let mut rows = drains.map(|ms| Row { load: load(2, 8, ms), ..Row::default() });
        rows[0].overlap = device(overlap);
        weighed(&mut rows, 8192.0, &Ask::default());
        cheapest(&rows, 1).unwrap()
    };
    assert_eq!(pick(8000, [70.0, 65.0, 5.0]), 0);
    assert_eq!(pick(0, [70.0, 65.0, 5.0]), 2);
    assert_eq!(pick(8000, [9000.0, 650.0, 50.0]), 2);
}

#[test]
fn few_long_contexts_weigh_more_than_many_short_ones() {
    let held = |inflight: u64, kv_tokens: u64| Row {
        load: Load { inflight, kv_tokens, ..Load::default() },
        ..Row::default()
    };
    let mut rows = [held(4, 430_000), held(7, 14_000)];
    let costs = weighed(&mut rows, 20_000.0, &Ask::default());
    assert!(costs[1] < costs[0], "{costs:?}");
    assert!(rows[0].ttft_ms > 1.5 * rows[1].ttft_ms);
}

#[test]
fn a_request_that_is_late_everywhere_leaves_those_in_time_alone() {
    let ask = Ask { ttft_slo_ms: 500.0, tpot_slo_ms: 50.0, ..Ask::default() };
    let mut rows = [
        // Nobody ahead, but ten answers in time; and a long queue of requests that are late.
        Row { load: load(0, 10, 0.0), ..Row::default() },
        Row { load: Load { late: 6, ..load(6, 0, 9000.0) }, ..Row::default() },
    ];
    weighed(&mut rows, 60_000.0, &ask);
    assert_eq!(cheapest(&rows, 1), Some(1), "{rows:?}");
    // One that can be in time takes the free engine, and so does everyone where no SLO is set.
    weighed(&mut rows, 4000.0, &ask);
    assert_eq!(cheapest(&rows, 1), Some(0));
    weighed(&mut rows, 60_000.0, &Ask::default());
    assert_eq!(cheapest(&rows, 1), Some(0));
}

#[test]
fn an_engine_that_meets_the_slo_beats_one_with_the_better_cache() {
    let mut rows = [
        Row { load: load(1, 0, 480.0), overlap: device(4096), ..Row::default() },
        Row { load: load(1, 0, 100.0), overlap: device(3072), ..Row::default() },
    ];
    weighed(&mut rows, 8192.0, &Ask { ttft_slo_ms: 500.0, ..Ask::default() });
    assert_eq!((rows[0].terms.late > 0.0, rows[1].terms.late), (true, 0.0));
    assert_eq!(cheapest(&rows, 1), Some(1));
}

#[test]
fn a_lower_tier_is_fetched_where_that_is_quicker() {
    let slow = Engine { fetch_ms: [0.005, 10.0, 0.1], ..engine() };
    let overlap = Overlap { device: 1600, host: 3200, disk: 1600, predicted: 800, ..device(1600) };
    let mut rows = [Row { overlap, ..Row::default() }];
    weigh(&[slow], &mut rows, 8192.0, &Ask::default());
    assert_eq!(rows[0].terms.fetch, 16.0);
    // The disk takes longer than computing, and what lies behind it cannot be reached.
    assert_eq!(rows[0].terms.own, slow.fit.work_ms(8192.0 - 4800.0, 4800.0, slow.chunk));
}

#[test]
fn a_session_stays_where_it_was_unless_that_costs_more() {
    let ask = Ask { session_place: Some(1), ..Ask::default() };
    let mut rows = [Row::default(), Row::default()];
    weighed(&mut rows, 8192.0, &ask);
    assert_eq!(cheapest(&rows, 1), Some(1));
    rows[1].load = load(4, 4, 800.0);
    weighed(&mut rows, 8192.0, &ask);
    assert_eq!(cheapest(&rows, 1), Some(0));
}

#[test]
fn no_weight_for_overlap_is_no_credit() {
    let mut rows = [Row { overlap: device(8000), ..Row::default() }, Row::default()];
    let costs = weighed(&mut rows, 8192.0, &Ask { overlap_weight: 0.0, ..Ask::default() });
    assert_eq!(costs[0], costs[1]);
    // What is charged is what will be done, whatever it was weighed with.
    assert!(rows[0].work_ms < rows[1].work_ms / 10.0);
}

#[test]
fn an_engine_with_memory_left_displaces_nothing() {
    let mut rows = [Row::default(), Row { overlap: device(8000), ..Row::default() }];
    weighed(&mut rows, 8192.0, &Ask::default());
    assert!(rows[0].terms.repl > 0.0 && rows[1].terms.repl == 0.0);
    rows[0].has_room = true;
    weighed(&mut rows, 8192.0, &Ask::default());
    assert_eq!(rows[0].terms.repl, 0.0);
}

#[test]
fn equals_are_picked_alike_often_and_filtered_ones_never() {
    let mut rows = [Row::default(); 5];
    rows[3].filter = Some(Filter::Full);
    weighed(&mut rows, 100.0, &Ask::default());
    let mut counts = [0; 5];
    (0..4000).for_each(|seed| counts[cheapest(&rows, seed).unwrap()] += 1);
    assert_eq!(counts[3], 0);
    assert!([0, 1, 2, 4].iter().all(|&at| (900..1100).contains(&counts[at])), "{counts:?}");
    rows.iter_mut().for_each(|row| row.filter = Some(Filter::Masked));
    assert_eq!(cheapest(&rows, 1), None);
}

#[test]
fn a_filtered_engine_sets_no_standard() {
    // Its cache and its speed are out of reach, and so no reason to call the others worse.
    let mut rows = [Row { overlap: device(8000), ..Row::default() }, Row::default()];
    rows[0].filter = Some(Filter::Masked);
    let ask = Ask { ttft_slo_ms: 50.0, ..Ask::default() };
    weighed(&mut rows, 8192.0, &ask);
    assert_eq!((rows[1].terms.repl, rows[1].terms.late), (0.0, 0.0));
}
