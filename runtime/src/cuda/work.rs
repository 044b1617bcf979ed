//! What the device does for an operator.

use super::module::{Argument, Launch};
use arenic_backends::cuda::library::LibraryCall;

/// One thing that the device does for an operator. Each waits for the one before.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Runs a kernel.
    Launch(Launch),
    /// Copies bytes from one place to another; nothing where they are the same.
    Copy {
        /// Source.
        from: Argument,
        /// Destination.
        to: Argument,
        /// How many.
        bytes: u64,
    },
    /// Has a library compute something, or does it otherwise.
    Library(Box<Asked>),
    /// Sends to every other rank and receives from each, all at once.
    Exchange {
        /// Each goes from every rank to every rank, but for itself.
        messages: Vec<Message>,
        /// Each also goes from a rank to itself, which copies it.
        with_itself: bool,
    },
}

/// Bytes that go from one rank to another; where they are depends on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// In the sender's memory.
    pub from: Place,
    /// In the receiver's memory.
    pub to: Place,
    /// Bytes, where the tensor has not ended.
    pub bytes: u64,
    /// Whose part of the tensor it is; `Nothing` where it is of the whole.
    pub part: Along,
    /// Bytes from the begin of a rank's part to that of the next.
    pub begins: u64,
    /// Where the message begins within a part, in bytes.
    pub at: u64,
    /// Bytes of the whole tensor.
    pub whole: u64,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tensor, or the scratch.
    pub of: Argument,
    /// Its first byte there, for the first rank.
    pub at: u64,
    /// Bytes from there to that of the next rank.
    pub stride: u64,
    /// Which rank's number counts.
    pub along: Along,
}

/// The rank that a place depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// None.
    Nothing,
    /// The one that sends.
    Sender,
    /// The one that receives.
    Receiver,
}

impl Along {
    /// The number that counts, of a message from one rank to another.
    fn of(self, sender: usize, receiver: usize) -> u64 {
        match self {
            Along::Nothing => 0,
            Along::Sender => sender as u64,
            Along::Receiver => receiver as u64,
        }
    }
}

impl Place {
    /// The first byte of a message from one rank to another.
    pub(super) fn offset(&self, sender: usize, receiver: usize) -> u64 {
        self.at + self.along.of(sender, receiver) * self.stride
    }
}

impl Message {
    /// How many bytes go from one rank to another.
    pub(super) fn len(&self, sender: usize, receiver: usize) -> u64 {
        let first = self.part.of(sender, receiver) * self.begins + self.at;
        self.bytes.min(self.whole.saturating_sub(first))
    }
}

impl Work {
    /// Makes its only result the result `output` of another operator.
    pub(super) fn give(&mut self, output: usize) {
        let moved = |argument: &mut Argument| {
            if *argument == Argument::Output(0) {
                *argument = Argument::Output(output);
            }
        };
        match self {
            Work::Launch(launch) => launch.arguments.iter_mut().for_each(moved),
            Work::Exchange { messages, .. } => {
                messages.iter_mut().flat_map(|m| [&mut m.from.of, &mut m.to.of]).for_each(moved);
            }
            Work::Copy { from, to, .. } => [from, to].into_iter().for_each(moved),
            Work::Library(asked) => {
                let Asked { arguments, before, after, instead, .. } = &mut **asked;
                arguments.iter_mut().for_each(moved);
                let all = before.iter_mut().chain(after).chain(instead);
                all.for_each(|work| work.give(output));
            }
        }
    }
}

/// What a library is asked for, and what is done beside it or instead.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// What is asked of the library; its workspace is the call's scratch.
    pub request: Request,
    /// Its operands in its order, then its results.
    pub arguments: Vec<Argument>,
    /// Kernels that make an operand which the operator does not have.
    pub before: Vec<Work>,
    /// Kernels that make results which the library does not give.
    pub after: Vec<Work>,
    /// What is done where it does not: kernels of ours, perhaps beside a call for less.
    pub instead: Vec<Work>,
}

/// What is asked of a library.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What it computes.
    pub call: LibraryCall,
    /// What the address of each operand, and of each result, is a multiple of, in bytes.
    pub alignments: Vec<u64>,
    /// Bytes of workspace that it may use.
    pub workspace: u64,
}

/// The backend has no kernel for this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CUDA backend has no kernel for {0}")]
pub struct Unsupported(pub String);
