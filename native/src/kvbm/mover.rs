//! Moves blocks between a file and their place, through a buffer of our own: copy, checksum, transfer.
//!
//! Records that lie one behind the other are written at once: a file system and a disk take as long for
//! a small transfer as for a larger one.
//!
//! Everything that is written was checksummed in the buffer it is written from, and everything that is
//! handed up was verified in the buffer it is copied from; so neither a client that changes its slot
//! meanwhile nor a disk that answers late can spoil a block or a slot.

use std::fs::File;
use std::io;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::buffer::Buffer;
use super::crew::Crew;
use super::gate::Gate;
use super::inbox::Inbox;
use super::io::{Class, Direction, Io, IoBackend};
use super::memory::Memory;
use super::points::Points;
use super::record::{self, verify, Damage, Expected, Header, PAGE};
use super::region::Region;
use super::view::View;

/// What a second-level cache keeps.
const PIECE: usize = 256 << 10;

/// A client's slot.
#[derive(Clone)]
pub struct Slot {
    pub region: Arc<Region>,
    pub offset: u64,
    pub gate: Gate,
}

/// Where a block's bytes come from.
#[derive(Clone)]
pub enum Source {
    Slot(Slot),
    Bytes(View),
    /// From this byte of memory that nobody writes meanwhile.
    Memory(Arc<Memory>, usize),
    /// They are in the buffer already, behind its first page.
    Buffer,
}

/// Where they go.
#[derive(Clone)]
pub enum Target {
    Slot(Slot),
    /// To this byte of memory that nobody else uses meanwhile.
    Memory(Arc<Memory>, usize),
    /// They stay in the buffer, behind the record's header page.
    Buffer,
}

impl Target {
    /// So many bytes further on.
    pub fn behind(&self, bytes: usize) -> Self {
        match self {
            Target::Slot(slot) => {
                Target::Slot(Slot { offset: slot.offset + bytes as u64, ..slot.clone() })
            }
            Target::Memory(memory, at) => Target::Memory(Arc::clone(memory), at + bytes),
            Target::Buffer => Target::Buffer,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The disk said no.
    Io(i32),
    /// The disk gave other bytes than were asked for.
    Damaged(Damage),
    /// The job was given up before its slot was touched.
    Cancelled,
    /// The client's region is not what it was.
    Region,
}

impl Failure {
    pub fn of(error: &io::Error) -> Self {
        Failure::Io(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// A record to be written: its header but for the checksum of the payload, and where that comes from.
pub struct Piece {
    pub header: Header,
    pub note: Box<[u8]>,
    pub source: Source,
}

/// What became of each record of a write, in order.
pub type Results = Vec<Result<(), Failure>>;

/// What the threads report.
pub enum Moved {
    Written { flight: u32, buffer: Buffer, results: Results },
    Read { flight: u32, buffer: Buffer, result: Result<(), Failure> },
    Journal { result: io::Result<()> },
}

pub struct Errand {
    pub flight: u32,
    pub file: Arc<File>,
    pub buffer: Buffer,
}

pub struct Mover<T> {
    backend: Arc<dyn IoBackend>,
    crew: Arc<Crew>,
    inbox: Arc<Inbox<T>>,
    points: Points,
}

impl<T: From<Moved> + Send + 'static> Mover<T> {
    pub fn new(
        backend: Arc<dyn IoBackend>,
        crew: Arc<Crew>,
        inbox: Arc<Inbox<T>>,
        points: Points,
    ) -> Self {
        Self { backend, crew, inbox, points }
    }

    pub fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// Fetch the payloads of records that lie one behind the other, checksum them, write it all at once.
    /// `header.payload_hash` is filled in; where a payload cannot be had nothing reads as a record.
    pub fn write(&self, errand: Errand, pieces: Vec<Piece>) {
        let (backend, inbox) = (Arc::clone(&self.backend), Arc::clone(&self.inbox));
        let job = move || {
            let mut errand = errand;
            let page = pieces.first().map_or(0, |piece| piece.header.spot.page);
            let (mut results, mut at) = (Results::with_capacity(pieces.len()), 0);
            for piece in pieces {
                let end = at + record::bytes(piece.header.len as usize);
                results.push(fill(piece, &mut errand.buffer[at..end]));
                at = end;
            }
            if results.iter().all(Result::is_err) {
                let Errand { flight, buffer, .. } = errand;
                inbox.push(Moved::Written { flight, buffer, results }.into());
                return;
            }
            put(&*backend, inbox, errand, (page, at), results);
        };
        self.crew.run(false, Box::new(job));
    }

    /// Write so many bytes again that are complete in their buffer, but for records that failed before.
    pub fn write_again(&self, errand: Errand, page: u32, len: usize, results: Results) {
        put(&*self.backend, Arc::clone(&self.inbox), errand, (page, len), results);
    }

    /// Read a record, verify it, hand the payload on.
    pub fn read(&self, errand: Errand, expected: Expected, target: Target) {
        let (crew, inbox) = (Arc::clone(&self.crew), Arc::clone(&self.inbox));
        let points = self.points.clone();
        let Errand { flight, file, buffer } = errand;
        let urgent = !matches!(target, Target::Buffer);
        let finish = move |buffer: Buffer, read: io::Result<usize>| {
            let job = move || {
                let read = points.pass("record.read").and(read);
                let result = deliver(&buffer, read, &expected, &target);
                inbox.push(Moved::Read { flight, buffer, result }.into());
            };
            crew.run(urgent, Box::new(job));
        };
        self.backend.submit(Io {
            file,
            direction: Direction::Read,
            class: Class::Record,
            offset: u64::from(expected.spot.page) * PAGE as u64,
            buffer,
            len: record::bytes(expected.len as usize),
            done: Box::new(finish),
        });
    }

    /// Write pages of the journal.
    pub fn journal(&self, file: Arc<File>, offset: u64, buffer: Buffer, len: usize) {
        let inbox = Arc::clone(&self.inbox);
        let done = move |_buffer: Buffer, result: io::Result<usize>| {
            inbox.push(Moved::Journal { result: result.map(|_| ()) }.into());
        };
        let (direction, class) = (Direction::Write, Class::Journal);
        self.backend.submit(Io {
            file,
            direction,
            class,
            offset,
            buffer,
            len,
            done: Box::new(done),
        });
    }
}

fn put<T: From<Moved> + Send + 'static>(
    backend: &dyn IoBackend,
    inbox: Arc<Inbox<T>>,
    errand: Errand,
    (page, len): (u32, usize),
    mut results: Results,
) {
    let Errand { flight, file, buffer } = errand;
    let done = move |buffer: Buffer, written: io::Result<usize>| {
        let result = written.map(|_| ()).map_err(|e| Failure::of(&e));
        results.iter_mut().filter(|one| one.is_ok()).for_each(|one| *one = result);
        inbox.push(Moved::Written { flight, buffer, results }.into());
    };
    backend.submit(Io {
        file,
        direction: Direction::Write,
        class: Class::Record,
        offset: u64::from(page) * PAGE as u64,
        buffer,
        len,
        done: Box::new(done),
    });
}

/// Make a record in its part of the buffer.
fn fill(piece: Piece, record: &mut [u8]) -> Result<(), Failure> {
    let Piece { mut header, note, source } = piece;
    let len = header.len as usize;
    match fetch(&source, &mut record[PAGE..PAGE + len]) {
        Ok(hash) => header.payload_hash = hash,
        Err(failure) => {
            record.fill(0);
            return Err(failure);
        }
    }
    record[PAGE + len..].fill(0);
    header.encode(&note, record);
    Ok(())
}

/// Copy the payload and checksum the copy: piece by piece, while a piece is still in the cache.
fn fetch(source: &Source, into: &mut [u8]) -> Result<u64, Failure> {
    if let Source::Slot(slot) = source {
        let mut hash = 0;
        inside(&slot.gate, || {
            hash = pieces(into, |at, piece| slot.region.read(slot.offset + at as u64, piece))?;
            Ok(())
        })?;
        return Ok(hash);
    }
    let copy = |at: usize, piece: &mut [u8]| {
        match source {
            Source::Slot(_) | Source::Buffer => {}
            Source::Bytes(bytes) => bytes.copy_to(at, piece),
            Source::Memory(memory, from) => {
                let from = memory.bytes(from + at, piece.len());
                unsafe { std::ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
            }
        }
        Ok(())
    };
    pieces(into, copy).map_err(|e| Failure::of(&e))
}

fn pieces(
    into: &mut [u8],
    mut copy: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let mut hasher = Xxh3::new();
    for (n, piece) in into.chunks_mut(PIECE).enumerate() {
        copy(n * PIECE, piece)?;
        hasher.update(piece);
    }
    Ok(hasher.digest())
}

/// Put a verified payload where it is wanted, in the pieces it is in.
pub fn deliver_payload<'a>(
    payload: impl IntoIterator<Item = &'a [u8]>,
    target: &Target,
) -> Result<(), Failure> {
    match target {
        Target::Buffer => Ok(()),
        Target::Memory(memory, at) => {
            let mut at = *at;
            for piece in payload {
                let into = memory.bytes(at, piece.len());
                unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), into, piece.len()) };
                at += piece.len();
            }
            Ok(())
        }
        Target::Slot(slot) => inside(&slot.gate, || {
            let mut at = slot.offset;
            for piece in payload {
                slot.region.write(at, piece)?;
                at += piece.len() as u64;
            }
            Ok(())
        }),
    }
}

fn deliver(
    buffer: &[u8],
    read: io::Result<usize>,
    expected: &Expected,
    target: &Target,
) -> Result<(), Failure> {
    let count = read.map_err(|e| Failure::of(&e))?;
    if count < record::bytes(expected.len as usize) {
        return Err(Failure::Damaged(Damage::Short));
    }
    verify(&buffer[..count], expected).map_err(Failure::Damaged)?;
    deliver_payload([&buffer[PAGE..PAGE + expected.len as usize]], target)
}

fn inside(gate: &Gate, copy: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
    if !gate.enter() {
        return Err(Failure::Cancelled);
    }
    let done = copy();
    gate.leave();
    done.map_err(|_| Failure::Region)
}
