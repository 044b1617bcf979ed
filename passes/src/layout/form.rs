//! How each operator works on tensors with their channels last.

use arenic_ir::graph::{Graph, Node};
use arenic_ir::op::Op;
use arenic_ir::op::channels_last::{is_turned, last_axis, to_last};
use arenic_ir::types::TensorType;

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// With its channels last.
    Turned,
    /// Broadcast to what is turned: with axes of extent 1 before its own, then turned.
    Broadcast,
    /// As it is.
    Plain,
}

/// An operator on tensors with their channels last. Results of rank three or more have theirs
/// last, too.
pub(super) struct Form {
    /// The operator.
    pub(super) op: Op,
    /// How it reads each operand.
    pub(super) operands: Vec<Reading>,
    /// The rank of the tensors whose channels are last.
    pub(super) rank: usize,
    /// The operator takes a channels-last tensor as rows of channels, and gives one.
    pub(super) rows: bool,
}

/// The form of a node; `None` if it wants channels second.
pub(super) fn form(g: &Graph, node: &Node) -> Option<Form> {
    let x = g.types_of(&node.inputs);
    let y: Vec<&TensorType> = node.outputs.iter().flatten().map(|&v| g.ty(v)).collect();
    let rank = x.iter().chain(&y).map(|t| t.rank()).max()?;
    if rank < 3 {
        return None;
    }
    let op = node.op.clone();
    let by_rank = |t: &&TensorType| match is_turned(t) {
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
        op if op.may_have_channels_last() => moved(Op::ChannelsLast { of: Box::new(op) }),
        Op::Unary { .. }
        | Op::Binary { .. }
        | Op::Where
        | Op::Clip { .. }
        | Op::Cast { .. }
        | Op::Copy
        | Op::Pointwise { .. } => elementwise(op),
        Op::Expand { shape } => elementwise(Op::Expand { shape: to_last(&shape) }),
        Op::BatchNorm { .. } | Op::BatchNormParamGrad | Op::BatchNormInputGrad => moved(op),
        Op::Reduce { f, axes, keep } => {
            let axes = reduced(rank, &axes, keep)?;
            elementwise(Op::Reduce { f, axes, keep })
        }
        Op::PointwiseReduce { steps, f, axes, keep } => {
            let axes = reduced(rank, &axes, keep)?;
            elementwise(Op::PointwiseReduce { steps, f, axes, keep })
        }
        Op::Concat { axis } => moved(Op::Concat { axis: last_axis(rank, axis) }),
        Op::Pad { starts, steps, shape, value } => moved(Op::Pad {
            starts: to_last(&starts),
            steps: to_last(&steps),
            shape: to_last(&shape),
            value,
        }),
        Op::Slice { starts, steps, shape } => moved(Op::Slice {
            starts: to_last(&starts),
            steps: to_last(&steps),
            shape: to_last(&shape),
        }),
        Op::Resize { mut spec } => {
            spec.sizes = to_last(&spec.sizes);
            spec.scales = to_last(&spec.scales);
            spec.roi = to_last(&spec.roi);
            moved(Op::Resize { spec })
        }
        _ => None,
    }?;
    let rows = matches!(op, Op::BatchNorm { .. } | Op::BatchNormParamGrad | Op::BatchNormInputGrad);
    let fits =
        operands.contains(&Reading::Turned) && y.iter().all(|t| t.rank() == rank || !is_turned(t));
    fits.then_some(Form { op, operands, rank, rows })
}

/// The axes of a reduction where channels are last; `None` if what is left of them would be in
/// another order.
fn reduced(rank: usize, axes: &[usize], keep: bool) -> Option<Vec<usize>> {
    let left: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let in_order = left.iter().map(|&axis| last_axis(rank, axis)).is_sorted();
    let mut axes: Vec<usize> = axes.iter().map(|&axis| last_axis(rank, axis)).collect();
    axes.sort_unstable();
    (keep || in_order && left.len() < 3).then_some(axes)
}
