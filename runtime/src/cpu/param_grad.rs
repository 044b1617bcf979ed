//! `BatchNormParamGrad` and `LayerNormParamGrad`: sums of the gradient and of its product with
//! what was normalised, for every channel or for every place of a row.

use super::address::Shared;
use super::channels::{Terms, sums};
use super::dispatch::for_float;
use super::number::Float;
use crate::kernel::Call;
use arenic_backends::cpu::tiling::{channel_sums, channels, rows};
use arenic_ir::DType;

/// Runs a `LayerNormParamGrad`.
pub(super) fn of_rows(axis: usize, call: &Call) {
    let x = call.inputs[0].ty();
    for_float!(x.dtype, T => typed::<T, true>(call, rows(x, axis)));
}

/// Runs a `BatchNormParamGrad`.
pub(super) fn of_channels(call: &Call) {
    let x = call.inputs[0].ty();
    for_float!(x.dtype, T => typed::<T, false>(call, channels(x)));
}

/// The operands; statistics are of rows or of channels.
struct Gradients<'a, T, const OF_ROWS: bool> {
    x: &'a [T],
    dy: &'a [T],
    mean: &'a [T],
    inv_std: &'a [T],
}

impl<T: Float, const OF_ROWS: bool> Terms<T, 2> for Gradients<'_, T, OF_ROWS> {
    #[inline(always)]
    unsafe fn of(&self, i: usize, row: usize, channel: usize) -> [T; 2] {
        let group = if OF_ROWS { row } else { channel };
        // SAFETY: the caller's promise.
        unsafe {
            let (mean, inv_std) =
                (*self.mean.get_unchecked(group), *self.inv_std.get_unchecked(group));
            let (x, dy) = (*self.x.get_unchecked(i), *self.dy.get_unchecked(i));
            [x.sub(mean).mul(inv_std).mul(dy), dy]
        }
    }
}

fn typed<T: Float, const OF_ROWS: bool>(call: &Call, extents: [usize; 3]) {
    let [x, dy, mean, inv_std] = call.inputs else { unreachable!("four operands") };
    // SAFETY: there is no in-place pair.
    let [x, dy, mean, inv_std] = [x, dy, mean, inv_std].map(|x| unsafe { x.slice::<T>() });
    let terms = Gradients::<T, OF_ROWS> { x, dy, mean, inv_std };
    let tiling = channel_sums(extents);
    let partial = if tiling.parts == 1 { 0 } else { 2 * tiling.parts * extents[1] };
    // SAFETY: the only slice of this call's scratch.
    let partial = unsafe { call.scratch.slice_mut::<T>(partial) };
    let results =
        [0, 1].map(|o| Some(Shared::new(call.outputs.get(o).copied().flatten()?.ptr::<T>())));
    sums(&tiling, &terms, partial, |channel, sums| {
        for (to, sum) in results.into_iter().zip(sums) {
            if let Some(to) = to {
                // SAFETY: one element per channel, which one task has.
                unsafe { *to.ptr().add(channel) = sum };
            }
        }
    });
}
