//! Gradients of attentions take what their results say.
//!
//! The gradient of an attention's scores needs of every row the sum of its probabilities times their gradients. A
//! kernel that has a row of scores tile by tile computes scores twice for it, once for the sum. The sum is also that of
//! the result times its gradient (Dao et al., "FlashAttention", 2022, equation 4), so that the result may be one
//! more operand. Sound because both are sums of the same products, added in another order: the last bits differ.
//!
//! It is for GPUs: the CPU's kernels have whole rows, where the sum costs a pass over what is in the cache, and the result
//! gains nothing (`attention_grad` of 1,024 positions 225 → 246 ms).
//!
//! Only where the result is needed by the backward part anyway, as it is by the gradient of a weight that multiplies
//! it: where at least two nodes read it. It may be kept for a few nodes longer than before.

use crate::rewrite::GraphView;
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::Op;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Gives gradients of attentions the results, from which sums of rows follow.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttentionSums {}

impl GraphPass for AttentionSums {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g);
        let found: Vec<(NodeId, ValueId)> =
            g.nodes.keys().filter_map(|n| Some((n, result(&view, n)?))).collect();
        for &(n, result) in &found {
            let node = &mut g.nodes[n];
            if let Op::AttentionGrad { has_result, .. } = &mut node.op {
                *has_result = true;
                node.inputs.insert(6, result);
            }
        }
        Ok(Stats::from([("gradients", found.len() as u64)]))
    }
}

/// The result of the attention that a node is the gradient of, where it may have it.
fn result(view: &GraphView, n: NodeId) -> Option<ValueId> {
    let gradient = &view.g.nodes[n];
    let Op::AttentionGrad { spec, has_result: false, .. } = &gradient.op else { return None };
    let Def::Node { node, output: 1 } = view.g.values[*gradient.inputs.get(3)?].def else {
        return None;
    };
    let forward = &view.g.nodes[node];
    let is_it = matches!(&forward.op, Op::Attention { spec: of } if of == spec);
    let result = forward.outputs[0]?;
    let others = view.consumers(result).into_iter().filter(|&reader| reader != n).count();
    (is_it && forward.inputs[..3] == gradient.inputs[..3] && others > 1).then_some(result)
}
