//! Orders to begin with.
//!
//! A search keeps to most of the order that it begins with, and the order with the lowest peak is not always the one
//! that repeats keep lowest.

use crate::PassError;
use crate::commits::{ordered_by, with_early_commits};
use crate::order::{Method, Sharing, bare_problem, settled};
use crate::strategy::Problem;
use crate::tail::Finished;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Plan, TaskId};
use cranelift_entity::EntityRef;

/// The step in other orders than the plan's, none of them twice; they are the same for every limit.
///
/// # Errors
/// What the passes refuse that finish plans.
pub fn in_other_orders(p: &Problem) -> Result<Vec<Finished>, PassError> {
    let (g, own) = (p.t.g, p.t.plan);
    let by = |method| ordered_by(method, g, own.clone(), p.cx);
    let freed = by(Method::FreedMinusAllocated)?;
    let plans = [
        settle(g, own)?,
        by(Method::Definition)?,
        by(Method::EagerFree)?,
        settle(g, &freed)?,
        freed,
    ];
    let mut seen = vec![own.order()?.to_vec()];
    let mut found = Vec::new();
    for plan in plans {
        let order = plan.order()?.to_vec();
        if !seen.contains(&order) {
            seen.push(order);
            found.push(p.finished(plan)?);
        }
    }
    Ok(found)
}

/// A plan with its order settled.
fn settle(g: &Graph, plan: &Plan) -> Result<Plan, PassError> {
    let problem = bare_problem(g, plan, Sharing::HomesInAnyOrder)?;
    let order: Vec<usize> = plan.order()?.iter().map(|t| t.index()).collect();
    let order = settled(&problem, &order).into_iter().map(TaskId::new).collect();
    let mut plan = plan.clone();
    plan.set_order(g, order)?;
    let order = with_early_commits(g, &plan)?;
    plan.set_order(g, order)?;
    Ok(plan)
}
