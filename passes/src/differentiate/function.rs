//! Gradients of one value of a graph with respect to others, as ONNX's `Gradient` asks for them.
//!
//! A value is taken as a function of some others, however those were computed: gradients end
//! there. Where the gradient is asked for at another place than where the graph computes the
//! function, what computes it is there a second time. Sound as `reverse` is.

use super::DifferentiateError;
use super::reverse::{Paths, reverse};
use super::tape::Tape;
use crate::Evaluate;
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::TypeError;
use cranelift_entity::SecondaryMap;

/// A value as a function of others.
#[derive(Clone, Debug)]
pub struct Function {
    /// The value.
    pub y: ValueId,
    /// What gradients are asked of.
    pub xs: Vec<ValueId>,
    /// What it depends on besides; no gradients pass here.
    pub zs: Vec<ValueId>,
}

impl Function {
    /// Adds the gradients of the function's value, or of the sum of its elements, with respect to
    /// each of `xs` and in their types. `at` is where: what stands for each of `xs` and then `zs`.
    ///
    /// # Errors
    /// An operator between has no rule, or the value is of no floats.
    pub fn gradients(
        &self,
        g: &mut Graph,
        at: &[ValueId],
        evaluate: Option<&dyn Evaluate>,
    ) -> Result<Vec<ValueId>, DifferentiateError> {
        let here = self.xs.iter().chain(&self.zs).copied();
        if !at.iter().copied().eq(here) {
            return self.moved(g, at)?.gradients(g, at, evaluate);
        }
        let nodes: Vec<NodeId> = g.nodes.keys().collect();
        let paths = Paths::new(g, &nodes, &self.xs, self.y, |v| self.zs.contains(&v))?;
        let mut t = Tape::new(g, evaluate);
        let (ones, one) = (vec![1; t.ty(self.y).rank()], t.number(self.y, 1.0));
        let start = t.reshape(one, &ones)?;
        t.give(self.y, start);
        reverse(&mut t, &nodes, &paths)?;
        let gradient = |&x: &ValueId| {
            t.name = format!("{}.grad", t.g.values[x].name);
            let ty = t.ty(x);
            match t.collect(x)? {
                Some(d) => t.expand(d, &ty.shape),
                None => t.zeros(&ty),
            }
        };
        Ok(self.xs.iter().map(gradient).collect::<Result<_, TypeError>>()?)
    }

    /// The function computed again, of other values.
    fn moved(&self, g: &mut Graph, at: &[ValueId]) -> Result<Function, TypeError> {
        let mut now: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::new();
        for (&v, &instead) in self.xs.iter().chain(&self.zs).zip(at) {
            if g.ty(v) != g.ty(instead) {
                let (from, to) = (g.ty(v), g.ty(instead));
                return Err(TypeError(format!("a {to} cannot stand for a {from}")));
            }
            now[v] = Some(instead);
        }
        let mut needed: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        needed[self.y] = true;
        for node in g.nodes.values().rev() {
            if node.outputs.iter().flatten().any(|&v| needed[v] && now[v].is_none()) {
                node.inputs.iter().for_each(|&v| needed[v] = true);
            }
        }
        for n in g.nodes.keys().collect::<Vec<_>>() {
            let node = &g.nodes[n];
            let outputs: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
            let depends = node.inputs.iter().any(|&v| now[v].is_some());
            if !depends || !outputs.iter().any(|&v| needed[v] && now[v].is_none()) {
                continue;
            }
            let mut node = node.clone();
            node.inputs.iter_mut().for_each(|v| *v = now[*v].unwrap_or(*v));
            let key = g.nodes.next_key();
            for (output, slot) in node.outputs.iter_mut().enumerate() {
                let Some(v) = *slot else { continue };
                let own = g.add_value("", g.ty(v).clone(), Def::Node { node: key, output });
                now[v] = now[v].or(Some(own));
                *slot = Some(own);
            }
            g.nodes.push(node);
        }
        let (xs, zs) = at.split_at(self.xs.len());
        Ok(Function { y: now[self.y].unwrap_or(self.y), xs: xs.to_vec(), zs: zs.to_vec() })
    }
}
