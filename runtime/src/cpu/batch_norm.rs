//! `BatchNorm` and the gradient of its operand: sums of every channel, then a pass over the
//! elements.
//!
//! Statistics are complete before the first element is written, so the result may take the
//! operand's place. Where steps follow the normalisation, a strip of elements is normalised and
//! the steps run on it while it is in cache; where steps make the gradient, they run on a strip before
//! it is read.

use super::address::Shared;
use super::blocks::{self, BLOCK, block};
use super::channels::{Terms, sums};
use super::dispatch::for_float;
use super::fused_norm::{Dy, Steps, room};
use super::number::Float;
use super::tasks::for_each;
use super::terms::Room;
use super::wide::wide;
use crate::kernel::Call;
use arenic_backends::cpu::tiling::{channel_sums, channels};
use arenic_backends::reduce::SEGMENT;
use arenic_ir::DType;

/// Runs a `BatchNorm`, and steps after it.
pub(super) fn run(epsilon: f32, then: Option<Steps>, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => forward::<T>(call, epsilon, then));
}

/// Runs a `BatchNormInputGrad`, perhaps of what steps give.
pub(super) fn input_gradient(dy: Option<Steps>, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => of_operand::<T>(call, dy));
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
    fn made<'a>(&'a self, _: usize, _: usize, _: &'a mut Room<T>) -> &'a [T] {
        &[]
    }

    #[inline(always)]
    unsafe fn of(&self, i: usize, _: (&[T], usize), _: usize, _: usize) -> [T; 1] {
        // SAFETY: the caller's promise.
        [unsafe { *self.0.ptr().add(i) }]
    }
}

/// Squares of the elements' distances from their channel's mean.
struct Squares<'a, T>(Shared<T>, &'a [T]);

impl<T: Float> Terms<T, 1> for Squares<'_, T> {
    #[inline(always)]
    fn made<'a>(&'a self, _: usize, _: usize, _: &'a mut Room<T>) -> &'a [T] {
        &[]
    }

    #[inline(always)]
    unsafe fn of(&self, i: usize, _: (&[T], usize), _: usize, channel: usize) -> [T; 1] {
        // SAFETY: the caller's promise.
        let (x, mean) = unsafe { (*self.0.ptr().add(i), *self.1.get_unchecked(channel)) };
        [x.sub(mean).mul(x.sub(mean))]
    }
}

fn forward<T: Float>(call: &Call, epsilon: f32, then: Option<Steps>) {
    let x = &call.inputs[0];
    let from = Shared::new(x.ptr::<T>().cast_mut());
    let tiling = channel_sums(channels(x.ty()));
    let channels = tiling.extents[1];
    let partial = if tiling.parts == 1 { 0 } else { tiling.parts * channels };
    // SAFETY: the only slice of this call's scratch.
    let scratch = unsafe { call.scratch.slice_mut::<T>(2 * channels + partial) };
    let (means, rest) = scratch.split_at_mut(channels);
    let (inv_stds, partial) = rest.split_at_mut(channels);
    let [mean, var, inv_std] =
        [1, 2, 3].map(|o| Some(Shared::new(call.outputs.get(o).copied().flatten()?.ptr::<T>())));
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
    let Some(y) = &call.outputs[0] else { return };
    // SAFETY: only `x` is in an in-place pair.
    let [scale, bias] = [1, 2].map(|i| unsafe { call.inputs[i].slice::<T>() });
    let of_channels = [means, inv_stds, scale, bias];
    if let Some(then) = then {
        let then = then.following::<T>(&call.inputs[0], y);
        over_runs(call, of_channels, |at, n, of_channel| {
            let mut strip = room::<T>();
            // SAFETY: each task has elements of its own, and the strip is filled first.
            unsafe {
                of_channel.normalise(from.ptr().add(at), strip.as_mut_ptr().cast(), n);
                then.run(std::slice::from_raw_parts(strip.as_ptr().cast::<T>(), n), at);
            }
        });
        return;
    }
    let y = Shared::new(y.ptr::<T>());
    over_runs(call, of_channels, |at, n, of_channel| {
        // SAFETY: each task has elements of its own.
        unsafe { of_channel.normalise(from.ptr().add(at), y.ptr().add(at), n) };
    });
}

/// Numbers of the channels that a run of elements belongs to.
enum Run<'a, T, const K: usize> {
    /// One channel.
    One([T; K]),
    /// Channels, each with one element.
    Each([&'a [T]; K]),
}

impl<T: Float> Run<'_, T, 4> {
    /// Normalises `n` elements.
    ///
    /// # Safety
    /// As for [`normalise`].
    unsafe fn normalise(&self, x: *const T, y: *mut T, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Run::One(of) => normalise(x, y, n, of),
                Run::Each(of) => normalise(x, y, n, of),
            }
        }
    }
}

/// Calls `f` with runs of neighbours, their first elements and lengths, in no order. None is longer
/// than a segment.
fn over_runs<T: Float, const K: usize>(
    call: &Call,
    of_channels: [&[T]; K],
    f: impl Fn(usize, usize, Run<T, K>) + Sync,
) {
    let [outer, channels, inner] = channels(call.inputs[0].ty());
    let work = 2 * outer * channels * inner;
    if inner == 1 {
        for_each(outer, work, |row| {
            for first in (0..channels).step_by(SEGMENT) {
                let of = of_channels.map(|values| &values[first..]);
                f(row * channels + first, SEGMENT.min(channels - first), Run::Each(of));
            }
        });
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

fn of_operand<T: Float>(call: &Call, dy: Option<Steps>) {
    let Some(y) = call.outputs[0] else { return };
    let x = Shared::new(call.inputs[0].ptr::<T>().cast_mut());
    let dy = Dy::<T>::new(dy, call);
    let y = Shared::new(y.ptr::<T>());
    // SAFETY: only `x` and what `dy` is made of are in in-place pairs.
    let of_channels = [2, 3, 4, 5, 6].map(|i| unsafe { call.inputs[i].slice::<T>() });
    let share = T::ONE.div(T::of_count(count(call)));
    over_runs(call, of_channels, |at, n, of_channel| {
        let mut room = room();
        // SAFETY: each task has elements of its own.
        unsafe {
            let operands = [x.ptr().add(at).cast_const(), dy.strip(at, n, &mut room)];
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
