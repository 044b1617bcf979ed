//! Order by integer program: OLLA's program 14 (section 4.4), solved by [`crate::mip`].
//!
//! Create and preserve binaries per tensor and step, one operator per step (see
//! [`crate::order::lifetime`]), warm-started with the best list scheduler's order. A graph splits
//! exactly at operators that are comparable with all others; a part of up to `window`
//! operators is solved whole, a larger one on windows around its peak. Sound because every
//! proposal is measured again and must be an order of the plan's dependences, control edges
//! included; where the limits come first, the best order so far stays.

mod windows;

use crate::order::{OrderCandidate, choose, portfolio, problem};
use crate::{Cx, PassError, PlanOutcome, PlanPass, Progress, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{Fact, Plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windows::{IlpLimits, solve_by_ilp};

/// Orders the tasks by OLLA's integer program over tensor lifetimes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OrderIlp {
    /// Effort for all programs together, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
    /// Branch-and-bound nodes for each program.
    pub node_limit: Option<u64>,
    /// Relative gap at which an order is good enough.
    #[schemars(range(min = 0.0))]
    pub gap: f64,
    /// Operators of a program, from 2 to 500; larger parts of a graph are solved on windows
    /// of this size.
    #[schemars(range(min = 2, max = 500))]
    pub window: usize,
}

impl Default for OrderIlp {
    fn default() -> Self {
        OrderIlp { effort: 60.0, node_limit: None, gap: 0.0, window: 100 }
    }
}

impl PlanPass for OrderIlp {
    fn needs(&self) -> &[Fact] {
        &[]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<PlanOutcome, PassError> {
        let p = problem(g, plan)?;
        let mut candidates = portfolio(&p);
        let limits = IlpLimits {
            budget: cx.search.budget(self.effort),
            seed: cx.search.seed,
            nodes: self.node_limit,
            gap: self.gap.max(0.0),
            window: self.window.clamp(2, 500),
        };
        let report = |progress: &Progress| cx.search.report(progress);
        let solved = solve_by_ilp(&p, &candidates, &limits, &report)?;
        let mut stats = Stats::from([
            ("programs", solved.programs),
            ("dual_bound_bytes", solved.bound),
            ("proved_optimal", u64::from(solved.proved)),
        ]);
        candidates.push(OrderCandidate {
            method: "order_ilp",
            order: solved.order,
            peak: solved.peak,
        });
        let (peak, method) = choose(g, plan, &p, candidates)?;
        report(&Progress { method, incumbent: peak, bound: solved.bound.min(peak) });
        stats.insert("live_peak_bytes", peak);
        Ok(stats.into())
    }
}
