//! The daemon's heart: one thread that serves every client and owns every tier's state.
//!
//! It never waits for a disk, a client or Python; it waits in `epoll` alone, at most for a tick.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::Duration;

use super::ahead::Ahead;
use super::board::{clock_us, Board};
use super::changes::{ChangeLog, Note, What};
use super::commands::{Asked, Command};
use super::conn::Conn;
use super::disk::{Change, Disk, Outcome};
use super::durations::Durations;
use super::epoll::{Epoll, Ready};
use super::host::Host;
use super::host_jobs::Traffic;
pub use super::hub_options::{HubOptions, HubStats};
use super::inbox::Inbox;
use super::message::tier;
use super::namespace::Namespaces;
use super::remote::{Desk, Remote, Upload};
use super::report::Found;
use super::socket::listen;
use super::superblock::random;
use super::table::Table;
use super::wire::{Head, Op};
use super::works::{Owner, Works};

pub(super) const LISTENER: u64 = 1 << 40;
const COMMANDS: u64 = 2 << 40;
pub(super) const DISK: u64 = 3 << 40;
pub(super) const CONN: u64 = 4 << 40;
pub(super) const PROCESS: u64 = 5 << 40;
const KIND: u64 = 0xff << 40;

/// The longest sleep: heartbeats, deadlines and what the disk does from time to time.
const TICK: Duration = Duration::from_millis(50);
/// A client that has not said HELLO by then is sent away.
const HELLO_US: u64 = 5_000_000;
/// A client's memory is left alone for certain after this.
pub(super) const LINGER_US: u64 = 2_000_000;

/// A session that has ended while somebody may still be at its slots.
pub(super) struct Lingering {
    pub board: Board,
    pub gates: Vec<super::gate::Gate>,
    pub until_us: u64,
    pub _conn: Conn,
}

pub struct Hub {
    pub(super) options: HubOptions,
    pub(super) boot: u64,
    pub(super) epoll: Epoll,
    pub(super) listener: OwnedFd,
    pub(super) disk: Option<Disk>,
    pub(super) host: Option<Host>,
    pub(super) remote: Option<Remote>,
    pub(super) ahead: Ahead,
    /// What engines found, by tier.
    pub(super) reported: Found,
    pub(super) durations: Durations,
    pub(super) traffic: Traffic,
    pub(super) table: Option<Table>,
    /// The numbers that changes and lists use.
    pub(super) namespaces: Namespaces,
    /// Of the blocks of each, as engines said.
    pub(super) block_bytes: HashMap<u16, u32>,
    pub(super) reopening: Option<Receiver<io::Result<Disk>>>,
    /// Uses of each place and who is there.
    pub(super) conns: Vec<(u32, Option<Conn>)>,
    pub(super) works: Works,
    pub(super) log: ChangeLog,
    pub(super) asked: Asked,
    pub(super) commands: Arc<Inbox<Command>>,
    pub(super) stats: HubStats,
    pub(super) lingering: Vec<Lingering>,
    pub(super) now_us: u64,
    beat_us: u64,
    swept_us: u64,
    pub(super) stopping_us: Option<u64>,
    pub(super) trial: super::trial::Trial,
    changes: Vec<Change>,
}

impl Hub {
    /// Open the disk and the socket; errors are for people.
    pub fn open(
        options: HubOptions,
        commands: Arc<Inbox<Command>>,
        desk: Arc<Desk>,
    ) -> io::Result<Self> {
        let disk = options.disk.clone().map(Disk::open).transpose()?;
        let host = match options.host_bytes {
            0 => None,
            bytes => Some(Host::new(bytes)?),
        };
        let remote = options.remote.map(|remote| Remote::new(remote, desk)).transpose()?;
        let mut namespaces = Namespaces::default();
        for (_, _, namespace) in disk.iter().flat_map(|disk| disk.namespaces().iter()) {
            namespaces.add(namespace.clone());
        }
        let mut table = Table::create(options.table_blocks())?;
        if let Some(disk) = &disk {
            disk.catalog().walk(0, u32::MAX, |known| table.set(&known.key, tier::DISK));
        }
        let listener = listen(&options.socket, options.socket_mode).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", options.socket.display()))
        })?;
        let epoll = Epoll::new()?;
        epoll.add(listener.as_raw_fd(), LISTENER)?;
        epoll.add(commands.bell.fd(), COMMANDS)?;
        if let Some(disk) = &disk {
            epoll.add(disk.inbox().bell.fd(), DISK)?;
        }
        Ok(Self {
            options,
            boot: random(),
            epoll,
            listener,
            disk,
            host,
            remote,
            ahead: Ahead::default(),
            reported: Found::default(),
            durations: Durations::default(),
            traffic: Traffic::default(),
            table: Some(table),
            namespaces,
            block_bytes: HashMap::new(),
            reopening: None,
            conns: Vec::new(),
            works: Works::default(),
            log: ChangeLog::new(),
            asked: Asked::default(),
            commands,
            stats: HubStats::default(),
            lingering: Vec::new(),
            now_us: clock_us(),
            beat_us: 0,
            swept_us: 0,
            stopping_us: None,
            trial: super::trial::Trial::default(),
            changes: Vec::new(),
        })
    }

    pub fn run(mut self) {
        let (mut ready, mut outcomes) = (Vec::new(), Vec::new());
        loop {
            ready.clear();
            self.epoll.wait(self.patience(), &mut ready);
            self.now_us = clock_us();
            for event in ready.drain(..) {
                self.meet(event);
            }
            self.poll_disk(&mut outcomes);
            if self.now_us >= self.swept_us + TICK.as_micros() as u64 / 2 {
                self.sweep();
            }
            self.tend_arena();
            self.pump_ahead();
            self.expire();
            if let Some(remote) = &mut self.remote {
                remote.hand_over();
            }
            self.tell_changes();
            self.flush();
            self.beat();
            if self.stopping_us.is_some() && self.is_over() {
                break;
            }
        }
        if let Some(remote) = &self.remote {
            remote.desk.close();
        }
        let mut rest = Vec::new();
        if let Some(mut disk) = self.disk.take() {
            disk.close(Duration::from_secs(5), &mut rest);
        }
        let _ = std::fs::remove_file(&self.options.socket);
    }

    fn patience(&self) -> Duration {
        // Somebody is at a slot that was given up: he is gone in a moment.
        let hurry = self.works.any_ending() || !self.lingering.is_empty();
        if hurry {
            Duration::from_millis(1)
        } else {
            TICK
        }
    }

    fn meet(&mut self, event: Ready) {
        let at = (event.name & !KIND) as u32;
        match event.name & KIND {
            LISTENER => self.welcome(),
            COMMANDS => self.take_commands(),
            DISK => {
                if let Some(disk) = &self.disk {
                    disk.inbox().bell.clear();
                }
            }
            PROCESS => self.break_off(at, "its process has ended"),
            _ => {
                if let Some(conn) = self.conn_at(at) {
                    if event.read {
                        conn.read();
                    }
                    self.serve(at);
                }
            }
        }
    }

    fn conn_at(&mut self, at: u32) -> Option<&mut Conn> {
        self.conns.get_mut(at as usize)?.1.as_mut()
    }

    pub(super) fn conn(&mut self, owner: Owner) -> Option<&mut Conn> {
        let (usage, conn) = self.conns.get_mut(owner.at as usize)?;
        conn.as_mut().filter(|_| *usage == owner.usage)
    }

    fn break_off(&mut self, at: u32, why: &'static str) {
        if let Some(conn) = self.conn_at(at) {
            conn.broken = Some(why);
        }
    }

    fn poll_disk(&mut self, outcomes: &mut Vec<Outcome>) {
        let Some(disk) = &mut self.disk else { return };
        disk.poll(self.now_us, outcomes);
        disk.take_changes(&mut self.changes);
        for outcome in outcomes.drain(..) {
            self.outcome(outcome);
        }
        let mut changes = std::mem::take(&mut self.changes);
        for change in changes.drain(..) {
            let (what, namespace, key, len) = match change {
                Change::Stored { namespace, key, len } => (What::Stored, namespace, key, len),
                Change::Removed { namespace, key } => (What::Removed, namespace, key, 0),
                Change::Cleared => (What::Cleared, 0, [0; 32], 0),
                Change::Used { namespace, key } => {
                    let namespace = hub_number(&self.namespaces, self.disk.as_ref(), namespace);
                    if let Some(len) = self.on_disk(namespace, &key) {
                        self.offer_remote(Upload::Reuse, namespace, (key, len));
                    }
                    continue;
                }
            };
            let namespace = hub_number(&self.namespaces, self.disk.as_ref(), namespace);
            if what == What::Stored {
                self.offer_remote(Upload::All, namespace, (key, len));
            }
            let note = Note { what, tier: tier::DISK, namespace, len, key };
            publish(&mut self.log, self.table.as_mut(), note);
        }
        self.changes = changes;
        if let (Some(disk), Some(table)) = (&self.disk, &self.table) {
            let (ns_per_mib, queued) = disk.load_cost();
            table.tell_cost(ns_per_mib, queued, !self.trial.is_open(self.now_us));
        }
    }

    /// What is done from time to time.
    fn sweep(&mut self) {
        self.swept_us = self.now_us;
        let _ = self.epoll.change(self.listener.as_raw_fd(), LISTENER, true, false);
        let now_us = self.now_us;
        for (_, conn) in &mut self.conns {
            let Some(conn) = conn else { continue };
            if conn.session.is_none() && now_us > conn.opened_us + HELLO_US {
                conn.broken = Some("it did not say HELLO");
            }
            let (Some(session), Some(disk)) = (&mut conn.session, &mut self.disk) else { continue };
            session.pins.retain(|_, (pin, until_us)| {
                let over = now_us > *until_us;
                if over {
                    disk.unpin(pin);
                }
                !over
            });
        }
        self.lingering.retain(|rest| {
            let empty = rest.gates.iter().all(super::gate::Gate::close);
            !empty && now_us < rest.until_us
        });
        self.reopen_disk();
        self.sweep_remote();
    }

    pub(super) fn tell_changes(&mut self) {
        let next = self.log.next();
        for (_, conn) in &mut self.conns {
            let Some(conn) = conn else { continue };
            let Some(from) = conn.session.as_ref().and_then(|s| s.follows) else { continue };
            // Who does not read is told later.
            if from >= next || conn.outbox.waiting() > 1 << 20 {
                continue;
            }
            let (complete, notes) = self.log.since(from, 8192);
            let first = from.max(self.log.oldest());
            let mut payload = Vec::with_capacity(notes.len() * super::changes::CHANGE);
            notes.iter().for_each(|note| note.encode(&mut payload));
            let mut head = Head::new(Op::Event);
            (head.count, head.extra) = (notes.len() as u32, first);
            head.flags = u8::from(!complete);
            conn.send(&head, &payload);
            if let Some(session) = &mut conn.session {
                session.follows = Some(first + notes.len() as u64);
            }
        }
    }

    fn beat(&mut self) {
        if self.now_us < self.beat_us + 10_000 {
            return;
        }
        self.stats.beats_late += u64::from(self.now_us > self.beat_us + 200_000);
        self.beat_us = self.now_us;
        for (_, conn) in &self.conns {
            if let Some(session) = conn.as_ref().and_then(|conn| conn.session.as_ref()) {
                session.board.beat(self.now_us);
            }
        }
        self.lingering.iter().for_each(|rest| rest.board.beat(self.now_us));
    }

    pub(super) fn sessions(&self) -> usize {
        self.conns.iter().flat_map(|(_, conn)| conn).filter(|c| c.session.is_some()).count()
    }

    fn is_over(&self) -> bool {
        let patience = self.stopping_us.is_some_and(|since| self.now_us > since + 2_000_000);
        self.works.is_empty() || patience
    }
}

/// The hub's number of a namespace of the disk.
pub(super) fn hub_number(known: &Namespaces, disk: Option<&Disk>, number: u16) -> u16 {
    let print = disk.and_then(|disk| disk.namespaces().fingerprint(number));
    print.and_then(|print| known.number(print)).unwrap_or(u16::MAX)
}

/// Tell everybody what changed.
pub(super) fn publish(log: &mut ChangeLog, table: Option<&mut Table>, note: Note) {
    if let Some(table) = table {
        match note.what {
            What::Stored => table.set(&note.key, note.tier),
            What::Removed => table.unset(&note.key, note.tier),
            What::Cleared => table.unset_all(note.tier),
        }
    }
    log.push(note);
}
