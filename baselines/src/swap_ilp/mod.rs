//! tvDNN's transfer schedule (Park et al., PPoPP 2018): which tensors leave, and when their
//! copies run, as an integer program that hides copies behind compute.
//!
//! The paper says that there is such a program and a heuristic, and gives neither; both are
//! ours. The heuristic is a greedy choice of swaps with the schedule of `Room`. The
//! [`program`] decides for some gaps at a time whether their tensor leaves, before which step
//! its bytes are used again and before which its copy back is issued, everything else fixed:
//! solvers prove little about programs of more than some tens of copies. What it proposes is
//! kept where the predicted step is shorter, and the pass returns the faster, as simulated,
//! of the heuristic's plan and the improved one. Homes in host memory are the heuristic's.
//! Where the addresses of neither fit, AutoSwap's plan is taken, and last of all everything
//! leaves that the task at hand does not need.
//!
//! tvDNN also divides objects that one kernel cannot hold into sections. This pass does not:
//! where swaps alone do not keep the limit, it refuses.
//!
//! Sound because a copy holds the same bytes, a repeated operator is pure and reads the same operands
//! ([`arenic_passes::residency`]), and `check` proves it.

mod improve;
mod program;
#[cfg(test)]
mod tests;
mod windows;

use crate::swap_autoswap::SwapAutoswap;
use arenic_ir::program::PerSpace;
use arenic_passes::budget::SWAPS;
use arenic_passes::residency::ResidencyChoice;
use arenic_passes::tail::Finished;
use arenic_passes::{PassError, Problem, Stats, Strategy, StrategyResult};
use improve::{Schedule, Swaps};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Swaps until the plan keeps the byte limit, copies scheduled by an integer program.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SwapIlp {
    /// Effort for all programs together, in seconds of the reference core; 0 leaves the
    /// heuristic's schedule.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
    /// Tensors of a program, from 1 to 40.
    #[schemars(range(min = 1, max = 40))]
    pub window: usize,
}

impl Default for SwapIlp {
    fn default() -> Self {
        SwapIlp { effort: 20.0, window: 12 }
    }
}

impl Strategy for SwapIlp {
    fn moves(&self) -> bool {
        true
    }

    /// The faster of the heuristic's plan and the one that programs improved.
    fn search(&self, p: &Problem) -> Result<StrategyResult, PassError> {
        if p.whole <= p.limit {
            return Ok(StrategyResult::default());
        }
        let greedy = |aim| {
            let limits = PerSpace { device: Some(aim), host: p.cx.limits.host };
            SWAPS.greedy(&p.t, p.device, limits, false).map(|(choice, _)| choice)
        };
        let (heuristic, placed) = p.aim(greedy)?;
        let budget = p.cx.search.budget(self.effort);
        let mut swaps = Swaps::new(p, self.window.clamp(1, 40), budget);
        let mut last: Option<Schedule> = None;
        let (improved, more) = p.aim_with(|aim| {
            let again = last.take().map(|schedule| schedule.choice);
            let starts = again.into_iter().chain(greedy(aim));
            let Some(start) = swaps.best(starts, aim) else { return Ok(None) };
            let schedule = swaps.improve(start, aim);
            let planned = p.planned(&schedule.choice, &schedule.script)?;
            last = Some(schedule);
            Ok(Some(planned))
        })?;
        let mut best = Finished::fastest([improved, heuristic.clone()]);
        if best.is_none() {
            best = SwapAutoswap::default().search(p)?.best;
        }
        if best.is_none() {
            let spilled = p.carry_out(&ResidencyChoice::spill_all(&p.t), 0)?;
            best = spilled.filter(|s| s.fits(&p.cx.limits));
        }
        let mut stats = Stats::from([
            ("programs", swaps.programs),
            ("programs_unanswered", swaps.unanswered),
            ("plans_placed", placed + more),
        ]);
        if let Some(heuristic) = heuristic {
            stats.insert("heuristic_step_nanoseconds", (heuristic.seconds * 1e9) as u64);
        }
        Ok(StrategyResult { best, stats, ..StrategyResult::default() })
    }
}
