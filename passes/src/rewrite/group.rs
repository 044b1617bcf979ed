//! Nodes that are to become one node: what they read, what they make, and who else reads it.

use super::view::GraphView;
use arenic_ir::graph::{Def, Node, NodeId, ValueId};
use arenic_ir::op::Op;
use std::collections::{BTreeSet, HashSet};

/// Nodes that become one, in definition order.
pub(crate) type Group = BTreeSet<NodeId>;

impl GraphView<'_> {
    /// True where a node's result is read by the group alone, as it is.
    pub(crate) fn only_read_by(&self, v: ValueId, group: &Group) -> bool {
        let reads = |n: &NodeId| {
            let inputs = &self.g.nodes[*n].inputs;
            group.contains(n) && inputs.iter().all(|&x| x == v || self.g.resolve(x).root != v)
        };
        !self.kept[v] && self.readers[v].iter().all(reads)
    }

    /// Values that the group reads and does not make, in the order of their first use.
    pub(crate) fn operands(&self, group: &Group) -> Vec<ValueId> {
        let mut operands = Vec::new();
        for v in group.iter().flat_map(|&n| &self.g.nodes[n].inputs).copied() {
            let inside = match self.g.values[v].def {
                Def::Node { node, .. } => group.contains(&node),
                _ => false,
            };
            if !inside && !operands.contains(&v) {
                operands.push(v);
            }
        }
        operands
    }

    /// Values that the group makes for others, in order.
    pub(crate) fn results(&self, group: &Group) -> Vec<ValueId> {
        let made = group.iter().filter_map(|&n| self.g.result(n));
        made.filter(|&v| !self.only_read_by(v, group)).collect()
    }

    /// True for roots that come and go: no constants, no states, nothing that outlives the step
    /// (exit values mostly lie in their states' homes).
    pub(crate) fn is_transient(&self, root: ValueId) -> bool {
        let lasts = matches!(self.g.values[root].def, Def::Const(_) | Def::State(_));
        !lasts && !self.kept[root]
    }

    /// True for a parameter that ranks gather of their parts.
    pub(crate) fn is_gathered(&self, v: ValueId) -> bool {
        let g = self.g;
        let Def::Node { node, .. } = g.values[g.resolve(v).root].def else { return false };
        let is_state = |&x: &ValueId| matches!(g.values[x].def, Def::State(_));
        let Node { op, inputs, .. } = &g.nodes[node];
        matches!(op, Op::AllGather { .. }) && inputs.iter().all(is_state)
    }

    /// True where a value is there before a node runs, whatever the order.
    pub(crate) fn is_there_before(&self, n: NodeId, v: ValueId) -> bool {
        /// Most nodes that are looked at; beyond them nothing is known to be there.
        const MOST: usize = 1 << 14;
        let maker = |v: ValueId| match self.g.values[self.g.resolve(v).root].def {
            Def::Node { node, .. } => Some(node),
            _ => None,
        };
        let Some(wanted) = maker(v) else { return true };
        let (mut seen, mut stack) = (HashSet::new(), vec![n]);
        while let Some(n) = stack.pop().filter(|_| seen.len() < MOST) {
            for before in self.g.nodes[n].inputs.iter().filter_map(|&v| maker(v)) {
                if before == wanted {
                    return true;
                }
                // What is wanted comes before whatever depends on it.
                if before > wanted && seen.insert(before) {
                    stack.push(before);
                }
            }
        }
        false
    }
}
