//! How each operator works on tensors whose axes are in another order.

use super::Axes;
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::op::Op;
use arenic_ir::types::TensorType;

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// With its axes in the other order.
    Turned,
    /// Broadcast to what is turned: with axes of extent 1 before its own, then turned.
    Broadcast,
    /// As it is.
    Plain,
}

/// An operator on tensors whose axes are in another order. Its first results are in it, too, where their rank has one.
pub(crate) struct Form {
    /// The operator.
    pub(crate) op: Op,
    /// How it reads each operand.
    pub(crate) operands: Vec<Reading>,
    /// The rank of the tensors in the other order.
    pub(crate) rank: usize,
    /// How many results may be in it.
    pub(super) results: usize,
    /// The operator takes a tensor with its channels last as rows of channels, and gives one.
    pub(super) rows: bool,
}

/// The form of a node; `None` if it wants its axes as they are.
pub(crate) fn form(g: &Graph, n: NodeId, axes: &Axes) -> Option<Form> {
    let node = &g.nodes[n];
    let x = g.types_of(&node.inputs);
    let y: Vec<&TensorType> = node.outputs.iter().flatten().map(|&v| g.ty(v)).collect();
    let widest = x.iter().chain(&y).max_by_key(|t| t.rank())?;
    let rank = widest.rank();
    if !axes.turns(widest) {
        return None;
    }
    let (op, is_last) = (node.op.clone(), *axes == Axes::ChannelsLast);
    let by_rank = |t: &&TensorType| match axes.turns(t) {
        true => Reading::Turned,
        false => Reading::Plain,
    };
    let broadcast = |t: &&TensorType| match t.rank() == rank {
        true => Reading::Turned,
        false if t.elements() == 1 => Reading::Plain,
        false => Reading::Broadcast,
    };
    let moved = |op: Op| Some((op, x.iter().map(by_rank).collect::<Vec<_>>()));
    let elementwise = |op: Op| Some((op, x.iter().map(broadcast).collect::<Vec<_>>()));
    let (op, operands) = match op {
        op if is_last && op.may_have_channels_last() => {
            moved(Op::ChannelsLast { of: Box::new(op) })
        }
        Op::Unary { .. }
        | Op::Binary { .. }
        | Op::Where
        | Op::Clip { .. }
        | Op::Cast { .. }
        | Op::Copy
        | Op::Pointwise { .. } => elementwise(op),
        Op::Expand { shape } if shape.len() == rank => {
            elementwise(Op::Expand { shape: axes.turned(&shape) })
        }
        Op::BatchNorm { .. } | Op::BatchNormParamGrad | Op::BatchNormInputGrad if is_last => {
            moved(op)
        }
        Op::Reduce { f, axes: along, keep } => {
            let along = reduced(axes, rank, &along, keep)?;
            elementwise(Op::Reduce { f, axes: along, keep })
        }
        Op::PointwiseReduce { steps, f, axes: along, keep } => {
            let along = reduced(axes, rank, &along, keep)?;
            elementwise(Op::PointwiseReduce { steps, f, axes: along, keep })
        }
        Op::Concat { axis } => moved(Op::Concat { axis: axes.place(rank, axis) }),
        Op::Pad { starts, steps, shape, value } => moved(Op::Pad {
            starts: axes.turned(&starts),
            steps: axes.turned(&steps),
            shape: axes.turned(&shape),
            value,
        }),
        Op::Slice { starts, steps, shape } => moved(Op::Slice {
            starts: axes.turned(&starts),
            steps: axes.turned(&steps),
            shape: axes.turned(&shape),
        }),
        Op::Attention { .. } | Op::AttentionGrad { .. } => attention(op, x.len(), axes, rank),
        Op::Resize { mut spec } => {
            spec.sizes = axes.turned(&spec.sizes);
            spec.scales = axes.turned(&spec.scales);
            spec.roi = axes.turned(&spec.roi);
            moved(Op::Resize { spec })
        }
        _ => None,
    }?;
    let rows = matches!(op, Op::BatchNorm { .. } | Op::BatchNormParamGrad | Op::BatchNormInputGrad);
    // Masks are not turned, nor is the gradient of one.
    let results = if matches!(op, Op::AttentionGrad { .. }) { 3 } else { y.len() };
    let fits =
        operands.contains(&Reading::Turned) && y.iter().all(|t| t.rank() == rank || !axes.turns(t));
    fits.then_some(Form { op, operands, rank, results, rows })
}

/// An attention of so many operands, or its gradient, with positions before heads.
fn attention(mut op: Op, operands: usize, axes: &Axes, rank: usize) -> Option<(Op, Vec<Reading>)> {
    // Of a gradient also that of the result, and perhaps the result.
    let matrices: &[usize] = match op {
        Op::AttentionGrad { has_result: true, .. } => &[0, 1, 2, 5, 6],
        Op::AttentionGrad { .. } => &[0, 1, 2, 5],
        _ => &[0, 1, 2],
    };
    let (Op::Attention { spec } | Op::AttentionGrad { spec, .. }) = &mut op else { return None };
    let mut exchanged: Vec<usize> = (0..rank).collect();
    exchanged.swap(rank.checked_sub(3)?, rank - 2);
    if *axes != (Axes::By { perm: exchanged, attentions: true }) || spec.positions_first {
        return None;
    }
    spec.positions_first = true;
    let reading = |i: usize| match matrices.contains(&i) {
        true => Reading::Turned,
        false => Reading::Plain,
    };
    Some((op, (0..operands).map(reading).collect()))
}

/// The axes of a reduction on tensors in the other order; `None` if what is left of them would be in
/// another order.
fn reduced(axes: &Axes, rank: usize, along: &[usize], keep: bool) -> Option<Vec<usize>> {
    let left: Vec<usize> = (0..rank).filter(|axis| !along.contains(axis)).collect();
    let in_order = left.iter().map(|&axis| axes.place(rank, axis)).is_sorted();
    let is_turned = match axes {
        Axes::ChannelsLast => left.len() > 2,
        Axes::By { perm, .. } => left.len() == perm.len(),
    };
    let mut along: Vec<usize> = along.iter().map(|&axis| axes.place(rank, axis)).collect();
    along.sort_unstable();
    (keep || in_order && !is_turned).then_some(along)
}
