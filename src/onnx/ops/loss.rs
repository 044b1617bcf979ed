//! Cross entropies and their gradients.
//!
//! They are written as PyTorch's exporter writes them, which is what `fuse_cross_entropy` knows.

use super::compose::Made;
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Reduction, Scatter, Unary};
use arenic_ir::{DType, Op, ValueId};

pub(super) const ROWS: &[Row] = &[
    row(
        "NegativeLogLikelihoodLoss",
        (2, 3),
        &["ignore_index", "reduction"],
        negative_log_likelihood,
    ),
    row("SoftmaxCrossEntropyLoss", (2, 3), &["ignore_index", "reduction"], softmax_cross_entropy),
];

/// How the losses of all elements become one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Combine {
    None,
    Sum,
    Mean,
}

fn combine(cx: &Cx) -> Result<Combine, Fault> {
    let words = [("none", Combine::None), ("sum", Combine::Sum), ("mean", Combine::Mean)];
    cx.attributes().one_of("reduction", "mean", &words)
}

/// Labels and what each element counts for.
struct Targets {
    /// With an axis of classes of extent 1, and 0 where the element is ignored.
    classes: ValueId,
    /// Of the labels' shape with the axis of classes; none where each counts for one.
    weights: Option<ValueId>,
    /// Which elements are not ignored, in the same shape; none where all count.
    counted: Option<ValueId>,
}

/// Class labels `labels` for scores of shape `[N, C, …]`, with class weights where given.
fn targets(
    cx: &mut Cx,
    scores: ValueId,
    labels: ValueId,
    weights: Option<ValueId>,
    ignored: Option<i64>,
) -> Result<Targets, Fault> {
    let (scores, ty) = (cx.ty(scores), cx.ty(labels));
    if scores.rank() < 2 || !matches!(ty.dtype, DType::I32 | DType::I64) {
        return Err(Fault(format!("scores {scores} and labels {ty} do not fit")));
    }
    let mut shape = scores.shape.clone();
    shape[1] = 1;
    let without = [&shape[..1], &shape[2..]].concat();
    if ty.shape != without {
        return Err(Fault(format!("labels {ty} do not fit scores {scores}")));
    }
    let mut classes = cx.reshape(labels, shape.clone())?;
    let (mut counts, mut all_counted) = (None, None);
    if let Some(ignored) = ignored {
        let ignored = cx.scalar(ty.dtype, ignored as f64);
        let is_ignored = cx.both(Binary::Equal, classes, ignored)?;
        let first = cx.scalar(ty.dtype, 0.0);
        classes = cx.select(is_ignored, first, classes)?;
        let counted = cx.map(Unary::Not, is_ignored)?;
        counts = Some(cx.cast(counted, scores.dtype)?);
        all_counted = Some(counted);
    }
    let weights = match weights {
        None => counts,
        Some(w) => {
            let each = cx.emit1(Op::Gather { axis: 0 }, vec![w, classes])?;
            Some(match counts {
                Some(counts) => cx.mul(each, counts)?,
                None => each,
            })
        }
    };
    Ok(Targets { classes, weights, counted: all_counted })
}

/// The loss of log probabilities.
fn loss(cx: &mut Cx, log: ValueId, targets: &Targets, combine: Combine) -> Made {
    let ty = cx.ty(log);
    let picked = cx.emit1(Op::GatherElements { axis: 1 }, vec![log, targets.classes])?;
    let mut each = cx.map(Unary::Neg, picked)?;
    if let Some(w) = targets.weights {
        each = cx.mul(each, w)?;
    }
    if let Some(counted) = targets.counted {
        // Not by the weight of zero: what is ignored may be infinite.
        let zero = cx.scalar(ty.dtype, 0.0);
        each = cx.select(counted, each, zero)?;
    }
    let all: Vec<usize> = (0..ty.rank()).collect();
    match (combine, targets.weights) {
        (Combine::None, _) => cx.reshape(each, [&ty.shape[..1], &ty.shape[2..]].concat()),
        (Combine::Sum, _) => cx.without(Reduction::Sum, each, &all),
        (Combine::Mean, None) => cx.without(Reduction::Mean, each, &all),
        (Combine::Mean, Some(w)) => {
            let (sum, weight) =
                (cx.without(Reduction::Sum, each, &all)?, cx.without(Reduction::Sum, w, &all)?);
            cx.div(sum, weight)
        }
    }
}

/// The label that counts for nothing, an attribute or an operand.
fn ignored(cx: &mut Cx, operand: Option<usize>) -> Result<Option<i64>, Fault> {
    if let Some(i) = operand
        && let Some(list) = cx.ints(i)?
    {
        return Ok(list.first().copied());
    }
    cx.attributes().int("ignore_index")
}

/// `scores, labels[, weights] → loss, log probabilities`, of both domains.
pub(super) fn softmax_cross_entropy(cx: &mut Cx) -> Built {
    let combine = combine(cx)?;
    let (scores, labels, weights) = (cx.input(0)?, cx.input(1)?, cx.optional(2)?);
    let ignored = ignored(cx, (cx.node.op == "SoftmaxCrossEntropyLossInternal").then_some(3))?;
    let targets = targets(cx, scores, labels, weights, ignored)?;
    let log = cx.emit1(Op::LogSoftmax { axis: 1 }, vec![scores])?;
    Ok(vec![Some(loss(cx, log, &targets, combine)?), Some(log)])
}

fn negative_log_likelihood(cx: &mut Cx) -> Built {
    let combine = combine(cx)?;
    let (log, labels, weights) = (cx.input(0)?, cx.input(1)?, cx.optional(2)?);
    let ignored = ignored(cx, None)?;
    let targets = targets(cx, log, labels, weights, ignored)?;
    Ok(vec![Some(loss(cx, log, &targets, combine)?)])
}

/// `dy, log probabilities, labels[, weights] → dscores`.
pub(super) fn softmax_cross_entropy_grad(cx: &mut Cx) -> Built {
    let combine = combine(cx)?;
    let (dy, log, labels, weights) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.optional(3)?);
    let internal = cx.node.op == "SoftmaxCrossEntropyLossInternalGrad";
    let bias = if internal { cx.optional(5)? } else { cx.optional(4)? };
    if bias.is_some() {
        return Err("a bias of the gradient is not supported".into());
    }
    let ignored = ignored(cx, internal.then_some(4))?;
    let Targets { classes, weights, .. } = targets(cx, log, labels, weights, ignored)?;
    let ty = cx.ty(log);
    let rows = cx.ty(classes);
    // What an element's loss counts for in the end.
    let mut each = match combine {
        Combine::None => cx.reshape(dy, rows.shape.clone())?,
        Combine::Sum | Combine::Mean => cx.as_scalar(dy)?,
    };
    if combine == Combine::Mean {
        each = match weights {
            None => cx.with(Binary::Div, each, rows.elements() as f64)?,
            Some(w) => {
                let all: Vec<usize> = (0..rows.rank()).collect();
                let sum = cx.without(Reduction::Sum, w, &all)?;
                cx.div(each, sum)?
            }
        };
    }
    if let Some(w) = weights {
        each = cx.mul(each, w)?;
    }
    let each = cx.map(Unary::Neg, each)?;
    let each = cx.emit1(Op::Expand { shape: rows.shape.clone() }, vec![each])?;
    let zeros = cx.zeros(&ty)?;
    let scatter = Op::ScatterElements { axis: 1, reduction: Scatter::Replace };
    let at_target = cx.emit1(scatter, vec![zeros, classes, each])?;
    let of_row = cx.reduced(Reduction::Sum, at_target, &[1])?;
    let probability = cx.map(Unary::Exp, log)?;
    let rest = cx.mul(probability, of_row)?;
    Ok(vec![Some(cx.sub(at_target, rest)?)])
}
