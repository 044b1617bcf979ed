//! Strategies under a byte limit: they are handed the passes that follow them, and what these made of
//! their best plan is the outcome.

use super::{Pipeline, Report, RunError, RunOptions, Step, begun, facts};
use crate::limit::{Kept, keep_limit};
use crate::report::PlanReport;
use crate::tail::{Finished, Tail};
use crate::{Cx, Pass, PassError, Stats, Strategy};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan};
use arenic_ir::text::Module;
use std::time::{Duration, Instant};

impl Pipeline {
    /// The passes from one on, as far as they are for this program, as what finishes an ordered plan.
    fn tail_from(&self, first: usize, cx: &Cx) -> Tail {
        let (mut plan, mut program) = (Vec::new(), Vec::new());
        for step in self.steps[first..].iter().filter(|step| step.applies(cx)) {
            match &step.pass {
                Pass::Plan(pass) => plan.push((step.name.clone(), pass.clone())),
                Pass::Program(pass) => program.push((step.name.clone(), pass.clone())),
                Pass::Graph(_) | Pass::Strategy(_) => {}
            }
        }
        Tail::new(plan, program)
    }

    /// What finishes ordered plans in this pipeline: the passes after its strategy or, if it has none,
    /// after the last one that gives the order.
    pub(super) fn tail(&self, cx: &Cx) -> Tail {
        let orders = |step: &Step| {
            let gives = facts(&step.pass).map_or(&[][..], |(_, gives)| gives);
            step.applies(cx) && gives.contains(&Fact::Order)
        };
        self.tail_from(self.steps.iter().rposition(orders).map_or(0, |last| last + 1), cx)
    }

    /// Has a strategy, which is step `i`, keep a limit on device memory, and replaces plan and
    /// program by what it found: what planning learned, and whether all steps are done.
    pub(super) fn under_limit(
        &self,
        i: usize,
        strategy: &dyn Strategy,
        limit: u64,
        module: &mut Module,
        cx: &Cx,
        options: &mut RunOptions,
    ) -> Result<(PlanReport, bool), RunError> {
        let start = Instant::now();
        let name = &self.steps[i].name;
        let failed = |error| RunError::Pass { pass: name.clone(), error };
        let ordered = begun(&module.graph, &mut module.plan, cx).map_err(failed)?.clone();
        let tail = self.tail_from(i + 1, cx);
        let kept = keep_limit(&module.graph, ordered, limit, &tail, cx, (name, strategy));
        let Kept { finished, times, minimum, mut stats, .. } = kept.map_err(failed)?;
        let report = PlanReport { times: Some(times), minimum, ..PlanReport::default() };
        let mut elapsed = start.elapsed();
        let mut counted = finished.stats.iter();
        for (j, step) in self.steps.iter().enumerate().skip(i) {
            if j > i {
                let is_run = step.applies(cx);
                let counted = counted.find(|(name, _)| is_run && *name == step.name);
                stats = counted.map_or_else(Stats::new, |(_, stats)| stats.clone());
                elapsed = Duration::ZERO;
            }
            let is_last = j + 1 == self.steps.len();
            let stops = options.stop_after == Some(&step.name);
            if is_last || stops || options.after_pass.is_some() {
                self.reached(&finished, i + 1..j + 1, module, cx).map_err(failed)?;
            }
            if let Some(after_pass) = &mut options.after_pass {
                after_pass(&Report { pass: &step.name, stats: &stats, elapsed, module });
            }
            if stops {
                return Ok((report, is_last));
            }
        }
        Ok((report, true))
    }

    /// Puts into the module what some of the steps after a strategy give of what it finished.
    fn reached(
        &self,
        finished: &Finished,
        steps: std::ops::Range<usize>,
        module: &mut Module,
        cx: &Cx,
    ) -> Result<(), PassError> {
        let steps = || self.steps[steps.clone()].iter().filter(|step| step.applies(cx));
        let gives = |fact: Fact| {
            let given = |step: &Step| facts(&step.pass).is_some_and(|(_, g)| g.contains(&fact));
            steps().any(given)
        };
        let is_program = steps().any(|step| matches!(step.pass, Pass::Program(_)));
        let [slots, placement] = [Fact::Slots, Fact::Placement].map(gives);
        module.plan = Some(up_to(&module.graph, &finished.plan, slots, placement)?);
        module.program = is_program.then(|| finished.program.clone());
        Ok(())
    }
}

/// A plan without facts that were not asked for.
fn up_to(g: &Graph, plan: &Plan, slots: bool, placement: bool) -> Result<Plan, PassError> {
    let mut plan = plan.clone();
    if !slots {
        let order = plan.order()?.to_vec();
        plan.set_order(g, order)?;
    } else if !placement {
        let slots = plan.slots()?.clone();
        plan.set_slots(slots);
    }
    Ok(plan)
}
