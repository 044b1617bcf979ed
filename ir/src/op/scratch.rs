//! Scratch memory of the CPU kernels, in bytes.
//!
//! Sizes follow from types alone, never from the number of threads, so that a plan made
//! anywhere runs anywhere, with the same order of every sum.

use super::Op;
use crate::types::TensorType;

impl Op {
    /// Bytes of scratch that the CPU kernel of this operator needs while it runs; zero
    /// for most.
    pub fn scratch_bytes(&self, _inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        0
    }
}
