//! `SoftmaxGrad` and `LogSoftmaxGrad`: a sum along the axis, then the elements.
//!
//! As for the softmax itself, columns take the place of rows along any other axis than the
//! last one.

use super::address::Shared;
use super::blocks::{self, BLOCK, block};
use super::dispatch::for_float;
use super::number::Float;
use super::softmax::STRIP;
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::Call;
use arenic_ir::DType;

/// Runs a `SoftmaxGrad`.
pub(super) fn of_softmax(axis: usize, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T, OfSoftmax>(call, axis));
}

/// Runs a `LogSoftmaxGrad`.
pub(super) fn of_log_softmax(axis: usize, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T, OfLogSoftmax>(call, axis));
}

/// What is summed along the axis, and what becomes of each element then.
trait Gradient<T>: 'static {
    fn term(y: T, dy: T) -> T;
    fn of(y: T, dy: T, total: T) -> T;
}

struct OfSoftmax;
impl<T: Float> Gradient<T> for OfSoftmax {
    #[inline(always)]
    fn term(y: T, dy: T) -> T {
        y.mul(dy)
    }
    #[inline(always)]
    fn of(y: T, dy: T, total: T) -> T {
        y.mul(dy.sub(total))
    }
}

struct OfLogSoftmax;
impl<T: Float> Gradient<T> for OfLogSoftmax {
    #[inline(always)]
    fn term(_: T, dy: T) -> T {
        dy
    }
    #[inline(always)]
    fn of(y: T, dy: T, total: T) -> T {
        dy.sub(y.exp().mul(total))
    }
}

fn typed<T: Float, G: Gradient<T>>(call: &Call, axis: usize) {
    let Some(dx) = call.outputs[0] else { return };
    let shape = &dx.ty().shape;
    let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let all = dx.ty().elements();
    if all == 0 {
        return;
    }
    let [y, dy] = [0, 1].map(|i| Shared::new(call.inputs[i].ptr::<T>().cast_mut()));
    let dx = Shared::new(dx.ptr::<T>());
    // SAFETY: within the tensors.
    let operands = |at: usize| unsafe { [y, dy].map(|x| x.ptr().add(at).cast_const()) };
    let work = 4 * all;
    if inner == 1 {
        for_each(all / extent, work, |i| {
            let at = i * extent;
            // SAFETY: each task has a row of its own.
            unsafe { row::<T, G>(operands(at), dx.ptr().add(at), extent) };
        });
        return;
    }
    let strips = inner.div_ceil(STRIP);
    for_each(all / extent / inner * strips, work, |task| {
        let (outer, column) = (task / strips, task % strips * STRIP);
        let at = outer * extent * inner + column;
        let extents = [extent, inner, STRIP.min(inner - column)];
        // SAFETY: each task has columns of its own.
        unsafe { columns::<T, G>(operands(at), dx.ptr().add(at), extents) };
    });
}

wide! {
    /// One row of `n` elements.
    ///
    /// # Safety
    /// As for [`blocks::map`].
    unsafe fn row<T: Float, G: Gradient<T>>(operands: [*const T; 2], dx: *mut T, n: usize) {
        let mut lanes = [T::ZERO; BLOCK];
        for at in (0..n).step_by(BLOCK) {
            // SAFETY: the caller's promise, here and below. What fills the last block up adds
            // nothing.
            let [y, dy] = unsafe { blocks::read(operands, at, BLOCK.min(n - at)) };
            for i in 0..BLOCK {
                lanes[i] = lanes[i].add(G::term(y[i], dy[i]));
            }
        }
        let total = blocks::fold(lanes);
        // SAFETY: as above.
        unsafe {
            blocks::map(operands, dx, n, &|_: usize, [y, mut dy]: [[T; BLOCK]; 2]| {
                for i in 0..BLOCK {
                    dy[i] = G::of(y[i], dy[i], total);
                }
                dy
            });
        }
    }
}

wide! {
    /// `width` columns of `extent` rows that are `stride` elements apart.
    ///
    /// # Safety
    /// As for [`blocks::map`], for every row.
    unsafe fn columns<T: Float, G: Gradient<T>>(
        operands: [*const T; 2],
        dx: *mut T,
        extents: [usize; 3],
    ) {
        let [extent, stride, width] = extents;
        let mut totals = [T::ZERO; STRIP];
        for i in 0..extent {
            for at in (0..width).step_by(BLOCK) {
                // SAFETY: the caller's promise, here and below.
                let [y, dy] =
                    unsafe { blocks::read(operands, i * stride + at, BLOCK.min(width - at)) };
                for j in 0..BLOCK {
                    totals[at + j] = totals[at + j].add(G::term(y[j], dy[j]));
                }
            }
        }
        for i in 0..extent {
            // SAFETY: as above.
            unsafe {
                let operands = operands.map(|x| x.add(i * stride));
                blocks::map(operands, dx.add(i * stride), width, &|at: usize, [y, mut dy]: [[T; BLOCK]; 2]| {
                    let totals = block(&totals, at);
                    for j in 0..BLOCK {
                        dy[j] = G::of(y[j], dy[j], totals[j]);
                    }
                    dy
                });
            }
        }
    }
}
