//! Normalisations.

use super::{Kind, Norm, Source};
use crate::rewrite::{Expressions, GraphView, Polynomial};
use arenic_ir::graph::{Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary};
use arenic_ir::types::DType;

/// Matches the normalisation whose result, or whose standard deviation, a node computes.
pub(super) fn norm<'a>(r: &'a GraphView<'a>, n: NodeId) -> Option<Norm<'a>> {
    let Node { op, inputs, outputs, .. } = &r.g.nodes[n];
    let (kind, statistics) = match *op {
        Op::LayerNorm { axis, .. } => (Kind::Layer { axis }, [1, 2]),
        Op::BatchNorm { .. } => (Kind::Batch, [1, 3]),
        Op::Unary { f: Unary::Sqrt } => return written(r, n),
        _ => return None,
    };
    let [mean, inv_std] = statistics.map(|i| outputs.get(i).copied().flatten());
    let (x, scale) = (*inputs.first()?, *inputs.get(1)?);
    of_operator(r, kind, x, [scale, mean?, inv_std?])
}

/// An operator of this operand, with its scale and the statistics that it gives.
fn of_operator<'a>(
    r: &'a GraphView<'a>,
    kind: Kind,
    x: ValueId,
    [scale, mean, inv_std]: [ValueId; 3],
) -> Option<Norm<'a>> {
    let source = Source::Operator { scale, mean, inv_std };
    let ty = r.g.ty(x).clone();
    let groups = kind.groups(&ty.shape);
    let (all, statistics) = (groups.all(), groups.all() & !kind.averaged());
    let (e, x_) = Expressions::new(r, groups).with(x, all);
    let (e, mean) = e.with(mean, statistics);
    let (expressions, inv_std) = e.with(inv_std, statistics);
    let centred = x_.plus(-1.0, &mean);
    let variance = None;
    Some(Norm { kind, source, x, ty, expressions, centred, mean, variance, inv_std })
}

/// The normalisation of which a square root is the standard deviation.
fn written<'a>(r: &'a GraphView<'a>, sqrt: NodeId) -> Option<Norm<'a>> {
    let std = r.g.result(sqrt)?;
    let under = *r.g.nodes[sqrt].inputs.first()?;
    let (x, axes) = varying(r, under)?;
    let ty = r.g.ty(x).clone();
    let rank = ty.rank();
    let first = *axes.first()?;
    let kind = if axes.iter().copied().eq(first..rank) {
        Kind::Layer { axis: first }
    } else if rank >= 2 && axes.iter().copied().eq((0..rank).filter(|&i| i != 1)) {
        Kind::Batch
    } else {
        return None;
    };
    // Factors of a `bf16` operand would be of another type.
    if ty.elements() == 0 || !matches!(ty.dtype, DType::F32 | DType::F64) {
        return None;
    }
    let groups = kind.groups(&ty.shape);
    let (all, statistics) = (groups.all(), groups.all() & !kind.averaged());
    let (e, x_) = Expressions::new(r, groups).with(x, all);
    let (expressions, deviation) = e.with(std, statistics);
    let mut norm = Norm {
        kind,
        source: Source::Written { epsilon: 0.0, std },
        x,
        ty,
        expressions,
        centred: Polynomial::default(),
        mean: Polynomial::default(),
        variance: None,
        inv_std: deviation.inverse()?,
    };
    norm.mean = norm.mean_of(&x_);
    norm.centred = x_.plus(-1.0, &norm.mean);
    let variance = norm.mean_of(&norm.centred.times(&norm.centred)?);
    let under = norm.expressions.polynomial(under, statistics)?;
    let epsilon = under.plus(-1.0, &variance).as_number().filter(|&e| e > 0.0)? as f32;
    norm.source = Source::Written { epsilon, std };
    norm.variance = Some(variance);
    Some(norm)
}

/// What a variance is of, and the axes it is over: of `mean((x − m)²) + ε`, where the mean may be
/// a sum and a quotient.
fn varying(r: &GraphView, under: ValueId) -> Option<(ValueId, Vec<usize>)> {
    let [a, b] = r.binary(under, Binary::Add)?;
    let mut variance = if r.number(a).is_some() { b } else { a };
    for f in [Binary::Div, Binary::Mul] {
        if let Some([a, b]) = r.binary(variance, f) {
            variance = if r.number(a).is_some() { b } else { a };
        }
    }
    let Node { op: Op::Reduce { f: Reduction::Sum | Reduction::Mean, axes, .. }, inputs, .. } =
        &r.g.nodes[r.definition(variance)?]
    else {
        return None;
    };
    let square = *inputs.first()?;
    let [centred, _] = r.binary(square, Binary::Mul).or_else(|| r.binary(square, Binary::Pow))?;
    let [x, _] = r.binary(centred, Binary::Sub)?;
    (r.g.ty(x).shape == r.g.ty(square).shape).then(|| (x, axes.clone()))
}

/// Scale and bias of a normalisation, and what it gives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    /// The result without scale and bias.
    pub(super) normalised: ValueId,
    pub(super) scale: Option<ValueId>,
    pub(super) bias: Option<ValueId>,
    /// The result, and the nodes that multiply and add.
    pub(super) y: ValueId,
    pub(super) nodes: [Option<NodeId>; 2],
}

/// What may be the scale and bias of a normalisation that was written, with most first.
pub(super) fn affine(norm: &Norm) -> Vec<Affine> {
    let Some(normalised) = normalised(norm) else { return Vec::new() };
    let plain = Affine { normalised, scale: None, bias: None, y: normalised, nodes: [None; 2] };
    let mut all = Vec::new();
    for (n, scale, y) in parameters(norm, normalised, Binary::Mul) {
        let scaled = Affine { scale: Some(scale), y, nodes: [Some(n), None], ..plain };
        if let [(n, bias, y)] = parameters(norm, y, Binary::Add)[..] {
            all.push(Affine { bias: Some(bias), y, nodes: [scaled.nodes[0], Some(n)], ..scaled });
        }
        all.push(scaled);
    }
    if let [(n, bias, y)] = parameters(norm, normalised, Binary::Add)[..] {
        all.push(Affine { bias: Some(bias), y, nodes: [None, Some(n)], ..plain });
    }
    all.push(plain);
    all
}

/// The first value that is `x` normalised.
fn normalised(norm: &Norm) -> Option<ValueId> {
    let Source::Written { std, .. } = norm.source else { return None };
    let (e, r) = (&norm.expressions, norm.expressions.view);
    let wanted = norm.normalised()?;
    let mut found = None;
    r.walk([std], |_, y| {
        let whole = r.g.ty(y).elements() == norm.ty.elements();
        let groups = if whole { e.groups.all() } else { norm.statistics() };
        let Some(p) = e.polynomial(y, groups).filter(|_| found.is_none()) else { return false };
        if p.equals(&wanted) {
            found = Some(y);
        }
        found.is_none()
    });
    found.filter(|&y| r.g.ty(y) == &norm.ty)
}

/// Nodes that apply `f` to a value and to what has one element for each place in a row or each
/// channel (a layer normalisation's may also be a single number); with that and what they give.
fn parameters(norm: &Norm, v: ValueId, f: Binary) -> Vec<(NodeId, ValueId, ValueId)> {
    let (e, r) = (&norm.expressions, norm.expressions.view);
    let of = |n: NodeId| {
        let other = r.other(n, f, v)?;
        let (y, shape) = (r.g.result(n)?, &norm.ty.shape);
        let varies = e.groups.within(&r.g.ty(other).shape, shape)?;
        let number = r.g.ty(other).elements() == 1 && norm.kind != Kind::Batch;
        let fits = r.g.ty(y) == &norm.ty && (varies == norm.parameters() || number);
        fits.then_some((n, other, y))
    };
    r.consumers(v).into_iter().filter_map(of).collect()
}
