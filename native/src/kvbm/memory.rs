//! Memory shared between processes that nobody can take away: a sealed anonymous file, mapped.
//!
//! Only memory whose size is sealed is ever touched by loads and stores; on any other a peer that cuts
//! the file short would end this process.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

pub struct Memory {
    base: *mut u8,
    len: usize,
    fd: OwnedFd,
}

// Whoever uses it goes through atomics or says who owns which bytes.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Memory {
    pub fn create(name: &std::ffi::CStr, len: usize) -> io::Result<Self> {
        let memory = Self::create_for_readers(name, len)?;
        memory.seal(libc::F_SEAL_SEAL)?;
        Ok(memory)
    }

    /// The same, but `seal_writes` may follow.
    pub fn create_for_readers(name: &std::ffi::CStr, len: usize) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let memory = Self::map(fd, len, true)?;
        memory.seal(SEALS)?;
        Ok(memory)
    }

    fn seal(&self, seals: libc::c_int) -> io::Result<()> {
        if unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// From now on nobody but this mapping can change the bytes.
    pub fn seal_writes(&mut self) -> io::Result<()> {
        self.seal(libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
    }

    /// Map a peer's memory; refused unless its size is sealed and as said.
    pub fn attach(fd: OwnedFd, len: usize) -> io::Result<Self> {
        Self::attach_as(fd, len, true)
    }

    /// The same, only to be read.
    pub fn attach_to_read(fd: OwnedFd, len: usize) -> io::Result<Self> {
        Self::attach_as(fd, len, false)
    }

    fn attach_as(fd: OwnedFd, len: usize, writable: bool) -> io::Result<Self> {
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "memory of no sealed size"));
        }
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if stat.st_size as usize != len {
            let what = format!("memory of {} bytes, {len} were said", stat.st_size);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Self::map(fd, len, writable)
    }

    fn map(fd: OwnedFd, len: usize, writable: bool) -> io::Result<Self> {
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let (access, kind) = (libc::PROT_READ | write, libc::MAP_SHARED);
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), len, fd })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word at a multiple of eight bytes.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at % 8 == 0 && at + 8 <= self.len);
        unsafe { &*self.base.add(at).cast::<AtomicU64>() }
    }

    /// Where bytes `at..at + len` lie.
    pub fn bytes(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at);
        unsafe { self.base.add(at) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
