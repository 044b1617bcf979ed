//! `LayerNorm`: mean and variance of every row, in two passes over it.
//!
//! A row is copied to its place unless it is there already and then worked on in place:
//! both cases are one. Without a place for `y` only the statistics are computed.

use super::address::Shared;
use super::blocks::{BLOCK, block};
use super::dispatch::for_float;
use super::nest::Nest;
use super::number::Float;
use super::reduce::sum;
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::{Call, Operand};
use arenic_ir::DType;

/// Runs a `LayerNorm`.
pub(super) fn run(axis: usize, epsilon: f32, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, axis, epsilon));
}

/// A scale or bias, broadcast to a row.
pub(super) struct Factor<'a, T> {
    values: &'a [T],
    row: Nest<1>,
}

impl<'a, T: Float> Factor<'a, T> {
    pub(super) fn new(x: &Operand<'a>, row: &[usize]) -> Self {
        // SAFETY: only `x` is in an in-place pair.
        Factor { values: unsafe { x.slice() }, row: Nest::broadcast(row, [(&x.ty().shape, 1)]) }
    }

    /// The factor's elements for `count` ones of the row from `at` on, filled up with zeros.
    #[inline(always)]
    pub(super) fn block(&self, at: usize, count: usize) -> [T; BLOCK] {
        match self.values {
            &[value] => [value; BLOCK],
            values if values.len() == self.row.elements() => block(values, at),
            values => {
                let mut block = [T::ZERO; BLOCK];
                for (i, to) in block[..count].iter_mut().enumerate() {
                    *to = values[self.row.offset(at + i)];
                }
                block
            }
        }
    }

    /// Combines row elements with the factor's.
    #[inline(always)]
    fn apply(&self, y: &mut [T], f: impl Fn(T, T) -> T) {
        match self.values {
            values if values.len() == y.len() => {
                for (y, &v) in y.iter_mut().zip(values) {
                    *y = f(*y, v);
                }
            }
            &[value] => {
                for y in y {
                    *y = f(*y, value);
                }
            }
            values => {
                for (i, y) in y.iter_mut().enumerate() {
                    *y = f(*y, values[self.row.offset(i)]);
                }
            }
        }
    }
}

fn typed<T: Float>(call: &Call, axis: usize, epsilon: f32) {
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
    let [y, means, inv_stds] = [0, 1, 2]
        .map(|i| call.outputs.get(i).copied().flatten().map(|t| Shared::new(t.ptr::<T>())));
    for_each(rows, 4 * rows * n, |i| {
        let (mean, inv_std) = moments(row_of_x(i), epsilon);
        for (to, value) in [(means, mean), (inv_stds, inv_std)] {
            if let Some(to) = to {
                // SAFETY: one element per row.
                unsafe { *to.ptr().add(i) = value };
            }
        }
        let Some(y) = y else { return };
        if from.ptr() != y.ptr() {
            // SAFETY: other bytes, as the operand is not the result.
            unsafe { std::ptr::copy_nonoverlapping(from.ptr().add(i * n), y.ptr().add(i * n), n) };
        }
        // SAFETY: this task's row; the operand's slice is gone.
        let y = unsafe { y.slice(i * n, n) };
        normalise(y, mean, inv_std, &scale, bias.as_ref());
    });
}

wide! {
    /// Mean and inverse standard deviation of a row.
    fn moments<T: Float>(x: &[T], epsilon: T) -> (T, T) {
        /// Squares summed at a time.
        const BLOCK: usize = 256;
        let mean = sum(x).div(T::of_count(x.len()));
        let mut total = T::ZERO;
        for chunk in x.chunks(BLOCK) {
            let mut squares = [T::ZERO; BLOCK];
            for (square, &x) in squares.iter_mut().zip(chunk) {
                *square = x.sub(mean).mul(x.sub(mean));
            }
            total = total.add(sum(&squares[..chunk.len()]));
        }
        (mean, T::ONE.div(total.div(T::of_count(x.len())).add(epsilon).sqrt()))
    }
}

wide! {
    /// A row less its mean, over its deviation, scaled and shifted.
    fn normalise<T: Float>(y: &mut [T], mean: T, inv_std: T, scale: &Factor<T>, bias: Option<&Factor<T>>) {
        for y in y.iter_mut() {
            *y = y.sub(mean).mul(inv_std);
        }
        scale.apply(y, T::mul);
        if let Some(bias) = bias {
            bias.apply(y, T::add);
        }
    }
}
