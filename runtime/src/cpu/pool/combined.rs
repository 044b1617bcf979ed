//! Sums and maxima of what windows see.

use super::windows::{
    BLOCK, WindowRows, by_taps, every, is_small, overlapping_blocks, taps_inside,
};
use crate::cpu::blocks::unknown;
use crate::cpu::number::Number;
use crate::cpu::sliding::{Sliding, inside};
use crate::cpu::terms::filled;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Elements of a row of the input that are combined at a time, and room for blocks that end behind them.
const SPAN: usize = 256;

const ROOM: usize = SPAN + 2 * BLOCK;

/// Rows of small windows that are combined for each block: sums of more are shared by the windows that see them.
const FEW: usize = 4;

/// What the windows of one row of the result see, combined: first over the other axes, then along the last one.
#[inline(always)]
pub(super) fn combined<T: Number>(
    s: &Sliding,
    meets: &WindowRows,
    from: &[T],
    to: &mut [T],
    identity: T,
    f: &impl Fn(T, T) -> T,
) {
    let last = s.last();
    let (step, window) = (s.strides[last], (s.kernel[last] - 1) * s.dilations[last] + 1);
    let full = s.full();
    if is_small(s) && meets.rows().len() <= FEW && full.len() >= BLOCK {
        one_by_one(meets, from, 0..full.start, to, identity, f);
        one_by_one(meets, from, full.end..to.len(), to, identity, f);
        match (step, s.kernel[last]) {
            (1, 2) => in_registers::<T, 1, 2>(meets, from, full, to, identity, f),
            (1, _) => in_registers::<T, 1, 3>(meets, from, full, to, identity, f),
            (_, 2) => in_registers::<T, 2, 2>(meets, from, full, to, identity, f),
            _ => in_registers::<T, 2, 3>(meets, from, full, to, identity, f),
        }
        return;
    }
    if window > SPAN {
        one_by_one(meets, from, 0..to.len(), to, identity, f);
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
            for &(offset, _) in meets.rows() {
                let row = &from[((offset + begin) as isize + origin) as usize..][..end - begin];
                add_row(row, &mut sums[begin..end], f);
            }
        }
        match step {
            1 => along::<T, 1>(s, sums, to, identity, f),
            2 => along::<T, 2>(s, sums, to, identity, f),
            _ => {
                to.fill(identity);
                for t in 0..s.kernel[last] {
                    every::<T, 0>(&sums[t * s.dilations[last]..], step, to, f);
                }
            }
        }
    }
}

/// What the windows at some positions of a row see, element by element.
#[inline(always)]
fn one_by_one<T: Number>(
    meets: &WindowRows,
    from: &[T],
    positions: Range<usize>,
    to: &mut [T],
    identity: T,
    f: &impl Fn(T, T) -> T,
) {
    let (s, last) = (meets.s, meets.s.last());
    for at in positions {
        let (begin, end) = taps_inside(s, last, at);
        let mut all = identity;
        for &(offset, _) in meets.rows() {
            for t in begin..end {
                let place = offset + at * s.strides[last] + t * s.dilations[last] - s.pads[last];
                all = f(from[place], all);
            }
        }
        to[at] = all;
    }
}

/// What the windows at positions all of whose taps lie inside see, a block at a time: sums that are
/// stored to be read at other places would wait for the store.
#[inline(always)]
fn in_registers<T: Number, const STEP: usize, const TAPS: usize>(
    meets: &WindowRows,
    from: &[T],
    positions: Range<usize>,
    to: &mut [T],
    identity: T,
    f: &impl Fn(T, T) -> T,
) {
    let origin = positions.start * STEP - meets.s.pads[meets.s.last()];
    let to = &mut to[positions];
    for at in overlapping_blocks(to.len()) {
        let mut sums = [[identity; BLOCK]; TAPS];
        for &(row, _) in meets.rows() {
            let seen = by_taps::<T, STEP, TAPS>(&from[row + origin + at * STEP..]);
            add_row(seen.as_flattened(), sums.as_flattened_mut(), f);
        }
        let mut block = [identity; BLOCK];
        for sums in &sums {
            add_row(sums, &mut block, f);
        }
        to[unknown(at)..][..BLOCK].copy_from_slice(&block);
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
