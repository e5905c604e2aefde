//! Page-aligned memory that files are read into and written from, and the pool that bounds it.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use super::record::PAGE;

const HUGE: usize = 2 << 20;

pub struct Buffer {
    at: *mut u8,
    layout: Layout,
}

// It owns its memory like a Vec does.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Zeroed, whole pages.
    pub fn new(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(PAGE);
        let align = if len >= HUGE { HUGE } else { PAGE };
        let layout = Layout::from_size_align(len, align).expect("a size that fits in memory");
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        if len >= HUGE {
            unsafe { libc::madvise(at.cast(), len, libc::MADV_HUGEPAGE) };
        }
        Self { at, layout }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.at, self.layout.size()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unsafe { dealloc(self.at, self.layout) };
    }
}

/// Buffers in use and kept together never exceed `limit`; one of the largest size always fits.
pub struct Pool {
    limit: usize,
    out: usize,
    kept: usize,
    free: HashMap<usize, Vec<Buffer>>,
}

impl Pool {
    pub fn new(limit: usize) -> Self {
        Self { limit, out: 0, kept: 0, free: HashMap::new() }
    }

    pub fn in_use(&self) -> usize {
        self.out
    }

    /// A buffer of `len` bytes, a multiple of a page; its bytes are whatever they were.
    pub fn take(&mut self, len: usize) -> Option<Buffer> {
        if self.out != 0 && self.out + len > self.limit {
            return None;
        }
        self.out += len;
        if let Some(buffer) = self.free.get_mut(&len).and_then(Vec::pop) {
            self.kept -= len;
            return Some(buffer);
        }
        if self.out + self.kept > self.limit {
            self.free.clear();
            self.kept = 0;
        }
        Some(Buffer::new(len))
    }

    pub fn give(&mut self, buffer: Buffer) {
        let len = buffer.len();
        self.out -= len;
        if self.out + self.kept + len <= self.limit {
            self.kept += len;
            self.free.entry(len).or_default().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_always_serves_one() {
        let mut pool = Pool::new(4 * PAGE);
        let big = pool.take(16 * PAGE).expect("the only one");
        assert!(pool.take(PAGE).is_none());
        pool.give(big);
        let mut held: Vec<_> = (0..4).map(|_| pool.take(PAGE).unwrap()).collect();
        assert!(pool.take(PAGE).is_none());
        held.drain(..).for_each(|buffer| pool.give(buffer));
        assert!(pool.take(2 * PAGE).is_some());
        assert_eq!(pool.kept, 0);
    }

    #[test]
    fn buffers_lie_on_pages() {
        for len in [1, PAGE, 3 * PAGE, HUGE] {
            let buffer = Buffer::new(len);
            assert_eq!(buffer.as_ptr() as usize % PAGE, 0);
            assert_eq!(buffer.len() % PAGE, 0);
        }
    }
}
