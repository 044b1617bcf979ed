//! Values as batches of matrices: which are the same, which transposed, and who reads them.

use crate::rewrite::GraphView;
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::Op;

/// A batch of matrices: a value that is none in another shape, and whether its last two axes are
/// exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) of: ValueId,
    pub(super) trans: bool,
}

impl Matrix {
    pub(super) fn transposed(self) -> Matrix {
        Matrix { trans: !self.trans, ..self }
    }
}

/// A product of batches of matrices.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) a: Matrix,
    pub(super) b: Matrix,
}

/// Rows and columns of a value's matrices.
pub(super) fn extents(v: &GraphView, x: ValueId) -> Option<[usize; 2]> {
    match v.g.ty(x).shape[..] {
        [.., rows, columns] => Some([rows, columns]),
        _ => None,
    }
}

/// What a value is a batch of.
pub(super) fn matrix(v: &GraphView, x: ValueId, trans: bool) -> Matrix {
    let of = same_matrices(v.g, x);
    match v.g.values[of].def {
        Def::Node { node, output: 0 } => match &v.g.nodes[node] {
            Node { op: Op::Transpose { perm }, inputs, .. } if exchanges_last_two(perm) => {
                matrix(v, inputs[0], !trans)
            }
            _ => Matrix { of, trans },
        },
        _ => Matrix { of, trans },
    }
}

/// The operands of a product of matrices.
pub(super) fn product(v: &GraphView, n: NodeId) -> Option<Product> {
    let Node { op: Op::MatMul { trans_a, trans_b }, inputs, .. } = &v.g.nodes[n] else {
        return None;
    };
    let &[a, b] = &inputs[..] else { return None };
    let both = [a, b].iter().all(|&x| v.g.ty(x).rank() >= 2);
    both.then(|| Product { a: matrix(v, a, *trans_a), b: matrix(v, b, *trans_b) })
}

/// The nodes that read a node's first result, in whatever shape and order of its last two axes;
/// `None` if it outlives the step or if parts of it are read.
pub(super) fn readers(v: &GraphView, n: NodeId) -> Option<Vec<NodeId>> {
    readers_of(v, v.g.result(n)?)
}

/// The same of a value.
pub(super) fn readers_of(v: &GraphView, x: ValueId) -> Option<Vec<NodeId>> {
    v.uses_through(x, |op| matches!(op, Op::Transpose { perm } if exchanges_last_two(perm)))
}

/// The value whose elements `v` has under another shape, where that has the same matrices.
pub(super) fn same_matrices(g: &Graph, v: ValueId) -> ValueId {
    let matrices = |v: ValueId| {
        let shape = &g.ty(v).shape;
        shape.len().checked_sub(2).map(|at| (&shape[at..], g.ty(v).bytes()))
    };
    let before = match &g.values[v].def {
        Def::View { of, .. } => *of,
        Def::Node { node, .. } => match &g.nodes[*node] {
            Node { op: Op::Reshape { .. }, inputs, .. } => inputs[0],
            _ => return v,
        },
        _ => return v,
    };
    if matrices(before) == matrices(v) { same_matrices(g, before) } else { v }
}

/// What a shape that broadcasts to `from` becomes where the same elements have the shape `to`: each group of axes
/// that takes the place of another has all of its elements, or one. `None` where it has some.
pub(super) fn regrouped(own: &[usize], from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let missing = from.len().checked_sub(own.len())?;
    let own = [&vec![1; missing], own].concat();
    let (mut shape, mut i, mut j) = (Vec::with_capacity(to.len()), 0, 0);
    while i < from.len() || j < to.len() {
        let (first, start, mut before, mut after) = (i, j, 1, 1);
        loop {
            if before <= after && i < from.len() {
                before *= from[i];
                i += 1;
            } else {
                after *= to.get(j)?;
                j += 1;
            }
            if before == after {
                break;
            }
        }
        if own[first..i].iter().all(|&n| n == 1) {
            shape.extend(vec![1; j - start]);
        } else if own[first..i] == from[first..i] {
            shape.extend(&to[start..j]);
        } else {
            return None;
        }
    }
    Some(shape)
}

/// True for a permutation that exchanges the last two axes.
pub(super) fn exchanges_last_two(perm: &[usize]) -> bool {
    let Some(rest) = perm.len().checked_sub(2) else { return false };
    perm[..rest].iter().enumerate().all(|(i, &p)| i == p) && perm[rest] == rest + 1
}
