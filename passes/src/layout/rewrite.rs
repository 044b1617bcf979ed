//! The graph in which what was chosen has its channels last.

use super::choose::{is_turned_for_each, padded};
use super::form::{Form, Reading, form};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::channels_last::{is_turned, last, to_first, to_last};
use arenic_ir::op::{Op, TypeError};
use cranelift_entity::SecondaryMap;
use std::collections::HashMap;

/// Turns what was chosen, with transposes where it meets the rest. Some of these nobody reads.
///
/// # Errors
/// An operator does not take what it is given: a defect.
pub(super) fn rewrite(g: &mut Graph, turned: &SecondaryMap<NodeId, bool>) -> Result<(), TypeError> {
    let nodes: Vec<NodeId> = g.nodes.keys().collect();
    let mut work = Rewrite { g, order: Vec::new(), last: HashMap::new() };
    for n in nodes {
        match form(work.g, &work.g.nodes[n]).filter(|_| turned[n]) {
            Some(form) => work.turn(n, form)?,
            None => work.order.push(n),
        }
    }
    *work.g = work.g.arranged(&work.order);
    Ok(())
}

struct Rewrite<'a> {
    g: &'a mut Graph,
    /// All nodes so far.
    order: Vec<NodeId>,
    /// The form of a value with its channels last.
    last: HashMap<ValueId, ValueId>,
}

impl Rewrite<'_> {
    /// A node on tensors with their channels last; its results keep their values, turned back.
    fn turn(&mut self, n: NodeId, form: Form) -> Result<(), TypeError> {
        let Form { op, operands, rank, rows } = form;
        for (i, reading) in operands.into_iter().enumerate() {
            let v = self.g.nodes[n].inputs[i];
            let read = match reading {
                Reading::Turned => self.last_of(v)?,
                Reading::Broadcast => {
                    let shape = padded(self.g.ty(v), rank).shape;
                    let whole = self.node(Op::Reshape { shape }, v)?;
                    self.transposed(whole)?
                }
                Reading::Plain => v,
            };
            self.g.nodes[n].inputs[i] = match rows && reading == Reading::Turned {
                true => self.as_rows(read)?,
                false => read,
            };
        }
        self.g.nodes[n].op = op;
        self.order.push(n);
        let types = self.g.output_types(n)?;
        for (output, ty) in types.into_iter().enumerate() {
            let Some(v) = self.g.nodes[n].outputs[output].filter(|&v| is_turned(self.g.ty(v)))
            else {
                continue;
            };
            let name = self.g.values[v].name.clone();
            let made = self.g.add_value(name, ty, Def::Node { node: n, output });
            self.g.nodes[n].outputs[output] = Some(made);
            let shape = last(self.g.ty(v)).shape;
            let turned = match rows {
                true => self.node(Op::Reshape { shape }, made)?,
                false => made,
            };
            self.last.insert(v, turned);
            let perm = to_first(&(0..rank).collect::<Vec<_>>());
            let back = Node {
                name: String::new(),
                op: Op::Transpose { perm },
                inputs: vec![turned],
                outputs: vec![Some(v)],
            };
            let node = self.g.nodes.push(back);
            self.g.values[v].def = Def::Node { node, output: 0 };
            self.order.push(node);
        }
        Ok(())
    }

    /// A value with its channels last.
    fn last_of(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        if let Some(&turned) = self.last.get(&v) {
            return Ok(turned);
        }
        let turned = self.transposed(v)?;
        if !is_turned_for_each(self.g, v) {
            self.last.insert(v, turned);
        }
        Ok(turned)
    }

    fn transposed(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        let axes: Vec<usize> = (0..self.g.ty(v).rank()).collect();
        self.node(Op::Transpose { perm: to_last(&axes) }, v)
    }

    /// A tensor whose channels are last as a matrix with a row of them for each place.
    fn as_rows(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        let shape = &self.g.ty(v).shape;
        let (places, channels) = shape.split_at(shape.len() - 1);
        let shape = vec![places.iter().product(), channels[0]];
        self.node(Op::Reshape { shape }, v)
    }

    fn node(&mut self, op: Op, of: ValueId) -> Result<ValueId, TypeError> {
        let n = self.g.add_node("", op, vec![of])?;
        self.order.push(n);
        self.g.result(n).ok_or_else(|| TypeError("a node without results".into()))
    }
}
