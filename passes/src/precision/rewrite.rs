//! The graph in which what was chosen is narrow.

use super::choose::{Bf16Choice, SUMMAND};
use crate::Stats;
use arenic_ir::graph::{Data, Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, TypeError};
use arenic_ir::types::{DType, TensorType, bf16};
use std::collections::HashMap;

/// Makes narrow what was chosen, and casts where it meets the rest.
///
/// # Errors
/// An operator does not take what it is given: a defect.
pub(super) fn rewrite(g: &mut Graph, choice: &Bf16Choice) -> Result<Stats, TypeError> {
    let mut bytes = 0;
    for v in g.values.keys() {
        if !choice.stored[g.resolve(v).root] {
            continue;
        }
        let value = &mut g.values[v];
        value.ty.dtype = DType::Bf16;
        match &mut value.def {
            Def::View { offset, .. } => *offset /= 2,
            _ => bytes += value.ty.bytes(),
        }
    }
    let nodes: Vec<NodeId> = g.nodes.keys().collect();
    let values = choice.stored.values().filter(|stored| **stored).count() as u64;
    let mut work = Rewrite { g, choice, order: Vec::new(), down: HashMap::new(), casts: 0 };
    let mut operators = 0;
    for n in nodes {
        if choice.narrow[n] {
            operators += 1;
            work.narrow(n)?;
        } else {
            work.wide(n)?;
        }
    }
    let Rewrite { order, casts, .. } = work;
    *g = g.arranged(&order);
    Ok(Stats::from([
        ("bf16_operators", operators),
        ("bf16_values", values),
        ("bf16_bytes", bytes),
        ("casts", casts),
    ]))
}

struct Rewrite<'a> {
    g: &'a mut Graph,
    choice: &'a Bf16Choice,
    /// All nodes so far.
    order: Vec<NodeId>,
    /// The narrow form of a value of `f32`.
    down: HashMap<ValueId, ValueId>,
    casts: u64,
}

impl Rewrite<'_> {
    fn is_stored(&self, v: ValueId) -> bool {
        self.choice.stored[self.g.resolve(v).root]
    }

    /// A node that takes and gives `bf16`.
    fn narrow(&mut self, n: NodeId) -> Result<(), TypeError> {
        for i in self.choice.operands(self.g, n) {
            let v = self.g.nodes[n].inputs[i];
            let narrow = self.narrowed(v)?;
            self.g.nodes[n].inputs[i] = narrow;
        }
        self.widen_operands(n)?;
        if self.choice.apart[n] {
            return self.apart(n);
        }
        self.order.push(n);
        let types = self.g.output_types(n)?;
        for (o, ty) in types.into_iter().enumerate() {
            let Some(v) = self.g.nodes[n].outputs[o].filter(|&v| *self.g.ty(v) != ty) else {
                continue;
            };
            // Somebody outside of the step reads it as `f32`.
            let own = self.g.add_value("", ty, Def::Node { node: n, output: o });
            self.g.nodes[n].outputs[o] = Some(own);
            self.cast_into(own, v, DType::F32);
            self.down.insert(v, own);
        }
        Ok(())
    }

    /// A product in `bf16`, and in `f32` its sum with what it was added to.
    fn apart(&mut self, n: NodeId) -> Result<(), TypeError> {
        let node = &mut self.g.nodes[n];
        let (name, mut c) = (node.name.clone(), node.inputs.remove(SUMMAND));
        let Some(v) = node.outputs[0] else { return Ok(()) };
        let mut factor = 1.0;
        if let Op::Gemm { beta, .. } = &mut node.op {
            factor = std::mem::take(beta);
        }
        self.order.push(n);
        let ty = self.g.output_types(n)?.swap_remove(0);
        let product = self.g.add_value("", ty, Def::Node { node: n, output: 0 });
        self.g.nodes[n].outputs[0] = Some(product);
        let product = self.cast(product, DType::F32)?;
        if factor != 1.0 {
            let bytes = Data::Bytes(factor.to_le_bytes().to_vec().into());
            let factor = self.g.add_const("", TensorType::scalar(DType::F32), bytes);
            let scale = self.g.add_node("", Op::Binary { f: Binary::Mul }, vec![c, factor])?;
            self.order.push(scale);
            c = self.g.result(scale).ok_or_else(|| TypeError("a product has a result".into()))?;
        }
        let (op, inputs) = (Op::Binary { f: Binary::Add }, vec![c, product]);
        self.give(Node { name, op, inputs, outputs: vec![Some(v)] });
        Ok(())
    }

    /// A node that takes and gives `f32`.
    fn wide(&mut self, n: NodeId) -> Result<(), TypeError> {
        self.widen_operands(n)?;
        self.order.push(n);
        for o in 0..self.g.nodes[n].outputs.len() {
            let Some(v) = self.g.nodes[n].outputs[o].filter(|&v| self.choice.stored[v]) else {
                continue;
            };
            let ty = self.g.ty(v).accumulated();
            let own = self.g.add_value("", ty, Def::Node { node: n, output: o });
            self.g.nodes[n].outputs[o] = Some(own);
            self.cast_into(own, v, DType::Bf16);
        }
        Ok(())
    }

    /// Casts what a node reads as `f32` up, for this reader alone. A cast reads `bf16` itself.
    fn widen_operands(&mut self, n: NodeId) -> Result<(), TypeError> {
        let narrow = self.choice.operands(self.g, n);
        if matches!(self.g.nodes[n].op, Op::Cast { .. }) {
            return Ok(());
        }
        let mut up: HashMap<ValueId, ValueId> = HashMap::new();
        for i in 0..self.g.nodes[n].inputs.len() {
            let v = self.g.nodes[n].inputs[i];
            if narrow.contains(&i) || !self.is_stored(v) {
                continue;
            }
            let wide = match up.get(&v) {
                Some(&wide) => wide,
                None => self.cast(v, DType::F32)?,
            };
            up.insert(v, wide);
            self.g.nodes[n].inputs[i] = wide;
        }
        Ok(())
    }

    /// The narrow form of a value, one for all that read it.
    fn narrowed(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        if self.g.ty(v).dtype != DType::F32 {
            return Ok(v);
        }
        if let Some(&narrow) = self.down.get(&v) {
            return Ok(narrow);
        }
        // What has a name may be given other contents before a run.
        let constant = self.g.const_bytes(v).filter(|_| self.g.values[v].name.is_empty());
        let narrow = match constant {
            Some(bytes) => {
                let rounded = |&x: &[u8; 4]| bf16::from_f32(f32::from_le_bytes(x)).to_le_bytes();
                let bytes: Vec<u8> = bytes.as_chunks().0.iter().flat_map(rounded).collect();
                let ty = TensorType::new(DType::Bf16, self.g.ty(v).shape.clone());
                self.g.add_const("", ty, Data::Bytes(bytes.into()))
            }
            None => self.cast(v, DType::Bf16)?,
        };
        self.down.insert(v, narrow);
        Ok(narrow)
    }

    fn cast(&mut self, v: ValueId, to: DType) -> Result<ValueId, TypeError> {
        let n = self.g.add_node("", Op::Cast { to }, vec![v])?;
        self.order.push(n);
        self.casts += 1;
        self.g.result(n).ok_or_else(|| TypeError("a cast has a result".into()))
    }

    /// A cast whose result is a value that there is.
    fn cast_into(&mut self, from: ValueId, v: ValueId, to: DType) {
        let (op, inputs, outputs) = (Op::Cast { to }, vec![from], vec![Some(v)]);
        self.give(Node { name: String::new(), op, inputs, outputs });
        self.casts += 1;
    }

    /// A node whose result is a value that there is.
    fn give(&mut self, node: Node) {
        let results: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
        let node = self.g.nodes.push(node);
        for (output, v) in results.into_iter().enumerate() {
            self.g.values[v].def = Def::Node { node, output };
        }
        self.order.push(node);
    }
}
