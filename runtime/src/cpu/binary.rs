//! Elementwise functions of two operands, choice by a condition, and clipping.

use super::address::{Dst, Src};
use super::dispatch::{for_float, for_number, for_signless, for_size};
use super::map::{map1, map2, map3};
use super::number::Number;
use super::tasks::{CHEAP, DEAR, copy};
use crate::kernel::{Call, KernelError, Operand, Target};
use arenic_ir::DType;
use arenic_ir::op::Binary;

/// `y = f(a, b)`.
pub(super) fn run(f: Binary, call: &Call) -> Result<(), KernelError> {
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

fn less(x: [&Operand; 2], y: &Target) {
    for_number!(x[0].ty().dtype, T => map2(x, y, CHEAP, |a: T, b: T| u8::from(a < b)));
}

fn less_or_equal(x: [&Operand; 2], y: &Target) {
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
fn power<T: Number>(x: [&Operand; 2], y: &Target) {
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

/// `y = a` where the condition holds, `b` elsewhere.
pub(super) fn choose(call: &Call) {
    let ([c, a, b], Some(y)) = (call.inputs, &call.outputs[0]) else { return };
    for_size!(a.ty().dtype, T => {
        map3([c, a, b], y, CHEAP, |c: u8, a: T, b: T| if c != 0 { a } else { b });
    });
}

/// `x` between bounds; the upper one wins where they cross.
pub(super) fn clip(min: bool, max: bool, call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    let bounds = &call.inputs[1..];
    for_number!(x.ty().dtype, T => {
        // SAFETY: bounds are scalars of the operand's type by inference.
        let bound = |i: usize| unsafe { bounds[i].ptr::<T>().read() };
        match (min, max) {
            (false, false) => {
                // SAFETY: operand and result have one type; equal or disjoint ranges.
                unsafe { copy(Src::of(x), Dst::of(y), x.ty().bytes() as usize) };
            }
            (true, false) => {
                let low = bound(0);
                map1(x, y, CHEAP, |x: T| x.larger(low));
            }
            (false, true) => {
                let high = bound(0);
                map1(x, y, CHEAP, |x: T| x.smaller(high));
            }
            (true, true) => {
                let (low, high) = (bound(0), bound(1));
                map1(x, y, CHEAP, |x: T| x.larger(low).smaller(high));
            }
        }
    });
}
