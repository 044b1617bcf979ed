//! What the windows of a pool see.

use crate::cpu::blocks::unknown;
use crate::cpu::number::Number;
use crate::cpu::sliding::{PerAxis, Sliding, inside, unflatten};
use arenic_ir::op::{MAX_RANK, Window};

/// The rows of a plane that the windows of one row of the result meet.
pub(super) struct WindowRows<'a> {
    pub(super) s: &'a Sliding,
    at: PerAxis<usize>,
    rows: Vec<(usize, usize)>,
}

impl<'a> WindowRows<'a> {
    /// Before the first row: see [`move_to`](Self::move_to).
    pub(super) fn new(s: &'a Sliding) -> WindowRows<'a> {
        WindowRows { s, at: [0; MAX_RANK], rows: Vec::new() }
    }

    /// Goes to a row of the result.
    #[inline]
    pub(super) fn move_to(&mut self, row: usize) {
        let (s, last, rows) = (self.s, self.s.last(), &mut self.rows);
        unflatten(row, &s.output[..last], &mut self.at[..last]);
        rows.clear();
        rows.push((0, 0));
        for d in 0..last {
            let origin = self.at[d] * s.strides[d];
            let (first, end) = taps_inside(s, d, self.at[d]);
            let before = rows.len();
            for i in 0..before {
                let (offset, number) = rows[i];
                rows.extend((first..end).map(|t| {
                    let at = origin + t * s.dilations[d] - s.pads[d];
                    (offset * s.input[d] + at, number * s.kernel[d] + t)
                }));
            }
            rows.drain(..before);
        }
        for (offset, number) in rows {
            (*offset, *number) = (*offset * s.input[last], *number * s.kernel[last]);
        }
    }

    /// The row's index along axis `d`, which is not the last one.
    pub(super) fn at(&self, d: usize) -> usize {
        self.at[d]
    }

    /// Where the rows begin in the plane, and the number of the first tap on each, in order.
    #[inline(always)]
    pub(super) fn rows(&self) -> &[(usize, usize)] {
        &self.rows
    }
}

/// The taps of axis `d` that lie inside at output position `o`.
#[inline(always)]
pub(super) fn taps_inside(s: &Sliding, d: usize, o: usize) -> (usize, usize) {
    let origin = (o * s.strides[d]) as isize - s.pads[d] as isize;
    inside(origin, s.dilations[d], s.kernel[d], s.input[d])
}

/// Taps of axis `d` that count in an average at position `o`. Beyond the end padding, where a
/// window hangs over because extents were rounded up, nothing counts.
#[inline]
pub(super) fn counted(
    s: &Sliding,
    window: &Window,
    count_include_pad: bool,
    d: usize,
    o: usize,
) -> usize {
    if !count_include_pad {
        let (first, end) = taps_inside(s, d, o);
        return end.saturating_sub(first);
    }
    let room = s.input[d] + s.pads[d] + window.pads_end[d];
    let (_, end) = inside((o * s.strides[d]) as isize, s.dilations[d], s.kernel[d], room);
    end
}

/// True of the windows along the last axis that most pools have: two or three elements, and a step of one or two.
pub(super) fn is_small(s: &Sliding) -> bool {
    let last = s.last();
    s.dilations[last] == 1 && matches!(s.kernel[last], 2 | 3) && matches!(s.strides[last], 1 | 2)
}

/// Elements in a block: wider ones leave over more of a row, which is short.
pub(super) const BLOCK: usize = 8;

/// Where blocks begin that cover so many elements, of which there is one block at least: the last one overlaps the one before it.
#[inline(always)]
pub(super) fn overlapping_blocks(n: usize) -> impl Iterator<Item = usize> {
    (0..n - BLOCK).step_by(BLOCK).chain([n - BLOCK])
}

/// What each of the taps along the last axis sees of a row, from the first column on that a block of windows
/// sees, which are `STEP` apart.
#[inline(always)]
pub(super) fn by_taps<T: Number, const STEP: usize, const TAPS: usize>(
    row: &[T],
) -> [[T; BLOCK]; TAPS] {
    let row = &row[..STEP * (BLOCK - 1) + TAPS];
    let mut seen = [[T::ZERO; BLOCK]; TAPS];
    for (t, seen) in seen.iter_mut().enumerate() {
        // Of elements that several taps see, the compiler would load each by itself.
        let t = unknown(t);
        for (i, seen) in seen.iter_mut().enumerate() {
            // SAFETY: not behind the last one of the slice above.
            *seen = unsafe { *row.get_unchecked(i * STEP + t) };
        }
    }
    seen
}

/// Combines `to` with every `step`-th element; `STEP` is the step or 0.
#[inline(always)]
pub(super) fn every<T: Number, const STEP: usize>(
    from: &[T],
    step: usize,
    to: &mut [T],
    f: &impl Fn(T, T) -> T,
) {
    let step = if STEP == 0 { step } else { STEP };
    let from = &from[..(to.len() - 1) * step + 1];
    for (j, to) in to.iter_mut().enumerate() {
        // SAFETY: not behind the last one of the slice above.
        *to = f(unsafe { *from.get_unchecked(j * step) }, *to);
    }
}
