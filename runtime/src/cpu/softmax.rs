//! `Softmax` and `LogSoftmax`: the maximum is subtracted first, so that nothing overflows.
//!
//! A row is copied to its place unless it is there already and then worked on in place:
//! both cases are one. Along any other axis than the last one, columns take the place of
//! rows, several at a time.

use super::number::Float;
use super::reduce::{largest, sum};
use super::tasks::{Shared, for_each, wide};
use crate::kernel::{Call, KernelError};
use arenic_ir::{DType, Op};

/// Runs a `Softmax` or a `LogSoftmax`.
pub(crate) fn run(call: &Call) -> Result<(), KernelError> {
    match call.inputs[0].ty().dtype {
        DType::F32 => typed::<f32>(call),
        DType::F64 => typed::<f64>(call),
        other => unreachable!("infer refuses a softmax of {other}"),
    }
    Ok(())
}

/// Columns worked on at a time.
const STRIP: usize = 64;

fn typed<T: Float>(call: &Call) {
    let (Op::Softmax { axis } | Op::LogSoftmax { axis }) = *call.op else {
        unreachable!("no softmax")
    };
    let log = matches!(call.op, Op::LogSoftmax { .. });
    let Some(y) = call.outputs[0] else { return };
    let shape = &y.ty().shape;
    let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let all = y.ty().elements();
    if all == 0 {
        return;
    }
    let x = call.inputs[0].ptr::<T>();
    let y = y.ptr::<T>();
    let (from, y) = (Shared::new(x.cast_mut()), Shared::new(y));
    // An exponential costs several plain elements.
    let work = 8 * all;
    // SAFETY (of `fetch`): `at` is the first of `n` elements that only this task works on.
    let fetch = |at: usize, n: usize| {
        if from.ptr() != y.ptr() {
            // SAFETY: other bytes, as the operand is not the result.
            unsafe { std::ptr::copy_nonoverlapping(from.ptr().add(at), y.ptr().add(at), n) };
        }
    };
    if inner == 1 {
        for_each(all / extent, work, |i| {
            fetch(i * extent, extent);
            // SAFETY: each task has a row of its own.
            let y = unsafe { y.slice(i * extent, extent) };
            row(y, log);
        });
        return;
    }
    let strips = inner.div_ceil(STRIP);
    for_each(all / extent / inner * strips, work, |task| {
        let (outer, column) = (task / strips, task % strips * STRIP);
        let width = STRIP.min(inner - column);
        let first = outer * extent * inner + column;
        for i in 0..extent {
            fetch(first + i * inner, width);
        }
        // SAFETY: each task has columns of its own.
        unsafe { columns(Shared::new(y.ptr().add(first)), [extent, inner, width], log) };
    });
}

/// One row, in place.
#[inline(always)]
fn along<T: Float>(y: &mut [T], log: bool) {
    let max = largest(y);
    if log {
        for y in y.iter_mut() {
            *y = y.sub(max);
        }
        // The exponentials are summed in blocks, as there is no place to keep them.
        let mut total = T::ZERO;
        for chunk in y.chunks(STRIP) {
            let mut e = [T::ZERO; STRIP];
            for (e, &y) in e.iter_mut().zip(chunk) {
                *e = y.exp();
            }
            total += sum(&e[..chunk.len()]);
        }
        let ln = total.ln();
        for y in y {
            *y = y.sub(ln);
        }
        return;
    }
    for y in y.iter_mut() {
        *y = y.sub(max).exp();
    }
    let scale = T::ONE.div(sum(y));
    for y in y {
        *y = y.mul(scale);
    }
}

/// `width` columns of `extent` rows, in place; rows are `stride` elements apart.
///
/// # Safety
/// Nobody else accesses them.
#[inline(always)]
unsafe fn across<T: Float>(y: Shared<T>, [extent, stride, width]: [usize; 3], log: bool) {
    let (mut max, mut total) = ([T::LOWEST; STRIP], [T::ZERO; STRIP]);
    for i in 0..extent {
        // SAFETY: the caller's promise; one row at a time is borrowed.
        let y = unsafe { y.slice(i * stride, width) };
        for (max, &mut y) in max.iter_mut().zip(y) {
            *max = max.larger(y);
        }
    }
    for i in 0..extent {
        // SAFETY: as above.
        let y = unsafe { y.slice(i * stride, width) };
        for ((y, &max), total) in y.iter_mut().zip(&max).zip(&mut total) {
            let shifted = y.sub(max);
            let e = shifted.exp();
            *total += e;
            *y = if log { shifted } else { e };
        }
    }
    for total in &mut total[..width] {
        *total = if log { total.ln() } else { T::ONE.div(*total) };
    }
    for i in 0..extent {
        // SAFETY: as above.
        let y = unsafe { y.slice(i * stride, width) };
        for (y, &total) in y.iter_mut().zip(&total) {
            *y = if log { y.sub(total) } else { y.mul(total) };
        }
    }
}

wide! {
    /// [`along`] with wide vectors.
    fn row<T: Float>(y: &mut [T], log: bool) = along
}

wide! {
    /// [`across`] with wide vectors.
    ///
    /// # Safety
    /// Nobody else accesses these columns.
    unsafe fn columns<T: Float>(y: Shared<T>, extents: [usize; 3], log: bool) = across
}
