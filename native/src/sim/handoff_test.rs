//! Two legs in the simulator against sums done by hand, and what must hold of every run.

use super::gate::{Duet, Gate};
use super::run::{run, Arrival, Placed, Router, Run};
use super::sim_test::{close, drawn, fit, ids, options, trace, view, Request};
use crate::link::Link;
use crate::pair::Force;
use crate::roles::{Role, Settings};

/// Prefill on engine 0, answers on engine 1.
struct Legs;

impl Router for Legs {
    fn pick(&mut self, _arrival: &Arrival) -> usize {
        1
    }
    fn place(&mut self, _arrival: &Arrival) -> Placed {
        Placed { decode: 1, prefill: Some(0) }
    }
}

fn legs(requests: &[Request]) -> Run {
    run(&trace(requests), &options(2), &mut Legs)
}

/// Of this many tokens over the link of the tests.
fn transfer_ms(tokens: f64) -> f64 {
    options(2).link.transfer_ms(tokens)
}

#[test]
fn the_first_token_comes_behind_prefill_transfer_and_a_step_of_the_other_engine() {
    let done = legs(&[(0.0, 4096, 3, ids(0, 8))]);
    let fit = fit();
    let prefill = fit.step_ms(fit.tokens_ms(4096.0, 0.0), 0.0, 0.0);
    let first = fit.step_ms(fit.tokens_ms(1.0, 4095.0), 0.0, 0.0);
    close(done.outcomes[0].ttft_s, prefill + transfer_ms(4096.0) + first);
    let next = fit.step_ms(0.0, 1.0, 4096.0) + fit.step_ms(0.0, 1.0, 4097.0);
    close(done.outcomes[0].tpot_s, next / 2.0);
    assert_eq!((done.transfers, done.transfer_tokens, done.outcomes[0].engine), (1, 4096, 1));
}

#[test]
fn only_missing_blocks_move_and_transfers_share_the_link() {
    let again = (10.0, 6144, 2, ids(0, 12));
    let done = legs(&[(0.0, 4096, 2, ids(0, 8)), again]);
    assert_eq!(done.transfer_tokens, 4096 + 2048);
    assert_eq!(done.outcomes[1].hit, 4096);
    // The second transfer waits for the first.
    let mut slow = options(2);
    slow.link = Link::of(327_680, 1.25, 2.0).unwrap();
    let both = [(0.0, 2048, 2, ids(0, 4)), (0.0, 2048, 2, ids(50, 4))];
    let done = run(&trace(&both), &slow, &mut Legs);
    let [a, b] = [0, 1].map(|row| done.outcomes[row].ttft_s * 1e3);
    let one = slow.link.transfer_ms(2048.0);
    assert!((one - 20.0..one + 20.0).contains(&(b - a)), "{a} {b}");
}

#[test]
fn a_prompt_that_finds_no_memory_waits_and_none_is_lost() {
    let mut options = options(2);
    options.settings.capacity = 9000;
    let requests: Vec<Request> =
        (0..12).map(|n| (0.1 * n as f64, 4096, 40, ids(100 * n, 8))).collect();
    let done = run(&trace(&requests), &options, &mut Legs);
    assert_eq!((done.outcomes.len(), done.transfers), (12, 12));
    assert!(done.outcomes.iter().all(|outcome| outcome.ttft_s > 0.0 && outcome.tpot_s > 0.0));
}

fn duet(roles: Vec<Role>, force: Force, elastic: bool) -> Duet {
    let settings =
        Settings { ttft_slo_ms: 2000.0, tpot_slo_ms: 25.0, dwell_s: 20.0, drain_s: 40.0 };
    Duet { roles, force, elastic: elastic.then_some(settings) }
}

#[test]
fn every_request_is_served_once_in_any_mode_and_the_same_again() {
    use Role::{Decode, Mixed, Prefill};
    let trace = drawn(4, 300);
    let mut options = options(4);
    options.spread_s = 0.5;
    options.settings.capacity = 60_000;
    let split = vec![Prefill, Prefill, Decode, Decode];
    let modes = [
        duet(split.clone(), Force::Always, false),
        duet(split.clone(), Force::Auto, false),
        duet(vec![Mixed; 4], Force::Always, false),
        duet(vec![Mixed; 4], Force::Auto, true),
        duet(split, Force::Auto, true),
    ];
    for mode in modes {
        let once = || {
            let view = super::gate::View { duet: Some(mode.clone()), ..view() };
            let mut gate = Gate::new(4, 1, 300, view).unwrap();
            let done = run(&trace, &options, &mut gate);
            // What was charged is taken off again.
            for load in gate.loads(done.end_s + 1e6) {
                let left = (load.inflight, load.waiting, load.late, load.kv_tokens);
                assert_eq!((left, load.transfer_ms, load.drain_ms), ((0, 0, 0, 0), 0.0, 0.0));
            }
            done
        };
        let (done, again) = (once(), once());
        assert_eq!(done.requests(), 300, "{mode:?}");
        assert!(done.outcomes.iter().all(|outcome| outcome.ttft_s > 0.0), "{mode:?}");
        assert_eq!(done.outcomes, again.outcomes, "{mode:?}");
        if mode.force == Force::Always {
            assert_eq!(done.transfers + done.refused, 300, "{mode:?}");
        }
    }
}

#[test]
fn engines_that_prefill_for_each_other_never_wait_for_each_other() {
    let mut options = options(2);
    options.settings.capacity = 9000;
    let requests: Vec<Request> =
        (0..8).map(|n| (0.01 * n as f64, 6144, 40, ids(100 * n, 12))).collect();
    let duet = duet(vec![Role::Mixed; 2], Force::Always, false);
    let view = super::gate::View { duet: Some(duet), capacity: 9000, ..view() };
    let mut gate = Gate::new(2, 1, 8, view).unwrap();
    let done = run(&trace(&requests), &options, &mut gate);
    assert!(done.outcomes.iter().all(|outcome| outcome.ttft_s > 0.0), "{:?}", done.outcomes);
    assert!(gate.loads(done.end_s).iter().all(|load| load.inflight == 0));
}

const PHASE_S: f64 = 150.0;

/// Long prompts with short answers, then short prompts with long answers, then the first again; each more
/// than four engines answer in time.
fn turning() -> Vec<Request> {
    let mut requests = Vec::new();
    let mut block = 0;
    for phase in 0..3 {
        let (per_s, input, output) = if phase == 1 { (40.0, 128, 900) } else { (6.2, 8192, 10) };
        for n in 0..(PHASE_S * per_s) as u64 {
            let blocks = u64::from(u32::div_ceil(input, 512));
            let at_s = f64::from(phase) * PHASE_S + n as f64 / per_s;
            requests.push((at_s, input, output, ids(block, blocks)));
            block += blocks;
        }
    }
    requests
}

#[test]
fn roles_follow_a_workload_that_turns_and_turns_back() {
    let requests = turning();
    let dwell_s = 15.0;
    let settings =
        Settings { ttft_slo_ms: 2000.0, tpot_slo_ms: 20.0, dwell_s, drain_s: 2.0 * dwell_s };
    let roles = vec![Role::Mixed; 4];
    let duet = Duet { roles, force: Force::Auto, elastic: Some(settings) };
    let view = super::gate::View { duet: Some(duet), tpot_slo_ms: 20.0, ..view() };
    let mut gate = Gate::new(4, 1, requests.len(), view).unwrap();
    let done = run(&trace(&requests), &options(4), &mut gate);
    assert_eq!((done.requests(), done.refused), (requests.len() as u64, 0));
    for (s, m) in &gate.moves {
        println!("{s:.0} {m:?}");
    }
    let phase = |at: usize| {
        let from_s = at as f64 * PHASE_S;
        let within = move |s: f64| (from_s..from_s + PHASE_S).contains(&s);
        gate.moves.iter().filter(|(s, _)| within(*s)).copied().collect::<Vec<_>>()
    };
    for (at, to) in [Role::Prefill, Role::Decode, Role::Prefill].into_iter().enumerate() {
        let moves = phase(at);
        assert!(moves.iter().any(|(_, m)| m.to == to), "phase {at}: {moves:?}");
    }
    // A look back at the load fades over 40 s; then half a dwell must agree, behind a whole one.
    for at in [1, 2] {
        let first_s = phase(at)[0].0 - at as f64 * PHASE_S;
        assert!(first_s < crate::load::FADE_S + 1.5 * dwell_s, "phase {at}: {first_s} s");
    }
    let times: Vec<f64> = gate.moves.iter().map(|(s, _)| *s).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= dwell_s), "{times:?}");
}
