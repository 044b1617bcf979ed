//! Softmax attention without storing its scores.
//!
//! Exporters write `softmax(scale · q kᵀ + mask) v` operator by operator, so that the backward
//! part needs the probabilities, a matrix of queries × keys for every head, and has three more of
//! them. As [`Op::Attention`] and [`Op::AttentionGrad`](arenic_ir::op::Op::AttentionGrad) only
//! blocks of them exist, and two numbers per row are kept (Dao et al., "FlashAttention", 2022;
//! Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021).
//!
//! [`forward`] recognises an attention around its softmax and [`backward`] its gradient, as PyTorch
//! writes it; [`rewrite`] puts the operators in their place. A forward model is rewritten before it
//! is differentiated, so that its gradient is the operator's own. Then scales of queries and keys
//! become the attention's, and heads that share keys and values do so without copies of them. In a
//! whole step scales stay as they are: what is scaled is kept in place of what is not.
//! A dropout of the probabilities is drawn again wherever they are computed, so that its mask is
//! not stored either. There may be two masks, whose sum need not exist. Where the first is trained, its gradient is the
//! operator's fourth result. An attention stays as it is where anything else reads its scores or probabilities.
//!
//! Sound because both sides are the same sums of the same terms, taken in another order, so that
//! the last bits differ. A mask that is causal becomes a flag, for which see
//! [`AttentionSpec::causal`](arenic_ir::op::AttentionSpec::causal); it may be computed of constants.
//!
//! [`Op::Attention`]: arenic_ir::op::Op::Attention

mod backward;
mod forward;
mod mask;
mod matrices;
mod rewrite;

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::Graph;
use arenic_ir::op::Op;
use backward::Gradient;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes one operator of each attention, and one of its gradient, that do not store scores.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Attention {}

impl GraphPass for Attention {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g).evaluating(cx.evaluate);
        let (mut found, mut gradients, mut shared) = (Vec::new(), 0, 0);
        for n in g.nodes.keys() {
            let backend = cx.target.backend;
            let Some(mut forward) = forward::attention(&view, n, backend) else { continue };
            match backward::gradient(&view, &mut forward) {
                Gradient::Found(backward) => {
                    gradients += 1;
                    found.push((forward, Some(backward)));
                }
                Gradient::Absent => {
                    let Some(forward) = forward.trained(&view) else { continue };
                    let forward = forward.simplified(&view, backend);
                    shared += u64::from(forward.spec.group > 1);
                    found.push((forward, None));
                }
                Gradient::Blocked => {}
            }
        }
        let softmaxes = g.nodes.values().filter(|n| matches!(n.op, Op::Softmax { .. })).count();
        let mut e = Editor::new(g);
        for (forward, backward) in &found {
            rewrite::replace(&mut e, forward, backward.as_ref())?;
        }
        e.finish();
        Ok(Stats::from([
            ("attentions", found.len() as u64),
            ("gradients", gradients),
            ("with_shared_keys", shared),
            ("other_softmaxes", (softmaxes - found.len()) as u64),
        ]))
    }
}
