//! A lock for one writer that writes in short sections again and again, and readers that must not wait
//! for more than one of them. A plain lock can be taken anew by its writer before a reader has woken.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// How often a writer steps back for readers before it goes on regardless.
const PATIENCE: usize = 64;

pub struct Gate<T> {
    inner: RwLock<T>,
    /// Readers that wait or read.
    readers: AtomicUsize,
}

pub struct Reading<'a, T> {
    inner: RwLockReadGuard<'a, T>,
    readers: &'a AtomicUsize,
}

impl<T> Gate<T> {
    pub fn new(inner: T) -> Self {
        Self { inner: RwLock::new(inner), readers: AtomicUsize::new(0) }
    }

    pub fn read(&self) -> Reading<'_, T> {
        self.readers.fetch_add(1, Relaxed);
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        Reading { inner, readers: &self.readers }
    }

    /// Runs `change` alone, after the readers that wait.
    pub fn write<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        for _ in 0..PATIENCE {
            if self.readers.load(Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        change(&mut self.inner.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        self.readers.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn readers_see_whole_changes_while_a_writer_never_pauses() {
        let gate = Arc::new(Gate::new((0u64, 0u64)));
        let writer = {
            let gate = gate.clone();
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    gate.write(|pair| {
                        pair.0 += 1;
                        pair.1 += 1;
                    });
                }
            })
        };
        for _ in 0..2000 {
            let pair = gate.read();
            assert_eq!(pair.0, pair.1);
        }
        writer.join().expect("the writer ends");
        assert_eq!(*gate.read(), (20_000, 20_000));
        assert_eq!(gate.readers.load(Relaxed), 0);
    }
}
