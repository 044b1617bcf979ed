//! `Softmax` and `LogSoftmax`: the maximum is subtracted first, so that nothing overflows. A NaN need not be it:
//! the sum has it.
//!
//! Along any other axis than the last one, columns take the place of rows, several at a
//! time; they are copied to their place first, unless they are there already.

use super::address::{Shared, ask_for};
use super::dispatch::for_float;
use super::number::Float;
use super::reduce::{largest_number, sum};
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::Call;
use arenic_ir::DType;

/// Runs a `Softmax` or a `LogSoftmax`.
pub(super) fn run(axis: usize, log: bool, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, axis, log));
}

/// Columns worked on at a time.
pub(super) const STRIP: usize = 64;

fn typed<T: Float>(call: &Call, axis: usize, log: bool) {
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
    if inner == 1 {
        for_each(all / extent, work, |i| {
            let at = i * extent;
            // SAFETY: each task has a row of its own.
            unsafe { row(from.ptr().cast_const().add(at), y.ptr().add(at), extent, log) };
        });
        return;
    }
    let strips = inner.div_ceil(STRIP);
    for_each(all / extent / inner * strips, work, |task| {
        let (outer, column) = (task / strips, task % strips * STRIP);
        let width = STRIP.min(inner - column);
        let first = outer * extent * inner + column;
        for i in 0..extent {
            let at = first + i * inner;
            if from.ptr() != y.ptr() {
                // SAFETY: columns of this task; other bytes, as the operand is not the result.
                unsafe { y.ptr().add(at).copy_from_nonoverlapping(from.ptr().add(at), width) };
            }
        }
        // SAFETY: each task has columns of its own.
        unsafe { columns(Shared::new(y.ptr().add(first)), [extent, inner, width], log) };
    });
}

/// Elements of a row worked on at a time.
pub(super) const BLOCK: usize = 16;

/// Calls `f` with blocks of a row, their places and their lengths; a shorter one is filled up
/// with what has no exponential.
///
/// # Safety
/// `x` is valid for `n` elements.
#[inline(always)]
pub(super) unsafe fn blocks<T: Float>(
    x: *const T,
    n: usize,
    mut f: impl FnMut(usize, [T; BLOCK], usize),
) {
    let whole = n / BLOCK * BLOCK;
    // SAFETY: the caller's promise.
    unsafe {
        for at in (0..whole).step_by(BLOCK) {
            f(at, x.add(at).cast::<[T; BLOCK]>().read(), BLOCK);
        }
        if whole < n {
            let mut block = [T::LOWEST; BLOCK];
            block.as_mut_ptr().copy_from_nonoverlapping(x.add(whole), n - whole);
            f(whole, block, n - whole);
        }
    }
}

wide! {
    /// One row of `n` elements, perhaps in place: a block is read before it is written.
    ///
    /// # Safety
    /// `x` and `y` are valid for it and equal or disjoint; nobody else accesses `y`.
    unsafe fn row<T: Float>(x: *const T, y: *mut T, n: usize, log: bool) {
        // SAFETY: the caller's promise; the slice is gone before anything is written.
        let max = largest_number(unsafe { std::slice::from_raw_parts(x, n) });
        let store = |at: usize, block: [T; BLOCK], count: usize| {
            // SAFETY: part of the row.
            unsafe {
                if count == BLOCK {
                    y.add(at).cast::<[T; BLOCK]>().write(block);
                } else {
                    y.add(at).copy_from_nonoverlapping(block.as_ptr(), count);
                }
            }
        };
        let mut sums = [T::ZERO; BLOCK];
        let exponentials = |at: usize, mut block: [T; BLOCK], count: usize| {
            // Of the row that is next.
            ask_for(x.wrapping_add(n + at), BLOCK);
            if log {
                // Stores come in the next pass, all at once.
                ask_for(y.wrapping_add(at).cast_const(), BLOCK);
            }
            for i in 0..BLOCK {
                block[i] = block[i].sub(max).exp_flushed();
                sums[i] = sums[i].add(block[i]);
            }
            if !log {
                store(at, block, count);
            }
        };
        // SAFETY: the caller's promise, here and below.
        unsafe { blocks(x, n, exponentials) };
        let total = sum(&sums);
        if log {
            let ln = total.ln();
            let shift = |at: usize, mut block: [T; BLOCK], count: usize| {
                for x in &mut block {
                    *x = x.sub(max).sub(ln);
                }
                store(at, block, count);
            };
            // SAFETY: as above.
            unsafe { blocks(x, n, shift) };
            return;
        }
        let scale = T::ONE.div(total);
        // SAFETY: written above.
        for y in unsafe { std::slice::from_raw_parts_mut(y, n) } {
            *y = y.mul(scale);
        }
    }
}

wide! {
    /// `width` columns of `extent` rows, in place; rows are `stride` elements apart.
    ///
    /// # Safety
    /// Nobody else accesses them.
    unsafe fn columns<T: Float>(y: Shared<T>, extents: [usize; 3], log: bool) {
        let [extent, stride, width] = extents;
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
                let e = shifted.exp_flushed();
                *total = total.add(e);
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
}
