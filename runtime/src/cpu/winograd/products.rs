//! The products of a task: at every point a panel, a vector of lanes for each term, by some rows with a number
//! for each term.

use crate::cpu::isa::Isa;
use crate::cpu::lane_sums::{POINTS, STRIPE, Sums, Terms, add_terms};
use crate::cpu::number::Number;
use crate::cpu::wide::wide;
use arenic_backends::cpu::shifted::LANES;
use arenic_backends::cpu::winograd::{PLACES, WIDTH};
use std::mem::MaybeUninit;

// A transform writes a stripe of a panel.
const _: () = assert!(WIDTH == STRIPE);

/// Rows of a task, as many as a transform works on at once.
pub(super) const ROWS: usize = WIDTH;

/// The sums of all points, rows and lanes.
pub(super) type Products = [[Sums; ROWS / POINTS]; PLACES];

/// What all points have in common.
pub(super) struct Factors<'a> {
    pub(super) isa: Isa,
    /// Lanes of a panel.
    pub(super) lanes: usize,
    /// Terms that a stripe of a panel has room for.
    pub(super) room: usize,
    /// Elements from a row's first number to that of each term.
    pub(super) terms: &'a [usize],
    /// Terms that are added up before they join those before them.
    pub(super) summed: usize,
}

impl Factors<'_> {
    /// Multiplies the panel and the rows of each point; lanes beyond the panel's are not written.
    ///
    /// # Safety
    /// The machine has the instructions; panels and rows have all terms, and `to` may be written.
    pub(super) unsafe fn multiply(
        &self,
        panel: impl Fn(usize) -> *const f32,
        row: impl Fn(usize, usize) -> *const f32,
        to: *mut Products,
    ) {
        for place in 0..PLACES {
            for part in 0..ROWS / POINTS {
                let points = std::array::from_fn(|p| row(place, part * POINTS + p));
                let sums = to.cast::<Sums>().wrapping_add(place * (ROWS / POINTS) + part);
                for (b, block) in self.terms.chunks(self.summed).enumerate() {
                    let t = Terms {
                        start: &[0.0; LANES],
                        panel: panel(place).wrapping_add(b * self.summed * STRIPE),
                        stripe: self.room * STRIPE,
                        lanes: self.lanes,
                        points,
                        starts: &[0],
                        offsets: block,
                    };
                    // SAFETY: the caller's promise.
                    unsafe {
                        if b == 0 {
                            add_terms(self.isa, t, sums);
                        } else {
                            let mut more = MaybeUninit::uninit();
                            add_terms(self.isa, t, more.as_mut_ptr());
                            add_lanes(sums.cast::<f32>(), more.as_ptr().cast(), self.lanes);
                        }
                    }
                }
            }
        }
    }
}

wide! {
    /// Adds the first `lanes` lanes of some rows' sums to others.
    ///
    /// # Safety
    /// These lanes may be read, and those of `to` be written.
    unsafe fn add_lanes<T: Number>(to: *mut T, sums: *const T, lanes: usize) {
        for point in 0..POINTS {
            for lane in 0..lanes {
                let at = point * LANES + lane;
                // SAFETY: the caller's promise.
                unsafe { *to.add(at) = (*to.add(at)).add(*sums.add(at)) };
            }
        }
    }
}
