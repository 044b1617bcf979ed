//! What is a GELU in its tanh form, or its gradient, beside a matrix product.
//!
//! With `t = tanh(α (z + κ z³))` GELU is `½ z + ½ z t`, and the gradient of `z` is the product `dy`
//! times `½ + ½ t + ½ z (1 − t²) α (1 + 3κ z²)`: polynomials in `z`, `t` and `dy`. Every `tanh` of
//! such a polynomial is one and the same `t`, be it stored or computed again.

use super::FuseGelu;
use crate::rewrite::{AxisGroups, Expressions, GraphView, Groups, Polynomial, is_product, rows};
use arenic_ir::graph::{Def, Node, NodeId, ValueId};
use arenic_ir::op::gelu::{CUBIC, SCALE};
use arenic_ir::op::{Op, Unary};
use arenic_ir::{TargetInfo, TensorType};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// More nodes are not looked at to find what a `tanh` or a GELU is part of.
const MOST: usize = 64;

/// A GELU of a product.
pub(super) struct Forward {
    pub(super) product: NodeId,
    /// The node in whose place it is computed.
    pub(super) at: NodeId,
    /// The operator that both are.
    pub(super) op: Op,
    /// What it is applied to.
    pub(super) z: ValueId,
    /// All that is its result.
    pub(super) y: Vec<ValueId>,
}

/// A product that is multiplied by the slope of a GELU.
pub(super) struct Gradient {
    pub(super) product: NodeId,
    /// The operator that both are.
    pub(super) op: Op,
    /// What the GELU is applied to.
    pub(super) z: ValueId,
    /// The product.
    pub(super) dy: ValueId,
    /// The gradient of `z`.
    pub(super) dz: ValueId,
}

/// All that the pass is to find.
pub(super) fn all(
    pass: &FuseGelu,
    view: &GraphView,
    target: TargetInfo,
) -> (Vec<Forward>, Vec<Gradient>) {
    let (mut forward, mut gradients) = (Vec::new(), Vec::new());
    for (z, tanh) in operands(view) {
        let Some(site) = Site::new(view, target, z, &tanh) else { continue };
        let own = if pass.backward { site.gradients() } else { Vec::new() };
        forward.extend(site.forward(&own).filter(|_| pass.forward));
        gradients.extend(own.into_iter().map(|(gradient, _)| gradient));
    }
    (forward, gradients)
}

/// What GELUs are applied to, each with all `tanh` that they are made of.
fn operands(r: &GraphView) -> BTreeMap<ValueId, Vec<ValueId>> {
    let mut all: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    for (n, node) in &r.g.nodes {
        if let (Op::Unary { f: Unary::Tanh }, Some(t)) = (&node.op, r.g.result(n))
            && let Some(z) = operand(r, node.inputs[0])
        {
            all.entry(z).or_default().push(t);
        }
    }
    all
}

/// The `z` of which this is `α (z + κ z³)`.
fn operand(r: &GraphView, inner: ValueId) -> Option<ValueId> {
    let mut queue = VecDeque::from([r.base(inner)]);
    let mut seen = BTreeSet::new();
    while let Some(v) = queue.pop_front().filter(|_| seen.len() < MOST) {
        let ty = r.g.ty(v);
        if !seen.insert(v) || r.number(v).is_some() || ty.elements() < 2 || !ty.dtype.is_float() {
            continue;
        }
        let (e, z) = whole(r, v);
        let cube = z.times(&z).and_then(|square| square.times(&z))?;
        let wanted = Polynomial::default().plus(SCALE, &z).plus(SCALE * CUBIC, &cube);
        let groups = e.groups.all();
        if e.polynomial(inner, groups).is_some_and(|p| p.equals(&wanted)) {
            return Some(v);
        }
        if let Some(n) = r.definition(v)
            && let Node { op: Op::Binary { .. }, inputs, .. } = &r.g.nodes[n]
        {
            queue.extend(inputs.iter().map(|&x| r.base(x)));
        }
    }
    None
}

/// Expressions in a tensor, all of whose axes go together.
fn whole<'a>(r: &'a GraphView<'a>, v: ValueId) -> (Expressions<'a>, Polynomial) {
    let groups = AxisGroups::new(vec![r.g.ty(v).elements()]);
    let all = groups.all();
    Expressions::new(r, groups).with(v, all)
}

/// Nodes, each with the groups that its result varies along.
type Nodes = BTreeMap<NodeId, Groups>;

/// What a GELU is applied to, and expressions in it.
struct Site<'a> {
    view: &'a GraphView<'a>,
    target: TargetInfo,
    z: ValueId,
    tanh: &'a [ValueId],
    expressions: Expressions<'a>,
    gelu: Polynomial,
    slope: Polynomial,
}

impl<'a> Site<'a> {
    fn new(
        view: &'a GraphView<'a>,
        target: TargetInfo,
        z: ValueId,
        tanh: &'a [ValueId],
    ) -> Option<Site<'a>> {
        let (e, z_) = whole(view, z);
        let groups = e.groups.all();
        let (_, t) = e.with(*tanh.first()?, groups);
        let expressions = e.with_all(tanh, groups, &t);
        let half = Polynomial::number(0.5);
        let value = half.plus(0.5, &t);
        let square = z_.times(&z_)?;
        let inner = Polynomial::number(SCALE).plus(3.0 * SCALE * CUBIC, &square);
        let rest = Polynomial::number(1.0).plus(-1.0, &t.times(&t)?);
        let slope = value.plus(0.5, &z_.times(&rest)?.times(&inner)?);
        let gelu = z_.times(&value)?;
        Some(Site { view, target, z, tanh, expressions, gelu, slope })
    }

    /// Results of nodes that are polynomials in what expressions know, from these values on; beside
    /// them, what else is read with them.
    fn reached(&self, e: &Expressions, from: &[ValueId]) -> (Vec<ValueId>, BTreeSet<ValueId>) {
        let (r, mut found, mut beside) = (self.view, Vec::new(), BTreeSet::new());
        r.walk(from.iter().copied(), |n, y| {
            let Node { op: Op::Binary { .. } | Op::Unary { .. }, inputs, .. } = &r.g.nodes[n]
            else {
                return false;
            };
            let is_known = e.polynomial(y, e.groups.all()).is_some();
            match is_known {
                true => found.push(y),
                false => beside.extend(inputs.iter().map(|&x| r.base(x))),
            }
            is_known
        });
        (found, beside)
    }

    fn starts(&self) -> Vec<ValueId> {
        [&[self.z], self.tanh].concat()
    }

    /// Every gradient of what the GELU is applied to that is made of a product, with the nodes
    /// between the two.
    fn gradients(&self) -> Vec<(Gradient, Nodes)> {
        let (_, beside) = self.reached(&self.expressions, &self.starts());
        // The product may be multiplied by a number first.
        let r = self.view;
        let mut stack: Vec<ValueId> = beside.into_iter().collect();
        let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
        while let Some(v) = stack.pop().filter(|_| seen.len() < MOST) {
            let Some(n) = r.definition(v).filter(|_| seen.insert(v)) else { continue };
            found.extend(self.gradient(v));
            if let Node { op: Op::Binary { .. } | Op::Unary { .. }, inputs, .. } = &r.g.nodes[n] {
                stack.extend(inputs.iter().map(|&x| r.base(x)));
            }
        }
        found
    }

    fn gradient(&self, dy: ValueId) -> Option<(Gradient, Nodes)> {
        let (g, r, z) = (self.view.g, self.view, self.z);
        let product = r.definition(dy).filter(|&n| is_product(g, n))?;
        let [trans_a, trans_b] = plain(&g.nodes[product].op)?;
        let groups = self.expressions.groups.all();
        if g.ty(dy).elements() != g.ty(z).elements() || r.kept[dy] {
            return None;
        }
        let (e, dy_) = self.expressions.with(dy, groups);
        let wanted = dy_.times(&self.slope)?;
        let is_gradient = |&v: &ValueId| e.polynomial(v, groups).is_some_and(|p| p.equals(&wanted));
        let dz = self.reached(&e, &[dy]).0.into_iter().find(is_gradient)?;
        let mut nodes = Nodes::new();
        e.collect(dz, groups, &mut nodes);
        let is_read_here = r.consumers(dy).iter().all(|n| nodes.contains_key(n));
        let op = Op::GemmGeluGrad { trans_a, trans_b };
        let matrix = TensorType::new(g.ty(z).dtype, rows(&g.ty(dy).shape));
        let is_possible = is_read_here
            && self.view.is_there_before(product, z)
            && self.is_taken(product, &op, Some(matrix), 1);
        is_possible.then_some((Gradient { product, op, z, dy, dz }, nodes))
    }

    /// The GELU as part of the product that it is applied to, where these gradients go, too.
    fn forward(&self, gradients: &[(Gradient, Nodes)]) -> Option<Forward> {
        let (g, r, e) = (self.view.g, self.view, &self.expressions);
        let product = r.definition(self.z)?;
        let node = &g.nodes[product];
        let [trans_a, trans_b] = plain(&node.op)?;
        let n = g.ty(self.z).shape.last().copied()?;
        let is_bias = |&c: &ValueId| g.ty(c).elements() == n && g.ty(c).shape.last() == Some(&n);
        let beta = if let Op::Gemm { beta, .. } = node.op { beta } else { 0.0 };
        let has_bias = node.inputs.get(2).is_some_and(is_bias) && beta == 1.0;
        if !has_bias && !is_product(g, product) {
            return None;
        }
        let groups = e.groups.all();
        let is_gelu = |v: &ValueId| e.polynomial(*v, groups).is_some_and(|p| p.equals(&self.gelu));
        let mut y = self.reached(e, &self.starts()).0;
        y.retain(is_gelu);
        y.sort_by_key(|&y| r.definition(y));
        let first = *y.first()?;

        // What is read for the GELU and its gradients alone is not computed any more.
        let mut nodes = Nodes::new();
        y.iter().for_each(|&y| e.collect(y, groups, &mut nodes));
        nodes.extend(gradients.iter().flat_map(|(_, nodes)| nodes));
        let (inner, _) = whole(r, self.z);
        for tanh in self.tanh.iter().filter_map(|&t| r.definition(t)) {
            nodes.insert(tanh, groups);
            inner.collect(g.nodes[tanh].inputs[0], groups, &mut nodes);
        }
        let replaced: Vec<ValueId> =
            y.iter().copied().chain(gradients.iter().map(|(found, _)| found.dz)).collect();
        let mut gone: BTreeSet<NodeId> = BTreeSet::new();
        for &n in nodes.keys().rev() {
            let is_gone = |&v: &ValueId| {
                let read = || self.view.readers[v].iter().all(|n| gone.contains(n));
                replaced.contains(&v) || !r.kept[v] && read()
            };
            if g.nodes[n].outputs.iter().flatten().all(is_gone) {
                gone.insert(n);
            }
        }
        let z_is_read = |n: &NodeId| !gone.contains(n);
        let mut others: Vec<NodeId> =
            self.view.readers[self.z].iter().copied().filter(z_is_read).collect();
        others.extend(gradients.iter().map(|(found, _)| found.product));
        let is_after = |&n: &NodeId| self.view.is_there_before(n, first);
        // A state may be renewed as soon as nobody needs its old value.
        let is_there_then = |v: ValueId| {
            let v = g.resolve(v).root;
            let mut readers = self.view.readers[v].iter();
            matches!(g.values[v].def, Def::Const(_))
                || r.kept[v]
                // As where it is whole, so that every level of sharding has the same bits.
                || self.view.is_gathered(v)
                || readers.any(|n| !gone.contains(n) && is_after(n))
        };
        let alone = others.is_empty() && !r.kept[self.z];
        let waits = || {
            let mut factors = node.inputs[..2].iter();
            others.iter().all(is_after) && factors.all(|&v| is_there_then(v))
        };
        let at = match r.definition(first)? {
            _ if alone => product,
            gelu if waits() => gelu,
            _ => return None,
        };
        let op = Op::GemmGelu { trans_a, trans_b };
        let bias = has_bias.then(|| TensorType::new(g.ty(self.z).dtype, [n]));
        let is_taken = self.is_taken(product, &op, bias, if alone { 1 } else { 2 });
        is_taken.then_some(Forward { product, at, op, z: self.z, y })
    }

    /// True where a library takes the operator with these first results if it takes the product,
    /// which is computed with a function of its sums and perhaps with a third operand.
    fn is_taken(
        &self,
        product: NodeId,
        op: &Op,
        third: Option<TensorType>,
        results: usize,
    ) -> bool {
        let g = self.view.g;
        let asks = |op: &Op, x: &[TensorType], results: usize| {
            let x: Vec<&TensorType> = x.iter().collect();
            let y = op.infer(&x).unwrap_or_default();
            let y: Vec<&TensorType> = y.iter().take(results).collect();
            op.may_use_library(self.target, &x, &y)
        };
        let own: Vec<TensorType> = g.input_types(product).into_iter().cloned().collect();
        let mut x = own[..2].to_vec();
        x[0].shape = rows(&x[0].shape).to_vec();
        x.extend(third);
        asks(op, &x, results) || !asks(&g.nodes[product].op, &own, 1)
    }
}

/// Which factors of a product that is multiplied by nothing else are transposed.
fn plain(op: &Op) -> Option<[bool; 2]> {
    match *op {
        Op::MatMul { trans_a, trans_b } => Some([trans_a, trans_b]),
        Op::Gemm { alpha: 1.0, trans_a, trans_b, .. } => Some([trans_a, trans_b]),
        _ => None,
    }
}
