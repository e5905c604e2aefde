//! Page-aligned memory that files are read into and written from, and the pool that bounds it.

use std::alloc::{handle_alloc_error, Layout};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::record::PAGE;

const HUGE: usize = 2 << 20;
/// Smaller buffers are cut from so much memory, so that huge pages hold them too: copying and the
/// transfers' lists of pages both cost less then.
const SLAB: usize = 8 << 20;

/// Memory of this process alone, zeroed by the kernel when it is first touched.
struct Slab {
    at: *mut u8,
    len: usize,
}

// It owns its memory like a Vec does.
unsafe impl Send for Slab {}
unsafe impl Sync for Slab {}

impl Slab {
    fn new(len: usize) -> Self {
        let align = if len >= HUGE { HUGE } else { PAGE };
        let whole = len + align - PAGE;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, access, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            handle_alloc_error(Layout::from_size_align(len, PAGE).unwrap_or(Layout::new::<u8>()));
        }
        let (start, skip) = (at.cast::<u8>(), (at as usize).next_multiple_of(align) - at as usize);
        let at = unsafe { start.add(skip) };
        unsafe {
            if skip > 0 {
                libc::munmap(start.cast(), skip);
            }
            if whole - skip > len {
                libc::munmap(at.add(len).cast(), whole - skip - len);
            }
            if len >= HUGE {
                libc::madvise(at.cast(), len, libc::MADV_HUGEPAGE);
            }
        }
        Self { at, len }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

pub struct Buffer {
    at: *mut u8,
    len: usize,
    /// What it is a part of; no other buffer has this part.
    _slab: Arc<Slab>,
}

unsafe impl Send for Buffer {}

impl Buffer {
    /// Zeroed, whole pages.
    pub fn new(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(PAGE);
        let slab = Arc::new(Slab::new(len));
        Self { at: slab.at, len, _slab: slab }
    }

    /// So many of `len` bytes each, a multiple of a page, from one piece of memory.
    fn cut(len: usize, count: usize) -> Vec<Self> {
        let slab = Arc::new(Slab::new(len * count));
        let part = |n: usize| unsafe { slab.at.add(n * len) };
        (0..count).map(|n| Self { at: part(n), len, _slab: Arc::clone(&slab) }).collect()
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
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
        let room = self.limit.saturating_sub(self.out + self.kept) / len;
        let more = (SLAB / len).saturating_sub(1).min(room);
        let mut buffers = Buffer::cut(len, 1 + more);
        let taken = buffers.pop();
        self.kept += more * len;
        self.free.entry(len).or_default().append(&mut buffers);
        taken
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
        let two = pool.take(2 * PAGE).expect("half of it");
        assert!(pool.out + pool.kept <= 4 * PAGE);
        pool.give(two);
        assert!(pool.out == 0 && pool.kept <= 4 * PAGE);
    }

    #[test]
    fn buffers_cut_from_one_piece_do_not_overlap_and_outlive_it() {
        let mut pool = Pool::new(1 << 20);
        let mut held: Vec<_> = (0..16).map(|_| pool.take(3 * PAGE).unwrap()).collect();
        for (n, buffer) in held.iter_mut().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(n as u8 + 1);
        }
        drop(pool);
        for (n, buffer) in held.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == n as u8 + 1), "buffer {n}");
        }
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
