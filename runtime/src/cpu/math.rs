//! Transcendental functions that vectorise: no branches, no calls, no tables.
//!
//! Multiplications are fused with additions by [`mul_add`](f32::mul_add), which rounds once on every machine: bits are
//! the same whatever vectors a loop was compiled for. Without instructions for it, it is a slow call. Errors in units in
//! the last place, found by sweeps in the tests: `exp` 0.9, `tanh` 1.3, `erf` 1, `sigmoid` 2.1.

#![allow(clippy::excessive_precision)] // coefficients keep the digits they were given

/// Added to a float below 2²², rounds it to the nearest integer into the low bits.
const ROUND: f32 = 12_582_912.0;

/// `2ⁿ` for `n` in -126..=127, 0 for -127 and infinity for 128.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// The exponential as `p` and `n` of `p · 2ⁿ`; polynomial after Cephes (Moshier). Of NaN `p` is NaN, and `n` arbitrary.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, of which the first is the nearest `f32`.
    let r = n.mul_add(-std::f32::consts::LN_2, x);
    let r = n.mul_add(1.904_654_3e-9, r);
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 5.000_000_1e-1);
    let p = p.mul_add(r, 1.0);
    let p = p.mul_add(r, 1.0);
    (p, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// The exponential.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite; written so that NaN passes.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let (p, n) = exp_parts(x);
    // Two factors: one alone could not reach denormal results.
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// The exponential of what a maximum was subtracted from, by two thirds of [`exp_f32`]'s instructions: results below
/// some 2⁻¹²⁶, of which nothing is left beside that of the maximum, are 0. Those of 2¹²⁷ · 1.42 and more are infinite.
#[inline(always)]
pub(crate) fn exp_flushed_f32(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -88.0 { -88.0 } else { x };
    exp_within(x)
}

/// The exponential of what is within -88 and 89, or NaN; 0 below -87.7.
#[inline(always)]
fn exp_within(x: f32) -> f32 {
    let (p, n) = exp_parts(x);
    p * power_of_two(n)
}

/// The hyperbolic tangent; polynomial near 0 after Cephes, elsewhere by `exp`.
#[inline(always)]
pub(crate) fn tanh_f32(x: f32) -> f32 {
    let z = x * x;
    let p = -5.704_988_7e-3f32;
    let p = p.mul_add(z, 2.063_908_9e-2);
    let p = p.mul_add(z, -5.373_971_5e-2);
    let p = p.mul_add(z, 1.333_144_2e-1);
    let p = p.mul_add(z, -3.333_328_2e-1);
    let near = (p * z).mul_add(x, x);
    // From 10 on the result is 1.
    let t = x.abs();
    let t = if t > 10.0 { 10.0 } else { t };
    let far = 1.0 - 2.0 / (exp_within(2.0 * t) + 1.0);
    // Both take the sign: `near` of -0 would come out as 0.
    (if t < 0.625 { near } else { far }).copysign(x)
}

/// The logistic function, without overflow and without cancellation.
#[inline(always)]
pub(crate) fn sigmoid_f32(x: f32) -> f32 {
    let e = exp_f32(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// As [`sigmoid_f32`].
#[inline(always)]
pub(crate) fn sigmoid_f64(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// The error function; minimax polynomials after Juffa.
#[inline(always)]
pub(crate) fn erf_f32(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let p = -5.967_617e-4f32;
    let p = p.mul_add(s, 4.991_194_2e-3);
    let p = p.mul_add(s, -2.676_813_5e-2);
    let p = p.mul_add(s, 1.128_199_25e-1);
    let p = p.mul_add(s, -3.761_253_4e-1);
    let p = p.mul_add(s, 1.283_791_7e-1);
    let near = p.mul_add(x, x);

    // The polynomial turns round far out; from 4 on the result is 1 anyway.
    let t = if t > 4.0 { 4.0 } else { t };
    let s = t * t;
    let q = t.mul_add(-1.728_534_7e-5, 3.831_971_3e-4);
    let q = q.mul_add(s, t.mul_add(-3.883_964_4e-3, 2.425_462_2e-2));
    let q = q.mul_add(t, -1.067_778_8e-1);
    let q = q.mul_add(t, -6.348_466_9e-1);
    let q = q.mul_add(t, -1.287_175_1e-1);
    let far = 1.0 - exp_within(q.mul_add(t, -t));
    if t < 0.927_734_375 { near } else { far.copysign(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest distance from the true values, in units in the last place, over a dense
    /// sweep of every exponent and sign.
    fn error(f: impl Fn(f32) -> f32, truth: impl Fn(f64) -> f64) -> f64 {
        let mut worst: f64 = 0.0;
        for bits in (0..0x7f80_0000u32).step_by(977) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let (y, t) = (f(x), truth(x.into()));
                let rounded = t as f32;
                if y == rounded {
                    continue;
                }
                assert!(y.is_finite() && rounded.is_finite(), "f({x}) = {y}, not {rounded}");
                let below = f32::from_bits(rounded.abs().to_bits().saturating_sub(1));
                let unit = f64::from(rounded.abs()) - f64::from(below);
                worst = worst.max((f64::from(y) - t).abs() / unit.max(2f64.powi(-149)));
            }
        }
        worst
    }

    #[test]
    fn errors_are_small() {
        assert!(error(exp_f32, f64::exp) < 0.9);
        let normal = |x: f32| exp_flushed_f32(x.clamp(-87.25, 88.25));
        assert!(error(normal, |x| x.clamp(-87.25, 88.25).exp()) < 0.9);
        assert!(error(tanh_f32, f64::tanh) < 1.3);
        assert!(error(sigmoid_f32, |x| 1.0 / (1.0 + (-x).exp())) < 2.1);
        assert!(error(erf_f32, libm::erf) < 1.0);
    }

    #[test]
    fn ends_are_exact() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!([exp_f32(inf), exp_f32(-inf), exp_f32(0.0)], [inf, 0.0, 1.0]);
        assert_eq!([exp_f32(89.0), exp_f32(-104.0), exp_f32(f32::MAX)], [inf, 0.0, inf]);
        assert_eq!([-inf, -1e4, -88.0, -87.7].map(exp_flushed_f32), [0.0; 4]);
        assert_eq!([inf, 89.0, 0.0].map(exp_flushed_f32), [inf, inf, 1.0]);
        assert_eq!([tanh_f32(inf), tanh_f32(-inf), tanh_f32(f32::MAX)], [1.0, -1.0, 1.0]);
        assert_eq!([sigmoid_f32(inf), sigmoid_f32(-inf), sigmoid_f32(0.0)], [1.0, 0.0, 0.5]);
        assert_eq!([erf_f32(inf), erf_f32(-inf), erf_f32(f32::MAX)], [1.0, -1.0, 1.0]);
        assert_eq!([sigmoid_f64(1e9), sigmoid_f64(-1e9)], [1.0, 0.0]);
        for f in [exp_f32, exp_flushed_f32, tanh_f32, sigmoid_f32, erf_f32] {
            assert!(f(nan).is_nan());
        }
        for f in [tanh_f32, erf_f32] {
            assert_eq!(f(-0.0).to_bits(), (-0.0f32).to_bits());
        }
    }
}
