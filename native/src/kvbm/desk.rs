//! Where the remote tier's errands wait for whoever runs them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::errand::{Errand, Kind};

/// Blocks that may wait, of each kind.
const FETCHES_MAX: usize = 1 << 14;
const SENDS_MAX: usize = 1 << 16;
/// Errands among which one for the same bundle is looked for.
const NEAR: usize = 8;

#[derive(Default)]
struct Queue {
    errands: VecDeque<Errand>,
    blocks: usize,
}

impl Queue {
    fn put(&mut self, errand: Errand) {
        self.blocks += errand.pieces.len();
        let merged = errand.bundle.is_some()
            && self.errands.iter_mut().rev().take(NEAR).any(|other| other.merge(&errand));
        if !merged {
            self.errands.push_back(errand);
        }
    }

    fn take(&mut self, most: usize, out: &mut Vec<Errand>) {
        for errand in self.errands.drain(..most.min(self.errands.len())) {
            self.blocks -= errand.pieces.len();
            out.push(errand);
        }
    }
}

/// What is called when there may be something to fetch.
type Follower = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Queues {
    fetches: Queue,
    ahead: Queue,
    sends: Queue,
    closed: bool,
    paused: bool,
    follower: Option<Follower>,
}

impl Queues {
    fn of(&mut self, kind: Kind) -> (&mut Queue, usize) {
        match kind {
            Kind::Fetch => (&mut self.fetches, FETCHES_MAX),
            Kind::Ahead => (&mut self.ahead, FETCHES_MAX),
            Kind::Send | Kind::Delete | Kind::Mark => (&mut self.sends, SENDS_MAX),
        }
    }

    fn take(&mut self, room: Room) -> Option<Vec<Errand>> {
        if self.closed {
            return None;
        }
        let mut out = Vec::new();
        self.fetches.take(room.fetches, &mut out);
        self.ahead.take(room.ahead, &mut out);
        self.sends.take(room.sends, &mut out);
        Some(out)
    }
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
    /// Whether so many blocks more may wait.
    pub(super) fn has_room(&self, kind: Kind, blocks: usize) -> bool {
        let mut queues = self.lock();
        let (queue, most) = queues.of(kind);
        queue.blocks + blocks <= most
    }

    /// All that came up in one turn of the core's, so that neighbours go together. Whoever puts more
    /// than there is room for has not asked.
    pub(super) fn put(&self, errands: impl IntoIterator<Item = Errand>) {
        let mut queues = self.lock();
        for errand in errands {
            queues.of(errand.kind).0.put(errand);
        }
        self.tell(queues);
    }

    fn tell(&self, queues: MutexGuard<'_, Queues>) {
        let is_fetch = !(queues.fetches.errands.is_empty() && queues.ahead.errands.is_empty());
        let follower = queues.follower.clone().filter(|_| is_fetch || queues.closed);
        drop(queues);
        self.news.notify_all();
        if let Some(follower) = follower {
            follower();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have this called, from any thread, when there may be something to fetch, or the core has ended.
    pub fn follow(&self, follower: impl Fn() + Send + Sync + 'static) {
        let mut queues = self.lock();
        queues.follower = Some(Arc::new(follower));
        self.tell(queues);
    }

    /// The store is left alone for a while, or asked again.
    pub fn pause(&self, is_paused: bool) {
        self.lock().paused = is_paused;
    }

    pub fn is_paused(&self) -> bool {
        self.lock().paused
    }

    /// Errands that are there now, in order of urgency. None: the core has ended.
    pub fn look(&self, room: Room) -> Option<Vec<Errand>> {
        self.lock().take(room)
    }

    /// Errands in order of urgency; waits for one. None: the core has ended.
    pub fn take(&self, room: Room, patience: Duration) -> Option<Vec<Errand>> {
        let queues = self.lock();
        let nothing = |queues: &mut Queues| {
            let fetch = room.fetches > 0 && !queues.fetches.errands.is_empty();
            let ahead = room.ahead > 0 && !queues.ahead.errands.is_empty();
            let send = room.sends > 0 && !queues.sends.errands.is_empty();
            !(queues.closed || fetch || ahead || send)
        };
        let waited = self.news.wait_timeout_while(queues, patience, nothing);
        waited.unwrap_or_else(PoisonError::into_inner).0.take(room)
    }

    pub(super) fn close(&self) {
        let mut queues = self.lock();
        queues.closed = true;
        self.tell(queues);
    }

    /// Blocks that wait to be fetched, and to be sent or deleted.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let queues = self.lock();
        (queues.fetches.blocks + queues.ahead.blocks, queues.sends.blocks)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
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

    #[test]
    fn who_follows_is_told_of_fetches_and_of_the_end() {
        let (desk, told) = (Desk::default(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&told);
        desk.follow(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        desk.put([Errand::of(Kind::Send, [0; 32], [[1; 32]])]);
        assert_eq!(told.load(Ordering::Relaxed), 0);
        desk.put([Errand::of(Kind::Ahead, [0; 32], [[1; 32]])]);
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert_eq!(desk.look(Room { fetches: 9, ahead: 9, sends: 0 }).unwrap().len(), 1);
        desk.close();
        assert!(told.load(Ordering::Relaxed) == 2 && desk.look(ALL).is_none());
    }

    #[test]
    fn blocks_are_counted_not_errands() {
        let desk = Desk::default();
        desk.put([Errand::of(Kind::Send, [0; 32], (0..124).map(|n| [n; 32]))]);
        assert_eq!(desk.waiting(), (0, 124));
        assert!(desk.has_room(Kind::Send, SENDS_MAX - 124));
        assert!(!desk.has_room(Kind::Mark, SENDS_MAX - 123));
        assert_eq!(desk.take(ALL, Duration::ZERO).unwrap()[0].pieces.len(), 124);
        assert_eq!(desk.waiting(), (0, 0));
    }
}
