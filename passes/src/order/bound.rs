//! Why no order of a graph has a lower peak, in terms of the graph.

use super::cut::Certificate;
use super::problem::Problem;
use arenic_ir::graph::{NodeId, ValueId};
use arenic_ir::plan::{BufferId, Plan, TaskId, TaskKind};
use cranelift_entity::EntityRef;

/// Bytes that hold a value, or scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The root value; `None` for scratch.
    pub value: Option<ValueId>,
    /// Its bytes, rounded up to the alignment.
    pub bytes: u64,
}

/// Why no order of a graph has a lower peak. It is for the frozen graph without repeats and copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeakBound {
    /// No order has a lower peak, in bytes.
    pub bytes: u64,
    /// What the operator and its cut alone prove, in bytes; `bytes` is more where a search through
    /// all cases proved more.
    pub by_cut: u64,
    /// The operator that needs this much while it runs; `None` if the bound is what is
    /// alive at the start or at the end.
    pub operator: Option<NodeId>,
    /// That operator's operands, results and scratch, the largest first.
    pub own: Vec<Held>,
    /// What its declared in-place pairs can save of them at most, in bytes.
    pub shared: u64,
    /// The least set of tensors that crosses that operator in any order, the largest first.
    pub cut: Vec<Held>,
}

/// What a plan's problem proves, in terms of its graph.
pub(crate) fn peak_bound(plan: &Plan, p: &Problem, found: &Certificate) -> PeakBound {
    let own = found.operator.map_or(Vec::new(), |v| p.used_by(v));
    let all = p.bytes(&own);
    PeakBound {
        bytes: found.bound,
        by_cut: found.by_cut,
        operator: found.operator.and_then(|v| node(plan, v)),
        shared: found.operator.map_or(0, |v| all - p.own(v)),
        own: held(plan, p, &own),
        cut: held(plan, p, &found.tensors),
    }
}

/// The node that a task runs.
pub(crate) fn node(plan: &Plan, task: usize) -> Option<NodeId> {
    match plan.tasks[TaskId::new(task)].kind {
        TaskKind::Run(n) => Some(n),
        _ => None,
    }
}

/// Tensors of a plan's problem that have bytes, the largest first.
pub(crate) fn held(plan: &Plan, p: &Problem, tensors: &[usize]) -> Vec<Held> {
    let of =
        |&t: &usize| Held { value: plan.buffers[BufferId::new(t)].holds, bytes: p.bytes(&[t]) };
    let mut held: Vec<Held> = tensors.iter().map(of).filter(|h| h.bytes > 0).collect();
    held.sort_by_key(|h| (std::cmp::Reverse(h.bytes), h.value));
    held
}
