//! The file that says: a store of this format, of this name.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::folder::replace;
use super::le::{put_u32, put_u64, u32_at, u64_at};
use super::record::{checksum, PAGE};

const SUPERBLOCK: u64 = u64::from_le_bytes(*b"KVBMSUP1");
const VERSION: u32 = 1;
const CRC: usize = 12;

pub enum Superblock {
    Good(u64),
    Missing,
    Bad,
}

/// The file holds two copies of the page, so that one torn sector does not cost the store.
pub fn read(path: &Path) -> io::Result<Superblock> {
    let mut bytes = Vec::new();
    match File::open(path.join("superblock")) {
        Ok(file) => file.take(2 * PAGE as u64).read_to_end(&mut bytes)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            // A store without one is not new.
            let used = std::fs::read_dir(path)?
                .flatten()
                .any(|entry| entry.file_name().to_string_lossy().starts_with("segment-"));
            return Ok(if used { Superblock::Bad } else { Superblock::Missing });
        }
        Err(e) => return Err(e),
    };
    let good = |page: &&[u8]| {
        u64_at(page, 0) == SUPERBLOCK
            && u32_at(page, 8) == VERSION
            && u32_at(page, CRC) == checksum(page, CRC)
    };
    let page = bytes.chunks_exact(PAGE).find(good);
    Ok(page.map_or(Superblock::Bad, |page| Superblock::Good(u64_at(page, 16))))
}

pub fn write(path: &Path) -> io::Result<u64> {
    let store = random();
    let mut page = vec![0; PAGE];
    put_u64(&mut page, 0, SUPERBLOCK);
    put_u32(&mut page, 8, VERSION);
    put_u64(&mut page, 16, store);
    put_u32(&mut page, 24, PAGE as u32);
    let crc = checksum(&page, CRC);
    put_u32(&mut page, CRC, crc);
    page.extend_from_within(..);
    replace(path, "superblock", &page)?;
    Ok(store)
}

/// A number nobody else has drawn.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
    assert_eq!(got, 8, "the kernel gives random bytes");
    u64::from_ne_bytes(bytes)
}
