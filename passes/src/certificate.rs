//! The certificate of a graph's order: where the peak is, and why no order avoids it.
//!
//! Whatever the order, while an operator runs its operands and results are alive beside
//! everything resident, and beside those at least a least cut of tensors that cross it (see
//! `order::cut`). An operand and a result may share bytes where the operator declares the
//! pair, each buffer in one pair, so the largest total of a matching of declared pairs is
//! taken off. A state counts once, as its home; its exit value never adds. Views are free.
//! The bound is for the frozen graph without recomputation, swaps and sections.

use crate::order::{certify, problem};
use crate::residency::largest_task;
use crate::{Cx, PassError};
use arenic_ir::graph::{Graph, NodeId, ValueId};
use arenic_ir::plan::{BufferId, Plan, TaskId, TaskKind};
use cranelift_entity::{EntityRef, SecondaryMap};

/// Bytes that hold a value, or scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The root value; `None` for scratch.
    pub value: Option<ValueId>,
    /// Its bytes, rounded up to the alignment.
    pub bytes: u64,
}

/// What is known about an order and about all orders of the same graph, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderCertificate {
    /// Constants, states and whatever else is alive throughout.
    pub resident: u64,
    /// The order's peak, as far as its in-place pairs allow.
    pub peak: u64,
    /// The operator that runs at the peak; `None` in an empty graph.
    pub at: Option<NodeId>,
    /// What is alive there beside the resident bytes, the largest first.
    pub alive: Vec<Held>,
    /// No order has a lower peak.
    pub bound: u64,
    /// The operator that needs this much while it runs; `None` where the bound is what is
    /// alive at the start or at the end.
    pub operator: Option<NodeId>,
    /// That operator's operands, results and scratch, the largest first.
    pub own: Vec<Held>,
    /// What its declared in-place pairs can save of them at most.
    pub shared: u64,
    /// The least set of tensors that crosses that operator in any order, the largest first.
    pub cut: Vec<Held>,
}

/// Bytes of device memory below which no plan of the graph stays, whatever it copies to host
/// memory or computes again: the most that one task reads, writes and scratches.
///
/// # Errors
/// The graph cannot be planned.
pub fn floor(g: &Graph, cx: &Cx) -> Result<u64, PassError> {
    Ok(largest_task(g, &Plan::new(g, cx.target)?).1)
}

/// The certificate of the order in which `nodes` first run.
///
/// # Errors
/// The graph cannot be planned, or `nodes` is no order of it.
pub fn certificate(
    g: &Graph,
    nodes: impl IntoIterator<Item = NodeId>,
    cx: &Cx,
) -> Result<OrderCertificate, PassError> {
    let plan = Plan::new(g, cx.target)?;
    let order: Vec<usize> = tasks_in_order(g, &plan, nodes).iter().map(|t| t.index()).collect();
    let p = problem(g, &plan)?;
    if !p.is_order(&order) {
        return Err(PassError::from(arenic_ir::plan::PlanError::Order(
            "the program's commands do not follow its graph".into(),
        )));
    }
    let held = |tensors: &[usize]| {
        let mut held: Vec<Held> = tensors
            .iter()
            .map(|&t| {
                let buffer = &plan.buffers[BufferId::new(t)];
                Held { value: buffer.holds, bytes: p.bytes(&[t]) }
            })
            .filter(|h| h.bytes > 0)
            .collect();
        held.sort_by_key(|h| (std::cmp::Reverse(h.bytes), h.value));
        held
    };
    let node = |v: usize| match plan.tasks[TaskId::new(v)].kind {
        TaskKind::Run(n) => Some(n),
        _ => None,
    };
    let profile = p.profile(&order);
    let at = (0..profile.len()).rev().max_by_key(|&i| profile[i]);
    let found = certify(&p, &order);
    let own = found.operator.map_or(Vec::new(), |v| p.used_by(v));
    let all = p.bytes(&own);
    Ok(OrderCertificate {
        resident: p.resident(),
        peak: p.peak(&order),
        at: at.and_then(|i| node(order[i])),
        alive: at.map_or(Vec::new(), |i| held(&p.alive_at(&order, i))),
        bound: found.bound,
        operator: found.operator.and_then(node),
        shared: found.operator.map_or(0, |v| all - p.own(v)),
        own: held(&own),
        cut: held(&found.tensors),
    })
}

/// The plan's tasks in the order of the nodes that they run; what runs no node comes as soon
/// as it can.
fn tasks_in_order(g: &Graph, plan: &Plan, nodes: impl IntoIterator<Item = NodeId>) -> Vec<TaskId> {
    let mut position: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
    for (i, n) in nodes.into_iter().enumerate() {
        position[n].get_or_insert(i);
    }
    let mut last_dependence: SecondaryMap<TaskId, usize> = SecondaryMap::new();
    let own = |t: TaskId| match plan.tasks[t].kind {
        TaskKind::Run(n) => position[n],
        _ => None,
    };
    for (before, after) in plan.dependences(g) {
        let at = own(before).unwrap_or(0);
        last_dependence[after] = last_dependence[after].max(at);
    }
    let mut tasks: Vec<TaskId> = plan.tasks.keys().collect();
    tasks.sort_by_key(|&t| match own(t) {
        Some(at) => (at, false, t),
        None => (last_dependence[t], true, t),
    });
    tasks
}
