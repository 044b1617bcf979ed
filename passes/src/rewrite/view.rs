//! A graph as matchers see it.

use crate::Evaluate;
use crate::views::contiguous;
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary};
use arenic_ir::types::DType;
use bytes::Bytes;
use cranelift_entity::SecondaryMap;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::iter::successors;

/// Most nodes that a walk along readers looks at. Normalisations and activations have fewer.
const MOST_NODES: usize = 64;

/// Most bytes of a value that is evaluated to know it, as the indices of 16 masks of 1,024 queries.
const MOST_BYTES: u64 = 256 << 20;

/// Bytes up to which a value is kept that others may be evaluated of, too.
const SMALL_BYTES: u64 = 4 << 20;

/// A graph, and who reads what.
pub(crate) struct GraphView<'a> {
    pub(crate) g: &'a Graph,
    /// Readers of every root, in definition order.
    pub(crate) readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// Roots that are outputs or exit values.
    pub(crate) kept: SecondaryMap<ValueId, bool>,
    evaluator: Option<&'a dyn Evaluate>,
    evaluated: RefCell<HashMap<ValueId, Option<Bytes>>>,
}

impl<'a> GraphView<'a> {
    pub(crate) fn new(g: &'a Graph) -> Self {
        GraphView {
            g,
            readers: g.readers(),
            kept: g.kept(),
            evaluator: None,
            evaluated: RefCell::default(),
        }
    }

    /// The same view, which also knows what follows from constants alone.
    pub(crate) fn evaluating(self, evaluator: Option<&'a dyn Evaluate>) -> Self {
        GraphView { evaluator, ..self }
    }

    /// `v`, and the values whose elements it has under other shapes, each made of the next one.
    pub(crate) fn shapes(&self, v: ValueId) -> impl Iterator<Item = ValueId> {
        successors(Some(v), |&v| same_elements(self.g, v))
    }

    /// The value whose elements `v` has under another shape.
    pub(crate) fn base(&self, v: ValueId) -> ValueId {
        self.shapes(v).last().unwrap_or(v)
    }

    /// The operand and the result of a node that gives the elements of its operand another shape.
    pub(crate) fn reshaped_by(&self, n: NodeId) -> Option<[ValueId; 2]> {
        let result = self.g.result(n)?;
        same_elements(self.g, result).map(|of| [of, result])
    }

    /// The node whose first result has the elements of `v`.
    pub(crate) fn definition(&self, v: ValueId) -> Option<NodeId> {
        match self.g.values[self.base(v)].def {
            Def::Node { node, output: 0 } => Some(node),
            _ => None,
        }
    }

    /// The same node itself.
    pub(crate) fn node(&self, v: ValueId) -> Option<&'a Node> {
        self.definition(v).map(|n| &self.g.nodes[n])
    }

    /// The node of which a value is a result, or part of one.
    pub(crate) fn maker(&self, v: ValueId) -> Option<NodeId> {
        match self.g.values[self.g.resolve(v).root].def {
            Def::Node { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The operands of the node that makes `v`, if it applies `f`.
    pub(crate) fn binary(&self, v: ValueId, f: Binary) -> Option<[ValueId; 2]> {
        self.applied(self.definition(v)?, f)
    }

    /// The operands of a node that applies `f`.
    pub(crate) fn applied(&self, n: NodeId, f: Binary) -> Option<[ValueId; 2]> {
        match &self.g.nodes[n] {
            Node { op: Op::Binary { f: of }, inputs, .. } if *of == f => {
                inputs.get(..2)?.try_into().ok()
            }
            _ => None,
        }
    }

    /// The operands of the node that makes `v`, in both orders, if it applies `f`.
    pub(crate) fn commuted(
        &self,
        v: ValueId,
        f: Binary,
    ) -> impl Iterator<Item = [ValueId; 2]> + use<> {
        let both = self.binary(v, f).map(|[a, b]| [[a, b], [b, a]]);
        both.into_iter().flatten()
    }

    /// The other operand of a node that applies `f` to the elements of `v`.
    pub(crate) fn other(&self, n: NodeId, f: Binary, v: ValueId) -> Option<ValueId> {
        let [a, b] = self.applied(n, f)?;
        match (self.base(a) == self.base(v), self.base(b) == self.base(v)) {
            (true, false) => Some(b),
            (false, true) => Some(a),
            _ => None,
        }
    }

    /// The operand of the node that makes `v`, if it applies `f`.
    pub(crate) fn unary(&self, v: ValueId, f: Unary) -> Option<ValueId> {
        match self.node(v)? {
            Node { op: Op::Unary { f: of }, inputs, .. } if *of == f => inputs.first().copied(),
            _ => None,
        }
    }

    /// The condition and the two values of which `v` is a choice.
    pub(crate) fn choice(&self, v: ValueId) -> Option<[ValueId; 3]> {
        match self.node(v)? {
            Node { op: Op::Where, inputs, .. } => inputs[..].try_into().ok(),
            _ => None,
        }
    }

    /// The operand that is `v` with other elements of a type, if a cast makes it.
    pub(crate) fn cast(&self, v: ValueId) -> Option<(ValueId, DType)> {
        match self.node(v)? {
            Node { op: Op::Cast { to }, inputs, .. } => Some((*inputs.first()?, *to)),
            _ => None,
        }
    }

    /// What `v` is the reduction of along an axis, which stays with extent 1, and the axis.
    pub(crate) fn reduced(&self, v: ValueId, f: Reduction) -> Option<(ValueId, usize)> {
        match self.node(v)? {
            Node { op: Op::Reduce { f: of, axes, keep: true }, inputs, .. } if *of == f => {
                match axes[..] {
                    [axis] => Some((*inputs.first()?, axis)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// What `v` is the reduction of along its last axis, which stays with extent 1.
    pub(crate) fn reduced_rows(&self, v: ValueId, f: Reduction) -> Option<ValueId> {
        let (x, axis) = self.reduced(v, f)?;
        (axis + 1 == self.g.ty(x).rank()).then_some(x)
    }

    /// What `v` is a multiple of, and the factor: a product with a number, or a quotient by one.
    pub(crate) fn scaled(&self, v: ValueId) -> Option<(ValueId, f64)> {
        self.scaled_by(self.definition(v)?)
    }

    /// The same of a node's result.
    pub(crate) fn scaled_by(&self, n: NodeId) -> Option<(ValueId, f64)> {
        if let Some([a, b]) = self.applied(n, Binary::Mul) {
            return match (self.scalar(a), self.scalar(b)) {
                (None, Some(x)) => Some((a, x)),
                (Some(x), None) => Some((b, x)),
                _ => None,
            };
        }
        let [a, b] = self.applied(n, Binary::Div)?;
        Some((a, 1.0 / self.scalar(b)?))
    }

    /// What a value repeats along axes, if it does.
    pub(crate) fn expanded(&self, v: ValueId) -> Option<ValueId> {
        match self.node(v)? {
            Node { op: Op::Expand { .. }, inputs, .. } => inputs.first().copied(),
            _ => None,
        }
    }

    /// The nodes that read the elements of `v`, in whatever shape, in definition order.
    pub(crate) fn consumers(&self, v: ValueId) -> Vec<NodeId> {
        let mut all = BTreeSet::new();
        let mut stack = vec![self.g.resolve(v).root];
        while let Some(v) = stack.pop() {
            for &n in &self.readers[v] {
                match self.reshaped_by(n) {
                    Some([_, result]) => stack.push(result),
                    None => _ = all.insert(n),
                }
            }
        }
        all.into_iter().collect()
    }

    /// The nodes that read `v`, in whatever shape, in definition order; `None` if it outlives the step
    /// or if somebody reads a part of it.
    pub(crate) fn uses(&self, v: ValueId) -> Option<Vec<NodeId>> {
        self.uses_through(v, |_| false)
    }

    /// The same, with those that read what an operator that `is_passed` makes of `v` in the place of
    /// that operator.
    pub(crate) fn uses_through(
        &self,
        v: ValueId,
        is_passed: impl Fn(&Op) -> bool,
    ) -> Option<Vec<NodeId>> {
        let (mut all, mut stack) = (BTreeSet::new(), vec![v]);
        while let Some(v) = stack.pop() {
            let is_part = |&x: &ValueId| {
                self.g.resolve(x).root == v && self.g.ty(x).bytes() != self.g.ty(v).bytes()
            };
            if self.kept[v] {
                return None;
            }
            for &n in &self.readers[v] {
                let Node { op, inputs, .. } = &self.g.nodes[n];
                if inputs.iter().any(is_part) {
                    return None;
                }
                let is_passed = is_passed(op) || self.reshaped_by(n).is_some();
                match self.g.result(n).filter(|_| is_passed) {
                    Some(result) => stack.push(result),
                    None => _ = all.insert(n),
                }
            }
        }
        Some(all.into_iter().collect())
    }

    /// The only node that reads `v`.
    pub(crate) fn only_use(&self, v: ValueId) -> Option<NodeId> {
        match self.uses(v)?[..] {
            [n] => Some(n),
            _ => None,
        }
    }

    /// True where `v` has the elements of `of`.
    pub(crate) fn is(&self, v: ValueId, of: ValueId) -> bool {
        self.base(v) == self.base(of)
    }

    /// True where nobody outside of `inside` reads what these nodes give, but for `results`.
    pub(crate) fn is_closed(&self, inside: &BTreeSet<NodeId>, results: &[ValueId]) -> bool {
        let given = inside.iter().flat_map(|&n| self.g.nodes[n].outputs.iter().flatten());
        given
            .filter(|v| !results.contains(v))
            .all(|&v| self.is_read_inside(v, &|n| inside.contains(&n)))
    }

    /// True for a value that only these nodes read, perhaps through changes of shape.
    pub(crate) fn is_read_inside(&self, v: ValueId, inside: &dyn Fn(NodeId) -> bool) -> bool {
        let is_inside = |&n: &NodeId| {
            let reshaped = self.reshaped_by(n);
            inside(n) || reshaped.is_some_and(|[_, v]| self.is_read_inside(v, inside))
        };
        !self.kept[v] && self.readers[v].iter().all(is_inside)
    }

    /// Walks along readers from these values on, breadth first. `visit` is given each node with its
    /// first result, once, and says whether the walk goes on with its readers.
    pub(crate) fn walk(
        &self,
        from: impl IntoIterator<Item = ValueId>,
        mut visit: impl FnMut(NodeId, ValueId) -> bool,
    ) {
        let mut queue: VecDeque<ValueId> = from.into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(v) = queue.pop_front().filter(|_| seen.len() < MOST_NODES) {
            for n in self.consumers(v) {
                if let Some(y) = self.g.result(n).filter(|_| seen.insert(n))
                    && visit(n, y)
                {
                    queue.push_back(y);
                }
            }
        }
    }

    /// The value of all elements of a constant of floats, if they are the same.
    pub(crate) fn number(&self, v: ValueId) -> Option<f64> {
        if let Some(of) = self.expanded(v) {
            return self.number(of);
        }
        let numbers = Numbers::new(self.g.ty(v).dtype, self.g.const_bytes(v)?)?;
        let mut numbers = numbers.iter();
        let first = numbers.next()?;
        numbers.all(|x| x == first).then_some(first)
    }

    /// The value of a constant of one element.
    pub(crate) fn scalar(&self, v: ValueId) -> Option<f64> {
        self.number(v).filter(|_| self.g.ty(v).elements() == 1)
    }

    /// The elements of a value of floats that follows from constants alone.
    pub(crate) fn numbers(&self, v: ValueId) -> Option<Numbers> {
        Numbers::new(self.g.ty(v).dtype, self.known(v)?)
    }

    /// The bytes of a value that follows from constants alone. Named constants of floats count as
    /// such: a mask is one in files that train nothing.
    pub(crate) fn known(&self, v: ValueId) -> Option<Bytes> {
        let evaluator = self.evaluator;
        if let Some(known) = self.evaluated.borrow().get(&v) {
            return known.clone();
        }
        let known = self.evaluate(evaluator, v, &mut HashMap::new());
        self.evaluated.borrow_mut().insert(v, known.clone());
        known
    }

    /// Evaluates what a value is made of. Of that, only what is `small` is kept for other readers.
    fn evaluate(
        &self,
        evaluator: Option<&dyn Evaluate>,
        v: ValueId,
        small: &mut HashMap<ValueId, Option<Bytes>>,
    ) -> Option<Bytes> {
        if let Some(bytes) = self.g.const_bytes(v) {
            return Some(bytes);
        }
        let Def::Node { node, output: 0 } = self.g.values[v].def else { return None };
        if let Some(known) = small.get(&v) {
            return known.clone();
        }
        let Node { op, inputs, .. } = &self.g.nodes[node];
        let size = self.g.ty(v).bytes();
        let mut compute = || {
            let evaluator = evaluator.filter(|_| op.rng().is_none() && size <= MOST_BYTES)?;
            let operands = inputs.iter().map(|&x| self.evaluate(evaluator.into(), x, small));
            let operands = operands.collect::<Option<Vec<Bytes>>>()?;
            let types = self.g.input_types(node).into_iter();
            let operands: Vec<_> = types.zip(operands.iter().map(|b| &b[..])).collect();
            evaluator.evaluate(op, &operands)?.into_iter().next().map(Bytes::from)
        };
        let known = compute();
        if size <= SMALL_BYTES || known.is_none() {
            small.insert(v, known.clone());
        }
        known
    }

    /// True where the elements of a value are there before a node, in whatever shape:
    /// [`Editor::reshaped`](super::Editor::reshaped) can give them the shape of `v` there.
    pub(crate) fn is_before(&self, v: ValueId, n: NodeId) -> bool {
        self.maker(self.base(v)).is_none_or(|maker| maker < n)
    }
}

/// The value of which `v` has all elements, in the same order: it is a view, or will be one.
pub(super) fn same_elements(g: &Graph, v: ValueId) -> Option<ValueId> {
    let of = match g.values[v].def {
        Def::View { of, .. } => of,
        Def::Node { node, output: 0 } => {
            let Node { op, inputs, .. } = &g.nodes[node];
            let &of = inputs.first()?;
            contiguous(op, g.ty(of), g.ty(v))?;
            of
        }
        _ => return None,
    };
    (g.ty(of).bytes() == g.ty(v).bytes()).then_some(of)
}

/// The elements of a constant of floats.
pub(crate) struct Numbers {
    dtype: DType,
    bytes: Bytes,
}

impl Numbers {
    fn new(dtype: DType, bytes: Bytes) -> Option<Numbers> {
        matches!(dtype, DType::F32 | DType::F64).then_some(Numbers { dtype, bytes })
    }

    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = f64> + '_> {
        match self.dtype {
            DType::F64 => Box::new(self.bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b))),
            _ => {
                Box::new(self.bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))))
            }
        }
    }
}
