//! `MatMul` and `Gemm`: strides say what is transposed, so nothing is copied.

use super::address::Shared;
use super::nest::Nest;
use super::product::{Extents, Mat, MatMut, Scalar, product_in_parts, products};
use crate::kernel::{Call, KernelError, Operand};
use arenic_ir::op::scratch::product_parts;
use arenic_ir::{DType, Op};

/// Runs a `MatMul` or a `Gemm`.
pub(crate) fn run(call: &Call) -> Result<(), KernelError> {
    match call.inputs[0].ty().dtype {
        DType::F32 => typed::<f32>(call),
        DType::F64 => typed::<f64>(call),
        DType::I32 => typed::<i32>(call),
        DType::I64 => typed::<i64>(call),
        DType::U32 => typed::<u32>(call),
        DType::U64 => typed::<u64>(call),
        other => unreachable!("infer refuses products of {other}"),
    }
    Ok(())
}

fn typed<T: Scalar>(call: &Call) {
    match *call.op {
        Op::MatMul { trans_a, trans_b } => mat_mul::<T>(call, trans_a, trans_b),
        Op::Gemm { alpha, beta, trans_a, trans_b } => {
            gemm::<T>(call, alpha, beta, trans_a, trans_b);
        }
        _ => unreachable!("no product"),
    }
}

/// The last two axes of an operand as a matrix.
pub(super) fn matrix<T: Scalar>(
    x: &Operand,
    trans: bool,
    vector_is_row: bool,
) -> (Mat<T>, usize, usize) {
    let (rows, cols) = match x.ty().shape[..] {
        [n] if vector_is_row => (1, n),
        [n] => (n, 1),
        [.., r, c] => (r, c),
        [] => unreachable!("infer refuses scalars"),
    };
    let m = Mat::new(x.ptr(), cols, 1);
    if trans { (m.transposed(), cols, rows) } else { (m, rows, cols) }
}

/// Where the matrix of one batch index begins, in elements.
fn batches(shape: &[usize], batch: &[usize], matrix: usize) -> Nest<1> {
    Nest::broadcast(batch, [(&shape[..shape.len().saturating_sub(2)], matrix)])
}

fn mat_mul<T: Scalar>(call: &Call, trans_a: bool, trans_b: bool) {
    let [a, b] = call.inputs else { unreachable!("two operands") };
    let Some(y) = call.outputs[0] else { return };
    let (ma, mut m, k) = matrix::<T>(a, trans_a, true);
    let (mb, _, n) = matrix::<T>(b, trans_b, false);
    let vectors = usize::from(a.ty().rank() == 1) + usize::from(b.ty().rank() == 1);
    let batch_axes = (y.ty().rank() + vectors) - 2;
    let batch = &y.ty().shape[..batch_axes];
    let mut count: usize = batch.iter().product();
    // One matrix for all of `a`'s batch: its rows are rows of one product.
    if b.ty().elements() == k * n && !trans_a && a.ty().elements() == count * m * k {
        m *= count;
        count = count.min(1);
    }
    let (from_a, from_b) =
        (batches(&a.ty().shape, batch, m * k), batches(&b.ty().shape, batch, k * n));
    let e = Extents { m, k, n };
    let c = y.ptr::<T>();
    let c = Shared::new(c);
    let operands = |i: usize| {
        let at = |x: Mat<T>, by: usize| Mat { ptr: x.ptr.wrapping_add(by), ..x };
        let c = MatMut::new(c.ptr().wrapping_add(i * m * n), n, 1);
        (at(ma, from_a.offset(i)), at(mb, from_b.offset(i)), c)
    };
    let begin = |_, _, _| false;
    let parts = product_parts(y.ty().elements(), k);
    // SAFETY: shapes and strides as `infer` checked them; results are no operands (I7),
    // and the scratch is this call's.
    unsafe {
        if parts > 1 {
            let scratch = call.scratch.slice_mut(parts * y.ty().elements());
            product_in_parts(parts, count, e, T::ONE, scratch, operands, begin);
        } else {
            products(count, e, T::ONE, operands, begin);
        }
    }
}

fn gemm<T: Scalar>(call: &Call, alpha: f32, beta: f32, trans_a: bool, trans_b: bool) {
    let Some(y) = call.outputs[0] else { return };
    let (a, m, k) = matrix::<T>(&call.inputs[0], trans_a, true);
    let (b, _, n) = matrix::<T>(&call.inputs[1], trans_b, false);
    let e = Extents { m, k, n };
    let (alpha, beta) = (T::from_f64(f64::from(alpha)), T::from_f64(f64::from(beta)));
    let result = MatMut::new(y.ptr::<T>(), n, 1);
    // The bias as a matrix whose broadcast axes have stride 0.
    let bias = call.inputs.get(2).filter(|_| beta != T::ZERO).map(|c| {
        let (rows, cols) = match c.ty().shape[..] {
            [] => (1, 1),
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            _ => unreachable!("infer refuses a bias of a higher rank"),
        };
        let stride = |extent: usize, s: usize| if extent == 1 { 0 } else { s };
        Mat::new(c.ptr::<T>(), stride(rows, cols), stride(cols, 1))
    });
    let operands = |_| (a, b, result);
    // The product is always added to `beta · c`, so that the bias may lie where the result
    // goes: every element is read just before it is written.
    let begin = |_, tile: MatMut<T>, [row, col, m, n]: [usize; 4]| {
        let Some(bias) = bias else { return false };
        let bias = bias.at(row, col);
        if bias.ptr == tile.ptr && bias.rows == tile.rows && beta == T::ONE {
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
    let parts = product_parts(m * n, k);
    // SAFETY: as for `mat_mul`; a bias at the result's place is read by `begin` alone.
    unsafe {
        if parts > 1 {
            let scratch = call.scratch.slice_mut(parts * m * n);
            product_in_parts(parts, 1, e, alpha, scratch, operands, begin);
        } else {
            products(1, e, alpha, operands, begin);
        }
    }
}
