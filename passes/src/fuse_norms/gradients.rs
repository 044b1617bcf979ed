//! What makes `dy` for the gradients of one normalisation.
//!
//! Take any order of the graph. The fused gradients run one after the other in the place of the node
//! that made `dy`, which is possible where all else that they read is there by then: that of the
//! operand has the bytes of `dy`, and is alive from there on instead of it, in the place of what `dy`
//! was in the place of. Gradients of scale and bias, which wait for their readers, are a small
//! fraction of it.

use super::{Fused, Input};
use crate::fuse_elementwise::{Rule, steps};
use crate::rewrite::{GraphView, Group};
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Graph, NodeId, ValueId};
use arenic_ir::op::fused_norm::DY;
use arenic_ir::op::{Op, Step};
use arenic_ir::types::DType;

/// All gradients that are fused.
pub(super) fn all(view: &GraphView, target: TargetInfo) -> Vec<Fused> {
    view.g.nodes.keys().filter_map(|n| of_one(view, n, target)).flatten().collect()
}

/// The gradients of one normalisation whose `dy` a node makes.
fn of_one(view: &GraphView, n: NodeId, target: TargetInfo) -> Option<Vec<Fused>> {
    let g = view.g;
    let dy = g.result(n)?;
    let readers = &view.readers[dy];
    if view.kept[dy] || !are_of_one_norm(g, readers) {
        return None;
    }
    let (steps, read) = made(view, n)?;
    // Computed twice, a function may take longer than the bytes.
    if readers.len() > 1 && steps.iter().any(Step::is_dear) {
        return None;
    }
    let fused = readers.iter().map(|&reader| fused(g, reader, dy, &steps, &read));
    let fused = fused.collect::<Option<Vec<Fused>>>()?;
    let mut bytes = 0u64;
    for of in &fused {
        bytes = bytes.saturating_add(of.bytes(g, &of.results(g, target)?));
    }
    let apart = readers.iter().chain([&n]).map(|&n| g.work(n).bytes).fold(0, u64::saturating_add);
    let group: Group = readers.iter().copied().chain([n]).collect();
    let rule = Rule::new(view, n);
    let is_little =
        |&n: &NodeId| g.nodes[n].outputs.iter().flatten().all(|&v| rule.is_negligible(v));
    let fits = readers.iter().all(|n| is_of_operand(g, *n) || is_little(n));
    (bytes <= apart && fits && rule.all_there(&group, n)).then_some(fused)
}

/// What a node computes as steps, of which a cast that widens has none.
fn made(view: &GraphView, n: NodeId) -> Option<(Vec<Step>, Vec<ValueId>)> {
    let node = &view.g.nodes[n];
    match (&node.op, &node.inputs[..]) {
        (Op::Cast { to: DType::F32 }, &[x]) if view.g.ty(x).dtype == DType::Bf16 => {
            Some((Vec::new(), vec![x]))
        }
        _ => steps(view, n),
    }
}

/// True for the gradient of the operand of a normalisation, that of its parameters, or both.
fn are_of_one_norm(g: &Graph, readers: &[NodeId]) -> bool {
    let of_layers = |n: &NodeId| match g.nodes[*n].op {
        Op::LayerNormInputGrad { .. } | Op::LayerNormParamGrad { .. } => Some(true),
        Op::BatchNormInputGrad | Op::BatchNormParamGrad => Some(false),
        _ => None,
    };
    let x = |n: &NodeId| g.resolve(g.nodes[*n].inputs[0]).root;
    match readers {
        [one] => of_layers(one).is_some(),
        [one, two] => {
            let differ = g.nodes[*one].op.name() != g.nodes[*two].op.name();
            differ
                && of_layers(one).is_some()
                && of_layers(one) == of_layers(two)
                && x(one) == x(two)
        }
        _ => false,
    }
}

fn is_of_operand(g: &Graph, n: NodeId) -> bool {
    matches!(g.nodes[n].op, Op::LayerNormInputGrad { .. } | Op::BatchNormInputGrad)
}

/// A gradient that computes its `dy`; none where it reads it as something else, too, or in parts.
fn fused(g: &Graph, n: NodeId, dy: ValueId, steps: &[Step], read: &[ValueId]) -> Option<Fused> {
    let node = &g.nodes[n];
    let is_dy = |&v: &ValueId| g.resolve(v).root == dy;
    let x = g.ty(node.inputs[0]);
    let at_its_place =
        node.inputs.iter().filter(|v| is_dy(v)).count() == 1 && is_dy(&node.inputs[DY]);
    if !at_its_place || g.ty(dy).elements() != x.elements() {
        return None;
    }
    let own = node.inputs.iter().filter(|v| !is_dy(v)).map(|&v| Some(Input::whole(g, v)));
    let others = read.iter().map(|&v| Input::of_steps(g, v, &g.ty(dy).shape, &x.shape));
    let inputs = own.chain(others).collect::<Option<Vec<Input>>>()?;
    let op = Op::FusedNormGrad { of: Box::new(node.op.clone()), steps: steps.to_vec() };
    Some(Fused { of: n, at: n, op, inputs, result: None })
}
