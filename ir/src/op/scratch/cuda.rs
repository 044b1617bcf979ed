//! Scratch memory of the CUDA kernels, in bytes, and the tilings that it follows from.

use super::resize_taps;
use crate::op::{Coordinates, Op, ResizeSpec};
use crate::types::TensorType;

/// Bytes of scratch that the CUDA kernels of an operator need while they run.
pub(super) fn scratch_bytes(op: &Op, x: &[&TensorType], _y: &[&TensorType]) -> u64 {
    match op {
        Op::Resize { spec } => {
            let axes = (0..spec.sizes.len()).filter(|&a| !resize_keeps(spec, a, x[0].shape[a]));
            16 * axes.map(|a| resize_taps(spec, a) * spec.sizes[a]).sum::<usize>() as u64
        }
        _ => 0,
    }
}

/// True where every index of an axis reads itself, which takes no table.
pub fn resize_keeps(spec: &ResizeSpec, axis: usize, extent: usize) -> bool {
    spec.scales[axis] == 1.0
        && spec.sizes[axis] == extent
        && spec.coordinates != Coordinates::TfCropAndResize
}
