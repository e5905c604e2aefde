//! The remote tier's part of the daemon: blocks that lie there are brought to whoever asked, and kept
//! on the disk on the way.

use std::sync::mpsc::SyncSender;

use xxhash_rust::xxh3::xxh3_64;

use super::changes::{Note, What};
use super::commands::{Command, ASKED};
use super::disk::Outcome;
use super::hub::{publish, Hub};
use super::message::tier;
use super::mover::{deliver_payload, Failure, Source, Target};
use super::record::{self, Damage, Fingerprint, Header, Key, Spot, PAGE};
use super::remote::{Fetched, Miss, Upload, Waiter, Want};
use super::stores::{epoch_ms, Store};
use super::view::View;
use super::Refusal;

impl Hub {
    /// Whether a block of so many bytes is offered by the remote tier.
    pub(super) fn is_remote(&self, hub_namespace: u16, key: &Key) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.offers(hub_namespace, key))
    }

    /// Fetch a block to a place; its outcome carries the token.
    pub(super) fn load_remote(
        &mut self,
        token: u64,
        hub_namespace: u16,
        (key, len): (Key, u32),
        target: Target,
    ) -> Result<(), Refusal> {
        self.want_remote(hub_namespace, (key, len), Some(Waiter { token, target }))
    }

    pub(super) fn want_remote(
        &mut self,
        hub_namespace: u16,
        block: (Key, u32),
        waiter: Option<Waiter>,
    ) -> Result<(), Refusal> {
        let print = self.namespaces.fingerprint(hub_namespace).copied();
        let (Some(remote), Some(print)) = (&mut self.remote, print) else {
            return Err(Refusal::Absent);
        };
        if remote.want((hub_namespace, print), block, waiter, self.now_us) {
            Ok(())
        } else {
            Err(Refusal::Busy)
        }
    }

    /// Whoever talks to the store says what came of one request, and whether that is all.
    pub(super) fn remote_ended(&mut self, blocks: Vec<(u64, Result<Fetched, Miss>)>, is_all: bool) {
        let (mut began_us, mut bytes) = (u64::MAX, 0);
        let mut carried = Vec::new();
        for (ticket, result) in blocks {
            if let Some((began, len)) = self.block_ended(ticket, result, &mut carried) {
                (began_us, bytes) = (began_us.min(began), bytes + u64::from(len));
            }
        }
        let (now_us, commands) = (self.now_us, self.commands.clone());
        let Some(remote) = &mut self.remote else { return };
        remote.stats.fetches += u64::from(is_all);
        if !carried.is_empty() {
            let job = move || {
                for (payload, Waiter { token, target }) in carried {
                    let result = deliver_payload(payload.pieces(), &target);
                    commands.push(Command::Carried { token, result });
                }
            };
            remote.crew.run(true, Box::new(job));
        }
        if bytes > 0 {
            remote.time(began_us, bytes, now_us);
        }
    }

    /// When a block that came was asked for, and its length; `carried` is where it goes.
    fn block_ended(
        &mut self,
        ticket: u64,
        result: Result<Fetched, Miss>,
        carried: &mut Vec<(View, Waiter)>,
    ) -> Option<(u64, u32)> {
        let remote = self.remote.as_mut()?;
        let want = remote.take(ticket)?;
        let told = (want.began_us, want.len);
        let print = self.namespaces.fingerprint(want.namespace).copied().unwrap_or_default();
        let result = result.and_then(|fetched| is_wanted(fetched, &want, &print));
        match result {
            Ok(fetched) => {
                remote.stats.fetched += 1;
                remote.stats.fetched_bytes += u64::from(want.len);
                for waiter in want.waiters {
                    if fetched.landed == Some(waiter.token) {
                        self.outcome(Outcome { token: waiter.token, result: Ok(None) });
                    } else {
                        carried.push((fetched.payload.clone(), waiter));
                    }
                }
                self.keep_on_disk(&print, fetched);
                Some(told)
            }
            Err(miss) => {
                self.remote_missed(want, print, miss);
                None
            }
        }
    }

    fn remote_missed(&mut self, want: Want, print: Fingerprint, miss: Miss) {
        let Some(remote) = &mut self.remote else { return };
        // It may have been dropped since, and its place be another's.
        let is_there = remote.places.holds(want.namespace, &want.key, want.place);
        let failure = match miss {
            Miss::Absent => {
                remote.stats.absent += 1;
                // A bundle is gone with all that was in it.
                let gone = if is_there { remote.places.vanish_whole(want.place) } else { vec![] };
                self.note_gone(want.namespace, &gone);
                Failure::Cancelled
            }
            Miss::Length => {
                remote.stats.absent += 1;
                Failure::Cancelled
            }
            Miss::Failed => {
                remote.stats.failed += 1;
                Failure::Io(libc::EIO)
            }
            Miss::Damaged(damage) => {
                remote.stats.corrupt += 1;
                // It would be damaged for everybody: it goes, and whoever has it sends it anew.
                if is_there {
                    remote.erase_at(print, want.key, want.place);
                }
                Failure::Damaged(damage)
            }
        };
        // What another place has is read from there the next time.
        if miss != Miss::Failed {
            self.lose_remote(want.namespace, &want.key, want.place);
        }
        for waiter in want.waiters {
            self.outcome(Outcome { token: waiter.token, result: Err(failure) });
        }
    }

    /// A block that was fetched is near from now on, as far as admission allows.
    fn keep_on_disk(&mut self, print: &Fingerprint, fetched: Fetched) {
        let Some(disk) = &mut self.disk else { return };
        let Some(namespace) = disk.namespaces().number(print) else { return };
        let Fetched { header, note, payload, .. } = fetched;
        let (key, len, source) = (header.key, header.len, Source::Bytes(payload));
        // Nobody waits for it: no outcome of that token is taken.
        let _ = disk.store(Store { namespace, key, len, note, source }, ASKED);
    }

    pub(super) fn note_remote(&mut self, what: What, namespace: u16, key: &Key) {
        let note = Note { what, tier: tier::REMOTE, namespace, len: 0, key: *key };
        publish(&mut self.log, self.table.as_mut(), note);
    }

    /// A block has come to this machine, or was used here: send it, if that is wanted.
    pub(super) fn offer_remote(&mut self, when: Upload, namespace: u16, block: (Key, u32)) {
        let print = self.namespaces.fingerprint(namespace).copied();
        let Some(remote) = self.remote.as_mut().filter(|r| r.options.upload == when) else {
            return;
        };
        if let Some(print) = print {
            remote.offer((namespace, print), block, self.now_us);
        }
    }

    pub(super) fn sweep_remote(&mut self) {
        let Some(remote) = &mut self.remote else { return };
        for (namespace, keys) in remote.due(self.now_us) {
            if let Some(print) = self.namespaces.fingerprint(namespace) {
                remote.send(*print, keys);
            }
        }
        for ticket in remote.overdue(self.now_us) {
            self.remote_ended(vec![(ticket, Err(Miss::Failed))], true);
        }
        if let (Some(remote), Some(table)) = (&self.remote, &self.table) {
            let (latency_us, us_per_mib, queued) = remote.cost();
            let ns_per_mib = (us_per_mib * 1000.0) as u64;
            table.tell_remote_cost(latency_us, ns_per_mib, queued, remote.is_paused);
        }
    }
}

fn is_wanted(fetched: Fetched, want: &Want, print: &Fingerprint) -> Result<Fetched, Miss> {
    let header = &fetched.header;
    match () {
        () if header.key != want.key => Err(Miss::Damaged(Damage::Key)),
        () if header.namespace != *print => Err(Miss::Damaged(Damage::Namespace)),
        () if header.len != want.len => Err(Miss::Length),
        () => Ok(fetched),
    }
}

// Reading the arena, for sending it where there is no disk to read from.
impl Hub {
    /// A block's record out of the arena, made by a thread of the remote tier's.
    pub(super) fn read_arena(
        &mut self,
        print: &Fingerprint,
        key: &Key,
        reply: SyncSender<Option<Vec<u8>>>,
    ) {
        let number = self.namespaces.number(print);
        let (Some(host), Some(remote), Some(number)) = (&mut self.host, &self.remote, number)
        else {
            let _ = reply.try_send(None);
            return;
        };
        let Some((seat, len)) = host.block(number, key) else {
            let _ = reply.try_send(None);
            return;
        };
        host.keep(seat);
        let (memory, commands) = (host.arena.memory.clone(), self.commands.clone());
        let (print, key) = (*print, *key);
        let job = move || {
            let mut bytes = vec![0; record::bytes(len as usize)];
            let from = memory.bytes(seat.page as usize * PAGE, len as usize);
            let payload = &mut bytes[PAGE..PAGE + len as usize];
            unsafe {
                std::ptr::copy_nonoverlapping(from, payload.as_mut_ptr(), payload.len());
            }
            let header = Header {
                spot: Spot { store: 0, segment: 0, page: 0 },
                seq: 0,
                written_ms: epoch_ms(),
                len,
                key,
                namespace: print,
                payload_hash: xxh3_64(payload),
            };
            header.encode(&[], &mut bytes);
            let _ = reply.try_send(Some(bytes));
            commands.push(Command::LetGo(seat));
        };
        remote.crew.run(false, Box::new(job));
    }
}
