//! The gradient of an attention.
//!
//! ```text
//! dv = pᵀ do
//! dp = do vᵀ
//! dp = where(kept, dp / (1 − ratio), 0)   of a dropout, or PyTorch's  dp · (kept · scale)
//! ds = softmax_grad(p, dp)       or PyTorch's  m − p · sum(m),  m = dp · p
//! ds = scale · ds
//! dq = ds k,  dk = dsᵀ q         each perhaps as its transpose
//! dm = sum(ds)                   before the scale, along the batch where the mask broadcasts
//! ```

use super::forward::Forward;
use super::mask::Mask;
use super::matrices::{Matrix, product, readers, readers_of, regrouped, same_matrices};
use crate::rewrite::GraphView;
use arenic_ir::graph::{Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction};
use arenic_ir::types::broadcast_shapes;

/// What a graph has of an attention's gradient.
pub(super) enum Gradient {
    Found(Backward),
    /// Nothing reads the probabilities but the attention.
    Absent,
    /// A node outside of both reads the attention's probabilities, so that they must be stored.
    Blocked,
}

/// A gradient that was found.
pub(super) struct Backward {
    /// The gradient of the attention's result.
    pub(super) dy: Matrix,
    /// Products that give `dq`, `dk` and `dv`, perhaps transposed.
    pub(super) products: [Option<(NodeId, bool)>; 3],
    /// A value that is the gradient of the first mask, and the node that makes it.
    pub(super) of_mask: Option<(NodeId, ValueId)>,
    /// The first of its products, before which the gradient of the result is known.
    pub(super) first: NodeId,
}

/// The gradient of an attention.
pub(super) fn gradient(v: &GraphView, f: &mut Forward) -> Gradient {
    match found(v, f) {
        // Of these, gradients are only known as the operator gives them.
        Some(Some(_)) if f.spec.softcap.is_some() || f.spec.group > 1 => Gradient::Blocked,
        Some(Some(backward)) => Gradient::Found(backward),
        Some(None) => Gradient::Absent,
        None => Gradient::Blocked,
    }
}

/// The gradient, or `Some(None)` if the graph has none, or `None` if it has another reader.
#[expect(clippy::option_option, reason = "`?` ends the search where it is blocked")]
fn found(v: &GraphView, f: &mut Forward) -> Option<Option<Backward>> {
    let others = |mut readers: Vec<NodeId>| {
        readers.retain(|&n| n != f.last && n != f.factors);
        readers
    };
    let mut left = others(readers(v, f.factors)?);
    let of_dropped = match f.spec.dropout {
        None => None,
        Some(_) => {
            let of_kept = f.kept(v).map_or(Some(Vec::new()), |kept| readers_of(v, kept))?;
            Some((others(readers(v, f.probabilities)?), of_kept))
        }
    };
    if left.is_empty() && of_dropped.iter().all(|(p, kept)| p.is_empty() && kept.is_empty()) {
        return Some(None);
    }
    let p = Matrix { of: same_matrices(v.g, v.g.result(f.factors)?), trans: false };
    // The gradient of the values, or nothing else would be one of attention.
    let of_values = |&n: &NodeId| match product(v, n)? {
        x if x.a == p.transposed() => Some((n, x.b, false)),
        x if x.b == p => Some((n, x.a.transposed(), true)),
        _ => None,
    };
    let values: Vec<_> = left.iter().filter_map(of_values).collect();
    left.retain(|&n| !values.iter().any(|v| v.0 == n));
    let (mut products, mut of_mask) = ([None; 3], None);
    let (mut dy, mut first) = match values[..] {
        [] => (None, None),
        [(n, dy, trans)] => {
            products[2] = Some((n, trans));
            (Some(dy), Some(n))
        }
        _ => return None,
    };
    if let Some((of_probabilities, of_kept)) = of_dropped {
        // Whether an element is kept is the gradient's to know.
        if !left.is_empty() || of_probabilities.is_empty() != of_kept.is_empty() {
            return None;
        }
        left = of_probabilities;
    }
    if !left.is_empty() {
        let (dp, ds) = of_softmax(v, f, &left)?;
        let n = v.definition(before_dropout(v, f, dp)?)?;
        let product = product(v, n)?;
        if product.b != f.v.transposed() || dy.is_some_and(|dy| dy != product.a) {
            return None;
        }
        (dy, first) = (Some(product.a), Some(first.map_or(n, |f: NodeId| f.min(n))));
        of_mask = of_scores(v, f, ds, &mut products)?;
    }
    Some(Some(Backward { dy: dy?, products, of_mask, first: first? }))
}

/// True where `x` is read by these nodes alone.
fn is_read_by(v: &GraphView, x: ValueId, by: &[NodeId]) -> bool {
    v.definition(x)
        .and_then(|n| readers(v, n))
        .is_some_and(|all| all.iter().all(|n| by.contains(n)))
}

/// The gradient of probabilities, and the node that makes that of scores of it.
fn of_softmax(v: &GraphView, f: &Forward, left: &[NodeId]) -> Option<(ValueId, NodeId)> {
    if let &[n] = left {
        let Node { op: Op::SoftmaxGrad { axis }, inputs, .. } = &v.g.nodes[n] else { return None };
        let &[p, dp] = &inputs[..] else { return None };
        let last = axis + 1 == v.g.ty(p).rank() && v.is(p, f.p) && !v.is(dp, f.p);
        return (last && is_read_by(v, dp, &[n])).then_some((dp, n));
    }
    let &[a, b] = left else { return None };
    // One multiplies by the gradient of probabilities, the other by the sum of what that gives.
    [(a, b), (b, a)].into_iter().find_map(|(weighted, shift)| {
        let (dp, sum) = (v.other(weighted, Binary::Mul, f.p)?, v.other(shift, Binary::Mul, f.p)?);
        let (m, shifted) = (v.g.result(weighted)?, v.g.result(shift)?);
        let &[ds] = &readers(v, shift)?[..] else { return None };
        let found = v.reduced_rows(sum, Reduction::Sum)? == m
            && v.applied(ds, Binary::Sub)? == [m, shifted]
            && is_read_by(v, sum, &[shift])
            && is_read_by(v, m, &[v.definition(sum)?, ds])
            && is_read_by(v, dp, &[weighted]);
        found.then_some((dp, ds))
    })
}

/// The gradient of what a dropout gives from that of its operand; without one they are the same.
fn before_dropout(v: &GraphView, f: &Forward, dp: ValueId) -> Option<ValueId> {
    let Some(dropout) = f.spec.dropout else { return Some(dp) };
    let kept = f.kept(v)?;
    let (mut at, mut scale, mut masks) = (dp, 1.0, 0);
    loop {
        let n = v.definition(at)?;
        let (x, factor) = match v.scaled_by(n) {
            Some(scaled) => scaled,
            None => match masked(v, n, kept) {
                Some(masked) => {
                    masks += 1;
                    masked
                }
                None => break,
            },
        };
        // Nobody else reads what is between.
        if !is_read_by(v, x, &[n]) {
            return None;
        }
        (at, scale) = (x, scale * factor);
    }
    let is_inverse = (scale * (1.0 - dropout.ratio) - 1.0).abs() <= 1e-6;
    (masks == 1 && is_inverse && readers_of(v, kept)?.len() == 1).then_some(at)
}

/// What a node passes on where an element is kept, and by which factor.
fn masked(v: &GraphView, n: NodeId, kept: ValueId) -> Option<(ValueId, f64)> {
    if let Some([condition, x, other]) = v.choice(v.g.result(n)?) {
        return (v.is(condition, kept) && v.number(other) == Some(0.0)).then_some((x, 1.0));
    }
    let [a, b] = v.applied(n, Binary::Mul)?;
    let number = |x: ValueId| kept_as_number(v, x, n, kept);
    number(b).map(|factor| (a, factor)).or_else(|| number(a).map(|factor| (b, factor)))
}

/// The factor of what is 1 where an element is kept and else 0, which a node alone reads.
fn kept_as_number(v: &GraphView, x: ValueId, reader: NodeId, kept: ValueId) -> Option<f64> {
    let n = v.definition(x)?;
    if readers(v, n)? != [reader] {
        return None;
    }
    if let Some((x, factor)) = v.scaled_by(n) {
        return Some(factor * kept_as_number(v, x, n, kept)?);
    }
    let (of, to) = v.cast(x)?;
    (to.is_float() && v.is(of, kept)).then_some(1.0)
}

/// The products with the gradient of scores, which a node makes; gives the gradient of a mask, if there is one.
#[expect(clippy::option_option, reason = "`?` ends the search where it is blocked")]
fn of_scores(
    v: &GraphView,
    f: &mut Forward,
    ds: NodeId,
    products: &mut [Option<(NodeId, bool)>; 3],
) -> Option<Option<(NodeId, ValueId)>> {
    let (mut ds, mut scale) = (ds, 1.0);
    let found: Vec<(NodeId, usize)> =
        readers(v, ds)?.into_iter().filter_map(|n| Some((n, mask_of_sum(v, f, ds, n)?))).collect();
    let of_mask = match found[..] {
        [] => None,
        [(n, at)] => {
            f.masks.swap(0, at);
            f.trained = 1;
            Some((n, v.g.result(n)?))
        }
        _ => return None,
    };
    let readers = loop {
        let mut readers = readers(v, ds)?;
        readers.retain(|&n| of_mask.is_none_or(|(sum, _)| sum != n));
        let next = match readers[..] {
            [n] => v.scaled_by(n).map(|(_, factor)| (n, factor)),
            _ => None,
        };
        match next {
            Some((n, factor)) => (ds, scale) = (n, scale * factor),
            None => break readers,
        }
    };
    // Quotients and products by the inverse are one scale.
    if (scale - f.spec.scale).abs() > 1e-6 * f.spec.scale.abs() {
        return None;
    }
    let ds = Matrix { of: same_matrices(v.g, v.g.result(ds)?), trans: false };
    for n in readers {
        let x = product(v, n)?;
        let (which, trans) = match (x.a, x.b) {
            (a, b) if a == ds && b == f.k => (0, false),
            (a, b) if a == f.k.transposed() && b == ds.transposed() => (0, true),
            (a, b) if a == ds.transposed() && b == f.q => (1, false),
            (a, b) if a == f.q.transposed() && b == ds => (1, true),
            _ => return None,
        };
        if products[which].replace((n, trans)).is_some() {
            return None;
        }
    }
    Some(of_mask)
}

/// Which mask a sum of the gradients of scores, along the batch, is the gradient of.
fn mask_of_sum(v: &GraphView, f: &Forward, ds: NodeId, sum: NodeId) -> Option<usize> {
    let Node { op: Op::Reduce { f: Reduction::Sum, axes, .. }, inputs, .. } = &v.g.nodes[sum]
    else {
        return None;
    };
    if !v.is(inputs[0], v.g.result(ds)?) {
        return None;
    }
    let from = &v.g.ty(inputs[0]).shape;
    let kept = |(i, &n): (usize, &usize)| if axes.contains(&i) { 1 } else { n };
    let kept: Vec<usize> = from.iter().enumerate().map(kept).collect();
    let shape = regrouped(&kept, from, &f.shape)?;
    // The operator's has all rows and columns.
    let matrices = f.shape.len() - 2;
    if shape[matrices..] != f.shape[matrices..] {
        return None;
    }
    let ones = vec![1; shape.len()];
    let is_its = |mask: &Mask| {
        let own = mask.shape_in(v, &f.shape).and_then(|own| broadcast_shapes(&own, &ones));
        mask.is_added() && own.as_ref() == Some(&shape)
    };
    f.masks.iter().position(is_its)
}
