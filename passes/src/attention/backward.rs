//! The gradient of an attention.
//!
//! ```text
//! dv = pᵀ do
//! dp = do vᵀ
//! dp = where(kept, dp / (1 − ratio), 0)   of a dropout, or PyTorch's  dp · (kept · scale)
//! ds = softmax_grad(p, dp)       or PyTorch's  m − p · sum(m),  m = dp · p
//! ds = scale · ds
//! dq = ds k,  dk = dsᵀ q         each perhaps as its transpose
//! ```

use super::forward::Forward;
use super::matrices::{Matrices, Matrix};
use arenic_ir::graph::{Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction};

/// A gradient that was found.
pub(super) struct Backward {
    /// The gradient of the attention's result.
    pub(super) dy: Matrix,
    /// Products that give `dq`, `dk` and `dv`, perhaps transposed.
    pub(super) products: [Option<(NodeId, bool)>; 3],
    /// The first of its products, before which the gradient of the result is known.
    pub(super) first: NodeId,
}

/// Finds the gradient of an attention. `Some(None)` if the graph has none; `None` if a node outside
/// of both reads the attention's probabilities, so that they must be stored.
#[expect(clippy::option_option, reason = "no gradient is not the same as one that is not known")]
pub(super) fn gradient(m: &Matrices, f: &Forward) -> Option<Option<Backward>> {
    let others = |mut readers: Vec<NodeId>| {
        readers.retain(|&n| n != f.last && n != f.factors);
        readers
    };
    let mut readers = others(m.consumers(f.factors)?);
    let of_dropped = match f.spec.dropout {
        None => None,
        Some(_) => {
            let of_kept = f.kept(m).map_or(Some(Vec::new()), |kept| m.readers_of(kept))?;
            Some((others(m.consumers(f.probabilities)?), of_kept))
        }
    };
    if readers.is_empty() && of_dropped.iter().all(|(p, kept)| p.is_empty() && kept.is_empty()) {
        return Some(None);
    }
    let p = Matrix { of: m.base(m.g.result(f.factors)?), trans: false };
    // The gradient of the values, or nothing else would be one of attention.
    let of_values = |&n: &NodeId| match m.product(n)? {
        x if x.a == p.transposed() => Some((n, x.b, false)),
        x if x.b == p => Some((n, x.a.transposed(), true)),
        _ => None,
    };
    let values: Vec<_> = readers.iter().filter_map(of_values).collect();
    readers.retain(|&n| !values.iter().any(|v| v.0 == n));
    let mut products = [None; 3];
    let mut dy = match values[..] {
        [] => None,
        [(n, dy, trans)] => {
            products[2] = Some((n, trans));
            Some(dy)
        }
        _ => return None,
    };
    let mut first = values.first().map(|v| v.0);
    if let Some((of_probabilities, of_kept)) = of_dropped {
        // Whether an element is kept is the gradient's to know.
        if !readers.is_empty() || of_probabilities.is_empty() != of_kept.is_empty() {
            return None;
        }
        readers = of_probabilities;
    }
    if !readers.is_empty() {
        let (dp, ds) = of_softmax(m, f, &readers)?;
        let dp = before_dropout(m, f, dp)?;
        let n = m.definition(m.base(dp))?;
        let product = m.product(n)?;
        if product.b != f.v.transposed() || dy.is_some_and(|dy| dy != product.a) {
            return None;
        }
        (dy, first) = (Some(product.a), Some(first.map_or(n, |f| f.min(n))));
        of_scores(m, f, ds, &mut products)?;
    }
    Some(Some(Backward { dy: dy?, products, first: first? }))
}

/// The gradient of probabilities, and the node that makes that of scores of it.
fn of_softmax(m: &Matrices, f: &Forward, readers: &[NodeId]) -> Option<(ValueId, NodeId)> {
    let is_p = |v: ValueId| m.base(v) == m.base(f.p);
    let only = |n: NodeId, by: &[NodeId]| {
        m.consumers(n).is_some_and(|all| all.iter().all(|n| by.contains(n)))
    };
    if let &[n] = readers {
        let Node { op: Op::SoftmaxGrad { axis }, inputs, .. } = &m.g.nodes[n] else { return None };
        let &[p, dp] = &inputs[..] else { return None };
        let last = axis + 1 == m.g.ty(p).rank() && is_p(p) && !is_p(dp);
        let whole = only(m.definition(m.base(dp))?, &[n]);
        return (last && whole).then_some((dp, n));
    }
    let other = |n: NodeId| {
        let [a, b] = m.binary(n, Binary::Mul)?;
        match (is_p(a), is_p(b)) {
            (true, false) => Some(b),
            (false, true) => Some(a),
            _ => None,
        }
    };
    let &[a, b] = readers else { return None };
    // One multiplies by the gradient of probabilities, the other by the sum of what that gives.
    for (weighted, shift) in [(a, b), (b, a)] {
        let (dp, sum) = (other(weighted)?, other(shift)?);
        let Some(reduce) = m.definition(sum) else { continue };
        let Node { op: Op::Reduce { f: Reduction::Sum, axes, keep: true }, inputs, .. } =
            &m.g.nodes[reduce]
        else {
            continue;
        };
        let product = m.g.result(weighted)?;
        let &[ds] = &m.consumers(shift)?[..] else { continue };
        let Some([from, subtracted]) = m.binary(ds, Binary::Sub) else { continue };
        let found = axes[..] == [m.g.ty(product).rank() - 1]
            && inputs[0] == product
            && from == product
            && m.g.result(shift) == Some(subtracted)
            && only(reduce, &[shift])
            && only(weighted, &[reduce, ds])
            && only(m.definition(m.base(dp))?, &[weighted]);
        if found {
            return Some((dp, ds));
        }
    }
    None
}

/// The gradient of what a dropout gives from that of its operand; without one they are the same.
fn before_dropout(m: &Matrices, f: &Forward, dp: ValueId) -> Option<ValueId> {
    let Some(dropout) = f.spec.dropout else { return Some(dp) };
    let kept = f.kept(m)?;
    let (mut at, mut scale, mut masks) = (m.base(dp), 1.0, 0);
    loop {
        let n = m.definition(at)?;
        let (x, factor) = match m.scaled(n) {
            Some(scaled) => scaled,
            None => match masked(m, n, kept) {
                Some(masked) => {
                    masks += 1;
                    masked
                }
                None => break,
            },
        };
        // Nobody else reads what is between.
        if m.consumers(m.definition(m.base(x))?)? != [n] {
            return None;
        }
        (at, scale) = (m.base(x), scale * factor);
    }
    let is_inverse = (scale * (1.0 - dropout.ratio) - 1.0).abs() <= 1e-6;
    (masks == 1 && is_inverse && m.readers_of(kept)?.len() == 1).then_some(at)
}

/// What a node passes on where an element is kept, and by which factor.
fn masked(m: &Matrices, n: NodeId, kept: ValueId) -> Option<(ValueId, f64)> {
    if let Node { op: Op::Where, inputs, .. } = &m.g.nodes[n] {
        let &[condition, x, other] = &inputs[..] else { return None };
        return (m.base(condition) == kept && m.is_zero(other)).then_some((x, 1.0));
    }
    let [a, b] = m.binary(n, Binary::Mul)?;
    let number = |v: ValueId| kept_as_number(m, v, n, kept);
    number(b).map(|factor| (a, factor)).or_else(|| number(a).map(|factor| (b, factor)))
}

/// The factor of what is 1 where an element is kept and else 0, which a node alone reads.
fn kept_as_number(m: &Matrices, v: ValueId, reader: NodeId, kept: ValueId) -> Option<f64> {
    let n = m.definition(m.base(v))?;
    if m.consumers(n)? != [reader] {
        return None;
    }
    if let Some((x, factor)) = m.scaled(n) {
        return Some(factor * kept_as_number(m, x, n, kept)?);
    }
    let Node { op: Op::Cast { to }, inputs, .. } = &m.g.nodes[n] else { return None };
    (to.is_float() && m.base(inputs[0]) == kept).then_some(1.0)
}

/// The products with the gradient of scores, which a node makes.
fn of_scores(
    m: &Matrices,
    f: &Forward,
    ds: NodeId,
    products: &mut [Option<(NodeId, bool)>; 3],
) -> Option<()> {
    let (mut ds, mut scale) = (ds, 1.0);
    let readers = loop {
        let readers = m.consumers(ds)?;
        let next = match readers[..] {
            [n] => m.scaled(n).map(|(_, factor)| (n, factor)),
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
    let ds = Matrix { of: m.base(m.g.result(ds)?), trans: false };
    for n in readers {
        let x = m.product(n)?;
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
    Some(())
}
