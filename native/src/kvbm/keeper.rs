//! One thread for what may take long and is rare: making files, flushing, snapshots, probes.
//!
//! Orders are done one after the other; every order is answered, and the answers come in order.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::folder::Folder;

pub enum Order {
    CreateSegment {
        id: u64,
        bytes: u64,
    },
    /// Turn the file of a freed segment into a new one.
    RecycleSegment {
        old: u64,
        file: Arc<File>,
        id: u64,
        bytes: u64,
    },
    DeleteSegment {
        id: u64,
    },
    CreateJournal {
        epoch: u64,
        bytes: u64,
    },
    /// Data first, then the journal that points to it.
    Sync {
        data: Vec<Arc<File>>,
        journal: Arc<File>,
    },
    SnapshotPart {
        epoch: u64,
        bytes: Vec<u8>,
    },
    /// Make the snapshot count and remove what it replaces.
    SnapshotEnd {
        epoch: u64,
    },
    WriteWhole {
        name: String,
        bytes: Vec<u8>,
    },
    /// Count foreign bytes and see whether the directory and the segments' files are still there.
    Look {
        files: Vec<(u64, Arc<File>)>,
    },
    Probe,
}

pub enum Answer {
    /// Size on disk in bytes.
    Segment {
        id: u64,
        file: io::Result<(Arc<File>, u64)>,
    },
    Deleted(io::Result<()>),
    Journal {
        epoch: u64,
        file: io::Result<Arc<File>>,
    },
    Synced(io::Result<()>),
    SnapshotPart(io::Result<()>),
    SnapshotEnd(io::Result<()>),
    Written(io::Result<()>),
    Looked {
        other_bytes: u64,
        in_place: bool,
        gone: Vec<u64>,
    },
    Probed(io::Result<()>),
}

pub struct Keeper {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn new(folder: Arc<Folder>, answer: impl Fn(Answer) + Send + 'static) -> io::Result<Self> {
        let (orders, waiting) = channel::<Order>();
        let mut desk = Desk { folder, snapshot: None };
        let work = move || waiting.iter().for_each(|order| answer(desk.serve(order)));
        let thread = std::thread::Builder::new().name("kvbm-keeper".into()).spawn(work)?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    pub fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It ends only when the sender is dropped.
            let _ = orders.send(order);
        }
    }
}

/// What was ordered before is still done.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Desk {
    folder: Arc<Folder>,
    snapshot: Option<(u64, File)>,
}

impl Desk {
    fn serve(&mut self, order: Order) -> Answer {
        match order {
            Order::CreateSegment { id, bytes } => {
                let file = self.folder.create_segment(id, bytes).and_then(|f| sized(Arc::new(f)));
                Answer::Segment { id, file }
            }
            Order::RecycleSegment { old, file, id, bytes } => {
                let done = self.folder.recycle_segment(old, &file, id, bytes);
                Answer::Segment { id, file: done.and_then(|()| sized(file)) }
            }
            Order::DeleteSegment { id } => Answer::Deleted(self.folder.delete_segment(id)),
            Order::CreateJournal { epoch, bytes } => {
                let file = self.folder.create_journal(epoch, bytes).map(Arc::new);
                Answer::Journal { epoch, file }
            }
            Order::Sync { data, journal } => Answer::Synced(self.sync(&data, &journal)),
            Order::SnapshotPart { epoch, bytes } => {
                Answer::SnapshotPart(self.write_part(epoch, &bytes))
            }
            Order::SnapshotEnd { epoch } => Answer::SnapshotEnd(self.end_snapshot(epoch)),
            Order::WriteWhole { name, bytes } => {
                Answer::Written(self.folder.write_whole(&name, &bytes))
            }
            Order::Look { files } => self.look(&files),
            Order::Probe => Answer::Probed(self.folder.probe()),
        }
    }

    fn sync(&self, data: &[Arc<File>], journal: &File) -> io::Result<()> {
        self.folder.points.pass("sync.data")?;
        for file in data {
            file.sync_data()?;
        }
        self.folder.points.pass("sync.journal")?;
        journal.sync_data()
    }

    fn unfinished(&self, epoch: u64) -> PathBuf {
        self.folder.path().join(format!("snapshot-{epoch:016x}.tmp"))
    }

    fn write_part(&mut self, epoch: u64, bytes: &[u8]) -> io::Result<()> {
        self.folder.points.pass("snapshot.part")?;
        if self.snapshot.as_ref().is_none_or(|(open, _)| *open != epoch) {
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            self.snapshot = Some((epoch, options.open(self.unfinished(epoch))?));
        }
        let Some((_, file)) = &mut self.snapshot else { return Ok(()) };
        let written = file.write_all(bytes);
        if written.is_err() {
            self.snapshot = None;
            let _ = std::fs::remove_file(self.unfinished(epoch));
        }
        written
    }

    fn end_snapshot(&mut self, epoch: u64) -> io::Result<()> {
        let Some((_, file)) = self.snapshot.take() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        file.sync_all()?;
        self.folder.points.pass("snapshot.synced")?;
        std::fs::rename(self.unfinished(epoch), self.folder.snapshot_path(epoch))?;
        self.folder.points.pass("snapshot.renamed")?;
        self.folder.sync_dir()?;
        let there = self.folder.list()?;
        for old in there.snapshots.into_iter().filter(|&old| old < epoch) {
            std::fs::remove_file(self.folder.snapshot_path(old))?;
        }
        self.folder.points.pass("snapshot.replaced")?;
        for old in there.journals.into_iter().filter(|&old| old < epoch) {
            std::fs::remove_file(self.folder.journal_path(old))?;
        }
        self.folder.sync_dir()
    }

    fn look(&self, files: &[(u64, Arc<File>)]) -> Answer {
        // A file that was deleted or replaced under us still reads, but nobody could find it again.
        let gone = files.iter().filter(|(id, file)| {
            let held = file.metadata().map(|meta| (meta.dev(), meta.ino()));
            let there = std::fs::metadata(self.folder.segment_path(*id));
            let there = there.map(|meta| (meta.dev(), meta.ino()));
            !matches!((held, there), (Ok(held), Ok(there)) if held == there)
        });
        Answer::Looked {
            gone: gone.map(|(id, _)| *id).collect(),
            other_bytes: self.folder.other_bytes().unwrap_or(0),
            in_place: self.folder.is_in_place(),
        }
    }
}

fn sized(file: Arc<File>) -> io::Result<(Arc<File>, u64)> {
    let meta = file.metadata()?;
    // A file system that reserves nothing will still have to give all of it.
    let bytes = (meta.blocks() * 512).max(meta.len());
    Ok((file, bytes))
}
