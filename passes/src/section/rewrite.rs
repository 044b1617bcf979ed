//! The graph with operators in parts.

use super::cuts::Sections;
use crate::PassError;
use arenic_ir::graph::{BatchRows, Data, Def, Graph, Node, NodeId, Output, StateId, ValueId};
use arenic_ir::op::{Assembly, Binary, Cut, Op};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;

/// The graph with reshapes in the place of views of whole values, so that these can be cut.
pub(super) fn with_reshapes(g: &Graph) -> Graph {
    let mut whole = g.clone();
    let mut views: SecondaryMap<ValueId, Vec<ValueId>> = SecondaryMap::new();
    for (v, value) in &g.values {
        let Def::View { of, offset } = value.def else { continue };
        views[of].push(v);
        let (from, to) = (g.ty(of), &value.ty);
        if offset == 0 && from.elements() == to.elements() && from.dtype == to.dtype {
            let node = whole.nodes.next_key();
            let op = Op::Reshape { shape: to.shape.clone() };
            let (name, outputs) = (value.name.clone(), vec![Some(v)]);
            whole.nodes.push(Node { name, op, inputs: vec![of], outputs });
            whole.values[v].def = Def::Node { node, output: 0 };
        }
    }
    let mut order: Vec<NodeId> = Vec::with_capacity(whole.nodes.len());
    // Views of what is defined, the nearest first; each node defines its results.
    let define = |defined: Vec<ValueId>, order: &mut Vec<NodeId>| {
        let mut defined = defined;
        while let Some(v) = defined.pop() {
            for &view in &views[v] {
                if let Def::Node { node, .. } = whole.values[view].def {
                    order.push(node);
                }
                defined.push(view);
            }
        }
    };
    let entered = |v: &ValueId| !matches!(g.values[*v].def, Def::Node { .. } | Def::View { .. });
    define(g.values.keys().filter(entered).collect(), &mut order);
    for (n, node) in &g.nodes {
        order.push(n);
        define(node.outputs.iter().flatten().copied().collect(), &mut order);
    }
    whole.arranged(&order)
}

/// Where a value of the old graph is in the new one.
#[derive(Clone, Debug, Default)]
struct Place {
    whole: Option<ValueId>,
    parts: Vec<ValueId>,
}

pub(super) struct Rewriter<'a> {
    s: &'a Sections<'a>,
    old: &'a Graph,
    new: Graph,
    place: SecondaryMap<ValueId, Place>,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(s: &'a Sections<'a>) -> Self {
        let new = Graph { name: s.g.name.clone(), ranks: s.g.ranks.clone(), ..Graph::default() };
        Rewriter { s, old: s.g, new, place: SecondaryMap::new() }
    }

    pub(super) fn rewrite(mut self) -> Result<Graph, PassError> {
        let mut states: Vec<(StateId, StateId, Option<usize>)> = Vec::new();
        for (v, value) in &self.old.values {
            match &value.def {
                Def::Input | Def::Const(_) => {
                    let new =
                        self.new.add_value(value.name.clone(), value.ty.clone(), value.def.clone());
                    self.place[v].whole = Some(new);
                }
                Def::State(s) => self.add_state(v, *s, &mut states),
                Def::Node { .. } | Def::View { .. } => {}
            }
        }
        for n in self.old.nodes.keys() {
            match &self.s.cut[n] {
                Some(cut) => self.add_parts(n, cut)?,
                None => self.add_whole(n)?,
            }
        }
        for (old, new, part) in states {
            let exit = self.old.states[old].exit;
            self.new.states[new].exit = match part {
                Some(part) => self.place[exit].parts[part],
                None => self.whole(exit)?,
            };
        }
        for output in &self.old.outputs {
            let (name, value) = (output.name.clone(), self.whole(output.value)?);
            self.new.outputs.push(Output { name, value });
        }
        // Results that nobody reads go.
        Ok(self.new.compacted(|_| true))
    }

    fn add_state(
        &mut self,
        v: ValueId,
        s: StateId,
        states: &mut Vec<(StateId, StateId, Option<usize>)>,
    ) {
        let state = &self.old.states[s];
        let ty = self.old.ty(v);
        if self.s.axis[v].is_none() {
            let new = self.new.add_state(&state.name, ty.clone(), state.init.clone());
            self.new.states[new].rows = state.rows;
            self.new.states[new].part_of.clone_from(&state.part_of);
            self.new.states[new].carried = state.carried;
            self.place[v].whole = Some(self.new.states[new].enter);
            states.push((s, new, None));
            return;
        }
        let (extent, row) = (ty.shape[0], ty.bytes() / ty.shape[0] as u64);
        for part in 0..self.s.parts {
            let (first, end) = self.s.range(extent, part);
            let bytes = first * row as usize..end * row as usize;
            let init = state.init.as_ref().map(|data| match data {
                Data::Bytes(all) => Data::Bytes(all.slice(bytes)),
                Data::Absent => Data::Absent,
            });
            let new = self.new.add_state(&state.name, ty.with_extent(0, end - first), init);
            let (before, of) = state.rows.map_or((0, extent), |rows| (rows.first, rows.of));
            self.new.states[new].rows = Some(BatchRows { first: before + first, of });
            self.new.states[new].carried = state.carried;
            let enter = self.new.states[new].enter;
            self.place[v].parts.push(enter);
            states.push((s, new, Some(part)));
        }
    }

    /// A node as it was, its operands whole.
    fn add_whole(&mut self, n: NodeId) -> Result<(), PassError> {
        let node = &self.old.nodes[n];
        let inputs: Vec<ValueId> =
            node.inputs.iter().map(|&v| self.whole(v)).collect::<Result<_, _>>()?;
        let new = self.new.add_node(node.name.clone(), node.op.clone(), inputs)?;
        for (o, old) in node.outputs.iter().enumerate() {
            if let (Some(old), Some(result)) = (old, self.new.nodes[new].outputs[o]) {
                self.new.values[result].name.clone_from(&self.old.values[*old].name);
                self.put(*old, result)?;
            }
        }
        Ok(())
    }

    /// A whole result, in parts where its readers want these.
    fn put(&mut self, old: ValueId, whole: ValueId) -> Result<(), PassError> {
        self.place[old].whole = Some(whole);
        if let Some(axis) = self.s.axis[old] {
            for part in 0..self.s.parts {
                let part = self.slice(whole, axis, part)?;
                self.place[old].parts.push(part);
            }
        }
        Ok(())
    }

    /// A node in parts.
    fn add_parts(&mut self, n: NodeId, cut: &Cut) -> Result<(), PassError> {
        let node = &self.old.nodes[n];
        let mut made: Vec<Vec<ValueId>> = vec![Vec::new(); node.outputs.len()];
        for part in 0..self.s.parts {
            let (first, end) = self.s.range(cut.extent, part);
            let operand = |(&v, &axis): (&ValueId, &Option<usize>)| match axis {
                Some(axis) => self.part(v, axis, part),
                None => self.whole(v),
            };
            let operands = node.inputs.iter().zip(&cut.operands);
            let mut inputs: Vec<ValueId> = operands.map(operand).collect::<Result<_, _>>()?;
            let mut op = node.op.part(cut, end - first);
            if let (Some(onto), [Assembly::Accumulate], true) =
                (node.op.onto(), &cut.results[..], part > 0)
            {
                op = onto;
                inputs.truncate(2);
                inputs.extend(made[0].pop());
            }
            let new = self.new.add_node(node.name.clone(), op, inputs)?;
            for (o, old) in node.outputs.iter().enumerate() {
                let (Some(_), Some(result)) = (old, self.new.nodes[new].outputs[o]) else {
                    continue;
                };
                let result = match cut.results[o] {
                    Assembly::Positions(each) if first > 0 => self.moved(result, first * each)?,
                    _ => result,
                };
                made[o].push(result);
            }
        }
        for (o, parts) in made.into_iter().enumerate() {
            let Some(old) = node.outputs[o] else { continue };
            match cut.results[o].axis() {
                Some(axis) if self.s.axis[old] == Some(axis) => self.place[old].parts = parts,
                Some(axis) => {
                    let whole = self.join(parts, axis)?;
                    self.put(old, whole)?;
                }
                None => {
                    let sum = Op::Binary { f: Binary::Add };
                    let mut parts = parts.into_iter();
                    let Some(mut whole) = parts.next() else { continue };
                    for part in parts {
                        whole = self.node(sum.clone(), vec![whole, part])?;
                    }
                    self.put(old, whole)?;
                }
            }
        }
        Ok(())
    }

    /// Positions counted from further ahead.
    fn moved(&mut self, positions: ValueId, by: usize) -> Result<ValueId, PassError> {
        let data = Data::Bytes((by as i64).to_le_bytes().to_vec().into());
        let by = self.new.add_const("", TensorType::new(DType::I64, []), data);
        self.node(Op::Binary { f: Binary::Add }, vec![positions, by])
    }

    /// A value in one piece.
    fn whole(&mut self, v: ValueId) -> Result<ValueId, PassError> {
        if let Some(whole) = self.place[v].whole {
            return Ok(whole);
        }
        let whole = match self.old.values[v].def {
            Def::View { of, offset } => {
                let (of, value) = (self.whole(of)?, &self.old.values[v]);
                self.new.add_view(value.name.clone(), value.ty.clone(), of, offset)
            }
            _ => {
                let parts = self.place[v].parts.clone();
                self.join(parts, self.s.axis[v].unwrap_or(0))?
            }
        };
        self.place[v].whole = Some(whole);
        Ok(whole)
    }

    /// A part of a value along an axis.
    fn part(&mut self, v: ValueId, axis: usize, part: usize) -> Result<ValueId, PassError> {
        match self.s.axis[v] {
            Some(is) if is == axis => Ok(self.place[v].parts[part]),
            _ => {
                let whole = self.whole(v)?;
                self.slice(whole, axis, part)
            }
        }
    }

    fn slice(&mut self, whole: ValueId, axis: usize, part: usize) -> Result<ValueId, PassError> {
        let ty = self.new.ty(whole).clone();
        let (first, end) = self.s.range(ty.shape[axis], part);
        let mut starts = vec![0; ty.rank()];
        starts[axis] = first;
        let shape = ty.with_extent(axis, end - first).shape.to_vec();
        let steps = vec![1; ty.rank()];
        self.node(Op::Slice { starts, steps, shape }, vec![whole])
    }

    fn join(&mut self, parts: Vec<ValueId>, axis: usize) -> Result<ValueId, PassError> {
        self.node(Op::Concat { axis }, parts)
    }

    fn node(&mut self, op: Op, inputs: Vec<ValueId>) -> Result<ValueId, PassError> {
        let node = self.new.add_node("", op, inputs)?;
        let result = self.new.result(node);
        result.ok_or_else(|| PassError::Solver("a node without results".into()))
    }
}
