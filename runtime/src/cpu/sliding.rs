//! Geometry of sliding windows, shared by convolutions and pools.
//!
//! Along every spatial axis, output position `o` and tap `t` meet at source coordinate
//! `o · stride + t · dilation − pad`. For fixed taps the coordinates of all positions form
//! a lattice of step `stride`; for a fixed position those of all taps form one of step
//! `dilation`. Either can be read as runs along the last axis.

use super::number::Number;
use arenic_ir::op::{MAX_RANK, Window};
use std::ops::Range;

/// A number per spatial axis.
pub(super) type PerAxis<T> = [T; MAX_RANK];

/// A window, its input and its output.
pub(super) struct Sliding {
    pub(super) rank: usize,
    pub(super) input: PerAxis<usize>,
    pub(super) output: PerAxis<usize>,
    pub(super) kernel: PerAxis<usize>,
    pub(super) strides: PerAxis<usize>,
    pub(super) dilations: PerAxis<usize>,
    pub(super) pads: PerAxis<usize>,
}

fn per_axis(values: &[usize]) -> PerAxis<usize> {
    let mut all = [1; MAX_RANK];
    all[..values.len()].copy_from_slice(values);
    all
}

/// Writes the coordinates of flat index `flat` of a box of these extents.
#[inline(always)]
pub(super) fn unflatten(mut flat: usize, extents: &[usize], at: &mut [usize]) {
    for d in (1..extents.len()).rev() {
        at[d] = flat % extents[d];
        flat /= extents[d];
    }
    if let Some(first) = at.first_mut() {
        *first = flat;
    }
}

impl Sliding {
    /// `input` and `output` are whole shapes, images and channels included.
    pub(super) fn new(window: &Window, input: &[usize], output: &[usize]) -> Sliding {
        Sliding {
            rank: window.rank(),
            input: per_axis(&input[2..]),
            output: per_axis(&output[2..]),
            kernel: per_axis(&window.kernel),
            strides: per_axis(&window.strides),
            dilations: per_axis(&window.dilations),
            pads: per_axis(&window.pads_begin),
        }
    }

    pub(super) fn inputs(&self) -> usize {
        self.input[..self.rank].iter().product()
    }

    pub(super) fn outputs(&self) -> usize {
        self.output[..self.rank].iter().product()
    }

    pub(super) fn taps(&self) -> usize {
        self.kernel[..self.rank].iter().product()
    }

    /// True where the taps of one window are the whole input and nothing else.
    pub(super) fn is_whole(&self) -> bool {
        let is_dense = |d| self.pads[d] == 0 && (self.dilations[d] == 1 || self.kernel[d] == 1);
        self.outputs() == 1 && self.kernel == self.input && (0..self.rank).all(is_dense)
    }

    /// Output positions along the last axis all of whose taps lie inside.
    pub(super) fn full(&self) -> Range<usize> {
        let last = self.last();
        let window = (self.kernel[last] - 1) * self.dilations[last] + 1;
        let room = (self.input[last] + self.pads[last] + 1).saturating_sub(window);
        let end = room.div_ceil(self.strides[last]).min(self.output[last]);
        self.pads[last].div_ceil(self.strides[last]).min(end)..end
    }

    /// Last spatial axis.
    pub(super) fn last(&self) -> usize {
        self.rank - 1
    }

    /// What tap `tap` sees at every output position.
    #[inline(always)]
    pub(super) fn of_tap(&self, tap: usize) -> Lattice<'_> {
        let mut at = [0; MAX_RANK];
        unflatten(tap, &self.kernel[..self.rank], &mut at[..self.rank]);
        self.lattice(&at, &self.dilations, &self.strides, &self.output)
    }

    /// What the taps see at one output position.
    #[inline(always)]
    pub(super) fn of_position(&self, position: usize) -> Lattice<'_> {
        let mut at = [0; MAX_RANK];
        unflatten(position, &self.output[..self.rank], &mut at[..self.rank]);
        self.lattice(&at, &self.strides, &self.dilations, &self.kernel)
    }

    #[inline(always)]
    fn lattice<'a>(
        &'a self,
        at: &PerAxis<usize>,
        fixed: &PerAxis<usize>,
        steps: &'a PerAxis<usize>,
        extents: &'a PerAxis<usize>,
    ) -> Lattice<'a> {
        let mut origin = [0; MAX_RANK];
        for d in 0..self.rank {
            origin[d] = (at[d] * fixed[d]) as isize - self.pads[d] as isize;
        }
        Lattice {
            origin,
            steps: &steps[..self.rank],
            extents: &extents[..self.rank],
            source: &self.input[..self.rank],
        }
    }
}

/// Copies a run that is short more often than not: pieces of one size need no call.
///
/// # Safety
/// `from` is valid for as many elements as `to` has, which are others.
#[inline(always)]
pub(super) unsafe fn copy_short<T: Copy>(from: *const T, to: &mut [T]) {
    const PIECE: usize = 8;
    const HALF: usize = PIECE / 2;
    let n = to.len();
    let to = to.as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if n > 8 * PIECE {
            to.copy_from_nonoverlapping(from, n);
            return;
        }
        if n >= PIECE {
            for at in (0..n - PIECE).step_by(PIECE) {
                to.add(at).copy_from_nonoverlapping(from.add(at), PIECE);
            }
            // The last piece overlaps the one before it.
            to.add(n - PIECE).copy_from_nonoverlapping(from.add(n - PIECE), PIECE);
            return;
        }
        if n >= HALF {
            to.copy_from_nonoverlapping(from, HALF);
            to.add(n - HALF).copy_from_nonoverlapping(from.add(n - HALF), HALF);
            return;
        }
        for at in 0..n {
            to.add(at).write(from.add(at).read());
        }
    }
}

/// The indices `i` below `extent` with `0 ≤ origin + i · step < source`, as a range.
#[inline(always)]
pub(super) fn inside(origin: isize, step: usize, extent: usize, source: usize) -> (usize, usize) {
    let first_at_least = |bound: isize| {
        let gap = bound - origin;
        match step {
            _ if gap <= 0 => 0,
            // A division takes longer than a short row.
            1 => (gap as usize).min(extent),
            _ => (gap as usize).div_ceil(step).min(extent),
        }
    };
    (first_at_least(0), first_at_least(source as isize))
}

/// Source coordinates `origin + i · step` for every index `i` of a box.
pub(super) struct Lattice<'a> {
    pub(super) origin: PerAxis<isize>,
    steps: &'a [usize],
    extents: &'a [usize],
    source: &'a [usize],
}

impl Lattice<'_> {
    /// Runs along the last axis that lie inside the source, in order, as (offset, position,
    /// count): `count` elements from source element `offset` on, at the last axis' step, which
    /// are those from flat index `position` on. Indices between runs lie outside. Only flat
    /// indices `from..to` are visited.
    #[inline(always)]
    pub(super) fn runs(&self, from: usize, to: usize) -> Runs<'_> {
        let last = self.extents.len() - 1;
        let axis =
            |d: usize| inside(self.origin[d], self.steps[d], self.extents[d], self.source[d]);
        let (width, inside) = (self.extents[last], axis(last));
        let (height, rows_inside) =
            if last > 0 { (self.extents[last - 1], axis(last - 1)) } else { (1, (0, 1)) };
        let rows = if from < to && inside.0 < inside.1 {
            (from / width, to.div_ceil(width))
        } else {
            (0, 0)
        };
        let plane = rows.0 / height;
        Runs {
            lattice: self,
            width,
            height,
            inside,
            rows_inside,
            range: (from, to),
            rows,
            plane,
            row: 0,
            end: 0,
            offset: 0,
        }
    }

    /// The source element at index 0 of the last two axes in plane `plane`, which may lie
    /// outside along these two, but not along any other axis.
    fn plane(&self, plane: usize) -> Option<isize> {
        let last = self.extents.len() - 1;
        let (outer, mut at) = (last.saturating_sub(1), [0; MAX_RANK]);
        unflatten(plane, &self.extents[..outer], &mut at[..outer]);
        let mut offset = 0;
        for (d, i) in at.into_iter().enumerate().take(last + 1) {
            let x = self.origin[d] + (i * self.steps[d]) as isize;
            if d < outer && !(0..self.source[d] as isize).contains(&x) {
                return None;
            }
            offset = offset * self.source[d] as isize + x;
        }
        Some(offset)
    }

    /// Reads flat indices from `from` on into `to`, zero outside the source.
    ///
    /// # Safety
    /// `plane` holds the source's elements, which nobody writes.
    #[inline(always)]
    pub(super) unsafe fn read<T: Number>(&self, plane: *const T, from: usize, to: &mut [T]) {
        let step = self.steps[self.steps.len() - 1];
        let mut done = 0;
        for (offset, position, count) in self.runs(from, from + to.len()) {
            let begin = position - from;
            to[done..begin].fill(T::ZERO);
            done = begin + count;
            let to = &mut to[begin..done];
            // SAFETY: the run lies inside the source.
            unsafe {
                if step == 1 {
                    copy_short(plane.add(offset), to);
                } else {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = *plane.add(offset + i * step);
                    }
                }
            }
        }
        to[done..].fill(T::ZERO);
    }
}

/// What [`Lattice::runs`] gives. No closure is involved, so that the caller's loop is
/// compiled for the caller's vectors.
pub(super) struct Runs<'a> {
    lattice: &'a Lattice<'a>,
    /// Extents of the last axis and of the one before it, whose rows make a plane.
    width: usize,
    height: usize,
    /// Indices along these axes that lie inside.
    inside: (usize, usize),
    rows_inside: (usize, usize),
    /// Flat indices and rows to visit.
    range: (usize, usize),
    rows: (usize, usize),
    /// The next plane; the next row of the present one, their end, and the source element
    /// at index 0 of the row.
    plane: usize,
    row: usize,
    end: usize,
    offset: isize,
}

impl Runs<'_> {
    /// Goes to the next plane; false behind the last one.
    fn advance(&mut self) -> bool {
        let l = self.lattice;
        let first = self.plane * self.height;
        if first >= self.rows.1 {
            return false;
        }
        self.row = self.rows.0.max(first + self.rows_inside.0);
        self.end = self.rows.1.min(first + self.rows_inside.1);
        match l.plane(self.plane) {
            Some(offset) if self.row < self.end => {
                self.offset = offset + (self.row - first) as isize * self.pitch();
            }
            _ => self.end = 0,
        }
        self.plane += 1;
        true
    }

    /// Source elements from one row to the next.
    #[inline(always)]
    fn pitch(&self) -> isize {
        let l = self.lattice;
        match l.extents.len() {
            1 => 0,
            rank => (l.steps[rank - 2] * l.source[rank - 1]) as isize,
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = (usize, usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while self.row < self.end {
                let (first, offset) = (self.row * self.width, self.offset);
                self.row += 1;
                self.offset += self.pitch();
                let begin = self.inside.0.max(self.range.0.saturating_sub(first));
                let end = self.inside.1.min(self.range.1 - first);
                if begin < end {
                    let step = self.lattice.steps[self.lattice.steps.len() - 1];
                    let at = (offset + (begin * step) as isize) as usize;
                    return Some((at, first + begin, end - begin));
                }
            }
            if !self.advance() {
                return None;
            }
        }
    }
}
