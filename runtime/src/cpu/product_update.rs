//! `ProductUpdate`: an update whose gradient exists a tile at a time.
//!
//! Tiles of the product are computed into scratch and go into the update while they are
//! in the cache. Tiles have the bits that the product as an operator gives them, and the
//! update's arithmetic is the same, so both together have the bits of the two operators.

use super::address::Src;
use super::factor::{Bf16, Factor};
use super::matmul::matrix;
use super::number::Number;
use super::product::{MatMut, product_by_parts, product_in_parts};
use super::region::{Kernel, Region, Update};
use super::tiles::Part;
use crate::kernel::{Call, Operand};
use crate::workers;
use arenic_backends::cpu::tiling::{ProductUpdate, product_update};
use arenic_ir::op::{Extents, MAX_OPERANDS, ProductOperands};
use arenic_ir::{DType, Op};

/// Elements of a tile that fit a core's cache.
const CACHED: usize = 256 << 10;

/// So many lanes and elements of their tiles, for the threads that there are: fewer threads than lanes have
/// larger tiles, whose operands are packed less often.
fn shared(lanes: usize, tile: usize) -> (usize, usize) {
    let fewer = lanes.min(workers::count());
    (fewer, (lanes * tile / fewer).min(tile.max(CACHED)))
}

/// Runs a `ProductUpdate` of these attributes: the factor, which factors are transposed, the
/// gradient's position and the update.
pub(super) fn run(alpha: f32, trans: [bool; 2], gradient: usize, update: &Op, call: &Call) {
    let others = call.inputs.len() - 2;
    match call.inputs[others].ty().dtype {
        DType::F64 => typed::<f64>(call, alpha, trans, gradient, update),
        DType::Bf16 => typed::<Bf16>(call, alpha, trans, gradient, update),
        _ => typed::<f32>(call, alpha, trans, gradient, update),
    }
}

fn typed<A: Factor>(
    call: &Call,
    alpha: f32,
    [trans_a, trans_b]: [bool; 2],
    gradient: usize,
    update: &Op,
) {
    let Some(y) = call.outputs.iter().flatten().next() else { return };
    let place = ProductOperands { gradient, others: call.inputs.len() - 2 };
    let [a, b] = [&call.inputs[place.others], &call.inputs[place.others + 1]];
    let e = Extents::of_gemm(a.ty(), b.ty(), trans_a, trans_b);
    let (a, b) = (matrix::<A>(a, trans_a, true), matrix::<A>(b, trans_b, false));
    let alpha = A::Sum::from_f64(f64::from(alpha));
    // SAFETY: an operand of the gradient's type that nobody reads: it comes as tiles.
    let tiled = unsafe { Operand::new(y.ty(), std::ptr::dangling()) };
    let mut inputs = [tiled; MAX_OPERANDS];
    for (i, operand) in inputs[..=place.others].iter_mut().enumerate() {
        if let Some(i) = place.of_update(i) {
            *operand = call.inputs[i];
        }
    }
    let drive = |kernel: Kernel| {
        let tiling = product_update(e.m * e.n, e.k);
        // SAFETY: the only slice of this call's scratch.
        let scratch = unsafe { call.scratch.slice_mut::<A::Sum>(tiling.elements()) };
        match tiling {
            ProductUpdate::Tiles { lanes, tile } => {
                let (lanes, tile) = shared(lanes, tile);
                let consume = |part: Part, at: *const A::Sum| {
                    let first = part.row * e.n + part.col;
                    let region = Region { first, rows: part.rows, cols: part.cols, stride: e.n };
                    kernel(region, Some(Src(at.cast())));
                };
                // SAFETY: operands as `infer` checked them, in no in-place pair.
                unsafe { product_by_parts((lanes, tile), e, alpha, (a, b), scratch, consume) };
            }
            ProductUpdate::Parts { parts, results } => {
                let (gradient, scratch) = scratch.split_at_mut(results);
                let c = MatMut::new(gradient.as_mut_ptr(), e.n, 1);
                // SAFETY: as above.
                unsafe {
                    let operands = |_| (a, b, c);
                    product_in_parts(parts, 1, e, alpha, scratch, operands, |_, _, _| false);
                }
                let region = Region { first: 0, rows: 1, cols: results, stride: 0 };
                kernel(region, Some(Src(c.ptr.cast_const().cast())));
            }
        }
    };
    let inputs = &inputs[..=place.others];
    let tiled = Some(gradient);
    Update { op: update, inputs, outputs: call.outputs, tiled, drive: &drive }.run();
}
