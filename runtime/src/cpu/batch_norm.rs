//! `BatchNorm` and the gradient of its operand: moments of every channel, then a pass over the
//! elements.
//!
//! Statistics are complete before the first element is written, so the result may take the
//! operand's place. Where steps follow the normalisation, a strip of elements is normalised and
//! the steps run on it while it is in cache; where steps make the gradient, they run on a strip before
//! it is read.

use super::address::Shared;
use super::blocks::{self, BLOCK, Formula, block};
use super::dispatch::for_float;
use super::fused_norm::{Dy, Steps, room};
use super::moments::moments;
use super::number::Float;
use super::tasks::for_each;
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
pub(super) fn input_gradient(dy: Option<Steps>, then: Option<Steps>, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => of_operand::<T>(call, dy, then));
}

/// Elements of every channel.
fn count(call: &Call) -> usize {
    let [outer, _, inner] = channels(call.inputs[0].ty());
    outer * inner
}

fn forward<T: Float>(call: &Call, epsilon: f32, then: Option<Steps>) {
    let x = &call.inputs[0];
    let from = Shared::new(x.ptr::<T>().cast_mut());
    let tiling = channel_sums(channels(x.ty()));
    let channels = tiling.extents[1];
    let partial = if tiling.parts == 1 { 0 } else { 2 * tiling.parts * channels };
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
    let (count, epsilon) = (T::of_count(count(call)), T::from_f64(epsilon.into()));
    let (to_mean, to_inv_std) =
        (Shared::new(means.as_mut_ptr()), Shared::new(inv_stds.as_mut_ptr()));
    moments(&tiling, from, partial, |channel, of_mean, squares| {
        put(Some(to_mean), channel, of_mean);
        put(mean, channel, of_mean);
        let variance = squares.div(count);
        put(var, channel, variance);
        let inverse = T::ONE.div(variance.add(epsilon).sqrt());
        put(Some(to_inv_std), channel, inverse);
        put(inv_std, channel, inverse);
    });
    let y = &call.outputs[0];
    // SAFETY: only `x` and what steps read are in in-place pairs.
    let [scale, bias] = [1, 2].map(|i| unsafe { call.inputs[i].slice::<T>() });
    let of_channels = [means, inv_stds, scale, bias];
    if let Some(then) = then {
        let Some(then) = then.following::<T>(&call.inputs[0], y.as_ref()) else { return };
        over_strips(call, of_channels, |strip| {
            let mut made = room::<T>();
            let to: *mut T = made.as_mut_ptr().cast();
            // SAFETY: each task has elements of its own, and the strip is filled first.
            unsafe {
                strip.runs(|i, n, run| run.normalise(from.ptr().add(strip.at + i), to.add(i), n));
                then.run(std::slice::from_raw_parts(to.cast_const(), strip.n), strip.at);
            }
        });
        return;
    }
    let Some(y) = y else { return };
    let y = Shared::new(y.ptr::<T>());
    over_strips(call, of_channels, |strip| {
        strip.runs(|i, n, run| {
            let at = strip.at + i;
            // SAFETY: each task has elements of its own.
            unsafe { run.normalise(from.ptr().add(at), y.ptr().add(at), n) };
        });
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

/// Neighbours, at most a segment: runs of one channel, or of channels with an element each.
struct Strip<'a, T, const K: usize> {
    at: usize,
    n: usize,
    of_channels: [&'a [T]; K],
    /// Neighbours of one channel.
    inner: usize,
}

impl<'a, T: Float, const K: usize> Strip<'a, T, K> {
    /// Calls `f` with the first place in the strip and the length of every run.
    #[inline(always)]
    fn runs(&self, mut f: impl FnMut(usize, usize, Run<'a, T, K>)) {
        let channels = self.of_channels[0].len();
        let length = if self.inner == 1 { channels } else { self.inner };
        let mut i = 0;
        while i < self.n {
            let (run, within) = ((self.at + i) / length, (self.at + i) % length);
            let n = (length - within).min(self.n - i);
            let of = match self.inner {
                1 => Run::Each(self.of_channels.map(|values| &values[within..])),
                _ => Run::One(self.of_channels.map(|values| values[run % channels])),
            };
            f(i, n, of);
            i += n;
        }
    }
}

/// Calls `f` with strips of all elements, in no order.
fn over_strips<T: Float, const K: usize>(
    call: &Call,
    of_channels: [&[T]; K],
    f: impl Fn(Strip<T, K>) + Sync,
) {
    let [outer, channels, inner] = channels(call.inputs[0].ty());
    let elements = outer * channels * inner;
    for_each(elements.div_ceil(SEGMENT), 2 * elements, |strip| {
        let at = strip * SEGMENT;
        f(Strip { at, n: SEGMENT.min(elements - at), of_channels, inner });
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

/// `(x − mean)·inv_std·scale + bias`.
struct Normalised<'a, C>(&'a C);

impl<T: Float, C: OfChannels<T, 4>> Formula<T, 1> for Normalised<'_, C> {
    #[inline(always)]
    fn block(&self, at: usize, [mut x]: [[T; BLOCK]; 1]) -> [T; BLOCK] {
        let [mean, inv_std, scale, bias] = self.0.block(at);
        for i in 0..BLOCK {
            x[i] = x[i].sub(mean[i]).mul(inv_std[i]).mul(scale[i]).add(bias[i]);
        }
        x
    }
}

wide! {
    /// Normalises elements, perhaps in place.
    ///
    /// # Safety
    /// As for [`blocks::map`].
    unsafe fn normalise<T: Float, C: OfChannels<T, 4>>(x: *const T, y: *mut T, n: usize, of: &C) {
        // SAFETY: the caller's promise.
        unsafe { blocks::map([x], y, n, &Normalised(of)) };
    }
}

fn of_operand<T: Float>(call: &Call, dy: Option<Steps>, then: Option<Steps>) {
    let y = call.outputs[0];
    let then = then.and_then(|then| then.following::<T>(&call.inputs[0], y.as_ref()));
    if y.is_none() && then.is_none() {
        return;
    }
    let x = Shared::new(call.inputs[0].ptr::<T>().cast_mut());
    let dy = Dy::<T>::new(dy, call);
    // With steps it is theirs, of any type.
    let y = y.filter(|_| then.is_none()).map(|y| Shared::new(y.ptr::<T>()));
    // SAFETY: only `x`, what `dy` is made of and what steps after it read are in in-place pairs.
    let of_channels = [2, 3, 4, 5, 6].map(|i| unsafe { call.inputs[i].slice::<T>() });
    let share = T::ONE.div(T::of_count(count(call)));
    over_strips(call, of_channels, |strip| {
        let mut room = room();
        let dy = dy.strip(strip.at, strip.n, &mut room);
        let mut made = self::room::<T>();
        let to: *mut T = match &y {
            Some(y) => y.ptr().wrapping_add(strip.at),
            None => made.as_mut_ptr().cast(),
        };
        strip.runs(|i, n, run| {
            // SAFETY: each task has elements of its own, and what is made has room for a strip.
            unsafe {
                let (operands, y) =
                    ([x.ptr().add(strip.at + i).cast_const(), dy.add(i)], to.add(i));
                match run {
                    Run::One(of) => gradient(operands, y, n, share, &of),
                    Run::Each(of) => gradient(operands, y, n, share, &of),
                }
            }
        });
        if let Some(then) = &then {
            // SAFETY: as above; the strip was filled.
            unsafe { then.run(std::slice::from_raw_parts(to.cast_const(), strip.n), strip.at) };
        }
    });
}

/// `scale·inv_std·(dy − (dbias + (x − mean)·inv_std·dscale)·share)`.
struct Gradient<'a, T, C> {
    share: T,
    of: &'a C,
}

impl<T: Float, C: OfChannels<T, 5>> Formula<T, 2> for Gradient<'_, T, C> {
    #[inline(always)]
    fn block(&self, at: usize, [x, mut dy]: [[T; BLOCK]; 2]) -> [T; BLOCK] {
        let [scale, mean, inv_std, dscale, dbias] = self.of.block(at);
        for i in 0..BLOCK {
            let slope = x[i].sub(mean[i]).mul(inv_std[i]).mul(dscale[i]);
            let rest = dy[i].sub(dbias[i].add(slope).mul(self.share));
            dy[i] = scale[i].mul(inv_std[i]).mul(rest);
        }
        dy
    }
}

wide! {
    /// The gradients of elements, perhaps in place.
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
        unsafe { blocks::map(operands, y, n, &Gradient { share, of }) };
    }
}
