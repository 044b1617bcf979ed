//! `MatMul` and `Gemm`: strides say what is transposed, so nothing is copied.

use super::address::Shared;
use super::factor::{Bf16, Factor};
use super::nest::Nest;
use super::number::Number;
use super::product::{Mat, MatMut, product_in_parts, products};
use crate::kernel::{Call, Operand};
use arenic_backends::cpu::sums::Route;
use arenic_backends::cpu::tiling::product_parts;
use arenic_ir::DType;
use arenic_ir::op::Extents;

/// Names the type of the elements that a product multiplies, for an expression.
macro_rules! for_factor {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => for_factor!(@ $T, f32, $body),
            DType::F64 => for_factor!(@ $T, f64, $body),
            DType::Bf16 => for_factor!(@ $T, Bf16, $body),
            DType::I32 => for_factor!(@ $T, i32, $body),
            DType::I64 => for_factor!(@ $T, i64, $body),
            DType::U32 => for_factor!(@ $T, u32, $body),
            DType::U64 => for_factor!(@ $T, u64, $body),
            other => unreachable!("infer refuses products of {other}"),
        }
    };
    (@ $T:ident, $type:ty, $body:expr) => {{
        type $T = $type;
        $body
    }};
}

/// Runs a `MatMul`.
pub(super) fn mat_mul(trans_a: bool, trans_b: bool, call: &Call) {
    let dtype = call.inputs[0].ty().dtype;
    for_factor!(dtype, A => mat_mul_of::<A>(call, trans_a, trans_b));
}

/// Runs a `Gemm`.
pub(super) fn gemm(alpha: f32, beta: f32, trans_a: bool, trans_b: bool, call: &Call) {
    let dtype = call.inputs[0].ty().dtype;
    for_factor!(dtype, A => gemm_of::<A>(call, alpha, beta, trans_a, trans_b));
}

/// The last two axes of an operand as a matrix.
pub(super) fn matrix<A: Factor>(x: &Operand, trans: bool, vector_is_row: bool) -> Mat<A> {
    let cols = match x.ty().shape[..] {
        [_] if !vector_is_row => 1,
        [.., cols] => cols,
        [] => unreachable!("infer refuses scalars"),
    };
    let m = Mat::new(x.ptr(), cols, 1);
    if trans { m.transposed() } else { m }
}

/// Where the matrix of one batch index begins, in elements.
pub(super) fn batches(shape: &[usize], batch: &[usize], matrix: usize) -> Nest<1> {
    Nest::broadcast(batch, [(&shape[..shape.len().saturating_sub(2)], matrix)])
}

/// The result is one of the numbers that are summed.
fn mat_mul_of<A: Factor>(call: &Call, trans_a: bool, trans_b: bool) {
    let [a, b] = call.inputs else { unreachable!("two operands") };
    let Some(y) = call.outputs[0] else { return };
    let (ma, mb) = (matrix::<A>(a, trans_a, true), matrix::<A>(b, trans_b, false));
    let (count, e) = Extents::of_mat_mul([a.ty(), b.ty(), y.ty()], trans_a, trans_b);
    let vectors = usize::from(a.ty().rank() == 1) + usize::from(b.ty().rank() == 1);
    let batch = &y.ty().shape[..y.ty().rank() + vectors - 2];
    let (from_a, from_b) =
        (batches(&a.ty().shape, batch, e.m * e.k), batches(&b.ty().shape, batch, e.k * e.n));
    let c = Shared::new(y.ptr::<A::Sum>());
    let operands = |i: usize| {
        let at = |x: Mat<A>, by: usize| Mat { ptr: x.ptr.wrapping_add(by), ..x };
        let c = MatMut::new(c.ptr().wrapping_add(i * e.m * e.n), e.n, 1);
        (at(ma, from_a.offset(i)), at(mb, from_b.offset(i)), c)
    };
    let begin = |_, _, _| false;
    let parts = product_parts(y.ty().elements(), e.k);
    // SAFETY: shapes and strides as `infer` checked them; results are no operands (I7),
    // and the scratch is this call's.
    unsafe {
        if parts > 1 {
            let scratch = call.scratch.slice_mut(parts * y.ty().elements());
            product_in_parts(parts, count, e, A::Sum::ONE, scratch, operands, begin);
        } else {
            products(Route::of(e), count, e, A::Sum::ONE, operands, begin);
        }
    }
}

/// As for [`mat_mul_of`]; what is added to the product has the result's type.
fn gemm_of<A: Factor>(call: &Call, alpha: f32, beta: f32, trans_a: bool, trans_b: bool) {
    type Of<A> = <A as Factor>::Sum;
    let Some(y) = call.outputs[0] else { return };
    let a = matrix::<A>(&call.inputs[0], trans_a, true);
    let b = matrix::<A>(&call.inputs[1], trans_b, false);
    let e = Extents::of_gemm(call.inputs[0].ty(), call.inputs[1].ty(), trans_a, trans_b);
    let (alpha, beta) = (Of::<A>::from_f64(f64::from(alpha)), Of::<A>::from_f64(f64::from(beta)));
    let result = MatMut::new(y.ptr::<Of<A>>(), e.n, 1);
    // The bias as a matrix whose broadcast axes have stride 0.
    let bias = call.inputs.get(2).filter(|_| beta != Of::<A>::ZERO).map(|c| {
        let (rows, cols) = match c.ty().shape[..] {
            [] => (1, 1),
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            _ => unreachable!("infer refuses a bias of a higher rank"),
        };
        let stride = |extent: usize, s: usize| if extent == 1 { 0 } else { s };
        Mat::new(c.ptr::<Of<A>>(), stride(rows, cols), stride(cols, 1))
    });
    let operands = |_| (a, b, result);
    // The product is always added to `beta · c`, so that the bias may lie where the result
    // goes: every element is read just before it is written.
    let begin = |_, tile: MatMut<Of<A>>, [row, col, m, n]: [usize; 4]| {
        let Some(bias) = bias else { return false };
        let bias = bias.at(row, col);
        if bias.ptr == tile.ptr && bias.rows == tile.rows && beta == Of::<A>::ONE {
            return true;
        }
        for i in 0..m {
            let (from, to) = (bias.at(i, 0), tile.at(i, 0));
            for j in 0..n {
                // SAFETY: in bounds of the tile and of the bias.
                unsafe {
                    let c = *from.ptr.wrapping_offset(j as isize * from.cols);
                    *to.ptr.add(j) = beta.mul(c);
                }
            }
        }
        true
    };
    let parts = product_parts(e.m * e.n, e.k);
    // SAFETY: as for `mat_mul`; a bias at the result's place is read by `begin` alone.
    unsafe {
        if parts > 1 {
            let scratch = call.scratch.slice_mut(parts * e.m * e.n);
            product_in_parts(parts, 1, e, alpha, scratch, operands, begin);
        } else {
            products(Route::of(e), 1, e, alpha, operands, begin);
        }
    }
}
