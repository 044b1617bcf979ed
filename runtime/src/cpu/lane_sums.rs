//! The innermost products, for each instruction set.
//!
//! A lane's sum goes through its terms one by one, fused where the machine can, so that neither the
//! width of vectors nor the place of an element in a tile changes its bits.

use crate::cpu::isa::Isa;
use arenic_backends::cpu::shifted::LANES;

/// Points of one call.
pub(super) const POINTS: usize = 8;

/// Lanes that lie side by side. A panel of more has such stripes one after the other: narrow vectors read a
/// stripe alone, which lies densely then, so that caches and their prefetching serve it well.
pub(super) const STRIPE: usize = 16;

/// The places of one lane's terms in a panel, whose stripes are so many elements apart.
pub(super) fn lane_of(
    panel: &mut [f32],
    stripe: usize,
    lane: usize,
) -> impl Iterator<Item = &mut f32> {
    let stripe = &mut panel[lane / STRIPE * stripe..][..stripe];
    stripe.iter_mut().skip(lane % STRIPE).step_by(STRIPE)
}

/// Sums of all lanes at some points.
pub(super) type Sums = [[f32; LANES]; POINTS];

/// The terms of one call: each is a vector of one number a lane, times a number of each point.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// What they are added to, for each lane.
    pub(super) start: &'a [f32; LANES],
    /// The vectors of the first stripe, one after the other.
    pub(super) panel: *const f32,
    /// Elements from one stripe to the next.
    pub(super) stripe: usize,
    /// Lanes of all stripes: 16, 32 or 48.
    pub(super) lanes: usize,
    /// Where the numbers of each point begin.
    pub(super) points: [*const f32; POINTS],
    /// Elements from there to the number of a term: every one of these plus every offset, in order.
    pub(super) starts: &'a [usize],
    /// See `starts`.
    pub(super) offsets: &'a [usize],
}

/// A vector of an instruction set. Loops over plain arrays would leave the choice of what is a vector to
/// the compiler, which takes points for lanes now and then, and then reads and writes element by element.
trait Vector: Copy {
    /// Its lanes.
    const LANES: usize;

    /// # Safety
    /// The machine has the instructions; all lanes may be read.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// The machine has the instructions.
    unsafe fn splat(x: f32) -> Self;

    /// `self · b + c`, rounded once where the instruction set can.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;

    /// # Safety
    /// The machine has the instructions; all lanes may be written.
    unsafe fn store(self, to: *mut f32);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($t:ty, $lanes:literal, $load:ident, $splat:ident, $mul_add:expr, $store:ident) => {
            impl Vector for $t {
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller's promise.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: the caller's promise.
                    unsafe { $splat(x) }
                }

                #[inline(always)]
                unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                    // SAFETY: the caller's promise.
                    unsafe { $mul_add(self, b, c) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: the caller's promise.
                    unsafe { $store(to, self) }
                }
            }
        };
    }
    vector!(__m512, 16, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps);
    vector!(__m256, 8, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
    vector!(
        __m128,
        4,
        _mm_loadu_ps,
        _mm_set1_ps,
        |a, b, c| _mm_add_ps(_mm_mul_ps(a, b), c),
        _mm_storeu_ps
    );
}

/// Without instructions of its own: the compiler's choice.
#[cfg(not(target_arch = "x86_64"))]
impl Vector for [f32; 4] {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; 4]
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        const FUSED: bool = cfg!(target_arch = "aarch64");
        std::array::from_fn(|i| match FUSED {
            true => self[i].mul_add(b[i], c[i]),
            false => self[i] * b[i] + c[i],
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }
}

/// Adds up the terms of `P` points from `point` on in `N` vectors of lanes from `lane` on.
///
/// # Safety
/// The machine has the instructions; all terms may be read at these points and lanes, where sums are written.
#[inline(always)]
unsafe fn block<V: Vector, const P: usize, const N: usize>(
    t: Terms,
    (point, lane): (usize, usize),
    sums: *mut Sums,
) {
    // SAFETY: the caller's promise; `start` has all lanes.
    unsafe {
        let mut start = [V::splat(0.0); N];
        for (n, start) in start.iter_mut().enumerate() {
            *start = V::load(t.start[lane + n * V::LANES..].as_ptr());
        }
        let mut c = [start; P];
        let points: [*const f32; P] = std::array::from_fn(|p| t.points[point + p]);
        let mut panel = t.panel.wrapping_add(lane / STRIPE * t.stripe + lane % STRIPE);
        let apart = if V::LANES < STRIPE { V::LANES } else { t.stripe };
        for &start in t.starts {
            for &offset in t.offsets {
                let mut a = [V::splat(0.0); N];
                for (n, a) in a.iter_mut().enumerate() {
                    *a = V::load(panel.add(n * apart));
                }
                for (c, &point) in c.iter_mut().zip(&points) {
                    let b = V::splat(*point.add(start + offset));
                    for (c, a) in c.iter_mut().zip(&a) {
                        *c = a.mul_add(b, *c);
                    }
                }
                panel = panel.wrapping_add(STRIPE);
            }
        }
        for (p, c) in c.iter().enumerate() {
            for (n, c) in c.iter().enumerate() {
                let at = (point + p) * LANES + lane + n * V::LANES;
                c.store(sums.cast::<f32>().add(at));
            }
        }
    }
}

/// All points and lanes, in blocks of four points and two vectors, for machines of sixteen registers. With
/// three vectors the compiler ran out of them, and the innermost loop went through memory.
///
/// # Safety
/// As for [`add_terms`].
#[inline(always)]
unsafe fn blocks<V: Vector>(t: Terms, sums: *mut Sums) {
    for lane in (0..t.lanes).step_by(2 * V::LANES) {
        for point in (0..POINTS).step_by(4) {
            // SAFETY: the caller's promise.
            unsafe { block::<V, 4, 2>(t, (point, lane), sums) };
        }
    }
}

/// Adds up the terms of all points. Lanes from `t.lanes` on are not written.
///
/// # Safety
/// The machine has the instructions; all terms may be read at all points; `sums` may be written.
pub(super) unsafe fn add_terms(isa: Isa, t: Terms, sums: *mut Sums) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128, __m256, __m512};

        #[target_feature(enable = "avx512f,avx2,fma")]
        unsafe fn avx512<const N: usize>(t: Terms, sums: *mut Sums) {
            // SAFETY: the caller's promise.
            unsafe { block::<__m512, POINTS, N>(t, (0, 0), sums) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(t: Terms, sums: *mut Sums) {
            // SAFETY: the caller's promise.
            unsafe { blocks::<__m256>(t, sums) }
        }
        // SAFETY: the caller's promise; every machine has SSE2.
        unsafe {
            match (isa, t.lanes) {
                (Isa::Avx512, 16) => avx512::<1>(t, sums),
                (Isa::Avx512, 32) => avx512::<2>(t, sums),
                (Isa::Avx512, _) => avx512::<3>(t, sums),
                (Isa::Avx2, _) => avx2(t, sums),
                (Isa::Baseline, _) => blocks::<__m128>(t, sums),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        // SAFETY: the caller's promise.
        unsafe { blocks::<[f32; 4]>(t, sums) }
    }
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
            let stripe = starts.len() * offsets.len() * STRIPE;
            let panel = numbers(stripe / STRIPE * lanes);
            let t = Terms {
                start: &[0.5; LANES],
                panel: panel.as_ptr(),
                stripe,
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
                            let term = lane / STRIPE * stripe + (s * offsets.len() + o) * STRIPE;
                            let a = panel[term + lane % STRIPE];
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
