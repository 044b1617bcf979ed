//! Operators that work element by element.

use super::{ANY, Row, row};
use crate::onnx::context::{Built, Cx, axis};
use crate::onnx::error::Fault;
use crate::onnx::read::element_type;
use arenic_ir::op::{Binary, Unary};
use arenic_ir::{DType, Op, ValueId};

const CAST: &[&str] = &["to", "saturate", "round_mode"];

pub(super) const ROWS: &[Row] = &[
    row("Abs", (1, 1), &[], unary),
    row("Add", (2, 2), &[], binary),
    row("And", (2, 2), &[], binary).since(7),
    row("Atan", (1, 1), &[], unary),
    row("Atanh", (1, 1), &[], unary),
    row("Cast", (1, 1), CAST, cast),
    row("CastLike", (2, 2), &["saturate", "round_mode"], cast_like),
    row("Ceil", (1, 1), &[], unary),
    row("Clip", (1, 3), &[], clip),
    row("Cos", (1, 1), &[], unary),
    row("CumProd", (2, 2), &["exclusive", "reverse"], cum_prod)
        .since(26)
        .note("axis known when compiled"),
    row("CumSum", (2, 2), &["exclusive", "reverse"], cum_sum).note("axis known when compiled"),
    row("Div", (2, 2), &[], binary),
    row("Equal", (2, 2), &[], binary),
    row("Erf", (1, 1), &[], unary),
    row("Exp", (1, 1), &[], unary),
    row("Floor", (1, 1), &[], unary),
    row("Greater", (2, 2), &[], binary),
    row("GreaterOrEqual", (2, 2), &[], binary),
    row("Less", (2, 2), &[], binary),
    row("LessOrEqual", (2, 2), &[], binary),
    row("Log", (1, 1), &[], unary),
    row("Max", (1, ANY), &[], variadic),
    row("Mean", (1, ANY), &[], mean),
    row("Min", (1, ANY), &[], variadic),
    row("Mod", (2, 2), &["fmod"], modulo),
    row("Mul", (2, 2), &[], binary),
    row("Neg", (1, 1), &[], unary),
    row("Not", (1, 1), &[], unary).since(1),
    row("Or", (2, 2), &[], binary).since(7),
    row("Pow", (2, 2), &[], pow),
    row("Reciprocal", (1, 1), &[], unary),
    row("Relu", (1, 1), &[], unary),
    row("Sigmoid", (1, 1), &[], unary),
    row("Sign", (1, 1), &[], unary),
    row("Sin", (1, 1), &[], unary),
    row("Sqrt", (1, 1), &[], unary),
    row("Sub", (2, 2), &[], binary),
    row("Sum", (1, ANY), &[], variadic),
    row("Tanh", (1, 1), &[], unary),
    row("Where", (3, 3), &[], select),
    row("Xor", (2, 2), &[], binary).since(7),
];

pub(super) fn unary(cx: &mut Cx) -> Built {
    let Some(f) = Unary::of_onnx(cx.node.op) else {
        return Err("it is no function of one operand".into());
    };
    let x = cx.input(0)?;
    cx.whole(Op::Unary { f }, vec![x])
}

pub(super) fn binary(cx: &mut Cx) -> Built {
    let Some(f) = Binary::of_onnx(cx.node.op) else {
        return Err("it is no function of two operands".into());
    };
    let inputs = cx.inputs()?;
    cx.whole(Op::Binary { f }, inputs)
}

fn variadic(cx: &mut Cx) -> Built {
    let f = match cx.node.op {
        "Max" => Binary::Max,
        "Min" => Binary::Min,
        _ => Binary::Add,
    };
    Ok(vec![Some(chain(cx, f)?)])
}

/// All operands combined, the first two first.
fn chain(cx: &mut Cx, f: Binary) -> Result<ValueId, Fault> {
    let mut inputs = cx.inputs()?.into_iter();
    let Some(mut result) = inputs.next() else { return Err("it has no operand".into()) };
    if inputs.len() == 0 {
        return cx.same(result);
    }
    for x in inputs {
        result = cx.emit1(Op::Binary { f }, vec![result, x])?;
    }
    Ok(result)
}

pub(super) fn mean(cx: &mut Cx) -> Built {
    let sum = chain(cx, Binary::Add)?;
    let dtype = cx.ty(sum).dtype;
    let count = cx.scalar(dtype, cx.count() as f64);
    cx.whole(Op::Binary { f: Binary::Div }, vec![sum, count])
}

/// The remainder has the dividend's sign with `fmod`, else the divisor's.
fn modulo(cx: &mut Cx) -> Built {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let rem = Op::Binary { f: Binary::Rem };
    let dtype = cx.ty(a).dtype;
    let unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    if unsigned || cx.attributes().flag("fmod", false)? {
        return cx.whole(rem, vec![a, b]);
    }
    let left = cx.emit1(rem, vec![a, b])?;
    let zero = cx.scalar(dtype, 0.0);
    let (is_negative, of_negative) =
        (cx.both(Binary::Less, left, zero)?, cx.both(Binary::Less, b, zero)?);
    let other_sign = cx.both(Binary::Xor, is_negative, of_negative)?;
    let nothing = cx.both(Binary::Equal, left, zero)?;
    let something = cx.map(Unary::Not, nothing)?;
    let moves = cx.both(Binary::And, other_sign, something)?;
    let moved = cx.add(left, b)?;
    cx.whole(Op::Where, vec![moves, moved, left])
}

fn cum_sum(cx: &mut Cx) -> Built {
    cumulated(cx, Binary::Add, 0.0)
}

fn cum_prod(cx: &mut Cx) -> Built {
    cumulated(cx, Binary::Mul, 1.0)
}

/// Sums or products of the elements so far along an axis, of twice as many with each operator;
/// `nothing` is that of none.
fn cumulated(cx: &mut Cx, f: Binary, nothing: f64) -> Built {
    let a = cx.attributes();
    let (exclusive, reverse) = (a.flag("exclusive", false)?, a.flag("reverse", false)?);
    let x = cx.input(0)?;
    let rank = cx.ty(x).rank();
    let [of] = cx.ints(1)?.unwrap_or_default()[..] else {
        return Err("operand 1 is not one axis".into());
    };
    let along = axis(of, rank)?;
    let extent = cx.ty(x).shape[along];
    let shift = |cx: &mut Cx, x, by| shifted(cx, x, along, by, reverse, nothing);
    let mut all = if exclusive { shift(cx, x, 1)? } else { cx.same(x)? };
    let mut by = 1;
    while by < extent {
        let other = shift(cx, all, by)?;
        all = cx.both(f, all, other)?;
        by *= 2;
    }
    Ok(vec![Some(all)])
}

/// `x` moved along an axis, towards its start in reverse; a number comes after it.
fn shifted(
    cx: &mut Cx,
    x: ValueId,
    along: usize,
    by: usize,
    reverse: bool,
    value: f64,
) -> Result<ValueId, Fault> {
    let ty = cx.ty(x);
    let whole = ty.shape.clone();
    if by >= whole[along] {
        return cx.filled(ty.dtype, &whole, value);
    }
    let (mut shape, mut from, mut to) = (whole.clone(), vec![0; whole.len()], vec![0; whole.len()]);
    shape[along] -= by;
    let first = if reverse { &mut from } else { &mut to };
    first[along] = by;
    let part = Op::Slice { starts: from, steps: vec![1; whole.len()], shape };
    let (part, steps) = (cx.emit1(part, vec![x])?, vec![1; whole.len()]);
    cx.emit1(Op::Pad { starts: to, steps, shape: whole, value }, vec![part])
}

/// ONNX lets the exponent have another element type; the result has the base's.
fn pow(cx: &mut Cx) -> Built {
    let (base, exponent) = (cx.input(0)?, cx.input(1)?);
    let (dtype, other) = (cx.ty(base).dtype, cx.ty(exponent).dtype);
    let op = Op::Binary { f: Binary::Pow };
    if other.is_float() && !dtype.is_float() {
        let (base, exponent) = (cx.cast(base, DType::F64)?, cx.cast(exponent, DType::F64)?);
        let power = cx.emit1(op, vec![base, exponent])?;
        return cx.whole(Op::Cast { to: dtype }, vec![power]);
    }
    let exponent = cx.cast(exponent, dtype)?;
    cx.whole(op, vec![base, exponent])
}

pub(super) fn select(cx: &mut Cx) -> Built {
    let inputs = cx.inputs()?;
    cx.whole(Op::Where, inputs)
}

pub(super) fn clip(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let (low, high) = (cx.optional(1)?, cx.optional(2)?);
    let op = Op::Clip { min: low.is_some(), max: high.is_some() };
    if low.is_none() && high.is_none() {
        return Ok(vec![Some(cx.same(x)?)]);
    }
    cx.whole(op, [Some(x), low, high].into_iter().flatten().collect())
}

pub(super) fn cast(cx: &mut Cx) -> Built {
    let to = cx.attributes().int("to")?.ok_or("attribute `to` is missing")?;
    let to = i32::try_from(to)
        .map_err(|_| format!("element type {to} is unknown"))
        .and_then(element_type)?;
    convert(cx, to)
}

fn cast_like(cx: &mut Cx) -> Built {
    let like = cx.input(1)?;
    let to = cx.ty(like).dtype;
    convert(cx, to)
}

/// `saturate` and `round_mode` concern 8-bit floats alone.
fn convert(cx: &mut Cx, to: DType) -> Built {
    let x = cx.input(0)?;
    if cx.ty(x).dtype == to {
        return Ok(vec![Some(cx.same(x)?)]);
    }
    cx.whole(Op::Cast { to }, vec![x])
}
