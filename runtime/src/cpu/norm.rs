//! `LayerNorm`: mean and variance of every row, in two passes over it.
//!
//! A row is copied to its place unless it is there already and then worked on in place:
//! both cases are one. Without a place for `y` only the statistics are computed.

use super::number::Float;
use super::reduce::sum;
use super::tasks::{Shared, for_each, wide};
use crate::kernel::{Call, KernelError, Operand};
use arenic_ir::op::MAX_RANK;
use arenic_ir::{DType, Op};

/// Runs a `LayerNorm`.
pub(crate) fn run(call: &Call) -> Result<(), KernelError> {
    match call.inputs[0].ty().dtype {
        DType::F32 => typed::<f32>(call),
        DType::F64 => typed::<f64>(call),
        other => unreachable!("infer refuses a normalisation of {other}"),
    }
    Ok(())
}

/// A scale or bias, broadcast to a row.
struct Factor<'a, T> {
    values: &'a [T],
    row: &'a [usize],
    strides: [usize; MAX_RANK],
}

impl<'a, T: Float> Factor<'a, T> {
    fn new(x: &Operand<'a>, row: &'a [usize]) -> Self {
        let shape = &x.ty().shape;
        let mut strides = [0; MAX_RANK];
        let (mut stride, lead) = (1, row.len() - shape.len());
        for (i, &d) in shape.iter().enumerate().rev() {
            if d != 1 {
                strides[lead + i] = stride;
            }
            stride *= d;
        }
        // SAFETY: only `x` is in an in-place pair.
        Factor { values: unsafe { x.slice() }, row, strides }
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
                    let (mut rest, mut at) = (i, 0);
                    for d in (0..self.row.len()).rev() {
                        at += rest % self.row[d] * self.strides[d];
                        rest /= self.row[d];
                    }
                    *y = f(*y, values[at]);
                }
            }
        }
    }
}

fn typed<T: Float>(call: &Call) {
    let Op::LayerNorm { axis, epsilon } = *call.op else { unreachable!("no normalisation") };
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

/// Mean and inverse standard deviation of a row.
#[inline(always)]
fn statistics<T: Float>(x: &[T], epsilon: T) -> (T, T) {
    /// Squares summed at a time.
    const BLOCK: usize = 256;
    let mean = sum(x).over(x.len());
    let mut total = T::ZERO;
    for chunk in x.chunks(BLOCK) {
        let mut squares = [T::ZERO; BLOCK];
        for (square, &x) in squares.iter_mut().zip(chunk) {
            *square = x.sub(mean).mul(x.sub(mean));
        }
        total += sum(&squares[..chunk.len()]);
    }
    (mean, T::ONE.div(total.over(x.len()).add(epsilon).sqrt()))
}

/// A row less its mean, over its deviation, scaled and shifted.
#[inline(always)]
fn apply<T: Float>(y: &mut [T], mean: T, inv_std: T, scale: &Factor<T>, bias: Option<&Factor<T>>) {
    for y in y.iter_mut() {
        *y = y.sub(mean).mul(inv_std);
    }
    scale.apply(y, T::mul);
    if let Some(bias) = bias {
        bias.apply(y, T::add);
    }
}

wide! {
    /// [`statistics`] with wide vectors.
    fn moments<T: Float>(x: &[T], epsilon: T) -> (T, T) = statistics
}

wide! {
    /// [`apply`] with wide vectors.
    fn normalise<T: Float>(
        y: &mut [T], mean: T, inv_std: T, scale: &Factor<T>, bias: Option<&Factor<T>>,
    ) = apply
}
