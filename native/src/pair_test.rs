//! What must hold of a joint decision whatever the numbers.

use super::*;
use crate::fit::builtin;
use crate::index::Overlap;
use crate::link::Link;
use crate::load::Load;

fn engine(gb_s: f64) -> Engine {
    let profile = builtin("h100-70b-tp4").unwrap();
    Engine {
        fit: profile.fit,
        chunk: 1024.0,
        capacity: profile.kv_tokens,
        context: 0,
        max_conns: 0,
        fetch_ms: profile.fetch_ms(),
        link: Link::of(profile.kv_bytes_per_token, gb_s, 2.0).unwrap(),
    }
}

fn drawn(random: &mut Random, tokens: u64) -> Row {
    let (waiting, running) = (random.below(10), random.below(40));
    let load = Load {
        inflight: waiting + running,
        waiting,
        late: random.below(waiting + running + 1),
        drain_ms: random.below(4000) as f64,
        share: random.below(900) as f64 / 1000.0,
        kv_tokens: random.below(400_000),
        transfer_ms: random.below(500) as f64,
    };
    let device = random.below(tokens) as u32 / 16 * 16;
    let overlap = Overlap { device, ..Overlap::default() };
    Row { overlap, load, has_room: random.below(2) == 0, ..Row::default() }
}

const SLO: Ask = Ask {
    overlap_weight: 1.0,
    ttft_slo_ms: 2000.0,
    tpot_slo_ms: 30.0,
    output: 300.0,
    session_place: None,
};

fn plan(rows: &[Row], gb_s: f64, tokens: u64, ask: &Ask, force: Force) -> Option<Plan> {
    let (engines, mut rows) = (vec![engine(gb_s); rows.len()], rows.to_vec());
    let all = vec![1; rows.len()];
    let masks = Masks { prefill: &all, decode: &all };
    decide(&engines, &mut rows, masks, tokens as f64, ask, (force, 1))
}

#[test]
fn what_is_chosen_costs_least_and_a_slower_link_never_makes_it_cheaper() {
    let mut random = Random(7);
    for _ in 0..2000 {
        let tokens = 100 + random.below(40_000);
        let rows: Vec<Row> = (0..4).map(|_| drawn(&mut random, tokens)).collect();
        let found = plan(&rows, 12.5, tokens, &SLO, Force::Auto).unwrap();
        let sum = |seated: &Seated| seated.1.terms.sum();
        let cost = sum(&found.decode) + found.prefill.as_ref().map_or(0.0, sum);
        let least = found.local_ms.min(found.remote_ms);
        assert!((cost - least).abs() < 1e-6, "{cost} is not {least}: {found:?}");
        assert_ne!(found.prefill.map(|seated| seated.0), Some(found.decode.0));
        assert!(found.decode.1.terms.values().iter().all(|ms| *ms >= 0.0));
        let slow = plan(&rows, 1.25, tokens, &Ask { ttft_slo_ms: 0.0, ..SLO }, Force::Auto);
        let fast = plan(&rows, 12.5, tokens, &Ask { ttft_slo_ms: 0.0, ..SLO }, Force::Auto);
        let (slow, fast) = (slow.unwrap(), fast.unwrap());
        assert!(slow.remote_ms >= fast.remote_ms - 1e-6, "{slow:?} {fast:?}");
        assert!((slow.local_ms - fast.local_ms).abs() < 1e-6);
    }
}

#[test]
fn only_what_the_engine_of_the_answer_lacks_is_moved() {
    let mut rows = vec![Row::default(); 2];
    rows[1].overlap.device = 6000;
    let engines = vec![engine(12.5); 2];
    let masks = Masks { prefill: &[1, 0], decode: &[0, 1] };
    let found = decide(&engines, &mut rows, masks, 8000.0, &SLO, (Force::Always, 1)).unwrap();
    assert_eq!((found.transfer_tokens, found.reason), (2000, Reason::Forced));
    assert!((found.transfer_ms - engines[1].link.transfer_ms(2000.0)).abs() < 1e-9);
    let found = decide(&engines, &mut rows, masks, 8000.0, &SLO, (Force::Auto, 1)).unwrap();
    assert_eq!((found.prefill, found.reason), (None, Reason::Hit));
}

#[test]
fn a_full_link_is_waited_for_only_as_long_as_the_prefill_does_not_take() {
    let mut rows = vec![Row::default(); 2];
    let engines = vec![engine(12.5); 2];
    let masks = Masks { prefill: &[1, 0], decode: &[0, 1] };
    let mut ttft = |pending: f64| {
        rows[1].load.transfer_ms = pending;
        let how = (Force::Always, 1);
        let found = decide(&engines, &mut rows, masks, 8000.0, &SLO, how).unwrap();
        (found.decode.1.ttft_ms, found.prefill.unwrap().1.ttft_ms)
    };
    let (free, prefill) = ttft(0.0);
    assert_eq!(ttft(prefill).0, free);
    assert!((ttft(prefill + 300.0).0 - free - 300.0).abs() < 1e-6);
}

#[test]
fn a_filtered_engine_does_neither() {
    let mut rows = vec![Row::default(); 3];
    rows[0].filter = Some(cost::Filter::Full);
    let engines = vec![engine(12.5); 3];
    let masks = Masks { prefill: &[1, 0, 0], decode: &[1, 1, 0] };
    let found = decide(&engines, &mut rows, masks, 8000.0, &SLO, (Force::Always, 1)).unwrap();
    assert_eq!((found.decode.0, found.prefill, found.reason), (1, None, Reason::NoPrefill));
    rows[1].filter = Some(cost::Filter::Masked);
    assert_eq!(decide(&engines, &mut rows, masks, 8000.0, &SLO, (Force::Auto, 1)), None);
}

#[test]
fn one_engine_is_chosen_as_where_no_kv_moves() {
    let mut random = Random(11);
    for seed in 0..2000 {
        let tokens = 100 + random.below(40_000);
        let mut rows: Vec<Row> = (0..5).map(|_| drawn(&mut random, tokens)).collect();
        let found = plan(&rows, 12.5, tokens, &SLO, Force::Never).unwrap();
        let engines = vec![engine(12.5); rows.len()];
        cost::weigh(&engines, &mut rows, tokens as f64, &SLO);
        assert_eq!(Some(found.decode.0), cost::cheapest(&rows, 1), "{seed}");
        assert_eq!(found.decode.1, rows[found.decode.0], "{seed}");
        assert_eq!((found.prefill, found.reason), (None, Reason::Forced));
    }
}

#[test]
fn equal_engines_get_equal_shares_of_either_leg() {
    let (engines, all) = (vec![engine(50.0); 4], vec![1; 4]);
    let masks = Masks { prefill: &all, decode: &all };
    let mut shares = [[0; 4]; 2];
    for seed in 0..800 {
        let mut rows = vec![Row::default(); 4];
        let how = (Force::Always, crate::hash::mix(seed));
        let found = decide(&engines, &mut rows, masks, 8000.0, &SLO, how).unwrap();
        shares[0][found.decode.0] += 1;
        shares[1][found.prefill.unwrap().0] += 1;
    }
    assert!(shares.iter().flatten().all(|share| (150..250).contains(share)), "{shares:?}");
}

#[test]
fn an_engine_of_both_kinds_holds_at_most_half_of_its_memory_for_others() {
    let tokens = engine(12.5).capacity / 2 + 1;
    let rows = [Row::default(); 2];
    let found = plan(&rows, 12.5, tokens, &SLO, Force::Always).unwrap();
    assert_eq!((found.prefill, found.reason), (None, Reason::NoPrefill));
    // One that only prefills waits for nobody.
    let masks = Masks { prefill: &[1, 0], decode: &[0, 1] };
    let engines = [engine(12.5); 2];
    let mut rows = rows.to_vec();
    let how = (Force::Always, 1);
    let found = decide(&engines, &mut rows, masks, tokens as f64, &SLO, how).unwrap();
    assert_eq!(found.prefill.map(|seated| seated.0), Some(0));
}
