//! Softmax attention without storing its scores.
//!
//! Exporters write `softmax(scale · q kᵀ + mask) v` operator by operator, so that the backward
//! part needs the probabilities, a matrix of queries × keys for every head, and has three more of
//! them. As [`Op::Attention`] and [`Op::AttentionGrad`](arenic_ir::op::Op::AttentionGrad) only
//! blocks of them exist, and two numbers per row are kept (Dao et al., "FlashAttention", 2022;
//! Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021).
//!
//! [`forward`] recognises an attention around its softmax and [`backward`] its gradient, as
//! `differentiate` writes it or as PyTorch does; [`rewrite`] puts the operators in their place.
//! Scales of queries and keys stay as they are: what is scaled is kept in place of what is not.
//! A dropout of the probabilities is drawn again wherever they are computed, so that its mask is
//! not stored either. An attention stays as it is where anything else reads its scores or
//! probabilities: an output, a gradient of the mask.
//!
//! Sound because both sides are the same sums of the same terms, taken in another order, so that
//! the last bits differ. A mask that is causal becomes a flag, for which see
//! [`AttentionSpec::causal`](arenic_ir::op::AttentionSpec::causal).
//!
//! [`Op::Attention`]: arenic_ir::op::Op::Attention

mod backward;
mod forward;
mod matrices;
mod rewrite;

use crate::dead_code::DeadCode;
use crate::{Cx, GraphPass, PassError, Stats, Targets};
use arenic_ir::Graph;
use matrices::Matrices;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes one operator of each attention, and one of its gradient, that do not store scores.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Attention {
    /// Whose programs are rewritten.
    pub target: Targets,
}

impl GraphPass for Attention {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        if !self.target.includes(cx) {
            return Ok(Stats::new());
        }
        let matrices = Matrices::new(g);
        let mut found = Vec::new();
        for n in g.nodes.keys() {
            let Some(forward) = forward::attention(&matrices, n, cx.target.backend) else {
                continue;
            };
            let Some(backward) = backward::gradient(&matrices, &forward) else { continue };
            // Without its gradient in the graph, the mask may be given one later.
            if backward.is_some() || !forward.mask_is_trained(&matrices) {
                found.push((forward, backward));
            }
        }
        let gradients = found.iter().filter(|(_, b)| b.is_some()).count();
        if !found.is_empty() {
            rewrite::apply(g, &found)?;
            DeadCode {}.run(g, cx)?;
        }
        Ok(Stats::from([("attentions", found.len() as u64), ("gradients", gradients as u64)]))
    }
}
