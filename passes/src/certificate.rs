//! The certificate of a graph's order: where the peak is, and why no order avoids it.
//!
//! Whatever the order, while an operator runs its operands and results are alive beside
//! everything resident, and beside those at least a least cut of tensors that cross it (see
//! `order::cut`). An operand and a result may share bytes where the operator declares the
//! pair, each buffer in one pair, so the largest total of a matching of declared pairs is
//! taken off. A state counts once, as its home; its exit value never adds. Views are free.
//! The bound is for the frozen graph without recomputation, swaps and sections.

use crate::largest::largest_task;
pub use crate::order::{Held, PeakBound};
use crate::order::{Problem, certify, held, node, peak_bound, problem};
use crate::{Cx, PassError};
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::plan::{Plan, TaskId, TaskKind};
use cranelift_entity::{EntityRef, SecondaryMap};

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
    /// Why no order has a lower one.
    pub bound: PeakBound,
}

/// Bytes of device memory below which no plan of the graph stays, whatever it copies to host
/// memory or computes again: the most that one task reads, writes and scratches.
///
/// # Errors
/// The graph cannot be planned.
pub fn floor(g: &Graph, cx: &Cx) -> Result<u64, PassError> {
    Ok(largest_task(g, &Plan::new(g, cx.target)?).1)
}

/// The certificate of the order in which `nodes` first run, with the bound that planning proved for this
/// graph; without one it is computed here.
///
/// # Errors
/// The graph cannot be planned, or `nodes` is no order of it.
pub fn certificate(
    g: &Graph,
    nodes: impl IntoIterator<Item = NodeId>,
    known: Option<PeakBound>,
    cx: &Cx,
) -> Result<OrderCertificate, PassError> {
    let (plan, p, order) = as_planned(g, nodes, cx)?;
    let profile = p.profile(&order);
    let at = (0..profile.len()).rev().max_by_key(|&i| profile[i]);
    Ok(OrderCertificate {
        resident: p.resident(),
        peak: p.peak(&order),
        at: at.and_then(|i| node(&plan, order[i])),
        alive: at.map_or(Vec::new(), |i| held(&plan, &p, &p.alive_at(&order, i))),
        bound: known.unwrap_or_else(|| peak_bound(&plan, &p, &certify(&p, &order))),
    })
}

/// Why no order of a graph has a lower peak. `nodes` in the order in which they first run are a good
/// order, by which the operators are found whose cut is worth computing.
///
/// # Errors
/// As [`certificate`].
pub fn bound(
    g: &Graph,
    nodes: impl IntoIterator<Item = NodeId>,
    cx: &Cx,
) -> Result<PeakBound, PassError> {
    let (plan, p, order) = as_planned(g, nodes, cx)?;
    Ok(peak_bound(&plan, &p, &certify(&p, &order)))
}

/// The unplanned plan of a graph, its problem, and the order in which `nodes` first run.
fn as_planned(
    g: &Graph,
    nodes: impl IntoIterator<Item = NodeId>,
    cx: &Cx,
) -> Result<(Plan, Problem, Vec<usize>), PassError> {
    let plan = Plan::new(g, cx.target)?;
    let order: Vec<usize> = tasks_in_order(g, &plan, nodes).iter().map(|t| t.index()).collect();
    let p = problem(g, &plan)?;
    if !p.is_order(&order) {
        return Err(PassError::from(arenic_ir::plan::PlanError::Order(
            "the program's commands do not follow its graph".into(),
        )));
    }
    Ok((plan, p, order))
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
