//! The io_uring backend: one thread owns a ring and sleeps in it.
//!
//! New work rings a bell that the ring itself listens to, so one wait covers both.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use io_uring::{opcode, squeue, types, IoUring};

use super::inbox::Inbox;
use super::io::{step, Direction, Io, IoBackend, Step};

const BELL: u64 = u64::MAX;

pub struct Ring {
    inbox: Arc<Inbox<Io>>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ring {
    /// Fails where the kernel has no io_uring, forbids it, or has no memory left for it.
    pub fn new(depth: u32) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::new()?);
        let closing = Arc::new(AtomicBool::new(false));
        let (theirs, flag) = (Arc::clone(&inbox), Arc::clone(&closing));
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        // A ring of a single issuer must be made by the thread that uses it.
        let work = move || match build(depth + 1) {
            Ok(ring) => {
                let _ = tell.send(Ok(()));
                Driver::new(ring, depth as usize, theirs, flag).run();
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("kvbm-ring".into()).spawn(work)?;
        told.recv().map_err(|_| io::Error::other("the ring's thread ended"))??;
        Ok(Self { inbox, closing, thread: Some(thread) })
    }
}

fn build(entries: u32) -> io::Result<IoUring> {
    let mut quick = IoUring::builder();
    quick.setup_single_issuer().setup_coop_taskrun();
    quick.build(entries).or_else(|_| IoUring::new(entries))
}

impl IoBackend for Ring {
    fn submit(&self, io: Io) {
        self.inbox.push(io);
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

/// What was submitted before is still done.
impl Drop for Ring {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.inbox.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A transfer in the ring and how far it got.
struct Flight {
    io: Io,
    moved: usize,
}

struct Driver {
    ring: IoUring,
    depth: usize,
    inbox: Arc<Inbox<Io>>,
    closing: Arc<AtomicBool>,
    waiting: VecDeque<Io>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    again: Vec<usize>,
}

impl Driver {
    fn new(ring: IoUring, depth: usize, inbox: Arc<Inbox<Io>>, closing: Arc<AtomicBool>) -> Self {
        let flights = (0..depth).map(|_| None).collect();
        let free = (0..depth).rev().collect();
        let (waiting, again) = (VecDeque::new(), Vec::new());
        Self { ring, depth, inbox, closing, waiting, flights, free, again }
    }

    fn run(mut self) {
        let mut news = Vec::new();
        let mut finished = Vec::new();
        self.listen();
        loop {
            self.inbox.drain(&mut news);
            self.waiting.extend(news.drain(..));
            for at in std::mem::take(&mut self.again) {
                self.push(at);
            }
            while let Some(at) = self.next() {
                self.push(at);
            }
            let idle = self.free.len() == self.depth && self.waiting.is_empty();
            if idle && self.closing.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = self.ring.submit_and_wait(1) {
                let errno = error.raw_os_error().unwrap_or(0);
                // A signal, or completions to be taken first.
                if ![libc::EINTR, libc::EBUSY, libc::EAGAIN].contains(&errno) {
                    std::process::abort();
                }
            }
            finished.extend(self.ring.completion().map(|c| (c.user_data(), c.result())));
            for (name, result) in finished.drain(..) {
                if name == BELL {
                    self.inbox.bell.clear();
                    self.listen();
                } else {
                    self.complete(name as usize, result);
                }
            }
        }
    }

    /// Put a waiting transfer at a free place.
    fn next(&mut self) -> Option<usize> {
        if self.waiting.is_empty() {
            return None;
        }
        let at = self.free.pop()?;
        self.flights[at] = self.waiting.pop_front().map(|io| Flight { io, moved: 0 });
        Some(at)
    }

    fn listen(&mut self) {
        let fd = types::Fd(self.inbox.bell.fd());
        let rung = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(BELL);
        self.enqueue(&rung);
    }

    fn push(&mut self, at: usize) {
        let Some(flight) = self.flights[at].as_mut() else { return };
        let Flight { io, moved } = flight;
        let fd = types::Fd(io.file.as_raw_fd());
        let offset = io.offset + *moved as u64;
        let rest = &mut io.buffer[*moved..io.len];
        let (start, len) = (rest.as_mut_ptr(), rest.len() as u32);
        let entry = match io.direction {
            Direction::Read => opcode::Read::new(fd, start, len).offset(offset).build(),
            Direction::Write => opcode::Write::new(fd, start, len).offset(offset).build(),
        };
        self.enqueue(&entry.user_data(at as u64));
    }

    fn enqueue(&mut self, entry: &squeue::Entry) {
        // Safety: buffer and file belong to the flight, which stays until its completion.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            let _ = self.ring.submit();
        }
    }

    fn complete(&mut self, at: usize, result: i32) {
        let Some(flight) = self.flights[at].as_mut() else { return };
        let (direction, len) = (flight.io.direction, flight.io.len);
        match step(direction, len, &mut flight.moved, i64::from(result)) {
            Step::Again => self.again.push(at),
            Step::Over(result) => {
                if let Some(Flight { io, .. }) = self.flights[at].take() {
                    (io.done)(io.buffer, result);
                }
                self.free.push(at);
            }
        }
    }
}
