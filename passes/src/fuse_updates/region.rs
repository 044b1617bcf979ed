//! The elementwise nodes that lead to the exit values of states, in groups that can be one
//! node each.

use crate::fuse_elementwise::NEGLIGIBLE;
use crate::rewrite::{GraphView, Group};
use arenic_ir::graph::{Def, Node, NodeId, StateId, ValueId};
use arenic_ir::op::{Kind, MAX_STEPS, Op, Step};
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeSet, HashSet};

impl GraphView<'_> {
    /// All groups: one per exit value, joined where they share an operand of full shape
    /// that nobody else reads, such as a gradient.
    pub(super) fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Option<Group>> = Vec::new();
        let mut owner: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
        for s in self.g.states.keys() {
            let Some(last) = self.last_node(s).filter(|&n| owner[n].is_none()) else { continue };
            let group = self.closure(Group::from([last]));
            group.iter().for_each(|&n| owner[n] = Some(groups.len()));
            groups.push(Some(group));
        }
        let mut at = 0;
        while at < groups.len() {
            let joined = groups[at].as_ref().and_then(|group| self.join(group, &groups, &owner));
            match joined {
                Some((others, group)) => {
                    others.into_iter().for_each(|i| groups[i] = None);
                    group.iter().for_each(|&n| owner[n] = Some(at));
                    groups[at] = Some(group);
                }
                None => at += 1,
            }
        }
        groups.into_iter().flatten().collect()
    }

    /// The node that makes a state's exit value, where it can be part of a group.
    fn last_node(&self, s: StateId) -> Option<NodeId> {
        let updated = self.updated(s);
        let Def::Node { node, output: 0 } = self.g.values[updated].def else { return None };
        (self.g.ty(updated).elements() > 1 && self.is_step(node)).then_some(node)
    }

    /// The exit value of a state before rows are added to it: what the last of its scatters, which alone
    /// reads that value, scatters to.
    pub(super) fn updated(&self, s: StateId) -> ValueId {
        let mut v = self.g.states[s].exit;
        while let Some(base) = self.scattered_to(v) {
            v = base;
        }
        v
    }

    fn scattered_to(&self, v: ValueId) -> Option<ValueId> {
        let Def::Node { node, output: 0 } = self.g.values[v].def else { return None };
        let Node { op, inputs, .. } = &self.g.nodes[node];
        let is_scatter = matches!(op, Op::ScatterNd { .. } | Op::ScatterElements { .. });
        (is_scatter && self.only_use(inputs[0]) == Some(node)).then(|| inputs[0])
    }

    /// True for arithmetic on floats whose operands are scalars or of the result's shape.
    fn is_step(&self, n: NodeId) -> bool {
        let node = &self.g.nodes[n];
        let [Some(result)] = node.outputs[..] else { return false };
        let ty = self.g.ty(result);
        let fits = |v: &ValueId| {
            let t = self.g.ty(*v);
            t.shape == ty.shape || (t.elements() == 1 && t.rank() <= ty.rank())
        };
        ty.dtype.accumulated() == ty.dtype
            && ty.dtype.is_float()
            && step(&node.op, &[0, 0]).is_some()
            && node.inputs.iter().all(fits)
    }

    /// Adds the nodes whose results only the group reads, again and again.
    fn closure(&self, mut group: Group) -> Group {
        let mut stack: Vec<NodeId> = group.iter().copied().collect();
        while let Some(n) = stack.pop() {
            for &v in &self.g.nodes[n].inputs {
                let Def::Node { node, .. } = self.g.values[v].def else { continue };
                let same_shape = self.g.result(n).map(|r| &self.g.ty(r).shape);
                let belongs = group.len() < MAX_STEPS
                    && !group.contains(&node)
                    && self.is_step(node)
                    && same_shape == Some(&self.g.ty(v).shape)
                    && self.only_read_by(v, &group);
                if belongs {
                    group.insert(node);
                    stack.push(node);
                    // What the node's readers share with it may belong now.
                    stack.extend(&self.readers[v]);
                }
            }
        }
        group
    }

    /// The group joined with those that share an operand with it, or with the one that makes an
    /// operand, where that is possible; and which these are.
    fn join(
        &self,
        group: &Group,
        groups: &[Option<Group>],
        owner: &SecondaryMap<NodeId, Option<usize>>,
    ) -> Option<(Vec<usize>, Group)> {
        for v in self.operands(group) {
            let root = self.g.resolve(v).root;
            let Def::Node { node: maker, .. } = self.g.values[root].def else { continue };
            if self.g.ty(v).elements() <= 1 {
                continue;
            }
            // A new moment that a parameter's update reads, or a gradient that several updates do.
            let met = match owner[maker] {
                Some(_) if !group.contains(&maker) => std::slice::from_ref(&maker),
                _ if !self.kept[root] => &self.readers[root][..],
                _ => continue,
            };
            let mut others = BTreeSet::new();
            let mut all = group.clone();
            let grouped = met.iter().all(|&n| {
                let Some(i) = owner[n] else { return false };
                let Some(other) = &groups[i] else { return false };
                if !group.contains(&n) {
                    others.insert(i);
                    all.extend(other);
                }
                self.shape(n) == self.shape_of(group)
            });
            if !grouped || others.is_empty() || all.len() > MAX_STEPS {
                continue;
            }
            let all = self.closure(all);
            let may_wait = met != [maker] || self.may_follow_others(&all);
            if may_wait && self.is_convex(&all) && self.fits_at_its_end(&all) {
                return Some((others.into_iter().collect(), all));
            }
        }
        None
    }

    /// True where the group's tensors are a small fraction of what each other reader of the states that it
    /// changes makes. All of the group waits for these readers, where before only the part did that
    /// changes the states that they read.
    fn may_follow_others(&self, group: &Group) -> bool {
        let g = self.g;
        let bytes = |n: &NodeId| g.result(*n).map_or(0, |v| g.ty(v).bytes());
        let own = group.last().map_or(0, bytes);
        let is_changed = |s: &StateId| match g.values[self.updated(*s)].def {
            Def::Node { node, .. } => group.contains(&node),
            _ => false,
        };
        let mut changed = g.states.keys().filter(is_changed);
        changed.all(|s| {
            let mut others = self.readers[g.states[s].enter].iter().filter(|n| !group.contains(n));
            others.all(|n| own.saturating_mul(NEGLIGIBLE) <= bytes(n))
        })
    }

    fn shape(&self, n: NodeId) -> Option<&[usize]> {
        self.g.result(n).map(|v| &self.g.ty(v).shape[..])
    }

    fn shape_of(&self, group: &Group) -> Option<&[usize]> {
        group.first().and_then(|&n| self.shape(n))
    }

    /// True where no operand of the group depends on the group.
    fn is_convex(&self, group: &Group) -> bool {
        let Some(&first) = group.first() else { return true };
        let mut seen = HashSet::new();
        let mut stack: Vec<ValueId> = self.operands(group);
        while let Some(v) = stack.pop() {
            let Def::Node { node, .. } = self.g.values[self.g.resolve(v).root].def else {
                continue;
            };
            if group.contains(&node) {
                return false;
            }
            // Definition order: nothing before the first node depends on it.
            if node > first && seen.insert(node) {
                stack.extend(&self.g.nodes[node].inputs);
            }
        }
        true
    }

    /// True where everybody else reads the group's results after its last node, whose
    /// place in definition order the group can then take.
    fn fits_at_its_end(&self, group: &Group) -> bool {
        let Some(&last) = group.last() else { return true };
        self.results(group)
            .iter()
            .flat_map(|&v| &self.readers[v])
            .all(|n| group.contains(n) || *n > last)
    }
}

/// An operator as a step that reads these sources, where `pointwise` has it.
pub(super) fn step(op: &Op, sources: &[usize]) -> Option<Step> {
    let step = match (op, sources) {
        (Op::Unary { f }, [x, ..]) => Step::Unary(*f, *x),
        (Op::Binary { f }, [a, b]) => Step::Binary(*f, *a, *b),
        _ => return None,
    };
    (step.kind(|_| Some(Kind::Number)) == Some(Kind::Number)).then_some(step)
}
