//! The innermost products, for each instruction set.
//!
//! A lane's sum goes through its terms one by one, fused where the machine can, so that neither the
//! width of vectors nor the place of an element in a tile changes its bits.

use crate::cpu::isa::Isa;
use arenic_backends::cpu::shifted::LANES;

/// Points of one call.
pub(super) const POINTS: usize = 8;

/// Sums of all lanes at some points.
pub(super) type Sums = [[f32; LANES]; POINTS];

/// The terms of one call: each is a vector of one number a lane, times a number of each point.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// What they are added to, for each lane.
    pub(super) start: &'a [f32; LANES],
    /// The vectors, one after the other.
    pub(super) panel: *const f32,
    /// Lanes of a vector: 16, 32 or 48.
    pub(super) lanes: usize,
    /// Where the numbers of each point begin.
    pub(super) points: [*const f32; POINTS],
    /// Elements from there to the number of a term: every one of these plus every offset, in order.
    pub(super) starts: &'a [usize],
    /// See `starts`.
    pub(super) offsets: &'a [usize],
}

/// `a · b + c`, rounded once where `FUSED`.
#[inline(always)]
fn madd<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Adds up the terms of `P` points from `point` on in `N · L` lanes from `lane` on.
///
/// # Safety
/// All terms may be read at these points and lanes.
#[inline(always)]
unsafe fn block<const P: usize, const N: usize, const L: usize, const FUSED: bool>(
    t: Terms,
    (point, lane): (usize, usize),
    sums: &mut Sums,
) {
    let mut c = [[[0.0; L]; N]; P];
    for c in &mut c {
        for (n, c) in c.iter_mut().enumerate() {
            c.copy_from_slice(&t.start[lane + n * L..][..L]);
        }
    }
    let points: [*const f32; P] = std::array::from_fn(|p| t.points[point + p]);
    let mut panel = t.panel.wrapping_add(lane);
    for &start in t.starts {
        for &offset in t.offsets {
            let mut a = [[0.0; L]; N];
            for (n, a) in a.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *a = unsafe { panel.add(n * L).cast::<[f32; L]>().read_unaligned() };
            }
            for (c, &point) in c.iter_mut().zip(&points) {
                // SAFETY: the caller's promise.
                let b = unsafe { *point.add(start + offset) };
                for (c, a) in c.iter_mut().zip(&a) {
                    for (c, a) in c.iter_mut().zip(a) {
                        *c = madd::<FUSED>(*a, b, *c);
                    }
                }
            }
            panel = panel.wrapping_add(t.lanes);
        }
    }
    for (p, c) in c.iter().enumerate() {
        for (n, c) in c.iter().enumerate() {
            sums[point + p][lane + n * L..][..L].copy_from_slice(c);
        }
    }
}

/// All points and lanes, in blocks of `P` points and of three or two vectors of `L` lanes.
///
/// # Safety
/// As for [`add_terms`].
#[inline(always)]
unsafe fn blocks<const P: usize, const L: usize, const FUSED: bool>(t: Terms, sums: &mut Sums) {
    let three = t.lanes.is_multiple_of(3 * L);
    for lane in (0..t.lanes).step_by(if three { 3 } else { 2 } * L) {
        for point in (0..POINTS).step_by(P) {
            // SAFETY: the caller's promise.
            unsafe {
                if three {
                    block::<P, 3, L, FUSED>(t, (point, lane), sums);
                } else {
                    block::<P, 2, L, FUSED>(t, (point, lane), sums);
                }
            }
        }
    }
}

/// Adds up the terms of all points.
///
/// # Safety
/// The machine has the instructions; all terms may be read at all points.
pub(super) unsafe fn add_terms(isa: Isa, t: Terms, sums: &mut Sums) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx2,fma")]
        unsafe fn avx512<const N: usize>(t: Terms, sums: &mut Sums) {
            // SAFETY: the caller's promise.
            unsafe { block::<POINTS, N, 16, true>(t, (0, 0), sums) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(t: Terms, sums: &mut Sums) {
            // SAFETY: the caller's promise.
            unsafe { blocks::<4, 8, true>(t, sums) }
        }
        // SAFETY: the caller's promise.
        unsafe {
            match (isa, t.lanes) {
                (Isa::Avx512, 16) => return avx512::<1>(t, sums),
                (Isa::Avx512, 32) => return avx512::<2>(t, sums),
                (Isa::Avx512, _) => return avx512::<3>(t, sums),
                (Isa::Avx2, _) => return avx2(t, sums),
                (Isa::Baseline, _) => {}
            }
        }
    }
    let _ = isa;
    // SAFETY: the caller's promise.
    unsafe { blocks::<4, 4, { cfg!(target_arch = "aarch64") }>(t, sums) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between -1 and 1.
    fn numbers(n: usize) -> Vec<f32> {
        let word = |i: usize| (i as u32).wrapping_mul(2_654_435_761) ^ (i as u32 >> 3);
        (0..n).map(|i| (word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn terms_are_added_alike_by_all_instruction_sets() {
        let of_machine = Isa::of_machine();
        let sets = [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|&i| i <= of_machine);
        let sets: Vec<Isa> = sets.collect();
        let (starts, offsets) = ([0, 200, 400], [0, 1, 2, 17, 18, 19, 100]);
        let x = numbers(600);
        let points = std::array::from_fn(|p| x[7 * p..].as_ptr());
        for lanes in [16, 32, 48] {
            let panel = numbers(starts.len() * offsets.len() * lanes);
            let t = Terms {
                start: &[0.5; LANES],
                panel: panel.as_ptr(),
                lanes,
                points,
                starts: &starts,
                offsets: &offsets,
            };
            let results = sets.iter().map(|&isa| {
                let mut sums = [[0.0; LANES]; POINTS];
                // SAFETY: the machine has the instructions; the last point's last number is the 549th.
                unsafe { add_terms(isa, t, &mut sums) };
                sums
            });
            let results: Vec<Sums> = results.collect();
            for point in 0..POINTS {
                for lane in 0..lanes {
                    let mut sum = 0.5;
                    for (s, start) in starts.iter().enumerate() {
                        for (o, offset) in offsets.iter().enumerate() {
                            let a = panel[(s * offsets.len() + o) * lanes + lane];
                            sum += f64::from(a) * f64::from(x[7 * point + start + offset]);
                        }
                    }
                    let close = |r: &Sums| (f64::from(r[point][lane]) - sum).abs() < 1e-5;
                    assert!(results.iter().all(close), "point {point}, lane {lane} of {lanes}");
                }
                // Those that fuse.
                for r in results.iter().skip(1) {
                    assert_eq!(bits(&r[point]), bits(&results[1][point]));
                }
            }
        }
    }
}
