//! `GemmGelu` and `GemmGeluGrad`: a product, and a function of its elements where they are.
//!
//! Both have the bits of the product as an operator and of the function's steps one by one, in
//! the order that imported models have them.

use super::dispatch::for_float;
use super::map::{map1, map2};
use super::matmul;
use super::number::{Float, Number};
use super::tasks::DEAR;
use crate::kernel::{Call, Destination, Operand};
use arenic_ir::DType;
use arenic_ir::op::gelu::{CUBIC, SCALE};

/// Runs a `GemmGelu`.
pub(super) fn forward(trans_a: bool, trans_b: bool, call: &Call) {
    let (y, z) = (call.outputs[0], call.outputs[1]);
    let Some(place) = z.or(y) else { return };
    product(call, call.inputs, trans_a, trans_b, place);
    if let Some(y) = y {
        let z = made(&place);
        for_float!(y.ty().dtype, T => map1(&z, &y, DEAR, gelu::<T>));
    }
}

/// Runs a `GemmGeluGrad`.
pub(super) fn gradient(trans_a: bool, trans_b: bool, call: &Call) {
    let Some(dz) = call.outputs[0] else { return };
    product(call, &call.inputs[..2], trans_a, trans_b, dz);
    let (dy, z) = (made(&dz), &call.inputs[2]);
    for_float!(dz.ty().dtype, T => {
        map2([&dy, z], &dz, DEAR, |dy: T, z| dy.mul(slope(z)));
    });
}

/// The product of two operands, and what is added to it.
fn product(call: &Call, inputs: &[Operand], trans_a: bool, trans_b: bool, to: Destination) {
    matmul::gemm(1.0, 1.0, trans_a, trans_b, &Call { inputs, outputs: &[Some(to)], ..*call });
}

/// What was written, to be read.
fn made<'a>(to: &Destination<'a>) -> Operand<'a> {
    // SAFETY: the bytes of a result, which the product has written, and which a map may overwrite
    // element by element.
    unsafe { Operand::new(to.ty(), to.bytes()) }
}

/// `tanh(α (z + κ z³))`.
#[inline(always)]
fn tanh<T: Float>(z: T) -> T {
    let [scale, cubic] = [SCALE, CUBIC].map(T::from_f64);
    z.mul(z.mul(z).mul(cubic).add(T::ONE)).mul(scale).tanh()
}

/// `½ z (1 + t)`.
#[inline(always)]
fn gelu<T: Float>(z: T) -> T {
    z.mul(T::from_f64(0.5)).mul(tanh(z).add(T::ONE))
}

/// `½ (1 + t) + ½ z (1 − t²) α (1 + 3κ z²)`.
#[inline(always)]
fn slope<T: Float>(z: T) -> T {
    let [scale, cubic, half] = [SCALE, 3.0 * CUBIC, 0.5].map(T::from_f64);
    let t = tanh(z);
    let inner = z.mul(z).mul(cubic).add(T::ONE).mul(scale);
    let rest = T::ONE.sub(t.mul(t));
    t.add(T::ONE).add(rest.mul(inner).mul(z)).mul(half)
}
