//! Recorded allocations of other frameworks: what a planned pool would need beside what the
//! recorded allocator needed.
//!
//! A [`Trace`] is a sequence of malloc, free, read and write events, read from CSV or from a
//! memory snapshot of PyTorch. [`Iterations`] is what repeats in it, found by sizes and
//! order as in SmartPool (Zhang et al., "Efficient Memory Management for GPU-based Deep
//! Learning Systems", 2019, section V), and [`Needs`] the placement problem of one iteration.

mod csv;
mod iteration;
mod pool;
mod runs;
mod snapshot;
#[cfg(test)]
mod tests;

use arenic_passes::place::MAX_HEIGHT;
pub use iteration::{By, Iterations, NothingRepeats, Repetition};
pub use pool::{Needs, Plan, Slot};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It is allocated.
    Malloc,
    /// It is freed.
    Free,
    /// Its bytes are read.
    Read,
    /// Its bytes are written.
    Write,
}

/// An event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happens.
    pub kind: Kind,
    /// To which of the trace's blocks.
    pub block: u32,
}

/// Bytes from their malloc to their free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// How the recording calls it; names are used again once a block is free.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Where it lay, in a pool of one piece.
    pub address: Option<u64>,
    /// The event that allocated it; none, if it was there before the recording.
    pub malloc: Option<u32>,
    /// The event that freed it; none, if it outlived the recording.
    pub free: Option<u32>,
}

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The events in order.
    pub events: Vec<Event>,
    /// The blocks, first those of the events in the order of their mallocs.
    pub blocks: Vec<Block>,
    /// Bytes that the allocator had from the device by the time of each event.
    pub reserved: Option<Vec<u64>>,
    /// What the recorded allocator rounds sizes to, in bytes.
    pub alignment: u64,
    /// What a reader should know about the recording.
    pub notes: Vec<String>,
}

/// Why a file holds no trace.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: Reason,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The system does not let it be read.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// A pickle, which runs code when it is read.
    #[error(
        "is a pickle, which only Python reads; write JSON instead, from the program itself by \
         `json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w'))`, or from the \
         file by `python -c \"import pickle, json; json.dump(pickle.load(open('snapshot.pickle', \
         'rb')), open('snapshot.json', 'w'))\"`"
    )]
    Pickle,
    /// No JSON, or not that of a snapshot.
    #[error(
        "is no memory snapshot: {0}; write one by \
         `json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w'))`"
    )]
    Json(#[from] serde_json::Error),
    /// A snapshot without allocations.
    #[error(
        "has no history of allocations; call \
         `torch.cuda.memory._record_memory_history(max_entries=1000000)` before the steps, and \
         take the snapshot after them"
    )]
    NoHistory,
    /// Another device is asked for than those with a history.
    #[error("has no history of device {asked}, only of: {known}")]
    Device {
        /// The device that was asked for.
        asked: usize,
        /// Those that there are.
        known: String,
    },
    /// A device of a file without devices.
    #[error("is CSV, which knows no devices; leave out --device")]
    NoDevices,
    /// An event that lacks what its kind needs.
    #[error("event {0} of `device_traces` has no `addr` or no `size`")]
    Incomplete(usize),
    /// A line has more or fewer fields than the header, or is no text.
    #[error("cannot be read: {0}")]
    Csv(#[from] ::csv::Error),
    /// A column that must be there is not.
    #[error(
        "has no column `{0}`; the first line names the columns: event, block, size, and if \
         need be address and reserved"
    )]
    Column(&'static str),
    /// A column is there twice.
    #[error("has two columns `{0}`")]
    TwiceColumn(String),
    /// A field that cannot be read.
    #[error("line {line}, column `{column}`: `{field}` is not {expected}")]
    Field {
        /// Line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What it holds.
        field: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A malloc of a block that is not free.
    #[error("line {line}, column `block`: `{block}` is allocated already, since line {since}")]
    Allocated {
        /// Line, from 1.
        line: u64,
        /// The block.
        block: String,
        /// Line of its malloc.
        since: u64,
    },
    /// Another event of a block that is free.
    #[error("line {line}, column `block`: `{block}` was freed in line {since}")]
    Freed {
        /// Line, from 1.
        line: u64,
        /// The block.
        block: String,
        /// Line of its free.
        since: u64,
    },
    /// Another event of a block that was never allocated.
    #[error("line {line}, column `block`: `{block}` was never allocated; malloc it first")]
    Unknown {
        /// Line, from 1.
        line: u64,
        /// The block.
        block: String,
    },
    /// Nothing was recorded.
    #[error("has no events")]
    Empty,
    /// More events than can be counted.
    #[error("has more than 2^32 - 2 events")]
    TooMany,
    /// More bytes are alive at once than any memory has.
    #[error("has more than 2^60 bytes alive at once, at event {0}")]
    TooLarge(usize),
}

/// Reads a trace: CSV, or the JSON of a PyTorch memory snapshot, whose `device` with the
/// most events is taken where none is named. Events are counted from 0.
///
/// # Errors
/// See [`TraceError`].
pub fn read(path: &Path, device: Option<usize>) -> Result<Trace, TraceError> {
    let bytes = std::fs::read(path).map_err(Reason::from);
    let trace = bytes.and_then(|bytes| parse(&bytes, device));
    trace.map_err(|reason| TraceError { path: path.to_owned(), reason })
}

fn parse(bytes: &[u8], device: Option<usize>) -> Result<Trace, Reason> {
    // A pickle begins with its protocol, what torch.save writes with a ZIP's magic.
    let trace = match bytes.trim_ascii_start().first() {
        _ if bytes.starts_with(b"\x80") || bytes.starts_with(b"PK\x03\x04") => {
            return Err(Reason::Pickle);
        }
        None => return Err(Reason::Empty),
        Some(b'{' | b'[') => snapshot::parse(bytes, device)?,
        _ if device.is_some() => return Err(Reason::NoDevices),
        _ => csv::parse(bytes)?,
    };
    if trace.events.is_empty() {
        return Err(Reason::Empty);
    }
    let large = |&(_, bytes): &(usize, u64)| bytes > MAX_HEIGHT;
    match trace.live(1).into_iter().enumerate().find(large) {
        Some((at, _)) => Err(Reason::TooLarge(at)),
        None => Ok(trace),
    }
}

impl Trace {
    /// Appends an event of a block.
    fn push(&mut self, kind: Kind, block: u32) -> Result<(), Reason> {
        let at = u32::try_from(self.events.len()).ok().filter(|&at| at < u32::MAX - 1);
        let at = at.ok_or(Reason::TooMany)?;
        match kind {
            Kind::Malloc => self.blocks[block as usize].malloc = Some(at),
            Kind::Free => self.blocks[block as usize].free = Some(at),
            Kind::Read | Kind::Write => {}
        }
        self.events.push(Event { kind, block });
        Ok(())
    }

    /// Makes a block known, without an event.
    fn add(&mut self, block: Block) -> Result<u32, Reason> {
        self.blocks.push(block);
        u32::try_from(self.blocks.len() - 1).map_err(|_| Reason::TooMany)
    }

    /// The block of an event.
    fn block(&self, event: usize) -> &Block {
        &self.blocks[self.events[event].block as usize]
    }

    /// Bytes that are alive after each event, sizes rounded up to `alignment`. Blocks that
    /// were there before the recording count from its beginning.
    pub fn live(&self, alignment: u64) -> Vec<u64> {
        let bytes = |b: &Block| u128::from(b.size).next_multiple_of(alignment.into());
        let before = self.blocks.iter().filter(|b| b.malloc.is_none());
        let mut live: u128 = before.map(bytes).sum();
        let after = |e: &Event| {
            let bytes = bytes(&self.blocks[e.block as usize]);
            match e.kind {
                Kind::Malloc => live += bytes,
                Kind::Free => live = live.saturating_sub(bytes),
                Kind::Read | Kind::Write => {}
            }
            u64::try_from(live).unwrap_or(u64::MAX)
        };
        self.events.iter().map(after).collect()
    }

    /// The most bytes that the recorded allocator had from the device during these events.
    pub fn peak_reserved(&self, events: Range<usize>) -> Option<u64> {
        self.reserved.as_ref()?.get(events)?.iter().copied().max()
    }

    /// From the lowest to the highest address of blocks that were alive during these events,
    /// in bytes. None, where an address is not known.
    pub fn span(&self, events: Range<usize>) -> Option<u64> {
        let alive = |b: &&Block| {
            b.malloc.is_none_or(|at| (at as usize) < events.end)
                && b.free.is_none_or(|at| at as usize >= events.start)
        };
        let (mut low, mut high) = (u64::MAX, 0);
        for block in self.blocks.iter().filter(alive) {
            let address = block.address?;
            low = low.min(address);
            high = high.max(address.saturating_add(block.size));
        }
        high.checked_sub(low)
    }
}
