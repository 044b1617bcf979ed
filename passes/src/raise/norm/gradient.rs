//! Gradients of normalisations.

use super::{Kind, Norm, Source};
use crate::rewrite::{Expressions, Polynomial};
use arenic_ir::graph::ValueId;
use arenic_ir::op::Binary;

/// A gradient that was found: of which result, and values that are part of it.
pub(super) struct Gradient<'a> {
    /// Also in the scale and `dy`.
    pub(super) expressions: Expressions<'a>,
    pub(super) dy: ValueId,
    pub(super) dx: Polynomial,
    pub(super) dscale: Polynomial,
    pub(super) dbias: Polynomial,
    /// What is one of these three.
    pub(super) found: Vec<ValueId>,
}

/// What may be the gradient of a normalisation with this scale.
pub(super) fn gradients<'a>(norm: &Norm<'a>, scale: Option<ValueId>) -> Vec<Gradient<'a>> {
    let (e, factor) = match scale {
        None => (norm.expressions.clone(), Polynomial::number(1.0)),
        Some(scale) => {
            let shape = &norm.expressions.view.g.ty(scale).shape;
            let groups = match norm.kind {
                Kind::Batch => Some(norm.parameters()),
                Kind::Layer { .. } => norm.expressions.groups.within(shape, &norm.ty.shape),
            };
            let Some(groups) = groups else { return Vec::new() };
            norm.expressions.with(scale, groups)
        }
    };
    let of = |dy| gradient(norm, &e, &factor, dy);
    candidates(norm, &e, scale).into_iter().filter_map(of).collect()
}

/// Values of which one may be the gradient of the result: what something of the normalisation
/// or its scale is multiplied by.
fn candidates(norm: &Norm, e: &Expressions, scale: Option<ValueId>) -> Vec<ValueId> {
    let r = e.view;
    let starts = match norm.source {
        Source::Operator { mean, inv_std, .. } => [mean, inv_std],
        Source::Written { std, .. } => [norm.x, std],
    };
    let is_whole = |v: ValueId| r.g.ty(v).elements() == norm.ty.elements();
    let unknown = |v: ValueId| is_whole(v) && e.polynomial(v, e.groups.all()).is_none();
    let mut found = Vec::new();
    r.walk(starts.into_iter().chain(scale), |n, y| {
        let groups = if is_whole(y) { e.groups.all() } else { norm.statistics() };
        if e.polynomial(y, groups).is_some() {
            return true;
        }
        let operands = r.applied(n, Binary::Mul).or_else(|| r.applied(n, Binary::Div));
        for other in operands.into_iter().flatten().filter(|&v| unknown(v)) {
            let factors = r.binary(other, Binary::Mul).into_iter().flatten();
            let scaled = factors.clone().any(|v| scale.is_some_and(|s| r.is(s, v)));
            let inside = factors.filter(|&v| scaled && unknown(v));
            for dy in inside.chain([other]).map(|v| r.base(v)) {
                if !found.contains(&dy) {
                    found.push(dy);
                }
            }
        }
        false
    });
    found
}

/// The gradient where that of the result is `dy`; none where there is nothing of it.
fn gradient<'a>(
    norm: &Norm<'a>,
    e: &Expressions<'a>,
    factor: &Polynomial,
    dy: ValueId,
) -> Option<Gradient<'a>> {
    let (e, dy_) = e.with(dy, e.groups.all());
    let n = norm.normalised()?;
    let scaled = dy_.times(factor)?;
    let along = norm.mean_of(&scaled.times(&n)?).times(&n)?;
    let dx = scaled.plus(-1.0, &norm.mean_of(&scaled)).plus(-1.0, &along);
    let dx = dx.times(&norm.inv_std)?;
    let dscale = norm.sum_to_parameters(&dy_.times(&n)?);
    let dbias = norm.sum_to_parameters(&dy_);

    let r = e.view;
    let mut found = Vec::new();
    let mut has = [false; 3];
    let wanted = [(&dx, e.groups.all()), (&dscale, norm.parameters()), (&dbias, norm.parameters())];
    r.walk([dy], |_, y| {
        let elements = r.g.ty(y).elements();
        let mut groups = vec![e.groups.all(), norm.statistics(), norm.parameters()];
        groups.dedup();
        groups.retain(|&groups| e.groups.elements(groups) == elements);
        let mut goes_on = false;
        for groups in groups {
            let Some(p) = e.polynomial(y, groups) else { continue };
            let which = wanted.iter().position(|(p_, g)| *g == groups && p.equals(p_));
            if let Some(which) = which.filter(|&which| !has[which]) {
                has[which] = true;
                found.push(y);
            }
            goes_on |= which != Some(0);
        }
        goes_on
    });
    let complete = has[0] || has[1];
    complete.then_some(Gradient { expressions: e, dy, dx, dscale, dbias, found })
}
