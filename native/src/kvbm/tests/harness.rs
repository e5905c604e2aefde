//! A disk in a directory of its own, blocks that can be told apart, and waiting with an end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::kvbm::buffer::Buffer;
use crate::kvbm::disk::{Change, Disk, Outcome};
use crate::kvbm::folder::Direct;
use crate::kvbm::io::IoBackend;
use crate::kvbm::loads::Load;
use crate::kvbm::mover::{Failure, Source, Target};
use crate::kvbm::namespace::Namespace;
use crate::kvbm::options::{DiskOptions, IoKind};
use crate::kvbm::record::{Key, PAGE};
use crate::kvbm::stores::{Store, Stored};
use crate::kvbm::view::View;
use crate::kvbm::Refusal;

/// A directory that goes away with the test.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place().join(format!("kvbm-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// What a process that is killed now would leave behind.
    pub fn copy(&self) -> Dir {
        let copy = Dir::new();
        copy_tree(&self.0, &copy.0);
        copy
    }

    pub fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let inside = std::fs::read_dir(self.0.join("kvbm-v1")).unwrap();
        let mut found: Vec<_> = inside
            .map(|entry| entry.unwrap().path())
            .filter(|p| p.file_name().unwrap().to_string_lossy().starts_with(prefix))
            .collect();
        found.sort();
        found
    }
}

/// Memory where there is enough of it: tests flush often.
fn place() -> PathBuf {
    let mut fs: libc::statvfs = unsafe { std::mem::zeroed() };
    let found = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), &mut fs) } == 0;
    if found && fs.f_bavail * fs.f_frsize > 2 << 30 {
        return "/dev/shm".into();
    }
    std::env::temp_dir()
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let there = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&there).unwrap();
            copy_tree(&entry.path(), &there);
        } else if entry.path().exists() {
            // It may be renamed away between the two lines; then it is not part of this moment.
            let _ = std::fs::copy(entry.path(), &there);
        }
    }
}

pub fn options(dir: &Dir) -> DiskOptions {
    DiskOptions {
        segment_bytes: 256 << 10,
        buffer_bytes: 4 << 20,
        sync_us: 50_000,
        io: IoKind::Threads,
        // Quicker than waiting for a device; some tests ask for it.
        direct: Direct::Never,
        depth: 8,
        copy_threads: 2,
        ..DiskOptions::new(&dir.0, 4 << 20)
    }
}

pub fn key(n: u64) -> Key {
    *blake3::hash(&n.to_le_bytes()).as_bytes()
}

/// The bytes of block `n`: different in every block, and everywhere in it.
pub fn payload(n: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&n.to_le_bytes());
    hasher.finalize_xof().fill(&mut out);
    out
}

pub fn namespace(n: u8) -> Namespace {
    Namespace { descriptor: format!("{{\"model\":\"m{n}\"}}").into_bytes(), probe: [n; 32] }
}

pub struct Rig {
    pub disk: Disk,
    pub ns: u16,
    pub began: Instant,
    /// Microseconds added to the clock.
    pub skip_us: u64,
    pub out: Vec<Outcome>,
    pub changes: Vec<Change>,
    token: u64,
}

impl Rig {
    pub fn new(options: DiskOptions) -> Self {
        Self::of(Disk::open(options).expect("the store opens"))
    }

    pub fn with_backend(options: DiskOptions, backend: Arc<dyn IoBackend>) -> Self {
        Self::of(Disk::open_with(options, backend).expect("the store opens"))
    }

    fn of(mut disk: Disk) -> Self {
        let ns = disk.namespace(&namespace(1)).unwrap();
        let (out, changes) = (Vec::new(), Vec::new());
        Self { disk, ns, began: Instant::now(), skip_us: 0, out, changes, token: 0 }
    }

    pub fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64 + self.skip_us
    }

    pub fn poll(&mut self) {
        let now = self.now();
        self.disk.inbox().bell.clear();
        self.disk.poll(now, &mut self.out);
        self.disk.take_changes(&mut self.changes);
    }

    /// Poll until `done` gives something; the test fails after ten seconds.
    pub fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.poll();
            if let Some(found) = done(self) {
                return found;
            }
            assert!(Instant::now() < end, "nothing came: {:?}", self.disk.stats);
            let inbox = Arc::clone(self.disk.inbox());
            inbox.bell.wait(Duration::from_millis(5));
        }
    }

    pub fn draw(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    pub fn begin_store(&mut self, n: u64, len: usize) -> Result<(u64, Stored), Refusal> {
        let token = self.draw();
        let store = Store {
            namespace: self.ns,
            key: key(n),
            len: len as u32,
            note: n.to_le_bytes().into(),
            source: Source::Bytes(View::of(payload(n, len))),
        };
        self.disk.store(store, token).map(|stored| (token, stored))
    }

    pub fn outcome(&mut self, token: u64) -> Result<Option<Buffer>, Failure> {
        self.until(|rig| {
            let at = rig.out.iter().position(|outcome| outcome.token == token)?;
            Some(rig.out.swap_remove(at).result)
        })
    }

    /// Store a block and wait until it exists.
    pub fn store(&mut self, n: u64, len: usize) -> Result<Stored, String> {
        let (token, stored) = self.begin_store(n, len).map_err(|why| format!("{why:?}"))?;
        if stored == Stored::Queued {
            self.outcome(token).map_err(|why| format!("{why:?}"))?;
        }
        Ok(stored)
    }

    pub fn begin_load(&mut self, n: u64) -> Result<u64, Refusal> {
        let (token, namespace) = (self.draw(), self.ns);
        let load = Load { token, namespace, key: key(n), target: Target::Buffer };
        self.disk.load(load, None).map(|()| token)
    }

    /// A block's bytes, or why there are none.
    pub fn load(&mut self, n: u64) -> Result<Vec<u8>, String> {
        let found = self.disk.find(self.ns, &key(n)).map(|(_, len)| len as usize);
        let token = self.begin_load(n).map_err(|why| format!("{why:?}"))?;
        let buffer = self.outcome(token).map_err(|why| format!("{why:?}"))?;
        let buffer = buffer.expect("a buffer");
        let bytes = buffer[PAGE..PAGE + found.unwrap()].to_vec();
        self.disk.give_back(buffer);
        Ok(bytes)
    }

    /// The block is there and right.
    pub fn expect(&mut self, n: u64, len: usize) {
        assert!(self.load(n).unwrap() == payload(n, len), "block {n} is not what was stored");
    }

    pub fn has(&self, n: u64) -> bool {
        self.disk.find(self.ns, &key(n)).is_some()
    }

    pub fn drop_block(&mut self, n: u64) -> bool {
        let (token, namespace) = (self.draw(), self.ns);
        let there = self.disk.drop_block(namespace, &key(n), token);
        if there {
            self.outcome(token).unwrap();
        }
        there
    }

    pub fn settle(&mut self) {
        self.until(|rig| rig.disk.is_idle().then_some(()));
    }

    pub fn close(mut self) {
        let mut out = Vec::new();
        self.disk.close(Duration::from_secs(10), &mut out);
    }
}
