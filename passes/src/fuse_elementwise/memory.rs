//! Whether a group as one node may need more memory than its nodes, in some order of the graph.
//!
//! Take any order of the graph with the group's nodes. It becomes an order of the fused graph
//! that needs no more memory:
//!
//! - A node is *light* where the transient operands of it and of all nodes of the group before
//!   it have no more bytes than its result. It can be put off until its readers run: what is kept
//!   for it meanwhile is no more than what it would have made.
//! - Where all nodes but the last one are light, all run with the last one: the fused node takes
//!   its place.
//! - Else let the fused node take the place of the first *heavy* node that the order runs (all
//!   light ones before it are put off until then). That is possible where all operands of the
//!   group are there by then, whatever the order; and from there on the result is alive instead
//!   of at least one result of a heavy node, none of which may therefore be smaller.
//!
//! When the fused node runs, all operands are alive, as they are when the heavy (or the last)
//! node runs among the others. Transient are roots that come and go, old values of states among
//! them, as long as nobody reads them who depends on the group: whoever does keeps them alive in any
//! order. Operands of a small fraction of the result's bytes are not counted.
//!
//! A first node that makes more than what the last one reads, statistics beside what is normalised,
//! is put off only where whoever reads these may wait, too ([`Rule::takes_up`]).

use crate::rewrite::{GraphView, Group};
use arenic_ir::graph::{Def, NodeId, ValueId};
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Operands of a smaller fraction of the result's bytes are not counted.
pub(crate) const NEGLIGIBLE: u64 = 64;

/// Most nodes that are looked at to find out what depends on what; beyond them nothing is known
/// to.
const MOST: usize = 1 << 14;

/// The question for groups that end in one node.
pub(crate) struct Rule<'a> {
    view: &'a GraphView<'a>,
    last: NodeId,
    /// What depends on the last node's result.
    dependents: OnceCell<HashSet<NodeId>>,
}

impl<'a> Rule<'a> {
    pub(crate) fn new(view: &'a GraphView<'a>, last: NodeId) -> Self {
        Rule { view, last, dependents: OnceCell::new() }
    }

    /// True where no order needs more memory for the group as one node.
    pub(super) fn needs_no_more(&self, group: &Group) -> bool {
        let g = self.view.g;
        let bytes: u64 =
            g.nodes[self.last].outputs.iter().flatten().map(|&v| g.ty(v).bytes()).sum();
        let heavy = self.heavy(group);
        heavy.iter().all(|&h| self.result_bytes(h) >= bytes)
            && heavy
                .iter()
                .filter(|&&h| self.within(group, h).all(|n| !heavy.contains(&n)))
                .all(|&h| self.all_there(group, h))
    }

    /// The same for a node with several results of which the last one alone reads the first.
    ///
    /// Where all operands are there before it, both take its place, with the last one's result
    /// instead of its own. A smaller result can be in no operand's place, but where the node's is in one
    /// nobody else has that operand.
    pub(crate) fn takes_up(&self, first: NodeId) -> bool {
        let group = Group::from([first, self.last]);
        let [made, result] = [first, self.last].map(|n| self.result_bytes(n));
        let is_in_place =
            |root: ValueId| self.view.g.ty(root).bytes() == made && self.is_counted(&group, root);
        let fits =
            result == made || result < made && !self.operands(&group, first).any(is_in_place);
        fits && self.all_there(&group, first)
            || self.heavy(&group).is_empty() && self.others_may_wait(first)
    }

    /// True where all that reads other results of a node than the first, and does not depend on the
    /// last node, is small with all that it reads and makes, or lasts anyway.
    fn others_may_wait(&self, first: NodeId) -> bool {
        /// More nodes than the arithmetic of running statistics has.
        const MOST: usize = 64;
        let g = self.view.g;
        let dependents = self.dependents.get_or_init(|| self.dependents());
        let is_small = |&v: &ValueId| {
            let root = g.resolve(v).root;
            self.is_negligible(root) || matches!(g.values[root].def, Def::Const(_))
        };
        let mut stack: Vec<ValueId> =
            g.nodes[first].outputs.iter().skip(1).copied().flatten().collect();
        let mut seen = HashSet::new();
        while let Some(v) = stack.pop() {
            for &n in self.view.readers[v].iter().filter(|n| !dependents.contains(n)) {
                if !seen.insert(n) {
                    continue;
                }
                let node = &g.nodes[n];
                let mut touched = node.inputs.iter().chain(node.outputs.iter().flatten());
                if seen.len() > MOST || !touched.all(is_small) {
                    return false;
                }
                stack.extend(node.outputs.iter().flatten());
            }
        }
        g.nodes[first].outputs.iter().skip(1).flatten().all(is_small)
    }

    /// The heavy nodes of a group, but for the last one.
    fn heavy(&self, group: &Group) -> BTreeSet<NodeId> {
        let mut heavy = BTreeSet::new();
        // Transient operands of each node and of all before it.
        let mut behind: HashMap<NodeId, BTreeSet<ValueId>> = HashMap::new();
        for &n in group {
            let mut roots: BTreeSet<ValueId> = self.operands(group, n).collect();
            roots.retain(|&root| self.is_counted(group, root));
            for before in self.within(group, n) {
                roots.extend(&behind[&before]);
            }
            let bytes: u64 = roots.iter().map(|&root| self.view.g.ty(root).bytes()).sum();
            let follows = self.within(group, n).any(|before| heavy.contains(&before));
            if n != self.last && (follows || bytes > self.result_bytes(n)) {
                heavy.insert(n);
            }
            behind.insert(n, roots);
        }
        heavy
    }

    /// Nodes of the group whose results a node reads.
    fn within(&self, group: &Group, n: NodeId) -> impl Iterator<Item = NodeId> {
        let g = self.view.g;
        let node = |&v: &ValueId| match g.values[v].def {
            Def::Node { node, .. } => Some(node).filter(|node| group.contains(node)),
            _ => None,
        };
        g.nodes[n].inputs.iter().filter_map(node)
    }

    /// Roots outside of the group that a node reads.
    fn operands(&self, group: &Group, n: NodeId) -> impl Iterator<Item = ValueId> {
        let g = self.view.g;
        let outside = |&root: &ValueId| match g.values[root].def {
            Def::Node { node, .. } => !group.contains(&node),
            _ => true,
        };
        g.nodes[n].inputs.iter().map(|&v| g.resolve(v).root).filter(outside)
    }

    /// True for operands that may be dead once the group has run: also for a state's old value,
    /// where what makes the new one does not wait for the group.
    fn is_counted(&self, group: &Group, root: ValueId) -> bool {
        let g = self.view.g;
        let dependents = self.dependents.get_or_init(|| self.dependents());
        let lasts = |n: &NodeId| !group.contains(n) && dependents.contains(n);
        let comes_and_goes = match g.values[root].def {
            Def::State(s) => match g.values[g.resolve(g.states[s].exit).root].def {
                Def::Node { node, .. } => !dependents.contains(&node),
                _ => false,
            },
            _ => self.view.is_transient(root),
        };
        comes_and_goes && !self.is_negligible(root) && !self.view.readers[root].iter().any(lasts)
    }

    /// True for what is a small fraction of the last node's result.
    pub(crate) fn is_negligible(&self, root: ValueId) -> bool {
        self.view.g.ty(root).bytes().saturating_mul(NEGLIGIBLE) <= self.result_bytes(self.last)
    }

    /// Bytes of the first result.
    fn result_bytes(&self, n: NodeId) -> u64 {
        let g = self.view.g;
        g.result(n).map_or(0, |v| g.ty(v).bytes())
    }

    /// Nodes that depend on the last one, as far as they are found.
    fn dependents(&self) -> HashSet<NodeId> {
        let g = self.view.g;
        let mut found = HashSet::from([self.last]);
        let mut stack = vec![self.last];
        while let Some(n) = stack.pop().filter(|_| found.len() < MOST) {
            for &v in g.nodes[n].outputs.iter().flatten() {
                for &reader in &self.view.readers[v] {
                    if found.insert(reader) {
                        stack.push(reader);
                    }
                }
            }
        }
        found
    }

    /// True where all operands of the group are there before a node of it runs, in any order.
    pub(crate) fn all_there(&self, group: &Group, n: NodeId) -> bool {
        let g = self.view.g;
        let mut before = HashSet::new();
        let mut stack = vec![n];
        while let Some(n) = stack.pop().filter(|_| before.len() < MOST) {
            for &v in &g.nodes[n].inputs {
                if let Def::Node { node, .. } = g.values[g.resolve(v).root].def
                    && before.insert(node)
                {
                    stack.push(node);
                }
            }
        }
        let mut operands: Vec<ValueId> =
            group.iter().flat_map(|&n| self.operands(group, n)).collect();
        operands.sort_unstable();
        operands.dedup();
        operands.into_iter().all(|root| self.is_there(&before, root))
    }

    /// True for what nodes that run `before` make, and for little that is computed of it.
    fn is_there(&self, before: &HashSet<NodeId>, root: ValueId) -> bool {
        /// More nodes than the arithmetic of any statistics has.
        const MOST: usize = 64;
        let g = self.view.g;
        let (mut stack, mut seen) = (vec![root], 0);
        while let Some(root) = stack.pop() {
            let Def::Node { node, .. } = g.values[root].def else { continue };
            if before.contains(&node) {
                continue;
            }
            seen += 1;
            let mut results = g.nodes[node].outputs.iter().flatten();
            if seen > MOST || !results.all(|&v| self.is_negligible(v)) {
                return false;
            }
            stack.extend(g.nodes[node].inputs.iter().map(|&v| g.resolve(v).root));
        }
        true
    }
}
