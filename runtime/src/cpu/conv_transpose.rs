//! `ConvTranspose`: the weights' transpose times `x` gives columns, whose elements are then
//! added up where the window puts them (col2im). Those of a pointwise window are the result.
//!
//! A task of the second step owns one channel of one image and adds taps in order, so that
//! nothing races and the order of every sum is fixed. Tiles cover channels, and rows of
//! `x` where one channel's columns alone are large.

use super::address::Shared;
use super::depthwise;
use super::direct;
use super::dispatch::for_float;
use super::library::Scalar;
use super::number::Number;
use super::product::{Mat, MatMut, products};
use super::shifted;
use super::sliding::Sliding;
use super::tasks::for_each;
use super::wide::wide;
use super::winograd;
use crate::kernel::{Call, Destination};
use arenic_backends::cpu::sums::Route;
use arenic_backends::cpu::tiling::{ConvTranspose, TransposeColumns, conv_transpose};
use arenic_ir::DType;
use arenic_ir::op::{Extents, Window};

/// Runs a `ConvTranspose`.
pub(super) fn run(window: &Window, group: usize, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, window, group));
}

fn typed<T: Scalar>(call: &Call, window: &Window, group: usize) {
    let (x, w) = (&call.inputs[0], &call.inputs[1]);
    let Some(y) = call.outputs[0].filter(|y: &Destination| y.ty().elements() > 0) else { return };
    // SAFETY: a transposed convolution has no in-place pairs.
    let bias: Option<&[T]> = call.inputs.get(2).map(|b| unsafe { b.slice() });
    // The window slides over the result.
    let s = Sliding::new(window, &y.ty().shape, &x.ty().shape);
    let (images, inputs, channels) = (x.ty().shape[0], x.ty().shape[1] / group, w.ty().shape[1]);
    match conv_transpose(window, group, x.ty(), w.ty(), y.ty()) {
        ConvTranspose::Winograd(plan) => winograd::conv(&plan, group, true, call),
        ConvTranspose::Shifted(parts) => shifted::conv_transpose(&parts, group, call),
        ConvTranspose::Depthwise(plan) => depthwise::conv_transpose(
            &plan,
            [images, group],
            (x.ptr(), w.ptr(), bias),
            Shared::new(y.ptr()),
        ),
        ConvTranspose::Direct => direct::conv_transpose(
            &s,
            [images, group, inputs, channels],
            (x.ptr(), w.ptr(), bias),
            Shared::new(y.ptr()),
        ),
        ConvTranspose::Pointwise => pointwise(
            [images, group, inputs, channels],
            (x.ptr(), w.ptr(), bias),
            (Shared::new(y.ptr()), s.inputs()),
        ),
        ConvTranspose::Columns(tiling) => columns(
            &s,
            (tiling, Route::of(tiling.extents(group, x.ty(), w.ty()))),
            [images, group, inputs, channels],
            (x.ptr(), w.ptr(), bias),
            Shared::new(y.ptr()),
            // SAFETY: the only slice of this call's scratch.
            unsafe { call.scratch.slice_mut(tiling.elements()) },
        ),
    }
}

/// A product per image and group; channels have `size` elements.
fn pointwise<T: Scalar>(
    [images, groups, inputs, channels]: [usize; 4],
    (x, w, bias): (*const T, *const T, Option<&[T]>),
    (y, size): (Shared<T>, usize),
) {
    let e = Extents { m: channels, k: inputs, n: size };
    let (x, w) = (Mat::new(x, size, 1), Mat::new(w, 1, channels));
    let operands = |item: usize| {
        let y = MatMut::new(y.ptr(), size, 1).at(item * channels, 0);
        (w.at(0, item % groups * inputs), x.at(item * inputs, 0), y)
    };
    let begin = |item: usize, tile: MatMut<T>, [row, _, m, n]: [usize; 4]| {
        let Some(bias) = bias else { return false };
        // SAFETY: `n` dense elements of each row of this tile.
        unsafe { tile.fill_rows(n, &bias[item % groups * channels + row..][..m]) };
        true
    };
    // SAFETY: operands and results as `infer` checked them.
    unsafe { products(Route::of(e), images * groups, e, T::ONE, operands, begin) };
}

fn columns<T: Scalar>(
    s: &Sliding,
    (t, route): (TransposeColumns, Route),
    [images, groups, inputs, channels]: [usize; 4],
    (x, w, bias): (*const T, *const T, Option<&[T]>),
    y: Shared<T>,
    scratch: &mut [T],
) {
    let (taps, size, result) = (s.taps(), s.outputs(), s.inputs());
    // Elements of `x` per index of its first spatial axis.
    let inner = s.output[1..s.rank].iter().product::<usize>();
    let all = images * groups;
    let scratch = Shared::new(scratch.as_mut_ptr());
    let (x, w) = (Mat::new(x, size, 1), Mat::new(w, 1, channels * taps));
    for first in (0..all).step_by(t.items) {
        for channel in (0..channels).step_by(t.channels) {
            for row in (0..s.output[0]).step_by(t.rows) {
                let items = t.items.min(all - first);
                let count = t.channels.min(channels - channel);
                let n = t.rows.min(s.output[0] - row) * inner;
                let e = Extents { m: count * taps, k: inputs, n };
                let operands = |i: usize| {
                    let (item, group) = (first + i, (first + i) % groups);
                    let columns = scratch.ptr().wrapping_add(i * e.m * n);
                    (
                        w.at(channel * taps, group * inputs),
                        x.at(item * inputs, row * inner),
                        MatMut::new(columns, n, 1),
                    )
                };
                // SAFETY: operands as `infer` checked them; every item has columns of its own.
                unsafe { products(route, items, e, T::ONE, operands, |_, _, _| false) };
                for_each(items * count, items * count * taps * n, |unit| {
                    let (i, c) = (unit / count, unit % count);
                    let plane = (first + i) * channels + channel + c;
                    // SAFETY: one channel of one image; columns are only read now.
                    let (to, columns) = unsafe {
                        (y.slice(plane * result, result), scratch.slice(unit * taps * n, taps * n))
                    };
                    if row == 0 {
                        to.fill(bias.map_or(T::ZERO, |b| b[plane % (groups * channels)]));
                    }
                    for tap in 0..taps {
                        gather(s, tap, row * inner, &columns[tap * n..][..n], to);
                    }
                });
            }
        }
    }
    if size == 0 {
        for plane in 0..all * channels {
            // SAFETY: one channel of one image.
            unsafe { y.slice(plane * result, result) }
                .fill(bias.map_or(T::ZERO, |b| b[plane % (groups * channels)]));
        }
    }
}

wide! {
    /// Adds the column elements of one tap, for positions from `position` on, to one channel.
    fn gather<T: Number>(s: &Sliding, tap: usize, position: usize, column: &[T], to: &mut [T]) {
        let stride = s.strides[s.last()];
        for (offset, at, count) in s.of_tap(tap).runs(position, position + column.len()) {
            let from = &column[at - position..][..count];
            if stride == 1 {
                for (to, &from) in to[offset..][..count].iter_mut().zip(from) {
                    *to = to.add(from);
                }
            } else {
                for (to, &from) in to[offset..].iter_mut().step_by(stride).zip(from) {
                    *to = to.add(from);
                }
            }
        }
    }
}
