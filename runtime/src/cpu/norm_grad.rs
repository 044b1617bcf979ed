//! `LayerNormInputGrad`: two means of every row, then its elements, a strip at a time where steps follow.

use super::address::Shared;
use super::blocks::{self, BLOCK, Formula};
use super::dispatch::for_float;
use super::fused_norm::{Dy, Steps, room};
use super::norm::Factor;
use super::number::Float;
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::Call;
use arenic_backends::reduce::SEGMENT;
use arenic_ir::DType;
use std::ops::Range;

/// Runs a `LayerNormInputGrad`, perhaps of what steps give, and with steps after it.
pub(super) fn run(axis: usize, dy: Option<Steps>, then: Option<Steps>, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, axis, dy, then));
}

fn typed<T: Float>(call: &Call, axis: usize, dy: Option<Steps>, then: Option<Steps>) {
    let y = call.outputs[0];
    let then = then.and_then(|then| then.following::<T>(&call.inputs[0], y.as_ref()));
    if y.is_none() && then.is_none() {
        return;
    }
    let shape = &call.inputs[0].ty().shape;
    let (rows, n) = (shape[..axis].iter().product(), shape[axis..].iter().product::<usize>());
    let x = Shared::new(call.inputs[0].ptr::<T>().cast_mut());
    let dy = Dy::<T>::new(dy, call);
    // With steps it is theirs, of any type.
    let y = y.filter(|_| then.is_none()).map(|y| Shared::new(y.ptr::<T>()));
    let scale = Factor::<T>::new(&call.inputs[2], &shape[axis..]);
    // SAFETY: only `x`, what `dy` is made of and what steps after it read are in in-place pairs.
    let [mean, inv_std] = [3, 4].map(|i| unsafe { call.inputs[i].slice::<T>() });
    for_each(rows, 4 * rows * n, |i| {
        let mut room = room::<T>();
        let row = Row { stats: [mean[i], inv_std[i]], scale: &scale };
        // A segment is whole blocks, so that lanes add up what they do without any.
        let strips = || (0..n).step_by(SEGMENT).map(|at| at..n.min(at + SEGMENT));
        let mut sums = [[T::ZERO; BLOCK]; 2];
        let at = |strip: &Range<usize>| x.ptr().wrapping_add(i * n + strip.start).cast_const();
        for strip in strips() {
            let dy = dy.strip(i * n + strip.start, strip.len(), &mut room);
            // SAFETY: each task has a row of its own.
            unsafe { add_up([at(&strip), dy], &strip, &row, &mut sums) };
        }
        let count = T::of_count(n);
        let means = sums.map(|lanes| blocks::fold(lanes).div(count));
        for strip in strips() {
            let first = i * n + strip.start;
            let dy = dy.strip(first, strip.len(), &mut room);
            let mut made = self::room::<T>();
            let to = match &y {
                Some(y) => y.ptr().wrapping_add(first),
                None => made.as_mut_ptr().cast(),
            };
            // SAFETY: as above; what is made has room for a strip.
            unsafe {
                gradient([at(&strip), dy], to, &strip, &row, means);
                if let Some(then) = &then {
                    then.run(std::slice::from_raw_parts(to.cast_const(), strip.len()), first);
                }
            }
        }
    });
}

/// What a row was normalised by.
struct Row<'a, T> {
    stats: [T; 2],
    scale: &'a Factor<'a, T>,
}

wide! {
    /// Adds to sums the gradients of what was normalised in a strip of a row, and their products with it.
    ///
    /// # Safety
    /// The operands are valid for the strip's elements.
    unsafe fn add_up<T: Float>(
        operands: [*const T; 2],
        strip: &Range<usize>,
        row: &Row<T>,
        sums: &mut [[T; BLOCK]; 2],
    ) {
        let [mean, inv_std] = row.stats;
        // They stay in registers.
        let mut lanes = *sums;
        for at in (0..strip.len()).step_by(BLOCK) {
            let count = BLOCK.min(strip.len() - at);
            // SAFETY: the caller's promise. What fills the last block up has no gradient.
            let [x, dy] = unsafe { blocks::read(operands, at, count) };
            let scale = row.scale.block(strip.start + at, count);
            for i in 0..BLOCK {
                let g = dy[i].mul(scale[i]);
                lanes[0][i] = lanes[0][i].add(g);
                lanes[1][i] = lanes[1][i].add(g.mul(x[i].sub(mean).mul(inv_std)));
            }
        }
        *sums = lanes;
    }
}

/// The gradient of a strip of a row, from it, the gradient of the result, and the means of the row.
struct Gradient<'a, T> {
    row: &'a Row<'a, T>,
    strip: &'a Range<usize>,
    means: [T; 2],
}

impl<T: Float> Formula<T, 2> for Gradient<'_, T> {
    #[inline(always)]
    fn block(&self, at: usize, [x, mut dy]: [[T; BLOCK]; 2]) -> [T; BLOCK] {
        let ([mean, inv_std], [of_gradient, of_product]) = (self.row.stats, self.means);
        let count = BLOCK.min(self.strip.len() - at);
        let scale = self.row.scale.block(self.strip.start + at, count);
        for i in 0..BLOCK {
            let normalised = x[i].sub(mean).mul(inv_std);
            let rest = dy[i].mul(scale[i]).sub(of_gradient).sub(normalised.mul(of_product));
            dy[i] = inv_std.mul(rest);
        }
        dy
    }
}

wide! {
    /// The gradient of a strip, perhaps in place.
    ///
    /// # Safety
    /// As for [`blocks::map`].
    unsafe fn gradient<T: Float>(
        operands: [*const T; 2],
        y: *mut T,
        strip: &Range<usize>,
        row: &Row<T>,
        means: [T; 2],
    ) {
        // SAFETY: the caller's promise.
        unsafe { blocks::map(operands, y, strip.len(), &Gradient { row, strip, means }) };
    }
}
