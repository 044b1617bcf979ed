//! Normalisations as training has them, and their gradients.

use crate::onnx::context::{Built, Cx, axis};
use crate::onnx::error::Fault;
use arenic_ir::{Op, ValueId};

/// The first `N` operands.
fn operands<const N: usize>(cx: &mut Cx) -> Result<[ValueId; N], Fault> {
    let all = (0..N).map(|i| cx.input(i)).collect::<Result<Vec<_>, _>>()?;
    all.try_into().map_err(|_| "operands are missing".into())
}

/// `x, scale, bias, mean, var → y, mean', var', batch mean, batch inverse deviation`.
pub(in super::super) fn batch_norm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (epsilon, momentum) = (a.float_or("epsilon", 1e-5)?, a.float_or("momentum", 0.9)?);
    if !a.flag("training_mode", false)? {
        return Err("attribute `training_mode` is 0; only 1 is supported".into());
    }
    let [x, scale, bias, old_mean, old_var] = operands(cx)?;
    let results = cx.emit(Op::BatchNorm { epsilon }, vec![x, scale, bias])?;
    let [y, mean, var, inverse] = results[..] else { return Err("it has no results".into()) };
    let mut running = |old, new| {
        let (old, new) = (cx.times(old, momentum.into())?, cx.times(new, (1.0 - momentum).into())?);
        cx.add(old, new)
    };
    let (next_mean, next_var) = (running(old_mean, mean)?, running(old_var, var)?);
    Ok([y, next_mean, next_var, mean, inverse].map(Some).to_vec())
}

/// `dy, x, scale, mean, inverse deviation → dx, dscale, dbias`.
pub(in super::super) fn batch_norm_grad(cx: &mut Cx) -> Built {
    let [dy, x, scale, mean, inverse] = operands(cx)?;
    let sums = cx.emit(Op::BatchNormParamGrad, vec![x, dy, mean, inverse])?;
    let [dscale, dbias] = sums[..] else { return Err("it has no results".into()) };
    let read = vec![x, dy, scale, mean, inverse, dscale, dbias];
    let dx = cx.emit1(Op::BatchNormInputGrad, read)?;
    Ok([dx, dscale, dbias].map(Some).to_vec())
}

/// `dy, x, scale, mean, inverse deviation → dx, dscale, dbias`.
pub(in super::super) fn layer_norm_grad(cx: &mut Cx) -> Built {
    let at = cx.attributes().int_or("axis", -1)?;
    let [dy, x, scale, mean, inverse] = operands(cx)?;
    let (ty, like) = (cx.ty(x), cx.ty(scale).shape);
    let axis = axis(at, ty.rank())?;
    if like != ty.shape[axis..] {
        return Err(Fault(format!("its scale {like:?} has another shape than what it scales")));
    }
    let sums = cx.emit(Op::LayerNormParamGrad { axis }, vec![x, dy, mean, inverse])?;
    let read = vec![x, dy, scale, mean, inverse];
    let dx = cx.emit1(Op::LayerNormInputGrad { axis }, read)?;
    Ok([Some(dx)].into_iter().chain(sums.into_iter().map(Some)).collect())
}

/// `dy, y → dx`.
pub(in super::super) fn softmax_grad(cx: &mut Cx) -> Built {
    let at = cx.attributes().int_or("axis", -1)?;
    let [dy, y] = operands(cx)?;
    let axis = axis(at, cx.ty(y).rank())?;
    let log = cx.node.op == "LogSoftmaxGrad_13";
    cx.whole(if log { Op::LogSoftmaxGrad { axis } } else { Op::SoftmaxGrad { axis } }, vec![y, dy])
}
