//! Transposes of operands and results of matrix products become flags of these.
//!
//! Products read operands by strides, so an exchanged pair of last axes costs nothing,
//! while the transpose as a node writes a second copy of (mostly) a weight. A transpose
//! of a transpose that restores the order is dropped the same way. A product of which only the
//! transpose is read is computed as that, `(a b)ᵀ = bᵀ aᵀ`: the gradient of a weight that an exporter
//! transposes, of which there would be two copies, and which could not be part of its update. Sound because
//! both sides are sums of the same products; a kernel may add
//! them in another order, so the last bits may differ from the graph before the rewrite.

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::Op;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Folds transposes of the last two axes into matrix products.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseTransposes {}

impl GraphPass for FuseTransposes {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
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
        let view = GraphView::new(g);
        let turned: Vec<Turned> = g.nodes.keys().filter_map(|n| turned(&view, n)).collect();
        let mut e = Editor::new(g);
        turned.iter().try_for_each(|found| found.replace(&mut e))?;
        e.finish();
        Ok(Stats::from([("fused_transposes", count), ("turned_products", turned.len() as u64)]))
    }
}

/// A product of matrices of which only the transpose is read.
struct Turned {
    product: NodeId,
    transpose: NodeId,
}

fn turned(v: &GraphView, transpose: NodeId) -> Option<Turned> {
    let Node { op: Op::Transpose { perm }, inputs, .. } = &v.g.nodes[transpose] else {
        return None;
    };
    let product = v.definition(inputs[0])?;
    let Node { op, inputs: factors, .. } = &v.g.nodes[product];
    let is_product = match op {
        Op::MatMul { .. } => true,
        Op::Gemm { .. } => factors.len() == 2,
        _ => false,
    };
    // The axes of a batch that has one matrix.
    let is_matrix = |&x: &ValueId| {
        let shape = &v.g.ty(x).shape;
        shape.len().checked_sub(2).is_some_and(|at| shape[..at].iter().all(|&n| n == 1))
    };
    let y = v.g.result(product)?;
    let fits = is_product
        && perm[..] == [1, 0]
        && factors.iter().chain([&y]).all(is_matrix)
        && v.g.ty(y).shape.ends_with(&v.g.ty(inputs[0]).shape)
        && v.only_use(y)? == transpose;
    fits.then_some(Turned { product, transpose })
}

impl Turned {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let Node { op, inputs, .. } = e.g.nodes[self.product].clone();
        let op = match op {
            Op::MatMul { trans_a, trans_b } => Op::MatMul { trans_a: !trans_b, trans_b: !trans_a },
            Op::Gemm { alpha, beta, trans_a, trans_b } => {
                Op::Gemm { alpha, beta, trans_a: !trans_b, trans_b: !trans_a }
            }
            op => op,
        };
        let mut factors = Vec::new();
        for &x in inputs.iter().rev() {
            let shape = e.g.ty(x).shape.clone();
            factors.push(e.reshaped(self.product, x, &shape[shape.len() - 2..])?);
        }
        let y = e.value(self.product, op, factors)?;
        let Some(old) = e.g.result(self.transpose) else { return Ok(()) };
        e.replace(self.product, old, y)
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

/// True for a permutation that exchanges the last two axes alone.
pub(crate) fn swaps_last_two(perm: &[usize]) -> bool {
    let n = perm.len();
    n >= 2
        && perm[n - 1] == n - 2
        && perm[n - 2] == n - 1
        && perm[..n - 2].iter().enumerate().all(|(i, &p)| i == p)
}
