//! Which values of a step exist by rows of the batch, and what that makes of each operator.
//!
//! The batch is cut into `count` equal parts along the first axis of the inputs that hold it. From
//! there the operator table ([`Op::cuts`]) says along which axis a result is cut, or that the parts'
//! results add up to it ([`super::rules`]). A value that all rows are needed for cannot be used while rows are still
//! to come, unless it follows from inputs alone: then it is computed before the first round.

use super::AccumulateError;
use super::rules::{Along, Kind, Rule, by_table, narrowed, repeats, special};
use crate::rewrite::is_zero;
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction};
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeSet, HashMap};

/// The values of a step in rounds.
pub(crate) struct Rows<'a> {
    pub(crate) g: &'a Graph,
    pub(crate) count: usize,
    /// Inputs that hold the batch.
    pub(crate) by_rows: BTreeSet<ValueId>,
    pub(crate) kind: SecondaryMap<ValueId, Kind>,
    /// For nodes whose operands or results are cut.
    pub(crate) rule: SecondaryMap<NodeId, Option<Rule>>,
    /// Values that depend on a state.
    pub(crate) stateful: SecondaryMap<ValueId, bool>,
    /// Values that depend on a random operator.
    pub(crate) random: SecondaryMap<ValueId, bool>,
    /// Whether a shared value is the same along an axis, part by part.
    narrows: HashMap<(ValueId, Along), bool>,
    /// Inputs that would have to hold the batch, too.
    wanted: BTreeSet<ValueId>,
    /// Values that rows read whole, so that they are [`Kind::Early`].
    early: BTreeSet<ValueId>,
    /// Who has the parts.
    among: Among,
}

/// Who has the parts of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Among {
    /// Rounds, one after another: a sum over all rows is known after the last.
    Rounds,
    /// Ranks, at the same time: they can add up a sum at once, and draw each for itself.
    Ranks,
}

impl<'a> Rows<'a> {
    /// Follows the batch through the graph.
    ///
    /// # Errors
    /// An operator needs all rows at once; there is no batch, or it has no `count` equal parts.
    pub(crate) fn new(g: &'a Graph, count: usize) -> Result<Self, AccumulateError> {
        Rows::among(g, count, Among::Rounds)
    }

    /// As [`Rows::new`] for parts that ranks have at the same time. A sum may then be read by rows, and no
    /// value is [`Kind::Early`].
    ///
    /// # Errors
    /// As for [`Rows::new`].
    pub(crate) fn of_ranks(g: &'a Graph, count: usize) -> Result<Self, AccumulateError> {
        Rows::among(g, count, Among::Ranks)
    }

    fn among(g: &'a Graph, count: usize, among: Among) -> Result<Self, AccumulateError> {
        let mut refusal = None;
        for Batch { inputs, .. } in batches(g) {
            match Rows::from(g, count, inputs, among) {
                Ok(rows) => return Ok(rows),
                Err(e) => refusal = Some(refusal.unwrap_or(e)),
            }
        }
        Err(refusal.unwrap_or(AccumulateError::NoBatch))
    }

    /// Follows these inputs' rows, and those of others where they turn out to be rows, too.
    fn from(
        g: &'a Graph,
        count: usize,
        mut by_rows: BTreeSet<ValueId>,
        among: Among,
    ) -> Result<Self, AccumulateError> {
        let mut early = BTreeSet::new();
        loop {
            let mut rows = Rows {
                g,
                count,
                by_rows: by_rows.clone(),
                kind: SecondaryMap::new(),
                rule: SecondaryMap::new(),
                stateful: following(g, g.states.values().map(|state| state.enter)),
                random: following(g, random(g)),
                narrows: HashMap::new(),
                wanted: BTreeSet::new(),
                early: early.clone(),
                among,
            };
            match rows.follow() {
                // Nodes before the one that reads a value whole took it for a sum.
                Ok(()) if rows.early.len() > early.len() => early = rows.early,
                Ok(()) => return Ok(rows),
                // Perhaps these inputs hold the batch, too: flattened tokens, for example.
                Err(_) if !rows.wanted.is_empty() => {
                    by_rows.append(&mut rows.wanted);
                    early.clear();
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn follow(&mut self) -> Result<(), AccumulateError> {
        for &v in &self.by_rows {
            if !Along::FIRST.divides(self.g.ty(v), self.count) {
                let name = self.g.values[v].name.clone();
                let extent = self.g.ty(v).shape.first().copied().unwrap_or(0);
                return Err(AccumulateError::Uneven { name, extent, count: self.count });
            }
            self.kind[v] = Kind::Rows(Along::FIRST);
        }
        for n in self.g.nodes.keys() {
            self.node(n)?;
            for &v in self.g.nodes[n].outputs.iter().flatten() {
                if self.early.contains(&v) {
                    self.kind[v] = Kind::Early;
                }
            }
        }
        for state in self.g.states.values() {
            if matches!(self.kind[state.exit], Kind::Rows(_) | Kind::Positions) {
                return Err(AccumulateError::State(state.name.clone()));
            }
        }
        for output in &self.g.outputs {
            let apart = match self.kind[output.value] {
                Kind::Rows(along) => along != Along::FIRST,
                Kind::Positions => true,
                _ => false,
            };
            if apart {
                return Err(AccumulateError::Output(output.name.clone()));
            }
        }
        Ok(())
    }

    fn node(&mut self, n: NodeId) -> Result<(), AccumulateError> {
        let node = &self.g.nodes[n];
        let is = |v: &ValueId, kinds: fn(Kind) -> bool| kinds(self.kind[*v]);
        let by_rows = |k| matches!(k, Kind::Rows(_) | Kind::Positions);
        let summed = |k| matches!(k, Kind::Sum | Kind::Late);
        if !node.inputs.iter().any(|v| is(v, by_rows)) {
            let late = node.inputs.iter().any(|v| is(v, summed));
            let is_own = node.inputs.iter().any(|v| is(v, |k| k == Kind::Own));
            let kind = match late {
                _ if is_own => Kind::Own,
                true if self.is_linear(n) => Kind::Sum,
                true => Kind::Late,
                false => Kind::Shared,
            };
            node.outputs.iter().flatten().for_each(|&v| self.kind[v] = kind);
            return Ok(());
        }
        if let Some(rule) = self.onto_sum(n) {
            node.outputs.iter().flatten().for_each(|&v| self.kind[v] = Kind::Sum);
            self.rule[n] = Some(rule);
            return Ok(());
        }
        if self.among == Among::Ranks
            && let Some(results) = self.by_own_statistics(n)
        {
            for (v, &kind) in node.outputs.iter().zip(&results) {
                v.iter().for_each(|&v| self.kind[v] = kind);
            }
            let narrow = vec![None; node.inputs.len()];
            self.rule[n] = Some(Rule { op: node.op.clone(), narrow, results, scale: None });
            return Ok(());
        }
        // What is a sum over all rows, and follows from inputs alone, is known before.
        for &v in &node.inputs {
            if summed(self.kind[v]) && self.among == Among::Rounds {
                if self.stateful[v] {
                    return Err(self.refused(n, Some(v)));
                }
                self.kind[v] = Kind::Early;
                self.early.insert(v);
            }
        }
        if let Some(rule) = self.find_rule(n) {
            // Each round would draw anew what all rows have in common.
            for (&v, along) in node.inputs.iter().zip(&rule.narrow) {
                if along.is_none() && self.kind[v] == Kind::Shared && self.random[v] {
                    if self.stateful[v] || self.among == Among::Ranks {
                        return Err(self.refused(n, None));
                    }
                    self.kind[v] = Kind::Early;
                    self.early.insert(v);
                }
            }
            for (v, &kind) in node.outputs.iter().zip(&rule.results) {
                v.iter().for_each(|&v| self.kind[v] = kind);
            }
            self.rule[n] = Some(rule);
            return Ok(());
        }
        if node.inputs.iter().any(|&v| self.stateful[v]) || self.among == Among::Ranks {
            return Err(self.refused(n, None));
        }
        node.outputs.iter().flatten().for_each(|&v| self.kind[v] = Kind::Early);
        Ok(())
    }

    /// What a rank makes of a batch normalisation, or of a gradient of one, by the statistics of its own rows.
    fn by_own_statistics(&self, n: NodeId) -> Option<Vec<Kind>> {
        let node = &self.g.nodes[n];
        let rows = Kind::Rows(Along::FIRST);
        let are =
            |kinds: &[Kind]| node.inputs.iter().zip(kinds).all(|(&v, kind)| self.kind[v] == *kind);
        match node.op {
            Op::BatchNorm { .. } if are(&[rows]) => {
                Some(vec![rows, Kind::Own, Kind::Own, Kind::Own])
            }
            Op::BatchNormParamGrad if are(&[rows, rows]) => Some(vec![Kind::Sum, Kind::Sum]),
            Op::BatchNormInputGrad if are(&[rows, rows]) => Some(vec![rows]),
            _ => None,
        }
    }

    /// A product that sums over the batch and is added to another sum over it: the terms of both are
    /// added.
    fn onto_sum(&mut self, n: NodeId) -> Option<Rule> {
        let g = self.g;
        let node = &g.nodes[n];
        let &[a, b, c] = &node.inputs[..] else { return None };
        if !matches!(node.op, Op::Gemm { .. }) || self.kind[c] != Kind::Sum {
            return None;
        }
        let types = g.output_types(n).ok()?;
        let (x, y) = (g.input_types(n), types.iter().collect::<Vec<_>>());
        let kinds = [self.kind[a], self.kind[b], Kind::Shared];
        let rules = by_table(&node.op, &kinds, &x, &y, self.count);
        let rules = rules.into_iter().filter(|r| r.results == [Kind::Sum] && r.narrow[2].is_none());
        let op = node.op.clone();
        let rule = self.first_possible(&node.inputs, rules.collect())?;
        Some(Rule { op, ..rule })
    }

    /// The first rule whose shared operands can be cut as it wants.
    fn first_possible(&mut self, inputs: &[ValueId], rules: Vec<Rule>) -> Option<Rule> {
        rules.into_iter().find(|rule| {
            let mut operands = inputs.iter().zip(&rule.narrow);
            operands.all(|(&v, along)| along.is_none_or(|along| self.narrows(v, along)))
        })
    }

    fn refused(&self, n: NodeId, sum: Option<ValueId>) -> AccumulateError {
        let node = &self.g.nodes[n];
        let named = |v: ValueId| self.g.values[v].name.clone();
        let name = match node.name.is_empty() {
            true => node.outputs.iter().flatten().map(|&v| named(v)).find(|n| !n.is_empty()),
            false => Some(node.name.clone()),
        };
        let (op, name) = (node.op.name().to_owned(), name.unwrap_or_else(|| n.to_string()));
        AccumulateError::Operator { op, name, sum: sum.map(named) }
    }

    /// True where a node of sums gives the sum of what it would give of their terms, and it is worth
    /// to apply it to these.
    pub(crate) fn is_linear(&self, n: NodeId) -> bool {
        let node = &self.g.nodes[n];
        let sums = node.inputs.iter().all(|&v| self.kind[v] == Kind::Sum);
        let shape = |v: ValueId| &self.g.ty(v).shape;
        sums && match &node.op {
            Op::Binary { f: Binary::Add | Binary::Sub } => {
                shape(node.inputs[0]) == shape(node.inputs[1])
            }
            Op::Reduce { f: Reduction::Sum, .. } => true,
            Op::Cast { to } => {
                let from = self.g.ty(node.inputs[0]).dtype;
                from.is_float() && to.is_float() && to.size() > from.size()
            }
            _ => false,
        }
    }

    fn find_rule(&mut self, n: NodeId) -> Option<Rule> {
        let g = self.g;
        let node = &g.nodes[n];
        let types = g.output_types(n).ok()?;
        let (x, y) = (g.input_types(n), types.iter().collect::<Vec<_>>());
        let kinds: Vec<Kind> = node.inputs.iter().map(|&v| self.kind[v]).collect();
        if let Some(i) = kinds.iter().position(|&k| k == Kind::Positions) {
            let pools = matches!(node.op, Op::MaxPoolGrad { .. }) && i == 1;
            return (pools && kinds[0] == Kind::Rows(Along::FIRST))
                .then(|| self.max_pool_grad(&node.op))?;
        }
        let zero = node.inputs.first().is_some_and(|&v| is_zero(g, v));
        let rules = special(&node.op, &kinds, &x, &y, self.count, zero)
            .unwrap_or_else(|| by_table(&node.op, &kinds, &x, &y, self.count));
        self.first_possible(&node.inputs, rules)
    }

    fn max_pool_grad(&self, op: &Op) -> Option<Rule> {
        let mut op = op.clone();
        if let Op::MaxPoolGrad { shape, .. } = &mut op {
            shape[0] /= self.count;
        }
        Some(Rule {
            op,
            narrow: vec![None; 2],
            results: vec![Kind::Rows(Along::FIRST)],
            scale: None,
        })
    }

    /// True where all parts of a shared value are equal.
    fn narrows(&mut self, v: ValueId, along: Along) -> bool {
        if let Some(&known) = self.narrows.get(&(v, along)) {
            return known;
        }
        let (g, count) = (self.g, self.count);
        let ty = g.ty(v);
        let narrows = self.kind[v] == Kind::Shared
            && along.divides(ty, count)
            && match &g.values[v].def {
                Def::Input if along == Along::FIRST => {
                    self.wanted.insert(v);
                    false
                }
                Def::Input | Def::State(_) | Def::View { .. } => false,
                // Without its bytes it is taken for granted: such a plan cannot be run.
                Def::Const(data) => {
                    data.bytes().is_none_or(|b| repeats(b, along.blocks(ty), count))
                }
                Def::Node { node, .. } => {
                    narrowed(g, v, along, count).is_some_and(|(_, operands)| {
                        let mut operands = g.nodes[*node].inputs.iter().zip(operands);
                        operands.all(|(&x, cut)| match cut {
                            Some((x, along)) => self.narrows(x, along),
                            None => !self.random[x],
                        })
                    })
                }
            };
        self.narrows.insert((v, along), narrows);
        narrows
    }
}

/// The batch of a step.
pub(crate) struct Batch {
    /// How many rows it has.
    pub(crate) rows: usize,
    /// The inputs that hold it, by rows.
    inputs: BTreeSet<ValueId>,
}

/// What may be the batch, the likeliest first: the extent that most first axes have, or multiples of
/// it, as where tokens are flattened.
pub(crate) fn batches(g: &Graph) -> Vec<Batch> {
    let readers = g.readers();
    let first = |v: ValueId| g.ty(v).shape.first().copied().filter(|&rows| rows > 1);
    let read = g.inputs().filter(|&v| !readers[v].is_empty());
    let extents: Vec<(ValueId, usize)> = read.filter_map(|v| Some((v, first(v)?))).collect();
    let distinct: BTreeSet<usize> = extents.iter().map(|e| e.1).collect();
    let batch = |rows: usize| {
        let inputs = extents.iter().filter(|e| e.1 == rows).map(|e| e.0).collect();
        Batch { rows, inputs }
    };
    let mut batches: Vec<Batch> = distinct.into_iter().map(batch).collect();
    let likelihood = |b: &Batch| {
        let multiples = extents.iter().filter(|e| e.1.is_multiple_of(b.rows)).count();
        let bytes: u64 = b.inputs.iter().map(|&v| g.ty(v).bytes()).sum();
        (2 * b.inputs.len() + multiples, bytes)
    };
    batches.sort_by_key(|b| std::cmp::Reverse(likelihood(b)));
    batches
}

/// Results of random operators.
fn random(g: &Graph) -> impl Iterator<Item = ValueId> {
    let draws = g.nodes.values().filter(|node| node.op.rng().is_some());
    draws.flat_map(|node| node.outputs.iter().flatten().copied())
}

/// These values and all that depend on them.
fn following(g: &Graph, values: impl Iterator<Item = ValueId>) -> SecondaryMap<ValueId, bool> {
    let mut following: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    values.for_each(|v| following[v] = true);
    for node in g.nodes.values() {
        if node.inputs.iter().any(|&v| following[v]) {
            node.outputs.iter().flatten().for_each(|&v| following[v] = true);
        }
    }
    following
}
