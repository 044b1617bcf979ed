//! Views: a node whose result is a contiguous part of its operand's bytes becomes a view.
//!
//! A pipeline makes them once, when a step is differentiated and its transposes are gone. Rewrites before it
//! see `Reshape`s, and those behind it keep the graph in views.
//!
//! Reshapes always are; a slice is where it takes whole trailing axes and one run of the
//! axis before them; a transpose where only axes of extent 1 move; an expand where
//! nothing is repeated; a cast to the same type; a reduction over axes of extent 1. Sound because the bytes are the same and values never change (SSA).
//! A node that reads a view of as many bytes and the same type as what is viewed, as a reshape and the one back
//! leave it, reads that instead: so later passes see who made it.

use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::Op;
use arenic_ir::types::{TensorType, dense_strides};
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Turns reshapes, contiguous slices and other byte-identical results into views.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Views {}

impl GraphPass for Views {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let mut resolved: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        let mut count = 0;
        for n in g.nodes.keys().collect::<Vec<_>>() {
            let node = &g.nodes[n];
            let (Some(&of), &[Some(result)]) = (node.inputs.first(), &node.outputs[..]) else {
                continue;
            };
            if let Some(offset) = contiguous(&node.op, g.ty(of), g.ty(result)) {
                g.values[result].def = Def::View { of, offset };
                resolved[n] = true;
                count += 1;
            }
        }
        for n in g.nodes.keys().collect::<Vec<_>>() {
            for i in 0..g.nodes[n].inputs.len() {
                g.nodes[n].inputs[i] = origin(g, g.nodes[n].inputs[i]);
            }
        }
        *g = g.compacted(|n| !resolved[n]);
        Ok(Stats::from([("views", count)]))
    }
}

/// What a node makes of the same type, if a value is a view of all of it, perhaps through others; else itself.
/// Views of states stay apart: what is made of one, as a narrow copy for the backward pass, need not live since
/// the forward pass.
fn origin(g: &Graph, v: ValueId) -> ValueId {
    let (mut at, mut found) = (v, v);
    while let Def::View { of, offset: 0 } = g.values[at].def {
        at = of;
        if g.ty(of) == g.ty(v) && matches!(g.values[of].def, Def::Node { .. }) {
            found = of;
        }
    }
    found
}

/// First byte of the result in the operand, where the result is a run of its bytes.
pub(crate) fn contiguous(op: &Op, x: &TensorType, y: &TensorType) -> Option<u64> {
    match op {
        Op::Reshape { .. } => Some(0),
        Op::Cast { to } => (*to == x.dtype).then_some(0),
        Op::Expand { .. } => (x.elements() == y.elements()).then_some(0),
        Op::Transpose { perm } => {
            let moved = perm.iter().filter(|&&p| x.shape[p] != 1);
            moved.is_sorted().then_some(0)
        }
        Op::Reduce { axes, .. } => axes.iter().all(|&a| x.shape[a] == 1).then_some(0),
        Op::Slice { starts, steps, shape } => {
            if y.elements() == 0 {
                return Some(0);
            }
            // One run: everything before the last cut axis is a single index deep.
            let last_cut = (0..x.rank()).rfind(|&i| shape[i] != x.shape[i]).unwrap_or(0);
            let one_run = shape[..last_cut].iter().all(|&d| d == 1);
            let reversed = (0..x.rank()).any(|i| steps[i] != 1 && shape[i] > 1);
            if reversed || !one_run {
                return None;
            }
            let strides = dense_strides(&x.shape);
            let element: usize = starts.iter().zip(&strides).map(|(s, t)| s * t).sum();
            Some(element as u64 * x.dtype.size())
        }
        _ => None,
    }
}
