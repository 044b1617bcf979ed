//! Nodes in the place of others.

use super::view::same_elements;
use crate::PassError;
use crate::dead_code::live;
use arenic_ir::graph::{Data, Def, Graph, NodeId, ValueId};
use arenic_ir::op::{Op, TypeError};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;

/// For each view that is all of a node's result, in the same shape, that result. Of states views stay: `precision` makes
/// a cast for all that read one value, which would live from the forward part of a layer to the backward part.
fn same_values(g: &Graph) -> SecondaryMap<ValueId, Option<ValueId>> {
    let mut same = SecondaryMap::new();
    for v in g.values.keys().filter(|&v| matches!(g.values[v].def, Def::View { .. })) {
        let root = g.resolve(v).root;
        // Of one type there is but one part.
        let is_same = g.ty(root) == g.ty(v) && matches!(g.values[root].def, Def::Node { .. });
        same[v] = is_same.then_some(root);
    }
    same
}

/// A graph with what is to become of it.
pub(crate) struct Editor<'a> {
    pub(crate) g: &'a mut Graph,
    /// Values that others take the place of.
    with: SecondaryMap<ValueId, Option<ValueId>>,
    /// New nodes, by the old ones that they stand before.
    before: SecondaryMap<NodeId, Vec<NodeId>>,
    /// The old nodes.
    old: Vec<NodeId>,
    /// Shapes are changed by views already.
    has_views: bool,
}

impl<'a> Editor<'a> {
    pub(crate) fn new(g: &'a mut Graph) -> Self {
        let old = g.nodes.keys().collect();
        let has_views = g.values.values().any(|v| matches!(v.def, Def::View { .. }));
        Editor { g, with: SecondaryMap::new(), before: SecondaryMap::new(), old, has_views }
    }

    /// Adds a node just before the old one `at`, of whose name it is; gives its results.
    ///
    /// # Errors
    /// The operands do not fit the operator.
    pub(crate) fn node(
        &mut self,
        at: NodeId,
        op: Op,
        operands: Vec<ValueId>,
    ) -> Result<Vec<ValueId>, PassError> {
        let name = self.g.nodes[at].name.clone();
        let node = self.g.add_node(name, op, operands)?;
        self.before[at].push(node);
        Ok(self.g.nodes[node].outputs.iter().copied().flatten().collect())
    }

    /// Adds a node just before the old one `at`; gives its first result.
    ///
    /// # Errors
    /// The operands do not fit the operator.
    pub(crate) fn value(
        &mut self,
        at: NodeId,
        op: Op,
        operands: Vec<ValueId>,
    ) -> Result<ValueId, PassError> {
        let first = self.node(at, op, operands)?.first().copied();
        first.ok_or_else(|| TypeError("a node without results".into()).into())
    }

    /// The elements of `v` in this shape: `v` itself or what it has the elements of, where that is
    /// there before `at`, or a `Reshape` there. Where the graph has views already, it is one of these: a graph may be
    /// differentiated only while it has none.
    ///
    /// # Errors
    /// There are more elements, or fewer.
    pub(crate) fn reshaped(
        &mut self,
        at: NodeId,
        v: ValueId,
        shape: &[usize],
    ) -> Result<ValueId, PassError> {
        let mut of = v;
        loop {
            if self.g.ty(of).shape == shape && self.is_before(of, at) {
                return Ok(of);
            }
            match same_elements(self.g, of) {
                Some(before) => of = before,
                None => break,
            }
        }
        let ty = TensorType::new(self.g.ty(of).dtype, shape);
        if !self.has_views || ty.elements() != self.g.ty(of).elements() {
            return self.value(at, Op::Reshape { shape: shape.to_vec() }, vec![of]);
        }
        Ok(self.g.add_view("", ty, of, 0))
    }

    /// False for results of `at` and of old nodes after it.
    fn is_before(&self, v: ValueId, at: NodeId) -> bool {
        match self.g.values[self.g.resolve(v).root].def {
            Def::Node { node, .. } => node < at || self.old.binary_search(&node).is_err(),
            _ => true,
        }
    }

    /// The elements of `v` that are first along every axis, in this shape: a view where they lie at the
    /// beginning and the graph has views already, else a `Slice` before `at`.
    ///
    /// # Errors
    /// There are fewer.
    pub(crate) fn leading(
        &mut self,
        at: NodeId,
        v: ValueId,
        shape: &[usize],
    ) -> Result<ValueId, PassError> {
        let TensorType { dtype, shape: whole } = self.g.ty(v).clone();
        let cut = (0..shape.len()).rfind(|&i| whole.get(i) != Some(&shape[i])).unwrap_or(0);
        let is_run = whole.len() == shape.len() && whole[..cut].iter().all(|&n| n == 1);
        if self.has_views && is_run && whole.iter().zip(shape).all(|(n, part)| part <= n) {
            return Ok(self.g.add_view("", TensorType::new(dtype, shape), v, 0));
        }
        let (starts, steps) = (vec![0; shape.len()], vec![1; shape.len()]);
        self.value(at, Op::Slice { starts, steps, shape: shape.to_vec() }, vec![v])
    }

    /// A constant of this shape whose elements are all `x`.
    pub(crate) fn constant(&mut self, ty: TensorType, x: f64) -> ValueId {
        let one = match ty.dtype {
            DType::F64 => x.to_le_bytes().to_vec(),
            _ => (x as f32).to_le_bytes().to_vec(),
        };
        let data = Data::Bytes(one.repeat(ty.elements()).into());
        self.g.add_const("", ty, data)
    }

    /// Lets `new`, in the shape of `old`, take the place and the name of `old`. Where it needs a
    /// reshape, that stands before `at`.
    ///
    /// # Errors
    /// Their numbers of elements differ.
    pub(crate) fn replace(
        &mut self,
        at: NodeId,
        old: ValueId,
        new: ValueId,
    ) -> Result<(), PassError> {
        let shape = self.g.ty(old).shape.clone();
        let new = self.reshaped(at, new, &shape)?;
        self.g.values[new].name = self.g.values[old].name.clone();
        self.with[old] = Some(new);
        Ok(())
    }

    /// Lets every use of `old` be one of `new`, a value of the same type that keeps its name.
    pub(crate) fn redirect(&mut self, old: ValueId, new: ValueId) {
        self.with[old] = Some(new);
    }

    /// True for a value that another one takes the place of.
    pub(crate) fn is_replaced(&self, v: ValueId) -> bool {
        self.with[v].is_some()
    }

    /// Lets every use of a replaced value be one of its replacement, puts new nodes at their places
    /// and drops all that nothing depends on any more.
    pub(crate) fn finish(self) {
        let Editor { g, with, mut before, old, .. } = self;
        g.replace_uses(&with);
        let same = same_values(g);
        for (v, root) in same.iter().filter_map(|(v, root)| Some((v, (*root)?))) {
            if g.values[root].name.is_empty() {
                g.values[root].name = g.values[v].name.clone();
            }
        }
        g.replace_uses(&same);
        let live = live(g);
        let all = old.into_iter().flat_map(|n| {
            let new = std::mem::take(&mut before[n]);
            new.into_iter().chain([n])
        });
        *g = g.arranged(&all.filter(|&n| live[n]).collect::<Vec<_>>());
    }
}
