//! Threads for work that takes a while: checksums, copies, and blocking reads and writes.
//!
//! Urgent work goes first. A thread that panics ends the process: what it held is not to be trusted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::io::{perform, Direction, Io, IoBackend};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    urgent: VecDeque<Job>,
    other: VecDeque<Job>,
    closed: bool,
}

#[derive(Default)]
struct Board {
    queue: Mutex<Queue>,
    news: Condvar,
}

pub struct Crew {
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    pub fn new(name: &str, threads: usize) -> std::io::Result<Self> {
        let board = Arc::new(Board::default());
        let mut crew = Self { board, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let board = Arc::clone(&crew.board);
            let build = std::thread::Builder::new().name(name.to_string());
            crew.threads.push(build.spawn(move || work(&board))?);
        }
        Ok(crew)
    }

    pub fn run(&self, urgent: bool, job: Job) {
        let mut queue = self.board.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if urgent {
            queue.urgent.push_back(job);
        } else {
            queue.other.push_back(job);
        }
        drop(queue);
        self.board.news.notify_one();
    }
}

/// What was handed over before is still done.
impl Drop for Crew {
    fn drop(&mut self) {
        self.board.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.board.news.notify_all();
        for thread in self.threads.drain(..) {
            // The last owner may be a thread of the crew itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn work(board: &Board) {
    let _guard = AbortOnPanic;
    let mut queue = board.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = queue.urgent.pop_front().or_else(|| queue.other.pop_front()) {
            drop(queue);
            job();
            queue = board.queue.lock().unwrap_or_else(PoisonError::into_inner);
        } else if queue.closed {
            return;
        } else {
            queue = board.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The backend for kernels and containers without io_uring: one blocking call per thread.
pub struct Threads(Crew);

impl Threads {
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Ok(Self(Crew::new("kvbm-io", threads)?))
    }
}

impl IoBackend for Threads {
    fn submit(&self, io: Io) {
        let urgent = io.direction == Direction::Read;
        self.0.run(urgent, Box::new(move || perform(io)));
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}
