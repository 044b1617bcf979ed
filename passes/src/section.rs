//! Sections: an operator whose operands are too large runs in parts, one after another.
//!
//! tvDNN (Park et al.) runs a data-parallel task several times, each time on a section of its
//! memory objects. Here that is a rewrite of the graph: a node becomes one node for each
//! part, along an axis of the operator table ([`Op::cuts`]), and a large value between
//! nodes that are cut alike only ever exists in parts, each of which the later passes place,
//! swap and compute again by itself. States that are read and written in parts become one state
//! for each. Where a reader wants the whole, the parts are joined.
//!
//! Sound because a part computes the elements of its results as the whole operator does. Cuts
//! that take a sum in another order round otherwise, so they have to be allowed.

use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Data, Def, Graph, Node, NodeId, Output, Rows, StateId, ValueId};
use arenic_ir::op::{Assembly, Binary, Cut, Op};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Cuts operators whose own operands take too much of the byte limit into parts.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Section {
    /// An operator is cut that needs more than this part of the limit on device memory.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub above: f64,
    /// Sums may be taken in another order, which changes bits.
    pub allow_reassociation: bool,
}

impl Default for Section {
    fn default() -> Self {
        Section { above: 0.6, allow_reassociation: false }
    }
}

/// Most parts of one operator.
const MAX_PARTS: usize = 64;

/// Values below this part of what an operator may need stay whole.
const SMALL: u64 = 16;

impl GraphPass for Section {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let Some(limit) = cx.limits.device else { return Ok(Stats::new()) };
        let most = (limit as f64 * self.above) as u64;
        let largest = g.nodes.keys().map(|n| own_bytes(g, n)).max().unwrap_or(0);
        if largest <= most {
            return Ok(Stats::new());
        }
        let whole = with_reshapes(g);
        let parts = (largest.div_ceil((most / 2).max(1)) as usize).clamp(2, MAX_PARTS);
        let reassociate = self.allow_reassociation || cx.allow_reassociation;
        let mut sections = Sections::new(&whole, parts, most, reassociate);
        sections.grow();
        let cut = sections.cut.values().filter(|cut| cut.is_some()).count();
        *g = Rewriter::new(&sections).rewrite()?;
        Ok(Stats::from([("operators_cut", cut as u64), ("parts", parts as u64)]))
    }
}

/// Bytes that a node cannot do without.
fn own_bytes(g: &Graph, n: NodeId) -> u64 {
    let node = &g.nodes[n];
    let mut roots: Vec<ValueId> = node.inputs.iter().map(|&v| g.resolve(v).root).collect();
    roots.sort_unstable();
    roots.dedup();
    let Ok(outputs) = g.output_types(n) else { return 0 };
    let (x, y) = (g.input_types(n), outputs.iter().collect::<Vec<_>>());
    let mut shared: Vec<usize> = node.op.in_place_pairs(&x, &y).iter().map(|p| p.1).collect();
    shared.sort_unstable();
    shared.dedup();
    let made = |(o, _): &(usize, &Option<ValueId>)| !shared.contains(o);
    let results = node.outputs.iter().enumerate().filter(made).filter_map(|(_, v)| *v);
    let values = roots.iter().copied().chain(results).map(|v| g.ty(v).bytes());
    values.sum::<u64>() + node.op.scratch_bytes(&x, &y)
}

/// The graph with reshapes in the place of views of whole values, so that these can be cut.
fn with_reshapes(g: &Graph) -> Graph {
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

/// Which nodes are cut how, and which values exist in parts alone.
struct Sections<'a> {
    g: &'a Graph,
    parts: usize,
    /// Bytes that an operator may need.
    most: u64,
    reassociate: bool,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// The axis along which a value exists in parts.
    axis: SecondaryMap<ValueId, Option<usize>>,
    cut: SecondaryMap<NodeId, Option<Cut>>,
}

impl<'a> Sections<'a> {
    fn new(g: &'a Graph, parts: usize, most: u64, reassociate: bool) -> Self {
        let mut readers: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::new();
        for (n, node) in &g.nodes {
            node.inputs.iter().for_each(|&v| readers[v].push(n));
        }
        let (axis, cut) = Default::default();
        Sections { g, parts, most, reassociate, readers, axis, cut }
    }

    /// Cuts what is too large, and from there on what makes or reads its parts. The first
    /// operators decide: the axis of a forward pass serves its backward pass too.
    fn grow(&mut self) {
        let mut work: VecDeque<NodeId> =
            self.g.nodes.keys().filter(|&n| own_bytes(self.g, n) > self.most).collect();
        while let Some(n) = work.pop_front() {
            if self.cut[n].is_some() {
                continue;
            }
            let Some(cut) = self.best_cut(n) else { continue };
            let node = &self.g.nodes[n];
            let operands = node.inputs.iter().copied().zip(cut.operands.iter().copied());
            let axes = cut.results.iter().map(|r| r.axis());
            let results = node.outputs.iter().copied().zip(axes);
            let results = results.filter_map(|(v, axis)| Some((v?, axis)));
            for (v, axis) in operands.chain(results) {
                if let Some(axis) = axis.filter(|&axis| self.may_be_parts(v, axis)) {
                    self.axis[v] = Some(axis);
                    work.extend(&self.readers[v]);
                    if let Def::Node { node, .. } = self.g.values[v].def {
                        work.push_back(node);
                    }
                }
            }
            self.cut[n] = Some(cut);
        }
        self.close_states();
    }

    /// A state is in parts as it enters and as it leaves, or not at all.
    fn close_states(&mut self) {
        for state in self.g.states.values() {
            if self.axis[state.enter].is_some() && self.axis[state.exit] != Some(0) {
                self.axis[state.enter] = None;
            }
        }
    }

    /// The cut under which most bytes are in parts.
    fn best_cut(&self, n: NodeId) -> Option<Cut> {
        let node = &self.g.nodes[n];
        let types = self.g.output_types(n).ok()?;
        let cuts = node.op.cuts(&self.g.input_types(n), &types.iter().collect::<Vec<_>>());
        let allowed = |cut: &Cut| {
            cut.extent >= self.parts
                && (self.reassociate || cut.keeps_bits && !adds_by_extent(&node.op))
        };
        let score = |cut: &Cut| -> i128 {
            let operands = node.inputs.iter().copied().zip(cut.operands.iter().copied());
            let results = node.outputs.iter().copied().zip(cut.results.iter().map(|r| r.axis()));
            let results = results.filter_map(|(v, axis)| Some((v?, axis)));
            let gain = |(v, axis): (ValueId, Option<usize>)| {
                let bytes = i128::from(self.g.ty(v).bytes());
                match (self.axis[v], axis) {
                    (Some(is), axis) => {
                        if axis == Some(is) {
                            bytes
                        } else {
                            -bytes
                        }
                    }
                    (None, Some(axis)) if self.may_be_parts(v, axis) => bytes,
                    (None, _) => 0,
                }
            };
            operands.chain(results).map(gain).sum()
        };
        let scored = cuts.into_iter().filter(allowed).map(|cut| (score(&cut), cut));
        // Of equal ones the first, which keeps every bit.
        scored.rev().max_by_key(|s| s.0).filter(|s| s.0 > 0).map(|s| s.1)
    }

    /// True where a value may exist in parts alone: a large result, or a state, by rows.
    fn may_be_parts(&self, v: ValueId, axis: usize) -> bool {
        let large = self.g.ty(v).bytes() > self.most / SMALL;
        let extent = self.g.ty(v).shape.get(axis).copied().unwrap_or(0);
        let free = self.axis[v].is_none() && extent >= self.parts;
        large
            && free
            && match self.g.values[v].def {
                Def::Node { .. } => true,
                Def::State(_) => axis == 0,
                Def::Input | Def::Const(_) | Def::View { .. } => false,
            }
    }

    /// The indices of a part along an axis: the first, and one past the last.
    fn range(&self, extent: usize, part: usize) -> (usize, usize) {
        (part * extent / self.parts, (part + 1) * extent / self.parts)
    }
}

/// Where a value of the old graph is in the new one.
#[derive(Clone, Debug, Default)]
struct Place {
    whole: Option<ValueId>,
    parts: Vec<ValueId>,
}

struct Rewriter<'a> {
    s: &'a Sections<'a>,
    old: &'a Graph,
    new: Graph,
    place: SecondaryMap<ValueId, Place>,
}

impl<'a> Rewriter<'a> {
    fn new(s: &'a Sections<'a>) -> Self {
        let new = Graph { name: s.g.name.clone(), ..Graph::default() };
        Rewriter { s, old: s.g, new, place: SecondaryMap::new() }
    }

    fn rewrite(mut self) -> Result<Graph, PassError> {
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
        Ok(self.new)
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
            let new = self.new.add_state(&state.name, with_extent(ty, 0, end - first), init);
            let (before, of) = state.rows.map_or((0, extent), |rows| (rows.first, rows.of));
            self.new.states[new].rows = Some(Rows { first: before + first, of });
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
            let result = self.new.nodes[new].outputs[o];
            match (old, result) {
                (Some(old), Some(result)) => {
                    self.new.values[result].name.clone_from(&self.old.values[*old].name);
                    self.put(*old, result)?;
                }
                _ => self.new.nodes[new].outputs[o] = None,
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
            let inputs: Vec<ValueId> = operands.map(operand).collect::<Result<_, _>>()?;
            let op = node.op.part(cut, end - first);
            let new = self.new.add_node(node.name.clone(), op, inputs)?;
            for (o, old) in node.outputs.iter().enumerate() {
                let (Some(_), Some(result)) = (old, self.new.nodes[new].outputs[o]) else {
                    self.new.nodes[new].outputs[o] = None;
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
        let shape = with_extent(&ty, axis, end - first).shape.to_vec();
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

/// True where kernels choose by the operands' extents in which order they add.
fn adds_by_extent(op: &Op) -> bool {
    matches!(
        op,
        Op::Reduce { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::LogSoftmaxStats
            | Op::LayerNorm { .. }
            | Op::AveragePool { .. }
    )
}

fn with_extent(ty: &TensorType, axis: usize, extent: usize) -> TensorType {
    let mut ty = ty.clone();
    ty.shape[axis] = extent;
    ty
}
