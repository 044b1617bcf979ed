//! What alone reads a normalisation's result.
//!
//! The fused node takes the place of the normalisation where all that is read is there by then,
//! with its result instead of the normalisation's; else that of the elementwise node, and what is
//! normalised is kept instead of the result until then ([`Rule::takes_up`]).

use super::{Fused, Input};
use crate::fuse_elementwise::{Rule, steps};
use crate::rewrite::GraphView;
use arenic_ir::TargetInfo;
use arenic_ir::graph::{NodeId, ValueId};
use arenic_ir::op::{Op, Step};
use arenic_ir::types::DType;
use std::collections::HashSet;

/// All normalisations with their readers. The last ones come first: of two whose results are added
/// up, the other's result is there before them.
pub(super) fn all(view: &GraphView, target: TargetInfo) -> Vec<Fused> {
    let mut taken = HashSet::new();
    let mut found = Vec::new();
    for n in view.g.nodes.keys().rev() {
        if let Some((fused, reader)) = result(view, n, target)
            && taken.insert(reader)
        {
            found.push(fused);
        }
    }
    found
}

/// A normalisation with the node that alone reads its result.
fn result(view: &GraphView, n: NodeId, target: TargetInfo) -> Option<(Fused, NodeId)> {
    let g = view.g;
    let of = &g.nodes[n].op;
    if !matches!(of, Op::LayerNorm { .. } | Op::BatchNorm { .. }) {
        return None;
    }
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
