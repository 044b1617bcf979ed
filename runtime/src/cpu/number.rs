//! Arithmetic on element types: wrapping for integers, NaN-propagating comparisons.

use super::math;
use crate::kernel::Element;

/// An element type that kernels compute with; `bool` is none.
pub(super) trait Number: Element + PartialOrd + std::fmt::Debug {
    const ZERO: Self;
    const ONE: Self;
    /// Not above any number: -inf for floats.
    const LOWEST: Self;
    /// Not below any number: +inf for floats.
    const HIGHEST: Self;
    /// What integers of this type are summed in for a mean; floats keep their own type.
    type Wide: Number;

    fn add(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    /// Division of a sum by the number of its terms.
    fn over(self, count: usize) -> Self;
    fn is_nan(self) -> bool;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn to_f64(self) -> f64;
    /// Truncates and saturates for integers.
    fn from_f64(x: f64) -> Self;

    /// The larger one, NaN where either is.
    #[inline(always)]
    fn larger(self, b: Self) -> Self {
        if self > b || self.is_nan() { self } else { b }
    }

    /// The smaller one, NaN where either is.
    #[inline(always)]
    fn smaller(self, b: Self) -> Self {
        if self < b || self.is_nan() { self } else { b }
    }
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
            fn mul(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
            fn over(self, count: usize) -> Self {
                // Not reached with a count of zero unless nothing was summed.
                if count == 0 { 0 } else { (i128::from(self) / count as i128) as $t }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn widen(self) -> $wide {
                <$wide>::from(self)
            }
            fn narrow(wide: $wide) -> Self {
                wide as $t
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

/// A floating-point element type.
pub(super) trait Float: Number + std::ops::AddAssign {
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
}

macro_rules! float {
    ($t:ident, $exp:expr) => {
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
            fn mul(self, b: Self) -> Self {
                self * b
            }
            #[inline(always)]
            fn over(self, count: usize) -> Self {
                self / count as $t
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
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
        }

        impl Float for $t {
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                self.ln()
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self - b
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                self / b
            }
        }
    };
}
float!(f32, math::exp_f32);
float!(f64, f64::exp);
