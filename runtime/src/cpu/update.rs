//! Optimizer updates of `ai.onnx.preview.training`.
//!
//! Every result may take the bytes of the operand that it replaces: all operands of a
//! block are read before any result is written.

use super::address::{Dst, Src};
use super::dispatch::for_float;
use super::number::{Float, Number};
use super::tasks::{CHEAP, for_ranges};
use super::wide::wide;
use crate::kernel::Call;
use arenic_ir::DType;

/// Elements of one block.
const BLOCK: usize = 32;

/// `lr, t, x, g, v, h → x', v', h'`; `norm` is added to the gradient's and taken off the
/// result's scale.
pub(super) fn adam(alpha: f32, beta: f32, epsilon: f32, norm: [f32; 2], call: &Call) {
    let (alpha, beta) = (f64::from(alpha), f64::from(beta));
    for_float!(call.inputs[2].ty().dtype, T => {
        let (lr, t) = scalars::<T>(call);
        // Bias correction starts with the first counted step.
        let lr = if t > 0 {
            lr * (1.0 - beta.powf(t as f64)).sqrt() / (1.0 - alpha.powf(t as f64))
        } else {
            lr
        };
        let [lr, alpha, beta, alpha1, beta1, epsilon, norm, shrink] = [
            lr,
            alpha,
            beta,
            1.0 - alpha,
            1.0 - beta,
            f64::from(epsilon),
            f64::from(norm[0]),
            1.0 - f64::from(norm[1]),
        ]
        .map(T::from_f64);
        apply(call, [2, 3, 4, 5], move |[x, g, v, h]: [T; 4]| {
            let g = norm * x + g;
            let v = alpha * v + alpha1 * g;
            let h = beta * h + beta1 * (g * g);
            let x = x - lr * (v / (h.sqrt() + epsilon));
            [shrink * x, v, h]
        });
    });
}

/// `lr, t, x, g, h → x', h'`.
pub(super) fn adagrad(decay_factor: f32, epsilon: f32, norm: f32, call: &Call) {
    for_float!(call.inputs[2].ty().dtype, T => {
        let (lr, t) = scalars::<T>(call);
        let lr = lr / (1.0 + t as f64 * f64::from(decay_factor));
        let [lr, epsilon, norm] = [lr, f64::from(epsilon), f64::from(norm)].map(T::from_f64);
        apply(call, [2, 3, 4, 3], move |[x, g, h, _]: [T; 4]| {
            let g = norm * x + g;
            let h = h + g * g;
            [x - lr * g / (h.sqrt() + epsilon), h, h]
        });
    });
}

/// `lr, t, x, g, v → x', v'`.
pub(super) fn momentum(alpha: f32, beta: f32, nesterov: bool, norm: f32, call: &Call) {
    for_float!(call.inputs[2].ty().dtype, T => {
        let (lr, t) = scalars::<T>(call);
        // The first gradient counts in full.
        let beta = if t > 0 { f64::from(beta) } else { 1.0 };
        let [lr, alpha, beta, norm] =
            [lr, f64::from(alpha), beta, f64::from(norm)].map(T::from_f64);
        if nesterov {
            apply(call, [2, 3, 4, 3], move |[x, g, v, _]: [T; 4]| {
                let g = norm * x + g;
                let v = alpha * v + beta * g;
                [x - lr * (g + alpha * v), v, v]
            });
        } else {
            apply(call, [2, 3, 4, 3], move |[x, g, v, _]: [T; 4]| {
                let g = norm * x + g;
                let v = alpha * v + beta * g;
                [x - lr * v, v, v]
            });
        }
    });
}

/// Learning rate and update count, read before anything is written.
fn scalars<T: Float>(call: &Call) -> (f64, i64) {
    // SAFETY: scalars of these types by inference.
    unsafe { (call.inputs[0].ptr::<T>().read().to_f64(), call.inputs[1].ptr::<i64>().read()) }
}

/// Applies `f` to the elements of four operands, given by their positions.
fn apply<T: Float>(call: &Call, x: [usize; 4], f: impl Fn([T; 4]) -> [T; 3] + Copy + Sync) {
    if call.outputs.iter().all(Option::is_none) {
        return;
    }
    let x = x.map(|i| Src::of(&call.inputs[i]));
    let mut y = [None; 3];
    for (y, output) in y.iter_mut().zip(call.outputs) {
        *y = output.as_ref().map(Dst::of);
    }
    for_ranges(call.inputs[2].ty().elements(), CHEAP / 2, &|r| {
        let bytes = r.start * size_of::<T>();
        // SAFETY: all operands and results have the parameter's type.
        let (x, y) = unsafe { (x.map(|x| x.at(bytes)), y.map(|y| y.map(|y| y.at(bytes)))) };
        // SAFETY: elements of the range, of which each task has its own.
        unsafe { update(x, y, r.len(), &f) };
    });
}

wide! {
    /// `n` elements of an update.
    ///
    /// # Safety
    /// Operands and results are valid for them.
    unsafe fn update<T: Float, F: Fn([T; 4]) -> [T; 3]>(
        x: [Src; 4],
        y: [Option<Dst>; 3],
        n: usize,
        f: &F,
    ) {
        let x = x.map(|x| x.0.cast::<T>());
        let y = y.map(|y| y.map(|y| y.0.cast::<T>()));
        let mut at = 0;
        while at < n {
            let count = BLOCK.min(n - at);
            let (mut read, mut written) = ([[T::ZERO; BLOCK]; 4], [[T::ZERO; BLOCK]; 3]);
            // SAFETY: elements of the row; all of a block are read before one is written.
            unsafe {
                for k in 0..4 {
                    read[k].as_mut_ptr().copy_from_nonoverlapping(x[k].add(at), count);
                }
                for i in 0..BLOCK {
                    let results = f([read[0][i], read[1][i], read[2][i], read[3][i]]);
                    for k in 0..3 {
                        written[k][i] = results[k];
                    }
                }
                for k in 0..3 {
                    if let Some(y) = y[k] {
                        y.add(at).copy_from_nonoverlapping(written[k].as_ptr(), count);
                    }
                }
            }
            at += count;
        }
    }
}
