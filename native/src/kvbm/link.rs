//! A client's connection: made again when it is lost, never waited for.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::board::Board;
use super::memory::Memory;
use super::message::{put_region, Hello, Welcome};
use super::socket::{connect, Intake, Outbox};
use super::table::Reader;
use super::wire::{put_frame, Frame, Head, Op};

const RETRY_MIN_US: u64 = 50_000;
const RETRY_MAX_US: u64 = 1_000_000;
/// What was refused is tried again more seldom.
const RETRY_REFUSED_US: u64 = 5_000_000;
/// A daemon that does not answer HELLO by then is not one.
const HELLO_US: u64 = 2_000_000;
/// A daemon whose heart has not beaten for so long hangs.
pub const STALE_US: u64 = 400_000;

/// Memory of the client's that the daemon may use.
#[derive(Clone)]
pub struct Lent {
    pub fd: Arc<OwnedFd>,
    pub stride: u64,
    pub slots: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Down,
    Greeting,
    Up,
}

pub struct Link {
    path: PathBuf,
    hello: Hello,
    lent: Vec<Lent>,
    fd: Option<OwnedFd>,
    intake: Intake,
    outbox: Outbox,
    pub state: State,
    pub board: Option<Board>,
    pub welcome: Option<Welcome>,
    pub arena: Option<Arc<Memory>>,
    pub table: Option<Reader>,
    /// Regions whose answer has come.
    regions: usize,
    retry_us: u64,
    try_at_us: u64,
    since_us: u64,
    /// Why there is no connection, for people.
    pub trouble: String,
    pub connects: u64,
}

impl Link {
    pub fn new(path: PathBuf, hello: Hello) -> Self {
        Self {
            path,
            hello,
            lent: Vec::new(),
            fd: None,
            intake: Intake::default(),
            outbox: Outbox::default(),
            state: State::Down,
            board: None,
            welcome: None,
            arena: None,
            table: None,
            regions: 0,
            retry_us: RETRY_MIN_US,
            try_at_us: 0,
            since_us: 0,
            trouble: String::new(),
            connects: 0,
        }
    }

    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Lend memory, now and on every connection to come; its number.
    pub fn lend(&mut self, lent: Lent) -> u32 {
        self.lent.push(lent);
        if self.fd.is_some() {
            let last = self.lent.len() - 1;
            self.offer(last);
            self.state = State::Greeting;
        }
        self.lent.len() as u32 - 1
    }

    pub fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    pub fn is_stale(&self, now_us: u64) -> bool {
        self.board.as_ref().is_none_or(|board| now_us > board.last_beat_us() + STALE_US)
    }

    /// Up, and somebody is alive at the other end.
    pub fn is_usable(&self, now_us: u64) -> bool {
        self.state == State::Up && !self.is_stale(now_us)
    }

    pub fn waiting(&self) -> usize {
        self.outbox.waiting()
    }

    pub fn push(&mut self, head: &Head, payload: &[u8]) {
        let mut bytes = Vec::with_capacity(64 + payload.len());
        put_frame(&mut bytes, head, payload);
        self.outbox.push(bytes, Vec::new());
    }

    /// Send what goes, and nothing else; what fails is found by the next `advance`.
    pub fn flush(&mut self) {
        if let Some(fd) = &self.fd {
            let _ = self.outbox.flush(fd);
        }
    }

    /// Connect if it is time, send and receive what goes. Frames that are not about the connection
    /// itself are handed over. True: the connection was lost.
    pub fn advance(&mut self, now_us: u64, frames: &mut Vec<Frame>) -> bool {
        if self.fd.is_none() {
            if now_us >= self.try_at_us {
                self.try_to_connect(now_us);
            }
            if self.fd.is_none() {
                return false;
            }
        }
        match self.exchange(frames) {
            Ok(()) => {}
            Err(why) => {
                self.fail(now_us, why);
                return true;
            }
        }
        if self.state == State::Greeting && now_us > self.since_us + HELLO_US {
            self.fail(now_us, "the daemon does not answer".into());
            return true;
        }
        false
    }

    fn try_to_connect(&mut self, now_us: u64) {
        self.connects += 1;
        match connect(&self.path) {
            Ok(fd) => {
                self.fd = Some(fd);
                self.state = State::Greeting;
                self.since_us = now_us;
                let hello = self.hello.encode();
                self.push(&Head::new(Op::Hello), &hello);
                (0..self.lent.len()).for_each(|at| self.offer(at));
            }
            Err(error) => self.fail(now_us, error.to_string()),
        }
    }

    fn offer(&mut self, at: usize) {
        let Lent { fd, stride, slots } = self.lent[at].clone();
        let mut bytes = Vec::new();
        put_frame(&mut bytes, &Head::new(Op::Region), &put_region(stride, slots));
        self.outbox.push(bytes, vec![fd]);
    }

    fn exchange(&mut self, frames: &mut Vec<Frame>) -> Result<(), String> {
        let Some(fd) = &self.fd else { return Ok(()) };
        let text = |error: io::Error| error.to_string();
        self.outbox.flush(fd).map_err(text)?;
        let open = self.intake.fill(fd, 4 << 20).map_err(text)?;
        while let Some(frame) = self.intake.next_frame().map_err(|e| format!("bad frame: {e:?}"))? {
            match (frame.head.op, self.state) {
                (Op::Hello, State::Greeting) => self.greeted(&frame)?,
                (Op::Region, _) => {
                    self.regions += 1;
                    self.settle();
                }
                (Op::Error, State::Greeting) => {
                    let text = String::from_utf8_lossy(&frame.payload).into_owned();
                    self.retry_us = RETRY_REFUSED_US;
                    return Err(text);
                }
                _ => frames.push(frame),
            }
        }
        if open {
            Ok(())
        } else {
            Err("the daemon closed the connection".into())
        }
    }

    fn greeted(&mut self, frame: &Frame) -> Result<(), String> {
        let welcome = Welcome::decode(&frame.payload).ok_or("an odd answer to HELLO")?;
        let fd = self.intake.fds.pop_front().ok_or("HELLO's answer brought no memory")?;
        self.board = Some(Board::attach(fd).map_err(|e| format!("the daemon's memory: {e}"))?);
        if welcome.arena_bytes > 0 {
            let fd = self.intake.fds.pop_front().ok_or("HELLO's answer brought no arena")?;
            let arena = Memory::attach(fd, welcome.arena_bytes as usize);
            self.arena = Some(Arc::new(arena.map_err(|e| format!("the arena: {e}"))?));
        }
        if welcome.table_bytes > 0 {
            let fd = self.intake.fds.pop_front().ok_or("HELLO's answer brought no table")?;
            let table = Reader::attach(fd, welcome.table_bytes as usize);
            self.table = Some(table.map_err(|e| format!("the table: {e}"))?);
        }
        self.welcome = Some(welcome);
        self.settle();
        Ok(())
    }

    fn settle(&mut self) {
        if self.welcome.is_some() && self.regions == self.lent.len() {
            self.state = State::Up;
            self.retry_us = RETRY_MIN_US;
            self.trouble.clear();
        }
    }

    fn fail(&mut self, now_us: u64, why: String) {
        self.trouble = format!("{}: {why}", self.path.display());
        self.try_at_us = now_us + self.retry_us;
        self.retry_us = (self.retry_us * 2).min(RETRY_MAX_US.max(self.retry_us));
        self.fd = None;
        self.intake.clear();
        self.outbox.clear();
        self.state = State::Down;
        (self.board, self.welcome, self.regions) = (None, None, 0);
        (self.arena, self.table) = (None, None);
    }
}
