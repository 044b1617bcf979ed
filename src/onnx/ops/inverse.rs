//! Inverses of trigonometric and hyperbolic functions, out of `atan`, `atanh` and `ln` such that no
//! digits cancel near zero and nothing overflows far from it.

use super::compose::Made;
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::ValueId;
use arenic_ir::op::{Binary, Unary};

pub(super) const ROWS: &[Row] = &[
    row("Acos", (1, 1), &[], acos),
    row("Acosh", (1, 1), &[], acosh),
    row("Asin", (1, 1), &[], asin),
    row("Asinh", (1, 1), &[], asinh),
];

fn operand(cx: &mut Cx) -> Made {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    if !ty.dtype.is_float() {
        return Err(Fault(format!("it does not take {ty}")));
    }
    Ok(x)
}

/// `1 − x` and `1 + x`.
fn sides(cx: &mut Cx, x: ValueId) -> Result<[ValueId; 2], Fault> {
    Ok([cx.number_minus(1.0, x)?, cx.plus(x, 1.0)?])
}

/// `2 atan(x / (1 + √((1 − x)(1 + x))))`.
fn asin(cx: &mut Cx) -> Built {
    let x = operand(cx)?;
    let [below, above] = sides(cx, x)?;
    let product = cx.mul(below, above)?;
    let root = cx.map(Unary::Sqrt, product)?;
    let sum = cx.plus(root, 1.0)?;
    let tan = cx.div(x, sum)?;
    let half = cx.map(Unary::Atan, tan)?;
    Ok(vec![Some(cx.times(half, 2.0)?)])
}

/// `2 atan(√((1 − x) / (1 + x)))`.
fn acos(cx: &mut Cx) -> Built {
    let x = operand(cx)?;
    let [below, above] = sides(cx, x)?;
    let ratio = cx.div(below, above)?;
    let tan = cx.map(Unary::Sqrt, ratio)?;
    let half = cx.map(Unary::Atan, tan)?;
    Ok(vec![Some(cx.times(half, 2.0)?)])
}

/// Near zero `atanh(x / √(1 + x²))`, else `± (ln |x| + ln(1 + √(1 + 1/x²)))`.
fn asinh(cx: &mut Cx) -> Built {
    let x = operand(cx)?;
    let square = cx.mul(x, x)?;
    let sum = cx.plus(square, 1.0)?;
    let root = cx.map(Unary::Sqrt, sum)?;
    let tanh = cx.div(x, root)?;
    let near = cx.map(Unary::Atanh, tanh)?;
    let magnitude = cx.map(Unary::Abs, x)?;
    let inverse = cx.map(Unary::Reciprocal, magnitude)?;
    let square = cx.mul(inverse, inverse)?;
    let sum = cx.plus(square, 1.0)?;
    let far = far(cx, magnitude, sum)?;
    let sign = cx.map(Unary::Sign, x)?;
    let far = cx.mul(far, sign)?;
    let is_near = cx.with(Binary::Less, magnitude, 0.5)?;
    Ok(vec![Some(cx.select(is_near, near, far)?)])
}

/// Near one `2 atanh(√((x − 1) / (x + 1)))`, else `ln x + ln(1 + √((1 − 1/x)(1 + 1/x)))`.
fn acosh(cx: &mut Cx) -> Built {
    let x = operand(cx)?;
    let (below, above) = (cx.plus(x, -1.0)?, cx.plus(x, 1.0)?);
    let ratio = cx.div(below, above)?;
    let tanh = cx.map(Unary::Sqrt, ratio)?;
    let half = cx.map(Unary::Atanh, tanh)?;
    let near = cx.times(half, 2.0)?;
    let inverse = cx.map(Unary::Reciprocal, x)?;
    let [below, above] = sides(cx, inverse)?;
    let product = cx.mul(below, above)?;
    let far = far(cx, x, product)?;
    let is_near = cx.with(Binary::Less, x, 2.0)?;
    Ok(vec![Some(cx.select(is_near, near, far)?)])
}

/// `ln x + ln(1 + √under)`.
fn far(cx: &mut Cx, x: ValueId, under: ValueId) -> Made {
    let root = cx.map(Unary::Sqrt, under)?;
    let sum = cx.plus(root, 1.0)?;
    let (a, b) = (cx.map(Unary::Log, x)?, cx.map(Unary::Log, sum)?);
    cx.add(a, b)
}
