//! Several micro-batches in one step: the forward part once for each.
//!
//! Every fed tensor has as many times the rows; a copy of the forward part reads its part of
//! them. States that the forward part gives a new value (running statistics) pass from copy
//! to copy as from step to step, and each random node has a generator of its own in every
//! copy. So a step is what as many steps without an update would be.

use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::{Op, TypeError};
use cranelift_entity::SecondaryMap;

/// What one micro-batch is computed by.
pub(super) struct Copy {
    /// Its nodes, in definition order.
    pub(super) nodes: Vec<NodeId>,
    /// What stands for the values of the original.
    values: SecondaryMap<ValueId, Option<ValueId>>,
}

impl Copy {
    /// What stands for a value of the original.
    pub(super) fn of(&self, v: ValueId) -> ValueId {
        self.values[v].unwrap_or(v)
    }
}

/// The graph's own nodes as the only copy.
pub(super) fn whole(g: &Graph) -> Copy {
    Copy { nodes: g.nodes.keys().collect(), values: SecondaryMap::new() }
}

/// Replaces the nodes of a graph by `count` copies of them.
///
/// # Errors
/// A fed tensor would be too large.
pub(super) fn split(g: &mut Graph, count: usize) -> Result<Vec<Copy>, TypeError> {
    let old = std::mem::take(&mut g.nodes);
    let inputs: Vec<ValueId> = g.inputs().collect();
    let batches: Vec<(ValueId, Vec<usize>)> = inputs
        .into_iter()
        .map(|v| (v, g.ty(v).shape.clone()))
        .filter(|(_, shape)| !shape.is_empty())
        .collect();
    for (v, shape) in &batches {
        let rows = shape[0].checked_mul(count);
        let ty = &mut g.values[*v].ty;
        ty.shape[0] = rows.ok_or_else(|| TypeError("a batch is too large".into()))?;
        if ty.checked_bytes().is_none() {
            return Err(TypeError(format!("the batch {ty} is too large")));
        }
    }
    let mut running: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::new();
    let mut copies = Vec::new();
    for k in 0..count {
        let mut copy = Copy { nodes: Vec::new(), values: running.clone() };
        for (v, shape) in &batches {
            let mut starts = vec![0; shape.len()];
            starts[0] = k * shape[0];
            let (steps, shape) = (vec![1; shape.len()], shape.clone());
            let name = format!("{}.{k}", g.values[*v].name);
            let n = g.add_node(name, Op::Slice { starts, steps, shape }, vec![*v])?;
            copy.values[*v] = g.result(n);
            copy.nodes.push(n);
        }
        for node in old.values() {
            let mut node = node.clone();
            node.inputs.iter_mut().for_each(|v| *v = copy.of(*v));
            if let Some(rng) = node.op.rng_mut()
                && k > 0
            {
                // An odd factor keeps streams apart that were apart.
                rng.stream = rng.stream.wrapping_add(k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            let n = g.nodes.next_key();
            for (output, slot) in node.outputs.iter_mut().enumerate() {
                let Some(v) = *slot else { continue };
                let (name, ty) = (g.values[v].name.clone(), g.ty(v).clone());
                let def = Def::Node { node: n, output };
                // The first copy keeps the original's values.
                let own = if k == 0 {
                    g.values[v].def = def;
                    v
                } else {
                    g.add_value(format!("{name}.{k}"), ty, def)
                };
                copy.values[v] = Some(own);
                *slot = Some(own);
            }
            copy.nodes.push(g.nodes.push(node));
        }
        for state in g.states.values().filter(|s| s.exit != s.enter) {
            running[state.enter] = Some(copy.of(state.exit));
        }
        copies.push(copy);
    }
    for state in g.states.keys().collect::<Vec<_>>() {
        let enter = g.states[state].enter;
        if let Some(last) = running[enter] {
            g.states[state].exit = last;
        }
    }
    Ok(copies)
}
