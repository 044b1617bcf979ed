//! Arithmetic on element types: integers wrap, floats are IEEE 754, comparisons pass NaN on.

use super::math;
use crate::kernel::Element;

/// An element type that kernels compute with; `bool` is none.
pub(super) trait Number: Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    /// Not above any number: -inf for floats.
    const LOWEST: Self;
    /// Not below any number: +inf for floats.
    const HIGHEST: Self;
    /// What integers of this type are summed in for a mean; floats keep their own type.
    type Wide: Number;

    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    /// Integers divided by zero give zero.
    fn div(self, b: Self) -> Self;
    /// What a truncated quotient leaves; integers divided by zero leave zero.
    fn rem(self, b: Self) -> Self;
    fn power(self, b: Self) -> Self;
    fn is_nan(self) -> bool;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    /// A number of terms.
    fn of_count(count: usize) -> Self;
    fn to_f64(self) -> f64;
    /// Truncates and saturates for integers.
    fn from_f64(x: f64) -> Self;

    /// The larger one; `b` where either is NaN.
    #[inline(always)]
    fn above(self, b: Self) -> Self {
        if self > b { self } else { b }
    }

    /// The larger one, NaN where either is.
    ///
    /// A NaN is added to itself, which leaves it as it is. Of a choice between `self` and what lies where the
    /// result goes, the compiler makes a store under a mask, which some processors are slow at. The larger one is
    /// chosen first: of a choice within a choice the compiler makes branches, and no vectors.
    #[inline(always)]
    fn larger(self, b: Self) -> Self {
        let larger = self.above(b);
        if self.is_nan() { self.add(self) } else { larger }
    }

    /// The smaller one, NaN where either is; see [`larger`](Self::larger).
    #[inline(always)]
    fn smaller(self, b: Self) -> Self {
        let smaller = if self < b { self } else { b };
        if self.is_nan() { self.add(self) } else { smaller }
    }
}

/// Numbers with a sign.
pub(super) trait Signed: Number {
    fn neg(self) -> Self;
}

/// A floating-point element type.
pub(super) trait Float: Signed {
    fn abs(self) -> Self;
    fn atan(self) -> Self;
    fn atanh(self) -> Self;
    fn ceil(self) -> Self;
    fn cos(self) -> Self;
    fn erf(self) -> Self;
    fn exp(self) -> Self;
    /// The exponential, of which `f32` has 0 where it would be denormal.
    fn exp_flushed(self) -> Self;
    fn floor(self) -> Self;
    fn ln(self) -> Self;
    fn sigmoid(self) -> Self;
    fn sin(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
}

/// Wrapping power by squaring.
fn power_by_squaring<T: Number>(mut base: T, mut exponent: u64) -> T {
    let mut y = T::ONE;
    while exponent > 0 {
        if exponent & 1 == 1 {
            y = y.mul(base);
        }
        base = base.mul(base);
        exponent >>= 1;
    }
    y
}

macro_rules! integer {
    ($($t:ty: $wide:ty),*) => {$(
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;
            type Wide = $wide;
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                if b == 0 { 0 } else { self.wrapping_div(b) }
            }
            #[inline(always)]
            fn rem(self, b: Self) -> Self {
                if b == 0 { 0 } else { self.wrapping_rem(b) }
            }
            #[allow(unused_comparisons)] // of the unsigned
            fn power(self, b: Self) -> Self {
                if b >= 0 {
                    return power_by_squaring(self, b as u64);
                }
                // A reciprocal, truncated and saturated: that of 0 is infinite, and
                // only ±1 have another that is not 0.
                match self {
                    0 => <$t>::MAX,
                    1 => 1,
                    _ if self.wrapping_add(1) == 0 => if b % 2 == 0 { 1 } else { self },
                    _ => 0,
                }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn widen(self) -> $wide {
                <$wide>::from(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                wide as $t
            }
            #[inline(always)]
            fn of_count(count: usize) -> Self {
                count as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
        }
    )*};
}
integer!(u8: u64, u16: u64, u32: u64, u64: u64, i8: i64, i16: i64, i32: i64, i64: i64);

macro_rules! signed_integer {
    ($($t:ty)*) => {$(
        impl Signed for $t {
            #[inline(always)]
            fn neg(self) -> Self {
                self.wrapping_neg()
            }
        }
    )*};
}
signed_integer!(i8 i16 i32 i64);

macro_rules! float {
    (
        $t:ident,
        atanh: $atanh:path,
        erf: $erf:path,
        exp: $exp:path,
        exp_flushed: $exp_flushed:path,
        sigmoid: $sigmoid:path,
        tanh: $tanh:path
    ) => {
        impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            const HIGHEST: Self = $t::INFINITY;
            type Wide = $t;
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self + b
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self - b
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self * b
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                self / b
            }
            #[inline(always)]
            fn rem(self, b: Self) -> Self {
                self % b
            }
            fn power(self, b: Self) -> Self {
                self.powf(b)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                wide
            }
            #[inline(always)]
            fn of_count(count: usize) -> Self {
                count as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
        }

        impl Signed for $t {
            #[inline(always)]
            fn neg(self) -> Self {
                -self
            }
        }

        impl Float for $t {
            #[inline(always)]
            fn abs(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn ceil(self) -> Self {
                self.ceil()
            }
            fn atan(self) -> Self {
                self.atan()
            }
            fn atanh(self) -> Self {
                $atanh(self)
            }
            fn cos(self) -> Self {
                self.cos()
            }
            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn exp_flushed(self) -> Self {
                $exp_flushed(self)
            }
            #[inline(always)]
            fn floor(self) -> Self {
                self.floor()
            }
            fn ln(self) -> Self {
                self.ln()
            }
            #[inline(always)]
            fn sigmoid(self) -> Self {
                $sigmoid(self)
            }
            fn sin(self) -> Self {
                self.sin()
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $tanh(self)
            }
        }
    };
}
float!(
    f32,
    atanh: libm::atanhf,
    erf: math::erf_f32,
    exp: math::exp_f32,
    exp_flushed: math::exp_flushed_f32,
    sigmoid: math::sigmoid_f32,
    tanh: math::tanh_f32
);
float!(
    f64,
    atanh: libm::atanh,
    erf: libm::erf,
    exp: f64::exp,
    exp_flushed: f64::exp,
    sigmoid: math::sigmoid_f64,
    tanh: f64::tanh
);
