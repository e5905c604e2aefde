//! Runs the remote tier's fetches: a thread of its own that asks the store for many objects at once, and
//! hands blocks to the core as they are whole, and verified.
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

use futures_util::future::select;
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
    is_over: bool,
}

struct Shared {
    core: Arc<Core>,
    bucket: Bucket,
    timeout: Duration,
    /// Requests at once, and of those how many that nobody waits for.
    most: usize,
    ahead_most: usize,
    news: Arc<Notify>,
    is_stopping: AtomicBool,
    reports: Mutex<Reports>,
    told: Condvar,
}

pub struct Fetcher {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Fetcher {
    /// Where errands of `core` are fetched from; see `Bucket::open`.
    pub fn open(
        core: Arc<Core>,
        (url, given): (&str, &[(String, String)]),
        timeout: Duration,
        most: usize,
    ) -> Result<Self, String> {
        let most = most.max(1);
        let shared = Shared {
            core,
            bucket: Bucket::open(url, given, timeout)?,
            timeout,
            most,
            ahead_most: (most / 4).max(1),
            news: Arc::new(Notify::new()),
            is_stopping: AtomicBool::new(false),
            reports: Mutex::default(),
            told: Condvar::new(),
        };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// Begin to fetch, unless that is begun.
    pub fn start(&self) -> std::io::Result<()> {
        let mut begun = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.is_some() {
            return Ok(());
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("kvbm-fetch".into());
        *begun = Some(builder.spawn(move || run(&shared, runtime))?);
        Ok(())
    }

    /// Give up what is under way; nobody reports on it.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.news.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// How requests ended, in order; waits until one has failed, or so long. None: it has ended.
    pub fn reports(&self, patience: Duration) -> Option<Vec<Report>> {
        let reports = self.shared.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let is_quiet = |reports: &mut Reports| !(reports.is_urgent || reports.is_over);
        let waited = self.shared.told.wait_timeout_while(reports, patience, is_quiet);
        let (mut reports, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if reports.is_over && reports.waiting.is_empty() {
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

fn run(shared: &Arc<Shared>, runtime: Runtime) {
    let news = Arc::clone(&shared.news);
    shared.core.desk().follow(move || news.notify_one());
    // What a library trips over costs the requests under way, which fail by themselves.
    while catch_unwind(AssertUnwindSafe(|| runtime.block_on(shared.work()))).is_err() {
        shared.report(Duration::ZERO, Some("fetching broke off".into()), None);
    }
    runtime.shutdown_background();
    shared.reports.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
    shared.told.notify_all();
}

impl Shared {
    /// Until the core has ended, or `stop`.
    async fn work(&self) {
        let (mut under_way, mut ahead) = (FuturesUnordered::new(), 0);
        while !self.is_stopping.load(Ordering::Acquire) {
            let free = self.most.saturating_sub(under_way.len());
            let room =
                Room { fetches: free, ahead: free.min(self.ahead_most - ahead), sends: 0 };
            let Some(errands) = self.core.desk().look(room) else { return };
            for errand in errands {
                ahead += usize::from(errand.kind == Kind::Ahead);
                under_way.push(self.fetch(errand));
            }
            if under_way.is_empty() {
                self.news.notified().await;
                continue;
            }
            let ended = {
                let (news, next) = (pin!(self.news.notified()), under_way.next());
                match select(next, news).await {
                    futures_util::future::Either::Left((kind, _)) => kind,
                    futures_util::future::Either::Right(_) => None,
                }
            };
            ahead -= usize::from(ended == Some(Kind::Ahead));
        }
    }

    async fn fetch(&self, errand: Errand) -> Kind {
        let kind = errand.kind;
        let mut intake = Intake::of(errand);
        let Some(path) = intake.path().filter(|_| !self.core.desk().is_paused()) else {
            self.core.tell(Command::RemoteEnded(intake.missed(Miss::Failed), true));
            return kind;
        };
        let (began, range) = (Instant::now(), intake.range());
        // What comes is looked at while it is in the cache; of a bundle, blocks go on to who waits for them
        // while the next ones come.
        let meanwhile = |data: &View| {
            let blocks = intake.whole(data);
            if !blocks.is_empty() {
                self.core.tell(Command::RemoteEnded(blocks, false));
            }
        };
        let got = self.bucket.get(&path, range, meanwhile);
        let got = tokio::time::timeout(self.timeout, got).await;
        let late = || Err(format!("no answer within {} s", self.timeout.as_secs_f64()));
        let (rest, trouble) = match got.unwrap_or_else(|_| late()) {
            Ok(Some(data)) => (intake.rest(&data), None),
            Ok(None) => (intake.missed(Miss::Absent), None),
            Err(why) => (intake.missed(Miss::Failed), Some(why)),
        };
        self.core.tell(Command::RemoteEnded(rest, true));
        self.report(began.elapsed(), trouble, intake.damage().map(|said| format!("{said}: {path}")));
        kind
    }

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
