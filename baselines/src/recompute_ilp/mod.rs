//! Checkmate (Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020): what
//! is computed again, and when, as an integer program.
//!
//! The [`program`] is the paper's. It has as many variables as nodes squared, so a step of more operators than `blocks`
//! is cut into [`blocks`] of consecutive ones, which run again together, where the paper gives a solver an hour. What a
//! repeated block makes that nothing reads is left out again. Bytes are the plan's, not the paper's, which knows no results in
//! an operand's place: a block takes what was measured while nothing is dropped, and what is found is measured again.
//! First runs keep the plan's order.
//!
//! Sound because a repeated operator is pure and reads the same operands ([`arenic_passes::recompute`]), and `check`
//! proves it.

mod blocks;
mod program;
#[cfg(test)]
mod tests;

use arenic_passes::mip;
use arenic_passes::recompute::{Meter, RecomputeStep, Runs, rewrite};
use arenic_passes::{PassError, Problem, Stats, Strategy, StrategyResult};
use blocks::{Block, blocks};
use program::{Stages, solve};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Computes tensors again, by Checkmate's integer program, until the plan keeps the byte limit.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecomputeIlp {
    /// Effort for all programs together, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
    /// Nodes of a program, from 2 to 200; a step of more operators is cut into so many blocks.
    #[schemars(range(min = 2, max = 200))]
    pub blocks: usize,
}

impl Default for RecomputeIlp {
    fn default() -> Self {
        RecomputeIlp { effort: 4.0, blocks: 16 }
    }
}

impl Strategy for RecomputeIlp {
    fn search(&self, p: &Problem) -> Result<StrategyResult, PassError> {
        if p.whole <= p.limit {
            return Ok(StrategyResult::default());
        }
        let step = RecomputeStep::new(&p.t)?;
        let (blocks, always) = blocks(&step, self.blocks.clamp(2, 200));
        let mut meter = Meter::new(&step, p.cx.search);
        let budget = p.cx.search.budget(self.effort);
        let (mut programs, mut unanswered) = (0, 0);
        let (best, placed) = p.aim_with(|aim| {
            programs += 1;
            let limits = mip::Limits::new(&budget, p.cx.search.seed);
            let stages = match solve(&blocks, &always, aim, &limits) {
                Ok(stages) => stages,
                Err(failure) => {
                    failure.unless_of_limits()?;
                    unanswered += 1;
                    return Ok(None);
                }
            };
            let mut runs = sequence(&step, &blocks, &stages);
            meter.drop_dead(&mut runs);
            p.finished(rewrite(&step, &runs)?).map(Some)
        })?;
        let stats = Stats::from([
            ("blocks", blocks.len() as u64),
            ("programs", programs),
            ("programs_unanswered", unanswered),
            ("plans_placed", placed),
        ]);
        Ok(StrategyResult { best, stats, ..StrategyResult::default() })
    }
}

/// The stages one after the other.
fn sequence(step: &RecomputeStep, blocks: &[Block], stages: &Stages) -> Runs {
    let mut runs = Runs::new();
    for (block, again) in blocks.iter().zip(stages) {
        let repeated = again.iter().flat_map(|&i| blocks[i].ops.clone());
        runs.extend(repeated.map(|op| op as u32).filter(|&op| step.may_repeat(op)));
        runs.extend(block.ops.clone().map(|op| op as u32));
    }
    runs
}
