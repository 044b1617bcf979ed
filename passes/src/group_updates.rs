//! Updates of small tensors as one operator for many of them.
//!
//! A network has as many biases and scales as it has layers, and the update of each takes a GPU no longer than the
//! launch of a kernel does. Updates that do the same to tensors of one type become one [`Op::ForEach`], which
//! takes the place of the last of them. Sound because nobody reads what they give before the next step, so that
//! they may wait for each other, and because the same functions are applied to the same elements: the bits stay
//! the same.
//!
//! Gradients wait longer than they did. Those of each group are a small fraction of the largest tensor of the graph,
//! and no order needs less memory than that; over all groups there is no such bound.
//!
//! It is for GPUs: on a CPU an operator costs next to nothing by itself. This is `multi_tensor_apply` of NVIDIA's Apex,
//! and PyTorch's `foreach`; XLA has it as horizontal fusion.

use crate::rewrite::GraphView;
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::Op;
use arenic_ir::types::TensorType;
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes one operator of updates of small tensors.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GroupUpdates {}

/// What gradients that wait may have of the bytes of the largest tensor: one so many-th.
const FRACTION: u64 = 256;

/// Most operands and results of a group: kernels have 4 KiB of parameters, addresses of 8 bytes.
const MOST: usize = 480;

impl GraphPass for GroupUpdates {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let groups = groups(g);
        let mut removed: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        for group in &groups {
            let Some((&last, others)) = group.split_last() else { continue };
            others.iter().for_each(|&n| removed[n] = true);
            let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
            for &n in group {
                inputs.extend(&g.nodes[n].inputs);
                for v in g.nodes[n].outputs.clone() {
                    if let Some(v) = v {
                        g.values[v].def = Def::Node { node: last, output: outputs.len() };
                    }
                    outputs.push(v);
                }
            }
            let of = Box::new(g.nodes[last].op.clone());
            let node = &mut g.nodes[last];
            (node.op, node.inputs, node.outputs) =
                (Op::ForEach { of, lots: group.len() }, inputs, outputs);
        }
        let updates = groups.iter().map(|group| group.len() as u64).sum();
        *g = g.compacted(|n| !removed[n]);
        Ok(Stats::from([("groups", groups.len() as u64), ("updates", updates)]))
    }
}

/// Updates that become one each, in the order of the graph.
fn groups(g: &Graph) -> Vec<Vec<NodeId>> {
    let view = GraphView::new(g);
    let largest = g.values.values().map(|v| v.ty.bytes()).max().unwrap_or(0);
    let mut kinds: Vec<(&Op, Vec<&TensorType>, Vec<NodeId>)> = Vec::new();
    for (n, node) in g.nodes.iter().filter(|&(n, _)| is_update(&view, n)) {
        let types = g.input_types(n);
        match kinds.iter_mut().find(|(op, of, _)| **op == node.op && *of == types) {
            Some((.., all)) => all.push(n),
            None => kinds.push((&node.op, types, vec![n])),
        }
    }
    let mut groups = Vec::new();
    for (_, types, all) in kinds {
        let waiting: u64 = types.iter().map(|ty| ty.bytes()).sum();
        let lots = MOST / (types.len() + g.nodes[all[0]].outputs.len());
        let fits = (largest / FRACTION).checked_div(waiting).unwrap_or(0);
        let groups_of = all.chunks(lots.min(usize::try_from(fits).unwrap_or(lots)).max(1));
        groups.extend(groups_of.filter(|group| group.len() > 1).map(<[NodeId]>::to_vec));
    }
    groups
}

/// True for an elementwise operator that gives new values of states, which nobody reads.
fn is_update(view: &GraphView, n: NodeId) -> bool {
    let node = &view.g.nodes[n];
    let is_state =
        |&v: &Option<ValueId>| v.is_some_and(|v| view.kept[v] && view.readers[v].is_empty());
    node.op.may_be_for_each() && !node.outputs.is_empty() && node.outputs.iter().all(is_state)
}
