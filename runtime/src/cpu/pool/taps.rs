//! Maxima, and the taps that see them.

use super::windows::{
    BLOCK, WindowRows, by_taps, every, is_small, overlapping_blocks, taps_inside,
};
use crate::cpu::blocks::unknown;
use crate::cpu::number::Number;
use crate::cpu::sliding::inside;
use crate::cpu::wide::wide;
use std::ops::Range;

/// No tap: a window has fewer.
pub(super) const NO_TAP: u32 = u32::MAX;

/// Elements of a row of the result whose maxima are found at a time.
pub(super) const STRIP: usize = 64;

wide! {
    /// The largest elements that the windows of positions from `first` on of a row see, and the taps
    /// that see them: the first of equal ones, and the last NaN.
    pub(super) fn row_taps<T: Number>(
        meets: &WindowRows,
        from: &[T],
        first: usize,
        best: &mut [T],
        taps: &mut [u32],
    ) where T::IS_FLOAT; {
        let (s, last, n) = (meets.s, meets.s.last(), best.len());
        let full = s.full();
        let [begin, end] = [full.start, full.end].map(|at| at.clamp(first, first + n) - first);
        if !is_small(s) || end - begin < BLOCK {
            tap_by_tap(meets, from, first, best, taps);
            return;
        }
        match (s.strides[last], s.kernel[last]) {
            (1, 2) => windows_taps::<T, 1, 2>(meets, from, first, begin..end, best, taps),
            (1, _) => windows_taps::<T, 1, 3>(meets, from, first, begin..end, best, taps),
            (_, 2) => windows_taps::<T, 2, 2>(meets, from, first, begin..end, best, taps),
            _ => windows_taps::<T, 2, 3>(meets, from, first, begin..end, best, taps),
        }
        for at in (0..begin).chain(end..n) {
            tap_by_tap(meets, from, first + at, &mut best[at..][..1], &mut taps[at..][..1]);
        }
    }
}

/// The maxima and taps of [`row_taps`], one tap of all positions after the other: some may see what lies outside.
#[inline(always)]
fn tap_by_tap<T: Number>(
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
    for &(offset, number) in meets.rows() {
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

/// The maxima and taps of [`row_taps`] at some positions, counted from `first` on, all of whose taps lie inside: a block
/// at a time, in registers.
#[inline(always)]
fn windows_taps<T: Number, const STEP: usize, const TAPS: usize>(
    meets: &WindowRows,
    from: &[T],
    first: usize,
    positions: Range<usize>,
    best: &mut [T],
    taps: &mut [u32],
) {
    let (s, last) = (meets.s, meets.s.last());
    let origin = (first + positions.start) * STEP - s.pads[last];
    let (best, taps) = (&mut best[positions.clone()], &mut taps[positions]);
    for at in overlapping_blocks(best.len()) {
        let (mut larger, mut numbers) = ([T::LOWEST; BLOCK], [NO_TAP; BLOCK]);
        for &(row, number) in meets.rows() {
            let seen = by_taps::<T, STEP, TAPS>(&from[row + origin + at * STEP..]);
            for (tap, values) in (number as u32..).zip(&seen) {
                keep_block(values, tap, &mut larger, &mut numbers);
            }
        }
        let at = unknown(at);
        best[at..][..BLOCK].copy_from_slice(&larger);
        taps[at..][..BLOCK].copy_from_slice(&numbers);
    }
}

/// Keeps the larger of what is best and of the values that one tap sees.
#[inline(always)]
fn keep_larger<T: Number>(values: &[T], tap: u32, best: &mut [T], taps: &mut [u32]) {
    if best.len() < BLOCK {
        keep_block(values, tap, best, taps);
        return;
    }
    // A value that is looked at twice changes nothing.
    for at in overlapping_blocks(best.len()) {
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
