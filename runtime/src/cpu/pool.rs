//! `MaxPool` and `AveragePool`: a plane (one channel of one image) per task.
//!
//! Per row of the result the taps that lie inside are ranges along every axis, so padding
//! is never read and needs no value.

use super::number::{Float, Number};
use super::sliding::{PerAxis, Sliding, inside, unflatten};
use super::tasks::{Shared, for_each, wide};
use crate::kernel::{Call, KernelError, Target};
use arenic_ir::op::{MAX_RANK, Window};
use arenic_ir::{DType, Op};

/// Runs a `MaxPool` or an `AveragePool`.
pub(crate) fn run(call: &Call) -> Result<(), KernelError> {
    match (call.op, call.inputs[0].ty().dtype) {
        (Op::MaxPool { window, column_major, .. }, dtype) => {
            let max = match dtype {
                DType::U8 => max::<u8>,
                DType::I8 => max::<i8>,
                DType::U16 => max::<u16>,
                DType::I16 => max::<i16>,
                DType::U32 => max::<u32>,
                DType::I32 => max::<i32>,
                DType::U64 => max::<u64>,
                DType::I64 => max::<i64>,
                DType::F32 => max::<f32>,
                DType::F64 => max::<f64>,
                DType::Bool => unreachable!("infer refuses pools of bool"),
            };
            max(call, window, *column_major);
        }
        (Op::AveragePool { window, count_include_pad, .. }, DType::F32) => {
            average::<f32>(call, window, *count_include_pad);
        }
        (Op::AveragePool { window, count_include_pad, .. }, _) => {
            average::<f64>(call, window, *count_include_pad);
        }
        _ => unreachable!("no pool"),
    }
    Ok(())
}

/// The rows of taps that lie inside for one row of the result.
struct Rows<'a> {
    s: &'a Sliding,
    at: PerAxis<usize>,
    first: PerAxis<usize>,
    end: PerAxis<usize>,
}

impl<'a> Rows<'a> {
    fn new(s: &'a Sliding, row: usize) -> Rows<'a> {
        let last = s.last();
        let mut rows = Rows { s, at: [0; MAX_RANK], first: [0; MAX_RANK], end: [1; MAX_RANK] };
        unflatten(row, &s.output[..last], &mut rows.at[..last]);
        for d in 0..last {
            (rows.first[d], rows.end[d]) = taps_inside(s, d, rows.at[d]);
        }
        rows
    }

    /// Calls `f` with the offset of every row of the plane that the window meets, in order.
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(usize)) {
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

/// Elements of a row of the result computed at a time.
const STRIP: usize = 64;

impl Rows<'_> {
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

fn max<T: Number>(call: &Call, window: &Window, column_major: bool) {
    let (x, [y, indices]) = (&call.inputs[0], call.outputs) else { unreachable!("two results") };
    let Some(ty) = y.or(*indices).map(|t| t.ty()).filter(|ty| ty.elements() > 0) else { return };
    let s = &Sliding::new(window, &x.ty().shape, &ty.shape);
    // SAFETY: a pool has no in-place pairs.
    let x: &[T] = unsafe { x.slice() };
    let values = y.map(|y: Target| Shared::new(y.ptr::<T>()));
    let indices = indices.map(|i: Target| Shared::new(i.ptr::<i64>()));
    let (size, last) = (s.inputs(), s.last());
    let width = s.output[last];
    let rows = s.outputs() / width;
    for_each(ty.elements() / width, ty.elements() * s.taps(), |unit| {
        let (plane, row) = (unit / rows, unit % rows);
        let from = &x[plane * size..][..size];
        // SAFETY: each unit has a row of its own in both results.
        let (mut values, mut indices) = unsafe {
            (
                values.map(|y| y.slice(unit * width, width)),
                indices.map(|i| i.slice(unit * width, width)),
            )
        };
        let meets = Rows::new(s, row);
        for first in (0..width).step_by(STRIP) {
            let n = STRIP.min(width - first);
            let mut best = [T::LOWEST; STRIP];
            let Some(indices) = &mut indices else {
                largest(&meets, from, first, &mut best[..n]);
                if let Some(values) = &mut values {
                    values[first..][..n].copy_from_slice(&best[..n]);
                }
                continue;
            };
            let mut places = [usize::MAX; STRIP];
            meets.runs(from, first, n, |j, value, at| {
                if value > best[j] || value.is_nan() || places[j] == usize::MAX {
                    (best[j], places[j]) = (value, at);
                }
            });
            if let Some(values) = &mut values {
                values[first..][..n].copy_from_slice(&best[..n]);
            }
            for (index, &place) in indices[first..][..n].iter_mut().zip(&places) {
                // A window with every tap in padding, by dilation, names its plane's start.
                let place = if place == usize::MAX { 0 } else { place };
                let place = if column_major { transposed(s, place) } else { place };
                *index = (plane * size + place) as i64;
            }
        }
    });
}

/// The largest elements that the windows from position `first` on see.
#[inline(always)]
fn largest_of<T: Number>(meets: &Rows, from: &[T], first: usize, best: &mut [T]) {
    meets.runs(from, first, best.len(), |j, value, _| best[j] = value.larger(best[j]));
}

/// The sums of what the windows from position `first` on see.
#[inline(always)]
fn total_of<T: Number>(meets: &Rows, from: &[T], first: usize, sums: &mut [T]) {
    meets.runs(from, first, sums.len(), |j, value, _| sums[j] = sums[j].add(value));
}

wide! {
    /// [`largest_of`] with wide vectors.
    fn largest<T: Number>(meets: &Rows, from: &[T], first: usize, best: &mut [T]) = largest_of
}

wide! {
    /// [`total_of`] with wide vectors.
    fn total<T: Number>(meets: &Rows, from: &[T], first: usize, sums: &mut [T]) = total_of
}

/// A flat position of a plane, counted in column-major order.
fn transposed(s: &Sliding, place: usize) -> usize {
    let mut at = [0; MAX_RANK];
    unflatten(place, &s.input[..s.rank], &mut at[..s.rank]);
    (0..s.rank).rev().fold(0, |flat, d| flat * s.input[d] + at[d])
}

fn average<T: Float>(call: &Call, window: &Window, count_include_pad: bool) {
    let x = &call.inputs[0];
    let Some(y) = call.outputs[0].filter(|y: &Target| y.ty().elements() > 0) else { return };
    let s = &Sliding::new(window, &x.ty().shape, &y.ty().shape);
    // SAFETY: a pool has no in-place pairs.
    let (x, ty): (&[T], _) = (unsafe { x.slice() }, y.ty());
    let y = Shared::new(y.ptr::<T>());
    let (size, last) = (s.inputs(), s.last());
    let width = s.output[last];
    let rows = s.outputs() / width;
    // Taps of axis `d` that count at position `o`. Beyond the end padding, where a window
    // hangs over because extents were rounded up, nothing counts.
    let counted = |d: usize, o: usize| {
        if !count_include_pad {
            let (first, end) = taps_inside(s, d, o);
            return end.saturating_sub(first);
        }
        let room = s.input[d] + s.pads[d] + window.pads_end[d];
        let (_, end) = inside((o * s.strides[d]) as isize, s.dilations[d], s.kernel[d], room);
        end
    };
    for_each(ty.elements() / width, ty.elements() * s.taps(), |unit| {
        let (plane, row) = (unit / rows, unit % rows);
        let from = &x[plane * size..][..size];
        // SAFETY: each unit has a row of its own.
        let to = unsafe { y.slice(unit * width, width) };
        let meets = Rows::new(s, row);
        let outer: usize = (0..last).map(|d| counted(d, meets.at[d])).product();
        for (first, to) in (0..width).step_by(STRIP).zip(to.chunks_mut(STRIP)) {
            let mut sums = [T::ZERO; STRIP];
            total(&meets, from, first, &mut sums[..to.len()]);
            for (j, (to, sum)) in to.iter_mut().zip(sums).enumerate() {
                *to = sum.over((outer * counted(last, first + j)).max(1));
            }
        }
    });
}
