//! Roles follow a load that turns, within the dwell, and rest when it does.

use super::*;
use crate::fit::builtin;
use crate::hash::Random;

const SETTINGS: Settings =
    Settings { ttft_slo_ms: 2000.0, tpot_slo_ms: 25.0, dwell_s: 20.0, drain_s: 60.0 };

fn fit() -> Fit {
    builtin("h100-70b-tp4").unwrap().fit
}

fn mixed(count: usize) -> Controller {
    Controller::new(SETTINGS, vec![Role::Mixed; count], vec![true; count]).unwrap()
}

/// Prompts that keep 7 of 8 engines busy, few answers.
const PROMPTS: Demand =
    Demand { engines: 6.5, own_ms: 1000.0, requests: 10.0, kv_tokens: 100_000.0 };
/// Answers that need most engines, short prompts.
const ANSWERS: Demand =
    Demand { engines: 0.4, own_ms: 50.0, requests: 2600.0, kv_tokens: 900_000.0 };
const CALM: Demand = Demand { engines: 1.0, own_ms: 400.0, requests: 20.0, kv_tokens: 100_000.0 };

/// Looks once a second; the moves, with their times.
fn watch(
    controller: &mut Controller,
    demand: &Demand,
    (from_s, to_s): (u32, u32),
) -> Vec<(f64, Move)> {
    let loads = vec![Load::default(); controller.roles().len()];
    let looks = (from_s..to_s).map(f64::from);
    looks.filter_map(|s| Some((s, controller.look(&loads, demand, &fit(), s)?))).collect()
}

#[test]
fn roles_follow_a_load_that_turns_and_turns_back() {
    let mut team = mixed(8);
    let prompts = watch(&mut team, &PROMPTS, (0, 300));
    assert!(!prompts.is_empty() && prompts.iter().all(|(_, m)| m.to == Role::Prefill));
    let answers = watch(&mut team, &ANSWERS, (300, 900));
    assert!(answers[0].0 < 300.0 + SETTINGS.dwell_s, "{answers:?}");
    assert!(team.roles().iter().filter(|role| role.may_decode()).count() >= 7);
    assert!(team.roles().iter().any(|role| role.may_prefill()));
    let again = watch(&mut team, &PROMPTS, (900, 1500));
    assert!(again[0].0 < 900.0 + SETTINGS.dwell_s, "{again:?}");
    assert!(team.roles().iter().filter(|role| role.may_prefill()).count() >= 7);
    // One at a time, and each kept for the dwell.
    let times: Vec<f64> = [prompts, answers, again].concat().iter().map(|(s, _)| *s).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= SETTINGS.dwell_s), "{times:?}");
    // And when all is calm, all engines do both again.
    watch(&mut team, &CALM, (1500, 1900));
    assert_eq!(team.roles(), vec![Role::Mixed; 8]);
}

#[test]
fn a_load_that_does_not_turn_moves_nothing_to_and_fro() {
    let mut random = Random(5);
    for demand in [PROMPTS, ANSWERS, CALM] {
        let mut team = mixed(8);
        let mut last = vec![];
        let mut backs = 0;
        for tick in 0..2000 {
            let noise =
                |value: f64, random: &mut Random| value * (0.9 + random.below(200) as f64 / 1000.0);
            let noisy = Demand {
                engines: noise(demand.engines, &mut random),
                requests: noise(demand.requests, &mut random),
                kv_tokens: noise(demand.kv_tokens, &mut random),
                ..demand
            };
            let loads = vec![Load::default(); 8];
            if let Some(moved) = team.look(&loads, &noisy, &fit(), f64::from(tick)) {
                backs += usize::from(last.contains(&(moved.place, moved.to)));
                last.push((moved.place, moved.from));
            }
        }
        assert!(last.len() <= 8 && backs == 0, "{demand:?}: {} moves, {backs} back", last.len());
    }
}

#[test]
fn only_engines_declared_for_both_move_and_one_of_each_stays() {
    let roles = vec![Role::Prefill, Role::Decode, Role::Mixed];
    let mut team = Controller::new(SETTINGS, roles, vec![false, false, true]).unwrap();
    for demand in [PROMPTS, ANSWERS] {
        watch(&mut team, &demand, (0, 2000));
        assert_eq!(team.roles()[..2], [Role::Prefill, Role::Decode]);
    }
    let mut two = mixed(2);
    for (at, demand) in [PROMPTS, ANSWERS, PROMPTS].into_iter().enumerate() {
        let from = at as u32 * 1000;
        watch(&mut two, &demand, (from, from + 1000));
        assert!(two.roles().iter().any(|role| role.may_prefill()));
        assert!(two.roles().iter().any(|role| role.may_decode()));
    }
    assert!(team.set(0, Role::Decode, 1.0).unwrap_err().contains("not declared"));
    assert!(two.set(7, Role::Decode, 1.0).is_err());
    for place in [0, 1] {
        two.set(place, Role::Mixed, 1.0).unwrap();
    }
    two.set(0, Role::Prefill, 1.0).unwrap();
    assert!(two.set(1, Role::Prefill, 2.0).unwrap_err().contains("must be"));
}

#[test]
fn the_next_one_waits_until_the_last_is_rid_of_its_answers() {
    let mut team = mixed(4);
    let mut loads = vec![Load::default(); 4];
    let heavy = Demand { engines: 3.4, ..PROMPTS };
    let first = (0..20).find_map(|s| team.look(&loads, &heavy, &fit(), f64::from(s))).unwrap();
    loads[first.place] = Load { inflight: 3, ..Load::default() };
    let moved = |team: &mut Controller, loads: &[Load], from: u32, to: u32| {
        (from..to).find_map(|s| team.look(loads, &heavy, &fit(), f64::from(s)))
    };
    assert_eq!(moved(&mut team, &loads, 20, 60), None);
    assert_eq!(team.stuck, 0);
    loads[first.place] = Load::default();
    assert!(moved(&mut team, &loads, 60, 80).is_some());
    // One that never gets rid of them is counted, and does not hold up the others for ever.
    loads.fill(Load { inflight: 1, ..Load::default() });
    moved(&mut team, &loads, 80, 400);
    assert!(team.stuck >= 1);
}
