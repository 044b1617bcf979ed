//! What alone reads the result of a normalisation, or of the gradient of its operand.
//!
//! The fused node takes the place of the normalisation where all that is read is there by then,
//! with its result instead of the normalisation's; else that of the elementwise node, and what is
//! normalised is kept instead of the result until then ([`Rule::takes_up`]).

use super::{Fused, Input};
use crate::PassError;
use crate::fuse_elementwise::{Rule, steps};
use crate::rewrite::{Editor, GraphView};
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Op, Step};
use arenic_ir::types::DType;
use std::collections::HashSet;

/// True for normalisations.
pub(super) fn is_norm(op: &Op) -> bool {
    matches!(op, Op::LayerNorm { .. } | Op::BatchNorm { .. })
}

/// True for gradients of what is normalised.
pub(super) fn is_gradient(op: &Op) -> bool {
    match op {
        Op::FusedNormGrad { of, .. } => is_gradient(of),
        op => matches!(op, Op::LayerNormInputGrad { .. } | Op::BatchNormInputGrad),
    }
}

/// All of these operators with their readers. The last ones come first: of two whose results are added
/// up, the other's result is there before them.
pub(super) fn all(
    view: &GraphView,
    target: TargetInfo,
    is_one: impl Fn(&Op) -> bool,
) -> Vec<Fused> {
    let mut taken = HashSet::new();
    let mut found = Vec::new();
    for n in view.g.nodes.keys().rev().filter(|&n| is_one(&view.g.nodes[n].op)) {
        if let Some((fused, reader)) = result(view, n, target)
            && taken.insert(reader)
        {
            found.push(fused);
        }
    }
    found
}

/// Lets sums of gradients be given as `bf16`, too, where somebody casts them; says how many.
pub(super) fn round(g: &mut Graph) -> Result<u64, PassError> {
    let view = GraphView::new(g);
    let mut found: Vec<(NodeId, Vec<NodeId>)> = Vec::new();
    for (n, node) in &g.nodes {
        let Op::FusedNorm { of, rounded: false, .. } = &node.op else { continue };
        let Some(sum) = g.result(n).filter(|_| is_gradient(of)) else { continue };
        let is_cast = |n: &NodeId| {
            let node = &g.nodes[*n];
            let is_whole = g.ty(node.inputs[0]).elements() == g.ty(sum).elements();
            matches!(node.op, Op::Cast { to: DType::Bf16 }) && is_whole
        };
        let casts: Vec<NodeId> = view.readers[sum].iter().copied().filter(is_cast).collect();
        if !casts.is_empty() && g.ty(sum).dtype == DType::F32 {
            found.push((n, casts));
        }
    }
    let mut e = Editor::new(g);
    for (n, casts) in &found {
        let Node { op, inputs, outputs, .. } = e.g.nodes[*n].clone();
        let Op::FusedNorm { of, others, steps, .. } = op else { continue };
        let made = e.node(*n, Op::FusedNorm { of, others, steps, rounded: true }, inputs)?;
        let (old, results) = (outputs.into_iter().flatten(), made.iter());
        for (old, &new) in old.zip(results) {
            e.replace(*n, old, new)?;
        }
        for &cast in casts {
            if let (Some(old), Some(&new)) = (e.g.result(cast), made.last()) {
                e.replace(cast, old, new)?;
            }
        }
    }
    e.finish();
    Ok(found.len() as u64)
}

/// A normalisation with the node that alone reads its result.
fn result(view: &GraphView, n: NodeId, target: TargetInfo) -> Option<(Fused, NodeId)> {
    let g = view.g;
    let of = &g.nodes[n].op;
    let y = g.result(n)?;
    let &[reader] = &view.readers[y][..] else { return None };
    let z = g.result(reader)?;
    let (steps, read) = steps(view, reader)?;
    let (normal, result) = (g.ty(y), g.ty(z));
    if view.kept[y] || normal.elements() != result.elements() {
        return None;
    }
    let is_result = |v: ValueId| g.resolve(v).root == y;
    let mut others = Vec::new();
    for &v in &read {
        // All elements of it, as they are; and no statistic, which is not there before it.
        let in_part = is_result(v) && g.ty(v).shape != result.shape;
        if in_part || !is_result(v) && view.maker(v) == Some(n) {
            return None;
        }
        if !is_result(v) {
            others.push(Input::of_steps(g, v, &result.shape, &normal.shape)?);
        }
    }
    let op = Op::FusedNorm {
        of: Box::new(of.clone()),
        others: others.len(),
        steps: renumbered(&steps, &read, is_result, normal.dtype),
        rounded: false,
    };
    let own = g.nodes[n].inputs.iter().map(|&v| Input::whole(g, v));
    let inputs = own.chain(others).collect();
    let at = place(view, n, reader, &read)?;
    let fused = Fused { of: n, at, op, inputs, result: Some(z) };
    let fits = fused.results(g, target).is_some_and(|y| y[0].dtype == result.dtype);
    (fits && Rule::new(view, reader).takes_up(n)).then_some((fused, reader))
}

/// The steps with the normalisation's result as their first source, and others behind it. What is
/// stored as `bf16` was rounded before they read it.
fn renumbered(
    steps: &[Step],
    read: &[ValueId],
    is_result: impl Fn(ValueId) -> bool,
    stored: DType,
) -> Vec<Step> {
    let others = read.iter().filter(|&&v| !is_result(v)).count();
    let rounds = (stored == DType::Bf16).then_some(Step::Round(0));
    let (first, made) = match rounds {
        Some(_) => (1 + others, 2 + others),
        None => (0, 1 + others),
    };
    let number = |s: usize| match read.get(s) {
        Some(&v) if is_result(v) => first,
        Some(_) => 1 + read[..s].iter().filter(|&&v| !is_result(v)).count(),
        None => made + s - read.len(),
    };
    rounds.into_iter().chain(steps.iter().map(|step| step.over(number))).collect()
}

/// Where the fused node can stand: before all that reads one of its results, behind all that it reads.
fn place(view: &GraphView, n: NodeId, reader: NodeId, read: &[ValueId]) -> Option<NodeId> {
    let g = view.g;
    let outputs = g.nodes[n].outputs.iter().flatten();
    let first = outputs.flat_map(|&v| view.readers[v].first()).min().copied().unwrap_or(reader);
    let is_behind = |&v: &ValueId| view.maker(v).is_none_or(|maker| maker < first);
    read.iter().all(is_behind).then_some(first)
}
