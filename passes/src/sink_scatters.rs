//! What is added to a scatter is scattered to: sums of rows come last.
//!
//! The gradient of an embedding is a table of zeros to which a few rows are added, of the size of
//! the weights. An update that is linear in it needs no such table:
//!
//! > x + c·scatter(y, u) = scatter(x + c·y, c·u)  and  x − c·scatter(y, u) = scatter(x − c·y, −c·u)
//!
//! with scalars c. Where y is zero, the rows are added to `x` itself, in its bytes: to a momentum, to a
//! sum of micro-batches, to the other gradient of a tied weight, and, without a momentum, to the
//! weight. Where y is a product, as that of a head whose weight is the embedding, `fuse_updates` then
//! makes the product a part of the update.
//!
//! Sound because both sides are sums of the same terms; they are added in another order, so the last
//! bits may differ. It never needs more memory, whatever the order of the graph: it is done only
//! where nobody else reads the scatter; where `x` gives its bytes away, because it comes and goes and
//! only this sum reads it, or is the old value of the state that the sum is the new one of, and all
//! other readers come before the scatter in any order (or where the table has bytes of its own already, of y);
//! and where the rows and their indices, which are kept until the sum is due, are no larger than the table.
//!
//! Source: none. DL frameworks have sparse gradients for the same purpose (`torch.nn.Embedding(sparse=True)`).

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Scatter, Unary};
use arenic_ir::types::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Adds the rows of a scatter to what the scatter would be added to.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SinkScatters {}

impl GraphPass for SinkScatters {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let mut count = 0;
        // A scatter may sink through several sums, as weight decay and a momentum. Each sum takes it
        // once, so that this ends.
        loop {
            let view = GraphView::new(g);
            let Some(found) = g.nodes.keys().find_map(|n| view.sunk(n)) else { break };
            let mut e = Editor::new(g);
            found.replace(&mut e)?;
            e.finish();
            count += 1;
        }
        Ok(Stats::from([("sunk_scatters", count)]))
    }
}

/// A scatter that adds, and the sum that it is a term of.
struct Sunk {
    scatter: NodeId,
    /// Products and quotients of the scatter by scalars, in their order.
    factors: Vec<NodeId>,
    sum: NodeId,
    f: Binary,
    /// The other term.
    x: ValueId,
    /// True where the scatter adds to zeros.
    to_zeros: bool,
}

impl Sunk {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let Node { op: scatter, mut inputs, .. } = e.g.nodes[self.scatter].clone();
        let [y, u] = [self.scaled(e, inputs[0])?, self.scaled(e, inputs[2])?];
        let at = self.sum;
        inputs[0] = match self.to_zeros {
            true => self.x,
            false => e.value(at, Op::Binary { f: self.f }, vec![self.x, y])?,
        };
        inputs[2] = match self.f {
            Binary::Sub => e.value(at, Op::Unary { f: Unary::Neg }, vec![u])?,
            _ => u,
        };
        let new = e.value(at, scatter, inputs)?;
        let Some(old) = e.g.result(at) else { return Ok(()) };
        e.replace(at, old, new)
    }

    /// A value with the factors of the scatter.
    fn scaled(&self, e: &mut Editor, v: ValueId) -> Result<ValueId, PassError> {
        let mut of = self.scatter;
        self.factors.iter().try_fold(v, |v, &factor| {
            let Node { op, mut inputs, .. } = e.g.nodes[factor].clone();
            let scattered = e.g.result(of);
            inputs.iter_mut().filter(|x| Some(**x) == scattered).for_each(|x| *x = v);
            of = factor;
            e.value(self.sum, op, inputs)
        })
    }
}

impl GraphView<'_> {
    /// The sum that a scatter can be moved behind.
    fn sunk(&self, scatter: NodeId) -> Option<Sunk> {
        let g = self.g;
        let Node { op, inputs, .. } = &g.nodes[scatter];
        let (Op::ScatterNd { reduction } | Op::ScatterElements { reduction, .. }) = op else {
            return None;
        };
        let mut of = g.result(scatter)?;
        let ty = g.ty(of);
        let kept: u64 = inputs[1..].iter().map(|&v| g.ty(v).bytes()).sum();
        if *reduction != Scatter::Add
            || !matches!(ty.dtype, DType::F32 | DType::F64)
            || kept > ty.bytes()
        {
            return None;
        }
        let mut factors = Vec::new();
        loop {
            let n = self.only_use(of)?;
            let Node { op: Op::Binary { f }, inputs: terms, .. } = &g.nodes[n] else { return None };
            let (result, &[a, b]) = (g.result(n)?, &terms[..]) else { return None };
            if g.ty(result) != ty || a == b {
                return None;
            }
            let (other, is_first) = if a == of { (b, true) } else { (a, false) };
            let is_factor = match f {
                Binary::Mul => true,
                Binary::Div => is_first,
                _ => false,
            };
            if is_factor && g.ty(other).elements() == 1 {
                factors.push(n);
                of = result;
                continue;
            }
            let is_sum = *f == Binary::Add || (*f == Binary::Sub && !is_first);
            let to_zeros = self.number(inputs[0]) == Some(0.0);
            let fits = is_sum
                && (a == of || b == of)
                && g.ty(other) == ty
                && (!to_zeros || self.gives_its_bytes(other, n, scatter));
            return fits.then_some(Sunk { scatter, factors, sum: n, f: *f, x: other, to_zeros });
        }
    }

    /// True where a sum can take the bytes of its term `x` in any order in which the scatter comes
    /// before the sum.
    fn gives_its_bytes(&self, x: ValueId, sum: NodeId, scatter: NodeId) -> bool {
        let g = self.g;
        let root = g.resolve(x).root;
        let is_whole = g.ty(root) == g.ty(x);
        let mut others = self.readers[root].iter().filter(|&&n| n != sum);
        let comes_before =
            |&n: &NodeId| g.result(n).is_some_and(|result| self.is_there_before(scatter, result));
        is_whole
            && match g.values[root].def {
                Def::State(s) => {
                    Some(g.resolve(g.states[s].exit).root) == g.result(sum)
                        && others.all(comes_before)
                }
                _ => self.is_transient(root) && others.next().is_none(),
            }
    }
}
