//! Bytes moved and none computed: reshape, copy, slice, expand and concatenation.
//!
//! These kernels see element sizes, not types.

use super::address::{Dst, Src};
use super::dispatch::for_size;
use super::nest::Nest;
use super::tasks::{CHEAP, copy, for_ranges};
use crate::kernel::Call;
use arenic_ir::DType;

/// The same bytes, in place or in bytes of their own.
pub(super) fn duplicate(call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    // SAFETY: operand and result have equal bytes; equal or disjoint ranges.
    unsafe { copy(Src::of(x), Dst::of(y), x.ty().bytes() as usize) };
}

/// `y[i] = x[starts + i · steps]`.
pub(super) fn slice(starts: &[usize], steps: &[i64], call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    if y.ty().elements() == 0 {
        return; // then `starts` may lie outside
    }
    let size = x.ty().dtype.size() as usize;
    let mut nest = Nest::new();
    let (mut offset, mut dense) = (0, size);
    for (axis, &extent) in y.ty().shape.iter().enumerate().rev() {
        offset += starts[axis] * dense;
        nest.push(extent, [dense as isize * steps[axis] as isize]);
        dense *= x.ty().shape[axis];
    }
    // SAFETY: inference keeps the first and last index of every axis inside the operand.
    unsafe { strided(&nest, Src::of(x).at(offset), Dst::of(y), x.ty().dtype) };
}

/// `y` is `x` broadcast.
pub(super) fn expand(call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    let d = x.ty().dtype;
    let nest = Nest::broadcast(&y.ty().shape, [(&x.ty().shape, d.size() as usize)]);
    // SAFETY: the operand broadcasts to the result by inference.
    unsafe { strided(&nest, Src::of(x), Dst::of(y), d) };
}

/// Elements below which a call costs more than a loop.
const SHORT: usize = 8;

/// Gathers the strided `x` into the dense `y`.
///
/// # Safety
/// The nest stays inside `x` and `y`, which are disjoint.
pub(super) unsafe fn strided(nest: &Nest<1>, x: Src, y: Dst, dtype: DType) {
    for_size!(dtype, T => {
        // SAFETY: the caller's promise; every row is inside both.
        unsafe {
            nest.run([x], y, size_of::<T>(), CHEAP, &|rows| {
                let (n, [step]) = (rows.n, rows.steps);
                for r in 0..rows.rows { let ([x], y) = rows.row(r, size_of::<T>());
                    let (x, y): (*const T, *mut T) = (x.cast(), y.cast());
                    if step == size_of::<T>() as isize && n >= SHORT {
                        y.copy_from_nonoverlapping(x, n);
                    } else if step == 0 {
                        std::slice::from_raw_parts_mut(y, n).fill(x.read());
                    } else {
                        for i in 0..n {
                            y.add(i).write(x.byte_offset(i as isize * step).read());
                        }
                    }
                }
            });
        }
    });
}

/// Operands joined along an axis.
pub(super) fn concat(axis: usize, call: &Call) {
    let Some(y) = &call.outputs[0] else { return };
    if y.ty().elements() == 0 {
        return;
    }
    let size = y.ty().dtype.size() as usize;
    let outer: usize = y.ty().shape[..axis].iter().product();
    let inner: usize = y.ty().shape[axis + 1..].iter().product::<usize>() * size;
    let pitch = y.ty().shape[axis] * inner;
    let mut start = 0;
    for x in call.inputs {
        let run = x.ty().shape[axis] * inner;
        if run == 0 {
            continue;
        }
        let (from, to) = (Src::of(x), Dst::of(y));
        if outer == 1 {
            // SAFETY: the operand's bytes, and as many of the result's, are disjoint.
            unsafe { copy(from, to.at(start), run) };
        } else {
            for_ranges(outer, (CHEAP * size / run).max(1), &|r| {
                for i in r {
                    // SAFETY: run `i` of the operand and its place in the result.
                    unsafe {
                        let to = to.at(i * pitch + start);
                        to.0.copy_from_nonoverlapping(from.at(i * run).0, run);
                    }
                }
            });
        }
        start += run;
    }
}
