//! Optimizer updates of `ai.onnx.preview.training`.
//!
//! Every result may take the bytes of the operand that it replaces: all operands of a
//! block are read before any result is written.
//!
//! The gradient may come as tiles of a product instead of as an operand, so whoever runs
//! an update says in which regions ([`Update::drive`]).

use super::address::{Dst, Src};
use super::dispatch::for_float;
use super::number::{Float, Number};
use super::pointwise;
use super::region::{Kernel, Region, Update};
use super::tasks::{CHEAP, for_ranges};
use super::wide::wide;
use crate::kernel::Call;
use arenic_ir::{DType, Op};

/// Elements of one block.
const BLOCK: usize = 32;

/// Runs an update whose gradient is an operand.
pub(super) fn run(call: &Call) {
    let elements = call.outputs.iter().flatten().next().map_or(0, |y| y.ty().elements());
    let drive = |kernel: Kernel| {
        for_ranges(elements, CHEAP / 2, &|r| {
            kernel(Region { first: r.start, rows: 1, cols: r.len(), stride: 0 }, None);
        });
    };
    let (inputs, outputs) = (call.inputs, call.outputs);
    Update { op: call.op, inputs, outputs, tiled: None, drive: &drive }.run();
}

impl Update<'_> {
    /// Runs the update.
    pub(super) fn run(&self) {
        if self.outputs.iter().all(Option::is_none) {
            return;
        }
        match *self.op {
            Op::Adam { alpha, beta, epsilon, norm_coefficient, norm_coefficient_post } => {
                adam(alpha, beta, epsilon, [norm_coefficient, norm_coefficient_post], self);
            }
            Op::Adagrad { decay_factor, epsilon, norm_coefficient } => {
                adagrad(decay_factor, epsilon, norm_coefficient, self);
            }
            Op::Momentum { alpha, beta, nesterov, norm_coefficient } => {
                momentum(alpha, beta, nesterov, norm_coefficient, self);
            }
            Op::Pointwise { ref steps, ref results } => pointwise::run_tiled(steps, results, self),
            ref other => unreachable!("{} is no update", other.name()),
        }
    }
}

/// `lr, t, x, g, v, h → x', v', h'`; `norm` is added to the gradient's and taken off the
/// result's scale.
fn adam(alpha: f32, beta: f32, epsilon: f32, norm: [f32; 2], call: &Update) {
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
fn adagrad(decay_factor: f32, epsilon: f32, norm: f32, call: &Update) {
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
fn momentum(alpha: f32, beta: f32, nesterov: bool, norm: f32, call: &Update) {
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
fn scalars<T: Float>(call: &Update) -> (f64, i64) {
    // SAFETY: scalars of these types by inference.
    unsafe { (call.inputs[0].ptr::<T>().read().to_f64(), call.inputs[1].ptr::<i64>().read()) }
}

/// Applies `f` to the elements of four operands, given by their positions.
fn apply<T: Float>(call: &Update, x: [usize; 4], f: impl Fn([T; 4]) -> [T; 3] + Copy + Sync) {
    let tiled = x.map(|i| call.tiled == Some(i));
    let x = x.map(|i| Src::of(&call.inputs[i]));
    let mut y = [None; 3];
    for (y, output) in y.iter_mut().zip(call.outputs) {
        *y = output.as_ref().map(Dst::of);
    }
    (call.drive)(&|region: Region, tile: Option<Src>| {
        for row in 0..region.rows {
            let bytes = (region.first + row * region.stride) * size_of::<T>();
            let tile = tile.unwrap_or(Src::NONE).0.wrapping_add(row * region.cols * size_of::<T>());
            let mut from = [Src(tile); 4];
            for k in (0..4).filter(|&k| !tiled[k]) {
                // SAFETY: all operands and results have the parameter's type.
                from[k] = unsafe { x[k].at(bytes) };
            }
            // SAFETY: as above.
            let to = y.map(|y| y.map(|y| unsafe { y.at(bytes) }));
            // SAFETY: elements of the region, of which each task has its own.
            unsafe { update(from, to, region.cols, &f) };
        }
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
        let whole = n / BLOCK * BLOCK;
        // SAFETY: elements of the row; all of a block are read before one is written.
        unsafe {
            for at in (0..whole).step_by(BLOCK) {
                let read = x.map(|x| x.add(at).cast::<[T; BLOCK]>().read());
                let written = block(&read, f);
                for k in 0..3 {
                    if let Some(y) = y[k] {
                        y.add(at).cast::<[T; BLOCK]>().write(written[k]);
                    }
                }
            }
            for at in whole..n {
                let written = f(x.map(|x| x.add(at).read()));
                for k in 0..3 {
                    if let Some(y) = y[k] {
                        y.add(at).write(written[k]);
                    }
                }
            }
        }
    }
}

/// Applies `f` to the elements of a block.
#[inline(always)]
fn block<T: Float>(x: &[[T; BLOCK]; 4], f: &impl Fn([T; 4]) -> [T; 3]) -> [[T; BLOCK]; 3] {
    let mut y = [[T::ZERO; BLOCK]; 3];
    for i in 0..BLOCK {
        let results = f([x[0][i], x[1][i], x[2][i], x[3][i]]);
        for k in 0..3 {
            y[k][i] = results[k];
        }
    }
    y
}
