//! Loop nests: a dense result computed row by row from strided operands.
//!
//! Adjacent axes over which every operand advances alike are one axis, axes of extent 1
//! are none. What remains has long rows, and a row costs pointer additions, no division.

use super::spread::{Dst, Src, for_tasks};
use arenic_ir::op::MAX_RANK;
use std::array;

/// What a kernel does with one row: operands' first elements, their steps in bytes, the
/// result's first element, and how many there are.
pub(super) type Row<'a, const N: usize> =
    &'a (dyn Fn([*const u8; N], [isize; N], *mut u8, usize) + Sync);

/// The axes of `N` operands against a dense result, innermost first.
#[derive(Clone)]
pub(super) struct Nest<const N: usize> {
    rank: usize,
    extents: [usize; MAX_RANK],
    strides: [[isize; N]; MAX_RANK],
}

impl<const N: usize> Nest<N> {
    /// A nest of no axes: one element.
    pub(super) fn new() -> Self {
        Nest { rank: 0, extents: [1; MAX_RANK], strides: [[0; N]; MAX_RANK] }
    }

    /// Adds an axis outside of those there are; strides in bytes.
    pub(super) fn push(&mut self, extent: usize, strides: [isize; N]) {
        if extent == 1 {
            return;
        }
        if let Some(last) = self.rank.checked_sub(1) {
            let n = self.extents[last] as isize;
            let inner = self.strides[last];
            if (0..N).all(|k| strides[k] == inner[k].wrapping_mul(n)) {
                self.extents[last] *= extent;
                return;
            }
        }
        self.extents[self.rank] = extent;
        self.strides[self.rank] = strides;
        self.rank += 1;
    }

    /// Dense operands (extents and element size) broadcast to `shape`.
    pub(super) fn broadcast(shape: &[usize], operands: [(&[usize], usize); N]) -> Self {
        let mut nest = Self::new();
        let mut dense = operands.map(|(_, size)| size);
        for i in 0..shape.len() {
            let strides = array::from_fn(|k| {
                let own = operands[k].0;
                let d = if i < own.len() { own[own.len() - 1 - i] } else { 1 };
                let stride = if d == 1 { 0 } else { dense[k] as isize };
                dense[k] *= d;
                stride
            });
            nest.push(shape[shape.len() - 1 - i], strides);
        }
        nest
    }

    /// Axes left.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Extents, innermost first.
    pub(super) fn extents(&self) -> &[usize] {
        &self.extents[..self.rank]
    }

    /// Byte strides of operand `k`, innermost first.
    pub(super) fn stride(&self, k: usize, axis: usize) -> isize {
        self.strides[axis][k]
    }

    /// Elements of the result.
    pub(super) fn elements(&self) -> usize {
        self.extents().iter().product()
    }

    /// Byte offset of element `i` of the result in the first operand.
    #[inline(always)]
    pub(super) fn offset(&self, i: usize) -> usize {
        let (mut at, mut rest) = (0, i);
        for axis in 1..self.rank {
            let d = self.extents[axis - 1];
            at += rest % d * self.strides[axis - 1][0] as usize;
            rest /= d;
        }
        at + rest * self.strides[self.rank.max(1) - 1][0] as usize
    }

    /// Runs every row. Tasks are of about `grain` elements.
    ///
    /// # Safety
    /// The nest stays inside the operands `x` and inside `y`, whose elements have `size`
    /// bytes; `row` touches nothing but the row that it is given.
    pub(super) unsafe fn run(&self, x: [Src; N], y: Dst, size: usize, grain: usize, row: Row<N>) {
        let n = self.extents[0];
        let rows = self.extents[1..self.rank.max(1)].iter().product::<usize>();
        if rows * n <= grain {
            if rows * n > 0 {
                // SAFETY: all rows there are.
                unsafe { self.rows(x, y, size, 0, rows, row) };
            }
        } else if n < grain {
            let group = grain / n;
            for_tasks(rows.div_ceil(group), &|t| {
                let first = t * group;
                // SAFETY: rows of the nest, no two tasks the same ones.
                unsafe { self.rows(x, y, size, first, group.min(rows - first), row) };
            });
        } else {
            let pieces = n.div_ceil(grain);
            for_tasks(rows * pieces, &|t| {
                let (r, start) = (t / pieces, t % pieces * grain);
                let steps = self.strides[0];
                let at = self.row(x, r);
                let from = array::from_fn(|k| at[k].wrapping_offset(start as isize * steps[k]));
                // SAFETY: `start` is an element of row `r` of the result.
                let to = unsafe { y.at((r * n + start) * size) };
                row(from, steps, to.0, grain.min(n - start));
            });
        }
    }

    /// Rows `first..first + count`, in order.
    ///
    /// # Safety
    /// As for `run`; the rows exist.
    unsafe fn rows(
        &self,
        x: [Src; N],
        y: Dst,
        size: usize,
        first: usize,
        count: usize,
        row: Row<N>,
    ) {
        let n = self.extents[0];
        let mut at = self.row(x, first);
        let mut index = [0; MAX_RANK];
        let mut rest = first;
        for (i, &d) in self.extents().iter().enumerate().skip(1) {
            (rest, index[i]) = (rest / d, rest % d);
        }
        for r in first..first + count {
            // SAFETY: row `r` is one of the result's.
            row(at, self.strides[0], unsafe { y.at(r * n * size) }.0, n);
            for (axis, i) in index.iter_mut().enumerate().take(self.rank).skip(1) {
                *i += 1;
                // A whole axis back is no element's address after the last row: wrapping.
                at = array::from_fn(|k| at[k].wrapping_offset(self.strides[axis][k]));
                if *i < self.extents[axis] {
                    break;
                }
                *i = 0;
                let back = self.extents[axis] as isize;
                at = array::from_fn(|k| at[k].wrapping_offset(-back * self.strides[axis][k]));
            }
        }
    }

    /// Where row `r` of every operand begins.
    fn row(&self, x: [Src; N], r: usize) -> [*const u8; N] {
        let mut at = x.map(|x| x.0);
        let mut rest = r;
        for axis in 1..self.rank {
            let i = (rest % self.extents[axis]) as isize;
            rest /= self.extents[axis];
            at = array::from_fn(|k| at[k].wrapping_offset(i * self.strides[axis][k]));
        }
        at
    }
}
