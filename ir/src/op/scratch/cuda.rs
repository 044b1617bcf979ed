//! Scratch memory of the CUDA kernels, in bytes, and the tilings that it follows from.

use crate::op::{Op, sums};
use crate::types::TensorType;

/// Bytes of scratch that the CUDA kernels of an operator need while they run.
pub(super) fn scratch_bytes(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> u64 {
    let elements = match op {
        Op::MatMul { trans_a, trans_b } => {
            let (batches, e) = sums::mat_mul([x[0], x[1], y[0]], *trans_a, *trans_b);
            partial_results(batches, [e.m, e.n, e.k])
        }
        Op::Gemm { trans_a, trans_b, .. } => {
            let e = sums::gemm(x[0], x[1], *trans_a, *trans_b);
            partial_results(1, [e.m, e.n, e.k])
        }
        Op::Conv { window, group } => {
            let positions = y[0].elements() / y[0].shape[1].max(1);
            let k = x[1].shape[1] * window.taps();
            partial_results(*group, [y[0].shape[1] / group, positions, k])
        }
        Op::ConvTranspose { window, group, .. } => {
            let positions = y[0].elements() / y[0].shape[1].max(1);
            let k = x[0].shape[1] / group * window.taps();
            partial_results(*group, [y[0].shape[1] / group, positions, k])
        }
        _ => 0,
    };
    elements as u64 * y.first().map_or(0, |t| t.dtype.size())
}

/// Rows and columns of a tile of a product.
pub const PRODUCT_TILE: usize = 64;

/// Blocks that fill a large GPU, two on each of some 132 multiprocessors.
const BLOCKS: usize = 264;

/// Least terms of a part of a sum.
const LEAST_TERMS: usize = 256;

/// Parts into which the sums of a product of so many rows, columns and terms are cut, so that
/// few results of long sums fill the device.
pub fn product_parts(batches: usize, [m, n, k]: [usize; 3]) -> usize {
    let tiles = batches * m.div_ceil(PRODUCT_TILE) * n.div_ceil(PRODUCT_TILE);
    (BLOCKS / tiles.max(1)).clamp(1, (k / LEAST_TERMS).max(1))
}

fn partial_results(batches: usize, [m, n, k]: [usize; 3]) -> usize {
    match product_parts(batches.max(1), [m, n, k]) {
        1 => 0,
        parts => parts * batches.max(1) * m * n,
    }
}
