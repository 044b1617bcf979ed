//! `LayerNorm`: mean and variance of every row, in two passes over it, then its elements, perhaps in
//! place. Where steps follow, a strip of a row is normalised and the steps run on it while it is in
//! cache. Without a place for `y` only the statistics are computed.

use super::address::{Shared, ask_for};
use super::blocks::{self, BLOCK, Formula, block};
use super::dispatch::for_float;
use super::fused_norm::{Steps, room};
use super::nest::Nest;
use super::number::Float;
use super::reduce::{sum, sum_of};
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::{Call, Operand};
use arenic_ir::DType;
use std::ops::Range;

/// Runs a `LayerNorm`, and steps after it.
pub(super) fn run(axis: usize, epsilon: f32, then: Option<Steps>, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, axis, epsilon, then));
}

/// A scale or bias, broadcast to a row.
pub(super) struct Factor<'a, T> {
    values: &'a [T],
    row: Nest<1>,
    /// There is a value for each of the row's elements.
    is_dense: bool,
}

impl<'a, T: Float> Factor<'a, T> {
    pub(super) fn new(x: &Operand<'a>, row: &[usize]) -> Self {
        // SAFETY: only `x` is in an in-place pair.
        let values = unsafe { x.slice() };
        let row = Nest::broadcast(row, [(&x.ty().shape, 1)]);
        let is_dense = values.len() == row.elements();
        Factor { values, row, is_dense }
    }

    /// The factor's elements for `count` ones of the row from `at` on, filled up with zeros.
    #[inline(always)]
    pub(super) fn block(&self, at: usize, count: usize) -> [T; BLOCK] {
        match self.values {
            &[value] => [value; BLOCK],
            values if self.is_dense => block(values, at),
            values => {
                let mut block = [T::ZERO; BLOCK];
                for (i, to) in block[..count].iter_mut().enumerate() {
                    *to = values[self.row.offset(at + i)];
                }
                block
            }
        }
    }
}

fn typed<T: Float>(call: &Call, axis: usize, epsilon: f32, then: Option<Steps>) {
    let x = &call.inputs[0];
    let row = &x.ty().shape[axis..];
    let n: usize = row.iter().product();
    let rows: usize = x.ty().shape[..axis].iter().product();
    let scale = Factor::<T>::new(&call.inputs[1], row);
    let bias = call.inputs.get(2).map(|b| Factor::<T>::new(b, row));
    let epsilon = T::from_f64(f64::from(epsilon));
    let from = Shared::new(x.ptr::<T>().cast_mut());
    let row_of_x = |i: usize| {
        // SAFETY: a row of the operand, which only this task may be about to overwrite.
        unsafe { std::slice::from_raw_parts(from.ptr().add(i * n).cast_const(), n) }
    };
    let y = call.outputs[0];
    let then = then.and_then(|then| then.following::<T>(x, y.as_ref()));
    // With steps it is theirs, of any type.
    let y = y.filter(|_| then.is_none()).map(|y| Shared::new(y.ptr::<T>()));
    let [means, inv_stds] =
        [1, 2].map(|i| call.outputs.get(i).copied().flatten().map(|t| Shared::new(t.ptr::<T>())));
    for_each(rows, 4 * rows * n, |i| {
        let (mean, inv_std) = moments(row_of_x(i), epsilon);
        for (to, value) in [(means, mean), (inv_stds, inv_std)] {
            if let Some(to) = to {
                // SAFETY: one element per row.
                unsafe { *to.ptr().add(i) = value };
            }
        }
        let row = Row { stats: [mean, inv_std], scale: &scale, bias: bias.as_ref() };
        let x = from.ptr().wrapping_add(i * n).cast_const();
        if let Some(y) = y {
            // SAFETY: this task's row; the operand's slice is gone.
            unsafe { normalise(x, y.ptr().add(i * n), 0..n, &row) };
        }
        let Some(then) = &then else { return };
        let mut strip = room::<T>();
        for first in (0..n).step_by(strip.len()) {
            let end = n.min(first + strip.len());
            // SAFETY: as above; the strip is filled first.
            unsafe {
                normalise(x.add(first), strip.as_mut_ptr().cast(), first..end, &row);
                let made = std::slice::from_raw_parts(strip.as_ptr().cast::<T>(), end - first);
                then.run(made, i * n + first);
            }
        }
    });
}

/// What a row is normalised by.
struct Row<'a, T> {
    stats: [T; 2],
    scale: &'a Factor<'a, T>,
    bias: Option<&'a Factor<'a, T>>,
}

wide! {
    /// Mean and inverse standard deviation of a row.
    fn moments<T: Float>(x: &[T], epsilon: T) -> (T, T) {
        /// Squares that are added up before they join the rest.
        const TOGETHER: usize = 256;
        let n = x.len();
        let mean = sum(x).div(T::of_count(n));
        let mut total = T::ZERO;
        for x in x.chunks(TOGETHER) {
            // Of the row that is next.
            ask_for(x.as_ptr().wrapping_add(n), x.len());
            total = total.add(sum_of(x, |x: T| x.sub(mean).mul(x.sub(mean))));
        }
        (mean, T::ONE.div(total.div(T::of_count(n)).add(epsilon).sqrt()))
    }
}

/// Elements of a row from `first` on: less its mean, over its deviation, scaled and shifted.
struct Normalised<'a, T> {
    row: &'a Row<'a, T>,
    first: usize,
    n: usize,
}

impl<T: Float> Formula<T, 1> for Normalised<'_, T> {
    #[inline(always)]
    fn block(&self, at: usize, [mut x]: [[T; BLOCK]; 1]) -> [T; BLOCK] {
        let [mean, inv_std] = self.row.stats;
        let (from, count) = (self.first + at, BLOCK.min(self.n - at));
        let scale = self.row.scale.block(from, count);
        for i in 0..BLOCK {
            x[i] = x[i].sub(mean).mul(inv_std).mul(scale[i]);
        }
        if let Some(bias) = self.row.bias {
            let bias = bias.block(from, count);
            for i in 0..BLOCK {
                x[i] = x[i].add(bias[i]);
            }
        }
        x
    }
}

wide! {
    /// Normalises a part of a row, from `x` to `y`.
    ///
    /// # Safety
    /// As for [`blocks::map`].
    unsafe fn normalise<T: Float>(x: *const T, y: *mut T, range: Range<usize>, row: &Row<T>) {
        let (first, n) = (range.start, range.len());
        // SAFETY: the caller's promise.
        unsafe { blocks::map([x], y, n, &Normalised { row, first, n }) };
    }
}
