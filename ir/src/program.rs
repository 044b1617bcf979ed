//! The program: commands with byte ranges, streams and events, in host-issue order.
//!
//! Everything above this level produces a program, everything below only executes it.

use crate::backend::TargetInfo;
use crate::graph::{Def, Graph, NodeId, ValueId};
pub use crate::space::{PerSpace, Space};
use cranelift_entity::entity_impl;
use std::collections::HashSet;
use std::fmt;

/// A stream, printed `stream0`: commands of one stream run in issue order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(u32);
entity_impl!(StreamId, "stream");

/// An event, printed `event0`: recorded once per step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(u32);
entity_impl!(EventId, "event");

/// When a command runs, in seconds since the step began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// It begins.
    pub start: f64,
    /// It is done.
    pub end: f64,
}

/// `len` bytes of an arena from `offset` on, printed `device[offset+len]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The arena.
    pub space: Space,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Range {
    /// One past the last byte; saturates, so that absurd ranges stay out of bounds.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// True where the ranges share a byte.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.space == other.space
            && self.offset < other.end()
            && other.offset < self.end()
            && self.len > 0
            && other.len > 0
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}+{}]", self.space, self.offset, self.len)
    }
}

/// Where a value is at the boundary of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The value.
    pub value: ValueId,
    /// Its bytes.
    pub range: Range,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Runs a node's kernel.
    Run {
        /// The node.
        node: NodeId,
        /// The stream.
        stream: StreamId,
        /// Where each operand is.
        reads: Vec<Range>,
        /// Where each result goes; `None` for results that nobody reads.
        writes: Vec<Option<Range>>,
        /// Scratch.
        scratch: Option<Range>,
    },
    /// Copies bytes, within a space or between two.
    Copy {
        /// The stream.
        stream: StreamId,
        /// Source.
        from: Range,
        /// Destination, of equal length.
        to: Range,
    },
    /// Records an event after everything issued so far on the stream.
    Record {
        /// The stream.
        stream: StreamId,
        /// The event.
        event: EventId,
    },
    /// Makes the stream wait for an event recorded earlier in the list.
    Wait {
        /// The stream.
        stream: StreamId,
        /// The event.
        event: EventId,
    },
}

impl Command {
    /// The stream that the command is issued on.
    pub fn stream(&self) -> StreamId {
        match self {
            Command::Run { stream, .. }
            | Command::Copy { stream, .. }
            | Command::Record { stream, .. }
            | Command::Wait { stream, .. } => *stream,
        }
    }

    /// The ranges that the command writes: results, scratch, where bytes are copied to.
    pub fn written(&self) -> impl Iterator<Item = Range> {
        let (writes, last) = match self {
            Command::Run { writes, scratch, .. } => (&writes[..], *scratch),
            Command::Copy { to, .. } => (&[][..], Some(*to)),
            Command::Record { .. } | Command::Wait { .. } => (&[][..], None),
        };
        writes.iter().flatten().copied().chain(last)
    }
}

/// A whole step over the arenas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whose kernels run it, and the alignment in bytes of every home, result and scratch.
    pub target: TargetInfo,
    /// Arena sizes in bytes.
    pub sizes: PerSpace<u64>,
    /// Where fed inputs, constants and states are when a step begins. Constants and
    /// states that are carried are there again when it ends.
    pub homes: Vec<Home>,
    /// Where inputs of the next step may be put while a step runs, from where they are copied to their
    /// homes when it begins. Nothing else uses these bytes.
    pub ahead: Vec<Home>,
    /// Where each graph output is when the step has ended, in the graph's order.
    pub outputs: Vec<Range>,
    /// The commands in issue order.
    pub commands: Vec<Command>,
}

impl Program {
    /// A program of no commands over empty arenas.
    pub fn new(target: TargetInfo) -> Program {
        Program {
            target,
            sizes: PerSpace::default(),
            homes: Vec::new(),
            ahead: Vec::new(),
            outputs: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// The inputs that are fed before every step: the step writes into their homes. Others
    /// stay as they were fed until they change.
    pub fn fed_each_step(&self, g: &Graph) -> HashSet<ValueId> {
        let is_input = |v| matches!(g.values.get(v).map(|v| &v.def), Some(Def::Input));
        let homes = self.homes.iter().filter(|h| is_input(h.value) && h.range.len > 0);
        let mut homes: Vec<&Home> = homes.collect();
        homes.sort_unstable_by_key(|h| (h.range.space, h.range.offset));
        let mut fed = HashSet::new();
        for written in self.commands.iter().flat_map(Command::written) {
            // Homes share no bytes, so that their ends are in order, too.
            let before =
                |h: &&Home| (h.range.space, h.range.end()) <= (written.space, written.offset);
            let from = homes.partition_point(before);
            let reached = homes[from..].iter().take_while(|h| h.range.overlaps(&written));
            fed.extend(reached.map(|h| h.value));
        }
        fed
    }

    /// The nodes that the commands run, in issue order; a recomputed one comes again.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.commands.iter().filter_map(|command| match command {
            Command::Run { node, .. } => Some(*node),
            _ => None,
        })
    }
}
