//! Transposes that cancel through what is indifferent to the order of axes.
//!
//! Frameworks with their channels last turn tensors around each convolution, which ONNX has with channels second, and work in
//! their own order between: JAX's exporter writes two transposes for each convolution. Heads of an attention are
//! turned before positions, and back after it. Elementwise operators, reductions, slices, pads, concatenations and,
//! where they take part, attentions (`positions_first`) can work in either order ([`crate::turn`]), so that for each
//! permutation in the graph a least cut of the bytes that transposes move says which of them do: what
//! is then between two transposes that undo each other needs neither. No other choice of operators for this
//! permutation moves fewer bytes; where several move as few, the fewest operators change.
//!
//! Sound because every operator computes the same elements from the same elements, which lie in other places; sums
//! along several axes may be added in another order. Transposes of the last two axes are left alone: they are flags
//! of matrix products (`fuse_transposes`).

use crate::dead_code::DeadCode;
use crate::fuse_transposes::swaps_last_two;
use crate::turn::{self, Axes, Form, choose, rewrite};
use crate::views::Views;
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph};
use arenic_ir::op::Op;
use arenic_ir::types::TensorType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Cancels transposes that have elementwise operators between them.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SinkTransposes {
    /// Attentions take part, with positions before heads. On a CPU rows of a head that lie apart take longer than the
    /// transposes do: 31 ms for 26 of attentions and 4 of transposes (two layers of 12 heads, 256 positions, `f32`), and
    /// 334 for 303 at 1,024.
    pub attentions: bool,
}

impl GraphPass for SinkTransposes {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let has_views = g.values.values().any(|v| matches!(v.def, Def::View { .. }));
        let before = moved_bytes(g);
        let mut turned = 0;
        for perm in permutations(g) {
            let axes = Axes::By { perm, attentions: self.attentions };
            let chosen = choose(g, &axes, &Bytes);
            let count = chosen.values().filter(|turned| **turned).count() as u64;
            if count == 0 {
                continue;
            }
            turned += count;
            rewrite(g, &axes, &chosen)?;
            DeadCode {}.run(g, cx)?;
            if has_views {
                Views {}.run(g, cx)?;
            }
        }
        let saved = before.saturating_sub(moved_bytes(g));
        Ok(Stats::from([("turned_nodes", turned), ("bytes_less_moved", saved)]))
    }
}

/// Bytes that transposes move.
struct Bytes;

impl turn::Costs for Bytes {
    fn gain(&self, _: &[&TensorType], _: &Form) -> Option<i64> {
        Some(0)
    }

    fn moving(&self, ty: &TensorType, _: Vec<usize>) -> u64 {
        ty.bytes()
    }
}

/// Bytes that all transposes of a graph move.
fn moved_bytes(g: &Graph) -> u64 {
    transposes(g).filter(|(perm, ty)| moves(perm, ty)).map(|(_, ty)| ty.bytes()).sum()
}

/// The permutations that move something, but for those that matrix products have as flags.
fn permutations(g: &Graph) -> BTreeSet<Vec<usize>> {
    let all = transposes(g).filter(|(perm, ty)| moves(perm, ty) && !swaps_last_two(perm));
    all.map(|(perm, _)| perm.to_vec()).collect()
}

/// The transposes of a graph, with what each turns.
fn transposes(g: &Graph) -> impl Iterator<Item = (&[usize], &TensorType)> {
    g.nodes.values().filter_map(|node| match &node.op {
        Op::Transpose { perm } => Some((&perm[..], g.ty(*node.inputs.first()?))),
        _ => None,
    })
}

/// True where axes move that have several elements.
fn moves(perm: &[usize], ty: &TensorType) -> bool {
    !perm.iter().filter(|&&p| ty.shape[p] != 1).is_sorted()
}
