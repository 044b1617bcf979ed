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
//! Rows may lie in several axes, as of logits `[batch, time, classes]`, and be read in others. Classes
//! are the last axis, or another one to which a transpose of the logits has moved them, as
//! PyTorch's losses want it: then rows of what it is of are read, and a transpose of the gradient that
//! moves them back is left out.
//!
//! Sound because each element goes through the same operations in the same order as
//! before: `log_softmax` subtracts the same two numbers, gathering commutes with what is
//! elementwise, the sum of a row with one element is that element, and a zero times a
//! finite factor is a zero. So losses and gradients keep their bits, but for the sign of
//! zeros where a negative factor meets a probability that underflows, and for which
//! elements of a row are NaN and which infinite where `w` is either. Logits then live as
//! long as the log softmax did before, whose bytes they mostly were.
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
        let uses = found.iter().flat_map(|l| &l.uses);
        let gradients = uses.filter(|u| matches!(u, Use::Gradient { .. })).count() as u64;
        Ok(Stats::from([("fused_losses", found.len() as u64), ("fused_gradients", gradients)]))
    }
}

/// A log softmax with all that reads it.
struct Loss {
    node: NodeId,
    /// What has the rows, with the classes last.
    logits: ValueId,
    /// The permutation that moves the classes to where the log softmax has them.
    moved: Option<Vec<usize>>,
    uses: Vec<Use>,
}

/// What is made of the log softmax by a node.
enum Use {
    Gathered {
        at: NodeId,
        indices: ValueId,
    },
    Softmax {
        at: NodeId,
    },
    /// Some nodes move the classes of it back to the end.
    Gradient {
        at: NodeId,
        rows: OneHot,
        back: Vec<NodeId>,
    },
}

/// Rows with one element each, `w · factor` at `target`, that is not known to be zero.
struct OneHot {
    target: ValueId,
    w: ValueId,
    factor: Option<ValueId>,
}

/// How many elements there are before an axis, along it, and behind it.
fn split(shape: &[usize], axis: usize) -> Option<[usize; 3]> {
    let (before, after) = (shape.get(..axis)?, shape.get(axis + 1..)?);
    Some([before.iter().product(), shape[axis], after.iter().product()])
}

/// A log softmax whose uses can do with two numbers per row.
fn loss(v: &GraphView, node: NodeId) -> Option<Loss> {
    let Node { op: Op::LogSoftmax { axis }, inputs, .. } = &v.g.nodes[node] else { return None };
    let (x, y) = (inputs[0], v.g.result(node)?);
    let parts = split(&v.g.ty(x).shape, *axis)?;
    let (logits, moved) = match parts[2] {
        1 => (x, None),
        _ => last_moved(v, x, *axis).map(|(z, perm)| (z, Some(perm)))?,
    };
    // Where only a part of a larger tensor is needed, keeping it could cost more.
    let whole = v.g.ty(v.g.resolve(logits).root).bytes() == v.g.ty(x).bytes();
    // Of `bf16` the statistics have another type.
    if !whole || v.g.ty(x).dtype == DType::Bf16 {
        return None;
    }
    let used = |n| used(v, n, y, parts, moved.as_deref());
    let uses: Vec<Use> = v.uses(y)?.into_iter().map(used).collect::<Option<_>>()?;
    (!uses.is_empty()).then_some(Loss { node, logits, moved, uses })
}

/// The value whose last axis a transpose moves to this place, and the transpose's permutation.
fn last_moved(v: &GraphView, x: ValueId, axis: usize) -> Option<(ValueId, Vec<usize>)> {
    let Node { op: Op::Transpose { perm }, inputs, outputs, .. } = v.node(x)? else { return None };
    let mut rest = perm.clone();
    let is_last = rest.get(axis)? + 1 == rest.len() && outputs[0] == Some(x);
    rest.remove(axis);
    (is_last && rest.is_sorted()).then(|| (inputs[0], perm.clone()))
}

/// What a node makes of the log softmax `y`, of which `parts` are those of the classes' axis.
fn used(
    v: &GraphView,
    at: NodeId,
    y: ValueId,
    parts: [usize; 3],
    moved: Option<&[usize]>,
) -> Option<Use> {
    let Node { op, inputs, .. } = &v.g.nodes[at];
    let (&read, rest) = inputs.split_first()?;
    if !v.is(read, y) || rest.iter().any(|&x| v.is(x, y)) {
        return None;
    }
    let along = |axis| split(&v.g.ty(read).shape, axis) == Some(parts);
    let gradient = |at: NodeId, rows: OneHot| {
        let back = v.g.result(at).map_or(Vec::new(), |d| v.consumers(d));
        let moves_back = |n: &NodeId| is_inverse(v, *n, moved);
        Use::Gradient { at, rows, back: back.into_iter().filter(moves_back).collect() }
    };
    match *op {
        Op::GatherElements { axis } if along(axis) => {
            let &[indices] = rest else { return None };
            let one_each = v.g.ty(indices).elements() == parts[0] * parts[2]
                && v.g.ty(indices).shape.get(axis) == Some(&1);
            one_each.then_some(Use::Gathered { at, indices })
        }
        Op::LogSoftmaxGrad { axis } if along(axis) => {
            Some(gradient(at, one_hot(v, *rest.first()?, parts)?))
        }
        Op::Unary { f: Unary::Exp } => Some(match difference(v, v.g.result(at)?, parts) {
            Some((at, rows)) => gradient(at, rows),
            None => Use::Softmax { at },
        }),
        _ => None,
    }
}

/// True for a transpose that moves the classes of logits to the end again.
fn is_inverse(v: &GraphView, n: NodeId, moved: Option<&[usize]>) -> bool {
    let (Op::Transpose { perm }, Some(moved)) = (&v.g.nodes[n].op, moved) else { return false };
    perm.len() == moved.len() && perm.iter().enumerate().all(|(i, &p)| moved[p] == i)
}

/// `m − p · sum(m)` of the softmax `p`, where `m` has one element per row.
fn difference(v: &GraphView, p: ValueId, parts: [usize; 3]) -> Option<(NodeId, OneHot)> {
    let product = v.only_use(p)?;
    let sum = v.other(product, Binary::Mul, p)?;
    let difference = v.only_use(v.g.result(product)?)?;
    let [m, subtracted] = v.applied(difference, Binary::Sub)?;
    let (summed, axis) = v.reduced(sum, Reduction::Sum)?;
    let fits = v.is(subtracted, v.g.result(product)?)
        && summed == m
        && v.g.ty(m).shape == v.g.ty(p).shape
        && split(&v.g.ty(m).shape, axis) == Some(parts);
    Some((difference, one_hot(v, m, parts).filter(|_| fits)?))
}

/// Zeros into whose rows one element each is scattered, perhaps all times a factor.
fn one_hot(v: &GraphView, m: ValueId, parts: [usize; 3]) -> Option<OneHot> {
    let scaled = v.commuted(m, Binary::Mul).map(|[m, factor]| (m, Some(factor)));
    scaled.chain([(m, None)]).find_map(|(m, factor)| scattered(v, m, factor, parts))
}

fn scattered(
    v: &GraphView,
    m: ValueId,
    factor: Option<ValueId>,
    parts: [usize; 3],
) -> Option<OneHot> {
    let Node { op: Op::ScatterElements { axis, reduction }, inputs, .. } = v.node(m)? else {
        return None;
    };
    let &[zeros, target, w] = &inputs[..] else { return None };
    let shape = &v.g.ty(zeros).shape;
    let mut rows = shape.clone();
    *rows.get_mut(*axis)? = 1;
    // A factor of rows has the shape in which it is multiplied.
    let is_one_each = |f: ValueId| {
        let ty = v.g.ty(f);
        (ty.shape == rows && v.g.ty(m).shape == *shape)
            || (ty.elements() == 1 && ty.rank() <= rows.len())
    };
    let fits = split(shape, *axis) == Some(parts)
        && matches!(reduction, Scatter::Replace | Scatter::Add)
        && v.number(zeros) == Some(0.0)
        && v.g.ty(w).shape == rows
        && factor.is_none_or(is_one_each);
    fits.then_some(OneHot { target, w, factor })
}

impl Loss {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let ty = e.g.ty(self.logits).clone();
        let Some(&classes) = ty.shape.last() else { return Ok(()) };
        let rows = ty.elements() / classes.max(1);
        let x = e.reshaped(self.node, self.logits, &[rows, classes])?;
        let [max, ln_sum] = e.node(self.node, Op::LogSoftmaxStats, vec![x])?[..] else {
            return Ok(());
        };
        // The classes where the log softmax has them.
        let moved = |e: &mut Editor, at: NodeId, y: ValueId| match &self.moved {
            Some(perm) => {
                let y = e.reshaped(at, y, &ty.shape)?;
                e.value(at, Op::Transpose { perm: perm.clone() }, vec![y])
            }
            None => Ok(y),
        };
        for of in &self.uses {
            let (&Use::Gathered { at, .. } | &Use::Softmax { at } | &Use::Gradient { at, .. }) = of;
            let Some(old) = e.g.result(at) else { continue };
            let new = match of {
                Use::Gathered { indices, .. } => {
                    let indices = e.reshaped(at, *indices, &[rows, 1])?;
                    let mut y = e.value(at, Op::GatherElements { axis: 1 }, vec![x, indices])?;
                    for stat in [max, ln_sum] {
                        y = e.value(at, Op::Binary { f: Binary::Sub }, vec![y, stat])?;
                    }
                    y
                }
                Use::Softmax { .. } => {
                    let y = e.value(at, Op::SoftmaxOfStats, vec![x, max, ln_sum])?;
                    moved(e, at, y)?
                }
                Use::Gradient { rows: OneHot { target, w, factor }, back, .. } => {
                    let w = match factor {
                        Some(by) => {
                            let operands = vec![*w, *by];
                            e.value(at, Op::Binary { f: Binary::Mul }, operands)?
                        }
                        None => *w,
                    };
                    let [target, w] = [*target, w].map(|v| e.reshaped(at, v, &[rows, 1]));
                    let operands = vec![x, max, ln_sum, target?, w?];
                    let d = e.value(at, Op::CrossEntropyGrad, operands)?;
                    for &n in back {
                        if let Some(old) = e.g.result(n) {
                            e.replace(n, old, d)?;
                        }
                    }
                    moved(e, at, d)?
                }
            };
            e.replace(at, old, new)?;
        }
        Ok(())
    }
}
