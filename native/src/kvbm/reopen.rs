//! A disk whose directory was removed or replaced is opened anew, and the sessions go on with it.

use std::sync::mpsc::channel;

use super::changes::{Note, What};
use super::disk::Disk;
use super::hub::{publish, Hub, DISK};
use super::message::tier;

impl Hub {
    /// A directory that was removed or replaced is opened anew, on a thread of its own.
    pub(super) fn reopen_disk(&mut self) {
        if let Some(reopening) = &self.reopening {
            if let Ok(opened) = reopening.try_recv() {
                self.reopening = None;
                if let Ok(disk) = opened {
                    let _ = self.epoll.add(disk.inbox().bell.fd(), DISK);
                    self.adopt(disk);
                }
            }
            return;
        }
        let Some(disk) = &mut self.disk else { return };
        if !disk.health().is_lost || !disk.is_idle() || !disk.is_due_for_reopening() {
            return;
        }
        let Some(options) = self.options.disk.clone() else { return };
        let (tell, told) = channel();
        let open = move || {
            let _ = tell.send(Disk::open(options));
        };
        if std::thread::Builder::new().name("kvbm-open".into()).spawn(open).is_ok() {
            self.reopening = Some(told);
        }
    }

    /// The sessions go on with another disk: it numbers their namespaces anew.
    fn adopt(&mut self, mut disk: Disk) {
        let old = self.disk.take();
        if let Some(old) = &old {
            self.epoll.remove(old.inbox().bell.fd());
        }
        let key = [0; 32];
        let note = Note { what: What::Cleared, tier: tier::DISK, namespace: 0, len: 0, key };
        publish(&mut self.log, self.table.as_mut(), note);
        if let Some(table) = &mut self.table {
            disk.catalog().walk(0, u32::MAX, |known| table.set(&known.key, tier::DISK));
        }
        for (_, conn) in &mut self.conns {
            let Some(session) = conn.as_mut().and_then(|conn| conn.session.as_mut()) else {
                continue;
            };
            session.pins.clear();
            let namespace = super::serve::namespace_of(&session.hello);
            if let Some(number) = disk.namespace(&namespace) {
                session.namespace = number;
            }
        }
        self.disk = Some(disk);
        // Closing waits for its threads; it has nothing to do any more.
        std::thread::spawn(move || drop(old));
    }
}
