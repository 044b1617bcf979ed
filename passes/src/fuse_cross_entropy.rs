//! The cross entropy without log probabilities beside the logits.
//!
//! Exporters write it as a log softmax of the logits `x` that the loss gathers from and
//! the gradient exponentiates, so that probabilities of the size of the logits stay alive
//! from the loss to its gradient, and one-hot matrices beside them. But two numbers per
//! row, its maximum and the logarithm of the sum of `exp(x − max)`, give every element
//! back as `(x − max) − ln_sum`. So, where nobody else reads the log softmax,
//!
//! - the loss gathers logits, and subtracts both numbers from what it gathered;
//! - `exp` of the log softmax becomes `softmax_of_stats`, which may overwrite the logits;
//! - `m − exp(…) · sum(m)`, as operators or as one `log_softmax_grad`, `m` being zeros into which
//!   `w` is scattered (one element per row, perhaps times a factor), becomes
//!   `cross_entropy_grad`: no one-hot matrix.
//!
//! Rows may lie in several axes, as of logits `[batch, time, classes]`, and be read in others.
//!
//! Sound because each element goes through the same operations in the same order as
//! before: `log_softmax` subtracts the same two numbers, gathering commutes with what is
//! elementwise, the sum of a row with one element is that element, and a zero times a
//! finite factor is a zero. So losses and gradients keep their bits, but for the sign of
//! zeros where a negative factor meets a probability that underflows, and for which
//! elements of a row are NaN and which infinite where `w` is either. Logits then live as
//! long as the log softmax did before, whose bytes they mostly were. Softmaxes along
//! another axis than the last one stay as they are.
//!
//! The gradient is the usual one; see for example Goodfellow, Bengio, Courville, "Deep
//! Learning" (2016), §6.2.2.3.

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Scatter, Unary};
use arenic_ir::types::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Computes the cross entropy and its gradient without storing log probabilities.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseCrossEntropy {}

impl GraphPass for FuseCrossEntropy {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g);
        let found: Vec<Loss> = g.nodes.keys().filter_map(|n| loss(&view, n)).collect();
        let mut e = Editor::new(g);
        found.iter().try_for_each(|loss| loss.replace(&mut e))?;
        e.finish();
        let gradients = found.iter().flat_map(|l| &l.uses).filter(|u| u.is_gradient()).count();
        Ok(Stats::from([
            ("fused_losses", found.len() as u64),
            ("fused_gradients", gradients as u64),
        ]))
    }
}

/// A log softmax of the rows of `x`, with all that reads it.
struct Loss {
    node: NodeId,
    x: ValueId,
    uses: Vec<Use>,
}

/// What is made of the log softmax by a node.
enum Use {
    Gathered { at: NodeId, indices: ValueId },
    Softmax { at: NodeId },
    Gradient { at: NodeId, rows: OneHot },
}

/// Rows with one element each, `w · factor` at `target`, that is not known to be zero.
struct OneHot {
    /// Of all rows.
    shape: Vec<usize>,
    target: ValueId,
    w: ValueId,
    factor: Option<ValueId>,
}

/// A log softmax along the last axis whose uses can do with two numbers per row.
fn loss(v: &GraphView, node: NodeId) -> Option<Loss> {
    let Node { op: Op::LogSoftmax { axis }, inputs, .. } = &v.g.nodes[node] else { return None };
    let (x, y) = (inputs[0], v.g.result(node)?);
    let ty = v.g.ty(x);
    // Where only a part of a larger tensor is needed, keeping it could cost more.
    let whole = v.g.ty(v.g.resolve(x).root).bytes() == ty.bytes();
    // Of `bf16` the statistics have another type.
    if axis + 1 != ty.rank() || !whole || ty.dtype == DType::Bf16 {
        return None;
    }
    let uses: Vec<Use> = v.uses(y)?.into_iter().map(|n| used(v, n, y)).collect::<Option<_>>()?;
    (!uses.is_empty()).then_some(Loss { node, x, uses })
}

/// What a node makes of the log softmax `y`, which it reads with its rows as they are.
fn used(v: &GraphView, at: NodeId, y: ValueId) -> Option<Use> {
    let Node { op, inputs, .. } = &v.g.nodes[at];
    let (&read, rest) = inputs.split_first()?;
    let shape = &v.g.ty(read).shape;
    let last = shape.len().checked_sub(1)?;
    if !v.is(read, y) || rest.iter().any(|&x| v.is(x, y)) || shape.last() != v.g.ty(y).shape.last()
    {
        return None;
    }
    match *op {
        Op::GatherElements { axis } if axis == last => {
            let &[indices] = rest else { return None };
            let one_each = v.g.ty(indices).shape[..last] == shape[..last];
            one_each.then_some(Use::Gathered { at, indices })
        }
        Op::LogSoftmaxGrad { axis } if axis == last => {
            Some(Use::Gradient { at, rows: one_hot(v, *rest.first()?)? })
        }
        Op::Unary { f: Unary::Exp } => Some(match gradient(v, v.g.result(at)?) {
            Some((at, rows)) => Use::Gradient { at, rows },
            None => Use::Softmax { at },
        }),
        _ => None,
    }
}

/// `m − p · sum(m)` of the softmax `p`, where `m` has one element per row.
fn gradient(v: &GraphView, p: ValueId) -> Option<(NodeId, OneHot)> {
    let product = v.only_use(p)?;
    let sum = v.other(product, Binary::Mul, p)?;
    let difference = v.only_use(v.g.result(product)?)?;
    let [m, subtracted] = v.applied(difference, Binary::Sub)?;
    let fits = v.is(subtracted, v.g.result(product)?)
        && v.reduced_rows(sum, Reduction::Sum)? == m
        && v.g.ty(m).shape == v.g.ty(p).shape;
    Some((difference, one_hot(v, m).filter(|_| fits)?))
}

/// Zeros into whose rows one element each is scattered, perhaps all times a factor.
fn one_hot(v: &GraphView, m: ValueId) -> Option<OneHot> {
    let scaled = v.commuted(m, Binary::Mul).map(|[m, factor]| (m, Some(factor)));
    scaled.chain([(m, None)]).find_map(|(m, factor)| scattered(v, m, factor))
}

fn scattered(v: &GraphView, m: ValueId, factor: Option<ValueId>) -> Option<OneHot> {
    let Node { op: Op::ScatterElements { axis, reduction }, inputs, .. } = v.node(m)? else {
        return None;
    };
    let &[zeros, target, w] = &inputs[..] else { return None };
    let shape = v.g.ty(zeros).shape.clone();
    let mut rows = shape.clone();
    *rows.last_mut()? = 1;
    let is_one_each = |f: ValueId| {
        let ty = v.g.ty(f);
        ty.shape == rows || (ty.elements() == 1 && ty.rank() <= rows.len())
    };
    let fits = axis + 1 == rows.len()
        && v.g.ty(m).shape.last() == shape.last()
        && matches!(reduction, Scatter::Replace | Scatter::Add)
        && v.number(zeros) == Some(0.0)
        && v.g.ty(w).shape == rows
        && factor.is_none_or(is_one_each);
    fits.then_some(OneHot { shape, target, w, factor })
}

impl Use {
    fn is_gradient(&self) -> bool {
        matches!(self, Use::Gradient { .. })
    }
}

impl Loss {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let stats = e.node(self.node, Op::LogSoftmaxStats, vec![self.x])?;
        // Logits and statistics, with rows in the axes in which they are used.
        let like = |e: &mut Editor, at: NodeId, shape: &[usize]| {
            let x = e.reshaped(at, self.x, shape)?;
            let rows = [&shape[..shape.len() - 1], &[1]].concat();
            let [max, ln_sum] = [stats[0], stats[1]].map(|stat| e.reshaped(at, stat, &rows));
            Ok::<_, PassError>([x, max?, ln_sum?])
        };
        for of in &self.uses {
            let (&Use::Gathered { at, .. } | &Use::Softmax { at } | &Use::Gradient { at, .. }) = of;
            let Some(old) = e.g.result(at) else { continue };
            let shape = match of {
                Use::Gradient { rows, .. } => rows.shape.clone(),
                _ => e.g.ty(e.g.nodes[at].inputs[0]).shape.clone(),
            };
            let [x, max, ln_sum] = like(e, at, &shape)?;
            let new = match *of {
                Use::Gathered { indices, .. } => {
                    let op = e.g.nodes[at].op.clone();
                    let mut v = e.value(at, op, vec![x, indices])?;
                    for stat in [max, ln_sum] {
                        v = e.value(at, Op::Binary { f: Binary::Sub }, vec![v, stat])?;
                    }
                    v
                }
                Use::Softmax { .. } => e.value(at, Op::SoftmaxOfStats, vec![x, max, ln_sum])?,
                Use::Gradient { rows: OneHot { target, w, factor, .. }, .. } => {
                    let w = match factor {
                        Some(by) => e.value(at, Op::Binary { f: Binary::Mul }, vec![w, by])?,
                        None => w,
                    };
                    e.value(at, Op::CrossEntropyGrad, vec![x, max, ln_sum, target, w])?
                }
            };
            e.replace(at, old, new)?;
        }
        Ok(())
    }
}
