//! Operators that draw random numbers.

use super::{Row, row};
use crate::onnx::Mode;
use crate::onnx::context::{Built, Cx, extents};
use crate::onnx::error::Fault;
use crate::onnx::fold::to_floats;
use crate::onnx::read::element_type;
use arenic_ir::op::{Binary, Rng, Unary};
use arenic_ir::{DType, Op};

pub(super) const ROWS: &[Row] = &[
    row("Bernoulli", (1, 1), &["dtype", "seed"], bernoulli).since(15),
    row("Dropout", (1, 3), &["seed"], dropout).note("training_mode known when compiled"),
    row("RandomNormal", (0, 0), &["dtype", "mean", "scale", "seed", "shape"], normal),
    row("RandomNormalLike", (1, 1), &["dtype", "mean", "scale", "seed"], normal_like),
    row("RandomUniform", (0, 0), &["dtype", "high", "low", "seed", "shape"], uniform),
    row("RandomUniformLike", (1, 1), &["dtype", "high", "low", "seed"], uniform_like),
];

fn dropout(cx: &mut Cx) -> Built {
    let seed = cx.attributes().int("seed")?.map(|s| s as u64);
    let x = cx.input(0)?;
    let shape = cx.ty(x).shape;
    let training = match cx.one(2)? {
        None => false,
        Some((ty, _)) if ty.dtype != DType::Bool => {
            return Err(Fault(format!("training_mode is {ty}, no bool")));
        }
        Some((_, bytes)) => bytes.iter().any(|&b| b != 0),
    };
    let (training, ratio) = match cx.mode {
        Mode::AsWritten => (training, None),
        Mode::Training(t) => {
            (t.dropout != Some(0.0) && (t.dropout.is_some() || drops(cx)?), t.dropout)
        }
        Mode::Inference => (false, None),
    };
    if !training {
        let y = cx.same(x)?;
        let mask = if cx.wants(1) {
            let all = cx.scalar(DType::Bool, 1.0);
            Some(cx.emit1(Op::Expand { shape }, vec![all])?)
        } else {
            None
        };
        return Ok(vec![Some(y), mask]);
    }
    let ratio = match (ratio, cx.optional(1)?) {
        (Some(ratio), _) => cx.scalar(DType::F32, f64::from(ratio)),
        (None, Some(ratio)) => ratio,
        (None, None) => cx.scalar(DType::F32, 0.5),
    };
    let rng = Rng { stream: cx.stream(), seed };
    cx.whole(Op::Dropout { rng }, vec![x, ratio])
}

/// False where the node's own ratio is known to be zero.
fn drops(cx: &mut Cx) -> Result<bool, Fault> {
    let Some(ratio) = cx.optional(1)? else { return Ok(true) };
    let ty = cx.ty(ratio);
    let known = cx.b.contents(ratio).and_then(|bytes| to_floats(&ty, &bytes));
    Ok(known.is_none_or(|list| list != [0.0]))
}

fn uniform(cx: &mut Cx) -> Built {
    let shape = extents(cx.attributes().ints("shape")?.ok_or("attribute `shape` is missing")?)?;
    draw(cx, DType::F32, shape)
}

fn uniform_like(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    draw(cx, ty.dtype, ty.shape)
}

pub(super) fn normal(cx: &mut Cx) -> Built {
    let shape = extents(cx.attributes().ints("shape")?.ok_or("attribute `shape` is missing")?)?;
    draw_normal(cx, DType::F32, &shape)
}

fn normal_like(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    draw_normal(cx, ty.dtype, &ty.shape)
}

/// One where a draw is below the operand, which is the chance of it.
fn bernoulli(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    if !ty.dtype.is_float() {
        return Err(Fault(format!("{ty} are no chances")));
    }
    let (to, rng) = (element(cx, ty.dtype)?, generator(cx)?);
    let draw = Op::RandomUniform { dtype: ty.dtype, shape: ty.shape, low: 0.0, high: 1.0, rng };
    let drawn = cx.emit1(draw, vec![])?;
    let is_one = cx.both(Binary::Less, drawn, x)?;
    cx.whole(Op::Cast { to }, vec![is_one])
}

fn draw(cx: &mut Cx, default: DType, shape: Vec<usize>) -> Built {
    let (dtype, rng) = (element(cx, default)?, generator(cx)?);
    let a = cx.attributes();
    let (low, high) = (a.float_or("low", 0.0)?, a.float_or("high", 1.0)?);
    cx.whole(Op::RandomUniform { dtype, shape, low, high, rng }, vec![])
}

/// By Box's and Muller's transformation of two uniform draws (1958).
fn draw_normal(cx: &mut Cx, default: DType, shape: &[usize]) -> Built {
    let (dtype, rng) = (element(cx, default)?, generator(cx)?);
    let a = cx.attributes();
    let (mean, scale) = (a.float_or("mean", 0.0)?, a.float_or("scale", 1.0)?);
    let other = Rng { stream: rng.stream ^ 0x9e37_79b9_7f4a_7c15, ..rng };
    let mut uniform = |rng| {
        let (low, high) = (0.0, 1.0);
        cx.emit1(Op::RandomUniform { dtype, shape: shape.to_vec(), low, high, rng }, vec![])
    };
    let (radius, angle) = (uniform(rng)?, uniform(other)?);
    let f = |f| Op::Unary { f };
    let g = |f| Op::Binary { f };
    let number = |cx: &mut Cx, x: f64| cx.scalar(dtype, x);
    // One minus a draw is never zero.
    let one = number(cx, 1.0);
    let radius = cx.emit1(g(Binary::Sub), vec![one, radius])?;
    let radius = cx.emit1(f(Unary::Log), vec![radius])?;
    let factor = number(cx, -2.0);
    let radius = cx.emit1(g(Binary::Mul), vec![radius, factor])?;
    let radius = cx.emit1(f(Unary::Sqrt), vec![radius])?;
    let turn = number(cx, std::f64::consts::TAU);
    let angle = cx.emit1(g(Binary::Mul), vec![angle, turn])?;
    let angle = cx.emit1(f(Unary::Cos), vec![angle])?;
    let drawn = cx.emit1(g(Binary::Mul), vec![radius, angle])?;
    let scale = number(cx, scale.into());
    let drawn = cx.emit1(g(Binary::Mul), vec![drawn, scale])?;
    let mean = number(cx, mean.into());
    cx.whole(g(Binary::Add), vec![drawn, mean])
}

/// The element type that is asked for.
fn element(cx: &Cx, default: DType) -> Result<DType, Fault> {
    let Some(code) = cx.attributes().int("dtype")? else { return Ok(default) };
    let code = i32::try_from(code).map_err(|_| format!("element type {code} is unknown"))?;
    Ok(element_type(code)?)
}

fn generator(cx: &Cx) -> Result<Rng, Fault> {
    let seed = cx.attributes().float("seed")?.map(whole_or_bits);
    Ok(Rng { stream: cx.stream(), seed })
}

/// ONNX has this seed as a float; a whole one counts as the integer that it is.
fn whole_or_bits(seed: f32) -> u64 {
    if seed.fract() == 0.0 { seed as i64 as u64 } else { u64::from(seed.to_bits()) }
}
