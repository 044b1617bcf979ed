//! Operators that hold graphs. Of branches and loops, `If`, `Loop` and `Scan`, conditions and counts are known when the
//! model is compiled: the chosen branch, or every turn of the loop, becomes nodes of the graph. So does what
//! `SequenceMap` does to each element (`map`), and `FlexAttention` to its scores (`flexible`).
//!
//! A body is flattened where it is built ([`Body`]), with what is around it bound by name. A sequence of tensors is a
//! [`Slot`] of the importer and no value of the graph.

mod flexible;
mod map;

use super::attributes::Access;
use super::context::{Slot, axis, made};
use super::domains::PREVIEW;
use super::error::{Fault, ImportError};
use super::flatten::{Body, FlatNode, Tensor};
use super::fold::to_ints;
use super::import::{Importer, stored};
use super::proto::GraphProto;
use arenic_ir::{DType, Data, Op, TensorType, ValueId};

/// Most nodes that bodies become in all.
const MAX_NODES: usize = 200_000;

impl<'m> Importer<'m, '_> {
    /// Builds a node with bodies; false where it has another operator.
    pub(super) fn build_control(&mut self, node: &FlatNode<'m>) -> Result<bool, ImportError> {
        match (node.domain, node.op) {
            ("", "If") => self.branch(node)?,
            ("", "Loop") => self.turns(node)?,
            ("", "Scan") => self.scan(node)?,
            ("", "SequenceMap") => self.map(node)?,
            (PREVIEW, "FlexAttention") => self.flexible(node)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn fault(&self, node: &FlatNode, fault: impl Into<Fault>) -> ImportError {
        node.error(&self.names, fault.into().0)
    }

    /// What an operand is; a sequence, too.
    fn operand(&mut self, node: &FlatNode, t: Tensor) -> Result<Slot, ImportError> {
        if let Slot::Sequence(_) = &self.slots[t] {
            return Ok(self.slots[t].clone());
        }
        let value = made(&mut self.b, &mut self.slots, &self.names, t);
        value.map(Slot::Value).map_err(|fault| self.fault(node, fault))
    }

    /// The one element of a tensor that is known; of what, where it is not.
    fn known(&mut self, node: &FlatNode, t: Tensor, what: &str) -> Result<i64, ImportError> {
        let value = made(&mut self.b, &mut self.slots, &self.names, t);
        let value = value.map_err(|fault| self.fault(node, fault))?;
        let ty = self.b.g.ty(value).clone();
        if ty.elements() != 1 {
            return Err(self.fault(node, format!("{what} is {ty}, not one element")));
        }
        let bytes = self.b.contents(value).ok_or_else(|| {
            let name = self.names.name(t);
            self.fault(node, format!("{what}, `{name}`, must be known when the model is compiled"))
        })?;
        match ty.dtype {
            DType::Bool => Ok(i64::from(bytes.iter().any(|&b| b != 0))),
            _ => {
                let one = to_ints(&ty, &bytes).and_then(|list| list.first().copied());
                one.ok_or_else(|| self.fault(node, format!("{what} is {ty}, no integer")))
            }
        }
    }

    fn branch(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        let Some(Some(condition)) = node.inputs.first().copied() else {
            return Err(self.fault(node, "its condition is missing"));
        };
        let holds = self.known(node, condition, "its condition")? != 0;
        let wanted = if holds { "then_branch" } else { "else_branch" };
        let body = self.body(node, wanted)?;
        let results = self.expand(node, body, Vec::new(), 0)?;
        if results.len() < node.outputs.len() {
            return Err(self.fault(node, format!("its {wanted} has too few results")));
        }
        for (t, slot) in node.outputs.iter().zip(results) {
            self.settle(*t, slot);
        }
        Ok(())
    }

    fn turns(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        let body = self.body(node, "body")?;
        let operand = |i: usize| node.inputs.get(i).copied().flatten();
        let most = operand(0).map(|t| self.known(node, t, "its count")).transpose()?;
        let mut goes_on = match operand(1) {
            Some(t) => self.known(node, t, "its condition")? != 0,
            None => true,
        };
        let mut carried = Vec::new();
        for t in node.inputs.iter().skip(2) {
            let t = t.ok_or_else(|| self.fault(node, "a carried value is missing"))?;
            carried.push(self.operand(node, t)?);
        }
        let GraphProto { input, output, .. } = body.graph;
        if input.len() != carried.len() + 2 || output.len() < carried.len() + 1 {
            return Err(self.fault(node, "its body takes or gives another number of values"));
        }
        let scans = output.len() - carried.len() - 1;
        if node.outputs.len() > carried.len() + scans {
            return Err(self.fault(node, "its body gives too few values"));
        }
        let mut collected: Vec<Vec<Slot>> = vec![Vec::new(); scans];
        // A condition of which nothing is asked need not be known where the count is.
        let mut turn = 0;
        while goes_on && most.is_none_or(|most| turn < most) {
            let scalar = |dtype, bytes: Vec<u8>| (TensorType::scalar(dtype), bytes);
            let (ty, bytes) = scalar(DType::I64, turn.to_le_bytes().to_vec());
            let count = Slot::Value(self.b.constant(ty, bytes));
            let (ty, bytes) = scalar(DType::Bool, vec![1]);
            let condition = Slot::Value(self.b.constant(ty, bytes));
            let given = [count, condition].into_iter().chain(carried).collect();
            let mut results = self.expand(node, body, given, turn as usize)?;
            let rest = results.split_off(1);
            let next = match results.pop() {
                Some(Slot::Value(v)) => self.b.contents(v).map(|b| b.iter().any(|&b| b != 0)),
                _ => None,
            };
            goes_on = next.ok_or_else(|| {
                let what =
                    "whether it goes on after a turn must be known when the model is compiled";
                self.fault(node, what)
            })?;
            carried = rest;
            for (all, slot) in collected.iter_mut().zip(carried.split_off(carried.len() - scans)) {
                all.push(slot);
            }
            turn += 1;
        }
        let mut results = carried;
        for (i, parts) in collected.into_iter().enumerate() {
            let t = node.outputs.get(results.len()).copied().flatten();
            let slot = match t.filter(|&t| self.uses[t] > 0) {
                Some(_) => self.stacked(node, i, &parts, 0)?,
                None => Slot::Undefined,
            };
            results.push(slot);
        }
        for (t, slot) in node.outputs.iter().zip(results) {
            self.settle(*t, slot);
        }
        Ok(())
    }

    /// Turn `t` reads element `t` of each scanned operand's axis, from either end, beside the states.
    fn scan(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        let body = self.body(node, "body")?;
        let a = Access(&node.attributes);
        let count = a.int("num_scan_inputs").map_err(|fault| self.fault(node, fault))?;
        let scanned = count.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        let states = scanned.and_then(|n| node.inputs.len().checked_sub(n));
        let (Some(scanned), Some(states)) = (scanned, states) else {
            return Err(self.fault(node, "attribute `num_scan_inputs` does not fit its operands"));
        };
        let GraphProto { input, output, .. } = body.graph;
        let collects = output.len().checked_sub(states);
        let collects = collects
            .filter(|&n| input.len() == node.inputs.len() && node.outputs.len() <= states + n);
        let Some(collects) = collects else {
            return Err(self.fault(node, "its body takes or gives another number of values"));
        };
        let list = |name: &str, n: usize| match a.ints(name) {
            Ok(None) => Ok(vec![0; n]),
            Ok(Some(list)) if list.len() == n => Ok(list.to_vec()),
            Ok(Some(list)) => {
                let what = format!("attribute `{name}` has {} entries, not {n}", list.len());
                Err(self.fault(node, what))
            }
            Err(fault) => Err(self.fault(node, fault)),
        };
        let read_along = list("scan_input_axes", scanned)?;
        let read_back = list("scan_input_directions", scanned)?;
        let made_along = list("scan_output_axes", collects)?;
        let made_back = list("scan_output_directions", collects)?;
        let mut carried = Vec::with_capacity(states);
        for t in &node.inputs {
            let t = t.ok_or_else(|| self.fault(node, "an operand is missing"))?;
            carried.push(self.operand(node, t)?);
        }
        let mut operands = Vec::with_capacity(scanned);
        let mut turns = None;
        for (slot, &along) in carried.split_off(states).into_iter().zip(&read_along) {
            let Slot::Value(v) = slot else {
                return Err(self.fault(node, "what it scans is no tensor"));
            };
            let shape = self.b.g.ty(v).shape.clone();
            let along = axis(along, shape.len()).map_err(|fault| self.fault(node, fault))?;
            if *turns.get_or_insert(shape[along]) != shape[along] {
                return Err(self.fault(node, "the axes that it scans have different extents"));
            }
            operands.push((v, along));
        }
        let turns = turns.unwrap_or(0);
        let mut collected: Vec<Vec<Slot>> = vec![Vec::new(); collects];
        for turn in 0..turns {
            let mut given = carried;
            for (&(v, along), &back) in operands.iter().zip(&read_back) {
                let at = if back == 0 { turn } else { turns - 1 - turn };
                given.push(self.element(node, v, along, at)?);
            }
            carried = self.expand(node, body, given, turn)?;
            for (all, slot) in collected.iter_mut().zip(carried.split_off(states)) {
                all.push(slot);
            }
        }
        for (i, mut parts) in collected.into_iter().enumerate() {
            let t = node.outputs.get(states + i).copied().flatten();
            if made_back[i] != 0 {
                parts.reverse();
            }
            carried.push(match t.filter(|&t| self.uses[t] > 0) {
                Some(_) => self.stacked(node, i, &parts, made_along[i])?,
                None => Slot::Undefined,
            });
        }
        for (t, slot) in node.outputs.iter().zip(carried) {
            self.settle(*t, slot);
        }
        Ok(())
    }

    /// One element of an axis, which goes.
    fn element(
        &mut self,
        node: &FlatNode,
        v: ValueId,
        along: usize,
        at: usize,
    ) -> Result<Slot, ImportError> {
        let mut shape = self.b.g.ty(v).shape.clone();
        let (mut starts, steps) = (vec![0; shape.len()], vec![1; shape.len()]);
        (starts[along], shape[along]) = (at, 1);
        let op = Op::Slice { starts, steps, shape: shape.clone() };
        let part = self.emitted(node, op, vec![v])?;
        shape.remove(along);
        let part = self.emitted(node, Op::Reshape { shape }, part)?;
        part.first().map(|&v| Slot::Value(v)).ok_or_else(|| self.fault(node, "it has no result"))
    }

    /// Values of all turns, along a new axis.
    fn stacked(
        &mut self,
        node: &FlatNode,
        i: usize,
        parts: &[Slot],
        along: i64,
    ) -> Result<Slot, ImportError> {
        let mut rows = Vec::with_capacity(parts.len());
        let mut at = 0;
        for part in parts {
            let Slot::Value(v) = *part else {
                return Err(self.fault(node, format!("value {i} of a turn is no tensor")));
            };
            let mut shape = self.b.g.ty(v).shape.clone();
            at = axis(along, shape.len() + 1).map_err(|fault| self.fault(node, fault))?;
            shape.insert(at, 1);
            rows.extend(self.emitted(node, Op::Reshape { shape }, vec![v])?);
        }
        if rows.is_empty() {
            return Err(self.fault(node, "it has no turn, and a value of each is read"));
        }
        let all = self.emitted(node, Op::Concat { axis: at }, rows)?;
        all.first().map(|&v| Slot::Value(v)).ok_or_else(|| self.fault(node, "it has no result"))
    }

    fn emitted(
        &mut self,
        node: &FlatNode,
        op: Op,
        inputs: Vec<ValueId>,
    ) -> Result<Vec<ValueId>, ImportError> {
        self.b.emit(&node.name, op, inputs).map_err(|fault| self.fault(node, fault))
    }

    fn body<'n>(&self, node: &'n FlatNode<'m>, name: &str) -> Result<&'n Body<'m>, ImportError> {
        let body = node.bodies.iter().find(|b| b.name == name);
        body.ok_or_else(|| self.fault(node, format!("attribute `{name}` is missing")))
    }

    /// Builds the nodes of a body, whose inputs are given; gives what its outputs are.
    fn expand(
        &mut self,
        node: &FlatNode<'m>,
        body: &Body<'m>,
        given: Vec<Slot>,
        turn: usize,
    ) -> Result<Vec<Slot>, ImportError> {
        let inner = body.flatten(self.model, turn, &mut self.names)?;
        self.expanded += inner.nodes.len() + 1;
        if self.expanded > MAX_NODES {
            let what = format!("branches and loops would become more than {MAX_NODES} nodes");
            return Err(self.fault(node, what));
        }
        // What a body makes is read, or else no later pass keeps it.
        self.uses.resize(self.names.len(), 1);
        self.slots.resize(self.names.len(), Slot::Undefined);
        if given.len() != inner.inputs.len() {
            return Err(self.fault(node, "its body takes another number of values"));
        }
        for (&t, slot) in inner.inputs.iter().zip(given) {
            self.slots[t] = slot;
        }
        for (t, tensor) in inner.initializers {
            let (ty, data) = stored(self.reader, self.names.name(t), tensor, None)?;
            let v = match data {
                Data::Bytes(bytes) => self.b.constant(ty, bytes),
                Data::Absent => self.b.g.add_const("", ty, Data::Absent),
            };
            self.slots[t] = Slot::Value(v);
        }
        for node in &inner.nodes {
            self.build(node)?;
        }
        let mut results = Vec::with_capacity(inner.outputs.len());
        for t in inner.outputs {
            results.push(self.operand(node, t)?);
        }
        Ok(results)
    }

    fn settle(&mut self, t: Option<Tensor>, slot: Slot) {
        let Some(t) = t else { return };
        if let Slot::Value(v) = slot
            && self.b.g.values[v].name.is_empty()
        {
            self.b.g.values[v].name = self.names.name(t).to_owned();
        }
        self.slots[t] = slot;
    }
}
