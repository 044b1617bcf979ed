//! `LayerNormInputGrad`: two means of every row, then its elements.

use super::address::Shared;
use super::blocks::{self, BLOCK};
use super::dispatch::for_float;
use super::norm::Factor;
use super::number::Float;
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::Call;
use arenic_ir::DType;

/// Runs a `LayerNormInputGrad`.
pub(super) fn run(axis: usize, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, axis));
}

fn typed<T: Float>(call: &Call, axis: usize) {
    let Some(y) = call.outputs[0] else { return };
    let shape = &y.ty().shape;
    let (rows, n) = (shape[..axis].iter().product(), shape[axis..].iter().product::<usize>());
    let [x, dy] = [0, 1].map(|i| Shared::new(call.inputs[i].ptr::<T>().cast_mut()));
    let y = Shared::new(y.ptr::<T>());
    let scale = Factor::<T>::new(&call.inputs[2], &shape[axis..]);
    // SAFETY: only `x` and `dy` are in in-place pairs.
    let [mean, inv_std] = [3, 4].map(|i| unsafe { call.inputs[i].slice::<T>() });
    for_each(rows, 4 * rows * n, |i| {
        // SAFETY: each task has a row of its own.
        unsafe {
            let operands = [x, dy].map(|x| x.ptr().add(i * n).cast_const());
            row(operands, y.ptr().add(i * n), n, [mean[i], inv_std[i]], &scale);
        }
    });
}

wide! {
    /// The gradient of a row of `n` elements, from them and the gradient of the result.
    ///
    /// # Safety
    /// As for [`blocks::map`].
    unsafe fn row<T: Float>(
        operands: [*const T; 2],
        y: *mut T,
        n: usize,
        stats: [T; 2],
        scale: &Factor<T>,
    ) {
        let [mean, inv_std] = stats;
        let mut sums = [[T::ZERO; BLOCK]; 2];
        for at in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - at);
            // SAFETY: the caller's promise, here and below. What fills the last block up has
            // no gradient.
            let [x, dy] = unsafe { blocks::read(operands, at, count) };
            let scale = scale.block(at, count);
            for i in 0..BLOCK {
                let g = dy[i].mul(scale[i]);
                sums[0][i] = sums[0][i].add(g);
                sums[1][i] = sums[1][i].add(g.mul(x[i].sub(mean).mul(inv_std)));
            }
        }
        let count = T::of_count(n);
        let [of_gradient, of_product] = sums.map(|lanes| blocks::fold(lanes).div(count));
        // SAFETY: as above.
        unsafe {
            blocks::map(operands, y, n, |at, [x, mut dy]| {
                let scale = scale.block(at, BLOCK.min(n - at));
                for i in 0..BLOCK {
                    let normalised = x[i].sub(mean).mul(inv_std);
                    let rest = dy[i].mul(scale[i]).sub(of_gradient).sub(normalised.mul(of_product));
                    dy[i] = inv_std.mul(rest);
                }
                dy
            });
        }
    }
}
