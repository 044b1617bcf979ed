//! What is added to a matrix product becomes an operand of it.
//!
//! Exporters write a linear layer on tensors of rank three as a product and an addition, and
//! reverse mode adds up gradients that are products. A `gemm` starts its sums at what is added
//! instead: the product alone has no bytes, and a library does both in one kernel (as its
//! epilogue, or with beta). Sound because both are the sum of the same terms; they may be added in
//! another order, so the last bits may differ.
//!
//! Only where no order of the graph needs more memory afterwards, scratch aside. Take any order.
//! Where what is added is there before the product, whatever the order, the `gemm` takes the
//! product's place, with its result instead of the product's. Else it takes the place of the
//! addition, its result in the bytes of what is added, which nobody else reads: until then what
//! the product reads is kept instead of its result, so it may not be larger. Where ranks gather
//! a parameter of their parts of it, a bias counts as there, as it does where it is whole: every level of sharding has the same
//! bits.

use crate::rewrite::{Editor, GraphView, is_product, rows};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, TypeError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes biases and sums parts of the matrix products that they are added to.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseSums {}

impl GraphPass for FuseSums {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g);
        let sums = view.sums();
        let mut e = Editor::new(g);
        sums.iter().try_for_each(|sum| sum.replace(&mut e))?;
        e.finish();
        Ok(Stats::from([("fused_sums", sums.len() as u64)]))
    }
}

/// A product and what is added to it.
struct Sum {
    product: NodeId,
    addition: NodeId,
    result: ValueId,
    added: ValueId,
    /// Shape of what is added: a matrix, as the product, or one row.
    added_shape: Vec<usize>,
}

impl Sum {
    /// One `gemm` in the place of both.
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let Node { op, inputs, .. } = e.g.nodes[self.product].clone();
        let (alpha, trans_a, trans_b) = match op {
            Op::Gemm { alpha, trans_a, trans_b, .. } => (alpha, trans_a, trans_b),
            Op::MatMul { trans_a, trans_b } => (1.0, trans_a, trans_b),
            op => return Err(TypeError(format!("a product, not {}", op.name())).into()),
        };
        let at = self.addition;
        let left = rows(&e.g.ty(inputs[0]).shape);
        let a = e.reshaped(at, inputs[0], &left)?;
        let c = e.reshaped(at, self.added, &self.added_shape)?;
        let gemm = Op::Gemm { alpha, beta: 1.0, trans_a, trans_b };
        let y = e.value(at, gemm, vec![a, inputs[1], c])?;
        e.replace(at, self.result, y)
    }
}

impl GraphView<'_> {
    /// All sums of a product and something else, in the order of their additions.
    fn sums(&self) -> Vec<Sum> {
        self.g.nodes.keys().filter_map(|n| self.sum(n)).collect()
    }

    fn sum(&self, addition: NodeId) -> Option<Sum> {
        let node = &self.g.nodes[addition];
        let (Op::Binary { f: Binary::Add }, &[a, b]) = (&node.op, &node.inputs[..]) else {
            return None;
        };
        self.sum_of(addition, a, b).or_else(|| self.sum_of(addition, b, a))
    }

    /// The sum of a product's result and what is added to it.
    fn sum_of(&self, addition: NodeId, product: ValueId, added: ValueId) -> Option<Sum> {
        let g = self.g;
        let (result, whole) = (g.result(addition)?, g.resolve(product).root);
        let Def::Node { node: n, output: 0 } = g.values[whole].def else { return None };
        let (y, c) = (g.ty(result), g.ty(added));
        let is_all = |v: ValueId| g.ty(v).elements() == y.elements();
        let is_read_here = self.readers[whole] == [addition] && !self.kept[whole];
        if !is_product(g, n) || !is_read_here || !is_all(whole) || !is_all(product) {
            return None;
        }
        let [above, last] = rows(&g.ty(whole).shape);
        let added_shape = if c.shape == y.shape {
            vec![above, last]
        } else if c.elements() == last
            && [&c.shape, &y.shape].iter().all(|s| s.last() == Some(&last))
        {
            vec![last]
        } else {
            return None;
        };
        let needs_no_more = self.is_there_before(n, added)
            || (added_shape.len() == 1 && self.is_gathered(added))
            || (added_shape.len() == 2 && self.may_wait(n, addition, added));
        needs_no_more.then_some(Sum { product: n, addition, result, added, added_shape })
    }

    /// True where a product may wait for what is added: its result takes that one's bytes, and
    /// what it reads has no more than its result.
    fn may_wait(&self, product: NodeId, addition: NodeId, added: ValueId) -> bool {
        let g = self.g;
        let place = g.resolve(added).root;
        let bytes = |v: ValueId| g.ty(v).bytes();
        let is_free = self.readers[place] == [addition] && self.is_transient(place);
        // A state's old value may be dead before the sum is due.
        let comes_and_goes = |&v: &ValueId| match g.values[v].def {
            Def::State(_) => true,
            _ => self.is_transient(v),
        };
        let mut read: Vec<ValueId> =
            g.nodes[product].inputs.iter().map(|&v| g.resolve(v).root).collect();
        read.sort_unstable();
        read.dedup();
        let kept: u64 = read.iter().filter(|v| comes_and_goes(v)).map(|&v| bytes(v)).sum();
        let result = g.result(product).map_or(0, bytes);
        is_free && bytes(place) == result && kept <= result
    }
}
