//! Activations of ONNX that are pieces of simpler functions.

use super::activation::{fast_gelu, gelu};
use super::compose::Made;
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Unary};
use arenic_ir::{DType, Op, ValueId};

pub(super) const ROWS: &[Row] = &[
    row("Celu", (1, 1), &["alpha"], celu),
    row("Cosh", (1, 1), &[], cosh),
    row("Elu", (1, 1), &["alpha"], elu),
    row("Gelu", (1, 1), &["approximate"], onnx_gelu).since(20),
    row("HardSigmoid", (1, 1), &["alpha", "beta"], hard_sigmoid),
    row("HardSwish", (1, 1), &[], hard_swish).since(14),
    row("IsInf", (1, 1), &["detect_negative", "detect_positive"], is_inf),
    row("IsNaN", (1, 1), &[], is_nan),
    row("LeakyRelu", (1, 1), &["alpha"], leaky_relu),
    row("Mish", (1, 1), &[], mish).since(18),
    row("PRelu", (2, 2), &[], p_relu),
    row("Selu", (1, 1), &["alpha", "gamma"], selu),
    row("Shrink", (1, 1), &["bias", "lambd"], shrink),
    row("Sinh", (1, 1), &[], sinh),
    row("Softplus", (1, 1), &[], softplus),
    row("Softsign", (1, 1), &[], softsign),
    row("SwiGLU", (2, 2), &["alpha"], swi_glu).since(28),
    row("Swish", (1, 1), &["alpha"], swish).since(24),
    row("Tan", (1, 1), &[], tan),
    row("ThresholdedRelu", (1, 1), &["alpha"], thresholded_relu),
];

/// A float attribute.
fn number(cx: &Cx, name: &str, default: f32) -> Result<f64, Fault> {
    Ok(cx.attributes().float_or(name, default)?.into())
}

/// `exp(x) − 1`.
fn exp_minus_one(cx: &mut Cx, x: ValueId) -> Made {
    let exp = cx.map(Unary::Exp, x)?;
    cx.plus(exp, -1.0)
}

/// `below` where `x` is negative, else `x`, NaN as it is.
fn negative(cx: &mut Cx, x: ValueId, below: ValueId) -> Made {
    let is_negative = cx.with(Binary::Less, x, 0.0)?;
    cx.select(is_negative, below, x)
}

fn onnx_gelu(cx: &mut Cx) -> Built {
    let tanh = cx.attributes().one_of("approximate", "none", &[("none", false), ("tanh", true)])?;
    let x = cx.input(0)?;
    Ok(vec![Some(if tanh { fast_gelu(cx, x)? } else { gelu(cx, x)? })])
}

fn leaky_relu(cx: &mut Cx) -> Built {
    let alpha = number(cx, "alpha", 0.01)?;
    let x = cx.input(0)?;
    let below = cx.times(x, alpha)?;
    Ok(vec![Some(negative(cx, x, below)?)])
}

fn p_relu(cx: &mut Cx) -> Built {
    let (x, slope) = (cx.input(0)?, cx.input(1)?);
    let below = cx.mul(x, slope)?;
    if cx.ty(below) != cx.ty(x) {
        let (slope, x) = (cx.ty(slope), cx.ty(x));
        return Err(Fault(format!("its slope {slope} does not broadcast to {x}")));
    }
    Ok(vec![Some(negative(cx, x, below)?)])
}

fn elu(cx: &mut Cx) -> Built {
    let alpha = number(cx, "alpha", 1.0)?;
    let x = cx.input(0)?;
    let below = exp_minus_one(cx, x)?;
    let below = cx.times(below, alpha)?;
    Ok(vec![Some(negative(cx, x, below)?)])
}

fn selu(cx: &mut Cx) -> Built {
    let (alpha, gamma) = (number(cx, "alpha", 1.673_263_2)?, number(cx, "gamma", 1.050_701)?);
    let x = cx.input(0)?;
    let below = exp_minus_one(cx, x)?;
    let below = cx.times(below, alpha)?;
    let y = negative(cx, x, below)?;
    Ok(vec![Some(cx.times(y, gamma)?)])
}

fn celu(cx: &mut Cx) -> Built {
    let alpha = number(cx, "alpha", 1.0)?;
    let x = cx.input(0)?;
    let scaled = cx.with(Binary::Div, x, alpha)?;
    let below = exp_minus_one(cx, scaled)?;
    let below = cx.times(below, alpha)?;
    Ok(vec![Some(negative(cx, x, below)?)])
}

/// `ln(1 + exp(x))`, which is `x` where the exponential is so large that one more is nothing.
fn softplus_of(cx: &mut Cx, x: ValueId) -> Made {
    let from = if cx.ty(x).dtype == DType::F64 { 40.0 } else { 20.0 };
    let is_large = cx.with(Binary::Greater, x, from)?;
    let exp = cx.map(Unary::Exp, x)?;
    let sum = cx.plus(exp, 1.0)?;
    let log = cx.map(Unary::Log, sum)?;
    cx.select(is_large, x, log)
}

fn softplus(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    Ok(vec![Some(softplus_of(cx, x)?)])
}

fn mish(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let softplus = softplus_of(cx, x)?;
    let gate = cx.map(Unary::Tanh, softplus)?;
    Ok(vec![Some(cx.mul(x, gate)?)])
}

fn softsign(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let magnitude = cx.map(Unary::Abs, x)?;
    let below = cx.plus(magnitude, 1.0)?;
    Ok(vec![Some(cx.div(x, below)?)])
}

/// `αx + β` within 0 and 1.
fn ramp(cx: &mut Cx, x: ValueId, alpha: f64, beta: f64) -> Made {
    let line = cx.times(x, alpha)?;
    let line = cx.plus(line, beta)?;
    let dtype = cx.ty(x).dtype;
    let (low, high) = (cx.scalar(dtype, 0.0), cx.scalar(dtype, 1.0));
    cx.emit1(Op::Clip { min: true, max: true }, vec![line, low, high])
}

fn hard_sigmoid(cx: &mut Cx) -> Built {
    let (alpha, beta) = (number(cx, "alpha", 0.2)?, number(cx, "beta", 0.5)?);
    let x = cx.input(0)?;
    Ok(vec![Some(ramp(cx, x, alpha, beta)?)])
}

fn hard_swish(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let gate = ramp(cx, x, 1.0 / 6.0, 0.5)?;
    Ok(vec![Some(cx.mul(x, gate)?)])
}

pub(super) fn swish(cx: &mut Cx) -> Built {
    let alpha = number(cx, "alpha", 1.0)?;
    let x = cx.input(0)?;
    let scaled = cx.times(x, alpha)?;
    let gate = cx.map(Unary::Sigmoid, scaled)?;
    Ok(vec![Some(cx.mul(x, gate)?)])
}

/// `swish(a) · b`.
fn swi_glu(cx: &mut Cx) -> Built {
    let [Some(gate)] = swish(cx)?[..] else { return Err("it has no gate".into()) };
    let b = cx.input(1)?;
    if cx.ty(gate) != cx.ty(b) {
        return Err(Fault(format!("its operands are {} and {}", cx.ty(gate), cx.ty(b))));
    }
    Ok(vec![Some(cx.mul(gate, b)?)])
}

/// `x` moved towards zero by a bias, and zero between −λ and λ.
fn shrink(cx: &mut Cx) -> Built {
    let (bias, lambda) = (number(cx, "bias", 0.0)?, number(cx, "lambd", 0.5)?);
    let x = cx.input(0)?;
    let dtype = cx.ty(x).dtype;
    if !dtype.is_float() {
        return Err(Fault(format!("it does not take {dtype}")));
    }
    let (is_below, is_above) =
        (cx.with(Binary::Less, x, -lambda)?, cx.with(Binary::Greater, x, lambda)?);
    let (up, down) = (cx.plus(x, bias)?, cx.plus(x, -bias)?);
    let zero = cx.scalar(dtype, 0.0);
    let rest = cx.select(is_above, down, zero)?;
    Ok(vec![Some(cx.select(is_below, up, rest)?)])
}

fn thresholded_relu(cx: &mut Cx) -> Built {
    let alpha = number(cx, "alpha", 1.0)?;
    let x = cx.input(0)?;
    let above = cx.with(Binary::Greater, x, alpha)?;
    let dtype = cx.ty(x).dtype;
    let zero = cx.scalar(dtype, 0.0);
    Ok(vec![Some(cx.select(above, x, zero)?)])
}

pub(super) fn tan(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let (sin, cos) = (cx.map(Unary::Sin, x)?, cx.map(Unary::Cos, x)?);
    Ok(vec![Some(cx.div(sin, cos)?)])
}

/// `½ exp(x)` and `½ exp(−x)`, which do not overflow where `exp(x)` alone does. Neither do their
/// slopes: each of the two factors is computed for itself, so that no sum of gradients is `exp(x)`.
fn halves(cx: &mut Cx, x: ValueId) -> Result<[ValueId; 2], Fault> {
    let root = |cx: &mut Cx, by| {
        let exponent = cx.times(x, by)?;
        cx.map(Unary::Exp, exponent)
    };
    let half = |cx: &mut Cx, by| {
        let (a, b) = (root(cx, by)?, root(cx, by)?);
        let half = cx.times(a, 0.5)?;
        cx.mul(half, b)
    };
    Ok([half(cx, 0.5)?, half(cx, -0.5)?])
}

fn cosh(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let [up, down] = halves(cx, x)?;
    Ok(vec![Some(cx.add(up, down)?)])
}

/// Near zero, where the exponentials cancel, `2t / (1 − t²)` with `t = tanh(x / 2)`.
fn sinh(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let [up, down] = halves(cx, x)?;
    let far = cx.sub(up, down)?;
    let half = cx.times(x, 0.5)?;
    let t = cx.map(Unary::Tanh, half)?;
    let square = cx.mul(t, t)?;
    let below = cx.number_minus(1.0, square)?;
    let twice = cx.times(t, 2.0)?;
    let near = cx.div(twice, below)?;
    let magnitude = cx.map(Unary::Abs, x)?;
    let is_near = cx.with(Binary::Less, magnitude, 1.0)?;
    Ok(vec![Some(cx.select(is_near, near, far)?)])
}

fn is_nan(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let itself = cx.both(Binary::Equal, x, x)?;
    Ok(vec![Some(cx.map(Unary::Not, itself)?)])
}

fn is_inf(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (below, above) = (a.flag("detect_negative", true)?, a.flag("detect_positive", true)?);
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    if !ty.dtype.is_float() {
        return Err(Fault(format!("it does not take {ty}")));
    }
    let y = match (below, above) {
        (true, true) => {
            let magnitude = cx.map(Unary::Abs, x)?;
            cx.with(Binary::Equal, magnitude, f64::INFINITY)?
        }
        (true, false) => cx.with(Binary::Equal, x, f64::NEG_INFINITY)?,
        (false, true) => cx.with(Binary::Equal, x, f64::INFINITY)?,
        (false, false) => cx.filled(DType::Bool, &ty.shape, 0.0)?,
    };
    Ok(vec![Some(y)])
}
