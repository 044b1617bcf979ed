//! What only a reduction reads becomes a part of it, so that it has no bytes.
//!
//! Sound because the same elements are combined in the same order ([`Op::reduction`]). A fused
//! reduction takes the place of what it reduces: its result is alive from there on instead of all
//! elements. In place of an operand these might have cost nothing, so that by default the result
//! is a small fraction of them.

use super::memory::NEGLIGIBLE;
use super::{Memory, is_elementwise, program};
use crate::rewrite::{GraphView, Group};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Op, Step};
use cranelift_entity::SecondaryMap;

/// A reduction with what it reduces.
struct Fused {
    reduction: NodeId,
    removed: NodeId,
    op: Op,
    inputs: Vec<ValueId>,
}

/// Fuses all reductions of what is elementwise; says how many.
pub(super) fn fuse(g: &mut Graph, memory: Memory) -> u64 {
    let view = GraphView::new(g);
    let found: Vec<Fused> = g.nodes.keys().filter_map(|n| reduction(&view, n, memory)).collect();
    let mut removed: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let count = found.len() as u64;
    for Fused { reduction, removed: chain, op, inputs } in found {
        removed[chain] = true;
        let Node { name, outputs, .. } = g.nodes[reduction].clone();
        g.nodes[reduction] = Node { name, op, inputs, outputs };
    }
    *g = g.compacted(|n| !removed[n]);
    count
}

fn reduction(view: &GraphView, n: NodeId, memory: Memory) -> Option<Fused> {
    let g = view.g;
    let Op::Reduce { f, axes, keep } = &g.nodes[n].op else { return None };
    let &[x] = &g.nodes[n].inputs[..] else { return None };
    let Def::Node { node: chain, output: 0 } = g.values[x].def else { return None };
    let result = g.ty(g.result(n)?);
    let is_small = result.bytes().saturating_mul(NEGLIGIBLE) <= g.ty(x).bytes();
    if !view.only_read_by(x, &Group::from([n])) || !(is_small || memory == Memory::Any) {
        return None;
    }
    let (steps, inputs) = steps(view, chain)?;
    let op = Op::PointwiseReduce { steps, f: *f, axes: axes.clone(), keep: *keep };
    let fits = op.infer(&g.types_of(&inputs)).is_ok_and(|y| y[0] == *result);
    fits.then_some(Fused { reduction: n, removed: chain, op, inputs })
}

/// A node with one result as steps of which the last one gives it, and what they read.
pub(crate) fn steps(view: &GraphView, n: NodeId) -> Option<(Vec<Step>, Vec<ValueId>)> {
    let g = view.g;
    let node = &g.nodes[n];
    let (op, inputs) = match &node.op {
        Op::Pointwise { .. } => (node.op.clone(), node.inputs.clone()),
        _ if is_elementwise(g, n) => {
            let chain = program(view, Group::from([n]))?;
            (chain.op, chain.inputs)
        }
        _ => return None,
    };
    let Op::Pointwise { steps, results } = op else { return None };
    (results == [inputs.len() + steps.len() - 1]).then_some((steps, inputs))
}
