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
//! - `m − exp(…) · sum(m)`, `m` being zeros into which `w` is scattered (one element per
//!   row, perhaps times a factor), becomes `cross_entropy_grad`: no one-hot matrix.
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

use crate::dead_code::DeadCode;
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Scatter, Unary};
use arenic_ir::types::DType;
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Computes the cross entropy and its gradient without storing log probabilities.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseCrossEntropy {}

impl GraphPass for FuseCrossEntropy {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let mut rewrite = Rewrite::new(g);
        let (mut losses, mut gradients) = (0, 0);
        for n in rewrite.g.nodes.keys().collect::<Vec<_>>() {
            let Some(found) = rewrite.log_softmax(n) else { continue };
            losses += 1;
            gradients += rewrite.apply(&found)?;
        }
        if losses > 0 {
            let Rewrite { with, order, .. } = rewrite;
            g.replace_uses(&with);
            *g = g.arranged(&order);
            DeadCode {}.run(g, cx)?;
        }
        Ok(Stats::from([("fused_losses", losses), ("fused_gradients", gradients)]))
    }
}

/// A log softmax with all its readers.
struct Found {
    node: NodeId,
    gathers: Vec<NodeId>,
    exponentials: Vec<NodeId>,
}

/// The gradient of a cross entropy.
struct Gradient {
    /// The subtraction that gives it.
    node: NodeId,
    target: ValueId,
    /// What is scattered, and the factor of all of it.
    updates: ValueId,
    factor: Option<ValueId>,
}

struct Rewrite<'a> {
    g: &'a mut Graph,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// Roots that are outputs or exit values.
    kept: SecondaryMap<ValueId, bool>,
    /// Values that others take the place of.
    with: SecondaryMap<ValueId, Option<ValueId>>,
    /// All nodes, new ones at their places.
    order: Vec<NodeId>,
}

impl<'a> Rewrite<'a> {
    fn new(g: &'a mut Graph) -> Self {
        let readers = g.readers();
        let kept = g.kept();
        let order = g.nodes.keys().collect();
        Rewrite { g, readers, kept, with: SecondaryMap::new(), order }
    }

    /// The node that defines the root of `v`, where `v` is all of it.
    fn definition(&self, v: ValueId) -> Option<NodeId> {
        let root = self.g.resolve(v).root;
        match self.g.values[root].def {
            Def::Node { node, output: 0 } => {
                (self.g.ty(root).bytes() == self.g.ty(v).bytes()).then_some(node)
            }
            _ => None,
        }
    }

    /// The only reader of a node's result, which is read in the shape that it has.
    fn only_reader(&self, n: NodeId) -> Option<NodeId> {
        let readers = self.plain_readers(n)?;
        (readers.len() == 1).then(|| readers[0])
    }

    /// All readers of a node's result; none where it is also an output, an exit value or
    /// read through a view.
    fn plain_readers(&self, n: NodeId) -> Option<&[NodeId]> {
        let v = self.g.result(n)?;
        let readers = &self.readers[v];
        let through_view = readers.iter().any(|&r| {
            self.g.nodes[r].inputs.iter().any(|&x| x != v && self.g.resolve(x).root == v)
        });
        (!self.kept[v] && !through_view).then_some(readers)
    }

    /// A log softmax of rows whose readers are all gathers and exponentials of it.
    fn log_softmax(&self, n: NodeId) -> Option<Found> {
        let Op::LogSoftmax { axis } = self.g.nodes[n].op else { return None };
        let x = self.g.nodes[n].inputs[0];
        let ty = self.g.ty(x);
        // Where only a part of a larger tensor is needed, keeping it could cost more.
        let whole = self.g.ty(self.g.resolve(x).root).bytes() == ty.bytes();
        // Of `bf16` the statistics have another type.
        if axis + 1 != ty.rank() || !whole || ty.dtype == DType::Bf16 {
            return None;
        }
        let mut found = Found { node: n, gathers: Vec::new(), exponentials: Vec::new() };
        for &r in self.plain_readers(n)? {
            let reader = &self.g.nodes[r];
            match reader.op {
                Op::GatherElements { axis: along } if along == axis => {
                    let indices = self.g.ty(*reader.inputs.get(1)?);
                    if indices.shape[..axis] != ty.shape[..axis] {
                        return None;
                    }
                    found.gathers.push(r);
                }
                Op::Unary { f: Unary::Exp } => found.exponentials.push(r),
                _ => return None,
            }
        }
        (!found.gathers.is_empty() || !found.exponentials.is_empty()).then_some(found)
    }

    /// Rewrites a log softmax and its readers; gives the number of fused gradients.
    fn apply(&mut self, found: &Found) -> Result<u64, PassError> {
        let x = self.g.nodes[found.node].inputs[0];
        let stats = self.insert(found.node, Op::LogSoftmaxStats, vec![x])?;
        let [Some(max), Some(ln_sum)] = self.g.nodes[stats].outputs[..] else { return Ok(0) };
        for &n in &found.gathers {
            let indices = self.g.nodes[n].inputs[1];
            let op = self.g.nodes[n].op.clone();
            let mut v = self.insert_value(n, op, vec![x, indices])?;
            for stat in [max, ln_sum] {
                v = self.insert_value(n, Op::Binary { f: Binary::Sub }, vec![v, stat])?;
            }
            self.replace(n, v);
        }
        let mut gradients = 0;
        for &n in &found.exponentials {
            let Some(gradient) = self.gradient(n) else {
                let v = self.insert_value(n, Op::SoftmaxOfStats, vec![x, max, ln_sum])?;
                self.replace(n, v);
                continue;
            };
            let at = gradient.node;
            let mut w = gradient.updates;
            if let Some(factor) = gradient.factor {
                w = self.insert_value(at, Op::Binary { f: Binary::Mul }, vec![w, factor])?;
            }
            let operands = vec![x, max, ln_sum, gradient.target, w];
            let v = self.insert_value(at, Op::CrossEntropyGrad, operands)?;
            self.replace(at, v);
            gradients += 1;
        }
        Ok(gradients)
    }

    /// The gradient that the exponential of a log softmax belongs to.
    fn gradient(&self, exponential: NodeId) -> Option<Gradient> {
        let g = &*self.g;
        let softmax = g.result(exponential)?;
        let product = self.only_reader(exponential)?;
        let sum_value = other_operand(g, product, Binary::Mul, softmax)?;
        let difference = self.only_reader(product)?;
        let Op::Binary { f: Binary::Sub } = g.nodes[difference].op else { return None };
        let [scattered, subtracted] = g.nodes[difference].inputs[..] else { return None };
        let sum = self.definition(sum_value)?;
        let Op::Reduce { f: Reduction::Sum, ref axes, keep: true } = g.nodes[sum].op else {
            return None;
        };
        let last = g.ty(softmax).rank().checked_sub(1)?;
        if Some(subtracted) != g.result(product)
            || axes[..] != [last]
            || g.nodes[sum].inputs[0] != scattered
            || sum_value != g.result(sum)?
            || g.ty(scattered).shape != g.ty(softmax).shape
        {
            return None;
        }
        // The scattered matrix, perhaps times a factor.
        let mut node = self.definition(scattered)?;
        let mut factor = None;
        if let Op::Binary { f: Binary::Mul } = g.nodes[node].op {
            let [a, b] = g.nodes[node].inputs[..] else { return None };
            let is_scatter = |v: ValueId| {
                let of = self.definition(v)?;
                matches!(g.nodes[of].op, Op::ScatterElements { .. }).then_some(of)
            };
            (node, factor) = match (is_scatter(a), is_scatter(b)) {
                (Some(n), _) => (n, Some(b)),
                (None, Some(n)) => (n, Some(a)),
                (None, None) => return None,
            };
        }
        let Op::ScatterElements { axis, reduction } = g.nodes[node].op else { return None };
        let [base, target, updates] = g.nodes[node].inputs[..] else { return None };
        let mut rows = g.ty(softmax).shape.clone();
        rows[last] = 1;
        let fits = axis == last
            && matches!(reduction, Scatter::Replace | Scatter::Add)
            && g.ty(updates).shape == rows
            && g.ty(base).shape == g.ty(softmax).shape
            && is_zero(g, base)
            && factor.is_none_or(|f| {
                let t = g.ty(f);
                t.shape == rows || (t.elements() == 1 && t.rank() <= rows.len())
            });
        fits.then_some(Gradient { node: difference, target, updates, factor })
    }

    /// Adds a node just before `at`.
    fn insert(&mut self, at: NodeId, op: Op, inputs: Vec<ValueId>) -> Result<NodeId, PassError> {
        let name = self.g.nodes[at].name.clone();
        let node = self.g.add_node(name, op, inputs)?;
        let place = self.order.iter().position(|&n| n == at).unwrap_or(self.order.len());
        self.order.insert(place, node);
        Ok(node)
    }

    /// Adds a node just before `at`; gives its first result.
    fn insert_value(
        &mut self,
        at: NodeId,
        op: Op,
        inputs: Vec<ValueId>,
    ) -> Result<ValueId, PassError> {
        let node = self.insert(at, op, inputs)?;
        let first = self.g.nodes[node].outputs.first().copied().flatten();
        first.ok_or_else(|| PassError::Type(arenic_ir::op::TypeError("no result".into())))
    }

    /// Lets `v` take the place of a node's result.
    fn replace(&mut self, n: NodeId, v: ValueId) {
        if let Some(old) = self.g.result(n) {
            self.g.values[v].name = self.g.values[old].name.clone();
            self.with[old] = Some(v);
        }
    }
}

/// The other operand of a node that applies `f` to `v` and another value.
fn other_operand(g: &Graph, n: NodeId, f: Binary, v: ValueId) -> Option<ValueId> {
    let Op::Binary { f: of } = g.nodes[n].op else { return None };
    match g.nodes[n].inputs[..] {
        [a, b] if of == f && a == v && b != v => Some(b),
        [a, b] if of == f && b == v && a != v => Some(a),
        _ => None,
    }
}

/// True where every element of `v` is known to be zero (and none is −0).
fn is_zero(g: &Graph, v: ValueId) -> bool {
    let mut v = v;
    while let Def::Node { node, .. } = g.values[v].def {
        let Op::Expand { .. } = g.nodes[node].op else { return false };
        v = g.nodes[node].inputs[0];
    }
    g.const_bytes(v).is_some_and(|bytes| bytes.iter().all(|&b| b == 0))
}
