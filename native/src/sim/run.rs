//! The run of a simulation: arrivals, steps of engines, and what the gateways hear of them, in the
//! order of time. The same trace, options and seed give the same outcome, bit for bit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::cache::Blocks;
use super::engine::{Engine, Floor, Said, Seq, Settings};
use super::handoff::Links;
use super::options::Options;
use super::store::Store;
use super::trace::Trace;
use crate::cost::Leg;
use crate::hash::{mix, Random};

/// Where a request goes: its answer, and its prefill if elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub decode: usize,
    pub prefill: Option<usize>,
}

/// What a router is asked with.
pub struct Arrival<'a> {
    pub row: usize,
    pub now_s: f64,
    pub gateway: usize,
    pub seed: u64,
    pub trace: &'a Trace,
    pub options: &'a Options,
    pub engines: &'a [Engine],
    /// Blocks of the shared cache, where there is one.
    pub shared: Option<&'a Blocks<()>>,
}

impl Arrival<'_> {
    pub fn input(&self) -> u32 {
        self.trace.rows[self.row].input
    }

    /// Prompt tokens that engine `at` has cached at this moment.
    pub fn cached(&self, at: usize) -> u32 {
        let ids = self.trace.blocks(self.row);
        let found = match self.shared {
            Some(shared) => ids.iter().take_while(|id| shared.contains_key(id)).count(),
            None => self.engines[at].cache.prefix(ids),
        };
        self.tokens(found as u32)
    }

    /// Prompt tokens that its first `blocks` blocks save: never the last one, nor others of its block
    /// of 16.
    pub fn tokens(&self, blocks: u32) -> u32 {
        (blocks * self.trace.block).min(self.input().saturating_sub(1) / 16 * 16)
    }
}

/// Who speaks where no engine does.
pub const STORE: usize = usize::MAX;

/// Chooses engines, and hears what they say.
pub trait Router {
    fn pick(&mut self, arrival: &Arrival) -> usize;
    fn place(&mut self, arrival: &Arrival) -> Placed {
        Placed { decode: self.pick(arrival), prefill: None }
    }
    /// A prefill leg is over: the KV can be fetched.
    fn prefilled(&mut self, _row: usize, _now_s: f64) {}
    /// The first token of a row's answer.
    fn first(&mut self, _row: usize, _engine: usize, _now_s: f64) {}
    /// The end of a row's answer.
    fn done(&mut self, _trace: &Trace, _row: usize, _engine: usize, _now_s: f64) {}
    /// A block event: `Stored` or `Removed`; of the store where the engine is `STORE`.
    fn event(&mut self, _trace: &Trace, _engine: usize, _said: Said, _now_s: f64) {}
}

/// What became of one request. Times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    pub engine: usize,
    pub arrived_s: f64,
    pub ttft_s: f64,
    /// 0.0 for an answer of one token.
    pub tpot_s: f64,
    pub input: u32,
    pub output: u32,
    pub hit: u32,
}

#[derive(Debug, Clone, Default)]
pub struct Run {
    pub outcomes: Vec<Outcome>,
    pub busy_s: Vec<f64>,
    pub steps: u64,
    pub preempted: u64,
    /// Longer than an engine's memory: refused.
    pub refused: u64,
    pub end_s: f64,
    /// Requests whose KV moved, its tokens, and how long links were busy with it.
    pub transfers: u64,
    pub transfer_tokens: u64,
    pub transfer_s: f64,
}

/// What happens at a time: an engine's step ends, the KV of a row has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Step(usize),
    Come(usize),
}

/// A time that orders, with what happens then.
#[derive(PartialEq)]
struct At(f64, Event);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

struct World<'a> {
    trace: &'a Trace,
    options: &'a Options,
    engines: Vec<Engine>,
    seqs: Vec<Seq>,
    shared: Option<Blocks<()>>,
    store: Option<Store>,
    ends: BinaryHeap<Reverse<At>>,
    busy: Vec<bool>,
    said: Vec<Said>,
    delayed: VecDeque<(f64, usize, Said)>,
    random: Random,
    links: Links,
    settings: Vec<Settings>,
}

impl World<'_> {
    fn floor<'b>(
        (shared, store): (&'b mut Option<Blocks<()>>, &'b mut Option<Store>),
        seqs: &'b mut [Seq],
        said: &'b mut Vec<Said>,
        settings: &'b Settings,
        trace: &'b Trace,
    ) -> Floor<'b> {
        let (shared, store) = (shared.as_mut(), store.as_mut());
        Floor { settings, trace, seqs, shared, store, said }
    }

    fn begin(&mut self, at: usize, now_s: f64) {
        let settings = &self.settings[at];
        let mut floor =
            Self::floor((&mut self.shared, &mut self.store), &mut self.seqs, &mut self.said, settings, self.trace);
        let step = self.engines[at].begin(&mut floor);
        self.busy[at] = step.is_some();
        if let Some(ms) = step {
            self.ends.push(Reverse(At(now_s + ms * 1e-3, Event::Step(at))));
        }
    }

    fn end(&mut self, at: usize, now_s: f64) {
        let settings = &self.settings[at];
        let mut floor =
            Self::floor((&mut self.shared, &mut self.store), &mut self.seqs, &mut self.said, settings, self.trace);
        self.engines[at].end(now_s, &mut floor);
    }

    fn happen(&mut self, event: Event, now_s: f64, router: &mut dyn Router) {
        match event {
            Event::Step(at) => {
                self.end(at, now_s);
                self.begin(at, now_s);
                self.tell(at, now_s, router);
                self.fetch(at, now_s, router);
            }
            Event::Come(row) => self.come(row, now_s, router),
        }
    }

    /// Begins what an engine has to fetch and has memory for.
    fn fetch(&mut self, at: usize, now_s: f64, router: &mut dyn Router) {
        while let Some(&row) = self.links.queues[at].front() {
            let settings = &self.settings[at];
            let mut floor =
                Self::floor((&mut self.shared, &mut self.store), &mut self.seqs, &mut self.said, settings, self.trace);
            let Some(tokens) = self.engines[at].reserve(row, &mut floor) else { break };
            self.tell(at, now_s, router);
            self.links.queues[at].pop_front();
            let from = self.seqs[self.trace.rows.len() + row].engine;
            let come_s = self.links.book(from, at, tokens, now_s);
            self.ends.push(Reverse(At(come_s, Event::Come(row))));
        }
    }

    /// The KV of a row is at its engine: the other one may forget it.
    fn come(&mut self, row: usize, now_s: f64, router: &mut dyn Router) {
        let leg = self.trace.rows.len() + row;
        let (to, from) = (self.seqs[row].engine, self.seqs[leg].engine);
        let settings = &self.settings[from];
        let mut floor =
            Self::floor((&mut self.shared, &mut self.store), &mut self.seqs, &mut self.said, settings, self.trace);
        self.engines[from].drop_blocks(leg, &mut floor);
        self.engines[to].deliver(row);
        for at in [from, to] {
            self.fetch(at, now_s, router);
            if !self.busy[at] {
                self.begin(at, now_s);
                self.tell(at, now_s, router);
            }
        }
    }

    /// Tells the router what was said; block events may be late or lost.
    fn tell(&mut self, at: usize, now_s: f64, router: &mut dyn Router) {
        let rows = self.trace.rows.len();
        let said = std::mem::take(&mut self.said).into_iter().map(|said| (at, said));
        let kept = self.store.as_mut().map(|store| std::mem::take(&mut store.said));
        let kept = kept.unwrap_or_default().into_iter().map(|said| (STORE, said));
        for (at, said) in said.chain(kept) {
            match said {
                Said::First(seq) if seq >= rows => {}
                Said::Done(seq) if seq >= rows => {
                    router.prefilled(seq - rows, now_s);
                    self.links.queues[self.seqs[seq - rows].engine].push_back(seq - rows);
                    self.fetch(self.seqs[seq - rows].engine, now_s, router);
                }
                Said::First(row) => router.first(row, at, now_s),
                Said::Done(row) => router.done(self.trace, row, at, now_s),
                event => {
                    let scale = (1u64 << 32) as f64;
                    let lost = self.options.loss > 0.0
                        && (self.random.below(1 << 32) as f64) < self.options.loss * scale;
                    match self.options.delay_s > 0.0 {
                        _ if lost => {}
                        true => self.delayed.push_back((now_s + self.options.delay_s, at, event)),
                        false => router.event(self.trace, at, event, now_s),
                    }
                }
            }
        }
    }

    fn arrive(&mut self, now_s: f64, row: usize, router: &mut dyn Router) {
        while let Some(&(due_s, at, event)) = self.delayed.front() {
            if due_s > now_s {
                break;
            }
            self.delayed.pop_front();
            router.event(self.trace, at, event, due_s);
        }
        let seed = self.random.below(u64::MAX);
        let arrival = Arrival {
            row,
            now_s,
            gateway: row % self.options.gateways,
            seed,
            trace: self.trace,
            options: self.options,
            engines: &self.engines,
            shared: self.shared.as_ref(),
        };
        let Placed { decode, prefill } = router.place(&arrival);
        let taken = self.trace.rows[row];
        let whole = if prefill.is_some() { Leg::Decode } else { Leg::Whole };
        self.seqs[row] = Seq::new(decode, taken.input, taken.output, whole);
        let (at, seq) = match prefill {
            Some(at) => {
                let leg = self.trace.rows.len() + row;
                self.seqs[leg] = Seq::new(at, taken.input, 1, Leg::Prefill);
                (at, leg)
            }
            None => (decode, row),
        };
        self.engines[at].add(seq);
        if !self.busy[at] {
            self.begin(at, now_s);
            self.tell(at, now_s, router);
        }
    }
}

/// Runs a whole trace.
pub fn run(trace: &Trace, options: &Options, router: &mut dyn Router) -> Run {
    let mut world = World {
        trace,
        options,
        engines: (0..options.engines).map(|_| Engine::default()).collect(),
        seqs: vec![Seq::default(); 2 * trace.rows.len()],
        shared: options.shared.then(Blocks::default),
        store: options.store.filter(|_| !options.shared).map(Store::new),
        ends: BinaryHeap::new(),
        busy: vec![false; options.engines],
        said: Vec::new(),
        delayed: VecDeque::new(),
        random: Random(mix(options.seed)),
        links: Links::new(options.link, options.engines),
        settings: (0..options.engines).map(|at| options.settings_of(at)).collect(),
    };
    let mut run = Run::default();
    let fits = |row: &usize| {
        let row = &trace.rows[*row];
        options.shared || u64::from(row.input) + u64::from(row.output) <= options.settings.capacity
    };
    let arrivals = trace.arrivals(options.speed, options.spread_s, options.seed);
    run.refused = arrivals.iter().filter(|(_, row)| !fits(row)).count() as u64;
    let mut arrivals = arrivals.into_iter().filter(|(_, row)| fits(row)).peekable();
    let mut arrived_s = vec![0.0; trace.rows.len()];
    loop {
        let next = world.ends.peek().map(|Reverse(At(s, event))| (*s, *event));
        match (arrivals.peek().copied(), next) {
            (Some((now_s, row)), next) if next.is_none_or(|(s, _)| now_s < s) => {
                arrivals.next();
                arrived_s[row] = now_s;
                world.arrive(now_s, row, router);
            }
            (_, Some((now_s, event))) => {
                world.ends.pop();
                world.happen(event, now_s, router);
                run.end_s = now_s;
            }
            (_, None) => break,
        }
    }
    run.busy_s = world.engines.iter().map(|engine| engine.busy_s).collect();
    run.steps = world.engines.iter().map(|engine| engine.steps).sum();
    run.preempted = world.seqs.iter().map(|seq| u64::from(seq.preempted)).sum();
    (run.transfers, run.transfer_tokens) = (world.links.transfers, world.links.tokens);
    run.transfer_s = world.links.busy_s;
    let (whole, legs) = world.seqs.split_at(trace.rows.len());
    let done = whole.iter().zip(legs).enumerate().filter(|(_, (seq, _))| seq.output > 0);
    run.outcomes = done.map(|(row, (seq, leg))| outcome(seq, leg, arrived_s[row])).collect();
    run
}

fn outcome(seq: &Seq, leg: &Seq, arrived_s: f64) -> Outcome {
    let gaps = f64::from(seq.output.max(2) - 1);
    Outcome {
        engine: seq.engine,
        arrived_s,
        ttft_s: seq.first_s - arrived_s,
        tpot_s: if seq.output > 1 { (seq.last_s - seq.first_s) / gaps } else { 0.0 },
        input: seq.input,
        output: seq.output,
        hit: seq.hit.max(leg.hit),
    }
}
