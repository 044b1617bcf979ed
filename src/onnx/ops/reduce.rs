//! Reductions.

use super::{Row, row};
use crate::onnx::context::{Built, Cx, axes};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Reduction, Unary};
use arenic_ir::{DType, Op, ValueId};

pub(super) const REDUCE: &[&str] = &["axes", "keepdims", "noop_with_empty_axes"];

pub(super) const ROWS: &[Row] = &[
    row("ReduceL1", (1, 2), REDUCE, reduce),
    row("ReduceL2", (1, 2), REDUCE, reduce),
    row("ReduceLogSum", (1, 2), REDUCE, reduce),
    row("ReduceLogSumExp", (1, 2), REDUCE, reduce),
    row("ReduceMax", (1, 2), REDUCE, reduce),
    row("ReduceMean", (1, 2), REDUCE, reduce),
    row("ReduceMin", (1, 2), REDUCE, reduce),
    row("ReduceProd", (1, 2), REDUCE, reduce),
    row("ReduceSum", (1, 2), REDUCE, reduce),
    row("ReduceSumSquare", (1, 2), REDUCE, reduce),
];

/// What a node reduces.
struct Along {
    axes: Vec<usize>,
    keep: bool,
}

impl Along {
    fn op(&self, f: Reduction) -> Op {
        Op::Reduce { f, axes: self.axes.clone(), keep: self.keep }
    }
}

/// The axes come as an operand or, in older versions, as an attribute.
fn along(cx: &mut Cx, rank: usize) -> Result<Along, Fault> {
    let a = cx.attributes();
    let given = match (cx.ints(1)?, a.ints("axes")?) {
        (Some(_), Some(_)) => return Err("axes both as an operand and as an attribute".into()),
        (Some(list), None) => list,
        (None, list) => list.unwrap_or_default().to_vec(),
    };
    let axes = match &given[..] {
        [] if a.flag("noop_with_empty_axes", false)? => Vec::new(),
        [] => (0..rank).collect(),
        list => axes(list, rank)?,
    };
    Ok(Along { axes, keep: a.flag("keepdims", true)? })
}

pub(super) fn reduce(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let along = along(cx, ty.rank())?;
    let unary = |cx: &mut Cx, f, x| cx.emit1(Op::Unary { f }, vec![x]);
    let square = |cx: &mut Cx, x| cx.emit1(Op::Binary { f: Binary::Mul }, vec![x, x]);
    let sum = |cx: &mut Cx, x| cx.emit1(along.op(Reduction::Sum), vec![x]);
    let y = match cx.node.op {
        "ReduceMean" => cx.emit1(along.op(Reduction::Mean), vec![x])?,
        "ReduceMin" => extreme(cx, x, along.op(Reduction::Min))?,
        "ReduceMax" => extreme(cx, x, along.op(Reduction::Max))?,
        "ReduceProd" => cx.emit1(along.op(Reduction::Prod), vec![x])?,
        "ReduceL1" => {
            let x = unary(cx, Unary::Abs, x)?;
            sum(cx, x)?
        }
        "ReduceSumSquare" => {
            let x = square(cx, x)?;
            sum(cx, x)?
        }
        "ReduceL2" => {
            let x = square(cx, x)?;
            let x = sum(cx, x)?;
            cx.norm_of(x)?
        }
        "ReduceLogSum" => {
            let x = sum(cx, x)?;
            unary(cx, Unary::Log, x)?
        }
        "ReduceLogSumExp" => log_sum_exp(cx, x, &along)?,
        _ => sum(cx, x)?,
    };
    Ok(vec![Some(y)])
}

/// Least or largest element; of bools too.
fn extreme(cx: &mut Cx, x: ValueId, op: Op) -> Result<ValueId, Fault> {
    if cx.ty(x).dtype != DType::Bool {
        return cx.emit1(op, vec![x]);
    }
    let x = cx.cast(x, DType::U8)?;
    let y = cx.emit1(op, vec![x])?;
    cx.cast(y, DType::Bool)
}

/// With the maximum taken out first, so that no exponential overflows. A row whose maximum is
/// infinite has no other result than that.
fn log_sum_exp(cx: &mut Cx, x: ValueId, along: &Along) -> Result<ValueId, Fault> {
    let ty = cx.ty(x);
    let unary = |cx: &mut Cx, f, x| cx.emit1(Op::Unary { f }, vec![x]);
    if ty.shape.contains(&0) {
        let x = unary(cx, Unary::Exp, x)?;
        let x = cx.emit1(along.op(Reduction::Sum), vec![x])?;
        return unary(cx, Unary::Log, x);
    }
    let max = cx.reduced(Reduction::Max, x, &along.axes)?;
    let magnitude = cx.map(Unary::Abs, max)?;
    let is_infinite = cx.with(Binary::Equal, magnitude, f64::INFINITY)?;
    let zero = cx.scalar(ty.dtype, 0.0);
    let centre = cx.select(is_infinite, zero, max)?;
    let rest = cx.sub(x, centre)?;
    let rest = cx.map(Unary::Exp, rest)?;
    let rest = cx.reduced(Reduction::Sum, rest, &along.axes)?;
    let rest = cx.map(Unary::Log, rest)?;
    let finite = cx.add(rest, centre)?;
    let y = cx.select(is_infinite, max, finite)?;
    let axes = if along.keep { &[][..] } else { &along.axes[..] };
    let left = (0..ty.rank()).filter(|i| !axes.contains(i));
    let shape = cx.ty(y).shape;
    cx.reshape(y, left.map(|i| shape[i]).collect())
}
