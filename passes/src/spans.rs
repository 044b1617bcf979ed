//! Spans: the earliest and the latest level of every task.
//!
//! ASAP is the longest path from the start, ALAP the last level minus the longest path
//! to the end (OLLA, section 3.2, equations 10–12): outside of its span a task cannot
//! stand in any order whose length is the critical path.

use crate::{Cx, PassError, PlanPass, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{Fact, Plan, Spans as Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Computes the ASAP and ALAP level of every task.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spans {}

impl PlanPass for Spans {
    fn needs(&self) -> &[Fact] {
        &[]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Spans]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<Stats, PassError> {
        let mut spans = Table::default();
        // Tasks stand in definition order, so dependences point from low to high ids.
        let dependences = plan.dependences(g);
        for &(before, after) in &dependences {
            spans.asap[after] = spans.asap[after].max(spans.asap[before] + 1);
        }
        let levels = plan.tasks.keys().map(|t| spans.asap[t]).max().unwrap_or(0);
        for t in plan.tasks.keys() {
            spans.alap[t] = levels;
        }
        for &(before, after) in dependences.iter().rev() {
            spans.alap[before] = spans.alap[before].min(spans.alap[after].saturating_sub(1));
        }
        plan.set_spans(spans);
        Ok(Stats::from([("critical_path", u64::from(levels) + 1)]))
    }
}
