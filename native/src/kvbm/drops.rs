//! Blocks forgotten on demand: in the arena and on the disk by the core, in the object store by whoever asked,
//! who is told what there is to delete.

use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, TrySendError};

use super::commands::Waiting;
use super::hub::Hub;
use super::record::{Fingerprint, Key};
use super::remote::Errand;

/// What a drop came to, in blocks by tier.
#[derive(Clone, Default)]
pub struct Dropped {
    pub host: u64,
    pub disk: u64,
    pub remote: u64,
    /// Requests to the store that delete the remote ones.
    pub errands: Vec<Errand>,
}

/// Drops that wait for the disk.
#[derive(Default)]
pub(super) struct Drops {
    /// Blocks that still wait, what is known so far.
    waiting: HashMap<u64, (usize, Dropped, SyncSender<Dropped>)>,
}

impl Drops {
    /// One block of the disk is gone, or could not be; what the drop came to, if that was the last one.
    fn ended(&mut self, group: u64, good: bool) -> Option<(Dropped, SyncSender<Dropped>)> {
        let (left, dropped, _) = self.waiting.get_mut(&group)?;
        *left -= 1;
        dropped.disk += u64::from(good);
        if *left > 0 {
            return None;
        }
        self.waiting.remove(&group).map(|(_, dropped, reply)| (dropped, reply))
    }
}

impl Hub {
    /// With `is_local` what lies in the store stays there, and known.
    pub(super) fn drop_asked(
        &mut self,
        namespace: &Fingerprint,
        keys: &[Key],
        is_local: bool,
        reply: SyncSender<Dropped>,
    ) {
        let group = self.asked.draw();
        let (mut dropped, mut left) = (Dropped::default(), 0);
        let hub_number = self.namespaces.number(namespace);
        let disk_number = self.disk.as_ref().and_then(|disk| disk.namespaces().number(namespace));
        for key in keys {
            let host = match (&mut self.host, hub_number) {
                (Some(host), Some(number)) => host.remove(number, key),
                _ => false,
            };
            let remote = match hub_number.filter(|_| !is_local) {
                Some(number) => self.erase_remote(number, key, &mut dropped.errands),
                None => false,
            };
            dropped.host += u64::from(host);
            dropped.remote += u64::from(remote);
            let token = self.asked.draw();
            if let (Some(disk), Some(number)) = (&mut self.disk, disk_number) {
                if disk.drop_block(number, key, token) {
                    self.asked.waiting.insert(token, Waiting::Drop(group));
                    left += 1;
                }
            }
        }
        if left == 0 {
            self.answer_drop(dropped, &reply);
        } else {
            self.asked.drops.waiting.insert(group, (left, dropped, reply));
        }
    }

    pub(super) fn drop_ended(&mut self, group: u64, good: bool) {
        if let Some((dropped, reply)) = self.asked.drops.ended(group, good) {
            self.answer_drop(dropped, &reply);
        }
    }

    /// Nobody deletes what nobody is told to delete: it is known again.
    fn answer_drop(&mut self, dropped: Dropped, reply: &SyncSender<Dropped>) {
        if let Err(TrySendError::Disconnected(dropped) | TrySendError::Full(dropped)) =
            reply.try_send(dropped)
        {
            dropped.errands.iter().for_each(|errand| self.remote_kept(errand));
        }
    }
}
