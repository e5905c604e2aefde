//! Runs the remote tier's fetches: threads of its own that ask the store for many objects at once, and
//! hand blocks to the core as they are whole, and verified.
//!
//! At most so many requests are under way, each errand is reported on exactly once, and while the store
//! is left alone nothing is asked of it. Who watches over the store hears how each request ended.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::{select, Either};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use super::bucket::Bucket;
use super::commands::Command;
use super::core::Core;
use super::intake::Intake;
use super::remote::{Errand, Kind, Miss, Room};
use super::view::View;

/// Reports that wait for whoever reads them; older ones are dropped.
const REPORTS_MAX: usize = 1 << 12;
/// Threads, each with its part of the requests and its own connections: one verifies and copies what came
/// while the other one receives.
const THREADS: usize = 2;

/// How one request ended.
pub struct Report {
    pub took: Duration,
    /// Why the store did not answer.
    pub trouble: Option<String>,
    /// What was wrong with the blocks that it gave.
    pub damage: Option<String>,
}

#[derive(Default)]
struct Reports {
    waiting: VecDeque<Report>,
    /// One of them is worth waking somebody for.
    is_urgent: bool,
    /// Threads that have not ended.
    running: usize,
}

struct Shared {
    core: Arc<Core>,
    timeout: Duration,
    is_stopping: AtomicBool,
    reports: Mutex<Reports>,
    told: Condvar,
}

/// What one thread works with.
struct Part {
    shared: Arc<Shared>,
    bucket: Bucket,
    /// Requests at once, and of those how many that nobody waits for.
    most: usize,
    ahead_most: usize,
    news: Arc<Notify>,
}

pub struct Fetcher {
    shared: Arc<Shared>,
    /// Not started yet.
    parts: Mutex<Vec<Arc<Part>>>,
    news: Vec<Arc<Notify>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Fetcher {
    /// Where errands of `core` are fetched from; see `Bucket::open`.
    pub fn open(
        core: Arc<Core>,
        (url, given): (&str, &[(String, String)]),
        timeout: Duration,
        most: usize,
    ) -> Result<Self, String> {
        let count = most.clamp(1, THREADS);
        let shared = Arc::new(Shared {
            core,
            timeout,
            is_stopping: AtomicBool::new(false),
            reports: Mutex::new(Reports { running: count, ..Reports::default() }),
            told: Condvar::new(),
        });
        let ahead_most = (most / 4).max(1);
        let part = |at: usize| {
            let share = |all: usize| all / count + usize::from(at < all % count);
            let bucket = Bucket::open(url, given, timeout)?;
            let (shared, news) = (Arc::clone(&shared), Arc::new(Notify::new()));
            let (most, ahead_most) = (share(most.max(1)), share(ahead_most));
            Ok(Arc::new(Part { shared, bucket, most, ahead_most, news }))
        };
        let parts = (0..count).map(part).collect::<Result<Vec<_>, String>>()?;
        let news = parts.iter().map(|part| Arc::clone(&part.news)).collect();
        Ok(Self { shared, parts: Mutex::new(parts), news, threads: Mutex::default() })
    }

    /// Begin to fetch, unless that is begun.
    pub fn start(&self) -> std::io::Result<()> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // What could not be started is started by the next call.
        while let Some(part) = parts.last().cloned() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let builder = std::thread::Builder::new().name("kvbm-fetch".into());
            threads.push(builder.spawn(move || run(&part, runtime))?);
            parts.pop();
        }
        let news = self.news.clone();
        self.shared.core.desk().follow(move || news.iter().for_each(|news| news.notify_one()));
        Ok(())
    }

    /// Give up what is under way; nobody reports on it.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.news.iter().for_each(|news| news.notify_one());
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// How requests ended, in order; waits until one has failed, or so long. None: it has ended.
    pub fn reports(&self, patience: Duration) -> Option<Vec<Report>> {
        let reports = self.shared.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let is_quiet = |reports: &mut Reports| !reports.is_urgent && reports.running > 0;
        let waited = self.shared.told.wait_timeout_while(reports, patience, is_quiet);
        let (mut reports, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if reports.running == 0 && reports.waiting.is_empty() {
            return None;
        }
        reports.is_urgent = false;
        Some(reports.waiting.drain(..).collect())
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(part: &Part, runtime: Runtime) {
    // What a library trips over costs the requests under way, which fail by themselves.
    while catch_unwind(AssertUnwindSafe(|| runtime.block_on(part.work()))).is_err() {
        part.shared.report(Duration::ZERO, Some("fetching broke off".into()), None);
    }
    runtime.shutdown_background();
    part.shared.reports.lock().unwrap_or_else(PoisonError::into_inner).running -= 1;
    part.shared.told.notify_all();
}

impl Part {
    /// Until the core has ended, or `stop`.
    async fn work(&self) {
        let (mut under_way, mut ahead) = (FuturesUnordered::new(), 0);
        while !self.shared.is_stopping.load(Ordering::Acquire) {
            let free = self.most.saturating_sub(under_way.len());
            let Some(errands) = self.errands(free, self.ahead_most - ahead) else { return };
            for errand in errands {
                ahead += usize::from(errand.kind == Kind::Ahead);
                under_way.push(self.fetch(errand));
            }
            if under_way.is_empty() {
                self.news.notified().await;
                continue;
            }
            let (next, news) = (under_way.next(), pin!(self.news.notified()));
            if let Either::Left((Some(Kind::Ahead), _)) = select(next, news).await {
                ahead -= 1;
            }
        }
    }

    /// At most `free`, of those at most `ahead` that nobody waits for. None: the core has ended.
    fn errands(&self, free: usize, ahead: usize) -> Option<Vec<Errand>> {
        let desk = self.shared.core.desk();
        let mut errands = desk.look(Room { fetches: free, ahead: 0, sends: 0 })?;
        let ahead = ahead.min(free - errands.len());
        errands.append(&mut desk.look(Room { fetches: 0, ahead, sends: 0 })?);
        Some(errands)
    }

    async fn fetch(&self, errand: Errand) -> Kind {
        let (kind, core) = (errand.kind, &self.shared.core);
        let mut intake = Intake::of(errand);
        let Some(path) = intake.path().filter(|_| !core.desk().is_paused()) else {
            core.tell(Command::RemoteEnded(intake.missed(Miss::Failed), true));
            return kind;
        };
        let (began, range) = (Instant::now(), intake.range());
        // What comes is looked at while it is in the cache; of a bundle, blocks go on to who waits for them
        // while the next ones come.
        let meanwhile = |data: &View| {
            let blocks = intake.whole(data);
            if !blocks.is_empty() {
                core.tell(Command::RemoteEnded(blocks, false));
            }
        };
        let got = self.bucket.get(&path, range, meanwhile);
        let got = tokio::time::timeout(self.shared.timeout, got).await;
        let late = || Err(format!("no answer within {} s", self.shared.timeout.as_secs_f64()));
        let (rest, trouble) = match got.unwrap_or_else(|_| late()) {
            Ok(Some(data)) => (intake.rest(&data), None),
            Ok(None) => (intake.missed(Miss::Absent), None),
            Err(why) => (intake.missed(Miss::Failed), Some(why)),
        };
        core.tell(Command::RemoteEnded(rest, true));
        let damage = intake.damage().map(|said| format!("{said}: {path}"));
        self.shared.report(began.elapsed(), trouble, damage);
        kind
    }
}

impl Shared {
    fn report(&self, took: Duration, trouble: Option<String>, damage: Option<String>) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.waiting.len() == REPORTS_MAX {
            reports.waiting.pop_front();
        }
        let is_urgent = trouble.is_some();
        reports.is_urgent |= is_urgent;
        reports.waiting.push_back(Report { took, trouble, damage });
        drop(reports);
        if is_urgent {
            self.told.notify_all();
        }
    }
}
