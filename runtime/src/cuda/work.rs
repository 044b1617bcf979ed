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
    Library {
        /// What is asked of the library; its workspace is the call's scratch.
        request: Request,
        /// Its operands in its order, then its results.
        arguments: Vec<Argument>,
        /// What is done where it does not: kernels of ours, perhaps beside a call for less.
        instead: Vec<Work>,
    },
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
            Work::Copy { from, to, .. } => [from, to].into_iter().for_each(moved),
            Work::Library { arguments, instead, .. } => {
                arguments.iter_mut().for_each(moved);
                instead.iter_mut().for_each(|work| work.give(output));
            }
        }
    }
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
