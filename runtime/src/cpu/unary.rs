//! Elementwise functions of one operand, and casts.

use super::address::{Dst, Src};
use super::dispatch::{for_float, for_number, for_signed};
use super::map::map1;
use super::number::{Float, Number, Signed};
use super::tasks::{CHEAP, DEAR, copy};
use crate::kernel::{Call, Operand, Target};
use arenic_ir::DType;
use arenic_ir::op::Unary;
use arenic_ir::types::bf16;

/// `y = f(x)`.
pub(super) fn run(f: Unary, call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    let d = x.ty().dtype;
    match f {
        Unary::Not => map1(x, y, CHEAP, |x: u8| u8::from(x == 0)),
        Unary::Abs if !d.is_float() => {
            for_number!(d, T => map1(x, y, CHEAP, magnitude::<T>));
        }
        Unary::Abs => for_float!(d, T => map1(x, y, CHEAP, T::abs)),
        Unary::Sign => for_number!(d, T => map1(x, y, CHEAP, sign::<T>)),
        Unary::Neg => for_signed!(d, T => map1(x, y, CHEAP, <T as Signed>::neg)),
        Unary::Relu => {
            for_signed!(d, T => map1(x, y, CHEAP, |x: T| if x < T::ZERO { T::ZERO } else { x }));
        }
        _ => for_float!(d, T => float::<T>(f, x, y)),
    }
}

/// The absolute value of an integer; that of the least one wraps to itself.
#[inline(always)]
fn magnitude<T: Number>(x: T) -> T {
    if x < T::ZERO { T::ZERO.sub(x) } else { x }
}

/// -1, 0 or 1; zeros and NaN stay as they are.
#[inline(always)]
pub(super) fn sign<T: Number>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        T::ZERO.sub(T::ONE)
    } else {
        x
    }
}

/// Functions that take floats alone.
fn float<T: Float>(f: Unary, x: &Operand, y: &Target) {
    match f {
        Unary::Ceil => map1(x, y, CHEAP, T::ceil),
        Unary::Cos => map1(x, y, DEAR, T::cos),
        Unary::Erf => map1(x, y, DEAR, T::erf),
        Unary::Exp => map1(x, y, DEAR, T::exp),
        Unary::Floor => map1(x, y, CHEAP, T::floor),
        Unary::Log => map1(x, y, DEAR, T::ln),
        Unary::Reciprocal => map1(x, y, CHEAP, |x: T| T::ONE.div(x)),
        Unary::Sigmoid => map1(x, y, DEAR, T::sigmoid),
        Unary::Sin => map1(x, y, DEAR, T::sin),
        Unary::Sqrt => map1(x, y, CHEAP, T::sqrt),
        Unary::Tanh => map1(x, y, DEAR, T::tanh),
        Unary::Abs | Unary::Neg | Unary::Not | Unary::Relu | Unary::Sign => {
            unreachable!("`run` handles what integers have too")
        }
    }
}

/// The same numbers in another type; float to integer truncates and saturates. What becomes a
/// `bf16` is rounded to `f32` first.
#[allow(clippy::unnecessary_cast)] // one of the types is `f32`
pub(super) fn cast(to: DType, call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    let from = x.ty().dtype;
    // Integers of one size are the same bits.
    let same = from == to
        || from.is_int() && to.is_int() && from.size() == to.size()
        || from == DType::Bool && to.is_int() && to.size() == 1;
    if same {
        // SAFETY: operand and result have the same bytes; equal or disjoint ranges.
        unsafe { copy(Src::of(x), Dst::of(y), x.ty().bytes() as usize) };
    } else if from == DType::Bf16 {
        match to {
            DType::Bool => map1(x, y, CHEAP, |x: u16| u8::from(bf16::to_f32(x) != 0.0)),
            _ => for_number!(to, D => map1(x, y, CHEAP, |x: u16| bf16::to_f32(x) as D)),
        }
    } else if to == DType::Bf16 {
        for_number!(from, S => map1(x, y, CHEAP, |x: S| bf16::from_f32(x as f32)));
    } else if to == DType::Bool {
        for_number!(from, S => map1(x, y, CHEAP, |x: S| u8::from(x != S::ZERO)));
    } else {
        for_number!(from, S => for_number!(to, D => map1(x, y, CHEAP, |x: S| x as D)));
    }
}
