//! A disk in trouble: stores stop, loads go on as far as they can, and now and then it is tried again.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::disk::Disk;
use super::keeper::Order;
use super::mover::Failure;
use super::segments::State;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub what: String,
    pub since_us: u64,
}

#[derive(Debug, Default)]
pub struct Health {
    trouble: Option<Trouble>,
    /// The directory is not the one that was opened: nothing but opening again helps.
    pub is_lost: bool,
    /// The file system refused O_DIRECT after it had accepted it.
    pub direct_refused: bool,
    pub(super) read_errors: u32,
    pub(super) last_read_us: u64,
    pub(super) last_write_us: u64,
    /// The disk is full by others' files; no new segment until then.
    pub(super) full_until_us: u64,
    pub(super) is_draining: bool,
    /// Segments whose files vanished: number and id.
    pub(super) lost: VecDeque<(u16, u64)>,
    probed_at_us: u64,
    is_probing: bool,
}

impl Health {
    pub fn is_good(&self) -> bool {
        self.trouble.is_none()
    }

    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }
}

impl Disk {
    /// Something went wrong that will go wrong again.
    pub(super) fn trouble(&mut self, error: &io::Error) {
        self.stats.io_errors += 1;
        if self.health.trouble.is_some() {
            return;
        }
        let what = format!("{}: {error}", self.folder.path().display());
        self.health.trouble = Some(Trouble { what, since_us: self.now_us });
        self.health.probed_at_us = self.now_us;
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        for store in std::mem::take(&mut self.stores) {
            self.store_failed(store.namespace, &store.key, Failure::Io(errno));
        }
        self.queued_store_bytes = 0;
    }

    pub(super) fn tick(&mut self) {
        self.space.reserve = self.meta_reserve();
        let now_us = self.now_us;
        let due = |at: u64, every: u64| now_us >= at + every;
        let many = self.unsynced_bytes >= self.options.sync_bytes;
        let old = self.unsynced_bytes > 0 && due(self.synced_at_us, self.options.sync_us);
        if (many || old) && !self.is_syncing {
            self.sync();
        }
        if due(self.looked_at_us, self.options.look_us) {
            self.look_now();
        }
        if !self.health.is_good()
            && !self.health.is_lost
            && !self.health.is_probing
            && due(self.health.probed_at_us, self.options.look_us)
        {
            self.health.is_probing = true;
            self.keeper.order(Order::Probe);
        }
    }

    fn sync(&mut self) {
        self.is_syncing = true;
        self.synced_at_us = self.now_us;
        self.unsynced_bytes = 0;
        let from = self.synced_from;
        let young = self.segments.youngest().filter_map(|at| self.segments.get(at));
        let young = young.take_while(|segment| segment.id >= from);
        let data: Vec<_> = young.map(|segment| Arc::clone(&segment.file)).collect();
        // From here on only these are written to.
        let all = self.segments.order().filter_map(|at| self.segments.get(at));
        let mut busy = all.filter(|segment| segment.writers > 0 || segment.state == State::Open);
        self.synced_from = busy.next().map_or(self.segments.next_id, |segment| segment.id);
        let journal = Arc::clone(&self.journal.file);
        self.keeper.order(Order::Sync { data, journal });
    }

    pub(super) fn synced(&mut self, done: io::Result<()>) {
        self.is_syncing = false;
        match done {
            Ok(()) => self.stats.synced += 1,
            Err(error) => {
                self.stats.sync_failed += 1;
                self.trouble(&error);
            }
        }
    }

    pub(super) fn look_now(&mut self) {
        self.looked_at_us = self.now_us;
        if !self.is_looking {
            self.is_looking = true;
            let files = self.segments.files().map(|(id, file)| (id, Arc::clone(file))).collect();
            self.keeper.order(Order::Look { files });
        }
    }

    pub(super) fn looked(&mut self, other_bytes: u64, in_place: bool, gone: &[u64]) {
        self.is_looking = false;
        self.space.other = other_bytes;
        if !in_place {
            self.health.is_lost = true;
            let error =
                io::Error::new(io::ErrorKind::NotFound, "the directory is not there any more");
            self.trouble(&error);
        }
        self.segments.ready.retain(|segment| {
            let lost = gone.contains(&segment.id);
            self.space.segments -= if lost { segment.disk_bytes } else { 0 };
            !lost
        });
        let numbers: Vec<u16> = self.segments.order().collect();
        for at in numbers {
            if self.segments.get(at).is_some_and(|segment| gone.contains(&segment.id)) {
                self.lose(at);
            }
        }
    }

    /// A directory that is lost is tried again as often as a disk in trouble.
    pub fn is_due_for_reopening(&mut self) -> bool {
        let due = self.now_us >= self.health.probed_at_us + self.options.look_us;
        if due {
            self.health.probed_at_us = self.now_us;
        }
        due
    }

    pub(super) fn probed(&mut self, done: io::Result<()>) {
        self.health.is_probing = false;
        self.health.probed_at_us = self.now_us;
        if done.is_ok() && !self.health.is_lost {
            self.health.trouble = None;
            self.health.read_errors = 0;
            self.health.full_until_us = 0;
        }
    }
}
