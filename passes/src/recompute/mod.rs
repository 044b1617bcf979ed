//! Recomputation alone: which tensors are dropped and computed again, so that the plan fits.
//!
//! Three methods. [`greedy`] drops what costs the fewest seconds for the bytes that it frees
//! along the peak. [`sqrt`] is the baseline of Chen et al., "Training deep nets with sublinear
//! memory cost" (2016): checkpoints at cuts of the forward pass, segments computed again.
//! [`exact`] improves the better of the two by integer programs over windows of tensors, in
//! the manner of Checkmate (Jain et al., 2020) with MOCCASIN's restriction (Bartan et al.,
//! 2023) that a tensor is either kept or comes back to stay: each program is exact about its
//! window but for the order within a chain; the whole is a local search.
//!
//! A repeated task reads each state as it enters the step. After the state's update there is
//! no such value any more, and the task is not repeated; the update never waits for a repeat.
//! What a repeat would write to a state goes to bytes of its own and is dropped. A random
//! operator draws the same numbers again: its generator is keyed by seed, step and node.
//!
//! Sound for the reasons that [`crate::residency`] gives.

mod exact;
mod greedy;
mod program;
mod sites;
mod sqrt;
#[cfg(test)]
mod tests;
mod window;

use crate::residency::{Choice, Found, Layout, Planned, Problem, under_limit};
use crate::{Cx, PassError, PlanPass, Stats};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan};
use exact::Windows;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sites::{Judge, Site, sites};

/// How tensors are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Fewest seconds per byte saved along the peak.
    Greedy,
    /// As few segments of the forward pass as the limit allows, each computed again.
    Sqrt,
    /// The better of the two, improved by integer programs over windows.
    #[default]
    Exact,
}

/// Drops tensors and computes them again until the plan keeps the byte limit.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Recompute {
    /// How tensors are chosen.
    pub method: Method,
    /// Effort for all programs together, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
    /// Decisions of a program, from 2 to 100.
    #[schemars(range(min = 2, max = 100))]
    pub window: usize,
}

impl Default for Recompute {
    fn default() -> Self {
        Recompute { method: Method::Exact, effort: 20.0, window: 24 }
    }
}

impl PlanPass for Recompute {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<Stats, PassError> {
        under_limit(g, plan, cx, "recompute", Layout::Searched, |p| self.search(p))
    }
}

impl Recompute {
    /// The fastest plan that the method finds to fit.
    fn search(&self, p: &Problem) -> Result<Found, PassError> {
        let sites = sites(&p.t);
        let mut stats = Stats::from([("decisions", sites.len() as u64)]);
        if p.whole <= p.limit {
            return Ok(Found { best: None, stats });
        }
        let mut judge = Judge::new(&p.t, p.device);
        let mut by_greedy = |aim| Some(greedy::greedy(&mut judge, &sites, aim));
        let (best, placed) = match self.method {
            Method::Greedy => p.aim(by_greedy)?,
            Method::Sqrt => p.aim(|aim| Some(sqrt::sqrt(&mut judge, &sites, aim)))?,
            Method::Exact => {
                let (first, a) = p.aim(&mut by_greedy)?;
                let (better, b) = self.improve(p, &mut judge, &sites, &mut stats)?;
                // Addresses may like the first choice better.
                (Planned::fastest([better, first]), a + b)
            }
        };
        stats.insert("plans_placed", placed);
        Ok(Found { best, stats })
    }

    /// The best plan of greedy choices and segments that programs improved, and how many were
    /// placed.
    fn improve(
        &self,
        p: &Problem,
        judge: &mut Judge,
        sites: &[Site],
        stats: &mut Stats,
    ) -> Result<(Option<Planned>, u64), PassError> {
        let windows = Windows {
            sites,
            size: self.window.clamp(2, 100),
            seed: p.cx.search.seed,
            budget: p.cx.search.budget(self.effort),
        };
        let mut programs = 0;
        let mut last: Option<Choice> = None;
        let found = p.aim(|aim| {
            let starts = [
                last.take(),
                Some(greedy::greedy(judge, sites, aim)),
                Some(sqrt::sqrt(judge, sites, aim)),
            ];
            let start = judge.best(starts.into_iter().flatten(), aim)?;
            let (choice, solved) = windows.improve(judge, start, aim);
            programs += solved;
            last = Some(choice.clone());
            Some(choice)
        });
        stats.insert("programs", programs);
        found
    }
}
