//! The simulator against sums done by hand, and what must hold of every run.

use super::baselines::{Baseline, Book};
use super::engine::{Said, Settings};
use super::gate::{Gate, View};
use super::options::Options;
use super::run::{run, Arrival, Outcome, Router, Run};
use super::trace::{Columns, Trace};
use crate::fit::{builtin, Fit};
use crate::hash::Random;
use crate::link::Link;

const BLOCK: u32 = 512;

pub(super) fn fit() -> Fit {
    builtin("h100-70b-tp4").unwrap().fit
}

/// (arrival, tokens in, tokens out, block ids).
pub(super) type Request = (f64, u32, u32, Vec<u64>);

pub(super) fn trace(requests: &[Request]) -> Trace {
    let column = |of: fn(&Request) -> u32| requests.iter().map(of).collect::<Vec<u32>>();
    let blocks: Vec<u64> = requests.iter().flat_map(|request| request.3.clone()).collect();
    let columns = Columns {
        at_s: &requests.iter().map(|request| request.0).collect::<Vec<f64>>(),
        input: &column(|request| request.1),
        output: &column(|request| request.2),
        counts: &column(|request| request.3.len() as u32),
        blocks: &blocks,
    };
    Trace::new(BLOCK, &columns).unwrap()
}

pub(super) fn options(engines: usize) -> Options {
    Options {
        engines,
        settings: Settings { fit: fit(), capacity: 461_000, chunk: 8192, max_seqs: 256 },
        chunks: Vec::new(),
        link: Link::of(327_680, 12.5, 2.0).unwrap(),
        shared: false,
        store: None,
        speed: 1.0,
        spread_s: 0.0,
        seed: 1,
        gateways: 1,
        delay_s: 0.0,
        loss: 0.0,
    }
}

/// Everything to the first engine; keeps what was said.
#[derive(Default)]
struct First(Vec<Said>);

impl Router for First {
    fn pick(&mut self, _arrival: &Arrival) -> usize {
        0
    }
    fn event(&mut self, _trace: &Trace, _engine: usize, said: Said, _now_s: f64) {
        self.0.push(said);
    }
}

fn alone(requests: &[Request], options: &Options) -> Run {
    run(&trace(requests), options, &mut First::default())
}

pub(super) fn ids(from: u64, count: u64) -> Vec<u64> {
    (from..from + count).collect()
}

pub(super) fn close(found: f64, wanted_ms: f64) {
    assert!((found * 1e3 - wanted_ms).abs() < 1e-6, "{} ms, not {wanted_ms}", found * 1e3);
}

#[test]
fn one_request_takes_its_chunks_and_then_a_step_per_token() {
    let done = alone(&[(0.0, 10_000, 3, ids(0, 20))], &options(1));
    let Outcome { ttft_s, tpot_s, hit, .. } = done.outcomes[0];
    let fit = fit();
    let first = fit.step_ms(fit.tokens_ms(8192.0, 0.0), 0.0, 0.0);
    let second = fit.step_ms(fit.tokens_ms(1808.0, 8192.0), 0.0, 0.0);
    close(ttft_s, first + second);
    close(tpot_s, (fit.step_ms(0.0, 1.0, 10_000.0) + fit.step_ms(0.0, 1.0, 10_001.0)) / 2.0);
    assert_eq!((hit, done.steps), (0, 4));
}

#[test]
fn a_prefix_that_is_cached_is_not_computed_again_but_for_the_last_block() {
    let again = (5.0, 2048, 1, ids(0, 4));
    let longer = (9.0, 4096, 1, [ids(0, 4), ids(50, 4)].concat());
    let done = alone(&[(0.0, 2048, 1, ids(0, 4)), again, longer], &options(1));
    let hits: Vec<u32> = done.outcomes.iter().map(|outcome| outcome.hit).collect();
    assert_eq!(hits, [0, 2032, 2048]);
    let work = fit().tokens_ms(2048.0, 2048.0);
    close(done.outcomes[2].ttft_s, fit().step_ms(work, 0.0, 0.0));
}

#[test]
fn a_prompt_delays_the_answers_that_run() {
    let long = (0.1, 8192, 1, ids(100, 16));
    let done = alone(&[(0.0, 16, 200, ids(0, 1)), long.clone()], &options(1));
    let quiet = alone(&[(0.0, 16, 200, ids(0, 1))], &options(1));
    let added = (done.outcomes[0].tpot_s - quiet.outcomes[0].tpot_s) * 199.0 * 1e3;
    // Two steps: the answer's token leaves room for all but one of the chunk's.
    assert!((500.0..560.0).contains(&added), "{added}");
    assert!(done.outcomes[1].ttft_s > alone(&[long], &options(1)).outcomes[0].ttft_s);
}

#[test]
fn what_was_used_longest_ago_is_evicted_and_announced() {
    let mut options = options(1);
    options.settings.capacity = 4096;
    let requests = [
        (0.0, 2048, 1, ids(0, 4)),
        (10.0, 2048, 1, ids(10, 4)),
        (20.0, 2048, 1, ids(20, 4)),
        (30.0, 2048, 1, ids(10, 4)),
        (40.0, 2048, 1, ids(0, 4)),
    ];
    let mut router = First::default();
    let trace = trace(&requests);
    let done = run(&trace, &options, &mut router);
    let hits: Vec<u32> = done.outcomes.iter().map(|outcome| outcome.hit).collect();
    assert_eq!(hits, [0, 0, 0, 2032, 0]);
    // The end of the first prompt goes first.
    let gone: Vec<u64> = trace.blocks(0).iter().rev().copied().collect();
    let removed = router.0.iter().filter_map(|said| match said {
        Said::Removed(id) => Some(*id),
        _ => None,
    });
    assert_eq!(removed.take(4).collect::<Vec<_>>(), gone);
}

#[test]
fn too_little_memory_puts_requests_back_and_loses_none() {
    let mut options = options(1);
    options.settings.capacity = 10_000;
    let requests: Vec<Request> = (0..6)
        .map(|at| (0.0, 2000, 900, ids(100 * at, 4)))
        .chain([(0.0, 20_000, 5, ids(900, 40))])
        .collect();
    let done = alone(&requests, &options);
    assert_eq!((done.outcomes.len(), done.refused), (6, 1));
    assert!(done.preempted > 0);
    for outcome in &done.outcomes {
        assert!(outcome.ttft_s > 0.0 && outcome.tpot_s > 0.0);
    }
}

/// Requests at random: some share prefixes, some are long.
pub(super) fn drawn(seed: u64, rows: usize) -> Trace {
    let mut random = Random(seed);
    let mut at_s = 0.0;
    let requests: Vec<Request> = (0..rows as u64)
        .map(|row| {
            at_s += random.below(1000) as f64 / 2000.0;
            let shared = random.below(12);
            let own = 1 + random.below(if row % 17 == 0 { 80 } else { 20 });
            let group = random.below(5) * 1_000_000;
            let blocks = [ids(group, shared), ids(1_000_000_000 + row * 1000, own)].concat();
            let input = blocks.len() as u32 * BLOCK - random.below(500) as u32;
            (at_s, input, 1 + random.below(300) as u32, blocks)
        })
        .collect();
    trace(&requests)
}

pub(super) fn view() -> View {
    View {
        fit: fit(),
        chunk: 8192.0,
        chunks: Vec::new(),
        link: Link::of(327_680, 12.5, 2.0).unwrap(),
        capacity: 461_000,
        ttft_slo_ms: 2000.0,
        tpot_slo_ms: 50.0,
        overlap_weight: 1.0,
        shared_load: true,
        events: true,
        store_ms: None,
        duet: None,
    }
}

#[test]
fn every_policy_serves_every_request_once_and_runs_the_same_again() {
    let trace = drawn(3, 300);
    let mut options = options(4);
    options.spread_s = 0.5;
    let routers = |name: &str| -> Box<dyn Router> {
        match Baseline::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, policy)) => Box::new(Book::new(*policy, 4, 300, fit())),
            None => Box::new(Gate::new(4, 1, 300, view()).unwrap()),
        }
    };
    for name in Baseline::ALL.map(|(name, _)| name).into_iter().chain(["kvgate"]) {
        let one = run(&trace, &options, routers(name).as_mut());
        let two = run(&trace, &options, routers(name).as_mut());
        assert_eq!(one.outcomes, two.outcomes, "{name}");
        assert_eq!((one.requests(), one.refused), (300, 0), "{name}");
        let lived = one.outcomes.iter().all(|o| o.ttft_s > 0.0 && o.engine < 4 && o.hit < o.input);
        assert!(lived, "{name}");
        assert!(one.busy_s.iter().all(|&busy| busy <= one.end_s + 1e-9), "{name}");
        assert!(one.hit_tokens() <= trace.reusable(), "{name}");
        options.seed += 1;
        let other = run(&trace, &options, routers(name).as_mut());
        assert_ne!(one.outcomes, other.outcomes, "{name}");
    }
}

#[test]
fn nothing_is_left_charged_when_all_is_over() {
    for (gateways, shared_load) in [(1, true), (3, true), (3, false)] {
        let trace = drawn(5, 200);
        let mut options = options(3);
        options.gateways = gateways;
        let view = View { shared_load, ..view() };
        let mut gate = Gate::new(3, gateways, 200, view).unwrap();
        let done = run(&trace, &options, &mut gate);
        for load in gate.loads(done.end_s + 1e6) {
            assert_eq!(load, crate::load::Load::default());
        }
    }
}

#[test]
fn events_that_come_late_or_never_cost_hits_not_requests() {
    let trace = drawn(7, 300);
    let mut options = options(4);
    let mut hits = Vec::new();
    for (delay_s, loss) in [(0.0, 0.0), (30.0, 0.0), (0.0, 0.5)] {
        (options.delay_s, options.loss) = (delay_s, loss);
        let done = run(&trace, &options, &mut Gate::new(4, 1, 300, view()).unwrap());
        assert_eq!(done.outcomes.len(), 300);
        hits.push(done.hit_tokens());
    }
    assert!(hits[1] < hits[0] && hits[2] < hits[0], "{hits:?}");
}

#[test]
fn knowing_by_events_is_as_good_as_looking() {
    let trace = drawn(9, 400);
    let hits = [true, false].map(|events| {
        let view = View { events, ..view() };
        run(&trace, &options(4), &mut Gate::new(4, 1, 400, view).unwrap()).hit_tokens() as f64
    });
    assert!((hits[0] / hits[1] - 1.0).abs() < 0.03, "{hits:?}");
}

#[test]
fn an_endless_shared_cache_bounds_the_hits() {
    let trace = drawn(11, 300);
    let mut options = options(4);
    options.shared = true;
    let mut gate = Gate::new(4, 1, 300, View { capacity: 0, ..view() }).unwrap();
    let bound = run(&trace, &options, &mut gate);
    options.shared = false;
    let real = run(&trace, &options, &mut Gate::new(4, 1, 300, view()).unwrap());
    assert!(real.hit_tokens() <= bound.hit_tokens());
    // Each run takes its own decisions, and a few of them are luck.
    assert!(bound.good(2.0, 0.05) as f64 >= 0.98 * real.good(2.0, 0.05) as f64);
    // All that came before is there, but for prompts that are computed at the same moment.
    assert!(bound.hit_tokens() as f64 > 0.95 * trace.reusable() as f64);
}

#[test]
fn a_trace_that_cannot_be_is_refused() {
    let rows: [(Request, &str); 4] = [
        ((0.0, 600, 1, ids(0, 1)), "need 2 blocks"),
        ((0.0, 0, 1, vec![]), "row 0"),
        ((0.0, 10, 0, ids(0, 1)), "row 0"),
        ((f64::NAN, 10, 1, ids(0, 1)), "arrives at NaN"),
    ];
    for ((at_s, input, output, blocks), wanted) in rows {
        let columns = Columns {
            at_s: &[at_s],
            input: &[input],
            output: &[output],
            counts: &[blocks.len() as u32],
            blocks: &blocks,
        };
        let error = Trace::new(BLOCK, &columns).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}
