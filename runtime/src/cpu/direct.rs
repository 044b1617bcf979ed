//! Convolutions of few channels per group, depthwise ones above all, as plain loops.
//!
//! One row of the result (its last axis) is computed at a time. The rows of `x` that meet
//! it are listed first; then pieces of the row are summed over that list in registers. The
//! transposed convolution of stride 1 differs only in the direction of the taps; that of a
//! larger stride scatters along the last axis, within the row that the task owns.

use super::address::Shared;
use super::number::Number;
use super::sliding::{Sliding, inside, unflatten};
use super::tasks::for_each;
use super::wide::wide;
use arenic_ir::op::MAX_RANK;

/// A row of `x` and the row of taps that meets it, as offsets.
#[derive(Clone, Copy, Default)]
struct Meeting {
    x: usize,
    w: usize,
}

/// Meetings listed before their products are summed.
const LIST: usize = 64;

/// Elements of a row summed at a time.
const LANES: usize = 16;

struct Pointers<T> {
    x: *const T,
    w: *const T,
}

// SAFETY: operands, which are only read.
unsafe impl<T> Sync for Pointers<T> {}

/// `y` of a convolution of [images, groups, input channels, output channels], channels
/// per group; operands are `x`, `w` and the bias.
pub(super) fn conv<T: Number>(
    s: &Sliding,
    [images, groups, inputs, channels]: [usize; 4],
    (x, w, bias): (*const T, *const T, Option<&[T]>),
    y: Shared<T>,
) {
    let last = s.last();
    let (taps, width) = (s.kernel[last], s.output[last]);
    let (rows, tap_rows) = (s.outputs() / width, s.taps() / taps);
    let from = Pointers { x, w };
    let all = images * groups * channels * rows;
    for_each(all, all * width * inputs * s.taps() / 4, |unit| {
        let from = &from;
        let (plane, row) = (unit / rows, unit % rows);
        let (item, channel) = (plane / channels, plane % (groups * channels));
        // SAFETY: each unit has a row of its own.
        let to = unsafe { y.slice(unit * width, width) };
        to.fill(bias.map_or(T::ZERO, |b| b[channel]));
        let mut at = [0; MAX_RANK];
        unflatten(row, &s.output[..last], &mut at[..last]);
        let source = |tap: &[usize], input: usize| {
            (0..last).try_fold(item * inputs + input, |offset, d| {
                let x = at[d] * s.strides[d] + tap[d] * s.dilations[d];
                let x = x.checked_sub(s.pads[d]).filter(|&x| x < s.input[d])?;
                Some(offset * s.input[d] + x)
            })
        };
        let reach = Reach {
            origin: -(s.pads[last] as isize),
            stride: s.strides[last],
            step: s.dilations[last] as isize,
            taps,
            source: s.input[last],
        };
        let weights = channel * inputs;
        listed(
            s,
            inputs,
            tap_rows,
            source,
            |input, tap| (weights + input) * tap_rows + tap,
            |list| {
                // SAFETY: meetings name whole rows of `x` and `w`, which nobody writes.
                unsafe {
                    if taps > width && reach.step == 1 {
                        by_taps(&reach, from, list, to);
                    } else {
                        by_positions(&reach, from, list, to);
                    }
                }
            },
        );
    });
}

/// `y` of a transposed convolution; `s` is the convolution from `y` to `x`.
pub(super) fn conv_transpose<T: Number>(
    s: &Sliding,
    [images, groups, inputs, channels]: [usize; 4],
    (x, w, bias): (*const T, *const T, Option<&[T]>),
    y: Shared<T>,
) {
    let last = s.last();
    let (taps, width) = (s.kernel[last], s.input[last]);
    let (rows, tap_rows) = (s.inputs() / width, s.taps() / taps);
    let from = Pointers { x, w };
    let all = images * groups * channels * rows;
    let stride = s.strides[last];
    for_each(all, all * width * inputs * s.taps() / 4, |unit| {
        let from = &from;
        let (plane, row) = (unit / rows, unit % rows);
        let (item, channel) = (plane / channels, plane % (groups * channels));
        let group = channel / channels;
        // SAFETY: each unit has a row of its own.
        let to = unsafe { y.slice(unit * width, width) };
        to.fill(bias.map_or(T::ZERO, |b| b[channel]));
        let mut at = [0; MAX_RANK];
        unflatten(row, &s.input[..last], &mut at[..last]);
        let source = |tap: &[usize], input: usize| {
            (0..last).try_fold(item * inputs + input, |offset, d| {
                let x = (at[d] + s.pads[d]).checked_sub(tap[d] * s.dilations[d])?;
                let fits = x % s.strides[d] == 0 && x / s.strides[d] < s.output[d];
                fits.then(|| offset * s.output[d] + x / s.strides[d])
            })
        };
        let weights = |input: usize, tap: usize| {
            ((group * inputs + input) * channels + channel % channels) * tap_rows + tap
        };
        let reach = Reach {
            origin: s.pads[last] as isize,
            stride: 1,
            step: -(s.dilations[last] as isize),
            taps,
            source: s.output[last],
        };
        listed(s, inputs, tap_rows, source, weights, |list| {
            // SAFETY: meetings name whole rows of `x` and `w`, which nobody writes.
            unsafe {
                if stride == 1 {
                    by_positions(&reach, from, list, to);
                } else {
                    scatter(s, from, list, to);
                }
            }
        });
    });
}

/// Calls `sum` with lists of all meetings, channels first, then taps, in order. `source`
/// gives the row of `x`, if there is one, `weights` the row of taps.
#[inline(always)]
fn listed(
    s: &Sliding,
    inputs: usize,
    tap_rows: usize,
    source: impl Fn(&[usize], usize) -> Option<usize>,
    weights: impl Fn(usize, usize) -> usize,
    mut sum: impl FnMut(&[Meeting]),
) {
    let last = s.last();
    let mut list = [Meeting::default(); LIST];
    let mut count = 0;
    for input in 0..inputs {
        let mut tap = [0; MAX_RANK];
        for tap_row in 0..tap_rows {
            unflatten(tap_row, &s.kernel[..last], &mut tap[..last]);
            let Some(x) = source(&tap[..last], input) else { continue };
            list[count] = Meeting { x, w: weights(input, tap_row) };
            count += 1;
            if count == LIST {
                sum(&list);
                count = 0;
            }
        }
    }
    if count > 0 {
        sum(&list[..count]);
    }
}

/// How positions and taps meet `x` along the last axis: position `o` and tap `t` at
/// element `origin + o · stride + t · step` of `source` elements.
struct Reach {
    origin: isize,
    stride: usize,
    step: isize,
    taps: usize,
    source: usize,
}

wide! {
    /// Adds to `to` the products of all meetings, several positions at a time.
    ///
    /// # Safety
    /// Meetings are in bounds.
    unsafe fn by_positions<T: Number>(
        reach: &Reach, from: &Pointers<T>, list: &[Meeting], to: &mut [T],
    ) {
        // SAFETY: the caller's promise.
        unsafe { reach.sum_positions(from, list, to) }
    }
}

wide! {
    /// Adds to `to` the products of all meetings, several taps at a time; taps of step 1.
    ///
    /// # Safety
    /// Meetings are in bounds.
    unsafe fn by_taps<T: Number>(
        reach: &Reach, from: &Pointers<T>, list: &[Meeting], to: &mut [T],
    ) {
        // SAFETY: the caller's promise.
        unsafe { reach.sum_taps(from, list, to) }
    }
}

impl Reach {
    /// Adds to `to` the products of all meetings, several positions at a time.
    ///
    /// # Safety
    /// Meetings are in bounds.
    #[inline(always)]
    unsafe fn sum_positions<T: Number>(&self, from: &Pointers<T>, list: &[Meeting], to: &mut [T]) {
        let span = (self.taps as isize - 1) * self.step;
        let (low, high) = (self.origin + span.min(0), self.origin + span.max(0));
        let (begin, _) = inside(low, self.stride, to.len(), self.source);
        let (_, end) = inside(high, self.stride, to.len(), self.source);
        // Where every tap is inside, sums stay in registers; elsewhere each tap adds to the
        // positions that it reaches.
        let full = if end >= begin + LANES { (end - begin) / LANES * LANES } else { 0 };
        let (left, right) = to.split_at_mut(if full > 0 { begin } else { 0 });
        let (middle, right) = right.split_at_mut(full);
        // SAFETY: all taps of the middle are inside; the rest is checked run by run.
        unsafe {
            self.sum_runs(from, list, 0, left);
            match self.stride {
                1 => self.sum_lanes::<T, 1>(from, list, begin, middle),
                2 => self.sum_lanes::<T, 2>(from, list, begin, middle),
                _ => self.sum_lanes::<T, 0>(from, list, begin, middle),
            }
            self.sum_runs(from, list, left.len() + full, right);
        }
    }

    /// Positions from `first` on, all of whose taps are inside; `STRIDE` is the stride or 0.
    ///
    /// # Safety
    /// Meetings are in bounds, taps inside.
    #[inline(always)]
    unsafe fn sum_lanes<T: Number, const STRIDE: usize>(
        &self,
        from: &Pointers<T>,
        list: &[Meeting],
        first: usize,
        to: &mut [T],
    ) {
        let stride = if STRIDE == 0 { self.stride } else { STRIDE };
        for (i, sums) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let origin = self.origin + ((first + i * LANES) * stride) as isize;
            let mut acc = *sums;
            for m in list {
                // SAFETY: the caller's promise.
                unsafe {
                    let w = from.w.add(m.w * self.taps);
                    let x = from.x.add(m.x * self.source).offset(origin);
                    for t in 0..self.taps {
                        let (w, x) = (*w.add(t), x.offset(t as isize * self.step));
                        for (l, acc) in acc.iter_mut().enumerate() {
                            *acc = acc.add(w.mul(*x.add(l * stride)));
                        }
                    }
                }
            }
            *sums = acc;
        }
    }

    /// Positions from `first` on, some of whose taps may be outside.
    ///
    /// # Safety
    /// Meetings are in bounds.
    #[inline(always)]
    unsafe fn sum_runs<T: Number>(
        &self,
        from: &Pointers<T>,
        list: &[Meeting],
        first: usize,
        to: &mut [T],
    ) {
        for t in 0..self.taps {
            let origin = self.origin + (first * self.stride) as isize + t as isize * self.step;
            let (begin, end) = inside(origin, self.stride, to.len(), self.source);
            if begin >= end {
                continue;
            }
            let to = &mut to[begin..end];
            let at = origin + (begin * self.stride) as isize;
            for m in list {
                // SAFETY: positions `begin..end` are inside.
                unsafe {
                    let w = *from.w.add(m.w * self.taps + t);
                    let x = from.x.add(m.x * self.source).offset(at);
                    if self.stride == 1 {
                        for (l, to) in to.iter_mut().enumerate() {
                            *to = to.add(w.mul(*x.add(l)));
                        }
                    } else {
                        for (l, to) in to.iter_mut().enumerate() {
                            *to = to.add(w.mul(*x.add(l * self.stride)));
                        }
                    }
                }
            }
        }
    }

    /// Adds to `to` the products of all meetings, several taps at a time; taps of step 1.
    ///
    /// # Safety
    /// Meetings are in bounds.
    #[inline(always)]
    unsafe fn sum_taps<T: Number>(&self, from: &Pointers<T>, list: &[Meeting], to: &mut [T]) {
        const WIDE: usize = 8;
        for (o, to) in to.iter_mut().enumerate() {
            let origin = self.origin + (o * self.stride) as isize;
            let (begin, end) = inside(origin, 1, self.taps, self.source);
            if begin >= end {
                continue;
            }
            let mut sums = [T::ZERO; WIDE];
            for m in list {
                // SAFETY: taps `begin..end` are inside.
                let (w, x) = unsafe {
                    let x = from.x.add(m.x * self.source).offset(origin + begin as isize);
                    let w = from.w.add(m.w * self.taps + begin);
                    (
                        std::slice::from_raw_parts(w, end - begin),
                        std::slice::from_raw_parts(x, end - begin),
                    )
                };
                let ((w, w_rest), (x, x_rest)) = (w.as_chunks::<WIDE>(), x.as_chunks::<WIDE>());
                for (w, x) in w.iter().zip(x) {
                    for l in 0..WIDE {
                        sums[l] = sums[l].add(w[l].mul(x[l]));
                    }
                }
                for (l, (&w, &x)) in w_rest.iter().zip(x_rest).enumerate() {
                    sums[l] = sums[l].add(w.mul(x));
                }
            }
            *to = sums.iter().fold(*to, |s, &l| s.add(l));
        }
    }
}

wide! {
    /// Adds to the row `to` of a transposed convolution's result the products of all meetings.
    ///
    /// # Safety
    /// Meetings are in bounds.
    unsafe fn scatter<T: Number>(s: &Sliding, from: &Pointers<T>, list: &[Meeting], to: &mut [T]) {
        let last = s.last();
        let (taps, stride, source) = (s.kernel[last], s.strides[last], s.output[last]);
        for m in list {
            for t in 0..taps {
                let origin = (t * s.dilations[last]) as isize - s.pads[last] as isize;
                let (begin, end) = inside(origin, stride, source, to.len());
                if begin >= end {
                    continue;
                }
                // SAFETY: the meeting's row of taps and row of `x`; positions `begin..end` of it
                // land inside `to`.
                unsafe {
                    let w = *from.w.add(m.w * taps + t);
                    let x = from.x.add(m.x * source);
                    let to = to.as_mut_ptr().offset(origin);
                    for i in begin..end {
                        let to = to.add(i * stride);
                        *to = (*to).add(w.mul(*x.add(i)));
                    }
                }
            }
        }
    }
}
