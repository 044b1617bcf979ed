//! The cross entropy of rows without their probabilities: two numbers per row say what
//! the softmax of an element is, so that it is computed where it is needed.
//!
//! Every element has the bits that `LogSoftmax` and `Exp` give it.

use super::address::Shared;
use super::dispatch::for_float;
use super::indices::Indices;
use super::number::{Float, Number};
use super::reduce::{largest, sum};
use super::softmax::{BLOCK, blocks};
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::{Call, KernelError};
use arenic_ir::DType;

/// An exponential costs several plain elements.
const WORK: usize = 8;

/// `x → max, ln_sum` of every row.
pub(super) fn stats(call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => {
        let x = &call.inputs[0];
        let n = x.ty().shape.last().copied().unwrap_or(1);
        if n == 0 {
            return;
        }
        let from = Shared::new(x.ptr::<T>().cast_mut());
        let [max, ln_sum] = [0, 1].map(|k| call.outputs[k].map(|y| Shared::new(y.ptr::<T>())));
        for_each(x.ty().elements() / n, WORK * x.ty().elements(), |i| {
            // SAFETY: each task reads a row and writes its two results.
            unsafe {
                let [m, l] = row_stats(from.ptr().cast_const().add(i * n), n);
                if let Some(max) = max {
                    max.ptr().add(i).write(m);
                }
                if let Some(ln_sum) = ln_sum {
                    ln_sum.ptr().add(i).write(l);
                }
            }
        });
    });
}

wide! {
    /// Maximum and logarithm of the sum of a row's exponentials.
    ///
    /// # Safety
    /// `x` is valid for `n` elements.
    unsafe fn row_stats<T: Float>(x: *const T, n: usize) -> [T; 2] {
        // SAFETY: the caller's promise.
        let max = largest(unsafe { std::slice::from_raw_parts(x, n) });
        let mut sums = [T::ZERO; BLOCK];
        // SAFETY: as above.
        unsafe {
            blocks(x, n, |_, block, _| {
                for i in 0..BLOCK {
                    sums[i] = sums[i].add(block[i].sub(max).exp_flushed());
                }
            });
        }
        [max, sum(&sums).ln()]
    }
}

/// `x, max, ln_sum → exp((x − max) − ln_sum)`.
pub(super) fn softmax(call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => rows::<T>(call, |_, _| {}));
}

/// `x, max, ln_sum, target, w → w · onehot(target) − w · softmax(x)`.
pub(super) fn gradient(call: &Call) -> Result<(), KernelError> {
    let (x, target) = (&call.inputs[0], &call.inputs[3]);
    let n = x.ty().shape.last().copied().unwrap_or(1);
    // SAFETY: the targets are in no in-place pair.
    let targets = unsafe { Indices::of(target) };
    targets.check(&[n])?;
    for_float!(x.ty().dtype, T => {
        // SAFETY: as above.
        let w = unsafe { call.inputs[4].slice::<T>() };
        rows::<T>(call, |i, y| {
            let w = w[i];
            let target = targets.position(i, n);
            let at_target = y[target];
            // A sum of `w` and zeros, which the gradient of a row is, is never −0.
            let sum = T::ZERO.add(w);
            scale(y, sum);
            y[target] = w.sub(at_target.mul(sum));
        });
    });
    Ok(())
}

wide! {
    /// `y = 0 − y · w`.
    fn scale<T: Float>(y: &mut [T], w: T) {
        for y in y {
            *y = T::ZERO.sub(y.mul(w));
        }
    }
}

/// Computes the softmax of every row, then lets `finish` change it.
fn rows<T: Float>(call: &Call, finish: impl Fn(usize, &mut [T]) + Sync) {
    let (x, Some(y)) = (&call.inputs[0], call.outputs[0]) else { return };
    let n = x.ty().shape.last().copied().unwrap_or(1);
    if x.ty().elements() == 0 {
        return;
    }
    // SAFETY: both are in no in-place pair.
    let (max, ln_sum) = unsafe { (call.inputs[1].slice::<T>(), call.inputs[2].slice::<T>()) };
    let (from, to) = (Shared::new(x.ptr::<T>().cast_mut()), Shared::new(y.ptr::<T>()));
    for_each(x.ty().elements() / n, WORK * x.ty().elements(), |i| {
        // SAFETY: each task has a row of its own; equal or disjoint ranges.
        unsafe {
            let (x, y) = (from.ptr().cast_const().add(i * n), to.ptr().add(i * n));
            row_softmax(x, y, n, [max[i], ln_sum[i]]);
            finish(i, to.slice(i * n, n));
        }
    });
}

wide! {
    /// The softmax of one row, perhaps in place: a block is read before it is written.
    ///
    /// # Safety
    /// `x` and `y` are valid for `n` elements and equal or disjoint; nobody else accesses
    /// `y`.
    unsafe fn row_softmax<T: Float>(x: *const T, y: *mut T, n: usize, stats: [T; 2]) {
        let [max, ln_sum] = stats;
        // SAFETY: the caller's promise.
        unsafe {
            blocks(x, n, |at, mut block, count| {
                for x in &mut block {
                    *x = x.sub(max).sub(ln_sum).exp();
                }
                y.add(at).copy_from_nonoverlapping(block.as_ptr(), count);
            });
        }
    }
}
