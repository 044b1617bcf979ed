//! Elementwise arithmetic: integers wrap, floats are IEEE 754.

use super::math;
use crate::kernel::Element;

/// What every number type computes.
pub(super) trait Arithmetic: Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, o: Self) -> Self;
    fn minus(self, o: Self) -> Self;
    fn times(self, o: Self) -> Self;
    /// Integers divided by zero give zero; kernels refuse them before.
    fn over(self, o: Self) -> Self;
    fn power(self, o: Self) -> Self;

    /// The larger operand; NaN if one is NaN.
    #[inline(always)]
    #[allow(clippy::eq_op)] // holds for NaN alone
    fn larger(self, o: Self) -> Self {
        if self > o || self != self { self } else { o }
    }

    /// The smaller operand; NaN if one is NaN.
    #[inline(always)]
    #[allow(clippy::eq_op)] // holds for NaN alone
    fn smaller(self, o: Self) -> Self {
        if self < o || self != self { self } else { o }
    }
}

/// Numbers with a sign.
pub(super) trait Signed: Arithmetic {
    fn negative(self) -> Self;
}

/// Functions of floats.
pub(super) trait Real: Signed + Into<f64> {
    fn from_f64(x: f64) -> Self;
    fn ceil(self) -> Self;
    fn cos(self) -> Self;
    fn erf(self) -> Self;
    fn exp(self) -> Self;
    fn floor(self) -> Self;
    fn ln(self) -> Self;
    fn sigmoid(self) -> Self;
    fn sin(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
}

/// Wrapping power by squaring.
fn power_by_squaring<T: Arithmetic>(mut base: T, mut exponent: u64) -> T {
    let mut y = T::ONE;
    while exponent > 0 {
        if exponent & 1 == 1 {
            y = y.times(base);
        }
        base = base.times(base);
        exponent >>= 1;
    }
    y
}

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Arithmetic for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            #[inline(always)]
            fn plus(self, o: Self) -> Self {
                self.wrapping_add(o)
            }
            #[inline(always)]
            fn minus(self, o: Self) -> Self {
                self.wrapping_sub(o)
            }
            #[inline(always)]
            fn times(self, o: Self) -> Self {
                self.wrapping_mul(o)
            }
            #[inline(always)]
            fn over(self, o: Self) -> Self {
                if o == 0 { 0 } else { self.wrapping_div(o) }
            }
            #[allow(unused_comparisons)] // of the unsigned
            fn power(self, o: Self) -> Self {
                if o >= 0 {
                    return power_by_squaring(self, o as u64);
                }
                // A reciprocal, truncated and saturated: that of 0 is infinite, and
                // only ±1 have another that is not 0.
                match self {
                    0 => <$t>::MAX,
                    1 => 1,
                    _ if self.wrapping_add(1) == 0 => if o % 2 == 0 { 1 } else { self },
                    _ => 0,
                }
            }
        }
    )*};
}
integer!(u8 i8 u16 i16 u32 i32 u64 i64);

macro_rules! signed_integer {
    ($($t:ty)*) => {$(
        impl Signed for $t {
            #[inline(always)]
            fn negative(self) -> Self {
                self.wrapping_neg()
            }
        }
    )*};
}
signed_integer!(i8 i16 i32 i64);

macro_rules! float {
    ($t:ident, erf: $erf:path, exp: $exp:path, sigmoid: $sigmoid:path, tanh: $tanh:path) => {
        impl Arithmetic for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn plus(self, o: Self) -> Self {
                self + o
            }
            #[inline(always)]
            fn minus(self, o: Self) -> Self {
                self - o
            }
            #[inline(always)]
            fn times(self, o: Self) -> Self {
                self * o
            }
            #[inline(always)]
            fn over(self, o: Self) -> Self {
                self / o
            }
            fn power(self, o: Self) -> Self {
                self.powf(o)
            }
        }
        impl Signed for $t {
            #[inline(always)]
            fn negative(self) -> Self {
                -self
            }
        }
        impl Real for $t {
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn ceil(self) -> Self {
                self.ceil()
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
float!(f32, erf: math::erf_f32, exp: math::exp_f32, sigmoid: math::sigmoid_f32, tanh: math::tanh_f32);
float!(f64, erf: libm::erf, exp: f64::exp, sigmoid: math::sigmoid_f64, tanh: f64::tanh);

/// Evaluates `$body` with `$T` standing for the number type of `$dtype`; bool is `u8`.
macro_rules! for_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::Bool | DType::U8 => $crate::cpu::arithmetic::with!($T = u8, $body),
            DType::I8 => $crate::cpu::arithmetic::with!($T = i8, $body),
            DType::U16 => $crate::cpu::arithmetic::with!($T = u16, $body),
            DType::I16 => $crate::cpu::arithmetic::with!($T = i16, $body),
            DType::U32 => $crate::cpu::arithmetic::with!($T = u32, $body),
            DType::I32 => $crate::cpu::arithmetic::with!($T = i32, $body),
            DType::U64 => $crate::cpu::arithmetic::with!($T = u64, $body),
            DType::I64 => $crate::cpu::arithmetic::with!($T = i64, $body),
            DType::F32 => $crate::cpu::arithmetic::with!($T = f32, $body),
            DType::F64 => $crate::cpu::arithmetic::with!($T = f64, $body),
        }
    };
}

/// As `for_number`, for what signed and unsigned integers do alike.
macro_rules! for_signless {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => $crate::cpu::arithmetic::with!($T = f32, $body),
            DType::F64 => $crate::cpu::arithmetic::with!($T = f64, $body),
            d => $crate::cpu::arithmetic::for_size!(d, $T => $body),
        }
    };
}

/// As `for_number`, by size alone.
macro_rules! for_size {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => $crate::cpu::arithmetic::with!($T = u8, $body),
            2 => $crate::cpu::arithmetic::with!($T = u16, $body),
            4 => $crate::cpu::arithmetic::with!($T = u32, $body),
            _ => $crate::cpu::arithmetic::with!($T = u64, $body),
        }
    };
}

/// As `for_number`, where inference admits floats alone.
macro_rules! for_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F64 => $crate::cpu::arithmetic::with!($T = f64, $body),
            _ => $crate::cpu::arithmetic::with!($T = f32, $body),
        }
    };
}

/// As `for_number`, where inference admits signed numbers alone.
macro_rules! for_signed {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::I8 => $crate::cpu::arithmetic::with!($T = i8, $body),
            DType::I16 => $crate::cpu::arithmetic::with!($T = i16, $body),
            DType::I32 => $crate::cpu::arithmetic::with!($T = i32, $body),
            DType::I64 => $crate::cpu::arithmetic::with!($T = i64, $body),
            d => $crate::cpu::arithmetic::for_float!(d, $T => $body),
        }
    };
}

/// `$body` with `$T` standing for a type.
macro_rules! with {
    ($T:ident = $t:ty, $body:expr) => {{
        type $T = $t;
        $body
    }};
}

pub(super) use {for_float, for_number, for_signed, for_signless, for_size, with};
