//! Geometry of sliding windows, shared by convolutions and pools.
//!
//! Along every spatial axis, output position `o` and tap `t` meet at source coordinate
//! `o · stride + t · dilation − pad`. For fixed taps the coordinates of all positions form
//! a lattice of step `stride`; for a fixed position those of all taps form one of step
//! `dilation`. Either can be read as runs along the last axis.

use super::number::Number;
use arenic_ir::op::{MAX_RANK, Window};

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

    /// Last spatial axis.
    pub(super) fn last(&self) -> usize {
        self.rank - 1
    }

    /// What tap `tap` sees at every output position.
    pub(super) fn of_tap(&self, tap: usize) -> Lattice<'_> {
        let mut at = [0; MAX_RANK];
        unflatten(tap, &self.kernel[..self.rank], &mut at[..self.rank]);
        self.lattice(&at, &self.dilations, &self.strides, &self.output)
    }

    /// What the taps see at one output position.
    pub(super) fn of_position(&self, position: usize) -> Lattice<'_> {
        let mut at = [0; MAX_RANK];
        unflatten(position, &self.output[..self.rank], &mut at[..self.rank]);
        self.lattice(&at, &self.strides, &self.dilations, &self.kernel)
    }

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

/// The indices `i` below `extent` with `0 ≤ origin + i · step < source`, as a range.
#[inline(always)]
pub(super) fn inside(origin: isize, step: usize, extent: usize, source: usize) -> (usize, usize) {
    let first_at_least = |bound: isize| {
        let gap = bound - origin;
        if gap <= 0 { 0 } else { (gap as usize).div_ceil(step).min(extent) }
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
    /// Calls `f(offset, position, count)` for runs along the last axis that lie inside the
    /// source: `count` elements from source element `offset` on, at the last axis' step,
    /// which are those from flat index `position` on. Runs come in order; indices between
    /// them lie outside. Only flat indices `from..to` are visited.
    #[inline(always)]
    pub(super) fn runs(&self, from: usize, to: usize, mut f: impl FnMut(usize, usize, usize)) {
        let last = self.extents.len() - 1;
        let width = self.extents[last];
        let (lo, hi) = inside(self.origin[last], self.steps[last], width, self.source[last]);
        if from >= to || lo >= hi {
            return;
        }
        let mut at = [0usize; MAX_RANK];
        let at = &mut at[..last];
        let mut row = from / width;
        unflatten(row, &self.extents[..last], at);
        while row * width < to {
            let mut offset = Some(0);
            for (d, &i) in at.iter().enumerate() {
                let x = self.origin[d] + (i * self.steps[d]) as isize;
                offset = offset
                    .filter(|_| (x as usize) < self.source[d] && x >= 0)
                    .map(|o| o * self.source[d] + x as usize);
            }
            if let Some(offset) = offset {
                let begin = lo.max(from.saturating_sub(row * width));
                let end = hi.min(to - row * width);
                if begin < end {
                    let x = self.origin[last] + (begin * self.steps[last]) as isize;
                    f(offset * self.source[last] + x as usize, row * width + begin, end - begin);
                }
            }
            row += 1;
            for d in (0..last).rev() {
                at[d] += 1;
                if at[d] < self.extents[d] {
                    break;
                }
                at[d] = 0;
            }
        }
    }

    /// Reads flat indices from `from` on into `to`, zero outside the source.
    ///
    /// # Safety
    /// `plane` holds the source's elements, which nobody writes.
    #[inline(always)]
    pub(super) unsafe fn read<T: Number>(&self, plane: *const T, from: usize, to: &mut [T]) {
        let step = self.steps[self.steps.len() - 1];
        let mut done = 0;
        self.runs(from, from + to.len(), |offset, position, count| {
            let begin = position - from;
            to[done..begin].fill(T::ZERO);
            done = begin + count;
            let to = &mut to[begin..done];
            // SAFETY: the run lies inside the source.
            unsafe {
                if step == 1 {
                    std::ptr::copy_nonoverlapping(plane.add(offset), to.as_mut_ptr(), count);
                } else {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = *plane.add(offset + i * step);
                    }
                }
            }
        });
        to[done..].fill(T::ZERO);
    }
}
