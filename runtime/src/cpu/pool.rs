//! `MaxPool` and `AveragePool`: a plane (one channel of one image) per task.
//!
//! Per row of the result the taps that lie inside are ranges along every axis, so padding
//! is never read and needs no value.

use super::address::Shared;
use super::blocks::unknown;
use super::dispatch::{for_float, for_number};
use super::number::{Float, Number};
use super::pool_indices::PlacesWriter;
use super::reduce::{largest, sum};
use super::sliding::{PerAxis, Sliding, inside, unflatten};
use super::tasks::for_each;
use super::terms::filled;
use super::wide::wide;
use crate::kernel::{Call, Destination};
use arenic_ir::DType;
use arenic_ir::op::{MAX_RANK, PoolIndices, Window};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Runs a `MaxPool`.
pub(super) fn max(window: &Window, indices: PoolIndices, call: &Call) {
    for_number!(call.inputs[0].ty().dtype, T => max_of::<T>(call, window, indices));
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

    /// The rows of the plane that the window meets, in order.
    #[inline(always)]
    pub(super) fn rows(&self) -> Rows<'_> {
        let is_empty = (0..self.s.last()).any(|d| self.first[d] >= self.end[d]);
        Rows { of: self, tap: self.first, is_over: is_empty }
    }
}

/// The rows of a plane that a window meets.
pub(super) struct Rows<'a> {
    of: &'a WindowRows<'a>,
    /// The taps of the next row along all axes but the last.
    tap: PerAxis<usize>,
    is_over: bool,
}

impl Iterator for Rows<'_> {
    /// Where the row begins in the plane, and the number of the first tap on it.
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.is_over {
            return None;
        }
        let (of, s, last) = (self.of, self.of.s, self.of.s.last());
        let (mut offset, mut number) = (0, 0);
        for d in 0..last {
            let at = of.at[d] * s.strides[d] + self.tap[d] * s.dilations[d] - s.pads[d];
            offset = offset * s.input[d] + at;
            number = number * s.kernel[d] + self.tap[d];
        }
        self.is_over = true;
        // In their place: a copy of numbers that were just written would wait for them.
        for d in (0..last).rev() {
            self.tap[d] += 1;
            if self.tap[d] < of.end[d] {
                self.is_over = false;
                break;
            }
            self.tap[d] = of.first[d];
        }
        Some((offset * s.input[last], number * s.kernel[last]))
    }
}

/// Elements of a row of the result whose maxima are found at a time.
pub(super) const STRIP: usize = 64;

/// The taps of axis `d` that lie inside at output position `o`.
#[inline(always)]
fn taps_inside(s: &Sliding, d: usize, o: usize) -> (usize, usize) {
    let origin = (o * s.strides[d]) as isize - s.pads[d] as isize;
    inside(origin, s.dilations[d], s.kernel[d], s.input[d])
}

fn max_of<T: Number>(call: &Call, window: &Window, indices: PoolIndices) {
    let (x, [y, places]) = (&call.inputs[0], call.outputs) else { unreachable!("two results") };
    let Some(ty) = y.or(*places).map(|t| t.ty()).filter(|ty| ty.elements() > 0) else { return };
    let s = &Sliding::new(window, &x.ty().shape, &ty.shape);
    // SAFETY: a pool has no in-place pairs.
    let x: &[T] = unsafe { x.slice() };
    let values = y.map(|y: Destination| Shared::new(y.ptr::<T>()));
    let places = places.map(|p| PlacesWriter::new(s, indices, &p));
    let (size, last) = (s.inputs(), s.last());
    if let (true, Some(values), None) = (s.is_whole(), values, &places) {
        whole_planes(x, size, values, plane_maxima);
        return;
    }
    let width = s.output[last];
    let rows = s.outputs() / width;
    for_each(ty.elements() / width, ty.elements() * s.taps(), |unit| {
        let (plane, row) = (unit / rows, unit % rows);
        let from = &x[plane * size..][..size];
        // SAFETY: each unit has a row of its own in both results.
        let mut values = unsafe { values.map(|y| y.slice(unit * width, width)) };
        let meets = WindowRows::new(s, row);
        let Some(places) = &places else {
            if let Some(values) = values {
                row_largest(s, &meets, from, values);
            }
            return;
        };
        for first in (0..width).step_by(STRIP) {
            let n = STRIP.min(width - first);
            let (mut best, mut taps) = ([T::LOWEST; STRIP], [NO_TAP; STRIP]);
            let (best, taps) = (&mut best[..n], &mut taps[..n]);
            row_taps(&meets, from, first, best, taps);
            taps.iter_mut().filter(|tap| **tap == NO_TAP).for_each(|tap| *tap = 0);
            // SAFETY: as above.
            unsafe { places.write(plane, row * width + first, taps) };
            if let Some(values) = &mut values {
                values[first..][..n].copy_from_slice(best);
            }
        }
    });
}

/// No tap: a window has fewer.
const NO_TAP: u32 = u32::MAX;

wide! {
    /// The largest elements that the windows of positions from `first` on of a row see, and the taps
    /// that see them: the first of equal ones, and the last NaN.
    fn row_taps<T: Number>(
        meets: &WindowRows,
        from: &[T],
        first: usize,
        best: &mut [T],
        taps: &mut [u32],
    ) {
        let (s, last) = (meets.s, meets.s.last());
        let (step, dilation, extent) = (s.strides[last], s.dilations[last], s.input[last]);
        // Of a single window only the taps inside are looked at: there may be many.
        let along = match best.len() {
            1 => taps_inside(s, last, first),
            _ => (0, s.kernel[last]),
        };
        for (offset, number) in meets.rows() {
            let row = &from[offset..][..extent];
            for t in along.0..along.1 {
                let origin = (first * step + t * dilation) as isize - s.pads[last] as isize;
                let (begin, end) = inside(origin, step, best.len(), extent);
                if begin >= end {
                    continue;
                }
                let row = &row[(origin + (begin * step) as isize) as usize..];
                let (best, taps) = (&mut best[begin..end], &mut taps[begin..end]);
                let tap = (number + t) as u32;
                if step == 1 {
                    keep_larger(row, tap, best, taps);
                } else {
                    let mut values = [T::ZERO; STRIP];
                    let values = &mut values[..best.len()];
                    match step {
                        2 => every::<T, 2>(row, 2, values, &|from, _| from),
                        _ => every::<T, 0>(row, step, values, &|from, _| from),
                    }
                    keep_larger(values, tap, best, taps);
                }
            }
        }
    }
}

/// Keeps the larger of what is best and of the values that one tap sees.
#[inline(always)]
fn keep_larger<T: Number>(values: &[T], tap: u32, best: &mut [T], taps: &mut [u32]) {
    const BLOCK: usize = 8;
    let n = best.len();
    if n < BLOCK {
        keep_block(values, tap, best, taps);
        return;
    }
    // A value that is looked at twice changes nothing: the last block overlaps the one before it.
    for at in (0..n - BLOCK).step_by(BLOCK).chain([n - BLOCK]) {
        let (mut larger, mut numbers) = ([T::ZERO; BLOCK], [0; BLOCK]);
        larger.copy_from_slice(&best[at..][..BLOCK]);
        numbers.copy_from_slice(&taps[at..][..BLOCK]);
        keep_block(&values[at..][..BLOCK], tap, &mut larger, &mut numbers);
        // The compiler cannot tell that it was loaded from here; see `Number::larger`.
        let at = unknown(at);
        best[at..][..BLOCK].copy_from_slice(&larger);
        taps[at..][..BLOCK].copy_from_slice(&numbers);
    }
}

/// The same of values that are a vector, or few.
#[inline(always)]
fn keep_block<T: Number>(values: &[T], tap: u32, best: &mut [T], taps: &mut [u32]) {
    for ((best, kept), &value) in best.iter_mut().zip(taps).zip(values) {
        let larger = (value > *best) | value.is_nan() | (*kept == NO_TAP);
        *best = if larger { value } else { *best };
        *kept = if larger { tap } else { *kept };
    }
}

/// Elements of a row of the input that are combined at a time, and room for blocks that end behind them.
const SPAN: usize = 256;
const ROOM: usize = SPAN + 2 * BLOCK;

/// Elements in a block: wider ones leave over more of a row, which is short.
const BLOCK: usize = 8;

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
            let (begin, end) = taps_inside(s, last, first);
            for (offset, _) in meets.rows() {
                for t in begin..end {
                    let at = offset + first * step + t * s.dilations[last] - s.pads[last];
                    *to = f(from[at], *to);
                }
            }
        }
        return;
    }
    let most = (SPAN - window) / step + 1;
    for (i, to) in to.chunks_mut(most).enumerate() {
        let origin = (i * most * step) as isize - s.pads[last] as isize;
        let span = (to.len() - 1) * step + window;
        // What lies outside of the row stays as it is.
        let mut room = [const { MaybeUninit::uninit() }; ROOM];
        let sums = filled(&mut room, span + 2 * BLOCK, identity);
        let (begin, end) = inside(origin, 1, span, s.input[last]);
        if begin < end {
            for (offset, _) in meets.rows() {
                let row = &from[((offset + begin) as isize + origin) as usize..][..end - begin];
                add_row(row, &mut sums[begin..end], &f);
            }
        }
        match step {
            1 => along::<T, 1>(s, sums, to, identity, &f),
            2 => along::<T, 2>(s, sums, to, identity, &f),
            _ => {
                to.fill(identity);
                for t in 0..s.kernel[last] {
                    every::<T, 0>(&sums[t * s.dilations[last]..], step, to, &f);
                }
            }
        }
    }
}

/// Combines sums with a row of as many elements.
#[inline(always)]
fn add_row<T: Number>(row: &[T], sums: &mut [T], f: &impl Fn(T, T) -> T) {
    let (blocks, rest) = row.as_chunks::<BLOCK>();
    let (sum_blocks, sum_rest) = sums.as_chunks_mut::<BLOCK>();
    for (sums, block) in sum_blocks.iter_mut().zip(blocks) {
        let mut sum = *sums;
        for (sum, &value) in sum.iter_mut().zip(block) {
            *sum = f(value, *sum);
        }
        *sums = sum;
    }
    for (sum, &value) in sum_rest.iter_mut().zip(rest) {
        *sum = f(value, *sum);
    }
}

/// What windows along the last axis see of sums, which are `STEP` apart.
#[inline(always)]
fn along<T: Number, const STEP: usize>(
    s: &Sliding,
    sums: &[T],
    to: &mut [T],
    identity: T,
    f: &impl Fn(T, T) -> T,
) {
    let (taps, dilation) = (s.kernel[s.last()], s.dilations[s.last()]);
    for (at, to) in to.chunks_mut(BLOCK).enumerate() {
        let mut block = [identity; BLOCK];
        for t in 0..taps {
            // Of positions behind the last one, some lie behind the span.
            let first = at * BLOCK * STEP + t * dilation;
            let from = &sums[first..first + (BLOCK - 1) * STEP + 1];
            for (i, to) in block.iter_mut().enumerate() {
                *to = f(from[i * STEP], *to);
            }
        }
        match to.first_chunk_mut() {
            Some(to) => *to = block,
            None => to.copy_from_slice(&block[..to.len()]),
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

/// Runs `f` on planes of so many elements, each of which gives one result.
fn whole_planes<T: Number>(
    x: &[T],
    size: usize,
    y: Shared<T>,
    f: impl Fn(&[T], usize, &mut [T]) + Sync,
) {
    /// Planes of one call, which costs as much as a small one.
    const TOGETHER: usize = 16;
    let planes = x.len() / size;
    for_each(planes.div_ceil(TOGETHER), x.len(), |task| {
        let first = task * TOGETHER;
        let count = TOGETHER.min(planes - first);
        // SAFETY: each task has results of its own.
        f(&x[first * size..][..count * size], size, unsafe { y.slice(first, count) });
    });
}

wide! {
    /// The largest elements of planes.
    fn plane_maxima<T: Number>(from: &[T], size: usize, to: &mut [T]) {
        for (to, plane) in to.iter_mut().zip(from.chunks_exact(size)) {
            *to = largest(plane);
        }
    }
}

wide! {
    /// The averages of planes.
    fn plane_averages<T: Float>(from: &[T], size: usize, to: &mut [T]) {
        let count = T::of_count(size);
        for (to, plane) in to.iter_mut().zip(from.chunks_exact(size)) {
            *to = sum(plane).div(count);
        }
    }
}

wide! {
    /// The largest elements that the windows of a row see.
    fn row_largest<T: Number>(s: &Sliding, meets: &WindowRows, from: &[T], to: &mut [T]) {
        combined(s, meets, from, to, T::LOWEST, T::larger);
    }
}

wide! {
    /// The sums of what the windows of a row see; of those in a range of positions, the averages of so many elements.
    fn row_averages<T: Float>(
        s: &Sliding,
        meets: &WindowRows,
        from: &[T],
        full: Range<usize>,
        count: T,
        to: &mut [T],
    ) {
        combined(s, meets, from, to, T::ZERO, T::add);
        for to in &mut to[full] {
            *to = to.div(count);
        }
    }
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
    if s.is_whole() {
        whole_planes(x, size, y, plane_averages);
        return;
    }
    let width = s.output[last];
    let rows = s.outputs() / width;
    let counted = |d: usize, o: usize| counted(s, window, count_include_pad, d, o);
    // Positions all of whose taps along the last axis are inside.
    let window = (s.kernel[last] - 1) * s.dilations[last] + 1;
    let room = (s.input[last] + s.pads[last] + 1).saturating_sub(window);
    let end = room.div_ceil(s.strides[last]).min(width);
    let full = s.pads[last].div_ceil(s.strides[last]).min(end)..end;
    for_each(ty.elements() / width, ty.elements() * s.taps(), |unit| {
        let (plane, row) = (unit / rows, unit % rows);
        let from = &x[plane * size..][..size];
        // SAFETY: each unit has a row of its own.
        let to = unsafe { y.slice(unit * width, width) };
        let meets = WindowRows::new(s, row);
        let outer: usize = (0..last).map(|d| counted(d, meets.at[d])).product();
        let whole = T::of_count((outer * s.kernel[last]).max(1));
        row_averages(s, &meets, from, full.clone(), whole, to);
        for j in (0..full.start).chain(full.end..width) {
            to[j] = to[j].div(T::of_count((outer * counted(last, j)).max(1)));
        }
    });
}
