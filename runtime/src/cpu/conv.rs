//! `Conv`: products with the weights as they lie.
//!
//! A column holds what the window sees at one output position of one image: channels times
//! taps. Tiles of columns are built in scratch (im2col) and multiplied with the weights of
//! their group, both steps in parallel. A pointwise window needs no columns, one that
//! covers the whole input has one per image, the image itself. The weight gradients that
//! exporters write as convolutions have few output positions and a window of an image's
//! size: there the columns of several images share one product ("folded"), and a column,
//! not a row of columns, lies densely, because its runs are the long ones.

use super::address::Shared;
use super::depthwise;
use super::direct;
use super::dispatch::for_float;
use super::library::Scalar;
use super::number::Number;
use super::product::{Mat, MatMut, product_in_parts, products};
use super::shifted;
use super::sliding::Sliding;
use super::tasks::for_each;
use super::winograd;
use crate::kernel::{Call, Destination};
use arenic_backends::cpu::sums::Route;
use arenic_backends::cpu::tiling::{Conv, ConvColumns, conv, product_parts};
use arenic_ir::DType;
use arenic_ir::op::{Extents, Window};

/// Runs a `Conv`.
pub(super) fn run(window: &Window, group: usize, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, window, group));
}

/// The operands and extents of one convolution.
struct Layer<'a, T> {
    x: *const T,
    w: *const T,
    bias: Option<&'a [T]>,
    y: Shared<T>,
    images: usize,
    groups: usize,
    /// Input channels of one group.
    inputs: usize,
    /// Output channels of one group.
    channels: usize,
    /// Input channels times taps: the inner extent of the whole product.
    depth: usize,
    sliding: Sliding,
}

// SAFETY: `x` and `w` are operands, which are only read.
unsafe impl<T: Number> Sync for Layer<'_, T> {}

fn typed<T: Scalar>(call: &Call, window: &Window, group: usize) {
    let (x, w) = (&call.inputs[0], &call.inputs[1]);
    let Some(y) = call.outputs[0].filter(|y: &Destination| y.ty().elements() > 0) else { return };
    let layer = Layer {
        x: x.ptr::<T>(),
        w: w.ptr::<T>(),
        // SAFETY: a convolution has no in-place pairs.
        bias: call.inputs.get(2).map(|b| unsafe { b.slice() }),
        y: Shared::new(y.ptr()),
        images: x.ty().shape[0],
        groups: group,
        inputs: w.ty().shape[1],
        channels: w.ty().shape[0] / group,
        depth: w.ty().shape[1..].iter().product(),
        sliding: Sliding::new(window, &x.ty().shape, &y.ty().shape),
    };
    match conv(window, group, x.ty(), w.ty(), y.ty()) {
        Conv::Depthwise(plan) => depthwise::conv(
            &plan,
            [layer.images, layer.groups],
            (layer.x, layer.w, layer.bias),
            layer.y,
        ),
        Conv::Direct => direct::conv(
            &layer.sliding,
            [layer.images, layer.groups, layer.inputs, layer.channels],
            (layer.x, layer.w, layer.bias),
            layer.y,
        ),
        Conv::Pointwise => layer.pointwise(),
        Conv::Winograd(plan) => winograd::conv(&plan, group, false, call),
        Conv::Shifted(plan) => shifted::conv(&plan, group, call),
        Conv::Whole => layer.whole(call),
        Conv::Columns(tiling) => {
            // SAFETY: the only slice of this call's scratch.
            let scratch = unsafe { call.scratch.slice_mut(tiling.elements()) };
            if tiling.folded {
                layer.folded(tiling, scratch);
            } else {
                layer.per_item(tiling, scratch);
            }
        }
    }
}

/// Where a tile of columns lies in scratch: strides of items, positions and depth.
struct ColumnLayout {
    item: usize,
    position: usize,
    depth: usize,
}

impl<T: Scalar> Layer<'_, T> {
    /// The weights of one group from inner index `depth` on.
    fn weights(&self, group: usize, depth: usize) -> Mat<T> {
        let at = group * self.channels * self.depth + depth;
        Mat::new(self.w.wrapping_add(at), self.depth, 1)
    }

    /// Fills a tile of `y`, rows being channels of one group, with the bias.
    fn begin(&self, group: usize, tile: MatMut<T>, [row, _, m, n]: [usize; 4]) -> bool {
        let Some(bias) = self.bias else { return false };
        // SAFETY: `n` dense elements of each row of this tile.
        unsafe { tile.fill_rows(n, &bias[group * self.channels + row..][..m]) };
        true
    }

    fn pointwise(&self) {
        let size = self.sliding.outputs();
        let e = Extents { m: self.channels, k: self.depth, n: size };
        let operands = |item: usize| {
            let x = Mat::new(self.x.wrapping_add(item * self.inputs * size), size, 1);
            let y = self.y.ptr().wrapping_add(item * self.channels * size);
            (self.weights(item % self.groups, 0), x, MatMut::new(y, size, 1))
        };
        let begin = |item: usize, tile, at| self.begin(item % self.groups, tile, at);
        // SAFETY: operands and results as `infer` checked them.
        unsafe { products(Route::of(e), self.images * self.groups, e, T::ONE, operands, begin) };
    }

    fn whole(&self, call: &Call) {
        let e = Extents { m: self.images, k: self.depth, n: self.channels };
        let results = self.groups * self.channels;
        let operands = |group: usize| {
            let x = self.x.wrapping_add(group * self.depth);
            let y = self.y.ptr().wrapping_add(group * self.channels);
            let x = Mat::new(x, self.groups * self.depth, 1);
            (x, self.weights(group, 0).transposed(), MatMut::new(y, results, 1))
        };
        let begin = |group: usize, tile: MatMut<T>, [_, col, m, n]: [usize; 4]| {
            let Some(bias) = self.bias else { return false };
            let bias = &bias[group * self.channels + col..][..n];
            for i in 0..m {
                // SAFETY: `n` dense elements of a row of this tile.
                unsafe { std::slice::from_raw_parts_mut(tile.at(i, 0).ptr, n) }
                    .copy_from_slice(bias);
            }
            true
        };
        let parts = product_parts(self.images * results, self.depth);
        // SAFETY: operands and results as `infer` checked them; the only scratch slice.
        unsafe {
            if parts > 1 {
                let scratch = call.scratch.slice_mut(parts * self.images * results);
                product_in_parts(parts, self.groups, e, T::ONE, scratch, operands, begin);
            } else {
                products(Route::of(e), self.groups, e, T::ONE, operands, begin);
            }
        }
    }

    /// Builds the columns of `items` (image, group) pairs, `first` and every `every`-th
    /// after it, for `positions` and `depth` given as (first, count).
    fn columns(
        &self,
        (first, every, items): (usize, usize, usize),
        (position, positions): (usize, usize),
        (depth, depths): (usize, usize),
        layout: &ColumnLayout,
        scratch: Shared<T>,
    ) {
        let s = &self.sliding;
        let (taps, size) = (s.taps(), s.inputs());
        let plane = |item: usize, row: usize| {
            let channel = (first + item * every) * self.inputs + row / taps;
            self.x.wrapping_add(channel * size)
        };
        let work = items * positions * depths;
        if layout.position == 1 {
            for_each(items * depths, work, |unit| {
                let (item, row) = (unit / depths, depth + unit % depths);
                let at = item * layout.item + unit % depths * layout.depth;
                // SAFETY: each unit has a row of columns of its own; `plane` is a channel.
                unsafe {
                    let to = scratch.slice(at, positions);
                    s.of_tap(row % taps).read(plane(item, row), position, to);
                }
            });
            return;
        }
        for_each(items * positions, work, |unit| {
            let (item, i) = (unit / positions, unit % positions);
            let lattice = s.of_position(position + i);
            let (mut row, end) = (depth, depth + depths);
            while row < end {
                let count = (taps - row % taps).min(end - row);
                let at = item * layout.item + i * layout.position + (row - depth);
                // SAFETY: each unit has a column of its own; `plane` is a channel.
                unsafe {
                    let to = scratch.slice(at, count);
                    lattice.read(plane(item, row), row % taps, to);
                }
                row += count;
            }
        });
    }

    /// True where taps along the last axis make longer runs than positions.
    fn columns_dense(&self) -> bool {
        let last = self.sliding.last();
        self.sliding.kernel[last] > self.sliding.output[last]
    }

    /// A product for every (image, group) pair of a tile, straight into `y`.
    fn per_item(&self, t: ConvColumns, scratch: &mut [T]) {
        let (size, all) = (self.sliding.outputs(), self.images * self.groups);
        let route = Route::of(t.extents());
        let scratch = Shared::new(scratch.as_mut_ptr());
        let dense = self.columns_dense();
        for first in (0..all).step_by(t.items) {
            for position in (0..size).step_by(t.positions) {
                for depth in (0..self.depth).step_by(t.depth) {
                    let items = t.items.min(all - first);
                    let positions = t.positions.min(size - position);
                    let depths = t.depth.min(self.depth - depth);
                    let item = positions * depths;
                    let layout = match dense {
                        true => ColumnLayout { item, position: depths, depth: 1 },
                        false => ColumnLayout { item, position: 1, depth: positions },
                    };
                    let tile = (position, positions);
                    self.columns((first, 1, items), tile, (depth, depths), &layout, scratch);
                    let e = Extents { m: self.channels, k: depths, n: positions };
                    let operands = |i: usize| {
                        let item = first + i;
                        let columns = scratch.ptr().wrapping_add(i * layout.item);
                        let y = item * self.channels * size + position;
                        (
                            self.weights(item % self.groups, depth),
                            Mat::new(columns, layout.depth, layout.position),
                            MatMut::new(self.y.ptr().wrapping_add(y), size, 1),
                        )
                    };
                    let begin = |i: usize, tile, at| {
                        depth > 0 || self.begin((first + i) % self.groups, tile, at)
                    };
                    // SAFETY: as `infer` checked; columns are complete and only read.
                    unsafe { products(route, items, e, T::ONE, operands, begin) };
                }
            }
        }
        if self.depth == 0 {
            self.write_bias();
        }
    }

    /// One product for all images of a tile, then each image's share goes to its place.
    fn folded(&self, t: ConvColumns, scratch: &mut [T]) {
        let (size, route) = (t.positions, Route::of(t.extents()));
        let dense = self.columns_dense();
        let (columns, results) = scratch.split_at_mut(t.items * size * t.depth);
        let (columns, results) =
            (Shared::new(columns.as_mut_ptr()), Shared::new(results.as_mut_ptr()));
        for group in 0..self.groups {
            for image in (0..self.images).step_by(t.items) {
                let items = t.items.min(self.images - image);
                let first = image * self.groups + group;
                let n = items * size;
                for depth in (0..self.depth).step_by(t.depth) {
                    let depths = t.depth.min(self.depth - depth);
                    let layout = match dense {
                        true => ColumnLayout { item: size * depths, position: depths, depth: 1 },
                        false => ColumnLayout { item: size, position: 1, depth: n },
                    };
                    let which = (first, self.groups, items);
                    self.columns(which, (0, size), (depth, depths), &layout, columns);
                    let e = Extents { m: self.channels, k: depths, n };
                    let b = Mat::new(columns.ptr().cast_const(), layout.depth, layout.position);
                    let c = MatMut::new(results.ptr(), n, 1);
                    // SAFETY: as `infer` checked; columns are complete and only read.
                    unsafe {
                        products(
                            route,
                            1,
                            e,
                            T::ONE,
                            |_| (self.weights(group, depth), b, c),
                            |_, _, _| depth > 0,
                        );
                    }
                }
                for_each(items * self.channels, n * self.channels, |unit| {
                    let (item, channel) = (unit / self.channels, unit % self.channels);
                    let to = (first + item * self.groups) * self.channels + channel;
                    let bias = self.bias.map_or(T::ZERO, |b| b[group * self.channels + channel]);
                    // SAFETY: each unit has one channel of one image.
                    let (to, from) = unsafe {
                        (
                            self.y.slice(to * size, size),
                            results.slice(channel * n + item * size, size),
                        )
                    };
                    for (to, &from) in to.iter_mut().zip(from.iter()) {
                        *to = from.add(bias);
                    }
                });
            }
        }
        if self.depth == 0 {
            self.write_bias();
        }
    }

    /// The result where nothing is multiplied.
    fn write_bias(&self) {
        let (size, channels) = (self.sliding.outputs(), self.groups * self.channels);
        for plane in 0..self.images * channels {
            // SAFETY: one channel of one image of the result.
            unsafe { self.y.slice(plane * size, size) }
                .fill(self.bias.map_or(T::ZERO, |b| b[plane % channels]));
        }
    }
}
