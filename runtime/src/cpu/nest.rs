//! Loop nests: a dense result computed row by row from strided operands.
//!
//! Adjacent axes over which every operand advances alike are one axis, axes of extent 1
//! are none. What remains has long rows, and a row costs pointer additions, no division.

use super::address::{Dst, Src};
use super::tasks::for_tasks;
use arenic_ir::op::MAX_RANK;
use std::array;

/// Rows at even distances: all steps in bytes.
#[derive(Clone, Copy)]
pub(super) struct EvenRows<const N: usize> {
    /// The first elements of operands and result.
    pub(super) x: [*const u8; N],
    pub(super) y: *mut u8,
    /// Elements of a row, and how far operands advance from one to the next.
    pub(super) n: usize,
    pub(super) steps: [isize; N],
    /// Rows, and how far operands advance from one to the next; the result is dense.
    pub(super) rows: usize,
    pub(super) row_steps: [isize; N],
}

impl<const N: usize> EvenRows<N> {
    /// The first elements of row `r`; the result's have `size` bytes.
    #[inline(always)]
    pub(super) fn row(&self, r: usize, size: usize) -> ([*const u8; N], *mut u8) {
        let x = array::from_fn(|k| self.x[k].wrapping_offset(r as isize * self.row_steps[k]));
        (x, self.y.wrapping_add(r * self.n * size))
    }
}

/// What a kernel does with rows.
pub(super) type Kernel<'a, const N: usize> = &'a (dyn Fn(EvenRows<N>) + Sync);

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
    /// bytes; `kernel` touches nothing but the rows that it is given.
    pub(super) unsafe fn run(
        &self,
        x: [Src; N],
        y: Dst,
        size: usize,
        grain: usize,
        kernel: Kernel<N>,
    ) {
        let n = self.extents[0];
        let rows = self.extents[1..self.rank.max(1)].iter().product::<usize>();
        if rows * n <= grain {
            if rows * n > 0 {
                // SAFETY: all rows there are.
                unsafe { self.rows(x, y, size, 0, rows, kernel) };
            }
        } else if n < grain {
            let group = grain / n;
            for_tasks(rows.div_ceil(group), &|t| {
                let first = t * group;
                // SAFETY: rows of the nest, no two tasks the same ones.
                unsafe { self.rows(x, y, size, first, group.min(rows - first), kernel) };
            });
        } else {
            let pieces = n.div_ceil(grain);
            for_tasks(rows * pieces, &|t| {
                let (r, start) = (t / pieces, t % pieces * grain);
                let steps = self.strides[0];
                let at = self.row(x, r);
                kernel(EvenRows {
                    x: array::from_fn(|k| at[k].wrapping_offset(start as isize * steps[k])),
                    // SAFETY: `start` is an element of row `r` of the result.
                    y: unsafe { y.at((r * n + start) * size) }.0,
                    n: grain.min(n - start),
                    steps,
                    rows: 1,
                    row_steps: [0; N],
                });
            });
        }
    }

    /// Rows `first..first + count`, in order, as far as possible many at once.
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
        kernel: Kernel<N>,
    ) {
        let (n, end) = (self.extents[0], first + count);
        // Without a second axis its extent and strides are 1 and 0.
        let (extent, row_steps) = (self.extents[1], self.strides[1]);
        let mut r = first;
        while r < end {
            let rows = (extent - r % extent).min(end - r);
            kernel(EvenRows {
                x: self.row(x, r),
                // SAFETY: row `r` is one of the result's.
                y: unsafe { y.at(r * n * size) }.0,
                n,
                steps: self.strides[0],
                rows,
                row_steps,
            });
            r += rows;
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
