//! The products of a recurrence's steps: all with one matrix, which is packed once where that pays.
//!
//! A packing library would pack the matrix again in each step, for a few rows. The terms of an element
//! are added one by one, and then to what is there.

use super::address::Shared;
use super::isa::Isa;
use super::lane_sums::{POINTS, STRIPE, Sums, Terms, add_terms, lane_of};
use super::library::Scalar;
use super::product::{Mat, MatMut, products};
use super::tasks::for_each;
use arenic_backends::cpu::shifted::{LANES, lanes};
use arenic_backends::cpu::sums::Route;
use arenic_backends::cpu::tiling::packed_for_steps;
use arenic_ir::DType;
use arenic_ir::op::{Extents, Recurrence};

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
        let lanes = lanes(e.n);
        for_each(e.n.div_ceil(lanes), elements, |panel| {
            // SAFETY: each panel is one task's, and as long as that.
            let to = unsafe { panels.slice(panel * e.k * lanes, e.k * lanes) };
            for lane in 0..lanes {
                let column = panel * lanes + lane;
                let to = lane_of(to, e.k * STRIPE, lane);
                if column < e.n {
                    let from = from.at(0, column);
                    // SAFETY: within the matrix.
                    let row = |k| unsafe { *from.at(k, 0).ptr };
                    to.enumerate().for_each(|(k, to)| *to = row(k));
                } else {
                    to.for_each(|to| *to = 0.0);
                }
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
            let mut sums: Sums = [[0.0; LANES]; POINTS];
            // SAFETY: rows of `a` and panels have all terms; each task has elements of `c` of its own.
            unsafe {
                add_terms(isa, terms, &mut sums);
                let columns = packed.lanes.min(e.n - panel * packed.lanes);
                for (p, sums) in sums[..POINTS.min(e.m - first)].iter().enumerate() {
                    let at = c.ptr().wrapping_offset(row(p) * c_row);
                    let to = Shared::new(at).slice(panel * packed.lanes, columns);
                    if add {
                        to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
                    } else {
                        to.copy_from_slice(&sums[..columns]);
                    }
                }
            }
        });
    }
}
