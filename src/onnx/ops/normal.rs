//! Normalisations of ONNX that are layer norms of other shapes, or simpler.

use super::compose::Made;
use super::position::part;
use super::{Row, row};
use crate::onnx::context::{Built, Cx, axes, axis};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Reduction, Unary};
use arenic_ir::{Op, TensorType, ValueId};

const GROUP_NORM: &[&str] = &["epsilon", "num_groups", "stash_type"];

pub(super) const ROWS: &[Row] = &[
    row("GroupNormalization", (3, 3), GROUP_NORM, group_norm).since(18),
    row("InstanceNormalization", (3, 3), &["epsilon"], instance_norm),
    row("LRN", (1, 1), &["alpha", "beta", "bias", "size"], local_response),
    row("LpNormalization", (1, 1), &["axis", "p"], lp_norm),
    row("MeanVarianceNormalization", (1, 1), &["axes"], mean_variance),
    row("RMSNormalization", (2, 2), &["axis", "epsilon", "stash_type"], rms_norm).since(23),
];

/// Statistics in single precision, which is what ONNX asks for of single-precision operands.
fn stash(cx: &Cx) -> Result<(), Fault> {
    match cx.attributes().int_or("stash_type", 1)? {
        1 => Ok(()),
        other => Err(Fault(format!("attribute `stash_type` is {other}; only 1 is supported"))),
    }
}

fn epsilon(cx: &Cx) -> Result<f32, Fault> {
    cx.attributes().float_or("epsilon", 1e-5)
}

/// `x` normalised over runs of elements, `runs` of them.
fn by_runs(cx: &mut Cx, x: ValueId, runs: usize, epsilon: f32) -> Made {
    let ty = cx.ty(x);
    if ty.elements() == 0 {
        return Ok(x);
    }
    if runs == 0 || !ty.elements().is_multiple_of(runs) {
        return Err(Fault(format!("{ty} does not fall into {runs} equal parts")));
    }
    let rows = cx.reshape(x, vec![runs, ty.elements() / runs])?;
    let one = cx.scalar(ty.dtype.accumulated(), 1.0);
    let normal = cx.emit1(Op::LayerNorm { axis: 1, epsilon }, vec![rows, one])?;
    cx.reshape(normal, ty.shape)
}

/// `x · scale + bias`, both per channel.
fn per_channel(cx: &mut Cx, x: ValueId, scale: ValueId, bias: ValueId) -> Made {
    let ty = cx.ty(x);
    let mut shape = vec![1; ty.rank()];
    shape[1] = ty.shape[1];
    let (scale, bias) = (cx.reshape(scale, shape.clone())?, cx.reshape(bias, shape)?);
    let scaled = cx.mul(x, scale)?;
    cx.add(scaled, bias)
}

fn with_channels(ty: &TensorType) -> Result<(), Fault> {
    if ty.rank() < 2 {
        return Err(Fault(format!("{ty} has no channels")));
    }
    Ok(())
}

fn instance_norm(cx: &mut Cx) -> Built {
    let epsilon = epsilon(cx)?;
    let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let ty = cx.ty(x);
    with_channels(&ty)?;
    let runs = ty.shape[0].checked_mul(ty.shape[1]).ok_or("too many channels")?;
    let normal = by_runs(cx, x, runs, epsilon)?;
    Ok(vec![Some(per_channel(cx, normal, scale, bias)?)])
}

/// Since opset 21 scale and bias are of channels, before of groups.
fn group_norm(cx: &mut Cx) -> Built {
    stash(cx)?;
    let epsilon = epsilon(cx)?;
    let groups = cx.attributes().int("num_groups")?.ok_or("attribute `num_groups` is missing")?;
    let groups = usize::try_from(groups).map_err(|_| format!("{groups} groups"))?;
    let (x, mut scale, mut bias) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let ty = cx.ty(x);
    with_channels(&ty)?;
    if groups == 0 || !ty.shape[1].is_multiple_of(groups) {
        return Err(Fault(format!("{ty} does not fall into {groups} groups")));
    }
    let runs = ty.shape[0].checked_mul(groups).ok_or("too many groups")?;
    let normal = by_runs(cx, x, runs, epsilon)?;
    if cx.node.version.is_some_and(|v| v < 21) {
        let each = ty.shape[1] / groups;
        for v in [&mut scale, &mut bias] {
            let column = cx.reshape(*v, vec![groups, 1])?;
            *v = cx.emit1(Op::Expand { shape: vec![groups, each] }, vec![column])?;
        }
    }
    Ok(vec![Some(per_channel(cx, normal, scale, bias)?)])
}

/// `x / √(mean(x²) + ε) · scale`.
fn rms_norm(cx: &mut Cx) -> Built {
    stash(cx)?;
    let epsilon = epsilon(cx)?;
    let at = cx.attributes().int_or("axis", -1)?;
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.ty(x).rank();
    let over: Vec<usize> = (axis(at, rank)?..rank).collect();
    let square = cx.mul(x, x)?;
    let mean = cx.reduced(Reduction::Mean, square, &over)?;
    let sum = cx.plus(mean, epsilon.into())?;
    let root = cx.map(Unary::Sqrt, sum)?;
    let normal = cx.div(x, root)?;
    Ok(vec![Some(cx.mul(normal, scale)?)])
}

/// `(x − mean) / (deviation + 1e-9)`.
fn mean_variance(cx: &mut Cx) -> Built {
    let given = cx.attributes().ints("axes")?.unwrap_or(&[0, 2, 3]);
    let x = cx.input(0)?;
    let over = axes(given, cx.ty(x).rank())?;
    let mean = cx.reduced(Reduction::Mean, x, &over)?;
    let centred = cx.sub(x, mean)?;
    let square = cx.mul(centred, centred)?;
    let variance = cx.reduced(Reduction::Mean, square, &over)?;
    let deviation = cx.norm_of(variance)?;
    let below = cx.plus(deviation, 1e-9)?;
    Ok(vec![Some(cx.div(centred, below)?)])
}

/// `x / ‖x‖` along an axis, zero where the norm is.
fn lp_norm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (at, p) = (a.int_or("axis", -1)?, a.int_or("p", 2)?);
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let over = [axis(at, ty.rank())?];
    let norm = match p {
        1 => {
            let magnitude = cx.map(Unary::Abs, x)?;
            cx.reduced(Reduction::Sum, magnitude, &over)?
        }
        2 => {
            let square = cx.mul(x, x)?;
            let sum = cx.reduced(Reduction::Sum, square, &over)?;
            cx.norm_of(sum)?
        }
        other => return Err(Fault(format!("attribute `p` is {other}, not 1 or 2"))),
    };
    let zero = cx.scalar(ty.dtype, 0.0);
    let is_zero = cx.both(Binary::Equal, norm, zero)?;
    let normal = cx.div(x, norm)?;
    Ok(vec![Some(cx.select(is_zero, zero, normal)?)])
}

/// Most channels that are summed: each is a node.
const MOST_CHANNELS: i64 = 1024;

/// `x / (bias + alpha / size · Σ x²)^beta` over `size` channels around each.
fn local_response(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let alpha = f64::from(a.float_or("alpha", 1e-4)?);
    let (beta, bias) = (a.float_or("beta", 0.75)?, a.float_or("bias", 1.0)?);
    let size = a.int("size")?.filter(|n| (1..=MOST_CHANNELS).contains(n));
    let size = size.ok_or("attribute `size` is missing or out of range")? as usize;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    with_channels(&ty)?;
    let square = cx.mul(x, x)?;
    let mut whole = ty.shape.clone();
    whole[1] += size - 1;
    let mut starts = vec![0; whole.len()];
    starts[1] = (size - 1) / 2;
    let steps = vec![1; whole.len()];
    let padded = cx.emit1(Op::Pad { starts, steps, shape: whole, value: 0.0 }, vec![square])?;
    let mut sum = part(cx, padded, 1, 0, ty.shape[1], 1)?;
    for first in 1..size {
        let next = part(cx, padded, 1, first, ty.shape[1], 1)?;
        sum = cx.add(sum, next)?;
    }
    let scaled = cx.times(sum, alpha / size as f64)?;
    let below = cx.plus(scaled, bias.into())?;
    let below = cx.with(Binary::Pow, below, beta.into())?;
    Ok(vec![Some(cx.div(x, below)?)])
}
