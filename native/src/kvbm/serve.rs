//! What the daemon does with each frame.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::board::{Board, BOARD_BYTES};
use super::conn::{Conn, Session, REGIONS_MAX};
use super::disk::Disk;
use super::hub::Hub;
use super::message::{keys, region, status, tier, Hello, Welcome, WITH_SEATS};
use super::namespace::Namespace;
use super::record::Key;
use super::region::Region;
use super::wire::{Frame, Head, Op, VERSION};
use super::works::{Kind, Owner, Work};
use super::Refusal;

const PINS_MAX: usize = 1 << 16;

pub(super) fn namespace_of(hello: &Hello) -> Namespace {
    Namespace { descriptor: hello.descriptor.clone(), probe: hello.probe }
}

impl Hub {
    pub(super) fn serve_frame(&mut self, owner: Owner, frame: &Frame) {
        let head = frame.head;
        let greeted = self.conn(owner).map(|conn| conn.session.is_some());
        let done = match (head.op, greeted) {
            (_, None) => return,
            (Op::Hello, Some(false)) => self.hello(owner, frame),
            (Op::Ping, _) => self.ping(owner, &head),
            (_, Some(false)) => Err("say HELLO first"),
            (Op::Region, _) => self.region(owner, frame),
            (Op::Lookup, _) => self.lookup(owner, frame),
            (Op::Store, _) => self.begin(owner, frame, Kind::Store),
            (Op::Load, _) => self.begin(owner, frame, Kind::Load),
            (Op::Touch, _) => self.touch(owner, frame),
            (Op::Pin, _) => self.pin(owner, frame),
            (Op::Unpin, _) => self.unpin(owner, frame),
            (Op::Drop, _) => self.drop_blocks(owner, frame),
            (Op::Cancel, _) => self.cancel(owner, &head),
            (Op::Reserve, _) => self.reserve(owner, frame),
            (Op::Commit, _) => self.commit(owner, frame),
            (Op::Fetch, _) => self.fetch(owner, frame),
            (Op::Release, _) => self.release(owner, frame),
            (Op::Events, _) => self.follow(owner, &head),
            (Op::Stats, _) => self.tell_stats(owner, &head),
            (Op::Prefetch, _) => self.prefetch(owner, frame),
            (Op::Report, _) => self.reported(frame),
            (Op::Hello | Op::Done | Op::Event | Op::Error, _) => Err("that is not for a client"),
        };
        if let Err(why) = done {
            if let Some(conn) = self.conn(owner) {
                conn.refuse(&head, why);
                // Whoever speaks wrongly before HELLO is not one of ours.
                if conn.session.is_none() {
                    conn.broken = Some(why);
                }
            }
        }
    }

    fn hello(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let hello = Hello::decode(&frame.payload)?;
        if hello.versions.0 > VERSION || hello.versions.1 < VERSION {
            return Err("this daemon speaks version 1 only");
        }
        // Every byte is looked at, whatever the first ones are.
        let wrong =
            self.options.token.iter().zip(&hello.token).fold(0, |sum, (a, b)| sum | (a ^ b));
        if wrong != 0 || self.options.token.len() != hello.token.len() {
            return Err("the token is wrong");
        }
        let namespace = namespace_of(&hello);
        let differing_probes = self.namespaces.differing_probes(&namespace) as u32;
        let print = namespace.fingerprint();
        let many = "there are too many namespaces";
        let hub_number = self.namespaces.number(&print);
        let hub_number =
            hub_number.or_else(|| self.namespaces.add(namespace.clone())).ok_or(many)?;
        let number = match &mut self.disk {
            Some(disk) => disk.namespace(&namespace).ok_or(many)?,
            None => 0,
        };
        self.block_bytes.insert(hub_number, hello.block_bytes);
        self.stats.probe_differs += u64::from(differing_probes > 0);
        let board = Board::create().map_err(|_| "no memory for a session")?;
        board.beat(self.now_us);
        let arena = self.host.as_ref().map(|host| host.arena.memory.clone());
        let table = self.table.as_ref();
        let raw =
            [Some(board.fd()), arena.as_ref().map(|a| a.fd()), table.map(super::table::Table::fd)];
        let copies = raw.into_iter().flatten().map(|fd| {
            let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
            copy.map(Arc::new).map_err(|_| "no descriptor for a session")
        });
        let fds = copies.collect::<Result<Vec<_>, _>>()?;
        let welcome = Welcome {
            boot: self.boot,
            fingerprint: print,
            board_bytes: BOARD_BYTES as u32,
            arena_bytes: arena.map_or(0, |memory| memory.len() as u64),
            table_bytes: table.map_or(0, |table| table.bytes() as u64),
            differing_probes,
        };
        if let Some(conn) = self.conn(owner) {
            conn.session = Some(Session::new(hello, number, hub_number, board));
            conn.send_with(&frame.head.answer(), &welcome.encode(), fds);
        }
        Ok(())
    }

    fn ping(&mut self, owner: Owner, head: &Head) -> Result<(), &'static str> {
        let boot = self.boot;
        if let Some(conn) = self.conn(owner) {
            conn.send(&head.answer(), &boot.to_le_bytes());
        }
        Ok(())
    }

    fn region(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let (stride, slots) = region(&frame.payload)?;
        let Some(conn) = self.conn(owner) else { return Ok(()) };
        let fd = conn.intake.fds.pop_front().ok_or("REGION brought no descriptor")?;
        let Some(session) = &mut conn.session else { return Ok(()) };
        if session.regions.len() >= REGIONS_MAX {
            return Err("there are too many regions");
        }
        if stride < u64::from(session.hello.block_bytes) {
            return Err("a slot is smaller than a block");
        }
        match Region::adopt(fd, stride, slots) {
            Ok(region) => {
                session.regions.push(Arc::new(region));
                let mut answer = frame.head.answer();
                answer.count = session.regions.len() as u32 - 1;
                conn.send(&answer, &[]);
            }
            Err(why) => conn.refuse(&frame.head, &why),
        }
        Ok(())
    }

    fn lookup(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        let Some((namespace, bytes)) = self.terms(owner) else { return Ok(()) };
        let hub_namespace = self.conn(owner).and_then(|conn| conn.session.as_ref());
        let hub_namespace = hub_namespace.map_or(0, |session| session.hub_namespace);
        let disk = self.disk.as_ref().filter(|_| self.trial.is_open(self.now_us));
        let (mut hits, mut below, mut remote) = (0_u64, 0_u64, 0_u64);
        let host = self.host.as_ref().filter(|_| frame.head.flags & WITH_SEATS != 0);
        let place = |key: &Key| {
            if host.is_some_and(|host| host.find(hub_namespace, key, bytes).is_some()) {
                hits += 1;
                return tier::HOST;
            }
            let found = disk.and_then(|disk| disk.find(namespace, key));
            if found.is_some_and(|(_, len)| len == bytes) {
                (hits, below) = (hits + 1, below + 1);
                return tier::DISK;
            }
            if self.is_remote(hub_namespace, key) {
                (hits, remote) = (hits + 1, remote + 1);
                return tier::REMOTE;
            }
            tier::MISS
        };
        let tiers: Vec<u8> = keys.iter().map(place).collect();
        let expected_us = self.expected_us(below * u64::from(bytes), remote * u64::from(bytes));
        self.stats.lookups += 1;
        self.stats.lookup_keys += keys.len() as u64;
        self.stats.hits += hits;
        self.reported.count(&tiers);
        let mut answer = frame.head.answer();
        (answer.count, answer.extra) = (tiers.len() as u32, expected_us);
        if let Some(conn) = self.conn(owner) {
            conn.send(&answer, &tiers);
        }
        Ok(())
    }

    /// Microseconds until so many bytes of each tier would be loaded.
    pub(super) fn expected_us(&self, disk: u64, remote: u64) -> u64 {
        let from_disk = self.disk.as_ref().filter(|_| disk > 0);
        let from_remote = self.remote.as_ref().filter(|_| remote > 0);
        from_disk.map_or(0, |tier| tier.expected_load_us(disk))
            + from_remote.map_or(0, |tier| tier.expected_us(remote))
    }

    /// Namespace, bytes of a block.
    pub(super) fn terms(&mut self, owner: Owner) -> Option<(u16, u32)> {
        let session = self.conn(owner)?.session.as_ref()?;
        Some((session.namespace, session.hello.block_bytes))
    }

    fn touch(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        let Some((namespace, _)) = self.terms(owner) else { return Ok(()) };
        if let Some(disk) = &mut self.disk {
            keys.iter().for_each(|key| {
                disk.touch(namespace, key);
            });
        }
        Ok(())
    }

    /// Hold on to blocks for `extra` milliseconds; a block that is pinned again is held for longer.
    fn pin(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        let until_us = self.now_us.saturating_add(frame.head.extra.saturating_mul(1000));
        let answers = self.with_session(owner, |session, disk| {
            let mut each = |key: &Key| {
                if let Some((_, until)) = session.pins.get_mut(key) {
                    *until = until_us.max(*until);
                    return 1;
                }
                if session.pins.len() >= PINS_MAX {
                    return 0;
                }
                let Some(pin) = disk.pin(session.namespace, key) else { return 0 };
                session.pins.insert(*key, (pin, until_us));
                1
            };
            keys.iter().map(&mut each).collect::<Vec<u8>>()
        });
        self.answer(owner, &frame.head, &answers.unwrap_or(vec![0; keys.len()]));
        Ok(())
    }

    fn unpin(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        self.with_session(owner, |session, disk| {
            for key in &keys {
                if let Some((pin, _)) = session.pins.remove(key) {
                    disk.unpin(&pin);
                }
            }
        });
        self.answer(owner, &frame.head, &[]);
        Ok(())
    }

    fn drop_blocks(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        let Some((namespace, _)) = self.terms(owner) else { return Ok(()) };
        let session = self.conn(owner).and_then(|conn| conn.session.as_ref());
        let hub_namespace = session.map_or(0, |session| session.hub_namespace);
        let id = self.works.add(Work::new(Kind::Drop, owner, frame.head, keys.len()));
        for (item, key) in keys.iter().enumerate() {
            let above = self.host.as_mut().is_some_and(|host| host.remove(hub_namespace, key))
                | self.drop_remote(hub_namespace, key);
            let token = id.token(item);
            let below = self.disk.as_mut().is_some_and(|d| d.drop_block(namespace, key, token));
            if let (false, Some(work)) = (below, self.works.get_mut(id)) {
                work.set(item, if above { status::OK } else { Refusal::Absent as u8 });
            }
        }
        self.finish_if_done(id);
        Ok(())
    }

    fn follow(&mut self, owner: Owner, head: &Head) -> Result<(), &'static str> {
        let (next, oldest) = (self.log.next(), self.log.oldest());
        let Some(conn) = self.conn(owner) else { return Ok(()) };
        let mut answer = head.answer();
        answer.extra = next;
        conn.send(&answer, &oldest.to_le_bytes());
        if let Some(session) = &mut conn.session {
            // 0: from now on.
            session.follows = Some(if head.extra == 0 { next } else { head.extra.min(next) });
        }
        Ok(())
    }

    fn tell_stats(&mut self, owner: Owner, head: &Head) -> Result<(), &'static str> {
        let text: String =
            self.figures().iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        self.answer(owner, head, text.as_bytes());
        Ok(())
    }

    fn answer(&mut self, owner: Owner, head: &Head, payload: &[u8]) {
        self.answer_with(owner, head, payload.len() as u32, payload);
    }

    fn with_session<T>(
        &mut self,
        owner: Owner,
        f: impl FnOnce(&mut Session, &mut Disk) -> T,
    ) -> Option<T> {
        let mut disk = self.disk.take()?;
        let session = self.conn(owner).and_then(|conn: &mut Conn| conn.session.as_mut());
        let done = session.map(|session| f(session, &mut disk));
        self.disk = Some(disk);
        done
    }
}

/// The code of a block that was refused or failed.
pub(super) fn code(failure: super::mover::Failure) -> u8 {
    use super::mover::Failure;
    match failure {
        Failure::Io(_) => status::IO,
        Failure::Damaged(_) => status::DAMAGED,
        Failure::Cancelled => status::CANCELLED,
        Failure::Region => status::REGION,
    }
}
