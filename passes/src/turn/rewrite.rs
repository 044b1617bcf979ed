//! The graph in which what was chosen has its axes in another order.

use super::choose::{Turned, is_turned_for_each, padded};
use super::form::{Form, Reading, form};
use super::{Axes, Border};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Op, TypeError};
use std::collections::HashMap;

/// Turns what was chosen, with transposes where it meets the rest. Some of these nobody reads.
///
/// # Errors
/// An operator does not take what it is given: a defect.
pub(crate) fn rewrite(g: &mut Graph, axes: &Axes, turned: &Turned) -> Result<(), TypeError> {
    let nodes: Vec<(NodeId, Option<Border>)> =
        g.nodes.keys().map(|n| (n, axes.border(g, n))).collect();
    let mut work = Rewrite { g, axes, order: Vec::new(), other: HashMap::new() };
    for (n, border) in nodes {
        match (form(work.g, n, axes).filter(|_| turned[n]), border) {
            (Some(form), _) => work.turn(n, form)?,
            (None, Some(border)) => work.meet(n, border),
            (None, None) => work.order.push(n),
        }
    }
    *work.g = work.g.arranged(&work.order);
    Ok(())
}

struct Rewrite<'a> {
    g: &'a mut Graph,
    axes: &'a Axes,
    /// All nodes so far.
    order: Vec<NodeId>,
    /// The form of a value in the other order.
    other: HashMap<ValueId, ValueId>,
}

impl Rewrite<'_> {
    /// A transpose of the graph: it gives what there is already, or it is what the region would need.
    fn meet(&mut self, n: NodeId, border: Border) {
        self.order.push(n);
        let (x, y) = (self.g.nodes[n].inputs[0], self.g.result(n));
        let Some(y) = y else { return };
        match (border, self.other.get(&x)) {
            (Border::Makes, _) => {
                self.other.insert(y, x);
            }
            (Border::Reads, Some(&turned)) => {
                let shape = self.g.ty(y).shape.clone();
                self.g.nodes[n].op = Op::Reshape { shape };
                self.g.nodes[n].inputs[0] = turned;
            }
            (Border::Reads, None) if !is_turned_for_each(self.g, x) => {
                self.other.insert(x, y);
            }
            (Border::Reads, None) => {}
        }
    }

    /// A node on tensors in the other order; its results keep their values, turned back.
    fn turn(&mut self, n: NodeId, form: Form) -> Result<(), TypeError> {
        let Form { op, operands, rank, results, rows } = form;
        for (i, reading) in operands.into_iter().enumerate() {
            let v = self.g.nodes[n].inputs[i];
            let read = match reading {
                Reading::Turned => self.other_of(v)?,
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
        for (output, ty) in types.into_iter().enumerate().take(results) {
            let Some(v) =
                self.g.nodes[n].outputs[output].filter(|&v| self.axes.turns(self.g.ty(v)))
            else {
                continue;
            };
            let name = self.g.values[v].name.clone();
            let made = self.g.add_value(name, ty, Def::Node { node: n, output });
            self.g.nodes[n].outputs[output] = Some(made);
            let shape = self.axes.turned(&self.g.ty(v).shape);
            let turned = match rows {
                true => self.node(Op::Reshape { shape }, made)?,
                false => made,
            };
            self.other.insert(v, turned);
            let perm = self.axes.back(rank);
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

    /// A value in the other order.
    fn other_of(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        if let Some(&turned) = self.other.get(&v) {
            return Ok(turned);
        }
        let turned = self.transposed(v)?;
        if !is_turned_for_each(self.g, v) {
            self.other.insert(v, turned);
        }
        Ok(turned)
    }

    fn transposed(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        self.node(Op::Transpose { perm: self.axes.perm(self.g.ty(v).rank()) }, v)
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
