//! The products of a recurrence's steps: all with one matrix, which is packed once where that pays.
//!
//! A packing library would pack the matrix again in each step, for a few rows. The terms of an element
//! are added one by one, and then to what is there.

use super::address::Shared;
use super::isa::Isa;
use super::lane_sums::{POINTS, STRIPE, Sums, Terms, add_terms};
use super::library::Scalar;
use super::product::{Mat, MatMut, products};
use super::tasks::for_each;
use super::transpose::exchange_rows;
use arenic_backends::cpu::shifted::{LANES, lanes};
use arenic_backends::cpu::sums::Route;
use arenic_backends::cpu::tiling::packed_for_steps;
use arenic_ir::DType;
use arenic_ir::op::{Extents, Recurrence};
use std::mem::MaybeUninit;

/// Products of extents `e` with a matrix.
pub(super) struct StepProduct<T> {
    e: Extents,
    b: Mat<T>,
    packed: Option<Packed>,
}

struct Packed {
    /// Panels of so many columns, in stripes, row after row, the last one with zeros to its end.
    panels: Shared<f32>,
    lanes: usize,
    /// Where the numbers of a dense row are.
    offsets: Vec<usize>,
}

/// The first columns of a matrix, at most a stripe's, row after row, with zeros after each row.
///
/// # Safety
/// The matrix has these columns, and as many rows as `to`; either its rows or its columns are dense.
unsafe fn pack_stripe(from: Mat<f32>, columns: usize, to: &mut [f32]) {
    let rows = to.len() / STRIPE;
    if columns < STRIPE {
        to.fill(0.0);
    }
    for first in (0..rows).step_by(STRIPE) {
        let count = STRIPE.min(rows - first);
        let to = to[first * STRIPE..].as_mut_ptr();
        // SAFETY: the caller's promise.
        unsafe {
            if from.cols == 1 {
                for row in 0..count {
                    let from = from.at(first + row, 0).ptr;
                    to.add(row * STRIPE).copy_from_nonoverlapping(from, columns);
                }
            } else {
                let across = (from.cols as usize, STRIPE);
                exchange_rows(from.at(first, 0).ptr, to, across, (columns, count));
            }
        }
    }
}

impl<T: Scalar> StepProduct<T> {
    /// Elements of room that it takes; `dtype` is `T`.
    pub(super) fn room(of: Recurrence, dtype: DType, e: Extents) -> usize {
        packed_for_steps(of, dtype, e).unwrap_or(0)
    }

    /// # Safety
    /// `b` has `e.k` rows and `e.n` columns, and is not written; `room` has that many elements, which are
    /// nobody else's.
    pub(super) unsafe fn new(e: Extents, b: Mat<T>, room: &mut [T]) -> Self {
        if room.is_empty() {
            return StepProduct { e, b, packed: None };
        }
        let (elements, panels) = (room.len(), room);
        // Only products of `f32` are packed.
        let panels = Shared::new(panels.as_mut_ptr().cast::<f32>());
        let from = Mat { ptr: b.ptr.cast::<f32>(), rows: b.rows, cols: b.cols };
        let (lanes, stripe) = (lanes(e.n), e.k * STRIPE);
        for_each(e.n.div_ceil(lanes) * lanes / STRIPE, elements, |unit| {
            let first = unit * STRIPE;
            // SAFETY: each stripe is one task's; its columns are the matrix's.
            unsafe {
                let to = panels.slice(unit * stripe, stripe);
                let columns = STRIPE.min(e.n.saturating_sub(first));
                pack_stripe(from.at(0, first.min(e.n)), columns, to);
            }
        });
        let packed = Packed { panels, lanes, offsets: (0..e.k).collect() };
        StepProduct { e, b, packed: Some(packed) }
    }

    /// `c = a b`, or `c += a b` where `add` says so; rows of both are dense.
    ///
    /// # Safety
    /// As for [`products`].
    pub(super) unsafe fn multiply(&self, a: Mat<T>, c: MatMut<T>, add: bool) {
        let e = self.e;
        let Some(packed) = &self.packed else {
            // SAFETY: the caller's promise.
            unsafe { products(Route::of(e), 1, e, T::ONE, |_| (a, self.b, c), |_, _, _| add) };
            return;
        };
        let (isa, panels) = (Isa::of_machine(), e.n.div_ceil(packed.lanes));
        let (a, a_row) = (Shared::new(a.ptr.cast::<f32>().cast_mut()), a.rows);
        let (c, c_row) = (Shared::new(c.ptr.cast::<f32>()), c.rows);
        for_each(e.m.div_ceil(POINTS) * panels, e.multiplications() / 8, |task| {
            let (first, panel) = (task / panels * POINTS, task % panels);
            let row = |p: usize| (first + p).min(e.m - 1) as isize;
            let terms = Terms {
                start: &[0.0; LANES],
                panel: packed.panels.ptr().wrapping_add(panel * e.k * packed.lanes),
                stripe: e.k * STRIPE,
                lanes: packed.lanes,
                points: std::array::from_fn(|p| {
                    a.ptr().wrapping_offset(row(p) * a_row).cast_const()
                }),
                starts: &[0],
                offsets: &packed.offsets,
            };
            let mut sums = MaybeUninit::<Sums>::uninit();
            let columns = packed.lanes.min(e.n - panel * packed.lanes);
            // SAFETY: rows of `a` and panels have all terms, and sums are read of the panel's lanes alone; each
            // task has elements of `c` of its own.
            unsafe {
                add_terms(isa, terms, sums.as_mut_ptr());
                for p in 0..POINTS.min(e.m - first) {
                    let sums = sums.as_ptr().cast::<f32>().add(p * LANES);
                    let sums = std::slice::from_raw_parts(sums, columns);
                    let at = c.ptr().wrapping_offset(row(p) * c_row);
                    let to = Shared::new(at).slice(panel * packed.lanes, columns);
                    if add {
                        to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
                    } else {
                        to.copy_from_slice(sums);
                    }
                }
            }
        });
    }
}
