//! Attention around its softmax.
//!
//! ```text
//! s = scale · (q kᵀ)             by a product or a quotient, or not at all
//! s = s + mask                   or where(c, s, −∞), or not at all
//! p = softmax(s)                 along the last axis
//! p = where(all(s = −∞), 0, p)   PyTorch's safe softmax, or not at all
//! d = dropout(p)                 by a ratio that is known, or not at all
//! o = d v
//! ```

use super::matrices::{Matrices, Matrix};
use arenic_ir::Backend;
use arenic_ir::graph::{Def, Node, NodeId, ValueId};
use arenic_ir::op::{AttentionDropout, AttentionSpec, Binary, Op, Reduction};
use arenic_ir::types::{DType, TensorType, broadcast_shapes};

/// What a causal mask has beyond the diagonal is not above this.
const CAUSAL: f64 = -1e4;

/// An attention that was found.
pub(super) struct Forward {
    pub(super) spec: AttentionSpec,
    /// Of the scores: the batch, queries and keys.
    pub(super) shape: Vec<usize>,
    pub(super) q: Matrix,
    /// Keys, not transposed.
    pub(super) k: Matrix,
    pub(super) v: Matrix,
    pub(super) mask: Option<Mask>,
    /// What the probabilities are, and the node that makes them.
    pub(super) p: ValueId,
    pub(super) probabilities: NodeId,
    /// The node whose result values are multiplied by: this one, or the dropout of its result.
    pub(super) factors: NodeId,
    /// The product with the values, whose place the attention takes.
    pub(super) last: NodeId,
    /// Elements of a query and of a value.
    pub(super) widths: [usize; 2],
}

/// What scores are masked by.
#[derive(Clone, Copy)]
pub(super) enum Mask {
    /// This is added.
    Added(ValueId),
    /// Scores count where the condition has this value; others are −∞.
    Where(ValueId, bool),
}

impl Forward {
    /// The types of `q`, `k` and `v`.
    pub(super) fn types(&self, dtype: DType) -> [TensorType; 3] {
        let (batch, &[d, e]) = (self.shape.len() - 2, &self.widths);
        let of = |rows: usize, columns: usize| {
            TensorType::new(dtype, [&self.shape[..batch], &[rows, columns]].concat())
        };
        let (t, s) = (self.shape[batch], self.shape[batch + 1]);
        [of(t, d), of(s, d), of(s, e)]
    }

    /// Which elements a dropout keeps.
    pub(super) fn kept(&self, m: &Matrices) -> Option<ValueId> {
        self.spec.dropout.and_then(|_| m.g.nodes[self.factors].outputs[1])
    }

    /// True where the mask is computed of a state, so that it may be trained.
    pub(super) fn mask_is_trained(&self, m: &Matrices) -> bool {
        let Some(Mask::Added(mask)) = self.mask else { return false };
        let mut next = vec![mask];
        let mut seen = vec![];
        while let Some(v) = next.pop() {
            let root = m.g.resolve(v).root;
            if seen.contains(&root) {
                continue;
            }
            seen.push(root);
            match m.g.values[root].def {
                Def::State(_) if m.g.ty(root).dtype.is_float() => return true,
                Def::Node { node, .. } => next.extend(&m.g.nodes[node].inputs),
                _ => {}
            }
        }
        false
    }
}

/// The attention of a softmax.
pub(super) fn attention(m: &Matrices, softmax: NodeId, backend: Backend) -> Option<Forward> {
    let Node { op: Op::Softmax { axis }, inputs, .. } = &m.g.nodes[softmax] else { return None };
    if axis + 1 != m.g.ty(inputs[0]).rank() || m.extents(inputs[0]).is_none() {
        return None;
    }
    let mut at = m.base(inputs[0]);
    let ty = m.g.ty(at).clone();
    // Masks and statistics of `bf16` have another type.
    if ty.dtype == DType::Bf16 {
        return None;
    }
    let mut inside = vec![softmax];
    let (probabilities, zero_rows) = match safe(m, softmax) {
        Some((node, test)) => {
            inside.push(test);
            (node, true)
        }
        None => (softmax, false),
    };
    let mut mask = None;
    if let Some((score, found)) = masked(m, at) {
        only_read_by(m, at, &inside)?;
        inside.push(m.definition(at)?);
        (at, mask) = (m.base(score), Some(found));
    }
    let mut scale = 1.0;
    while let Some((score, factor)) = m.definition(at).and_then(|n| m.scaled(n)) {
        only_read_by(m, at, &inside)?;
        inside.push(m.definition(at)?);
        (at, scale) = (m.base(score), scale * factor);
    }
    only_read_by(m, at, &inside)?;
    let product = m.product(m.definition(at)?)?;
    let p = m.g.result(probabilities)?;
    let (factors, dropout) = match dropped(m, probabilities) {
        Some((node, dropout)) => (node, Some(dropout)),
        None => (probabilities, None),
    };
    // What is left out of the batch would have to be repeated.
    let factor = Matrix { of: m.base(m.g.result(factors)?), trans: false };
    let values = |n: NodeId| {
        let product = m.product(n)?;
        (product.a == factor && product.b.of != factor.of).then_some((n, product.b))
    };
    // A second product with probabilities is of another kind, or there is no telling them apart.
    let mut products = m.consumers(factors)?.into_iter().filter_map(values);
    let ((last, v), None) = (products.next()?, products.next()) else { return None };
    let causal = matches!(mask, Some(Mask::Added(mask)) if is_causal(m, mask, &ty));
    if causal {
        mask = None;
    }
    let spec = AttentionSpec { scale, causal, zero_rows, dropout };
    let width =
        |x: Matrix| m.extents(x.of).map(|[rows, columns]| if x.trans { rows } else { columns });
    let (q, k) = (product.a, product.b.transposed());
    let widths = [width(q)?, width(v)?];
    let shape = ty.shape.clone();
    let found = Forward { spec, shape, q, k, v, mask, p, probabilities, factors, last, widths };
    let types = found.types(ty.dtype);
    let fits = [q, k, v].iter().zip(&types).all(|(x, ty)| {
        m.g.ty(x.of).elements() == ty.elements() && width(*x) == ty.shape.last().copied()
    });
    let accepted = Op::Attention { spec }.infer(&[&types[0], &types[1], &types[2]]).is_ok();
    // The gradient's kernel needs more room than the attention's.
    let operands: Vec<&TensorType> = types.iter().collect();
    let has_kernel = backend.kernels.takes(&Op::AttentionGrad { spec }, &operands, &[]);
    (fits && accepted && has_kernel).then_some(found)
}

/// The dropout of probabilities, by a ratio that is known.
fn dropped(m: &Matrices, probabilities: NodeId) -> Option<(NodeId, AttentionDropout)> {
    let dropout = |n: NodeId| {
        let Node { op: Op::Dropout { rng }, inputs, .. } = &m.g.nodes[n] else { return None };
        let dropout = AttentionDropout { ratio: m.scalar(inputs[1])?, rng: *rng };
        dropout.is_sound().then_some((n, dropout))
    };
    m.consumers(probabilities)?.into_iter().find_map(dropout)
}

/// Refuses a value that other nodes read as well.
fn only_read_by(m: &Matrices, v: ValueId, inside: &[NodeId]) -> Option<()> {
    let consumers = m.consumers(m.definition(v)?)?;
    consumers.iter().all(|n| inside.contains(n)).then_some(())
}

/// What is masked, and by what.
fn masked(m: &Matrices, v: ValueId) -> Option<(ValueId, Mask)> {
    let n = m.definition(v)?;
    if let Some([a, b]) = m.binary(n, Binary::Add) {
        let is_score = |x: ValueId| {
            let mut at = m.base(x);
            while let Some((score, _)) = m.definition(at).and_then(|n| m.scaled(n)) {
                at = m.base(score);
            }
            m.g.ty(x).shape == m.g.ty(v).shape
                && m.definition(at).is_some_and(|n| m.product(n).is_some())
        };
        return match (is_score(a), is_score(b)) {
            (true, false) => Some((a, Mask::Added(b))),
            (false, true) => Some((b, Mask::Added(a))),
            _ => None,
        };
    }
    let Node { op: Op::Where, inputs, .. } = &m.g.nodes[n] else { return None };
    let [condition, a, b] = inputs[..] else { return None };
    let infinite = |x: ValueId| m.scalar(x) == Some(f64::NEG_INFINITY);
    let (score, counts) = match (infinite(a), infinite(b)) {
        (false, true) => (a, true),
        (true, false) => (b, false),
        _ => return None,
    };
    (m.g.ty(score).shape == m.g.ty(v).shape).then_some((score, Mask::Where(condition, counts)))
}

/// Where a softmax is a safe one: the node that gives it, and the one that tests the scores.
fn safe(m: &Matrices, softmax: NodeId) -> Option<(NodeId, NodeId)> {
    let [choice] = m.consumers(softmax)?[..] else { return None };
    let Node { op: Op::Where, inputs, .. } = &m.g.nodes[choice] else { return None };
    let &[condition, zero, p] = &inputs[..] else { return None };
    if m.base(p) != m.g.result(softmax)? || !m.is_zero(zero) {
        return None;
    }
    // all(s = −∞), as a minimum of integers.
    let mut at = m.node(condition)?;
    if let Node { op: Op::Cast { to: DType::Bool }, inputs, .. } = at {
        at = m.node(inputs[0])?;
    }
    let Node { op: Op::Reduce { f: Reduction::Min, axes, keep: true }, inputs, .. } = at else {
        return None;
    };
    let Op::Softmax { axis } = m.g.nodes[softmax].op else { return None };
    let integers = m.node(inputs[0])?;
    let Node { op: Op::Cast { to }, inputs: equal, .. } = integers else { return None };
    let test = m.definition(equal[0])?;
    let [a, b] = m.binary(test, Binary::Equal)?;
    let scores = m.base(m.g.nodes[softmax].inputs[0]);
    let (score, other) = if m.base(a) == scores { (a, b) } else { (b, a) };
    let fits = axes[..] == [axis]
        && to.is_int()
        && m.base(score) == scores
        && m.scalar(other) == Some(f64::NEG_INFINITY);
    fits.then_some((choice, test))
}

/// True for a constant that is 0 up to the diagonal, and beyond it so low that its exponential
/// is 0.
fn is_causal(m: &Matrices, mask: ValueId, scores: &TensorType) -> bool {
    let (Some([t, s]), shape) = (m.extents(mask), &m.g.ty(mask).shape) else { return false };
    let whole = scores.shape.ends_with(&[t, s])
        && broadcast_shapes(shape, &scores.shape).as_ref() == Some(&scores.shape);
    let in_order = |(i, &x): (usize, &f64)| match i % s <= i / s % t {
        true => x == 0.0,
        false => x <= CAUSAL,
    };
    whole && m.numbers(mask).is_some_and(|all| all.iter().enumerate().all(in_order))
}
