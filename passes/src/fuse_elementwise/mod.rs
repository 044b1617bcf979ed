//! Chains of elementwise operators as one node each, so that what they pass on has no bytes.
//!
//! A node whose result is read by one group alone joins it, where both are elementwise on one
//! shape: the group becomes a `pointwise`, which computes a few elements of every step before
//! it goes on. Operands may be broadcast, conditions are kept as they are, and a `clip` or an
//! `expand` takes part, as does a `cast` between `f32` and `bf16`, and a `pointwise` that another pass
//! made: an update reads a gradient in `bf16` as it is. Sound because the same functions are applied to the same elements, each
//! rounded once: the bits stay the same. Whoever reads the group's result reads it from the
//! group's last node, which keeps its place.
//!
//! Intermediate results no longer have bytes, but all operands are alive at once. By default a
//! node joins only where no order of the graph can need more memory afterwards ([`memory`]); what
//! may then be left out are, above all, comparisons that an order could run early, to keep a byte
//! of each element instead of four. A GELU by `erf` and its gradient are one chain each, which read the operand
//! alone. This is XLA's and Inductor's loop fusion without recomputing anything, and their fusion of what a
//! reduction reads ([`reduction`]).

mod memory;
mod reduction;

use crate::rewrite::{GraphView, Group};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Kind, MAX_OPERANDS, MAX_STEPS, Op, Step};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;
pub(crate) use memory::{NEGLIGIBLE, Rule};
pub(crate) use reduction::steps;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Makes one node of each chain of elementwise operators, and of a reduction with what it reads.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseElementwise {
    /// Which nodes join a chain.
    pub memory: Memory,
}

/// Which nodes join a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Those where no order of the graph can need more memory afterwards.
    #[default]
    Safe,
    /// All that can: the fewest bytes are moved.
    Any,
}

impl GraphPass for FuseElementwise {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let mut removed: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        let (mut chains, mut members) = (0, 0);
        for chain in self.chains(g) {
            let Some(&last) = chain.group.last() else { continue };
            chain.group.iter().for_each(|&n| removed[n] = n != last);
            chains += 1;
            members += chain.group.len() as u64;
            let Node { name, outputs, .. } = g.nodes[last].clone();
            g.nodes[last] = Node { name, op: chain.op, inputs: chain.inputs, outputs };
        }
        *g = g.compacted(|n| !removed[n]);
        let reductions = reduction::fuse(g, self.memory);
        Ok(Stats::from([
            ("chains", chains),
            ("fused_nodes", members),
            ("fused_reductions", reductions),
        ]))
    }
}

/// Nodes with the operator that they become.
struct Chain {
    group: Group,
    op: Op,
    inputs: Vec<ValueId>,
}

impl FuseElementwise {
    /// Every chain of two nodes or more; no node is in two of them.
    fn chains(&self, g: &Graph) -> Vec<Chain> {
        let view = GraphView::new(g);
        let mut taken: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        let mut chains = Vec::new();
        // A chain's last node comes after all others, so it is met first.
        for last in g.nodes.keys().rev() {
            if taken[last] || !(is_elementwise(g, last) || is_pointwise(g, last)) {
                continue;
            }
            let chain = self.grown(&view, last, &taken);
            if let Some(chain) = chain.filter(|c| c.group.len() > 1 && has_numbers(g, &c.inputs)) {
                chain.group.iter().for_each(|&n| taken[n] = true);
                chains.push(chain);
            }
        }
        chains
    }

    /// The chain that ends in a node: all that can join it, where that needs no more memory, or
    /// else as much as does not, node by node.
    fn grown(
        &self,
        view: &GraphView,
        last: NodeId,
        taken: &SecondaryMap<NodeId, bool>,
    ) -> Option<Chain> {
        let rule = Rule::new(view, last);
        let all = grow(view, last, taken, |_| true)?;
        if self.memory == Memory::Any || rule.needs_no_more(&all.group) {
            return Some(all);
        }
        grow(view, last, taken, |group| rule.needs_no_more(group))
    }
}

/// The chain that ends in a node, with what can join it one after the other, each where the group
/// with it is accepted: by itself, or else with all that makes its operands.
fn grow(
    view: &GraphView,
    last: NodeId,
    taken: &SecondaryMap<NodeId, bool>,
    accept: impl Fn(&Group) -> bool,
) -> Option<Chain> {
    let g = view.g;
    // What is smaller is not computed again for each element.
    let joins = |v: ValueId, group: &Group| match g.values[v].def {
        Def::Node { node, .. } => {
            let fits = !taken[node]
                && !group.contains(&node)
                && g.result(last).is_some_and(|y| g.ty(v).shape == g.ty(y).shape)
                && may_join(g, node)
                && view.only_read_by(v, group);
            fits.then_some(node)
        }
        _ => None,
    };
    let mut chain = program(view, Group::from([last]))?;
    let mut stack = vec![last];
    while let Some(n) = stack.pop() {
        for &v in &g.nodes[n].inputs {
            let Some(node) = joins(v, &chain.group) else { continue };
            let mut group = chain.group.clone();
            group.insert(node);
            let alone = program(view, group).filter(|chain| accept(&chain.group));
            let larger = alone.or_else(|| {
                let mut group = chain.group.clone();
                let mut makers = vec![node];
                // Steps are few, and so are the nodes that are looked at.
                while let Some(maker) = makers.pop().filter(|_| group.len() < MAX_STEPS) {
                    group.insert(maker);
                    makers.extend(g.nodes[maker].inputs.iter().filter_map(|&v| joins(v, &group)));
                }
                program(view, group).filter(|chain| accept(&chain.group))
            });
            if let Some(larger) = larger {
                let joined = larger.group.difference(&chain.group).copied();
                // What readers of the nodes share with them may join now.
                stack.extend(joined.chain(view.readers[v].iter().copied()));
                chain = larger;
            }
        }
    }
    Some(chain)
}

/// True for elementwise operators on floats and conditions with one result of several elements.
fn is_elementwise(g: &Graph, n: NodeId) -> bool {
    let node = &g.nodes[n];
    let elementwise = matches!(
        node.op,
        Op::Unary { .. } | Op::Binary { .. } | Op::Where | Op::Cast { .. } | Op::Clip { .. }
    );
    let [Some(result)] = node.outputs[..] else { return false };
    elementwise && g.ty(result).elements() > 1
}

/// True for what another pass made one node of already; it may have several results.
fn is_pointwise(g: &Graph, n: NodeId) -> bool {
    matches!(g.nodes[n].op, Op::Pointwise { .. })
}

/// True for nodes that may be anywhere in a chain.
fn may_join(g: &Graph, n: NodeId) -> bool {
    is_elementwise(g, n)
        || matches!(g.nodes[n].op, Op::Expand { .. })
        || is_pointwise(g, n) && g.nodes[n].outputs.len() == 1
}

/// True where some of the values are floats, as a program's operands are: conditions alone are none.
fn has_numbers(g: &Graph, values: &[ValueId]) -> bool {
    values.iter().any(|&v| g.ty(v).dtype.is_float())
}

/// A group as one operator, with the last node's results; none where that cannot be, also if more nodes join it.
fn program(view: &GraphView, group: Group) -> Option<Chain> {
    let g = view.g;
    let inputs = view.operands(&group);
    let last = *group.last()?;
    let mut results = Vec::new();
    let mut sources: HashMap<ValueId, usize> =
        inputs.iter().enumerate().map(|(i, &v)| (v, i)).collect();
    let mut steps = Vec::new();
    for &n in &group {
        let node = &g.nodes[n];
        let read: Vec<usize> =
            node.inputs.iter().map(|v| sources.get(v).copied()).collect::<Option<_>>()?;
        if let Op::Pointwise { steps: own, results: given } = &node.op {
            let before = inputs.len() + steps.len();
            let number = |s: usize| read.get(s).copied().unwrap_or_else(|| before + s - read.len());
            steps.extend(own.iter().map(|step| step.over(number)));
            results = given.iter().map(|&s| number(s)).collect();
        } else {
            let from = g.ty(*node.inputs.first()?).dtype;
            let mut made = push(&mut steps, (&node.op, from), &read, inputs.len())?;
            // A program computes in `f32` what is stored as `bf16`.
            if g.ty(g.result(n)?).dtype == DType::Bf16 && !matches!(node.op, Op::Expand { .. }) {
                steps.push(Step::Round(made));
                made = inputs.len() + steps.len() - 1;
            }
            results = vec![made];
        }
        sources.extend(g.result(n).zip(results.first().copied()));
    }
    if steps.is_empty() || steps.len() > MAX_STEPS || inputs.len() > MAX_OPERANDS {
        return None;
    }
    let op = Op::Pointwise { steps, results };
    let is_made = |y: Vec<TensorType>| {
        let outputs = &g.nodes[last].outputs;
        y.len() == outputs.len()
            && y.iter().zip(outputs).all(|(ty, v)| v.is_none_or(|v| g.ty(v) == ty))
    };
    let fits = !has_numbers(g, &inputs) || op.infer(&g.types_of(&inputs)).is_ok_and(is_made);
    fits.then_some(Chain { group, op, inputs })
}

/// Adds the steps of an operator, whose first operand is of type `from` and which reads these
/// sources; the source that its result is before it is rounded.
fn push(
    steps: &mut Vec<Step>,
    (op, from): (&Op, DType),
    read: &[usize],
    operands: usize,
) -> Option<usize> {
    let step = match (op, read) {
        (Op::Expand { .. }, &[x]) => return Some(x),
        (Op::Unary { f }, &[x]) => Step::Unary(*f, x),
        (Op::Binary { f }, &[a, b]) => Step::Binary(*f, a, b),
        (Op::Where, &[c, a, b]) => Step::Where(c, a, b),
        // What is wider is the same number, and what is narrower will be rounded.
        (Op::Cast { to: DType::F32 }, &[x]) if from == DType::Bf16 => return Some(x),
        (Op::Cast { to: DType::Bf16 }, &[x]) if from == DType::F32 => return Some(x),
        (Op::Cast { to }, &[x]) if Kind::of(*to) == Some(Kind::Number) => Step::Cast(x),
        (Op::Clip { min, max }, &[x, ref bounds @ ..]) => {
            let (low, high) = (bounds.first().filter(|_| *min), bounds.last().filter(|_| *max));
            let mut x = x;
            for (f, bound) in [(Binary::Max, low), (Binary::Min, high)] {
                if let Some(&bound) = bound {
                    steps.push(Step::Binary(f, x, bound));
                    x = operands + steps.len() - 1;
                }
            }
            return Some(x);
        }
        _ => return None,
    };
    steps.push(step);
    Some(operands + steps.len() - 1)
}
