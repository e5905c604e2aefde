//! Memory that belongs to a client and is borrowed: touched by system calls only.
//!
//! A client may cut its file short at any moment. A load from a page that is gone would end the daemon;
//! a read or write of the file only says so.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

const TMPFS: i64 = 0x0102_1994;

#[derive(Debug)]
pub struct Region {
    file: File,
    /// Bytes from one slot to the next.
    pub stride: u64,
    pub slots: u32,
}

impl Region {
    /// Take a descriptor that a client passed; it must be a memory file, readable and writable, that
    /// holds all the slots.
    pub fn adopt(fd: OwnedFd, stride: u64, slots: u32) -> Result<Self, String> {
        let file = File::from(fd);
        let meta = file.metadata().map_err(|e| format!("descriptor of the region: {e}"))?;
        if !meta.is_file() {
            return Err("the region is no file".into());
        }
        let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
        if unsafe { libc::fstatfs(file.as_raw_fd(), &mut fs) } != 0 || fs.f_type != TMPFS {
            // Elsewhere a transfer might block for as long as some server likes.
            return Err("the region must lie in a tmpfs or be a memfd without huge pages".into());
        }
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        if flags & libc::O_ACCMODE != libc::O_RDWR {
            return Err("the region's descriptor must be open for reading and writing".into());
        }
        let need = stride.checked_mul(u64::from(slots));
        if stride == 0 || need.is_none_or(|need| need > meta.len()) {
            let len = meta.len();
            return Err(format!("{slots} slots of {stride} bytes do not fit in {len} bytes"));
        }
        Ok(Self { file, stride, slots })
    }

    /// A region of so many slots for tests and for clients that bring no memory of their own.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    pub fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        // Writing would make a file that was cut short longer again.
        if self.file.metadata()?.len() < offset + from.len() as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.file.write_all_at(from, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvbm::memory::Memory;
    use std::os::fd::{AsFd, BorrowedFd};

    fn memfd(len: u64) -> OwnedFd {
        let fd = unsafe { libc::memfd_create(c"region".as_ptr(), libc::MFD_CLOEXEC) };
        let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap();
        unsafe { libc::close(fd) };
        File::from(file.try_clone().unwrap()).set_len(len).unwrap();
        file
    }

    #[test]
    fn bytes_go_in_and_out() {
        let region = Region::adopt(memfd(8192), 4096, 2).unwrap();
        region.write(4096, b"block").unwrap();
        let mut back = [0; 5];
        region.read(4096, &mut back).unwrap();
        assert_eq!(&back, b"block");
    }

    #[test]
    fn what_is_no_such_memory_is_refused() {
        let why = |fd: OwnedFd, stride, slots| Region::adopt(fd, stride, slots).unwrap_err();
        assert!(why(memfd(8192), 4096, 3).contains("do not fit"));
        assert!(why(memfd(8192), u64::MAX, 2).contains("do not fit"));
        let dir = File::open("/").unwrap();
        assert!(why(dir.into(), 1, 1).contains("no file"));
        let disk = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(why(disk.into(), 1, 1).contains("tmpfs"));
        let memory = Memory::create(c"sealed", 4096).unwrap();
        let path = format!("/proc/self/fd/{}", memory.fd());
        assert!(why(File::open(path).unwrap().into(), 1, 1).contains("reading and writing"));
    }

    #[test]
    fn a_region_cut_short_is_an_error_and_stays_short() {
        let fd = memfd(8192);
        let file = File::from(fd.as_fd().try_clone_to_owned().unwrap());
        let region = Region::adopt(fd, 4096, 2).unwrap();
        file.set_len(4096).unwrap();
        assert!(region.read(4096, &mut [0; 16]).is_err());
        assert!(region.write(4096, &[1; 16]).is_err());
        assert_eq!(file.metadata().unwrap().len(), 4096);
    }
}
