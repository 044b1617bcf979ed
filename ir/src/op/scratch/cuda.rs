//! Scratch memory of the CUDA kernels, in bytes, and the tilings that it follows from.

use crate::op::Op;
use crate::types::TensorType;

/// Bytes of scratch that the CUDA kernels of an operator need while they run.
pub(super) fn scratch_bytes(_op: &Op, _x: &[&TensorType], _y: &[&TensorType]) -> u64 {
    0
}
