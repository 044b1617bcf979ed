//! A part of a step in rounds as it is made, node by node.

use super::rows::Rows;
use super::rules::{Along, narrowed};
use super::totals::Total;
use arenic_ir::graph::{Data, Def, Graph, Node, NodeId, StateId, ValueId};
use arenic_ir::op::{Binary, Op, TypeError};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeSet, HashMap};

/// A part that grows.
pub(crate) struct Part<'a> {
    pub(crate) rows: &'a Rows<'a>,
    pub(crate) new: Graph,
    /// What stands for a value of the whole step.
    pub(crate) of: SecondaryMap<ValueId, Option<ValueId>>,
    /// The states in which values go from part to part.
    pub(crate) carried: HashMap<ValueId, StateId>,
    /// The first parts of shared values.
    narrow: HashMap<(ValueId, Along), ValueId>,
}

impl<'a> Part<'a> {
    /// Without any states.
    pub(crate) fn bare(rows: &'a Rows<'a>) -> Self {
        let g = rows.g;
        let new = Graph { name: g.name.clone(), ranks: g.ranks.clone(), ..Graph::default() };
        let (of, carried, narrow) = Default::default();
        Part { rows, new, of, carried, narrow }
    }

    /// All parts have the same states: those of the step, then the carried values: `early` from before the
    /// first round, and `totals`.
    pub(super) fn new(
        rows: &'a Rows<'a>,
        early: &[ValueId],
        totals: &[Total],
        with_init: bool,
    ) -> Self {
        let g = rows.g;
        let mut part = Part::bare(rows);
        for state in g.states.values() {
            let init = state.init.clone().filter(|_| with_init);
            let s = part.new.add_state(&state.name, g.ty(state.enter).clone(), init);
            part.new.states[s].rows = state.rows;
            part.new.states[s].part_of.clone_from(&state.part_of);
            part.of[state.enter] = Some(part.new.states[s].enter);
        }
        let mut names: BTreeSet<String> = g.states.values().map(|s| s.name.clone()).collect();
        let early = early.iter().map(|&v| (v, None, "whole", g.ty(v).clone()));
        // Sums are rounded once, at their end.
        let totals = totals
            .iter()
            .map(|total| (total.value, total.state, "sum", g.ty(total.value).accumulated()));
        for (v, state, what, ty) in early.chain(totals) {
            if let Some(s) = state {
                part.carried.insert(v, s);
                continue;
            }
            let mut name = match &g.values[v].name {
                name if name.is_empty() => format!("{what} {v}"),
                name => format!("{what} {name}"),
            };
            // Values may have one name, those of states are distinct.
            while !names.insert(name.clone()) {
                name = format!("{name} {v}");
            }
            let s = part.new.add_state(name, ty, None);
            part.new.states[s].carried = true;
            part.carried.insert(v, s);
        }
        part
    }

    pub(crate) fn carried(&self, v: ValueId) -> Option<ValueId> {
        self.carried.get(&v).map(|&s| self.new.states[s].enter)
    }

    /// A value in another type, where that is not its own.
    pub(super) fn cast(&mut self, v: ValueId, to: DType) -> Result<ValueId, TypeError> {
        if self.new.ty(v).dtype == to {
            return Ok(v);
        }
        let n = self.new.add_node("", Op::Cast { to }, vec![v])?;
        self.new.result(n).ok_or_else(|| missing(v))
    }

    /// Inputs and constants of the whole step that are read; others are there already.
    pub(crate) fn leaf(&mut self, v: ValueId) -> Option<ValueId> {
        if let Some(new) = self.of[v] {
            return Some(new);
        }
        let value = &self.rows.g.values[v];
        let new = match &value.def {
            Def::Input => self.new.add_input(value.name.clone(), value.ty.clone()),
            Def::Const(data) => {
                self.new.add_const(value.name.clone(), value.ty.clone(), data.clone())
            }
            _ => return None,
        };
        self.of[v] = Some(new);
        Some(new)
    }

    pub(crate) fn operands(&mut self, node: &Node) -> Result<Vec<ValueId>, TypeError> {
        let operand = |&v: &ValueId| self.leaf(v).ok_or_else(|| missing(v));
        node.inputs.iter().map(operand).collect()
    }

    /// A node with other operator and operands, whose results take the names of the old ones'.
    pub(crate) fn node(
        &mut self,
        n: NodeId,
        op: Op,
        inputs: Vec<ValueId>,
    ) -> Result<Vec<Option<ValueId>>, TypeError> {
        let old = &self.rows.g.nodes[n];
        let new = self.new.add_node(old.name.clone(), op, inputs)?;
        let outputs = self.new.nodes[new].outputs.clone();
        for (old, new) in old.outputs.iter().zip(&outputs) {
            if let (Some(old), Some(new)) = (old, new) {
                self.new.values[*new].name.clone_from(&self.rows.g.values[*old].name);
            }
        }
        Ok(outputs)
    }

    /// A node as it is in the whole step.
    pub(crate) fn whole(&mut self, n: NodeId) -> Result<(), TypeError> {
        let node = &self.rows.g.nodes[n];
        let inputs = self.operands(node)?;
        let outputs = self.node(n, node.op.clone(), inputs)?;
        self.define(n, &outputs);
        Ok(())
    }

    pub(crate) fn define(&mut self, n: NodeId, outputs: &[Option<ValueId>]) {
        for (old, new) in self.rows.g.nodes[n].outputs.iter().zip(outputs) {
            if let Some(old) = old {
                // What another part has made stays that.
                self.of[*old] = self.of[*old].or(*new);
            }
        }
    }

    /// The first part of a value that is the same in every round.
    pub(crate) fn narrow(&mut self, v: ValueId, along: Along) -> Result<ValueId, TypeError> {
        if let Some(&known) = self.narrow.get(&(v, along)) {
            return Ok(known);
        }
        let (g, count) = (self.rows.g, self.rows.count);
        let value = &g.values[v];
        let new = match &value.def {
            Def::Const(data) => {
                let extent = value.ty.shape[along.axis] / count;
                let ty = value.ty.with_extent(along.axis, extent);
                let data = first_part(data, along.blocks(&value.ty), count);
                self.new.add_const(value.name.clone(), ty, data)
            }
            Def::Node { node, output } => {
                let (op, cut) = narrowed(g, v, along, count).ok_or_else(|| missing(v))?;
                let mut inputs = Vec::new();
                for (&x, cut) in g.nodes[*node].inputs.iter().zip(cut) {
                    inputs.push(match cut {
                        Some((x, along)) => self.narrow(x, along)?,
                        None => self.shared(x)?,
                    });
                }
                self.node(*node, op, inputs)?[*output].ok_or_else(|| missing(v))?
            }
            _ => return Err(missing(v)),
        };
        self.narrow.insert((v, along), new);
        Ok(new)
    }

    /// A value that is the same in every round, with what it is made of.
    pub(crate) fn shared(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        if let Some(known) = self.leaf(v) {
            return Ok(known);
        }
        let Def::Node { node, .. } = self.rows.g.values[v].def else { return Err(missing(v)) };
        for x in self.rows.g.nodes[node].inputs.clone() {
            self.shared(x)?;
        }
        self.whole(node)?;
        self.of[v].ok_or_else(|| missing(v))
    }

    /// The results that nobody reads go; states stay.
    pub(crate) fn finish(self) -> Graph {
        let g = self.new;
        let mut wanted = g.kept();
        let mut keep: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        for (n, node) in g.nodes.iter().rev() {
            if node.outputs.iter().flatten().any(|&v| wanted[v]) {
                keep[n] = true;
                node.inputs.iter().for_each(|&v| wanted[v] = true);
            }
        }
        let mut g = g.compacted(|n| keep[n]);
        // Rows of the batch are inputs of the parts that read them.
        let inputs: BTreeSet<String> = g.inputs().map(|v| g.values[v].name.clone()).collect();
        g.ranks.iter_mut().for_each(|ranks| ranks.by_rows.retain(|name| inputs.contains(name)));
        g
    }
}

pub(crate) fn missing(v: ValueId) -> TypeError {
    TypeError(format!("{v} is not known in this part of the step"))
}

fn first_part(data: &Data, blocks: usize, count: usize) -> Data {
    let Data::Bytes(bytes) = data else { return Data::Absent };
    let block = (bytes.len() / blocks.max(1)).max(1);
    let firsts = bytes.chunks(block).flat_map(|block| &block[..block.len() / count]);
    Data::Bytes(firsts.copied().collect::<Vec<u8>>().into())
}

/// A value broadcast to a type.
pub(crate) fn fill(g: &mut Graph, v: ValueId, ty: &TensorType) -> Result<ValueId, TypeError> {
    let op = match ty.rank() {
        0 => Op::Copy,
        _ => Op::Expand { shape: ty.shape.clone() },
    };
    let n = g.add_node("begin", op, vec![v])?;
    g.result(n).ok_or_else(|| missing(v))
}

/// A value times a number.
pub(crate) fn scaled(g: &mut Graph, v: ValueId, by: f64) -> Result<ValueId, TypeError> {
    let dtype = g.ty(v).dtype;
    let bytes = match dtype {
        DType::F64 => by.to_le_bytes().to_vec(),
        DType::F32 => (by as f32).to_le_bytes().to_vec(),
        _ => return Err(TypeError(format!("a mean of {dtype} cannot be summed by parts"))),
    };
    let by = g.add_const("", TensorType::scalar(dtype), Data::Bytes(bytes.into()));
    let n = g.add_node("", Op::Binary { f: Binary::Mul }, vec![v, by])?;
    g.result(n).ok_or_else(|| missing(v))
}
