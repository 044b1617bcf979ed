//! Recomputation alone: which tensors are dropped and computed again, so that the plan fits.
//!
//! Three methods. [`best`](Method::Best) is the search of `budget` where nothing may leave the device
//! ([`arenic_passes::recompute`]). [`greedy`] drops
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
//! ([`arenic_passes::residency`]), and `check` proves it.

mod greedy;
mod sites;
mod sqrt;
#[cfg(test)]
mod tests;

use arenic_passes::recompute::{EFFORT, in_other_orders, search};
use arenic_passes::{PassError, Problem, Stats, Strategy, StrategyResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sites::{Judge, sites};

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
        Recompute { method: Method::Best, effort: EFFORT }
    }
}

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
            Method::Best => search(p, &in_other_orders(p)?, self.effort)?,
        };
        let stats = Stats::from([("plans_placed", placed)]);
        Ok(StrategyResult { best, stats, ..StrategyResult::default() })
    }
}
