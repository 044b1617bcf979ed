//! Operators that draw random numbers.

use crate::onnx::Mode;
use crate::onnx::context::{Built, Cx, extents};
use crate::onnx::error::Fault;
use crate::onnx::read::element_type;
use arenic_ir::op::Rng;
use arenic_ir::{DType, Op};

pub(super) fn dropout(cx: &mut Cx) -> Built {
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
        Mode::Training(t) => (t.dropout != Some(0.0), t.dropout),
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

pub(super) fn uniform(cx: &mut Cx) -> Built {
    let shape = extents(cx.attributes().ints("shape")?.ok_or("attribute `shape` is missing")?)?;
    draw(cx, DType::F32, shape)
}

pub(super) fn uniform_like(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    draw(cx, ty.dtype, ty.shape)
}

fn draw(cx: &mut Cx, default: DType, shape: Vec<usize>) -> Built {
    let a = cx.attributes();
    let dtype = match a.int("dtype")? {
        None => default,
        Some(code) => i32::try_from(code)
            .map_err(|_| format!("element type {code} is unknown"))
            .and_then(element_type)?,
    };
    let seed = a.float("seed")?.map(whole_or_bits);
    let rng = Rng { stream: cx.stream(), seed };
    let (low, high) = (a.float_or("low", 0.0)?, a.float_or("high", 1.0)?);
    cx.whole(Op::RandomUniform { dtype, shape, low, high, rng }, vec![])
}

/// ONNX has this seed as a float; a whole one counts as the integer that it is.
fn whole_or_bits(seed: f32) -> u64 {
    if seed.fract() == 0.0 { seed as i64 as u64 } else { u64::from(seed.to_bits()) }
}
