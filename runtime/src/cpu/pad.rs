//! `Pad`: rows of the result are filled, and the operand's elements copied between.

use super::address::Shared;
use super::dispatch::for_number;
use super::number::Number;
use super::sliding::unflatten;
use super::tasks::{CHEAP, for_ranges, for_tasks};
use crate::kernel::Call;
use arenic_ir::DType;
use arenic_ir::op::{MAX_RANK, PaddedAxis, Padding};
use std::ops::Range;

/// Runs a `Pad`.
pub(super) fn run(starts: &[usize], steps: &[usize], shape: &[usize], value: f64, call: &Call) {
    let x = &call.inputs[0];
    let padding = Padding::new(x.ty(), starts, steps, shape);
    let dtype = x.ty().dtype;
    let value = if dtype == DType::Bool { f64::from(value != 0.0) } else { value };
    for_number!(dtype, T => typed::<T>(call, &padding, T::from_f64(value)));
}

fn typed<T: Number>(call: &Call, padding: &Padding, value: T) {
    let Some(y) = call.outputs[0].filter(|y| y.ty().elements() > 0) else { return };
    // SAFETY: padding has no in-place pairs.
    let x: &[T] = unsafe { call.inputs[0].slice() };
    let y = Shared::new(y.ptr::<T>());
    let Some((last, outer)) = padding.axes().split_last() else { return };
    let rows: usize = outer.iter().map(|a| a.to).product();
    let width = last.to;
    let piece = |row: usize, range: Range<usize>| {
        // SAFETY: each task has pieces of its own.
        let to = unsafe { y.slice(row * width + range.start, range.len()) };
        match row_of_operand(outer, row) {
            Some(row) => fill(&x[row * last.from..][..last.from], last, range.start, to, value),
            None => to.fill(value),
        }
    };
    if width < CHEAP {
        for_ranges(rows, CHEAP / width, &|range| {
            for row in range {
                piece(row, 0..width);
            }
        });
        return;
    }
    let pieces = width.div_ceil(CHEAP);
    for_tasks(rows * pieces, &|task| {
        let (row, first) = (task / pieces, task % pieces * CHEAP);
        piece(row, first..(first + CHEAP).min(width));
    });
}

/// The operand's row in row `row` of the result; `None` if there is but padding.
fn row_of_operand(outer: &[PaddedAxis], row: usize) -> Option<usize> {
    let (mut extents, mut at) = ([1; MAX_RANK], [0; MAX_RANK]);
    for (extent, axis) in extents.iter_mut().zip(outer) {
        *extent = axis.to;
    }
    unflatten(row, &extents[..outer.len()], &mut at[..outer.len()]);
    outer.iter().zip(at).try_fold(0, |flat, (axis, at)| {
        let beyond = at.checked_sub(axis.start)?;
        let i = beyond / axis.step;
        (beyond % axis.step == 0 && i < axis.from).then_some(flat * axis.from + i)
    })
}

/// The elements from `first` on of a row of the result, of which `x` is the operand's.
fn fill<T: Number>(x: &[T], axis: &PaddedAxis, first: usize, to: &mut [T], value: T) {
    // The first of the operand's elements at or behind an index.
    let behind = |i: usize| i.saturating_sub(axis.start).div_ceil(axis.step).min(x.len());
    let x = &x[behind(first)..behind(first + to.len())];
    if x.is_empty() {
        to.fill(value);
        return;
    }
    let begin = axis.start + behind(first) * axis.step - first;
    if axis.step > 1 {
        to.fill(value);
        for (to, &x) in to[begin..].iter_mut().step_by(axis.step).zip(x) {
            *to = x;
        }
        return;
    }
    to[..begin].fill(value);
    to[begin..][..x.len()].copy_from_slice(x);
    to[begin + x.len()..].fill(value);
}
