//! The directory of a store: who owns it, what its files are called, how they are made.
//!
//! Everything of ours lies in `kvbm-v1/` below the configured directory, so another format would lie
//! beside it. Whatever else is found in the directory counts against the capacity and is left alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use super::le::{put_u32, put_u64, u32_at, u64_at};
use super::points::Points;
use super::record::{checksum, PAGE};
use super::superblock::{self, Superblock};

const NAME: &str = "kvbm-v1";
const SEGMENT: u64 = u64::from_le_bytes(*b"KVBMSEG1");
const VERSION: u32 = 1;
const CRC: usize = 12;
/// Directory entries that a count of foreign bytes looks at.
const SCAN_MAX: usize = 200_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    Auto,
    Never,
}

pub struct Folder {
    /// The configured directory.
    pub root: PathBuf,
    path: PathBuf,
    /// Held for its lock.
    lock: File,
    pub store: u64,
    direct: AtomicBool,
    pub points: Points,
}

/// What lies in a folder, by name alone.
#[derive(Debug, Default)]
pub struct Listing {
    pub segments: Vec<u64>,
    pub journals: Vec<u64>,
    pub snapshots: Vec<u64>,
    pub namespaces: Vec<PathBuf>,
}

impl Folder {
    /// Open a store's directory or make one; errors name the directory.
    pub fn open(root: &Path, direct: Direct, reset: bool, points: Points) -> io::Result<Self> {
        let path = root.join(NAME);
        make_dir(&path).map_err(|e| named(&path, "cannot make the directory", e))?;
        let lock = lock(&path)?;
        let store = match superblock::read(&path)? {
            Superblock::Good(store) => store,
            Superblock::Missing => superblock::write(&path)?,
            Superblock::Bad if reset => {
                wipe(&path)?;
                superblock::write(&path)?
            }
            Superblock::Bad => {
                let hint = "its superblock is damaged or of another format\n\
                            hint: `reset` starts an empty store in its place";
                return Err(named(&path, hint, io::ErrorKind::InvalidData.into()));
            }
        };
        let folder = Self {
            root: root.into(),
            path,
            lock,
            store,
            direct: AtomicBool::new(direct == Direct::Auto),
            points,
        };
        folder.remove_unfinished()?;
        folder.probe()?;
        Ok(folder)
    }

    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// From now on through the page cache.
    pub fn go_buffered(&self) {
        self.direct.store(false, Ordering::Relaxed);
    }

    /// The same for a file that is open.
    pub fn make_buffered(file: &File) {
        unsafe {
            let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT);
        }
    }

    pub fn segment_path(&self, id: u64) -> PathBuf {
        self.path.join(format!("segment-{id:016x}"))
    }

    pub fn journal_path(&self, epoch: u64) -> PathBuf {
        self.path.join(format!("journal-{epoch:016x}"))
    }

    pub fn snapshot_path(&self, epoch: u64) -> PathBuf {
        self.path.join(format!("snapshot-{epoch:016x}"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn list(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            match name.split_once('-') {
                Some(("segment", id)) => listing.segments.extend(number(id)),
                Some(("journal", epoch)) => listing.journals.extend(number(epoch)),
                Some(("snapshot", epoch)) => listing.snapshots.extend(number(epoch)),
                Some(("namespace", _)) => listing.namespaces.push(entry.path()),
                _ => {}
            }
        }
        listing.segments.sort_unstable();
        listing.journals.sort_unstable();
        listing.snapshots.sort_unstable();
        Ok(listing)
    }

    /// A new segment of `bytes`, its blocks reserved where the file system can.
    pub fn create_segment(&self, id: u64, bytes: u64) -> io::Result<File> {
        self.points.pass("segment.create")?;
        let path = self.segment_path(id);
        let made = self.open_file(&path, true).and_then(|file| {
            reserve(&file, bytes)?;
            self.head_segment(&file, id, bytes)?;
            self.sync_dir()?;
            Ok(file)
        });
        if made.is_err() {
            // Half a segment is of no use and takes room.
            let _ = std::fs::remove_file(&path);
        }
        made
    }

    /// Give the file of a freed segment to a new one: its blocks on disk stay reserved.
    pub fn recycle_segment(&self, old: u64, file: &File, id: u64, bytes: u64) -> io::Result<()> {
        let turn = || {
            self.points.pass("segment.recycle")?;
            std::fs::rename(self.segment_path(old), self.segment_path(id))?;
            self.points.pass("segment.renamed")?;
            self.head_segment(file, id, bytes)?;
            self.sync_dir()
        };
        let turned = turn();
        if turned.is_err() {
            let _ = remove(&self.segment_path(old));
            let _ = remove(&self.segment_path(id));
        }
        turned
    }

    /// The file of a segment if it is what its name says, and its size.
    pub fn open_segment(&self, id: u64) -> io::Result<Option<(File, u64)>> {
        let file = self.open_file(&self.segment_path(id), false)?;
        let mut page = Buffer::new(PAGE);
        let read = self.with_direct(&file, || file.read_at(&mut page, 0))?;
        let good = read == PAGE
            && u64_at(&page, 0) == SEGMENT
            && u32_at(&page, CRC) == checksum(&page, CRC)
            && u64_at(&page, 16) == self.store
            && u64_at(&page, 24) == id;
        let bytes = u64_at(&page, 32).min(file.metadata()?.len());
        Ok(good.then_some((file, bytes)))
    }

    pub fn delete_segment(&self, id: u64) -> io::Result<()> {
        remove(&self.segment_path(id))?;
        self.sync_dir()
    }

    /// An empty journal with its blocks reserved, so that writing it cannot meet a full disk.
    pub fn create_journal(&self, epoch: u64, bytes: u64) -> io::Result<File> {
        self.points.pass("journal.create")?;
        let path = self.journal_path(epoch);
        let made = plain(&path, true).and_then(|file| {
            reserve(&file, bytes)?;
            file.sync_all()?;
            self.sync_dir()?;
            Ok(file)
        });
        if made.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        made
    }

    /// Write a small file so that it is there whole or not at all.
    pub fn write_whole(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        replace(&self.path, name, bytes)
    }

    pub fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Bytes on disk of everything below the root that is no segment.
    pub fn other_bytes(&self) -> io::Result<u64> {
        let mut waiting = vec![self.root.clone()];
        let (mut sum, mut seen) = (0, 0);
        while let Some(dir) = waiting.pop() {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for entry in entries.flatten() {
                seen += 1;
                if seen > SCAN_MAX {
                    return Ok(sum);
                }
                // It may have gone meanwhile.
                let Ok(meta) = entry.path().symlink_metadata() else { continue };
                if meta.is_dir() {
                    waiting.push(entry.path());
                }
                let ours = dir == self.path
                    && entry.file_name().to_str().is_some_and(|n| n.starts_with("segment-"));
                if !ours {
                    sum += meta.blocks() * 512;
                }
            }
        }
        Ok(sum)
    }

    /// Whether the directory that was opened is still the one at its place.
    pub fn is_in_place(&self) -> bool {
        let there = std::fs::metadata(self.path.join("lock")).map(|m| (m.dev(), m.ino()));
        let held = self.lock.metadata().map(|m| (m.dev(), m.ino()));
        matches!((there, held), (Ok(there), Ok(held)) if there == held)
    }

    /// Write, flush and read a page; with O_DIRECT if that is on, and off if it is refused.
    pub fn probe(&self) -> io::Result<()> {
        let path = self.path.join("probe.tmp");
        let done = self.open_file(&path, true).and_then(|file| {
            self.points.pass("probe")?;
            let mut page = Buffer::new(PAGE);
            page.fill(0x5a);
            self.with_direct(&file, || file.write_all_at(&page, 0))?;
            file.sync_data()?;
            page.fill(0);
            self.with_direct(&file, || file.read_exact_at(&mut page, 0))?;
            if page.iter().all(|&byte| byte == 0x5a) {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        });
        let _ = std::fs::remove_file(&path);
        done.map_err(|e| named(&self.path, "cannot write there", e))
    }

    fn remove_unfinished(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "tmp") {
                remove(&path)?;
            }
        }
        Ok(())
    }

    fn head_segment(&self, file: &File, id: u64, bytes: u64) -> io::Result<()> {
        let mut page = Buffer::new(PAGE);
        put_u64(&mut page, 0, SEGMENT);
        put_u32(&mut page, 8, VERSION);
        put_u64(&mut page, 16, self.store);
        put_u64(&mut page, 24, id);
        put_u64(&mut page, 32, bytes);
        let crc = checksum(&page, CRC);
        put_u32(&mut page, CRC, crc);
        self.with_direct(file, || file.write_all_at(&page, 0))?;
        file.sync_all()
    }

    fn open_file(&self, path: &Path, create: bool) -> io::Result<File> {
        if self.is_direct() {
            let direct = options(create).custom_flags(libc::O_DIRECT).open(path);
            match direct {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.go_buffered(),
                other => return other,
            }
        }
        plain(path, create)
    }

    /// File systems may take O_DIRECT at `open` and refuse it at the first transfer.
    fn with_direct<T>(&self, file: &File, mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let refused = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL) && self.is_direct();
        let first = self.points.pass("direct").and_then(|()| f());
        match first {
            Err(e) if refused(&e) => {
                self.go_buffered();
                Self::make_buffered(file);
                f()
            }
            other => other,
        }
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn lock(path: &Path) -> io::Result<File> {
    let name = path.join("lock");
    let mut file = plain(&name, true).map_err(|e| named(&name, "cannot open", e))?;
    let began = Instant::now();
    let held = || unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0;
    let mut is_held = held();
    // The last owner, or a child of it between fork and exec, may be about to end.
    while is_held && began.elapsed() < Duration::from_secs(1) {
        std::thread::park_timeout(Duration::from_millis(10));
        is_held = held();
    }
    if is_held {
        let mut owner = String::new();
        let _ = (&file).take(64).read_to_string(&mut owner);
        let what = format!("is in use by process {}", owner.trim());
        return Err(named(path, &what, io::ErrorKind::AddrInUse.into()));
    }
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Remove what is ours.
fn wipe(path: &Path) -> io::Result<()> {
    let kinds = ["segment-", "journal-", "snapshot-", "namespace-", "superblock"];
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if kinds.iter().any(|kind| name.to_string_lossy().starts_with(kind)) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn options(create: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).mode(0o600);
    options
}

fn plain(path: &Path, create: bool) -> io::Result<File> {
    options(create).open(path)
}

fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = bytes as libc::off_t;
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => file.set_len(bytes as u64),
        _ => Err(error),
    }
}

pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = dir.join(format!("{name}.tmp"));
    let mut file = plain(&unfinished, true)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, dir.join(name))?;
    File::open(dir)?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn named(path: &Path, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {what}: {error}", path.display()))
}
