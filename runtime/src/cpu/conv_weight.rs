//! `ConvWeightGrad`: the gradient of the result times the columns' transpose, image after image.
//!
//! A column holds what the window sees at one output position, as in `Conv`; here products sum
//! over positions. Images add to the result one after another, tiles of positions likewise, so
//! that the order of every sum follows from shapes. A pointwise window needs no columns; where its
//! gradient is small, parts of the sum go at once.

use super::address::Shared;
use super::depthwise;
use super::dispatch::for_float;
use super::library::Scalar;
use super::product::{Mat, MatMut, products, sums_of_products, sums_of_products_in_parts};
use super::shifted;
use super::sliding::Sliding;
use super::tasks::for_each;
use super::winograd;
use crate::kernel::{Call, Destination};
use arenic_backends::cpu::sums::Route;
use arenic_backends::cpu::tiling::{ConvWeight, PointwiseWeight, WeightColumns, conv_weight};
use arenic_ir::DType;
use arenic_ir::op::{Extents, Window};

/// Runs a `ConvWeightGrad`.
pub(crate) fn run(window: &Window, group: usize, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(call, window, group));
}

fn typed<T: Scalar>(call: &Call, window: &Window, group: usize) {
    let (x, dy) = (&call.inputs[0], &call.inputs[1]);
    let Some(dw) = call.outputs[0].filter(|dw: &Destination| dw.ty().elements() > 0) else {
        return;
    };
    let layer = Layer {
        sliding: Sliding::new(window, &x.ty().shape, &dy.ty().shape),
        x: Mat::new(x.ptr::<T>(), 0, 1),
        dy: Mat::new(dy.ptr::<T>(), 0, 1),
        dw: Shared::new(dw.ptr::<T>()),
        images: x.ty().shape[0],
        groups: group,
        inputs: dw.ty().shape[1],
        channels: dw.ty().shape[0] / group,
    };
    if layer.images * layer.sliding.outputs() == 0 {
        // SAFETY: the result, in no in-place pair.
        unsafe { dw.slice_mut::<T>() }.fill(T::ZERO);
        return;
    }
    match conv_weight(window, group, x.ty(), dy.ty()) {
        ConvWeight::Pointwise(sum) => layer.pointwise(sum, call),
        ConvWeight::Depthwise(plan) => depthwise::gradient(
            &plan,
            [layer.images, layer.groups],
            (layer.x.ptr, layer.dy.ptr),
            layer.dw,
        ),
        ConvWeight::Winograd(plan) => winograd::gradient(&plan, group, call),
        ConvWeight::Shifted(plan) => shifted::gradient(&plan, group, call),
        ConvWeight::Columns(tiling) => {
            // SAFETY: the only slice of this call's scratch.
            layer.columns(tiling, unsafe { call.scratch.slice_mut(tiling.elements()) });
        }
    }
}

struct Layer<T> {
    x: Mat<T>,
    dy: Mat<T>,
    dw: Shared<T>,
    images: usize,
    groups: usize,
    /// Input channels of one group.
    inputs: usize,
    /// Output channels of one group.
    channels: usize,
    sliding: Sliding,
}

impl<T: Scalar> Layer<T> {
    /// The gradient of one group of an image's results from a position on, and that group's
    /// share of the weight.
    fn group(&self, image: usize, group: usize, position: usize) -> (Mat<T>, MatMut<T>) {
        let (size, depth) = (self.sliding.outputs(), self.inputs * self.sliding.taps());
        let at = (image * self.groups + group) * self.channels * size + position;
        let to = self.dw.ptr().wrapping_add(group * self.channels * depth);
        (Mat::new(self.dy.ptr.wrapping_add(at), size, 1), MatMut::new(to, depth, 1))
    }

    fn pointwise(&self, t: PointwiseWeight, call: &Call) {
        let size = self.sliding.outputs();
        let pieces = size.div_ceil(t.positions);
        let e = Extents { m: self.channels, k: t.positions, n: self.inputs };
        let term = |group: usize, i: usize| {
            let (image, position) = (i / pieces, i % pieces * t.positions);
            let (dy, _) = self.group(image, group, position);
            let at = (image * self.groups + group) * self.inputs * size + position;
            let x = Mat::new(self.x.ptr.wrapping_add(at), size, 1);
            (dy, x.transposed(), t.positions.min(size - position))
        };
        let result = |group: usize| self.group(0, group, 0).1;
        let terms = self.images * pieces;
        // SAFETY: operands and results as `infer` checked them; the only slice of scratch.
        unsafe {
            if t.parts > 1 {
                let (count, e) = ([self.groups, terms], (e, T::ONE));
                let scratch = call.scratch.slice_mut(t.elements());
                let begin = |group: usize| (result(group), false);
                sums_of_products_in_parts(t.parts, count, e, scratch, term, begin);
            } else {
                sums_of_products(self.groups, e, T::ONE, |_| 0..terms, term, result);
            }
        }
    }

    fn columns(&self, t: WeightColumns, scratch: &mut [T]) {
        let (size, taps) = (self.sliding.outputs(), self.sliding.taps());
        let depth = self.inputs * taps;
        let scratch = Shared::new(scratch.as_mut_ptr());
        for image in 0..self.images {
            for first in (0..self.groups).step_by(t.groups) {
                let groups = t.groups.min(self.groups - first);
                for position in (0..size).step_by(t.positions) {
                    let n = t.positions.min(size - position);
                    for_each(groups * depth, groups * depth * n, |row| {
                        let channel = (image * self.groups + first) * self.inputs + row / taps;
                        let plane = self.x.ptr.wrapping_add(channel * self.sliding.inputs());
                        // SAFETY: each unit has a row of columns of its own; a channel of `x`.
                        unsafe {
                            let to = scratch.slice(row * n, n);
                            self.sliding.of_tap(row % taps).read(plane, position, to);
                        }
                    });
                    let e = Extents { m: self.channels, k: n, n: depth };
                    let operands = |i: usize| {
                        let (dy, dw) = self.group(image, first + i, position);
                        let columns = scratch.ptr().cast_const().wrapping_add(i * depth * n);
                        (dy, Mat::new(columns, n, 1).transposed(), dw)
                    };
                    let add = image > 0 || position > 0;
                    // SAFETY: as `infer` checked; columns are complete and only read.
                    unsafe { products(Route::of(e), groups, e, T::ONE, operands, |_, _, _| add) };
                }
            }
        }
    }
}
