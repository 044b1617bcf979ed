//! All nodes that a normalisation and its gradient take the place of, and which of their results
//! are still read.

use super::forward::{Affine, affine};
use super::gradient::{Gradient, gradients};
use super::{Kind, Norm, Source};
use crate::rewrite::{GraphView, Groups};
use arenic_ir::graph::{NodeId, ValueId};
use arenic_ir::types::TensorType;
use std::collections::BTreeMap;

/// What an operator gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Y,
    Mean,
    Variance,
    InvStd,
    Dx,
    Dscale,
    Dbias,
}

/// What is replaced.
pub(super) struct Replaced {
    pub(super) kind: Kind,
    pub(super) source: Source,
    /// The operand, of this type.
    pub(super) x: ValueId,
    pub(super) ty: TensorType,
    nodes: BTreeMap<NodeId, Groups>,
    /// Scale, bias and result of a normalisation that was written.
    pub(super) affine: Option<Affine>,
    /// The gradient of the result.
    pub(super) dy: Option<ValueId>,
    /// Values that the operators give.
    pub(super) results: Vec<(ValueId, Role)>,
    /// The nodes just before which the operators come: the normalisation, and the gradients of its
    /// parameters and of its operand.
    pub(super) forward: Option<NodeId>,
    pub(super) parameters: Option<NodeId>,
    pub(super) operand: Option<NodeId>,
}

impl Replaced {
    /// True where no node is part of both, but for what both give: the gradient of the bias, where
    /// the results of two normalisations are added.
    pub(super) fn is_apart_from(&self, r: &GraphView, other: &Replaced) -> bool {
        let gives = |of: &Replaced, n| of.results.iter().any(|&(v, _)| r.maker(v) == Some(n));
        let shared = self.nodes.keys().copied().filter(|n| other.nodes.contains_key(n));
        shared.into_iter().all(|n| gives(self, n) && gives(other, n))
    }
}

/// What a normalisation and its gradient replace; none where something of it would have to be
/// computed beside the operators.
pub(super) fn replaced(r: &GraphView, norm: &Norm) -> Option<Replaced> {
    if let Source::Operator { scale, .. } = norm.source {
        return gradients(norm, Some(scale)).iter().find_map(|b| group(r, norm, None, Some(b)));
    }
    let all = affine(norm);
    let with_gradient = |&a: &Affine| {
        gradients(norm, a.scale).iter().find_map(|b| group(r, norm, Some(a), Some(b)))
    };
    let alone = |&a: &Affine| group(r, norm, Some(a), None);
    all.iter().find_map(with_gradient).or_else(|| all.iter().find_map(alone))
}

fn group(
    r: &GraphView,
    norm: &Norm,
    affine: Option<Affine>,
    gradient: Option<&Gradient>,
) -> Option<Replaced> {
    let e = gradient.map_or(&norm.expressions, |b| &b.expressions);
    let all = e.groups.all();
    let mut nodes = BTreeMap::new();
    if let (Some(affine), Source::Written { std, .. }) = (affine, &norm.source) {
        norm.expressions.collect(affine.normalised, all, &mut nodes);
        nodes.extend(affine.nodes.iter().flatten().map(|&n| (n, all)));
        let sqrt = r.definition(*std)?;
        nodes.insert(sqrt, norm.statistics());
        norm.expressions.collect(r.g.nodes[sqrt].inputs[0], norm.statistics(), &mut nodes);
    }
    let of_forward = nodes.clone();
    for &v in gradient.iter().flat_map(|b| &b.found) {
        let whole = r.g.ty(v).elements() == norm.ty.elements();
        let groups = if whole && e.polynomial(v, all).is_some() { all } else { norm.parameters() };
        e.collect(v, groups, &mut nodes);
    }
    // Without scale and bias the result itself may be what the gradient needs, and stay alive for
    // others; the operand would have to stay beside it.
    let reads = |n: &NodeId, v: ValueId| r.g.nodes[*n].inputs.iter().any(|&x| r.is(x, v));
    if affine.is_some_and(|a| {
        a.y == a.normalised && nodes.keys().any(|n| !of_forward.contains_key(n) && reads(n, a.y))
    }) {
        return None;
    }
    let mut results = Vec::new();
    // Readers come before what they read, as those that stay are readers like others.
    for (n, groups) in nodes.clone().into_iter().rev() {
        let v = r.g.result(n)?;
        if r.is_read_inside(v, &|n| nodes.contains_key(&n)) {
            continue;
        }
        if affine.is_some_and(|a| a.y == v) {
            results.push((v, Role::Y));
            continue;
        }
        let p = e.polynomial(v, groups);
        let mut known = Vec::new();
        if affine.is_some() {
            known.extend([
                (&norm.mean, norm.statistics(), Role::Mean),
                (&norm.inv_std, norm.statistics(), Role::InvStd),
            ]);
            if let (Kind::Batch, Some(variance)) = (norm.kind, &norm.variance) {
                known.push((variance, norm.statistics(), Role::Variance));
            }
        }
        if let Some(b) = gradient {
            known.extend([
                (&b.dx, all, Role::Dx),
                (&b.dscale, norm.parameters(), Role::Dscale),
                (&b.dbias, norm.parameters(), Role::Dbias),
            ]);
        }
        let given = p
            .and_then(|p| known.into_iter().find(|(q, along, _)| *along == groups && q.equals(&p)));
        let is_small = |&v: &ValueId| r.g.ty(v).elements() < norm.ty.elements();
        match given {
            Some((_, _, role)) => results.push((v, role)),
            None if is_small(&v) && r.g.nodes[n].inputs.iter().all(is_small) => {
                nodes.remove(&n);
            }
            None => return None,
        }
    }
    results.sort_unstable_by_key(|&(v, _)| v);
    placed(
        r,
        norm,
        Replaced {
            kind: norm.kind,
            source: norm.source,
            x: norm.x,
            ty: norm.ty.clone(),
            nodes,
            affine,
            dy: gradient.map(|b| b.dy),
            results,
            forward: None,
            parameters: None,
            operand: None,
        },
    )
}

/// The group with places for its operators: each before the first of its results, where all
/// operands are there by then.
fn placed(r: &GraphView, norm: &Norm, mut group: Replaced) -> Option<Replaced> {
    let first = |wanted: &[Role]| {
        let of = group.results.iter().filter(|(_, is)| wanted.contains(is));
        of.filter_map(|&(v, _)| r.maker(v)).min()
    };
    let operand = first(&[Role::Dx]);
    let mut parameters = first(&[Role::Dscale, Role::Dbias]);
    if norm.kind == Kind::Batch {
        parameters = parameters.into_iter().chain(operand).min();
    }
    let before = |n: Option<NodeId>, operands: &[Option<ValueId>]| {
        n.is_none_or(|n| operands.iter().flatten().all(|&v| r.is_before(v, n)))
    };
    let scale = match norm.source {
        Source::Operator { scale, mean, .. } => {
            let known = before(operand, &[Some(mean)]) && before(parameters, &[Some(mean)]);
            (known && (operand.is_some() || parameters.is_some())).then_some(Some(scale))?
        }
        Source::Written { .. } => {
            let affine = group.affine?;
            let own = first(&[Role::Y, Role::Mean, Role::Variance, Role::InvStd]);
            let gradients = operand.into_iter().chain(parameters).min();
            let forward = own.or(gradients)?;
            if gradients.is_some_and(|n| n < forward)
                || !before(Some(forward), &[Some(norm.x), affine.scale, affine.bias])
            {
                return None;
            }
            group.forward = Some(forward);
            affine.scale
        }
    };
    (group.parameters, group.operand) = (parameters, operand);
    let there = before(parameters, &[Some(norm.x), group.dy])
        && before(operand, &[Some(norm.x), group.dy, scale]);
    there.then_some(group)
}
