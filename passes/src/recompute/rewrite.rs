//! A sequence of runs becomes a plan: one more task for each repeat.

use super::step::RecomputeStep;
use arenic_ir::plan::{BufferId, Plan, PlanError};
use cranelift_entity::{EntityRef, SecondaryMap};

/// The plan in which a sequence runs.
///
/// # Errors
/// The sequence breaks a dependence: a defect.
pub fn rewrite(step: &RecomputeStep, runs: &[u32]) -> Result<Plan, PlanError> {
    let mut plan = step.t.plan.clone();
    // The buffer that holds each tensor now.
    let mut here: SecondaryMap<BufferId, Option<BufferId>> = SecondaryMap::new();
    let mut order = Vec::with_capacity(runs.len());
    let mut ran = vec![false; step.operators()];
    for &op in runs {
        let original = step.t.order[op as usize];
        let again = std::mem::replace(&mut ran[op as usize], true);
        let t = if again { plan.add_repeat(original) } else { original };
        let was = &step.t.plan.tasks[original];
        for (i, &b) in was.reads.iter().enumerate() {
            plan.tasks[t].reads[i] = here[b].unwrap_or(b);
        }
        for (i, &b) in was.writes.iter().enumerate().filter(|_| again) {
            let made = |b: &BufferId| step.writes.row(op as usize).contains(&(b.index() as u32));
            if let Some(b) = b.filter(made).filter(|b| !step.pinned[b.index()]) {
                here[b] = plan.tasks[t].writes[i];
            }
        }
        order.push(t);
    }
    plan.set_order(step.t.g, order)?;
    Ok(plan)
}
