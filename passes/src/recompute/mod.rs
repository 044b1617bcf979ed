//! Recomputation alone: which tensors are dropped and computed again, so that the plan fits.
//!
//! Three methods. [`best`](Method::Best) is a search over sequences of runs ([`runs`]): least cuts
//! at the moments above the limit say what is held across them and what runs again ([`cut`],
//! [`relieve`]), and random changes improve what they lead to ([`improve`]). [`greedy`] drops
//! what costs the fewest seconds for the bytes that it frees along the peak. [`sqrt`] is the
//! baseline of Chen et al., "Training deep nets with sublinear memory cost" (2016): checkpoints
//! at cuts of the forward pass, segments computed again.
//!
//! A repeated task reads each state as it enters the step. After the state's update there is
//! no such value any more, and the task is not repeated; the update never waits for a repeat.
//! What a repeat would write to a state goes to bytes of its own and is dropped. A random
//! operator draws the same numbers again: its generator is keyed by seed, step and node.
//!
//! Sound because a copy holds the same bytes, a repeated operator is pure and reads the same operands
//! ([`crate::residency`]), and `check` proves it.

mod bound;
mod cut;
mod divide;
mod greedy;
mod improve;
mod least;
mod relieve;
mod rewrite;
mod runs;
mod sites;
mod sqrt;
mod step;
#[cfg(test)]
mod tests;

use crate::residency::{Problem, StrategyResult, Timeline, in_definition_order};
use crate::tail::Finished;
use crate::{PassError, Stats, Strategy};
use improve::{anneal, prune};
pub(crate) use least::{Effort, Lowest, least, promise};
use relieve::{RepeatCandidate, Styles, relieve};
use rewrite::rewrite;
use runs::Meter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sites::{Judge, sites};
use step::RecomputeStep;

/// Method that chooses tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Least cuts at the moments above the limit, improved by random changes.
    #[default]
    Best,
    /// Fewest seconds per byte saved along the peak.
    Greedy,
    /// As few segments of the forward pass as the limit allows, each computed again.
    Sqrt,
}

/// Drops tensors and computes them again until the plan keeps the byte limit.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Recompute {
    /// How tensors are chosen.
    pub method: Method,
    /// Effort of the method `best` for every thousand operators, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
}

impl Default for Recompute {
    fn default() -> Self {
        Recompute { method: Method::Best, effort: 1.0 }
    }
}

/// Runs that are measured in a second of effort.
const RUNS_PER_SECOND: f64 = 2e7;

impl Strategy for Recompute {
    fn search(&self, p: &Problem) -> Result<StrategyResult, PassError> {
        if p.whole <= p.limit {
            return Ok(StrategyResult::default());
        }
        let mut judge = Judge::new(&p.t, p.device);
        let (best, placed) = match self.method {
            Method::Greedy => {
                let sites = sites(&p.t);
                p.aim(|aim| Some(greedy::greedy(&mut judge, &sites, aim)))?
            }
            Method::Sqrt => {
                let sites = sites(&p.t);
                p.aim(|aim| Some(sqrt::sqrt(&mut judge, &sites, aim)))?
            }
            Method::Best => self.best(p)?,
        };
        let stats = Stats::from([("plans_placed", placed)]);
        Ok(StrategyResult { best, stats, ..StrategyResult::default() })
    }
}

impl Recompute {
    /// The best of searches from the plan's order and from definition order, and how many plans
    /// were placed.
    pub(crate) fn best(&self, p: &Problem) -> Result<(Option<Finished>, u64), PassError> {
        let (own, other) = rayon::join(|| self.in_order(p, &p.t), || self.in_definition_order(p));
        let ((own, a), (other, b)) = (own?, other?);
        Ok((Finished::fastest([own, other]), a + b))
    }

    fn in_definition_order(&self, p: &Problem) -> Result<(Option<Finished>, u64), PassError> {
        let plan = in_definition_order(p.t.g, p.t.plan.clone(), p.cx)?;
        let whole = p.finished(plan)?;
        let t = Timeline::new(p.t.g, &whole.plan, p.device)?.with_homes(p.cx);
        let (found, placed) = self.in_order(p, &t)?;
        let whole = Some(whole.clone()).filter(|whole| whole.fits(&p.cx.limits));
        Ok((Finished::fastest([whole, found]), placed))
    }

    fn in_order(&self, p: &Problem, t: &Timeline) -> Result<(Option<Finished>, u64), PassError> {
        let step = RecomputeStep::new(t)?;
        let mut meter = Meter::new(&step, p.cx.search);
        let mut random = fastrand::Rng::with_seed(p.cx.search.seed);
        let effort = p.cx.search.effort(self.effort * step.len() as f64 / 1000.0);
        let most = (effort * RUNS_PER_SECOND) as u64;
        let mut last: Option<RepeatCandidate> = None;
        p.aim_with(|aim| {
            // What repeats some operators already needs a little more.
            let (start, most, styles) = match last.take() {
                None => ((0..step.len() as u32).collect(), most, Styles::All),
                Some(last) => (last.runs, most / 8, Styles::One),
            };
            let found = relieve(&mut meter, &start, aim, most, styles);
            let found = anneal(&mut meter, found, aim, most, &mut random);
            let found = prune(&mut meter, found, aim);
            let plan = rewrite(&step, &found.runs)?;
            last = Some(found);
            p.finished(plan).map(Some)
        })
    }
}

/// Seconds that every plan that computes tensors again, and moves none, takes more than the step
/// without a limit, at least.
///
/// # Errors
/// The plan is not one of a verified graph.
pub(crate) fn bound(t: &Timeline, limit: u64) -> Result<f64, PassError> {
    Ok(bound::bound(&RecomputeStep::new(t)?, limit))
}
