//! `BatchNorm` and the gradient of its operand: sums of every channel, then a pass over the
//! elements.
//!
//! Statistics are complete before the first element is written, so the result may take the
//! operand's place.

use super::address::Shared;
use super::blocks::{self, BLOCK, block};
use super::channels::{Terms, sums};
use super::dispatch::for_float;
use super::number::Float;
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::Call;
use arenic_backends::cpu::tiling::{channel_sums, channels};
use arenic_backends::reduce::SEGMENT;
use arenic_ir::DType;

/// Runs a `BatchNorm`.
pub(super) fn run(epsilon: f32, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => forward::<T>(call, epsilon));
}

/// Runs a `BatchNormInputGrad`.
pub(super) fn input_gradient(call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => of_operand::<T>(call));
}

/// Elements of every channel.
fn count(call: &Call) -> usize {
    let [outer, _, inner] = channels(call.inputs[0].ty());
    outer * inner
}

/// The elements.
struct Elements<T>(Shared<T>);

impl<T: Float> Terms<T, 1> for Elements<T> {
    #[inline(always)]
    unsafe fn of(&self, i: usize, _: usize, _: usize) -> [T; 1] {
        // SAFETY: the caller's promise.
        [unsafe { *self.0.ptr().add(i) }]
    }
}

/// Squares of the elements' distances from their channel's mean.
struct Squares<'a, T>(Shared<T>, &'a [T]);

impl<T: Float> Terms<T, 1> for Squares<'_, T> {
    #[inline(always)]
    unsafe fn of(&self, i: usize, _: usize, channel: usize) -> [T; 1] {
        // SAFETY: the caller's promise.
        let (x, mean) = unsafe { (*self.0.ptr().add(i), *self.1.get_unchecked(channel)) };
        [x.sub(mean).mul(x.sub(mean))]
    }
}

fn forward<T: Float>(call: &Call, epsilon: f32) {
    let x = &call.inputs[0];
    let from = Shared::new(x.ptr::<T>().cast_mut());
    let tiling = channel_sums(channels(x.ty()));
    let channels = tiling.extents[1];
    let partial = if tiling.parts == 1 { 0 } else { tiling.parts * channels };
    // SAFETY: the only slice of this call's scratch.
    let scratch = unsafe { call.scratch.slice_mut::<T>(2 * channels + partial) };
    let (means, rest) = scratch.split_at_mut(channels);
    let (inv_stds, partial) = rest.split_at_mut(channels);
    let [y, mean, var, inv_std] =
        [0, 1, 2, 3].map(|o| Some(Shared::new(call.outputs.get(o).copied().flatten()?.ptr::<T>())));
    let put = |to: Option<Shared<T>>, channel: usize, value: T| {
        if let Some(to) = to {
            // SAFETY: one element per channel, which one task has.
            unsafe { *to.ptr().add(channel) = value };
        }
    };
    let count = T::of_count(count(call));
    let to = Shared::new(means.as_mut_ptr());
    sums(&tiling, &Elements(from), partial, |channel, [sum]| {
        put(Some(to), channel, sum.div(count));
        put(mean, channel, sum.div(count));
    });
    let (to, epsilon) = (Shared::new(inv_stds.as_mut_ptr()), T::from_f64(epsilon.into()));
    sums(&tiling, &Squares(from, means), partial, |channel, [sum]| {
        let variance = sum.div(count);
        put(var, channel, variance);
        let inverse = T::ONE.div(variance.add(epsilon).sqrt());
        put(Some(to), channel, inverse);
        put(inv_std, channel, inverse);
    });
    let Some(y) = y else { return };
    // SAFETY: only `x` is in an in-place pair.
    let [scale, bias] = [1, 2].map(|i| unsafe { call.inputs[i].slice::<T>() });
    over_runs(call, [means, inv_stds, scale, bias], |at, n, of_channel| {
        // SAFETY: each task has elements of its own.
        unsafe {
            match of_channel {
                Run::One(of) => normalise(from.ptr().add(at), y.ptr().add(at), n, &of),
                Run::Each(of) => normalise(from.ptr().add(at), y.ptr().add(at), n, &of),
            }
        }
    });
}

/// Numbers of the channels that a run of elements belongs to.
enum Run<'a, T, const K: usize> {
    /// One channel.
    One([T; K]),
    /// Channels, each with one element.
    Each([&'a [T]; K]),
}

/// Calls `f` with runs of neighbours, their first elements and lengths, in no order.
fn over_runs<T: Float, const K: usize>(
    call: &Call,
    of_channels: [&[T]; K],
    f: impl Fn(usize, usize, Run<T, K>) + Sync,
) {
    let [outer, channels, inner] = channels(call.inputs[0].ty());
    let work = 2 * outer * channels * inner;
    if inner == 1 {
        for_each(outer, work, |row| f(row * channels, channels, Run::Each(of_channels)));
        return;
    }
    let pieces = inner.div_ceil(SEGMENT);
    for_each(outer * channels * pieces, work, |unit| {
        let (run, first) = (unit / pieces, unit % pieces * SEGMENT);
        let of = of_channels.map(|values| values[run % channels]);
        f(run * inner + first, SEGMENT.min(inner - first), Run::One(of));
    });
}

/// `K` numbers of the channel that an element belongs to, a block at a time.
trait OfChannels<T, const K: usize> {
    fn block(&self, at: usize) -> [[T; BLOCK]; K];
}

impl<T: Float, const K: usize> OfChannels<T, K> for [T; K] {
    #[inline(always)]
    fn block(&self, _: usize) -> [[T; BLOCK]; K] {
        self.map(|value| [value; BLOCK])
    }
}

impl<T: Float, const K: usize> OfChannels<T, K> for [&[T]; K] {
    #[inline(always)]
    fn block(&self, at: usize) -> [[T; BLOCK]; K] {
        self.map(|values| block(values, at))
    }
}

wide! {
    /// `(x − mean)·inv_std·scale + bias`, perhaps in place.
    ///
    /// # Safety
    /// As for [`blocks::map`].
    unsafe fn normalise<T: Float, C: OfChannels<T, 4>>(x: *const T, y: *mut T, n: usize, of: &C) {
        // SAFETY: the caller's promise.
        unsafe {
            blocks::map([x], y, n, |at, [mut x]| {
                let [mean, inv_std, scale, bias] = of.block(at);
                for i in 0..BLOCK {
                    x[i] = x[i].sub(mean[i]).mul(inv_std[i]).mul(scale[i]).add(bias[i]);
                }
                x
            });
        }
    }
}

fn of_operand<T: Float>(call: &Call) {
    let Some(y) = call.outputs[0] else { return };
    let [x, dy] = [0, 1].map(|i| Shared::new(call.inputs[i].ptr::<T>().cast_mut()));
    let y = Shared::new(y.ptr::<T>());
    // SAFETY: only `x` and `dy` are in in-place pairs.
    let of_channels = [2, 3, 4, 5, 6].map(|i| unsafe { call.inputs[i].slice::<T>() });
    let share = T::ONE.div(T::of_count(count(call)));
    over_runs(call, of_channels, |at, n, of_channel| {
        // SAFETY: each task has elements of its own.
        unsafe {
            let operands = [x, dy].map(|x| x.ptr().add(at).cast_const());
            match of_channel {
                Run::One(of) => gradient(operands, y.ptr().add(at), n, share, &of),
                Run::Each(of) => gradient(operands, y.ptr().add(at), n, share, &of),
            }
        }
    });
}

wide! {
    /// `scale·inv_std·(dy − (dbias + (x − mean)·inv_std·dscale)·share)`, perhaps in place.
    ///
    /// # Safety
    /// As for [`blocks::map`].
    unsafe fn gradient<T: Float, C: OfChannels<T, 5>>(
        operands: [*const T; 2],
        y: *mut T,
        n: usize,
        share: T,
        of: &C,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            blocks::map(operands, y, n, |at, [x, mut dy]| {
                let [scale, mean, inv_std, dscale, dbias] = of.block(at);
                for i in 0..BLOCK {
                    let slope = x[i].sub(mean[i]).mul(inv_std[i]).mul(dscale[i]);
                    let rest = dy[i].sub(dbias[i].add(slope).mul(share));
                    dy[i] = scale[i].mul(inv_std[i]).mul(rest);
                }
                dy
            });
        }
    }
}
