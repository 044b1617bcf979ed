//! `BatchNormParamGrad` and `LayerNormParamGrad`: sums of the gradient and of its product with
//! what was normalised, for every channel or for every place of a row.

use super::address::Shared;
use super::channels::{Terms, sums};
use super::dispatch::for_float;
use super::fused_norm::Steps;
use super::number::Float;
use super::terms::{self, Room};
use crate::kernel::Call;
use arenic_backends::cpu::tiling::{channel_sums, channels, rows};
use arenic_ir::DType;

/// Runs a `LayerNormParamGrad`, perhaps of what steps give.
pub(super) fn of_rows(axis: usize, dy: Option<Steps>, call: &Call) {
    let x = call.inputs[0].ty();
    for_float!(x.dtype, T => typed::<T, true>(call, dy, rows(x, axis)));
}

/// Runs a `BatchNormParamGrad`, perhaps of what steps give.
pub(super) fn of_channels(dy: Option<Steps>, call: &Call) {
    let x = call.inputs[0].ty();
    for_float!(x.dtype, T => typed::<T, false>(call, dy, channels(x)));
}

/// The operands; statistics are of rows or of channels.
struct Gradients<'a, T, D, const OF_ROWS: bool> {
    x: &'a [T],
    dy: D,
    mean: &'a [T],
    inv_std: &'a [T],
}

impl<T: Float, D: terms::Terms<T>, const OF_ROWS: bool> Terms<T, 2>
    for Gradients<'_, T, D, OF_ROWS>
{
    #[inline(always)]
    fn made<'a>(&'a self, at: usize, len: usize, room: &'a mut Room<T>) -> &'a [T] {
        self.dy.run(at, len, room)
    }

    #[inline(always)]
    unsafe fn of(&self, i: usize, (dy, j): (&[T], usize), row: usize, channel: usize) -> [T; 2] {
        let group = if OF_ROWS { row } else { channel };
        // SAFETY: the caller's promise.
        unsafe {
            let (mean, inv_std) =
                (*self.mean.get_unchecked(group), *self.inv_std.get_unchecked(group));
            let (x, dy) = (*self.x.get_unchecked(i), *dy.get_unchecked(j));
            [x.sub(mean).mul(inv_std).mul(dy), dy]
        }
    }
}

fn typed<T: Float, const OF_ROWS: bool>(call: &Call, dy: Option<Steps>, extents: [usize; 3]) {
    // SAFETY: there is no in-place pair.
    let [x, stored, mean, inv_std] = [0, 1, 2, 3].map(|i| unsafe { call.inputs[i].slice::<T>() });
    match dy.map(|steps| steps.computed::<T>(x.len())) {
        Some(dy) => summed(call, &Gradients::<T, _, OF_ROWS> { x, dy, mean, inv_std }, extents),
        None => {
            let dy = stored;
            summed(call, &Gradients::<T, _, OF_ROWS> { x, dy, mean, inv_std }, extents);
        }
    }
}

fn summed<T: Float>(call: &Call, terms: &impl Terms<T, 2>, extents: [usize; 3]) {
    let tiling = channel_sums(extents);
    let partial = if tiling.parts == 1 { 0 } else { 2 * tiling.parts * extents[1] };
    // SAFETY: the only slice of this call's scratch.
    let partial = unsafe { call.scratch.slice_mut::<T>(partial) };
    let results =
        [0, 1].map(|o| Some(Shared::new(call.outputs.get(o).copied().flatten()?.ptr::<T>())));
    sums(&tiling, terms, partial, |channel, sums| {
        for (to, sum) in results.into_iter().zip(sums) {
            if let Some(to) = to {
                // SAFETY: one element per channel, which one task has.
                unsafe { *to.ptr().add(channel) = sum };
            }
        }
    });
}
