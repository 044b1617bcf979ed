//! Operators in the place of what was found.

use super::backward::Backward;
use super::forward::Forward;
use super::mask::{By, Mask};
use super::matrices::{Matrix, exchanges_last_two, regrouped, same_matrices};
use crate::PassError;
use crate::rewrite::Editor;
use arenic_ir::graph::{Def, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op};
use arenic_ir::types::{DType, TensorType, broadcast_shapes};
use std::cmp::Ordering;

/// Puts operators in the place of an attention and its gradient.
pub(super) fn replace(e: &mut Editor, f: &Forward, b: Option<&Backward>) -> Result<(), PassError> {
    let dtype = e.g.ty(f.p).dtype;
    let types = f.types(dtype);
    let mut operands = Vec::new();
    for (x, ty) in [f.q, f.k, f.v].into_iter().zip(&types) {
        operands.push(dense(e, f.last, x, ty)?);
    }
    if let Some((factor, scores)) = &f.factor {
        let own = e.g.ty(*factor).shape.clone();
        let shape = regrouped(&own, scores, &f.shape).unwrap_or(own);
        let factor = e.reshaped(f.last, *factor, &shape)?;
        let operation = Op::Binary { f: Binary::Mul };
        operands[0] = e.value(f.last, operation, vec![operands[0], factor])?;
    }
    let masks = masks(e, f, dtype)?;
    let all = [&operands[..], &masks].concat();
    let [o, max, sum] = e.node(f.last, Op::Attention { spec: f.spec }, all)?[..] else {
        return Ok(());
    };
    if let Some(old) = e.g.result(f.last) {
        e.replace(f.last, old, o)?;
    }
    let Some(b) = b else { return Ok(()) };
    let dy = dense(e, b.first, b.dy, &e.g.ty(o).clone())?;
    let all = [&operands[..], &[max, sum, dy], &masks].concat();
    let of_mask = b.of_mask.is_some();
    let op = Op::AttentionGrad { spec: f.spec, of_mask, has_result: false };
    let gradients = e.node(b.first, op, all)?;
    if let (Some((n, old)), Some(&x)) = (b.of_mask, gradients.get(3)) {
        e.replace(n, old, x)?;
    }
    for (found, x) in b.products.iter().zip(gradients) {
        let Some((n, trans)) = *found else { continue };
        let Some(old) = e.g.result(n) else { continue };
        let new = if trans {
            let perm = last_two_exchanged((0..e.g.ty(x).rank()).collect());
            turn_readers(e, old, x)?;
            e.value(n, Op::Transpose { perm }, vec![x])?
        } else {
            x
        };
        e.replace(n, old, new)?;
    }
    Ok(())
}

/// The operands for the masks: first the sum of those that are trained. Others are added up where that has the
/// shape of one of them, and where an attention has no operand for one more.
fn masks(e: &mut Editor, f: &Forward, dtype: DType) -> Result<Vec<ValueId>, PassError> {
    let mut operands: Vec<ValueId> = Vec::new();
    for (i, mask) in f.masks.iter().enumerate() {
        let next = added(e, f, mask, dtype)?;
        let Some(&last) = operands.last() else {
            operands.push(next);
            continue;
        };
        let [a, b] = [last, next].map(|x| &e.g.ty(x).shape);
        let is_small = broadcast_shapes(a, b).is_some_and(|sum| sum == *a || sum == *b);
        let joins = match i.cmp(&f.trained) {
            Ordering::Less => true,
            Ordering::Equal if i > 0 => false,
            _ => is_small || operands.len() > 1,
        };
        if joins {
            operands.pop();
        }
        let x = match joins {
            true => e.value(f.last, Op::Binary { f: Binary::Add }, vec![last, next])?,
            false => next,
        };
        operands.push(x);
    }
    Ok(operands)
}

/// What is added to scores for a mask. What a mask repeats along the batch, it broadcasts.
fn added(e: &mut Editor, f: &Forward, mask: &Mask, dtype: DType) -> Result<ValueId, PassError> {
    let x = once(e, f, mask, dtype)?;
    match mask.moved(&e.g.ty(x).shape, &f.shape) {
        Some(shape) => e.reshaped(f.last, x, &shape),
        None => Ok(x),
    }
}

/// The same among the scores that the mask was written for.
fn once(e: &mut Editor, f: &Forward, mask: &Mask, dtype: DType) -> Result<ValueId, PassError> {
    let moves = |e: &Editor, x: ValueId| mask.moved(&e.g.ty(x).shape, &f.shape).is_some();
    let (condition, [a, b]) = match mask.by {
        By::Where(condition, counts, low) => {
            let [zero, low] = [0.0, low].map(|x| e.constant(TensorType::scalar(dtype), x));
            (condition, if counts { [zero, low] } else { [low, zero] })
        }
        By::Added(x) => match node(e, x) {
            Some(Node { op: Op::Expand { .. }, inputs, .. }) if moves(e, inputs[0]) => {
                return Ok(inputs[0]);
            }
            Some(Node { op: Op::Where, inputs, .. })
                if inputs[1..].iter().all(|&x| e.g.ty(x).elements() == 1) =>
            {
                (inputs[0], [inputs[1], inputs[2]])
            }
            _ => return Ok(x),
        },
    };
    let once = match node(e, condition) {
        Some(Node { op: Op::Expand { .. }, inputs, .. }) if moves(e, inputs[0]) => inputs[0],
        _ => condition,
    };
    match mask.by {
        By::Added(x) if once == condition => Ok(x),
        _ => e.value(f.last, Op::Where, vec![once, a, b]),
    }
}

/// The node that makes a value.
fn node(e: &Editor, x: ValueId) -> Option<Node> {
    match e.g.values[x].def {
        Def::Node { node, output: 0 } => Some(e.g.nodes[node].clone()),
        _ => None,
    }
}

/// Lets transposes that read `result`, of which `x` is the transpose, read that.
fn turn_readers(e: &mut Editor, result: ValueId, x: ValueId) -> Result<(), PassError> {
    for n in e.g.nodes.keys().collect::<Vec<_>>() {
        let Node { op: Op::Transpose { perm }, inputs, .. } = &e.g.nodes[n] else { continue };
        if same_matrices(e.g, inputs[0]) != result {
            continue;
        }
        let perm = last_two_exchanged(perm.clone());
        let mut shape = e.g.ty(inputs[0]).shape.clone();
        let last = shape.len() - 1;
        shape.swap(last - 1, last);
        let operand = e.reshaped(n, x, &shape)?;
        let node = &mut e.g.nodes[n];
        (node.op, node.inputs) = (Op::Transpose { perm }, vec![operand]);
    }
    Ok(())
}

/// A batch of matrices as a value of this type, by nodes just before `at` where needed.
fn dense(e: &mut Editor, at: NodeId, x: Matrix, ty: &TensorType) -> Result<ValueId, PassError> {
    let x = if x.trans { turned(e, at, x.of)? } else { x.of };
    e.reshaped(at, x, &ty.shape)
}

/// The transpose of a batch of matrices. That of a transpose, perhaps scaled, is another
/// permutation of what it is of.
fn turned(e: &mut Editor, at: NodeId, x: ValueId) -> Result<ValueId, PassError> {
    let x = same_matrices(e.g, x);
    match node(e, x) {
        Some(Node { op: Op::Transpose { mut perm }, inputs, .. }) => {
            let rank = perm.len();
            perm.swap(rank - 2, rank - 1);
            if perm.is_sorted() {
                return Ok(inputs[0]);
            }
            e.value(at, Op::Transpose { perm }, inputs)
        }
        Some(Node { op: op @ Op::Binary { f: Binary::Mul | Binary::Div }, inputs, .. })
            if e.g.ty(inputs[1]).elements() == 1
                && is_turned(e, inputs[0])
                && e.g.ty(inputs[0]).shape == e.g.ty(x).shape =>
        {
            let first = turned(e, at, inputs[0])?;
            e.value(at, op, vec![first, inputs[1]])
        }
        _ => {
            let perm = last_two_exchanged((0..e.g.ty(x).rank()).collect());
            e.value(at, Op::Transpose { perm }, vec![x])
        }
    }
}

/// True for the result of a transpose that exchanges the last two axes.
fn is_turned(e: &Editor, x: ValueId) -> bool {
    let of = node(e, same_matrices(e.g, x));
    matches!(of, Some(Node { op: Op::Transpose { perm }, .. }) if exchanges_last_two(&perm))
}

/// A permutation of a tensor as one of its transpose: the last two axes change their numbers.
fn last_two_exchanged(mut perm: Vec<usize>) -> Vec<usize> {
    let last = perm.len() - 1;
    for p in &mut perm {
        *p = match *p {
            p if p == last => last - 1,
            p if p + 1 == last => last,
            p => p,
        };
    }
    perm
}
