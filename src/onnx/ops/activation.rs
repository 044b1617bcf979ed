//! Activations, and their gradients in ONNX Runtime's domain.

use super::compose::Made;
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::ValueId;
use arenic_ir::op::gelu::{CUBIC, SCALE};
use arenic_ir::op::{Binary, Unary};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// `1 + erf(x / √2)`: twice the normal distribution.
fn twice_normal(cx: &mut Cx, x: ValueId) -> Made {
    let x = cx.times(x, FRAC_1_SQRT_2)?;
    let erf = cx.map(Unary::Erf, x)?;
    cx.plus(erf, 1.0)
}

/// `½ x (1 + erf(x / √2))`.
pub(super) fn gelu(cx: &mut Cx, x: ValueId) -> Made {
    let twice = twice_normal(cx, x)?;
    let half = cx.times(x, 0.5)?;
    cx.mul(half, twice)
}

/// `tanh(√(2/π) (x + 0.044715 x³))`.
fn gelu_tanh(cx: &mut Cx, x: ValueId) -> Made {
    let square = cx.mul(x, x)?;
    let scaled = cx.times(square, CUBIC)?;
    let factor = cx.plus(scaled, 1.0)?;
    let inner = cx.mul(x, factor)?;
    let inner = cx.times(inner, SCALE)?;
    cx.map(Unary::Tanh, inner)
}

/// `½ x (1 + tanh(…))`.
pub(super) fn fast_gelu(cx: &mut Cx, x: ValueId) -> Made {
    let tanh = gelu_tanh(cx, x)?;
    let twice = cx.plus(tanh, 1.0)?;
    let half = cx.times(x, 0.5)?;
    cx.mul(half, twice)
}

/// Operand `i`, plus the bias that is operand `i + 1` where there is one.
fn biased(cx: &mut Cx, i: usize) -> Made {
    let x = cx.input(i)?;
    match cx.optional(i + 1)? {
        Some(bias) => cx.add(x, bias),
        None => Ok(x),
    }
}

/// ONNX Runtime's `Gelu` and `BiasGelu`.
pub(super) fn runtime_gelu(cx: &mut Cx) -> Built {
    let x = biased(cx, 0)?;
    Ok(vec![Some(gelu(cx, x)?)])
}

/// ONNX Runtime's `FastGelu`.
pub(super) fn runtime_fast_gelu(cx: &mut Cx) -> Built {
    let x = biased(cx, 0)?;
    Ok(vec![Some(fast_gelu(cx, x)?)])
}

/// `dy, x[, bias] → dx`: `dy (½ (1 + erf(x / √2)) + x exp(−x²/2) / √(2π))`.
pub(super) fn gelu_grad(cx: &mut Cx) -> Built {
    let dy = cx.input(0)?;
    let x = biased(cx, 1)?;
    let twice = twice_normal(cx, x)?;
    let normal = cx.times(twice, 0.5)?;
    let square = cx.mul(x, x)?;
    let exponent = cx.times(square, -0.5)?;
    let density = cx.map(Unary::Exp, exponent)?;
    let slope = cx.mul(x, density)?;
    let slope = cx.times(slope, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2)?;
    let factor = cx.add(normal, slope)?;
    Ok(vec![Some(cx.mul(dy, factor)?)])
}

/// `dy, x[, bias] → dx`, for the tanh form.
pub(super) fn fast_gelu_grad(cx: &mut Cx) -> Built {
    let dy = cx.input(0)?;
    let x = biased(cx, 1)?;
    let tanh = gelu_tanh(cx, x)?;
    let square = cx.mul(x, x)?;
    let inner = cx.times(square, 3.0 * CUBIC)?;
    let inner = cx.plus(inner, 1.0)?;
    let inner = cx.times(inner, SCALE)?;
    let squared = cx.mul(tanh, tanh)?;
    let rest = cx.number_minus(1.0, squared)?;
    let slope = cx.mul(rest, inner)?;
    let slope = cx.mul(slope, x)?;
    let value = cx.plus(tanh, 1.0)?;
    let sum = cx.add(value, slope)?;
    let factor = cx.times(sum, 0.5)?;
    Ok(vec![Some(cx.mul(dy, factor)?)])
}

/// The factor of ONNX Runtime's `QuickGelu`.
fn quick_alpha(cx: &Cx) -> Result<f64, Fault> {
    Ok(cx.attributes().float_or("alpha", 1.702)?.into())
}

/// `x σ(αx)`.
pub(super) fn quick_gelu(cx: &mut Cx) -> Built {
    let alpha = quick_alpha(cx)?;
    let x = cx.input(0)?;
    let scaled = cx.times(x, alpha)?;
    let gate = cx.map(Unary::Sigmoid, scaled)?;
    Ok(vec![Some(cx.mul(x, gate)?)])
}

/// `dy, x → dy σ (1 + αx (1 − σ))`.
pub(super) fn quick_gelu_grad(cx: &mut Cx) -> Built {
    let alpha = quick_alpha(cx)?;
    let (dy, x) = (cx.input(0)?, cx.input(1)?);
    let scaled = cx.times(x, alpha)?;
    let gate = cx.map(Unary::Sigmoid, scaled)?;
    let rest = cx.number_minus(1.0, gate)?;
    let slope = cx.mul(scaled, rest)?;
    let slope = cx.plus(slope, 1.0)?;
    let factor = cx.mul(gate, slope)?;
    Ok(vec![Some(cx.mul(dy, factor)?)])
}

/// `dy, y → dy (1 − y²)`.
pub(super) fn tanh_grad(cx: &mut Cx) -> Built {
    let (dy, y) = (cx.input(0)?, cx.input(1)?);
    let square = cx.mul(y, y)?;
    let factor = cx.number_minus(1.0, square)?;
    Ok(vec![Some(cx.mul(dy, factor)?)])
}

/// `dy, y → dy y (1 − y)`.
pub(super) fn sigmoid_grad(cx: &mut Cx) -> Built {
    let (dy, y) = (cx.input(0)?, cx.input(1)?);
    let rest = cx.number_minus(1.0, y)?;
    let factor = cx.mul(y, rest)?;
    Ok(vec![Some(cx.mul(dy, factor)?)])
}

/// `dy, x → dy` where `x` is positive; the result of the forward operator does for `x`.
pub(super) fn relu_grad(cx: &mut Cx) -> Built {
    let (dy, x) = (cx.input(0)?, cx.input(1)?);
    let positive = cx.with(Binary::Greater, x, 0.0)?;
    let dtype = cx.ty(dy).dtype;
    let zero = cx.scalar(dtype, 0.0);
    Ok(vec![Some(cx.select(positive, dy, zero)?)])
}
