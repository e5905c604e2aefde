//! Where the remote tier's errands wait for whoever runs them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::record::{Fingerprint, Key};

/// Errands that may wait, of each kind.
const FETCHES_MAX: usize = 1 << 14;
const SENDS_MAX: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Fetch,
    /// A fetch that nobody waits for yet.
    Ahead,
    Send,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errand {
    pub kind: Kind,
    /// Of a fetch: what to report it under.
    pub ticket: u64,
    pub namespace: Fingerprint,
    pub key: Key,
}

#[derive(Default)]
struct Queues {
    fetches: VecDeque<Errand>,
    ahead: VecDeque<Errand>,
    sends: VecDeque<Errand>,
    closed: bool,
}

/// How many errands of each kind are taken at most.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    pub fetches: usize,
    pub ahead: usize,
    pub sends: usize,
}

/// Where errands wait. Fetches somebody waits for come first.
#[derive(Default)]
pub struct Desk {
    queues: Mutex<Queues>,
    news: Condvar,
}

impl Desk {
    pub(super) fn put(&self, errand: Errand) -> bool {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let (queue, most) = match errand.kind {
            Kind::Fetch => (&mut queues.fetches, FETCHES_MAX),
            Kind::Ahead => (&mut queues.ahead, FETCHES_MAX),
            Kind::Send | Kind::Delete => (&mut queues.sends, SENDS_MAX),
        };
        if queue.len() >= most {
            return false;
        }
        queue.push_back(errand);
        drop(queues);
        self.news.notify_one();
        true
    }

    /// Errands in order of urgency; waits for one. None: the core has ended.
    pub fn take(&self, room: Room, patience: Duration) -> Option<Vec<Errand>> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let nothing = |queues: &mut Queues| {
            let fetch = room.fetches > 0 && !queues.fetches.is_empty();
            let ahead = room.ahead > 0 && !queues.ahead.is_empty();
            let send = room.sends > 0 && !queues.sends.is_empty();
            !(queues.closed || fetch || ahead || send)
        };
        let waited = self.news.wait_timeout_while(queues, patience, nothing);
        let (mut queues, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if queues.closed {
            return None;
        }
        let mut out = Vec::new();
        let Queues { fetches, ahead, sends, .. } = &mut *queues;
        for (queue, most) in [(fetches, room.fetches), (ahead, room.ahead), (sends, room.sends)] {
            let count = most.min(queue.len());
            out.extend(queue.drain(..count));
        }
        Some(out)
    }

    pub(super) fn close(&self) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.news.notify_all();
    }

    pub(super) fn waiting(&self) -> (usize, usize) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        (queues.fetches.len() + queues.ahead.len(), queues.sends.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const ALL: Room = Room { fetches: 9, ahead: 9, sends: 9 };

    #[test]
    fn a_closed_desk_lets_go_whoever_waits() {
        let desk = Arc::new(Desk::default());
        let other = Arc::clone(&desk);
        let waits = std::thread::spawn(move || other.take(ALL, Duration::from_secs(60)));
        desk.close();
        assert!(waits.join().unwrap().is_none());
    }
}
