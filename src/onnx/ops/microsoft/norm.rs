//! Normalisations as training has them, and their gradients.

use super::super::compose::Made;
use crate::onnx::context::{Built, Cx, axis};
use crate::onnx::error::Fault;
use arenic_ir::op::{Reduction, Unary};
use arenic_ir::{TensorType, ValueId};

/// All axes but that of channels.
fn of_channel(ty: &TensorType) -> Result<Vec<usize>, Fault> {
    if ty.rank() < 2 {
        return Err(Fault(format!("{ty} has no channels")));
    }
    Ok((0..ty.rank()).filter(|&i| i != 1).collect())
}

/// One number per channel, so that it broadcasts.
fn per_channel(cx: &mut Cx, x: ValueId, ty: &TensorType) -> Made {
    let mut shape = vec![1; ty.rank()];
    shape[1] = ty.shape[1];
    cx.reshape(x, shape)
}

/// `x, scale, bias, mean, var → y, mean', var', batch mean, batch inverse deviation`.
pub(in super::super) fn batch_norm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (epsilon, momentum) = (a.float_or("epsilon", 1e-5)?, a.float_or("momentum", 0.9)?);
    if !a.flag("training_mode", false)? {
        return Err("attribute `training_mode` is 0; only 1 is supported".into());
    }
    let [x, scale, bias, old_mean, old_var] = [0, 1, 2, 3, 4].map(|i| cx.input(i));
    let (x, scale, bias, old_mean, old_var) = (x?, scale?, bias?, old_mean?, old_var?);
    let ty = cx.ty(x);
    let axes = of_channel(&ty)?;
    let mean = cx.reduced(Reduction::Mean, x, &axes)?;
    let centred = cx.sub(x, mean)?;
    let square = cx.mul(centred, centred)?;
    let var = cx.reduced(Reduction::Mean, square, &axes)?;
    let sum = cx.plus(var, epsilon.into())?;
    let deviation = cx.map(Unary::Sqrt, sum)?;
    let inverse = cx.map(Unary::Reciprocal, deviation)?;
    let scale = per_channel(cx, scale, &ty)?;
    let bias = per_channel(cx, bias, &ty)?;
    let factor = cx.mul(inverse, scale)?;
    let scaled = cx.mul(centred, factor)?;
    let y = cx.add(scaled, bias)?;
    let channels = vec![ty.shape[1]];
    let [mean, var, inverse] = [mean, var, inverse].map(|v| cx.reshape(v, channels.clone()));
    let (mean, var, inverse) = (mean?, var?, inverse?);
    let mut running = |old, new| {
        let (old, new) = (cx.times(old, momentum.into())?, cx.times(new, (1.0 - momentum).into())?);
        cx.add(old, new)
    };
    let (next_mean, next_var) = (running(old_mean, mean)?, running(old_var, var)?);
    Ok([y, next_mean, next_var, mean, inverse].map(Some).to_vec())
}

/// What is normalised: over which axes, and what its scale and bias sum over.
struct Normal {
    x: ValueId,
    dy: ValueId,
    scale: ValueId,
    mean: ValueId,
    inverse: ValueId,
    over: Vec<usize>,
    summed: Vec<usize>,
}

/// `dx, dscale, dbias`, the latter with extents of 1 along what was summed:
/// `dx = inverse · (w − mean(w) − n · mean(w · n))` with `w = dy · scale` and the normalised `n`.
fn grad(cx: &mut Cx, a: &Normal) -> Result<[ValueId; 3], Fault> {
    let centred = cx.sub(a.x, a.mean)?;
    let normal = cx.mul(centred, a.inverse)?;
    let product = cx.mul(a.dy, normal)?;
    let dscale = cx.reduced(Reduction::Sum, product, &a.summed)?;
    let dbias = cx.reduced(Reduction::Sum, a.dy, &a.summed)?;
    let weighted = cx.mul(a.dy, a.scale)?;
    let of_mean = cx.reduced(Reduction::Mean, weighted, &a.over)?;
    let correlated = cx.mul(weighted, normal)?;
    let of_deviation = cx.reduced(Reduction::Mean, correlated, &a.over)?;
    let along = cx.mul(normal, of_deviation)?;
    let rest = cx.sub(weighted, of_mean)?;
    let rest = cx.sub(rest, along)?;
    Ok([cx.mul(rest, a.inverse)?, dscale, dbias])
}

/// `dy, x, scale, mean, inverse deviation → dx, dscale, dbias`.
pub(in super::super) fn batch_norm_grad(cx: &mut Cx) -> Built {
    let [dy, x, scale, mean, inverse] = [0, 1, 2, 3, 4].map(|i| cx.input(i));
    let (dy, x, scale) = (dy?, x?, scale?);
    let (ty, like) = (cx.ty(x), cx.ty(scale).shape);
    let over = of_channel(&ty)?;
    let [scale, mean, inverse] = [Ok(scale), mean, inverse].map(|v| per_channel(cx, v?, &ty));
    let a =
        Normal { x, dy, scale: scale?, mean: mean?, inverse: inverse?, summed: over.clone(), over };
    let [dx, dscale, dbias] = grad(cx, &a)?;
    let [dscale, dbias] = [dscale, dbias].map(|v| cx.reshape(v, like.clone()));
    Ok(vec![Some(dx), Some(dscale?), Some(dbias?)])
}

/// `dy, x, scale, mean, inverse deviation → dx, dscale, dbias`.
pub(in super::super) fn layer_norm_grad(cx: &mut Cx) -> Built {
    let at = cx.attributes().int_or("axis", -1)?;
    let [dy, x, scale, mean, inverse] = [0, 1, 2, 3, 4].map(|i| cx.input(i));
    let (dy, x, scale, mean, inverse) = (dy?, x?, scale?, mean?, inverse?);
    let (ty, like) = (cx.ty(x), cx.ty(scale).shape);
    let axis = axis(at, ty.rank())?;
    if like != ty.shape[axis..] {
        return Err(Fault(format!("its scale {like:?} has another shape than what it scales")));
    }
    let (over, summed) = ((axis..ty.rank()).collect(), (0..axis).collect());
    let [dx, dscale, dbias] = grad(cx, &Normal { x, dy, scale, mean, inverse, over, summed })?;
    let [dscale, dbias] = [dscale, dbias].map(|v| cx.reshape(v, like.clone()));
    Ok(vec![Some(dx), Some(dscale?), Some(dbias?)])
}

/// `dy, y → (dy − Σ dy · y) · y`.
pub(in super::super) fn softmax_grad(cx: &mut Cx) -> Built {
    let at = cx.attributes().int_or("axis", -1)?;
    let (dy, y) = (cx.input(0)?, cx.input(1)?);
    let axis = axis(at, cx.ty(y).rank())?;
    let product = cx.mul(dy, y)?;
    let sum = cx.reduced(Reduction::Sum, product, &[axis])?;
    let rest = cx.sub(dy, sum)?;
    Ok(vec![Some(cx.mul(rest, y)?)])
}

/// `dy, y → dy − exp(y) · Σ dy`.
pub(in super::super) fn log_softmax_grad(cx: &mut Cx) -> Built {
    let at = cx.attributes().int_or("axis", -1)?;
    let (dy, y) = (cx.input(0)?, cx.input(1)?);
    let axis = axis(at, cx.ty(y).rank())?;
    let sum = cx.reduced(Reduction::Sum, dy, &[axis])?;
    let probability = cx.map(Unary::Exp, y)?;
    let part = cx.mul(probability, sum)?;
    Ok(vec![Some(cx.sub(dy, part)?)])
}
