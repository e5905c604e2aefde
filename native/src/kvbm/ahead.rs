//! Blocks that will be asked for soon are brought nearer: from the store to the disk, from the disk to
//! the arena. What somebody waits for goes first, and a quarter of the transfers at most are ahead.

use std::collections::VecDeque;

use super::bundle::BLOCKS_MAX;
use super::host::Named;
use super::hub::Hub;
use super::message::keys;
use super::record::Key;
use super::wire::Frame;
use super::works::Owner;

/// Blocks that may wait; what is more is not brought.
const QUEUE_MAX: usize = 1 << 14;
/// Bytes of small blocks that count as one transfer.
const SPAN: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Ahead {
    queue: VecDeque<Named>,
    pub brought: u64,
    pub dropped: u64,
}

impl Hub {
    /// An engine's hint; not answered.
    pub(super) fn prefetch(&mut self, owner: Owner, frame: &Frame) -> Result<(), &'static str> {
        let keys = keys(frame.head.count, &frame.payload)?;
        let session = self.conn(owner).and_then(|conn| conn.session.as_ref());
        let Some(session) = session else { return Ok(()) };
        let (namespace, len) = (session.hub_namespace, session.hello.block_bytes);
        self.hint(namespace, len, &keys);
        Ok(())
    }

    /// Blocks of a chain, in order; how many of them are to be brought.
    pub(super) fn hint(&mut self, namespace: u16, len: u32, keys: &[Key]) -> usize {
        let mut taken = 0;
        for key in keys {
            let named = Named { namespace, key: *key, len };
            if self.is_far(&named) {
                if self.ahead.queue.len() >= QUEUE_MAX {
                    self.ahead.dropped += 1;
                    continue;
                }
                self.ahead.queue.push_back(named);
                taken += 1;
            } else {
                self.sample(&named);
            }
        }
        taken
    }

    /// A block that lies on the disk and has nowhere nearer to go: read for nobody, if it has not been
    /// known for a while how long the disk takes.
    fn sample(&mut self, named: &Named) {
        let Some(print) = self.namespaces.fingerprint(named.namespace) else { return };
        let Some(disk) = self.disk.as_mut().filter(|_| self.host.is_none()) else { return };
        if let Some(namespace) = disk.namespaces().number(print) {
            disk.sample(namespace, &named.key);
        }
    }

    /// Whether there is a nearer tier for a block.
    fn is_far(&self, named: &Named) -> bool {
        let Named { namespace, key, len } = named;
        let host = self.host.as_ref();
        if host.is_some_and(|host| host.find(*namespace, key, *len).is_some()) {
            return false;
        }
        if self.on_disk(*namespace, key).is_some_and(|there| there == *len) {
            return host.is_some();
        }
        self.is_remote(*namespace, key)
    }

    /// Bytes of a block's payload, if it is on disk.
    pub(super) fn on_disk(&self, hub_namespace: u16, key: &Key) -> Option<u32> {
        let print = self.namespaces.fingerprint(hub_namespace)?;
        let disk = self.disk.as_ref()?;
        let number = disk.namespaces().number(print)?;
        disk.find(number, key).map(|(_, len)| len)
    }

    pub(super) fn pump_ahead(&mut self) {
        while let Some(named) = self.ahead.queue.front().copied() {
            if !self.is_far(&named) {
                self.ahead.queue.pop_front();
                continue;
            }
            let on_disk = self.on_disk(named.namespace, &named.key).is_some();
            let begun = if on_disk || self.disk.is_none() {
                if self.fills() >= self.ahead_most() || self.is_loading() {
                    return;
                }
                self.begin_fill(named, Vec::new()).is_ok()
            } else {
                // One request brings small blocks by the dozen.
                let each = (SPAN / named.len.max(1) as usize).clamp(1, BLOCKS_MAX);
                let most = self.ahead_most() * each;
                if self.remote.as_ref().is_some_and(|r| r.ahead() >= most) {
                    return;
                }
                self.want_remote(named.namespace, (named.key, named.len), None).is_ok()
            };
            self.ahead.queue.pop_front();
            self.ahead.brought += u64::from(begun);
            self.ahead.dropped += u64::from(!begun);
        }
    }

    fn is_loading(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.queued_loads() > 0)
    }

    fn ahead_most(&self) -> usize {
        let depth = self.options.disk.as_ref().map_or(16, |disk| disk.depth);
        (depth / 4).max(1)
    }
}
