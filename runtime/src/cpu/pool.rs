//! `MaxPool` and `AveragePool`: a plane (one channel of one image) per task.
//!
//! Per row of the result the taps that lie inside are ranges along every axis, so padding
//! is never read and needs no value.

use super::address::Shared;
use super::dispatch::{for_float, for_number};
use super::number::{Float, Number};
use super::reduce::{largest, sum};
use super::sliding::{PerAxis, Sliding, inside, unflatten};
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::{Call, Destination};
use arenic_ir::DType;
use arenic_ir::op::{MAX_RANK, Window};

/// Runs a `MaxPool`.
pub(super) fn max(window: &Window, column_major: bool, call: &Call) {
    for_number!(call.inputs[0].ty().dtype, T => max_of::<T>(call, window, column_major));
}

/// Runs an `AveragePool`.
pub(super) fn average(window: &Window, count_include_pad: bool, call: &Call) {
    let dtype = call.inputs[0].ty().dtype;
    for_float!(dtype, T => average_of::<T>(call, window, count_include_pad));
}

/// The rows of taps that lie inside for one row of the result.
pub(super) struct WindowRows<'a> {
    s: &'a Sliding,
    at: PerAxis<usize>,
    first: PerAxis<usize>,
    end: PerAxis<usize>,
}

impl<'a> WindowRows<'a> {
    pub(super) fn new(s: &'a Sliding, row: usize) -> WindowRows<'a> {
        let last = s.last();
        let mut rows =
            WindowRows { s, at: [0; MAX_RANK], first: [0; MAX_RANK], end: [1; MAX_RANK] };
        unflatten(row, &s.output[..last], &mut rows.at[..last]);
        for d in 0..last {
            (rows.first[d], rows.end[d]) = taps_inside(s, d, rows.at[d]);
        }
        rows
    }

    /// The row's index along axis `d`, which is not the last one.
    pub(super) fn at(&self, d: usize) -> usize {
        self.at[d]
    }

    /// Calls `f` with the offset of every row of the plane that the window meets, in order.
    #[inline(always)]
    pub(super) fn each(&self, mut f: impl FnMut(usize)) {
        let (s, last) = (self.s, self.s.last());
        if (0..last).any(|d| self.first[d] >= self.end[d]) {
            return;
        }
        let mut tap = self.first;
        loop {
            let offset = (0..last).fold(0, |offset, d| {
                let x = self.at[d] * s.strides[d] + tap[d] * s.dilations[d] - s.pads[d];
                offset * s.input[d] + x
            });
            f(offset * s.input[last]);
            let mut d = last;
            loop {
                let Some(next) = d.checked_sub(1) else { return };
                d = next;
                tap[d] += 1;
                if tap[d] < self.end[d] {
                    break;
                }
                tap[d] = self.first[d];
            }
        }
    }
}

/// Elements of a row of the result whose places are found at a time.
pub(super) const STRIP: usize = 64;

impl WindowRows<'_> {
    /// Calls `f(j, value, position)` for everything that the windows of positions `first`
    /// to `first + n` of this row see; `j` counts positions from `first`, which see taps in
    /// order.
    #[inline(always)]
    fn runs<T: Number>(
        &self,
        from: &[T],
        first: usize,
        n: usize,
        mut f: impl FnMut(usize, T, usize),
    ) {
        let (s, last) = (self.s, self.s.last());
        let (step, dilation, extent) = (s.strides[last], s.dilations[last], s.input[last]);
        self.each(|offset| {
            if n == 1 {
                let (begin, end) = taps_inside(s, last, first);
                for t in begin..end {
                    let at = offset + first * step + t * dilation - s.pads[last];
                    f(0, from[at], at);
                }
                return;
            }
            for t in 0..s.kernel[last] {
                let origin = (first * step + t * dilation) as isize - s.pads[last] as isize;
                match step {
                    1 => row_run(from, offset, (origin, 1, n, extent), &mut f),
                    2 => row_run(from, offset, (origin, 2, n, extent), &mut f),
                    _ => row_run(from, offset, (origin, step, n, extent), &mut f),
                }
            }
        });
    }
}

/// Calls `f` for every `j` below `n` with an element `origin + j · step` of the row of
/// `extent` elements at `offset`.
#[inline(always)]
fn row_run<T: Number>(
    from: &[T],
    offset: usize,
    (origin, step, n, extent): (isize, usize, usize, usize),
    f: &mut impl FnMut(usize, T, usize),
) {
    let (begin, end) = inside(origin, step, n, extent);
    let row = &from[offset..][..extent];
    for j in begin..end {
        let at = (origin + (j * step) as isize) as usize;
        // SAFETY: inside the row, as `inside` says.
        f(j, unsafe { *row.get_unchecked(at) }, offset + at);
    }
}

/// The taps of axis `d` that lie inside at output position `o`.
#[inline(always)]
fn taps_inside(s: &Sliding, d: usize, o: usize) -> (usize, usize) {
    let origin = (o * s.strides[d]) as isize - s.pads[d] as isize;
    inside(origin, s.dilations[d], s.kernel[d], s.input[d])
}

fn max_of<T: Number>(call: &Call, window: &Window, column_major: bool) {
    let (x, [y, indices]) = (&call.inputs[0], call.outputs) else { unreachable!("two results") };
    let Some(ty) = y.or(*indices).map(|t| t.ty()).filter(|ty| ty.elements() > 0) else { return };
    let s = &Sliding::new(window, &x.ty().shape, &ty.shape);
    // SAFETY: a pool has no in-place pairs.
    let x: &[T] = unsafe { x.slice() };
    let values = y.map(|y: Destination| Shared::new(y.ptr::<T>()));
    let indices = indices.map(|i: Destination| Shared::new(i.ptr::<i64>()));
    let (size, last) = (s.inputs(), s.last());
    let width = s.output[last];
    let rows = s.outputs() / width;
    for_each(ty.elements() / width, ty.elements() * s.taps(), |unit| {
        let (plane, row) = (unit / rows, unit % rows);
        let from = &x[plane * size..][..size];
        // SAFETY: each unit has a row of its own in both results.
        let (mut values, indices) = unsafe {
            (
                values.map(|y| y.slice(unit * width, width)),
                indices.map(|i| i.slice(unit * width, width)),
            )
        };
        let meets = WindowRows::new(s, row);
        let Some(indices) = indices else {
            if let Some(values) = values {
                row_largest(s, &meets, from, values);
            }
            return;
        };
        for first in (0..width).step_by(STRIP) {
            let n = STRIP.min(width - first);
            let mut best = [T::LOWEST; STRIP];
            let index_of = |place: usize| {
                let place = if column_major { transposed(s, place) } else { place };
                (plane * size + place) as i64
            };
            let indices = &mut indices[first..][..n];
            // Places in fewer bytes, where they fit, are found by wider vectors.
            if size < u32::MAX as usize {
                let mut places = [u32::NONE; STRIP];
                row_places(&meets, from, first, &mut best[..n], &mut places[..n]);
                indices.iter_mut().zip(&places).for_each(|(i, p)| *i = index_of(p.at()));
            } else {
                let mut places = [usize::NONE; STRIP];
                row_places(&meets, from, first, &mut best[..n], &mut places[..n]);
                indices.iter_mut().zip(&places).for_each(|(i, p)| *i = index_of(p.at()));
            }
            if let Some(values) = &mut values {
                values[first..][..n].copy_from_slice(&best[..n]);
            }
        }
    });
}

/// A place in a plane.
trait Place: Copy + PartialEq {
    /// No place.
    const NONE: Self;

    fn new(at: usize) -> Self;

    /// The place. A window with every tap in padding, by dilation, has its plane's start.
    fn at(self) -> usize;
}

macro_rules! place {
    ($t:ty) => {
        impl Place for $t {
            const NONE: $t = <$t>::MAX;

            #[inline(always)]
            fn new(at: usize) -> $t {
                at as $t
            }

            #[inline(always)]
            fn at(self) -> usize {
                if self == Self::NONE { 0 } else { self as usize }
            }
        }
    };
}
place!(u32);
place!(usize);

wide! {
    /// The largest elements that the windows of positions from `first` on of a row see, and where they
    /// are: the first of equal ones, and the last NaN.
    fn row_places<T: Number, P: Place>(
        meets: &WindowRows,
        from: &[T],
        first: usize,
        best: &mut [T],
        places: &mut [P],
    ) {
        let (s, last) = (meets.s, meets.s.last());
        let (step, dilation, extent) = (s.strides[last], s.dilations[last], s.input[last]);
        meets.each(|offset| {
            let row = &from[offset..][..extent];
            // Of a single window only the taps inside are looked at: there may be many.
            let taps = match best.len() {
                1 => taps_inside(s, last, first),
                _ => (0, s.kernel[last]),
            };
            for t in taps.0..taps.1 {
                let origin = (first * step + t * dilation) as isize - s.pads[last] as isize;
                let (begin, end) = inside(origin, step, best.len(), extent);
                if begin >= end {
                    continue;
                }
                let at = (origin + (begin * step) as isize) as usize;
                let (best, places) = (&mut best[begin..end], &mut places[begin..end]);
                if step == 1 {
                    keep_larger(&row[at..], (offset + at, 1), best, places);
                } else {
                    let mut values = [T::ZERO; STRIP];
                    let values = &mut values[..best.len()];
                    match step {
                        2 => every::<T, 2>(&row[at..], 2, values, &|from, _| from),
                        _ => every::<T, 0>(&row[at..], step, values, &|from, _| from),
                    }
                    keep_larger(values, (offset + at, step), best, places);
                }
            }
        });
    }
}

/// Keeps the larger of what is best and of these values. Their places are `step` apart from `at` on.
#[inline(always)]
fn keep_larger<T: Number, P: Place>(
    values: &[T],
    (at, step): (usize, usize),
    best: &mut [T],
    places: &mut [P],
) {
    for (j, ((best, place), &value)) in best.iter_mut().zip(places).zip(values).enumerate() {
        let larger = (value > *best) | value.is_nan() | (*place == P::NONE);
        *best = if larger { value } else { *best };
        *place = if larger { P::new(at + j * step) } else { *place };
    }
}

/// Elements of a row of the input that are combined at a time.
const SPAN: usize = 256;

/// What the windows of one row of the result, from position `first` on, see, combined: first
/// over the other axes, then along the last one.
#[inline(always)]
fn combined<T: Number>(
    s: &Sliding,
    meets: &WindowRows,
    from: &[T],
    to: &mut [T],
    identity: T,
    f: impl Fn(T, T) -> T,
) {
    let last = s.last();
    let (step, window) = (s.strides[last], (s.kernel[last] - 1) * s.dilations[last] + 1);
    if window > SPAN {
        for (first, to) in to.iter_mut().enumerate() {
            *to = identity;
            meets.runs(from, first, 1, |_, value, _| *to = f(value, *to));
        }
        return;
    }
    let most = (SPAN - window) / step + 1;
    for (i, to) in to.chunks_mut(most).enumerate() {
        let origin = (i * most * step) as isize - s.pads[last] as isize;
        // What lies outside of the row stays as it is.
        let mut sums = [identity; SPAN];
        let span = (to.len() - 1) * step + window;
        let (begin, end) = inside(origin, 1, span, s.input[last]);
        if begin < end {
            meets.each(|offset| {
                let row = &from[((offset + begin) as isize + origin) as usize..][..end - begin];
                for (sum, &value) in sums[begin..end].iter_mut().zip(row) {
                    *sum = f(value, *sum);
                }
            });
        }
        to.fill(identity);
        for t in 0..s.kernel[last] {
            let sums = &sums[t * s.dilations[last]..];
            match step {
                1 => every::<T, 1>(sums, 1, to, &f),
                2 => every::<T, 2>(sums, 2, to, &f),
                _ => every::<T, 0>(sums, step, to, &f),
            }
        }
    }
}

/// Combines `to` with every `step`-th element; `STEP` is the step or 0.
#[inline(always)]
fn every<T: Number, const STEP: usize>(
    from: &[T],
    step: usize,
    to: &mut [T],
    f: &impl Fn(T, T) -> T,
) {
    let step = if STEP == 0 { step } else { STEP };
    let from = &from[..(to.len() - 1) * step + 1];
    for (j, to) in to.iter_mut().enumerate() {
        // SAFETY: not behind the last one of the slice above.
        *to = f(unsafe { *from.get_unchecked(j * step) }, *to);
    }
}

wide! {
    /// The largest elements that the windows of a row see.
    fn row_largest<T: Number>(s: &Sliding, meets: &WindowRows, from: &[T], to: &mut [T]) {
        if s.is_whole() {
            to.fill(largest(from));
        } else {
            combined(s, meets, from, to, T::LOWEST, T::larger);
        }
    }
}

wide! {
    /// The sums of what the windows of a row see.
    fn row_sums<T: Number>(s: &Sliding, meets: &WindowRows, from: &[T], to: &mut [T]) {
        if s.is_whole() {
            to.fill(sum(from));
        } else {
            combined(s, meets, from, to, T::ZERO, T::add);
        }
    }
}

/// A flat position of a plane, counted in column-major order.
fn transposed(s: &Sliding, place: usize) -> usize {
    let mut at = [0; MAX_RANK];
    unflatten(place, &s.input[..s.rank], &mut at[..s.rank]);
    (0..s.rank).rev().fold(0, |flat, d| flat * s.input[d] + at[d])
}

/// Taps of axis `d` that count in an average at position `o`. Beyond the end padding, where a
/// window hangs over because extents were rounded up, nothing counts.
#[inline]
pub(super) fn counted(
    s: &Sliding,
    window: &Window,
    count_include_pad: bool,
    d: usize,
    o: usize,
) -> usize {
    if !count_include_pad {
        let (first, end) = taps_inside(s, d, o);
        return end.saturating_sub(first);
    }
    let room = s.input[d] + s.pads[d] + window.pads_end[d];
    let (_, end) = inside((o * s.strides[d]) as isize, s.dilations[d], s.kernel[d], room);
    end
}

fn average_of<T: Float>(call: &Call, window: &Window, count_include_pad: bool) {
    let x = &call.inputs[0];
    let Some(y) = call.outputs[0].filter(|y: &Destination| y.ty().elements() > 0) else { return };
    let s = &Sliding::new(window, &x.ty().shape, &y.ty().shape);
    // SAFETY: a pool has no in-place pairs.
    let (x, ty): (&[T], _) = (unsafe { x.slice() }, y.ty());
    let y = Shared::new(y.ptr::<T>());
    let (size, last) = (s.inputs(), s.last());
    let width = s.output[last];
    let rows = s.outputs() / width;
    let counted = |d: usize, o: usize| counted(s, window, count_include_pad, d, o);
    // Positions all of whose taps along the last axis are inside.
    let window = (s.kernel[last] - 1) * s.dilations[last] + 1;
    let room = (s.input[last] + s.pads[last] + 1).saturating_sub(window);
    let full = s.pads[last].div_ceil(s.strides[last])..room.div_ceil(s.strides[last]);
    for_each(ty.elements() / width, ty.elements() * s.taps(), |unit| {
        let (plane, row) = (unit / rows, unit % rows);
        let from = &x[plane * size..][..size];
        // SAFETY: each unit has a row of its own.
        let to = unsafe { y.slice(unit * width, width) };
        let meets = WindowRows::new(s, row);
        let outer: usize = (0..last).map(|d| counted(d, meets.at[d])).product();
        row_sums(s, &meets, from, to);
        let whole = T::of_count((outer * s.kernel[last]).max(1));
        for (j, to) in to.iter_mut().enumerate() {
            let count = match full.contains(&j) {
                true => whole,
                false => T::of_count((outer * counted(last, j)).max(1)),
            };
            *to = to.div(count);
        }
    });
}
