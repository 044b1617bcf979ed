//! `MaxPool` and `AveragePool`: some rows of the result per task.
//!
//! Per row of the result the taps that lie inside are ranges along every axis, so padding
//! is never read and needs no value.

mod combined;
pub(super) mod grad;
mod indices;
mod taps;
mod windows;

use self::combined::combined;
use self::indices::PlacesWriter;
use self::taps::{NO_TAP, STRIP, row_taps};
use self::windows::{WindowRows, counted};
use super::address::Shared;
use super::dispatch::{for_float, for_number};
use super::number::{Float, Number};
use super::reduce::{largest, sum};
use super::sliding::Sliding;
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::{Call, Destination};
use arenic_ir::DType;
use arenic_ir::op::{PoolIndices, Window};
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

fn max_of<T: Number>(call: &Call, window: &Window, indices: PoolIndices) {
    let (x, [y, places]) = (&call.inputs[0], call.outputs) else { unreachable!("two results") };
    let Some(ty) = y.or(*places).map(|t| t.ty()).filter(|ty| ty.elements() > 0) else { return };
    let s = &Sliding::new(window, &x.ty().shape, &ty.shape);
    // SAFETY: a pool has no in-place pairs.
    let x: &[T] = unsafe { x.slice() };
    let values = y.map(|y: Destination| Shared::new(y.ptr::<T>()));
    let places = places.map(|p| PlacesWriter::new(s, indices, &p));
    let (size, width) = (s.inputs(), s.output[s.last()]);
    let Some(places) = places else {
        let Some(values) = values else { return };
        if s.is_whole() {
            whole_planes(x, size, values, plane_maxima);
        } else {
            for_rows(s, ty.elements(), |rows| {
                // SAFETY: each task has rows of its own.
                let to = unsafe { values.slice(rows.start * width, rows.len() * width) };
                largest_of_rows(s, x, rows.start, to);
            });
        }
        return;
    };
    let rows_of_plane = s.outputs() / width;
    for_rows(s, ty.elements(), |rows| {
        let mut meets = WindowRows::new(s);
        for row in rows {
            let (plane, row) = (row / rows_of_plane, row % rows_of_plane);
            meets.move_to(row);
            let from = &x[plane * size..][..size];
            for first in (0..width).step_by(STRIP) {
                let n = STRIP.min(width - first);
                let (mut best, mut taps) = ([T::LOWEST; STRIP], [NO_TAP; STRIP]);
                let (best, taps) = (&mut best[..n], &mut taps[..n]);
                row_taps(&meets, from, first, best, taps);
                taps.iter_mut().filter(|tap| **tap == NO_TAP).for_each(|tap| *tap = 0);
                let first = row * width + first;
                // SAFETY: each task has rows of its own in both results.
                unsafe {
                    places.write(plane, first, taps);
                    if let Some(values) = values {
                        values.slice(plane * s.outputs() + first, n).copy_from_slice(best);
                    }
                }
            }
        }
    });
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
    fn plane_maxima<T: Number>(from: &[T], size: usize, to: &mut [T]) where T::IS_FLOAT; {
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

/// Runs `f` on ranges of all rows of a result of so many elements.
fn for_rows(s: &Sliding, elements: usize, f: impl Fn(Range<usize>) + Sync) {
    /// Elements of one call, which costs as much as a row.
    const TOGETHER: usize = 512;
    let width = s.output[s.last()];
    let (rows, together) = (elements / width, (TOGETHER / width).max(1));
    for_each(rows.div_ceil(together), elements * s.taps(), |task| {
        let first = task * together;
        f(first..(first + together).min(rows));
    });
}

wide! {
    /// The largest elements that the windows of rows see.
    fn largest_of_rows<T: Number>(s: &Sliding, x: &[T], first: usize, to: &mut [T]) where T::IS_FLOAT; {
        let (size, width) = (s.inputs(), s.output[s.last()]);
        let (rows, mut meets) = (s.outputs() / width, WindowRows::new(s));
        for (row, to) in (first..).zip(to.chunks_exact_mut(width)) {
            meets.move_to(row % rows);
            let from = &x[row / rows * size..][..size];
            combined(s, &meets, from, to, T::LOWEST, &T::larger);
        }
    }
}

wide! {
    /// The averages of what the windows of rows see.
    fn averages_of_rows<T: Float>(
        s: &Sliding,
        window: &Window,
        count_include_pad: bool,
        x: &[T],
        first: usize,
        to: &mut [T],
    ) {
        let (last, full) = (s.last(), s.full());
        let counted = |d: usize, o: usize| counted(s, window, count_include_pad, d, o);
        let (size, width) = (s.inputs(), s.output[last]);
        let (rows, mut meets) = (s.outputs() / width, WindowRows::new(s));
        for (row, to) in (first..).zip(to.chunks_exact_mut(width)) {
            meets.move_to(row % rows);
            let from = &x[row / rows * size..][..size];
            combined(s, &meets, from, to, T::ZERO, &T::add);
            let outer: usize = (0..last).map(|d| counted(d, meets.at(d))).product();
            let whole = T::of_count((outer * s.kernel[last]).max(1));
            for to in &mut to[full.clone()] {
                *to = to.div(whole);
            }
            for j in (0..full.start).chain(full.end..to.len()) {
                to[j] = to[j].div(T::of_count((outer * counted(last, j)).max(1)));
            }
        }
    }
}

fn average_of<T: Float>(call: &Call, window: &Window, count_include_pad: bool) {
    let x = &call.inputs[0];
    let Some(y) = call.outputs[0].filter(|y: &Destination| y.ty().elements() > 0) else { return };
    let s = &Sliding::new(window, &x.ty().shape, &y.ty().shape);
    // SAFETY: a pool has no in-place pairs.
    let (x, ty): (&[T], _) = (unsafe { x.slice() }, y.ty());
    let y = Shared::new(y.ptr::<T>());
    if s.is_whole() {
        whole_planes(x, s.inputs(), y, plane_averages);
        return;
    }
    let width = s.output[s.last()];
    for_rows(s, ty.elements(), |rows| {
        // SAFETY: each task has rows of its own.
        let to = unsafe { y.slice(rows.start * width, rows.len() * width) };
        averages_of_rows(s, window, count_include_pad, x, rows.start, to);
    });
}
