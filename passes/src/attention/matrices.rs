//! Values as batches of matrices: which are the same, which transposed, and who reads them.

use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op};
use arenic_ir::types::DType;
use cranelift_entity::SecondaryMap;

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
pub(super) struct Product {
    pub(super) a: Matrix,
    pub(super) b: Matrix,
}

/// A graph, and who reads what.
pub(super) struct Matrices<'a> {
    pub(super) g: &'a Graph,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    kept: SecondaryMap<ValueId, bool>,
}

impl<'a> Matrices<'a> {
    pub(super) fn new(g: &'a Graph) -> Self {
        Matrices { g, readers: g.readers(), kept: g.kept() }
    }

    /// Rows and columns of a value's matrices.
    pub(super) fn extents(&self, v: ValueId) -> Option<[usize; 2]> {
        match self.g.ty(v).shape[..] {
            [.., rows, columns] => Some([rows, columns]),
            _ => None,
        }
    }

    /// The value whose elements `v` has under another shape, where that has the same matrices.
    pub(super) fn base(&self, v: ValueId) -> ValueId {
        base(self.g, v)
    }

    /// What a value is a batch of.
    pub(super) fn matrix(&self, v: ValueId, trans: bool) -> Matrix {
        let of = self.base(v);
        match self.node(of) {
            Some(Node { op: Op::Transpose { perm }, inputs, .. }) if exchanges_last_two(perm) => {
                self.matrix(inputs[0], !trans)
            }
            _ => Matrix { of, trans },
        }
    }

    /// The node whose first result a value is.
    pub(super) fn definition(&self, v: ValueId) -> Option<NodeId> {
        match self.g.values[v].def {
            Def::Node { node, output: 0 } => Some(node),
            _ => None,
        }
    }

    pub(super) fn node(&self, v: ValueId) -> Option<&'a Node> {
        self.definition(v).map(|n| &self.g.nodes[n])
    }

    /// The operands of a product of matrices.
    pub(super) fn product(&self, n: NodeId) -> Option<Product> {
        let Node { op: Op::MatMul { trans_a, trans_b }, inputs, .. } = &self.g.nodes[n] else {
            return None;
        };
        let [a, b] = inputs[..] else { return None };
        let matrices = self.extents(a).is_some() && self.extents(b).is_some();
        let (a, b) = (self.matrix(a, *trans_a), self.matrix(b, *trans_b));
        matrices.then_some(Product { a, b })
    }

    /// The operands of a node that applies `f`.
    pub(super) fn binary(&self, n: NodeId, f: Binary) -> Option<[ValueId; 2]> {
        match &self.g.nodes[n] {
            Node { op: Op::Binary { f: of }, inputs, .. } if *of == f => {
                Some([*inputs.first()?, *inputs.get(1)?])
            }
            _ => None,
        }
    }

    /// What a node multiplies or divides by a constant, and the factor.
    pub(super) fn scaled(&self, n: NodeId) -> Option<(ValueId, f64)> {
        if let Some([a, b]) = self.binary(n, Binary::Mul) {
            return match (self.scalar(a), self.scalar(b)) {
                (None, Some(x)) => Some((a, x)),
                (Some(x), None) => Some((b, x)),
                _ => None,
            };
        }
        let [a, b] = self.binary(n, Binary::Div)?;
        Some((a, 1.0 / self.scalar(b)?))
    }

    /// The value of a constant of one element.
    pub(super) fn scalar(&self, v: ValueId) -> Option<f64> {
        let elements = self.numbers(v).filter(|_| self.g.ty(v).elements() == 1)?;
        elements.first().copied()
    }

    /// The elements of a constant of floats.
    pub(super) fn numbers(&self, v: ValueId) -> Option<Vec<f64>> {
        let bytes = self.g.const_bytes(v)?;
        Some(match self.g.ty(v).dtype {
            DType::F32 => {
                bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
            }
            DType::F64 => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
            _ => return None,
        })
    }

    /// True where every element of `v` is known to be zero.
    pub(super) fn is_zero(&self, v: ValueId) -> bool {
        match self.node(v) {
            Some(Node { op: Op::Expand { .. }, inputs, .. }) => self.is_zero(inputs[0]),
            _ => self.numbers(v).is_some_and(|all| all.iter().all(|&x| x == 0.0)),
        }
    }

    /// The nodes that read a node's first result, in whatever shape and order of its last two
    /// axes; none where it outlives the step or parts of it are read.
    pub(super) fn consumers(&self, n: NodeId) -> Option<Vec<NodeId>> {
        self.readers_of(self.g.result(n)?)
    }

    /// The same of a value.
    pub(super) fn readers_of(&self, v: ValueId) -> Option<Vec<NodeId>> {
        let mut all = Vec::new();
        self.collect(v, &mut all)?;
        Some(all)
    }

    fn collect(&self, v: ValueId, all: &mut Vec<NodeId>) -> Option<()> {
        if self.kept[v] {
            return None;
        }
        for &reader in &self.readers[v] {
            let Node { op, inputs, .. } = &self.g.nodes[reader];
            let part = |&x: &ValueId| {
                self.g.resolve(x).root == v && self.g.ty(x).bytes() != self.g.ty(v).bytes()
            };
            if inputs.iter().any(part) {
                return None;
            }
            match op {
                Op::Reshape { .. } => self.collect(self.g.result(reader)?, all)?,
                Op::Transpose { perm } if exchanges_last_two(perm) => {
                    self.collect(self.g.result(reader)?, all)?;
                }
                _ => all.push(reader),
            }
        }
        Some(())
    }
}

/// The value whose elements `v` has under another shape, where that has the same matrices.
pub(super) fn base(g: &Graph, v: ValueId) -> ValueId {
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
    if matrices(before) == matrices(v) { base(g, before) } else { v }
}

/// True for a permutation that exchanges the last two axes.
pub(super) fn exchanges_last_two(perm: &[usize]) -> bool {
    let Some(rest) = perm.len().checked_sub(2) else { return false };
    perm[..rest].iter().enumerate().all(|(i, &p)| i == p) && perm[rest] == rest + 1
}
