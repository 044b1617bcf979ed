//! Operators in the place of what was found.

use super::backward::Backward;
use super::forward::{Forward, Mask};
use super::matrices::{Matrix, base, exchanges_last_two};
use crate::PassError;
use arenic_ir::graph::{Data, Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, TypeError};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;

/// Puts operators in the place of attentions and their gradients.
pub(super) fn apply(g: &mut Graph, found: &[(Forward, Option<Backward>)]) -> Result<(), PassError> {
    let order = g.nodes.keys().collect();
    let mut r = Rewrite { g, with: SecondaryMap::new(), order };
    for (forward, backward) in found {
        r.attention(forward, backward.as_ref())?;
    }
    let Rewrite { g, with, order } = r;
    g.replace_uses(&with);
    *g = g.arranged(&order);
    Ok(())
}

struct Rewrite<'a> {
    g: &'a mut Graph,
    /// Values that others take the place of.
    with: SecondaryMap<ValueId, Option<ValueId>>,
    /// All nodes, new ones at their places.
    order: Vec<NodeId>,
}

impl Rewrite<'_> {
    fn attention(&mut self, f: &Forward, b: Option<&Backward>) -> Result<(), PassError> {
        let dtype = self.g.ty(f.p).dtype;
        let types = f.types(dtype);
        let mut operands = Vec::new();
        for (x, ty) in [f.q, f.k, f.v].into_iter().zip(&types) {
            operands.push(self.dense(f.last, x, ty)?);
        }
        let mask = match f.mask {
            None => None,
            Some(Mask::Added(mask)) => Some(mask),
            Some(Mask::Where(condition, counts)) => {
                let [zero, low] = [0.0, f64::NEG_INFINITY].map(|x| self.scalar(dtype, x));
                let [a, b] = if counts { [zero, low] } else { [low, zero] };
                Some(self.value(f.last, Op::Where, vec![condition, a, b])?)
            }
        };
        let all = operands.iter().copied().chain(mask).collect();
        let n = self.insert(f.last, Op::Attention { spec: f.spec }, all)?;
        let [Some(o), Some(max), Some(sum)] = self.g.nodes[n].outputs[..] else { return Ok(()) };
        self.replace(f.last, o)?;
        let Some(b) = b else { return Ok(()) };
        let dy = self.dense(b.first, b.dy, &self.g.ty(o).clone())?;
        let all = operands.into_iter().chain([max, sum, dy]).chain(mask).collect();
        let n = self.insert(b.first, Op::AttentionGrad { spec: f.spec }, all)?;
        let gradients = self.g.nodes[n].outputs.clone();
        for (found, gradient) in b.products.iter().zip(gradients) {
            let (&Some((product, trans)), Some(x)) = (found, gradient) else { continue };
            if !trans {
                self.replace(product, x)?;
                continue;
            }
            self.turn_readers(product, x)?;
            let perm = last_two_exchanged((0..self.g.ty(x).rank()).collect());
            let turned = self.value(product, Op::Transpose { perm }, vec![x])?;
            self.replace(product, turned)?;
        }
        Ok(())
    }

    /// Lets transposes that read a product's result, of which `x` is the transpose, read that.
    fn turn_readers(&mut self, product: NodeId, x: ValueId) -> Result<(), PassError> {
        let Some(result) = self.g.result(product) else { return Ok(()) };
        for n in self.g.nodes.keys().collect::<Vec<_>>() {
            let Node { op: Op::Transpose { perm }, inputs, .. } = &self.g.nodes[n] else {
                continue;
            };
            if base(self.g, inputs[0]) != result {
                continue;
            }
            let mut shape = self.g.ty(inputs[0]).shape.clone();
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
            let perm = last_two_exchanged(perm.clone());
            let operand = self.reshaped(n, x, &shape)?;
            let node = &mut self.g.nodes[n];
            (node.op, node.inputs) = (Op::Transpose { perm }, vec![operand]);
        }
        Ok(())
    }

    /// A batch of matrices as a value of this type, by nodes just before `at` where needed.
    fn dense(&mut self, at: NodeId, x: Matrix, ty: &TensorType) -> Result<ValueId, PassError> {
        let x = if x.trans { self.turned(at, x.of)? } else { x.of };
        self.reshaped(at, x, &ty.shape)
    }

    /// The transpose of a batch of matrices. That of a transpose, perhaps scaled, is another
    /// permutation of what it is of.
    fn turned(&mut self, at: NodeId, x: ValueId) -> Result<ValueId, PassError> {
        let x = base(self.g, x);
        let node = match self.g.values[x].def {
            Def::Node { node, output: 0 } => Some(self.g.nodes[node].clone()),
            _ => None,
        };
        match node {
            Some(Node { op: Op::Transpose { perm }, inputs, .. }) => {
                let rank = perm.len();
                let mut turned = perm;
                turned.swap(rank - 2, rank - 1);
                if turned.is_sorted() {
                    return Ok(inputs[0]);
                }
                self.value(at, Op::Transpose { perm: turned }, inputs)
            }
            Some(Node { op: op @ Op::Binary { f: Binary::Mul | Binary::Div }, inputs, .. })
                if self.g.ty(inputs[1]).elements() == 1
                    && self.is_turned(inputs[0])
                    && self.g.ty(inputs[0]).shape == self.g.ty(x).shape =>
            {
                let first = self.turned(at, inputs[0])?;
                self.value(at, op, vec![first, inputs[1]])
            }
            _ => {
                let perm = last_two_exchanged((0..self.g.ty(x).rank()).collect());
                self.value(at, Op::Transpose { perm }, vec![x])
            }
        }
    }

    /// True for the result of a transpose that exchanges the last two axes.
    fn is_turned(&self, x: ValueId) -> bool {
        let Def::Node { node, .. } = self.g.values[base(self.g, x)].def else { return false };
        matches!(&self.g.nodes[node].op, Op::Transpose { perm } if exchanges_last_two(perm))
    }

    /// The same elements in this shape. By a node and no view, of which there are none yet where
    /// the graph is differentiated afterwards.
    fn reshaped(&mut self, at: NodeId, v: ValueId, shape: &[usize]) -> Result<ValueId, PassError> {
        let of = base(self.g, v);
        match [v, of].into_iter().find(|&v| self.g.ty(v).shape == shape) {
            Some(v) => Ok(v),
            None => self.value(at, Op::Reshape { shape: shape.to_vec() }, vec![of]),
        }
    }

    fn scalar(&mut self, dtype: DType, x: f64) -> ValueId {
        let bytes = match dtype {
            DType::F64 => x.to_le_bytes().to_vec(),
            _ => (x as f32).to_le_bytes().to_vec(),
        };
        self.g.add_const("", TensorType::scalar(dtype), Data::Bytes(bytes.into()))
    }

    /// Adds a node just before `at`.
    fn insert(&mut self, at: NodeId, op: Op, inputs: Vec<ValueId>) -> Result<NodeId, PassError> {
        let name = self.g.nodes[at].name.clone();
        let node = self.g.add_node(name, op, inputs)?;
        let place = self.order.iter().position(|&n| n == at).unwrap_or(self.order.len());
        self.order.insert(place, node);
        Ok(node)
    }

    /// Adds a node just before `at`; gives its first result.
    fn value(&mut self, at: NodeId, op: Op, inputs: Vec<ValueId>) -> Result<ValueId, PassError> {
        let node = self.insert(at, op, inputs)?;
        self.g.result(node).ok_or_else(|| TypeError("a node without results".into()).into())
    }

    /// Lets `v` take the place of a node's result, in its shape.
    fn replace(&mut self, n: NodeId, v: ValueId) -> Result<(), PassError> {
        let Some(old) = self.g.result(n) else { return Ok(()) };
        let shape = self.g.ty(old).shape.clone();
        let v = self.reshaped(n, v, &shape)?;
        self.g.values[v].name = self.g.values[old].name.clone();
        self.with[old] = Some(v);
        Ok(())
    }
}

/// A permutation of a tensor as one of its transpose: the last two axes change their numbers.
fn last_two_exchanged(mut perm: Vec<usize>) -> Vec<usize> {
    let last = perm.len() - 1;
    for p in &mut perm {
        *p = match *p {
            p if p == last => last - 1,
            p if p + 1 == last => last,
            p => p,
        };
    }
    perm
}
