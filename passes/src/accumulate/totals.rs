//! What grows from round to round, and where it lies.
//!
//! A sum over the rounds has bytes of its own, which are carried from round to round, unless a state can take its
//! terms. That is so where the state's next value is affine in sums that nothing else reads,
//!
//! > `s' = b + f₁ ∘ G₁ + f₂ ∘ G₂ + …`, with `Gᵢ = Σₖ gᵢₖ` over the rounds `k`,
//!
//! where `b` and the factors `fᵢ` are known before the first round, and nobody reads `s` once `b` is known. Then the
//! part before the rounds sets `s` to `b`, each round adds `fᵢ ∘ gᵢₖ`, and `s'` is there after the last one. So the
//! momentum `m' = μ m + G` takes gradients that would else lie beside it. A weight that rounds read, or a
//! second moment, which needs the square of `G`, takes none.
//!
//! Sound because the nodes from a sum to `s'` are linear in it, each with one reader, so that a sum of terms may go
//! through them one by one; results differ by the order of sums. That rounds and the part after them never read `s` is
//! looked up in what they really compute ([`Totals::new`]'s caller).

use super::rows::Rows;
use super::rules::Kind;
use arenic_ir::graph::{Def, NodeId, StateId, ValueId};
use arenic_ir::op::{Binary, Op, Unary};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeSet;

/// A value of the whole step that grows from round to round.
#[derive(Clone, Debug)]
pub(super) struct Total {
    /// The value: what is there after the last round.
    pub(super) value: ValueId,
    /// The state that takes the terms; `None` where they have bytes of their own.
    pub(super) state: Option<StateId>,
    /// What is added to it.
    pub(super) terms: Vec<Term>,
}

/// A sum that goes into a total.
#[derive(Clone, Debug)]
pub(super) struct Term {
    /// The sum of what the rounds compute.
    pub(super) sum: ValueId,
    /// The nodes that lead from the sum to the total, each with the operand through which.
    pub(super) path: Vec<(NodeId, usize)>,
}

impl Term {
    /// What is multiplied with the term or divides it.
    pub(super) fn factors<'r>(&'r self, rows: &'r Rows) -> impl Iterator<Item = ValueId> + 'r {
        self.path.iter().filter_map(|&(n, i)| {
            let node = &rows.g.nodes[n];
            let scales = matches!(node.op, Op::Binary { f: Binary::Mul | Binary::Div });
            node.inputs.get(1 - i).copied().filter(|_| scales)
        })
    }

    /// True where the term is added as it is.
    pub(super) fn is_plain(&self, rows: &Rows) -> bool {
        self.path.iter().all(|&(n, i)| match rows.g.nodes[n].op {
            Op::Binary { f: Binary::Add } => true,
            Op::Binary { f: Binary::Sub } => i == 0,
            _ => false,
        })
    }
}

impl Total {
    /// What is known before the rounds and read by the nodes that lead to the total.
    pub(super) fn given<'r>(&'r self, rows: &'r Rows) -> impl Iterator<Item = ValueId> + 'r {
        let nodes = self.terms.iter().flat_map(|term| term.path.iter());
        let operands = nodes.flat_map(|&(n, _)| rows.g.nodes[n].inputs.iter().copied());
        operands.filter(|&v| matches!(rows.kind[v], Kind::Shared | Kind::Early))
    }
}

/// Finds totals.
pub(super) struct Totals<'a> {
    rows: &'a Rows<'a>,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// How many outputs and next values of states a value is.
    ends: SecondaryMap<ValueId, usize>,
}

impl<'a> Totals<'a> {
    pub(super) fn new(rows: &'a Rows<'a>) -> Self {
        let g = rows.g;
        let mut ends: SecondaryMap<ValueId, usize> = SecondaryMap::new();
        let outputs = g.outputs.iter().map(|o| o.value);
        outputs.chain(g.states.values().map(|s| s.exit)).for_each(|v| ends[v] += 1);
        Totals { rows, readers: g.readers(), ends }
    }

    /// The states whose next values are affine in sums that nothing else reads.
    pub(super) fn in_states(&self) -> Vec<Total> {
        let mut totals = Vec::new();
        let mut taken = BTreeSet::new();
        for (s, state) in &self.rows.g.states {
            let value = state.exit;
            let mut terms = Vec::new();
            let grows = matches!(self.rows.kind[value], Kind::Sum | Kind::Late)
                && self.walk(value, &mut Vec::new(), &mut terms)
                && terms.iter().all(|term| self.is_own(term));
            if grows && taken.insert(value) {
                totals.push(Total { value, state: Some(s), terms });
            }
        }
        totals
    }

    /// The sum with bytes of its own.
    pub(super) fn beside_states(&self, value: ValueId) -> Total {
        let mut terms = Vec::new();
        if !self.walk(value, &mut Vec::new(), &mut terms) {
            terms = vec![Term { sum: value, path: Vec::new() }];
        }
        Total { value, state: None, terms }
    }

    /// True where nothing but the total needs the sum, and each round can scale its term.
    fn is_own(&self, term: &Term) -> bool {
        let rows = self.rows;
        let is_fixed = |v: ValueId| rows.kind[v] == Kind::Early || !rows.random[v];
        (term.path.is_empty() || self.uses(term.sum) == 1) && term.factors(rows).all(is_fixed)
    }

    fn uses(&self, v: ValueId) -> usize {
        self.readers[v].len() + self.ends[v]
    }

    /// Goes back from a total to the sums in it; false where it is not affine in them. `path` leads
    /// from the total to `v`.
    fn walk(&self, v: ValueId, path: &mut Vec<(NodeId, usize)>, terms: &mut Vec<Term>) -> bool {
        let rows = self.rows;
        let Def::Node { node, .. } = rows.g.values[v].def else { return false };
        // Within rounds a sum may be read as the terms that it is of.
        let in_rounds = |&n: &NodeId| {
            rows.g.nodes[n].outputs.iter().flatten().any(|&y| rows.kind[y] != Kind::Late)
        };
        let passes = match path.is_empty() {
            true => !self.readers[v].iter().any(in_rounds),
            false => self.uses(v) == 1,
        };
        if let Some(operands) = self.linear_in(node).filter(|_| passes) {
            return operands.into_iter().all(|i| {
                path.push((node, i));
                let found = self.walk(rows.g.nodes[node].inputs[i], path, terms);
                path.pop();
                found
            });
        }
        let is_sum = rows.kind[v] == Kind::Sum;
        if is_sum {
            terms.push(Term { sum: v, path: path.iter().rev().copied().collect() });
        }
        is_sum
    }

    /// The operands in which a node is linear, all others given; `None` where it is not, or
    /// where it is what makes the terms of a sum.
    fn linear_in(&self, n: NodeId) -> Option<Vec<usize>> {
        let rows = self.rows;
        let (g, node) = (rows.g, &rows.g.nodes[n]);
        let y = node.outputs.first().copied().flatten()?;
        let grows = |i: &usize| matches!(rows.kind[node.inputs[*i]], Kind::Sum | Kind::Late);
        let all = || (0..node.inputs.len()).filter(grows).collect::<Vec<usize>>();
        let operands = match node.op {
            Op::Binary { f: Binary::Add | Binary::Sub } if node.inputs[0] != node.inputs[1] => {
                all()
            }
            Op::Binary { f: Binary::Mul } => Some(all()).filter(|of| of.len() == 1)?,
            Op::Binary { f: Binary::Div } => Some(all()).filter(|of| of[..] == [0])?,
            Op::Unary { f: Unary::Neg } | Op::Reshape { .. } | Op::Transpose { .. } => all(),
            _ => return None,
        };
        let moves = matches!(node.op, Op::Reshape { .. } | Op::Transpose { .. });
        let keeps = |&i: &usize| moves || g.ty(node.inputs[i]).shape == g.ty(y).shape;
        let is_linear = rows.rule[n].is_none() && g.ty(y).dtype.is_float();
        (is_linear && !operands.is_empty() && operands.iter().all(keeps)).then_some(operands)
    }
}
