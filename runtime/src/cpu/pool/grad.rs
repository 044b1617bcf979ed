//! `MaxPoolGrad` and `AveragePoolGrad`: a plane (one channel of one image) per task.
//!
//! What windows give an element is added in the windows' order. No two planes meet.

use super::indices::Taps;
use super::taps::STRIP;
use super::windows::{WindowRows, counted};
use crate::cpu::address::Shared;
use crate::cpu::dispatch::for_float;
use crate::cpu::indices::Indices;
use crate::cpu::number::Float;
use crate::cpu::sliding::{PerAxis, Sliding, inside, unflatten};
use crate::cpu::tasks::for_each;
use crate::cpu::wide::wide;
use crate::kernel::{Call, KernelError};
use arenic_ir::DType;
use arenic_ir::op::{MAX_RANK, PoolIndices, Window};

/// Runs a `MaxPoolGrad`.
pub(in crate::cpu) fn max(
    window: &Window,
    indices: PoolIndices,
    call: &Call,
) -> Result<(), KernelError> {
    for_float!(call.inputs[0].ty().dtype, T => match indices {
        PoolIndices::Taps => of_taps::<T>(call, window),
        PoolIndices::Positions => return of_positions::<T>(call, window, false),
        PoolIndices::ColumnMajorPositions => return of_positions::<T>(call, window, true),
    });
    Ok(())
}

/// Runs an `AveragePoolGrad`.
pub(in crate::cpu) fn average(window: &Window, count_include_pad: bool, call: &Call) {
    let dtype = call.inputs[0].ty().dtype;
    for_float!(dtype, T => average_of::<T>(call, window, count_include_pad));
}

/// Calls `f` with every plane's number and elements, which are zero.
fn for_planes<T: Float>(call: &Call, s: &Sliding, f: impl Fn(usize, &mut [T]) + Sync) {
    let Some(dx) = call.outputs[0] else { return };
    let size = s.inputs();
    let planes: usize = dx.ty().shape[..2].iter().product();
    let dx = Shared::new(dx.ptr::<T>());
    for_each(planes, planes * (size + s.outputs()), |plane| {
        // SAFETY: each task has a plane of its own.
        let to = unsafe { dx.slice(plane * size, size) };
        to.fill(T::ZERO);
        f(plane, to);
    });
}

fn of_taps<T: Float>(call: &Call, window: &Window) {
    let ([dy, taps], Some(dx)) = (call.inputs, &call.outputs[0]) else { return };
    let s = &Sliding::new(window, &dx.ty().shape, &dy.ty().shape);
    // SAFETY: there is no in-place pair.
    let (dy, taps): (&[T], _) = unsafe { (dy.slice(), Taps::of(taps)) };
    let (count, last) = (s.outputs(), s.last());
    let (width, extent) = (s.output[last], s.input[last]);
    let along = s.kernel[last];
    // The row of each tap, and the column that it sees at position 0, which may lie before the first one. Dividing
    // for each element takes longer than all else.
    let split: Vec<_> = (0..s.taps())
        .map(|tap| (tap / along, (tap % along * s.dilations[last]).wrapping_sub(s.pads[last])))
        .collect();
    for_planes(call, s, |plane, to: &mut [T]| {
        // Where each tap's row begins in the plane, if it lies inside.
        let mut rows = vec![None; s.taps() / along];
        let mut meets = WindowRows::new(s);
        for row in 0..count / width {
            rows.fill(None);
            meets.move_to(row);
            for &(offset, number) in meets.rows() {
                rows[number / along] = Some(offset);
            }
            let first = plane * count + row * width;
            for (j, &dy) in dy[first..][..width].iter().enumerate() {
                let Some(&(row, column)) = split.get(taps.get(first + j)) else { continue };
                let column = column.wrapping_add(j * s.strides[last]);
                if let Some(offset) = rows[row].filter(|_| column < extent) {
                    to[offset + column] = to[offset + column].add(dy);
                }
            }
        }
    });
}

fn of_positions<T: Float>(
    call: &Call,
    window: &Window,
    column_major: bool,
) -> Result<(), KernelError> {
    let ([dy, indices], Some(dx)) = (call.inputs, &call.outputs[0]) else { return Ok(()) };
    // SAFETY: there is no in-place pair.
    let (dy_all, indices): (&[T], _) = unsafe { (dy.slice(), Indices::of(indices)) };
    let total = dx.ty().elements();
    indices.check(&[total])?;
    let s = &Sliding::new(window, &dx.ty().shape, &dy.ty().shape);
    let (size, count, rank) = (s.inputs(), s.outputs(), s.rank);
    for_planes(call, s, |plane, to: &mut [T]| {
        let mut position = [0; MAX_RANK];
        for o in 0..count {
            let i = plane * count + o;
            let place = indices.position(i, total).checked_sub(plane * size);
            if let Some(mut place) = place.filter(|&place| place < size) {
                let mut at = [0; MAX_RANK];
                if column_major {
                    for (at, extent) in at.iter_mut().zip(&s.input[..rank]) {
                        (*at, place) = (place % extent, place / extent);
                    }
                } else {
                    unflatten(place, &s.input[..rank], &mut at[..rank]);
                }
                if (0..rank).all(|d| covers(s, d, position[d], at[d])) {
                    let flat = (0..rank).fold(0, |flat, d| flat * s.input[d] + at[d]);
                    to[flat] = to[flat].add(dy_all[i]);
                }
            }
            advance(s, &mut position);
        }
    });
    Ok(())
}

/// True where the window at output position `o` of axis `d` has a tap at `x`.
#[inline(always)]
fn covers(s: &Sliding, d: usize, o: usize, x: usize) -> bool {
    (x + s.pads[d]).checked_sub(o * s.strides[d]).is_some_and(|from_start| {
        from_start % s.dilations[d] == 0 && from_start / s.dilations[d] < s.kernel[d]
    })
}

/// The next output position.
#[inline(always)]
fn advance(s: &Sliding, position: &mut PerAxis<usize>) {
    for d in (0..s.rank).rev() {
        position[d] += 1;
        if position[d] < s.output[d] {
            return;
        }
        position[d] = 0;
    }
}

fn average_of<T: Float>(call: &Call, window: &Window, count_include_pad: bool) {
    let ([dy], Some(dx)) = (call.inputs, &call.outputs[0]) else { return };
    let s = &Sliding::new(window, &dx.ty().shape, &dy.ty().shape);
    // SAFETY: there is no in-place pair.
    let dy: &[T] = unsafe { dy.slice() };
    let (count, last) = (s.outputs(), s.last());
    let width = s.output[last];
    let counted = |d: usize, o: usize| counted(s, window, count_include_pad, d, o);
    for_planes(call, s, |plane, to| {
        let mut meets = WindowRows::new(s);
        for row in 0..count / width {
            meets.move_to(row);
            let outer: usize = (0..last).map(|d| counted(d, meets.at(d))).product();
            for first in (0..width).step_by(STRIP) {
                let mut shares = [T::ZERO; STRIP];
                let n = STRIP.min(width - first);
                for (j, share) in shares[..n].iter_mut().enumerate() {
                    let taps = (outer * counted(last, first + j)).max(1);
                    *share = dy[plane * count + row * width + first + j].div(T::of_count(taps));
                }
                for &(offset, _) in meets.rows() {
                    spread(s, first, &shares[..n], &mut to[offset..][..s.input[last]]);
                }
            }
        }
    });
}

wide! {
    /// Adds the shares of positions from `first` on to what their taps see of a row.
    fn spread<T: Float>(s: &Sliding, first: usize, shares: &[T], row: &mut [T]) {
        let last = s.last();
        let step = s.strides[last];
        for t in 0..s.kernel[last] {
            let origin = (first * step + t * s.dilations[last]) as isize - s.pads[last] as isize;
            let (begin, end) = inside(origin, step, shares.len(), row.len());
            if begin >= end {
                continue;
            }
            let at = (origin + (begin * step) as isize) as usize;
            match step {
                1 => {
                    for (to, &share) in row[at..].iter_mut().zip(&shares[begin..end]) {
                        *to = to.add(share);
                    }
                }
                _ => {
                    let row = row[at..].iter_mut().step_by(step);
                    for (to, &share) in row.zip(&shares[begin..end]) {
                        *to = to.add(share);
                    }
                }
            }
        }
    }
}
