//! A client as the daemon sees it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::board::Board;
use super::host::Seat;
use super::message::Hello;
use super::pins::Pin;
use super::record::Key;
use super::region::Region;
use super::socket::{Intake, Outbox};
use super::wire::{put_frame, Head, Op};
use super::works::WorkId;

/// Bytes that may wait for a client that does not read.
const OUTBOX_MAX: usize = 8 << 20;
/// Bytes taken from one client before others get their turn.
const TURN: usize = 256 << 10;
pub const REGIONS_MAX: usize = 16;

/// What a client that said HELLO has.
pub struct Session {
    pub hello: Hello,
    /// Number of its namespace on the disk, and in the hub.
    pub namespace: u16,
    pub hub_namespace: u16,
    pub board: Board,
    pub regions: Vec<Arc<Region>>,
    pub jobs: HashMap<u64, WorkId>,
    pub pins: HashMap<Key, (Pin, u64)>,
    /// Slots of the arena that it writes to, and that it holds.
    pub writing: HashSet<Seat>,
    pub held: HashMap<Seat, u32>,
    /// The next change to be told, if it follows.
    pub follows: Option<u64>,
    /// Ends of jobs that were put in the outbox.
    finished: u64,
}

impl Session {
    pub fn new(hello: Hello, namespace: u16, hub_namespace: u16, board: Board) -> Self {
        Self {
            hello,
            namespace,
            hub_namespace,
            board,
            regions: Vec::new(),
            jobs: HashMap::new(),
            pins: HashMap::new(),
            writing: HashSet::new(),
            held: HashMap::new(),
            follows: None,
            finished: 0,
        }
    }
}

pub struct Conn {
    pub fd: OwnedFd,
    /// Readable when the client's process has ended, even if a child of it keeps the socket.
    pub process: Option<OwnedFd>,
    pub intake: Intake,
    pub outbox: Outbox,
    pub session: Option<Session>,
    pub opened_us: u64,
    pub waits_to_write: bool,
    /// To be closed, and why.
    pub broken: Option<&'static str>,
}

impl Conn {
    pub fn new(fd: OwnedFd, process: Option<OwnedFd>, opened_us: u64) -> Self {
        Self {
            fd,
            process,
            intake: Intake::default(),
            outbox: Outbox::default(),
            session: None,
            opened_us,
            waits_to_write: false,
            broken: None,
        }
    }

    pub fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub fn read(&mut self) {
        match self.intake.fill(&self.fd, TURN) {
            Ok(true) => {}
            Ok(false) => self.broken = Some("it closed"),
            Err(_) => self.broken = Some("the socket failed"),
        }
    }

    pub fn send(&mut self, head: &Head, payload: &[u8]) {
        self.send_with(head, payload, Vec::new());
    }

    pub fn send_with(&mut self, head: &Head, payload: &[u8], fds: Vec<Arc<OwnedFd>>) {
        let mut bytes = Vec::with_capacity(64 + payload.len());
        put_frame(&mut bytes, head, payload);
        self.outbox.push(bytes, fds);
        if let (Op::Done, Some(session)) = (head.op, &mut self.session) {
            session.finished += 1;
        }
        if self.outbox.waiting() > OUTBOX_MAX {
            self.broken = Some("it does not read");
        }
    }

    /// A request that cannot be served; the text is for people.
    pub fn refuse(&mut self, head: &Head, text: &str) {
        let mut answer = Head::new(Op::Error);
        (answer.is_answer, answer.request) = (true, head.request);
        answer.extra = head.op as u64;
        self.send(&answer, text.as_bytes());
    }

    /// Send what goes; true: the wish to write has changed.
    pub fn flush(&mut self) -> bool {
        if self.outbox.waiting() == 0 && !self.waits_to_write {
            return false;
        }
        let done = match self.outbox.flush(&self.fd) {
            Ok(done) => done,
            Err(error) => {
                self.broken = Some(describe(&error));
                return false;
            }
        };
        // Only now is there something for the client to find.
        if let Some(session) = &mut self.session {
            for _ in 0..std::mem::take(&mut session.finished) {
                session.board.count_done();
            }
        }
        let changed = self.waits_to_write == done;
        self.waits_to_write = !done;
        changed
    }
}

fn describe(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => "it closed",
        _ => "the socket failed",
    }
}
