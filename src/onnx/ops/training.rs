//! ai.onnx.preview.training. Of the optimizers, one update per parameter, so that each can run as
//! soon as its gradient exists. A `Gradient` names tensors, not operands (`FlatNode::named`), and becomes nodes while
//! the graph is built.

use super::{ANY, Row, row};
use crate::evaluator::Kernels;
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::{DType, Op};
use arenic_passes::differentiate::Function;

pub(super) const ROWS: &[Row] = &[
    row("Adagrad", (2, ANY), &["decay_factor", "epsilon", "norm_coefficient"], adagrad).training(),
    row(
        "Adam",
        (2, ANY),
        &["alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"],
        adam,
    )
    .training(),
    row("Gradient", (1, ANY), &["xs", "y", "zs"], gradient).training(),
    row("Momentum", (2, ANY), &["alpha", "beta", "mode", "norm_coefficient"], momentum).training(),
];

/// Reverse mode over what the graph has so far.
pub(super) fn gradient(cx: &mut Cx) -> Built {
    let Some(named) = &cx.node.named else { return Err("its attributes name nothing".into()) };
    let at = cx.inputs()?;
    if at.len() != named.xs.len() + named.zs.len() {
        return Err(Fault(format!(
            "it has {} operands for {} names in `xs` and {} in `zs`",
            at.len(),
            named.xs.len(),
            named.zs.len()
        )));
    }
    let mut all = |list: &[_]| list.iter().map(|&t| cx.made(t)).collect::<Result<Vec<_>, _>>();
    let (xs, zs) = (all(&named.xs)?, all(&named.zs)?);
    let y = cx.made(named.y)?;
    let floats = xs.iter().chain([&y]).map(|&v| cx.ty(v));
    if let Some(ty) = floats.into_iter().find(|ty| !ty.dtype.is_float()) {
        return Err(Fault(format!("there is no gradient of {ty}")));
    }
    let function = Function { y, xs, zs };
    let gradients = function.gradients(&mut cx.b.g, &at, Some(&Kernels));
    Ok(gradients.map_err(|e| Fault(e.to_string()))?.into_iter().map(Some).collect())
}

pub(super) fn adam(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let op = Op::Adam {
        alpha: a.float_or("alpha", 0.9)?,
        beta: a.float_or("beta", 0.999)?,
        epsilon: a.float_or("epsilon", 1e-6)?,
        norm_coefficient: a.float_or("norm_coefficient", 0.0)?,
        norm_coefficient_post: a.float_or("norm_coefficient_post", 0.0)?,
    };
    updates(cx, &op, 2)
}

fn adagrad(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let op = Op::Adagrad {
        decay_factor: a.float_or("decay_factor", 0.0)?,
        epsilon: a.float_or("epsilon", 1e-6)?,
        norm_coefficient: a.float_or("norm_coefficient", 0.0)?,
    };
    updates(cx, &op, 1)
}

pub(super) fn momentum(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let required = |name: &str| -> Result<f32, Fault> {
        a.float(name)?.ok_or_else(|| format!("attribute `{name}` is missing").into())
    };
    let op = Op::Momentum {
        alpha: required("alpha")?,
        beta: required("beta")?,
        nesterov: a.one_of("mode", "", &[("standard", false), ("nesterov", true)])?,
        norm_coefficient: required("norm_coefficient")?,
    };
    updates(cx, &op, 1)
}

/// Operands are the learning rate, the count, then all parameters, all gradients and
/// all of each of `slots` slots; results are all parameters, then all of each slot.
fn updates(cx: &mut Cx, op: &Op, slots: usize) -> Built {
    let groups = 2 + slots;
    let inputs = cx.inputs()?;
    let Some(tensors) = inputs.get(2..).filter(|t| t.len().is_multiple_of(groups)) else {
        return Err(format!(
            "{} operands are no learning rate, count and {groups} tensors per parameter",
            inputs.len()
        )
        .into());
    };
    let n = tensors.len() / groups;
    let mut results = vec![None; n * (1 + slots)];
    for i in 0..n {
        let dtype = cx.ty(tensors[i]).dtype;
        let mut operands = vec![cx.cast(inputs[0], dtype)?, cx.cast(inputs[1], DType::I64)?];
        operands.extend((0..groups).map(|k| tensors[k * n + i]));
        for (k, v) in cx.emit(op.clone(), operands)?.into_iter().enumerate() {
            results[k * n + i] = Some(v);
        }
    }
    Ok(results)
}
