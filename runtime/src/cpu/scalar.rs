//! Functions of one element of each operand, the rows of `arenic_ir::op::Unary` and `Binary`: as
//! operators, and as steps of programs.

use super::blocks::unknown;
use super::dispatch::{for_float, for_number, for_signed, for_signless, for_size};
use super::map::{map1, map2};
use super::number::{Float, Number, Signed};
use super::tasks::{CHEAP, DEAR};
use crate::kernel::{Call, Destination, KernelError, Operand};
use arenic_ir::DType;
use arenic_ir::op::{Binary, Unary};

/// Names a function of one operand on floats of a type, as a closure, for an expression. Methods are
/// the trait's: the types' own have other bits.
macro_rules! with_float {
    ($f:expr, $T:ty, $g:ident => $body:expr) => {
        match $f {
            Unary::Abs => with_float!(@ $T, $g => $body, x => Float::abs(x)),
            Unary::Atan => with_float!(@ $T, $g => $body, x => Float::atan(x)),
            Unary::Atanh => with_float!(@ $T, $g => $body, x => Float::atanh(x)),
            Unary::Ceil => with_float!(@ $T, $g => $body, x => Float::ceil(x)),
            Unary::Cos => with_float!(@ $T, $g => $body, x => Float::cos(x)),
            Unary::Erf => with_float!(@ $T, $g => $body, x => Float::erf(x)),
            Unary::Exp => with_float!(@ $T, $g => $body, x => Float::exp(x)),
            Unary::Floor => with_float!(@ $T, $g => $body, x => Float::floor(x)),
            Unary::Log => with_float!(@ $T, $g => $body, x => Float::ln(x)),
            Unary::Neg => with_float!(@ $T, $g => $body, x => Signed::neg(x)),
            // Of a condition, which is 1 or 0.
            Unary::Not => with_float!(@ $T, $g => $body, x => condition(x == <$T>::ZERO)),
            Unary::Reciprocal => with_float!(@ $T, $g => $body, x => Number::div(<$T>::ONE, x)),
            Unary::Relu => with_float!(@ $T, $g => $body, x => relu(x)),
            Unary::Sigmoid => with_float!(@ $T, $g => $body, x => Float::sigmoid(x)),
            Unary::Sign => with_float!(@ $T, $g => $body, x => sign(x)),
            Unary::Sin => with_float!(@ $T, $g => $body, x => Float::sin(x)),
            Unary::Sqrt => with_float!(@ $T, $g => $body, x => Float::sqrt(x)),
            Unary::Tanh => with_float!(@ $T, $g => $body, x => Float::tanh(x)),
        }
    };
    (@ $T:ty, $g:ident => $body:expr, $x:ident => $value:expr) => {{
        let $g = |$x: $T| -> $T { $value };
        $body
    }};
}

/// `y = f(x)`.
pub(super) fn unary(f: Unary, call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    let d = x.ty().dtype;
    let grain = if f.row().is_dear { DEAR } else { CHEAP };
    match f {
        Unary::Not => map1(x, y, grain, |x: u8| u8::from(x == 0)),
        Unary::Abs if !d.is_float() => {
            for_number!(d, T => map1(x, y, grain, magnitude::<T>));
        }
        Unary::Sign if !d.is_float() => for_number!(d, T => map1(x, y, grain, sign::<T>)),
        Unary::Neg if !d.is_float() => for_signed!(d, T => map1(x, y, grain, <T as Signed>::neg)),
        Unary::Relu if !d.is_float() => for_signed!(d, T => map1(x, y, grain, relu::<T>)),
        _ => for_float!(d, T => with_float!(f, T, g => map1(x, y, grain, g))),
    }
}

/// The absolute value of an integer; that of the least one wraps to itself.
#[inline(always)]
fn magnitude<T: Number>(x: T) -> T {
    if x < T::ZERO { T::ZERO.sub(x) } else { x }
}

/// -1, 0 or 1; zeros and NaN stay as they are.
#[inline(always)]
fn sign<T: Number>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        T::ZERO.sub(T::ONE)
    } else {
        x
    }
}

/// The number, or 0 if it is negative.
#[inline(always)]
fn relu<T: Number>(x: T) -> T {
    if x < T::ZERO { T::ZERO } else { x }
}

/// `y = f(a, b)`.
pub(super) fn binary(f: Binary, call: &Call) -> Result<(), KernelError> {
    let ([a, b], Some(y)) = (call.inputs, &call.outputs[0]) else { return Ok(()) };
    let x = [a, b];
    let d = a.ty().dtype;
    match f {
        Binary::Add => for_signless!(d, T => map2(x, y, CHEAP, <T as Number>::add)),
        Binary::Sub => for_signless!(d, T => map2(x, y, CHEAP, <T as Number>::sub)),
        Binary::Mul => for_signless!(d, T => map2(x, y, CHEAP, <T as Number>::mul)),
        Binary::Div | Binary::Rem => {
            if !d.is_float() && y.ty().elements() > 0 {
                for_size!(d, T => refuse_zero::<T>(b))?;
            }
            match f {
                Binary::Div => for_number!(d, T => map2(x, y, CHEAP, <T as Number>::div)),
                _ => for_number!(d, T => map2(x, y, DEAR, <T as Number>::rem)),
            }
        }
        Binary::Pow if d.is_float() => for_float!(d, T => power::<T>(x, y)),
        Binary::Pow => for_number!(d, T => map2(x, y, DEAR, <T as Number>::power)),
        Binary::Max => for_number!(d, T => map2(x, y, CHEAP, <T as Number>::larger)),
        Binary::Min => for_number!(d, T => map2(x, y, CHEAP, <T as Number>::smaller)),
        Binary::And => map2(x, y, CHEAP, |a: u8, b: u8| a & b),
        Binary::Or => map2(x, y, CHEAP, |a: u8, b: u8| a | b),
        Binary::Xor => map2(x, y, CHEAP, |a: u8, b: u8| a ^ b),
        Binary::Equal => {
            for_signless!(d, T => map2(x, y, CHEAP, |a: T, b: T| u8::from(a == b)));
        }
        Binary::Less => less([a, b], y),
        Binary::Greater => less([b, a], y),
        Binary::LessOrEqual => less_or_equal([a, b], y),
        Binary::GreaterOrEqual => less_or_equal([b, a], y),
    }
    Ok(())
}

fn less(x: [&Operand; 2], y: &Destination) {
    for_number!(x[0].ty().dtype, T => map2(x, y, CHEAP, |a: T, b: T| u8::from(a < b)));
}

fn less_or_equal(x: [&Operand; 2], y: &Destination) {
    for_number!(x[0].ty().dtype, T => map2(x, y, CHEAP, |a: T, b: T| u8::from(a <= b)));
}

/// Integers have no quotient by zero.
fn refuse_zero<T: Number>(b: &Operand) -> Result<(), KernelError> {
    let first = b.ptr::<T>();
    // SAFETY: the operand's own elements. Raw reads, since the result may take its bytes.
    let zero = (0..b.ty().elements()).any(|i| unsafe { first.add(i).read() } == T::ZERO);
    if zero { Err(KernelError::DivisionByZero) } else { Ok(()) }
}

/// Powers of floats; squares and cubes, the usual ones, by multiplication.
fn power<T: Number>(x: [&Operand; 2], y: &Destination) {
    let [a, b] = x;
    let exponent: Option<f64> = (b.ty().elements() == 1).then(|| {
        // SAFETY: the operand's only element.
        unsafe { b.ptr::<T>().read() }.to_f64()
    });
    match exponent {
        Some(2.0) => map1(a, y, CHEAP, |x: T| x.mul(x)),
        Some(3.0) => map1(a, y, CHEAP, |x: T| x.mul(x).mul(x)),
        _ => map2(x, y, DEAR, <T as Number>::power),
    }
}

#[inline(always)]
pub(super) fn condition<T: Float>(holds: bool) -> T {
    if holds { T::ONE } else { T::ZERO }
}

/// `y = f(x)` for `n` elements.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
pub(super) unsafe fn unary_step<T: Float>(f: Unary, x: *const T, y: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        with_float!(f, T, g => each(x, x, y, n, |x, _| g(x)));
    }
}

/// `y = f(a, b)` for `n` elements.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
pub(super) unsafe fn binary_step<T: Float>(
    f: Binary,
    a: *const T,
    b: *const T,
    y: *mut T,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match f {
            Binary::Add => each(a, b, y, n, T::add),
            // Of conditions, which are 1 or 0.
            Binary::And => each(a, b, y, n, T::mul),
            Binary::Div => each(a, b, y, n, T::div),
            Binary::Equal => each(a, b, y, n, |a, b| condition(a == b)),
            Binary::Greater => each(a, b, y, n, |a, b| condition(a > b)),
            Binary::GreaterOrEqual => each(a, b, y, n, |a, b| condition(a >= b)),
            Binary::Less => each(a, b, y, n, |a, b| condition(a < b)),
            Binary::LessOrEqual => each(a, b, y, n, |a, b| condition(a <= b)),
            Binary::Max | Binary::Or => each(a, b, y, n, T::larger),
            Binary::Min => each(a, b, y, n, T::smaller),
            Binary::Mul => each(a, b, y, n, T::mul),
            Binary::Pow => each(a, b, y, n, T::power),
            Binary::Rem => each(a, b, y, n, T::rem),
            Binary::Sub => each(a, b, y, n, T::sub),
            Binary::Xor => each(a, b, y, n, |a, b| condition(a != b)),
        }
    }
}

/// Powers, as the operator computes them: squares and cubes by multiplication.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
pub(super) unsafe fn power_step<T: Float>(
    exponent: Option<f64>,
    a: *const T,
    b: *const T,
    y: *mut T,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match exponent {
            Some(2.0) => each(a, a, y, n, |x, _| x.mul(x)),
            Some(3.0) => each(a, a, y, n, |x, _| x.mul(x).mul(x)),
            _ => each(a, b, y, n, T::power),
        }
    }
}

/// `y = f(a, b)` for `n` elements.
///
/// # Safety
/// `a` and `b` are valid for `n` elements of reads, `y` for as many writes; `y` is a block
/// of its own.
#[inline(always)]
pub(super) unsafe fn each<T: Number>(
    a: *const T,
    b: *const T,
    y: *mut T,
    n: usize,
    f: impl Fn(T, T) -> T,
) {
    // Else what all functions' loops make of `n` is computed before one of them is chosen.
    let n = unknown(n);
    // SAFETY: the caller's promise.
    let (a, b, y) = unsafe {
        let slice = std::slice::from_raw_parts;
        (slice(a, n), slice(b, n), std::slice::from_raw_parts_mut(y, n))
    };
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = f(a, b);
    }
}
