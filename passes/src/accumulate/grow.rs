//! Adding terms up: what totals are before the first round, and what each round adds to them.

use super::part::{Part, fill, missing};
use super::rows::Rows;
use super::rules::Kind;
use super::totals::{Term, Total};
use arenic_ir::graph::{Def, Node, NodeId, ValueId};
use arenic_ir::op::Binary::{self, Add, Sub};
use arenic_ir::op::{Op, TypeError, Unary};
use std::collections::{BTreeSet, HashMap};

/// The totals of a round, to which terms are added as soon as they are known: in the order in which
/// rounds make them, whatever they are added up in.
pub(super) struct Growing<'n> {
    totals: &'n [Total],
    /// What each total has come to.
    pub(super) so_far: Vec<ValueId>,
    /// By sums, the totals that they go into, and as which of the terms.
    into: HashMap<ValueId, Vec<(usize, usize)>>,
    /// Nodes between sums and totals, which no round computes.
    pub(super) passed: BTreeSet<NodeId>,
}

impl<'n> Growing<'n> {
    pub(super) fn new(totals: &'n [Total], part: &Part) -> Self {
        let enter = |total: &Total| part.new.states[part.carried[&total.value]].enter;
        let mut growing = Growing {
            totals,
            so_far: totals.iter().map(enter).collect(),
            into: HashMap::new(),
            passed: BTreeSet::new(),
        };
        for (i, total) in totals.iter().enumerate() {
            for (k, term) in total.terms.iter().enumerate() {
                growing.into.entry(term.sum).or_default().push((i, k));
                growing.passed.extend(term.path.iter().map(|&(n, _)| n));
            }
        }
        growing
    }

    /// The total that a sum alone is a term of, and which it goes into as it is.
    pub(super) fn alone(&self, rows: &Rows, sum: ValueId) -> Option<usize> {
        match self.into.get(&sum).map(Vec::as_slice) {
            Some(&[(i, k)]) => Some(i).filter(|_| self.totals[i].terms[k].is_plain(rows)),
            _ => None,
        }
    }

    /// Adds the terms that a node has made.
    pub(super) fn add(&mut self, part: &mut Part, node: &Node) -> Result<(), TypeError> {
        for v in node.outputs.iter().flatten() {
            for &(i, k) in self.into.get(v).into_iter().flatten() {
                self.so_far[i] = part.added(&self.totals[i].terms[k], self.so_far[i])?;
            }
        }
        Ok(())
    }
}

impl Part<'_> {
    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        let n = self.new.add_node("", Op::Binary { f }, vec![a, b])?;
        self.new.result(n).ok_or_else(|| missing(a))
    }

    fn unary(&mut self, op: Op, x: ValueId) -> Result<ValueId, TypeError> {
        let n = self.new.add_node("", op, vec![x])?;
        self.new.result(n).ok_or_else(|| missing(x))
    }

    /// What a total is without its terms; `None` for zero. `v` is the total or lies on the way from
    /// one of its terms to it.
    pub(super) fn without_terms(
        &mut self,
        v: ValueId,
        total: &Total,
    ) -> Result<Option<ValueId>, TypeError> {
        let rows = self.rows;
        if total.terms.iter().any(|term| term.sum == v) {
            return Ok(None);
        }
        if !matches!(rows.kind[v], Kind::Sum | Kind::Late) {
            return Ok(Some(self.leaf(v).ok_or_else(|| missing(v))?));
        }
        let Def::Node { node, .. } = rows.g.values[v].def else { return Err(missing(v)) };
        let node = &rows.g.nodes[node];
        let mut x = Vec::with_capacity(2);
        for &operand in &node.inputs {
            x.push(self.without_terms(operand, total)?);
        }
        let known = match (&node.op, &x[..]) {
            (Op::Binary { f: Add }, &[None, Some(x)]) => Some(x),
            (Op::Binary { f: Add | Sub }, &[Some(x), None]) => Some(x),
            (Op::Binary { f: Sub }, &[None, Some(x)]) => {
                Some(self.unary(Op::Unary { f: Unary::Neg }, x)?)
            }
            (Op::Binary { f }, &[Some(a), Some(b)]) => Some(self.binary(*f, a, b)?),
            (op, &[Some(x)]) => Some(self.unary(op.clone(), x)?),
            _ => None,
        };
        match known {
            Some(x) if self.new.ty(x).shape != rows.g.ty(v).shape => {
                Ok(Some(fill(&mut self.new, x, rows.g.ty(v))?))
            }
            known => Ok(known),
        }
    }

    /// Adds a round's term to a total.
    fn added(&mut self, term: &Term, to: ValueId) -> Result<ValueId, TypeError> {
        let rows = self.rows;
        let mut x = self.of[term.sum].ok_or_else(|| missing(term.sum))?;
        let mut f = Add;
        for &(n, i) in &term.path {
            let node = &rows.g.nodes[n];
            match &node.op {
                Op::Binary { f: Add } => {}
                Op::Binary { f: Sub } if i == 0 => {}
                Op::Binary { f: Sub } | Op::Unary { f: Unary::Neg } => {
                    f = if f == Add { Sub } else { Add };
                }
                // The term is the first operand of what it is divided by.
                Op::Binary { f } => {
                    let factor = node.inputs[1 - i];
                    let factor = self.leaf(factor).ok_or_else(|| missing(factor))?;
                    x = self.binary(*f, x, factor)?;
                }
                op => x = self.unary(op.clone(), x)?,
            }
        }
        let x = self.cast(x, self.new.ty(to).dtype)?;
        let n = self.new.add_node("accumulate", Op::Binary { f }, vec![to, x])?;
        self.new.result(n).ok_or_else(|| missing(term.sum))
    }
}
