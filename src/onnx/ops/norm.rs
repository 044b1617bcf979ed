//! Products and normalisations.

use super::{Row, row};
use crate::onnx::context::{Built, Cx, axis};
use crate::onnx::error::Fault;
use crate::onnx::fold::Statistic;
use crate::onnx::{Mode, Variance};
use arenic_ir::op::{Binary, Unary};
use arenic_ir::{DType, Op, ValueId};

const BATCH_NORM: &[&str] = &["epsilon", "momentum", "training_mode"];

pub(super) const ROWS: &[Row] = &[
    row("BatchNormalization", (5, 5), BATCH_NORM, batch_norm).since(9),
    row("Gemm", (2, 3), &["alpha", "beta", "transA", "transB"], gemm),
    row("LayerNormalization", (2, 3), &["axis", "epsilon", "stash_type"], layer_norm),
    row("LogSoftmax", (1, 1), &["axis"], softmax),
    row("MatMul", (2, 2), &[], mat_mul),
    row("Softmax", (1, 1), &["axis"], softmax),
];

fn mat_mul(cx: &mut Cx) -> Built {
    let inputs = cx.inputs()?;
    cx.whole(Op::MatMul { trans_a: false, trans_b: false }, inputs)
}

fn gemm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let op = Op::Gemm {
        alpha: a.float_or("alpha", 1.0)?,
        beta: a.float_or("beta", 1.0)?,
        trans_a: a.int_or("transA", 0)? != 0,
        trans_b: a.int_or("transB", 0)? != 0,
    };
    let mut inputs = vec![cx.input(0)?, cx.input(1)?];
    inputs.extend(cx.optional(2)?);
    cx.whole(op, inputs)
}

pub(super) fn softmax(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let log = cx.node.op == "LogSoftmax";
    let op = |axis| if log { Op::LogSoftmax { axis } } else { Op::Softmax { axis } };
    let at = cx.attributes().int_or("axis", -1)?;
    if ty.rank() > 0 {
        return cx.whole(op(axis(at, ty.rank())?), vec![x]);
    }
    axis(at, 1)?;
    let row = cx.reshape(x, vec![1])?;
    let y = cx.emit1(op(0), vec![row])?;
    Ok(vec![Some(cx.reshape(y, vec![])?)])
}

fn layer_norm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let epsilon = a.float_or("epsilon", 1e-5)?;
    let stash = a.int_or("stash_type", 1)?;
    if stash != 1 {
        return Err(
            format!("attribute `stash_type` is {stash}; only 1, float, is supported").into()
        );
    }
    let mut inputs = vec![cx.input(0)?, cx.input(1)?];
    inputs.extend(cx.optional(2)?);
    let factors = cx.ty(inputs[0]).dtype.accumulated();
    for factor in &mut inputs[1..] {
        *factor = cx.cast(*factor, factors)?;
    }
    let rank = cx.ty(inputs[0]).rank();
    let axis = axis(a.int_or("axis", -1)?, rank)?;
    let mut results = cx.whole(Op::LayerNorm { axis, epsilon }, inputs)?;
    // The statistics are f32 whatever the operand is.
    for (i, result) in results.iter_mut().enumerate().skip(1) {
        if let Some(v) = result.filter(|_| cx.wants(i)) {
            *result = Some(cx.cast(v, DType::F32)?);
        }
    }
    Ok(results)
}

/// Batch normalisation: by the batch's statistics in training, by the running ones afterwards.
pub(super) fn batch_norm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let epsilon = a.float_or("epsilon", 1e-5)?;
    let momentum = f64::from(a.float_or("momentum", 0.9)?);
    let operands = cx.inputs()?;
    let &[x, scale, bias, mean, var] = &operands[..] else {
        return Err("it has five operands".into());
    };
    let ty = cx.ty(x);
    if ty.rank() < 2 {
        return Err(format!("{ty} has no channels").into());
    }
    // Before version 14 a node that gives statistics is one in training.
    let written = match cx.node.version {
        Some(version) if version >= 14 => a.flag("training_mode", false)?,
        _ => cx.wants(1) || cx.wants(2),
    };
    let (training, variance) = match cx.mode {
        Mode::AsWritten => (written, Variance::Population),
        Mode::Training(t) => (true, t.variance.unwrap_or_default()),
        Mode::Inference => (false, Variance::Population),
    };
    if !training {
        return running_norm(cx, epsilon, [x, scale, bias, mean, var]);
    }
    // Factors and statistics have types of their own.
    let sums = ty.dtype.accumulated();
    let (scale, bias) = (cx.cast(scale, sums)?, cx.cast(bias, sums)?);
    let results = cx.emit(Op::BatchNorm { epsilon }, vec![x, scale, bias])?;
    let &[y, batch_mean, mut batch_var, ..] = &results[..] else {
        return Err("a batch norm has statistics".into());
    };
    // Of several ranks each goes by its own rows.
    let count = ty.elements() / ty.shape[1].max(1) / cx.b.ranks.max(1);
    if variance == Variance::Unbiased && count > 1 {
        batch_var = scaled(cx, batch_var, count as f64 / (count - 1) as f64)?;
    }
    let mut next = [mean, var];
    for (running, batch) in next.iter_mut().zip([batch_mean, batch_var]) {
        let now = *running;
        let dtype = cx.ty(now).dtype;
        let old = cx.cast(now, sums)?;
        let (old, new) = (scaled(cx, old, momentum)?, scaled(cx, batch, 1.0 - momentum)?);
        let next = cx.emit1(Op::Binary { f: Binary::Add }, vec![old, new])?;
        *running = cx.cast(next, dtype)?;
        cx.b.statistics.push(Statistic { result: y, now, next: *running });
    }
    Ok(vec![Some(y), Some(next[0]), Some(next[1])])
}

fn scaled(cx: &mut Cx, x: ValueId, by: f64) -> Result<ValueId, Fault> {
    let dtype = cx.ty(x).dtype;
    let by = cx.scalar(dtype, by);
    cx.emit1(Op::Binary { f: Binary::Mul }, vec![x, by])
}

/// `x · scale / √(var + ε) + (bias − mean · scale / √(var + ε))`, by channel.
fn running_norm(cx: &mut Cx, epsilon: f32, operands: [ValueId; 5]) -> Built {
    let [x, scale, bias, mean, var] = operands;
    let binary = |cx: &mut Cx, f, a, b| cx.emit1(Op::Binary { f }, vec![a, b]);
    let ty = cx.ty(x);
    // Factors and statistics have types of their own.
    let sums = ty.dtype.accumulated();
    let mut cast = |v| cx.cast(v, sums);
    let (wide, scale, bias) = (cast(x)?, cast(scale)?, cast(bias)?);
    let (mean, var) = (cast(mean)?, cast(var)?);
    let epsilon = cx.scalar(sums, f64::from(epsilon));
    let sum = binary(cx, Binary::Add, var, epsilon)?;
    let std = cx.emit1(Op::Unary { f: Unary::Sqrt }, vec![sum])?;
    let factor = binary(cx, Binary::Div, scale, std)?;
    let part = binary(cx, Binary::Mul, mean, factor)?;
    let shift = binary(cx, Binary::Sub, bias, part)?;
    let mut shape = vec![1; ty.rank() - 1];
    shape[0] = ty.shape[1];
    let (factor, shift) = (cx.reshape(factor, shape.clone())?, cx.reshape(shift, shape)?);
    let y = binary(cx, Binary::Mul, wide, factor)?;
    let y = binary(cx, Binary::Add, y, shift)?;
    Ok(vec![Some(cx.cast(y, ty.dtype)?), None, None])
}
