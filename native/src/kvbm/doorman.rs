//! Connections: let in, served frame by frame, shown out.

use std::io;
use std::os::fd::AsRawFd;

use super::conn::Conn;
use super::hub::{Hub, Lingering, CONN, LINGER_US, LISTENER, PROCESS};
use super::socket::{accept, peer, watch_process};
use super::works::Owner;

impl Hub {
    pub(super) fn welcome(&mut self) {
        for _ in 0..16 {
            let fd = match accept(&self.listener) {
                Ok(fd) => fd,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptors left: look again after the next tick.
                    let fd = self.listener.as_raw_fd();
                    let _ = self.epoll.change(fd, LISTENER, false, false);
                    return;
                }
            };
            self.stats.accepted += 1;
            let Ok(who) = peer(&fd) else { continue };
            let own = unsafe { libc::geteuid() };
            if who.uid != own && !self.options.allow_uids.contains(&who.uid) {
                self.stats.refused_uid += 1;
                continue;
            }
            let live = self.conns.iter().filter(|(_, conn)| conn.is_some()).count();
            if live >= self.options.conns_max || self.stopping_us.is_some() {
                self.stats.refused_full += 1;
                continue;
            }
            self.admit(Conn::new(fd, watch_process(who.pid).ok(), self.now_us));
        }
    }

    fn admit(&mut self, conn: Conn) {
        let free = self.conns.iter().position(|(_, conn)| conn.is_none());
        let at = free.unwrap_or_else(|| {
            self.conns.push((0, None));
            self.conns.len() - 1
        });
        if self.epoll.add(conn.raw(), CONN | at as u64).is_err() {
            return;
        }
        if let Some(process) = &conn.process {
            let _ = self.epoll.add(process.as_raw_fd(), PROCESS | at as u64);
        }
        let (usage, place) = &mut self.conns[at];
        *usage = usage.wrapping_add(1);
        *place = Some(conn);
    }

    /// Serve the frames that are there.
    pub(super) fn serve(&mut self, at: u32) {
        let Some((usage, Some(conn))) = self.conns.get_mut(at as usize) else { return };
        let owner = Owner { at, usage: *usage };
        let mut frames = Vec::new();
        loop {
            match conn.intake.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => {
                    self.stats.bad_frames += 1;
                    conn.broken = Some("it sent a bad frame");
                    break;
                }
            }
        }
        for frame in frames {
            self.serve_frame(owner, &frame);
        }
    }

    pub(super) fn flush(&mut self) {
        for at in 0..self.conns.len() {
            let (usage, conn) = &mut self.conns[at];
            let usage = *usage;
            let Some(conn) = conn else { continue };
            if conn.flush() {
                let (fd, wait) = (conn.raw(), conn.waits_to_write);
                let _ = self.epoll.change(fd, CONN | at as u64, true, wait);
            }
            if conn.broken.is_some() {
                self.part(Owner { at: at as u32, usage });
            }
        }
    }

    /// Close a connection: its jobs are given up, its pins and regions let go.
    fn part(&mut self, owner: Owner) {
        let Some(mut conn) = self.conns[owner.at as usize].1.take() else { return };
        self.epoll.remove(conn.raw());
        if let Some(process) = &conn.process {
            self.epoll.remove(process.as_raw_fd());
        }
        let gates = self.give_up_all(owner);
        let Some(session) = &mut conn.session else { return };
        self.orphan(session, conn.process.take());
        if let Some(disk) = &mut self.disk {
            session.pins.drain().for_each(|(_, (pin, _))| disk.unpin(&pin));
        }
        // A client that still lives takes the closed socket for a promise: nobody is at its slots.
        let busy: Vec<_> = gates.into_iter().filter(|gate| !gate.close()).collect();
        if !busy.is_empty() {
            let (board, until_us) = (session.board.clone(), self.now_us + LINGER_US);
            self.lingering.push(Lingering { board, gates: busy, until_us, _conn: conn });
        }
    }
}
