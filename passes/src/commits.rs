//! Orders in which states are committed early.

use crate::order::{Method, Order};
use crate::{Cx, PassError, PlanPass};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Plan, TaskId, TaskKind};
use cranelift_entity::SecondaryMap;

/// The plan in the order of one method, each state committed as soon as it can be.
pub(crate) fn ordered_by(
    method: Method,
    g: &Graph,
    mut plan: Plan,
    cx: &Cx,
) -> Result<Plan, PassError> {
    Order { method, ..Order::default() }.run(g, &mut plan, cx)?;
    let order = with_early_commits(g, &plan)?;
    plan.set_order(g, order)?;
    Ok(plan)
}

/// The plan's order with every commit as soon as it can be: a new value whose home is in host
/// memory has bytes on the device until then.
pub(crate) fn with_early_commits(g: &Graph, plan: &Plan) -> Result<Vec<TaskId>, PassError> {
    let is_commit = |t: TaskId| matches!(plan.tasks[t].kind, TaskKind::Commit { .. });
    let mut position: SecondaryMap<TaskId, usize> = SecondaryMap::new();
    for (i, &t) in plan.order()?.iter().enumerate() {
        position[t] = i;
    }
    let mut last: SecondaryMap<TaskId, Option<TaskId>> = SecondaryMap::new();
    for (before, after) in plan.dependences(g) {
        if is_commit(after) && last[after].is_none_or(|l| position[l] < position[before]) {
            last[after] = Some(before);
        }
    }
    let mut following: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
    let mut order = Vec::with_capacity(plan.tasks.len());
    // A commit that waits for another one stays where it is.
    let moves = |t: TaskId| is_commit(t) && last[t].is_none_or(|l| !is_commit(l));
    for &t in plan.order()?.iter().filter(|&&t| moves(t)) {
        match last[t] {
            Some(l) => following[l].push(t),
            None => order.push(t),
        }
    }
    for &t in plan.order()?.iter().filter(|&&t| !moves(t)) {
        order.push(t);
        order.append(&mut following[t]);
    }
    Ok(order)
}
