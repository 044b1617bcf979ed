//! Transposes that only feed matrix products become flags of these.
//!
//! Products read operands by strides, so an exchanged pair of last axes costs nothing,
//! while the transpose as a node writes a second copy of (mostly) a weight. A transpose
//! of a transpose that restores the order is dropped the same way. Sound because
//! `op(a, transpose(b))` and `op'(a, b)` are sums of the same products; a kernel may add
//! them in another order, so the last bits may differ from the graph before the rewrite.

use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::op::Op;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Folds transposes of the last two axes into matrix products.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseTransposes {}

impl GraphPass for FuseTransposes {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let mut count = 0;
        for n in g.nodes.keys().collect::<Vec<_>>() {
            let operands = match &g.nodes[n].op {
                Op::MatMul { .. } | Op::Gemm { .. } => 2,
                Op::Transpose { .. } => 1,
                _ => 0,
            };
            for k in 0..operands {
                while let Some((source, perm)) = transposed(g, g.nodes[n].inputs[k]) {
                    let composed = match &mut g.nodes[n].op {
                        Op::MatMul { trans_a, trans_b } | Op::Gemm { trans_a, trans_b, .. } => {
                            let flag = if k == 0 { trans_a } else { trans_b };
                            let fits = swaps_last_two(&perm);
                            *flag ^= fits;
                            fits
                        }
                        Op::Transpose { perm: outer } => {
                            outer.iter_mut().for_each(|p| *p = perm[*p]);
                            true
                        }
                        _ => false,
                    };
                    if !composed {
                        break;
                    }
                    g.nodes[n].inputs[k] = source;
                    count += 1;
                }
            }
        }
        crate::dead_code::DeadCode {}.run(g, cx)?;
        Ok(Stats::from([("fused_transposes", count)]))
    }
}

/// The operand and permutation of the transpose that defines `v`.
fn transposed(g: &Graph, v: ValueId) -> Option<(ValueId, Vec<usize>)> {
    let Def::Node { node, .. } = g.values[v].def else { return None };
    match &g.nodes[node].op {
        Op::Transpose { perm } => Some((g.nodes[node].inputs[0], perm.clone())),
        _ => None,
    }
}

fn swaps_last_two(perm: &[usize]) -> bool {
    let n = perm.len();
    n >= 2
        && perm[n - 1] == n - 2
        && perm[n - 2] == n - 1
        && perm[..n - 2].iter().enumerate().all(|(i, &p)| i == p)
}
