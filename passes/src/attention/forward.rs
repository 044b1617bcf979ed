//! Attention around its softmax.
//!
//! ```text
//! s = scale · (q kᵀ)             by products and quotients, or not at all
//! s = factor · s                 of each query, as a temperature that is trained, or not at all
//! s = cap · tanh(s / cap)        or not at all
//! s = s + mask                   or where(c, s, −∞), both, or neither
//! p = softmax(s)                 along the last axis, perhaps guarded
//! d = dropout(p)                 by a ratio that is known, or not at all
//! o = d v
//! ```
//!
//! A guard gives zeros for rows that see nothing ([`guard`]).

use super::mask::Mask;
use super::matrices::{Matrix, Product, extents, matrix, product, readers, regrouped};
use crate::rewrite::GraphView;
use arenic_ir::Backend;
use arenic_ir::graph::{Node, NodeId, ValueId};
use arenic_ir::op::{AttentionDropout, AttentionSpec, Binary, Op, Reduction, Unary};
use arenic_ir::types::{DType, TensorType, broadcast_shapes};
use std::collections::BTreeSet;

/// Most nodes between a product and its softmax. Each sum has two operands that may be scores, so that the search
/// doubles with every one: a long chain of sums before a softmax is no attention.
const DEEPEST: usize = 12;

/// An attention that was found.
pub(super) struct Forward {
    pub(super) spec: AttentionSpec,
    /// Of the scores: the batch, queries and keys.
    pub(super) shape: Vec<usize>,
    pub(super) q: Matrix,
    /// What queries are multiplied by, and the shape of the scores that were.
    pub(super) factor: Option<(ValueId, Vec<usize>)>,
    /// Keys, not transposed.
    pub(super) k: Matrix,
    pub(super) v: Matrix,
    pub(super) masks: Vec<Mask>,
    /// The first so many of the masks are given a gradient, the sum of them.
    pub(super) trained: usize,
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

impl Forward {
    /// The types of `q`, `k` and `v`.
    pub(super) fn types(&self, dtype: DType) -> [TensorType; 3] {
        let (batch, &[d, e]) = (self.shape.len() - 2, &self.widths);
        let of = |shared: usize, rows: usize, columns: usize| {
            let mut shape = [&self.shape[..batch], &[rows, columns]].concat();
            if let Some(heads) = shape[..batch].last_mut() {
                *heads /= shared;
            }
            TensorType::new(dtype, shape)
        };
        let (t, s, shared) = (self.shape[batch], self.shape[batch + 1], self.spec.group);
        [of(1, t, d), of(shared, s, d), of(shared, s, e)]
    }

    /// Which elements a dropout keeps.
    pub(super) fn kept(&self, v: &GraphView) -> Option<ValueId> {
        self.spec.dropout.and_then(|_| v.g.nodes[self.factors].outputs[1])
    }

    /// The same, with masks that may be trained first. `None` where that gains nothing: the gradient of
    /// a mask that has all of the scores, and that no other attention has, is stored as scores would be.
    pub(super) fn trained(mut self, v: &GraphView) -> Option<Forward> {
        let (mut masks, others): (Vec<_>, Vec<_>) =
            self.masks.into_iter().partition(|mask| mask.is_trained(v));
        self.trained = masks.len();
        let shapes = masks.iter().map(|mask| mask.shape_in(v, &self.shape));
        let sum = shapes.reduce(|a, b| broadcast_shapes(&a?, &b?)).flatten();
        let is_own = masks.iter().any(|mask| v.consumers(mask.value()).len() == 1);
        masks.extend(others);
        self.masks = masks;
        (!is_own || sum.as_ref() != Some(&self.shape)).then_some(self)
    }

    /// The same where scales of queries and keys are the attention's, and where heads share keys and
    /// values instead of having copies of them. Of an attention without its gradient, which would
    /// be one of the scaled and repeated operands.
    pub(super) fn simplified(mut self, v: &GraphView, backend: Backend) -> Forward {
        for x in [&mut self.q, &mut self.k] {
            while let Some((of, factor)) = unscaled(v, *x) {
                (*x, self.spec.scale) = (of, self.spec.scale * factor);
            }
        }
        let shared = [self.k, self.v].map(|x| unrepeated(v, x));
        if let [Some((mut k, group)), Some((values, same))] = shared
            && group == same
            && self.spec.group == 1
        {
            let mut spec = AttentionSpec { group, ..self.spec };
            while let Some((of, factor)) = unscaled(v, k) {
                (k, spec.scale) = (of, spec.scale * factor);
            }
            let alone = (self.spec, self.k, self.v);
            (self.spec, self.k, self.v) = (spec, k, values);
            if !self.is_accepted(v, backend) {
                (self.spec, self.k, self.v) = alone;
            }
        }
        self
    }

    /// The same with sequences and heads as two axes of the batch, where exporters make one of them for the
    /// products (`bmm`) and all operands have two: transposes of heads and positions may then become the attention's.
    fn by_heads(self, v: &GraphView) -> Forward {
        let [all, t, s] = self.shape[..] else { return self };
        let batch = |x: Matrix| match v.g.ty(x.of).shape[..] {
            [sequences, heads, _, _] if sequences * heads == all => Some([sequences, heads]),
            _ => None,
        };
        let [Some([sequences, heads]), k, values] = [self.q, self.k, self.v].map(batch) else {
            return self;
        };
        let shape = vec![sequences, heads, t, s];
        let moves = self.masks.iter().all(|mask| mask.shape_in(v, &shape).is_some())
            && self
                .factor
                .iter()
                .all(|(x, from)| regrouped(&v.g.ty(*x).shape, from, &shape).is_some());
        match [k, values] == [Some([sequences, heads]); 2] && moves && self.spec.group == 1 {
            true => Forward { shape, ..self },
            false => self,
        }
    }

    /// True where the operator takes these operands, and the backend has a kernel of its gradient,
    /// which needs more room than its own.
    fn is_accepted(&self, v: &GraphView, backend: Backend) -> bool {
        let types = self.types(v.g.ty(self.p).dtype);
        let operands: Vec<&TensorType> = types.iter().collect();
        let fits = [self.q, self.k, self.v].iter().zip(&types).all(|(x, ty)| {
            v.g.ty(x.of).elements() == ty.elements() && width(v, *x) == ty.shape.last().copied()
        });
        fits && Op::Attention { spec: self.spec }.infer(&operands).is_ok()
            && backend.kernels.takes(
                &Op::AttentionGrad { spec: self.spec, of_mask: false, has_result: false },
                &operands,
                &[],
            )
    }
}

/// The columns of a matrix.
fn width(v: &GraphView, x: Matrix) -> Option<usize> {
    extents(v, x.of).map(|[rows, columns]| if x.trans { rows } else { columns })
}

/// What a batch of matrices is a multiple of, and the factor.
fn unscaled(v: &GraphView, x: Matrix) -> Option<(Matrix, f64)> {
    let (of, factor) = v.scaled(x.of)?;
    (v.g.ty(of).shape == v.g.ty(x.of).shape).then(|| (matrix(v, of, x.trans), factor))
}

/// What a batch of matrices repeats one by one, and how often.
fn unrepeated(v: &GraphView, x: Matrix) -> Option<(Matrix, usize)> {
    let of = v.expanded(x.of)?;
    let shape = &v.g.ty(v.base(x.of)).shape;
    let [batch @ .., group, rows, columns] = &shape[..] else { return None };
    let once = [batch, &[1, *rows, *columns]].concat();
    let fits = v.g.ty(of).shape == once && extents(v, x.of) == Some([*rows, *columns]);
    fits.then(|| (matrix(v, of, x.trans), *group))
}

/// How many heads share keys and values of which there is one matrix for all of them, so that
/// products broadcast them; 1 if they do not.
fn broadcast(v: &GraphView, operands: [Matrix; 2], scores: &[usize]) -> usize {
    let [batch @ .., heads, _, _] = scores else { return 1 };
    let is_shared = |x: &Matrix| match &v.g.ty(x.of).shape[..] {
        [of @ .., 1, _, _] => of == batch,
        _ => false,
    };
    if operands.iter().all(is_shared) { (*heads).max(1) } else { 1 }
}

/// The attention of a softmax.
pub(super) fn attention(v: &GraphView, softmax: NodeId, backend: Backend) -> Option<Forward> {
    let Node { op: Op::Softmax { axis }, inputs, .. } = &v.g.nodes[softmax] else { return None };
    let ty = v.g.ty(inputs[0]);
    // Masks and statistics of `bf16` have another type.
    if axis + 1 != ty.rank() || ty.rank() < 2 || ty.dtype == DType::Bf16 {
        return None;
    }
    let guarded = guard(v, softmax)?;
    let scores = scores(v, guarded.scores, DEEPEST)?;
    let probabilities = guarded.probabilities;
    let p = v.g.result(probabilities)?;
    let mut inside = guarded.inside;
    inside.extend(scores.inside);
    inside.extend([softmax, probabilities]);
    if extents(v, guarded.scores) != extents(v, p) || !v.is_closed(&inside, &[p]) {
        return None;
    }
    let (factors, dropout) = match dropped(v, probabilities) {
        Some((node, dropout)) => (node, Some(dropout)),
        None => (probabilities, None),
    };
    // What is left out of the batch would have to be repeated.
    let factor = matrix(v, v.g.result(factors)?, false);
    let values = |n: NodeId| {
        let product = product(v, n)?;
        (product.a == factor && product.b.of != factor.of).then_some((n, product.b))
    };
    // A second product with probabilities is of another kind, or there is no telling them apart.
    let mut products = readers(v, factors)?.into_iter().filter_map(values);
    let ((last, values), None) = (products.next()?, products.next()) else { return None };
    let (q, k) = (scores.product.a, scores.product.b.transposed());
    let spec = AttentionSpec {
        zero_rows: guarded.zero_rows,
        dropout,
        softcap: scores.cap,
        group: broadcast(v, [k, values], &scores.shape),
        ..AttentionSpec::scaled(scores.scale)
    };
    let mut found = Forward {
        spec,
        shape: scores.shape,
        q,
        factor: scores.factor,
        k,
        v: values,
        masks: scores.masks,
        trained: 0,
        p,
        probabilities,
        factors,
        last,
        widths: [width(v, q)?, width(v, values)?],
    };
    found.spec.causal = found.masks.iter().any(|mask| mask.hides_later_keys(v));
    found.masks.retain(|mask| !mask.is_causal(v) && !mask.is_open(v));
    let found = found.by_heads(v);
    found.is_accepted(v, backend).then_some(found)
}

/// Scores before they are guarded.
struct Scores {
    product: Product,
    shape: Vec<usize>,
    scale: f64,
    factor: Option<(ValueId, Vec<usize>)>,
    cap: Option<f64>,
    masks: Vec<Mask>,
    /// The nodes that make them.
    inside: Vec<NodeId>,
}

/// Scores as they are written above, by at most so many nodes.
fn scores(v: &GraphView, s: ValueId, most: usize) -> Option<Scores> {
    let most = most.checked_sub(1)?;
    let n = v.definition(s)?;
    let shape = v.g.ty(v.g.result(n)?).shape.clone();
    let mut found = if let Some(product) = product(v, n) {
        let (masks, inside) = (vec![], vec![]);
        Scores { product, shape, scale: 1.0, factor: None, cap: None, masks, inside }
    } else if let Some((x, factor)) = v.scaled(s) {
        let tanh = v.unary(x, Unary::Tanh);
        let mut found = scores(v, tanh.unwrap_or(x), most)?;
        if found.cap.is_some() || !found.masks.is_empty() {
            return None;
        }
        if tanh.is_some() {
            found.cap = Some(factor).filter(|&cap| cap > 0.0 && cap.is_finite());
            found.cap?;
            found.inside.push(v.definition(x)?);
        }
        found.scale *= factor;
        found
    } else if let Some((x, factor)) = multiplied(v, s, most) {
        let mut found = scores(v, x, most)?;
        if found.factor.is_some() || found.cap.is_some() || !found.masks.is_empty() {
            return None;
        }
        found.factor = Some((factor, shape.clone()));
        found.shape = shape;
        found
    } else {
        let (x, mask) = Mask::of(v, s, &|x| scores(v, x, most).is_some())?;
        let mut found = scores(v, x, most)?;
        let moves = |(x, from): &(ValueId, Vec<usize>)| {
            regrouped(&v.g.ty(*x).shape, from, &shape).is_some()
        };
        if !found.factor.iter().all(moves)
            || found.masks.iter().any(|mask| mask.shape_in(v, &shape).is_none())
        {
            return None;
        }
        found.masks.extend(mask.parts(v));
        found.shape = shape;
        found
    };
    found.inside.push(n);
    Some(found)
}

/// The scores that `s` multiplies, and by what: one number for each query, or for all of a matrix.
fn multiplied(v: &GraphView, s: ValueId, most: usize) -> Option<(ValueId, ValueId)> {
    let shape = &v.g.ty(v.base(s)).shape;
    let is_of_rows = |&[x, factor]: &[ValueId; 2]| {
        v.g.ty(x).shape == *shape
            && v.g.ty(factor).shape.last() == Some(&1)
            && scores(v, x, most).is_some()
    };
    v.commuted(s, Binary::Mul).find(is_of_rows).map(|[x, factor]| (x, factor))
}

/// A softmax and what guards it.
struct Guarded {
    /// The softmax's operand, or what it is where a row sees something.
    scores: ValueId,
    /// The node that gives the probabilities.
    probabilities: NodeId,
    zero_rows: bool,
    inside: BTreeSet<NodeId>,
}

/// The guard of a softmax `p` of `s`, in one of the ways in which exporters write it:
///
/// ```text
/// where(all(s = −∞), 0, p)                                   PyTorch's decomposition
/// where(is_nan(p), 0, p)                                     PyTorch's ONNX exporter
/// where(none, 0, softmax(where(none, 0, s)))                 ONNX's Attention
///     none = (max(s) = −∞)
/// ```
///
/// Of the second, a row with a NaN among its scores gives NaN afterwards.
fn guard(v: &GraphView, softmax: NodeId) -> Option<Guarded> {
    let (s, p) = (v.g.nodes[softmax].inputs[0], v.g.result(softmax)?);
    let choices = v.consumers(p).into_iter().filter_map(|n| Some((n, v.choice(v.g.result(n)?)?)));
    for (probabilities, [test, zero, other]) in choices {
        if !v.is(other, p) || v.number(zero) != Some(0.0) {
            continue;
        }
        let mut guarded =
            Guarded { scores: s, probabilities, zero_rows: true, inside: BTreeSet::new() };
        let tests = [all_hidden(v, test, s), is_nan(v, test, p)];
        if let Some(inside) = tests.into_iter().flatten().next() {
            guarded.inside.extend(inside);
            return Some(guarded);
        }
        if let Some([same, zero, scores]) = v.choice(s)
            && v.is(same, test)
            && v.number(zero) == Some(0.0)
            && let Some(inside) = most_is_hidden(v, test, scores)
        {
            guarded.inside.extend(inside.into_iter().chain(v.definition(s)));
            return Some(Guarded { scores, ..guarded });
        }
    }
    let (probabilities, inside) = (softmax, BTreeSet::new());
    Some(Guarded { scores: s, probabilities, zero_rows: false, inside })
}

/// The nodes of `all(s = −∞)` along rows, a minimum of integers.
fn all_hidden(v: &GraphView, test: ValueId, s: ValueId) -> Option<Vec<NodeId>> {
    let least = match v.cast(test) {
        Some((of, DType::Bool)) => of,
        _ => test,
    };
    let integers = v.reduced_rows(least, Reduction::Min)?;
    let (equal, to) = v.cast(integers)?;
    let hidden = |[a, b]: [ValueId; 2]| v.is(a, s) && v.scalar(b) == Some(f64::NEG_INFINITY);
    let fits = to.is_int() && v.commuted(equal, Binary::Equal).any(hidden);
    fits.then(|| [test, least, integers, equal].iter().filter_map(|&x| v.definition(x)).collect())
}

/// The nodes of `is_nan(p)`, which is `not(p = p)`.
fn is_nan(v: &GraphView, test: ValueId, p: ValueId) -> Option<Vec<NodeId>> {
    let same = v.unary(test, Unary::Not)?;
    let is_one = v.binary(same, Binary::Equal)?.iter().all(|&x| v.is(x, p));
    is_one.then(|| [test, same].iter().filter_map(|&x| v.definition(x)).collect())
}

/// The nodes of `max(s) = −∞` along rows.
fn most_is_hidden(v: &GraphView, test: ValueId, s: ValueId) -> Option<Vec<NodeId>> {
    v.commuted(test, Binary::Equal).find_map(|[most, low]| {
        let of = v.reduced_rows(most, Reduction::Max)?;
        let fits = v.is(of, s) && v.scalar(low) == Some(f64::NEG_INFINITY);
        fits.then_some(vec![v.definition(test)?, v.definition(most)?])
    })
}

/// The dropout of probabilities, by a ratio that is known.
fn dropped(v: &GraphView, probabilities: NodeId) -> Option<(NodeId, AttentionDropout)> {
    let dropout = |n: NodeId| {
        let Node { op: Op::Dropout { rng }, inputs, .. } = &v.g.nodes[n] else { return None };
        let dropout = AttentionDropout { ratio: v.scalar(inputs[1])?, rng: *rng };
        dropout.is_sound().then_some((n, dropout))
    };
    readers(v, probabilities)?.into_iter().find_map(dropout)
}
