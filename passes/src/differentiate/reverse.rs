//! Reverse mode: from the gradient of the loss to those of the parameters.
//!
//! Nodes are visited in the reverse of definition order, so that a value has all parts of
//! its gradient when the node that defines it is visited; they are added in that order,
//! which follows from the graph alone. Only what lies between a parameter and the loss is
//! visited. Sound because each rule is the adjoint of its operator's derivative
//! (Griewank, Walther, "Evaluating Derivatives", §3.2).

use super::guards::Guards;
use super::rules::{Local, Rule, rule};
use super::tape::Tape;
use super::{DifferentiateError, Missing};
use arenic_ir::graph::{Graph, NodeId, ValueId};
use cranelift_entity::SecondaryMap;

/// Values on which the loss depends through something that is trained.
pub(super) struct Paths {
    needs: SecondaryMap<ValueId, bool>,
    reached: SecondaryMap<ValueId, bool>,
    /// What gradients are asked of, behind which they do not go.
    ends: SecondaryMap<ValueId, bool>,
}

impl Paths {
    /// Finds them among `nodes`, which are in definition order. Gradients end at what is
    /// trained, and do not pass where `stops` says so.
    ///
    /// # Errors
    /// Operators without a rule on such a path, all of them.
    pub(super) fn new(
        g: &Graph,
        nodes: &[NodeId],
        trained: &[ValueId],
        loss: ValueId,
        stops: impl Fn(ValueId) -> bool,
    ) -> Result<Paths, DifferentiateError> {
        let mut ends: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        trained.iter().for_each(|&v| ends[v] = true);
        let mut needs = ends.clone();
        for &n in nodes {
            let node = &g.nodes[n];
            if matches!(rule(&node.op), Some(Rule::Stops)) || !node.inputs.iter().any(|&v| needs[v])
            {
                continue;
            }
            for &v in node.outputs.iter().flatten().filter(|&&v| !ends[v]) {
                needs[v] = g.ty(v).dtype.is_float() && !stops(v);
            }
        }
        let mut reached: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        reached[loss] = true;
        let mut missing = Vec::new();
        for &n in nodes.iter().rev() {
            let node = &g.nodes[n];
            let passes = |v: &ValueId| reached[*v] && needs[*v] && !ends[*v];
            if !node.outputs.iter().flatten().any(passes) {
                continue;
            }
            if rule(&node.op).is_none() {
                missing.push(Missing { node: node.name.clone(), op: node.op.name() });
            }
            node.inputs.iter().for_each(|&v| reached[v] = true);
        }
        missing.reverse();
        if missing.is_empty() {
            Ok(Paths { needs, reached, ends })
        } else {
            Err(DifferentiateError::NoRule(missing))
        }
    }

    /// True where the loss depends on a value through something that is trained.
    pub(super) fn includes(&self, v: ValueId) -> bool {
        self.needs[v] && self.reached[v]
    }

    /// True where gradients pass what defines a value.
    fn goes_on(&self, v: ValueId) -> bool {
        self.includes(v) && !self.ends[v]
    }
}

/// Adds the nodes that pass gradients back along the paths; the loss's must have been given.
pub(super) fn reverse(
    t: &mut Tape,
    nodes: &[NodeId],
    paths: &Paths,
) -> Result<(), DifferentiateError> {
    let mut guards = Guards::default();
    for &n in nodes.iter().rev() {
        let node = &t.g.nodes[n];
        let (op, x, y) = (node.op.clone(), node.inputs.clone(), node.outputs.clone());
        t.name = format!("{}.grad", if node.name.is_empty() { op.name() } else { &node.name });
        let mut dy = Vec::with_capacity(y.len());
        for &v in &y {
            let of_path = v.filter(|&v| paths.goes_on(v));
            dy.push(of_path.map(|v| t.collect(v)).transpose()?.flatten());
        }
        let (apply, whole) = match rule(&op) {
            Some(Rule::Passes(apply)) => (apply, true),
            Some(Rule::Broadcasts(apply)) => (apply, false),
            Some(Rule::Stops) | None => continue,
        };
        if dy.iter().all(Option::is_none) {
            continue;
        }
        if whole {
            let types = t.g.output_types(n)?;
            for (d, ty) in dy.iter_mut().zip(types) {
                *d = d.map(|d| t.expand(d, &ty.shape)).transpose()?;
            }
        }
        let wanted: Vec<bool> = x.iter().map(|&v| paths.includes(v)).collect();
        let mut own = Vec::new();
        if let Some(y) = y.first().copied().flatten() {
            own.extend_from_slice(guards.of(y));
            for i in (0..x.len()).filter(|&i| wanted[i]) {
                guards.read(t.g, &op, &x, i, y);
            }
        }
        apply(t, &Local { node: n, op, x, wanted, dy, guards: own })?;
    }
    Ok(())
}
