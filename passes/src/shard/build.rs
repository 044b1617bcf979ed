//! The graph that every rank runs.

use super::bucket::Bucket;
use super::needs::{Needs, is_elementwise, reduce_by_parts, reduces_parts, takes_term};
use super::{Level, Shard, ShardError, Travels};
use crate::Stats;
use crate::accumulate::part::{Part, missing, scaled};
use crate::accumulate::rows::Rows;
use crate::accumulate::rules::Kind;
use arenic_ir::graph::{Def, Graph, NodeId, Output, Ranks, ValueId};
use arenic_ir::op::{Op, TypeError, part_type};
use arenic_ir::types::DType;
use cranelift_entity::SecondaryMap;
use std::collections::HashMap;

/// Makes the graph of a rank.
pub(super) fn build(
    mut rows: Rows,
    pass: &Shard,
    bucket_bytes: u64,
) -> Result<(Graph, Stats), ShardError> {
    reduce_by_parts(&mut rows);
    let needs = Needs::new(&rows, pass.shard)?;
    let mut builder = Builder {
        part: Part::bare(&rows),
        rows: &rows,
        needs: &needs,
        pass,
        most: bucket_bytes,
        whole: SecondaryMap::new(),
        own: SecondaryMap::new(),
        buckets: Default::default(),
        gathered: HashMap::new(),
        groups: HashMap::new(),
        of_parameters: of_parameters(&rows, &needs),
        kept: SecondaryMap::new(),
        again: HashMap::new(),
        gathered_exits: SecondaryMap::new(),
        stats: Stats::new(),
    };
    builder.add_leaves();
    builder.add_nodes()?;
    builder.close()
}

/// The kinds of exchanges, each with a bucket of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exchange {
    AllReduce,
    ReduceScatter,
    /// Of a parameter's next value.
    AllGather,
}

struct Builder<'a> {
    part: Part<'a>,
    rows: &'a Rows<'a>,
    needs: &'a Needs,
    pass: &'a Shard,
    /// Bytes of tensors that are exchanged together at most.
    most: u64,
    /// Sums of all terms, by the values of the old graph; other whole values are the part's own.
    whole: SecondaryMap<ValueId, Option<ValueId>>,
    /// The rank's parts.
    own: SecondaryMap<ValueId, Option<ValueId>>,
    buckets: [Bucket; 3],
    /// Parameters as they were gathered, for the forward pass or after it.
    gathered: HashMap<(ValueId, bool), ValueId>,
    /// Which parameters are gathered together, by each of them.
    groups: HashMap<(ValueId, bool), Vec<ValueId>>,
    /// Values that are computed of gathered parameters alone, such as transposes of them.
    of_parameters: SecondaryMap<ValueId, bool>,
    /// Parameters that stay whole until the backward pass has read them.
    kept: SecondaryMap<ValueId, bool>,
    /// What is computed of them once more for what follows the forward pass.
    again: HashMap<ValueId, ValueId>,
    /// Parameters whose next value was put together from its parts, by that value.
    gathered_exits: SecondaryMap<ValueId, Option<ValueId>>,
    stats: Stats,
}

impl Builder<'_> {
    /// States, and the inputs that hold the batch.
    fn add_leaves(&mut self) {
        let (g, count) = (self.rows.g, self.rows.count);
        let mut by_rows = std::collections::BTreeSet::new();
        for &v in &self.rows.by_rows {
            let value = &g.values[v];
            let ty = value.ty.with_extent(0, value.ty.shape[0] / count);
            self.part.of[v] = Some(self.part.new.add_input(value.name.clone(), ty));
            by_rows.insert(value.name.clone());
        }
        for v in g.inputs() {
            self.part.leaf(v);
        }
        self.part.new.ranks = Some(Ranks { count, by_rows });
        for (s, state) in &g.states {
            let ty = g.ty(state.enter);
            let sharded = self.needs.sharded[s];
            let own_type = if sharded { part_type(ty, count) } else { ty.clone() };
            let new = self.part.new.add_state(&state.name, own_type, state.init.clone());
            let made = &mut self.part.new.states[new];
            (made.rows, made.carried) = (state.rows, state.carried);
            let enter = made.enter;
            if sharded {
                made.part_of = Some(ty.clone());
                self.own[state.enter] = Some(enter);
            } else {
                self.part.of[state.enter] = Some(enter);
            }
        }
        self.keep_parameters();
        self.group_parameters();
    }

    /// As many bytes of parameters are kept as the pass says, those that the forward pass reads last, which the backward
    /// pass reads first.
    fn keep_parameters(&mut self) {
        let (g, mut left) = (self.rows.g, self.pass.kept_bytes);
        for (n, node) in g.nodes.iter().rev().filter(|(n, _)| self.needs.forward[*n]) {
            if !self.reads_whole(n) {
                continue;
            }
            for &v in &node.inputs {
                let Def::State(s) = g.values[v].def else { continue };
                if !self.needs.sharded[s] || self.kept[v] {
                    continue;
                }
                match left.checked_sub(g.ty(v).bytes()) {
                    Some(rest) => (left, self.kept[v]) = (rest, true),
                    None => return,
                }
            }
        }
    }

    /// Small parameters are gathered together that are read one after another.
    fn group_parameters(&mut self) {
        let g = self.rows.g;
        for forward in [true, false] {
            let mut group: Vec<ValueId> = Vec::new();
            let mut bytes = 0;
            let mut seen: SecondaryMap<ValueId, bool> = SecondaryMap::new();
            for (n, node) in g.nodes.iter().filter(|(n, _)| self.needs.forward[*n] == forward) {
                if !self.reads_whole(n) {
                    continue;
                }
                for &v in &node.inputs {
                    let Def::State(s) = g.values[v].def else { continue };
                    let is_kept = !forward && self.kept[v];
                    if !self.needs.sharded[s] || is_kept || std::mem::replace(&mut seen[v], true) {
                        continue;
                    }
                    let own = g.ty(v).bytes();
                    let same = group.first().is_none_or(|&w| g.ty(w).dtype == g.ty(v).dtype);
                    if bytes + own > self.most || !same {
                        self.add_group(&std::mem::take(&mut group), forward);
                        bytes = 0;
                    }
                    group.push(v);
                    bytes += own;
                }
            }
            self.add_group(&group, forward);
        }
    }

    fn add_group(&mut self, group: &[ValueId], forward: bool) {
        for &v in group {
            self.groups.insert((v, forward), group.to_vec());
        }
    }

    /// True where a node is computed of whole parameters.
    fn reads_whole(&self, n: NodeId) -> bool {
        let mut results = self.rows.g.nodes[n].outputs.iter().flatten();
        match self.rows.rule[n] {
            Some(_) => results.any(|&v| self.needs.local[v]),
            None => results.any(|&v| self.needs.whole[v] && self.rows.kind[v] != Kind::Sum),
        }
    }

    fn add_nodes(&mut self) -> Result<(), ShardError> {
        let g = self.rows.g;
        for (n, node) in &g.nodes {
            let is = |needs: &SecondaryMap<ValueId, bool>| {
                node.outputs.iter().flatten().any(|&v| needs[v])
            };
            let (local, whole, own) =
                (is(&self.needs.local), is(&self.needs.whole), is(&self.needs.own));
            let is_sum = node.outputs.iter().flatten().any(|&v| self.rows.kind[v] == Kind::Sum);
            if self.rows.rule[n].is_some() {
                if local {
                    self.add_rows(n)?;
                }
            } else if is_sum {
                if local {
                    self.add_term(n)?;
                }
            } else {
                if whole {
                    let inputs = self.wholes(&node.inputs, n)?;
                    let made = self.part.node(n, node.op.clone(), inputs)?;
                    self.part.define(n, &made);
                }
                if own && is_elementwise(self.rows, n) {
                    self.add_own(n)?;
                }
            }
            for &v in node.outputs.iter().flatten() {
                self.announce(v)?;
            }
        }
        Ok(())
    }

    /// A node on the rank's rows.
    fn add_rows(&mut self, n: NodeId) -> Result<(), ShardError> {
        let node = &self.rows.g.nodes[n];
        let Some(rule) = &self.rows.rule[n] else { return Ok(()) };
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (i, (&v, along)) in node.inputs.iter().zip(&rule.narrow).enumerate() {
            inputs.push(match (along, self.rows.kind[v]) {
                (Some(along), _) => self.part.narrow(v, *along)?,
                (None, Kind::Rows(_) | Kind::Positions) => self.local(v)?,
                (None, Kind::Sum) if takes_term(self.rows, n, i) => self.local(v)?,
                (None, _) => self.whole(v, n)?,
            });
        }
        let mut made = self.part.node(n, rule.op.clone(), inputs)?;
        if let Some(scale) = rule.scale {
            for v in made.iter_mut().flatten() {
                *v = scaled(&mut self.part.new, *v, scale)?;
            }
        }
        self.part.define(n, &made);
        Ok(())
    }

    /// A node that makes a term of a sum of other terms, or of the rank's part.
    fn add_term(&mut self, n: NodeId) -> Result<(), ShardError> {
        let node = &self.rows.g.nodes[n];
        if !reduces_parts(self.rows, n) {
            let inputs = node.inputs.iter().map(|&v| self.local(v)).collect::<Result<_, _>>()?;
            let made = self.part.node(n, node.op.clone(), inputs)?;
            self.part.define(n, &made);
            return Ok(());
        }
        let x = self.own(node.inputs[0])?;
        let mut op = node.op.clone();
        if let Op::Reduce { axes, keep, .. } = &mut op {
            (*axes, *keep) = (vec![0], false);
        }
        let mut made = self.part.node(n, op, vec![x])?;
        let result = self.rows.g.result(n).ok_or_else(|| missing(node.inputs[0]))?;
        let shape = &self.rows.g.ty(result).shape;
        if !shape.is_empty() {
            made[0] = Some(self.reshaped(made[0].ok_or_else(|| missing(result))?, shape)?);
        }
        self.part.define(n, &made);
        Ok(())
    }

    /// A node on the rank's parts.
    fn add_own(&mut self, n: NodeId) -> Result<(), ShardError> {
        let (g, node) = (self.rows.g, &self.rows.g.nodes[n]);
        if let Op::Reshape { .. } | Op::Copy = node.op {
            let own = self.own(node.inputs[0])?;
            node.outputs.iter().flatten().for_each(|&v| self.own[v] = Some(own));
            return Ok(());
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &v in &node.inputs {
            inputs.push(match g.ty(v).elements() {
                1 => {
                    let whole = self.whole(v, n)?;
                    // Of more axes than the part it would make the result one of more.
                    match g.ty(v).rank() {
                        0 | 1 => whole,
                        _ => self.reshaped(whole, &[])?,
                    }
                }
                _ => self.own(v)?,
            });
        }
        let made = self.part.node(n, node.op.clone(), inputs)?;
        for (old, new) in node.outputs.iter().zip(made) {
            if let Some(old) = old {
                self.own[*old] = new;
            }
        }
        Ok(())
    }

    fn reshaped(&mut self, v: ValueId, shape: &[usize]) -> Result<ValueId, TypeError> {
        let op = Op::Reshape { shape: shape.to_vec() };
        let n = self.part.new.add_node("", op, vec![v])?;
        self.part.new.result(n).ok_or_else(|| missing(v))
    }

    /// What becomes of a value as soon as it is known.
    fn announce(&mut self, v: ValueId) -> Result<(), ShardError> {
        if self.rows.kind[v] == Kind::Sum && self.needs.local[v] {
            if self.needs.whole[v] {
                let new = self.local(v)?;
                self.enqueue(Exchange::AllReduce, v, new)?;
            }
            if self.needs.own[v] && self.pass.shard > Level::None {
                let new = self.local(v)?;
                self.enqueue(Exchange::ReduceScatter, v, new)?;
            }
        }
        if let Some(own) = self.own[v]
            && self.needs.own[v]
            && self.is_gathered_exit(v)
        {
            self.enqueue(Exchange::AllGather, v, own)?;
        }
        Ok(())
    }

    /// True for the next value of a parameter that every rank has whole and updates in parts.
    fn is_gathered_exit(&self, v: ValueId) -> bool {
        let needs = self.needs;
        let mut states = self.rows.g.states.iter();
        states.any(|(s, state)| state.exit == v && needs.in_parts[s] && !needs.sharded[s])
    }

    fn enqueue(&mut self, how: Exchange, old: ValueId, new: ValueId) -> Result<(), ShardError> {
        let bucket = &mut self.buckets[how as usize];
        if bucket.holds(old) {
            return Ok(());
        }
        let is_stateful = self.rows.stateful[old];
        let before = bucket.add(old, new, &self.part.new, is_stateful, self.most);
        let full = bucket.is_full(self.most);
        self.exchange(how, &before)?;
        if full {
            self.flush(how)?;
        }
        Ok(())
    }

    fn flush(&mut self, how: Exchange) -> Result<(), ShardError> {
        let waiting = self.buckets[how as usize].take();
        self.exchange(how, &waiting)
    }

    /// Exchanges tensors by one operator.
    fn exchange(&mut self, how: Exchange, all: &[(ValueId, ValueId)]) -> Result<(), ShardError> {
        let (g, ranks) = (self.rows.g, self.rows.count);
        let Some(&(first, _)) = all.first() else { return Ok(()) };
        let mut inputs: Vec<ValueId> = all.iter().map(|(_, new)| *new).collect();
        let shape = |(old, _): &(ValueId, ValueId)| g.ty(*old).shape.clone();
        let (op, name) = match how {
            Exchange::AllReduce => (Op::AllReduce { ranks }, "all_reduces"),
            Exchange::ReduceScatter => (Op::ReduceScatter { ranks }, "reduce_scatters"),
            Exchange::AllGather => {
                (Op::AllGather { ranks, shapes: all.iter().map(shape).collect() }, "all_gathers")
            }
        };
        // Scalars, such as losses, are no gradients.
        let narrow = self.pass.grad_precision == Travels::Bf16
            && how != Exchange::AllGather
            && g.ty(first).dtype == DType::F32
            && all.iter().all(|(old, _)| g.ty(*old).elements() >= ranks);
        if narrow {
            for v in &mut inputs {
                *v = self.cast(*v, DType::Bf16)?;
            }
        }
        *self.stats.entry(name).or_insert(0) += 1;
        let n = self.part.new.add_node(g.values[first].name.clone(), op, inputs)?;
        let results = self.part.new.nodes[n].outputs.clone();
        for (&(old, _), new) in all.iter().zip(results) {
            let mut new = new.ok_or_else(|| missing(old))?;
            if narrow {
                new = self.cast(new, DType::F32)?;
            }
            self.part.new.values[new].name.clone_from(&g.values[old].name);
            match how {
                Exchange::AllReduce => self.whole[old] = Some(new),
                Exchange::ReduceScatter => self.own[old] = Some(new),
                Exchange::AllGather => self.gathered_exits[old] = Some(new),
            }
        }
        Ok(())
    }

    fn cast(&mut self, v: ValueId, to: DType) -> Result<ValueId, TypeError> {
        let n = self.part.new.add_node("", Op::Cast { to }, vec![v])?;
        self.part.new.result(n).ok_or_else(|| missing(v))
    }

    /// The rank's rows, or its term of a sum.
    fn local(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        self.part.of[v].ok_or_else(|| missing(v))
    }

    fn wholes(&mut self, all: &[ValueId], n: NodeId) -> Result<Vec<ValueId>, ShardError> {
        all.iter().map(|&v| self.whole(v, n)).collect()
    }

    /// The value that all ranks have in common, for a node of the old graph.
    fn whole(&mut self, v: ValueId, reader: NodeId) -> Result<ValueId, ShardError> {
        if self.rows.kind[v] == Kind::Sum {
            if self.whole[v].is_none() {
                self.flush(Exchange::AllReduce)?;
            }
            return Ok(self.whole[v].ok_or_else(|| missing(v))?);
        }
        if let Def::State(s) = self.rows.g.values[v].def
            && self.needs.sharded[s]
        {
            return self.gather(v, self.needs.forward[reader] || self.kept[v]);
        }
        if let Def::Node { node, .. } = self.rows.g.values[v].def
            && self.of_parameters[v]
            && self.needs.forward[node]
            && !self.needs.forward[reader]
        {
            return self.once_more(v, node, reader);
        }
        Ok(self.part.leaf(v).ok_or_else(|| missing(v))?)
    }

    /// What the forward pass has computed of parameters, computed again of those that are gathered again, so that
    /// neither has to be kept until then.
    fn once_more(&mut self, v: ValueId, n: NodeId, reader: NodeId) -> Result<ValueId, ShardError> {
        if let Some(&known) = self.again.get(&v) {
            return Ok(known);
        }
        let node = &self.rows.g.nodes[n];
        let inputs = self.wholes(&node.inputs, reader)?;
        let made = self.part.node(n, node.op.clone(), inputs)?;
        for (old, new) in node.outputs.iter().zip(made) {
            if let (Some(old), Some(new)) = (old, new) {
                self.again.insert(*old, new);
            }
        }
        Ok(self.again.get(&v).copied().ok_or_else(|| missing(v))?)
    }

    /// A parameter of which every rank has its part, gathered with those that are read next.
    fn gather(&mut self, v: ValueId, forward: bool) -> Result<ValueId, ShardError> {
        if let Some(&known) = self.gathered.get(&(v, forward)) {
            return Ok(known);
        }
        let (g, ranks) = (self.rows.g, self.rows.count);
        let group = self.groups.get(&(v, forward)).cloned().unwrap_or_else(|| vec![v]);
        let mut inputs = Vec::with_capacity(group.len());
        for &w in &group {
            inputs.push(self.own[w].ok_or_else(|| missing(w))?);
        }
        let shapes = group.iter().map(|&w| g.ty(w).shape.clone()).collect();
        let op = Op::AllGather { ranks, shapes };
        *self.stats.entry("all_gathers").or_insert(0) += 1;
        let n = self.part.new.add_node(g.values[v].name.clone(), op, inputs)?;
        for (&w, new) in group.iter().zip(self.part.new.nodes[n].outputs.clone()) {
            let new = new.ok_or_else(|| missing(w))?;
            self.gathered.insert((w, forward), new);
        }
        Ok(self.gathered.get(&(v, forward)).copied().ok_or_else(|| missing(v))?)
    }

    /// The rank's part of a value.
    fn own(&mut self, v: ValueId) -> Result<ValueId, ShardError> {
        if let Some(known) = self.own[v] {
            return Ok(known);
        }
        let scatters = self.rows.kind[v] == Kind::Sum && self.pass.shard > Level::None;
        if scatters {
            self.flush(Exchange::ReduceScatter)?;
            return Ok(self.own[v].ok_or_else(|| missing(v))?);
        }
        let whole = match self.rows.kind[v] {
            Kind::Sum => {
                if self.whole[v].is_none() {
                    self.flush(Exchange::AllReduce)?;
                }
                self.whole[v].ok_or_else(|| missing(v))?
            }
            _ => self.part.leaf(v).ok_or_else(|| missing(v))?,
        };
        let op = Op::OwnPart { ranks: self.rows.count };
        let n = self.part.new.add_node("", op, vec![whole])?;
        let own = self.part.new.result(n).ok_or_else(|| missing(v))?;
        self.own[v] = Some(own);
        Ok(own)
    }

    /// The states' next values, and the outputs.
    fn close(mut self) -> Result<(Graph, Stats), ShardError> {
        let g = self.rows.g;
        for (s, state) in &g.states {
            if self.needs.in_parts[s] {
                let own = self.own(state.exit)?;
                if !self.needs.sharded[s] && self.gathered_exits[state.exit].is_none() {
                    self.enqueue(Exchange::AllGather, state.exit, own)?;
                }
            }
        }
        self.flush(Exchange::AllReduce)?;
        self.flush(Exchange::AllGather)?;
        let mut sharded_bytes = 0;
        for (s, state) in &g.states {
            let exit = state.exit;
            let next = match (self.needs.in_parts[s], self.needs.sharded[s]) {
                (true, true) => self.own(exit)?,
                (true, false) => self.gathered_exits[exit].ok_or_else(|| missing(exit))?,
                _ => self.left(exit)?,
            };
            self.part.new.states[s].exit = next;
            let enter = self.part.new.states[s].enter;
            if self.needs.sharded[s] {
                sharded_bytes += self.part.new.ty(enter).bytes();
            }
        }
        for output in &g.outputs {
            let value = self.left(output.value)?;
            self.part.new.outputs.push(Output { name: output.name.clone(), value });
        }
        self.stats.insert("ranks", self.rows.count as u64);
        self.stats.insert("sharded_bytes", sharded_bytes);
        Ok((self.part.finish(), self.stats))
    }

    /// What the step leaves of a value: the rank's rows, or the whole.
    fn left(&mut self, v: ValueId) -> Result<ValueId, ShardError> {
        match self.rows.g.values[v].def {
            _ if self.rows.kind[v] == Kind::Sum => Ok(self.whole[v].ok_or_else(|| missing(v))?),
            Def::State(s) if self.needs.sharded[s] => self.gather(v, false),
            _ => Ok(self.part.leaf(v).ok_or_else(|| missing(v))?),
        }
    }
}

/// Values that follow from sharded states, and from nothing that depends on the batch.
fn of_parameters(rows: &Rows, needs: &Needs) -> SecondaryMap<ValueId, bool> {
    let g = rows.g;
    let mut of: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    for (s, state) in &g.states {
        of[state.enter] = needs.sharded[s];
    }
    for (n, node) in &g.nodes {
        let shared = rows.rule[n].is_none() && node.op.rng().is_none();
        let is_shared = |&v: &ValueId| rows.kind[v] == Kind::Shared;
        if shared
            && node.outputs.iter().flatten().all(is_shared)
            && node.inputs.iter().any(|&v| of[v])
        {
            node.outputs.iter().flatten().for_each(|&v| of[v] = true);
        }
    }
    of
}
