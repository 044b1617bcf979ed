//! Strategies, which keep a limit on device memory: what one is, the step that it is handed, and how its plans
//! are judged.

use crate::report::Minimum;
use crate::residency::{ResidencyChoice, Room, Script, Timeline, Walker, rewrite};
use crate::tail::{Depth, Finished, Tail};
use crate::{Cx, PassError, Stats};
use arenic_ir::cost::Device;
use arenic_ir::plan::Plan;

/// How many plans of a strategy are placed.
const AIMS: u64 = 8;

/// Aims that are as close as this, in thousandths of the limit, are not told apart.
const CLOSE: u64 = 10;

/// Keeps a limit on device memory: says what leaves the device, or is computed again, so that an
/// ordered plan fits. Without a limit it is not asked.
pub trait Strategy: Send + Sync {
    /// True for a strategy that may move tensors to host memory.
    fn moves(&self) -> bool {
        false
    }
    /// The fastest plan that it finds to keep the limit, finished by the passes that follow. It is
    /// also asked about a step that keeps the limit as it is, which stays so whatever it finds.
    ///
    /// # Errors
    /// [`PassError::DeviceMemory`] if it knows that no plan keeps the limit.
    fn search(&self, p: &Problem) -> Result<StrategyResult, PassError>;
}

/// A step that may not fit, and the limit that it must keep.
pub struct Problem<'a> {
    /// The ordered step.
    pub t: Timeline<'a>,
    /// The device that times are for.
    pub device: &'a Device,
    /// The limit, in bytes of device memory.
    pub limit: u64,
    /// What the step needs without a limit, in bytes of device memory.
    pub whole: u64,
    /// Target, limits on both memories, and how searches are limited.
    pub cx: &'a Cx<'a>,
    /// How its plans are finished.
    pub tail: &'a Tail,
}

/// What a strategy found.
#[derive(Default)]
pub struct StrategyResult {
    /// The best plan that fits, if there is one.
    pub best: Option<Finished>,
    /// What it knows of the least limit that can be kept.
    pub minimum: Option<Minimum>,
    /// What it counted.
    pub stats: Stats,
}

/// A part of the step that is not worth another search.
const WORTH: f64 = 1e-3;

impl Problem<'_> {
    /// True where a plan is as fast as the step without a limit.
    pub fn hides_copies(&self, planned: &Finished) -> bool {
        let unlimited = self.t.start.last().copied().unwrap_or(0.0);
        planned.seconds <= unlimited * (1.0 + WORTH)
    }

    /// The plan of a choice, its copies scheduled so that `aim` bytes are kept; `None` where
    /// it would need a value that is overwritten by then.
    ///
    /// # Errors
    /// As [`Problem::planned`].
    pub fn carry_out(
        &self,
        choice: &ResidencyChoice,
        aim: u64,
    ) -> Result<Option<Finished>, PassError> {
        let mut walker = Walker::new(&self.t);
        let Some(script) = walker.walk(choice) else { return Ok(None) };
        Room::new(&self.t, self.device).schedule(script, aim);
        self.planned(choice, script).map(Some)
    }

    /// The plan of a choice whose script says when its copies are issued.
    ///
    /// # Errors
    /// The script breaks a dependence, or a pass that follows the strategy refuses the plan.
    pub fn planned(
        &self,
        choice: &ResidencyChoice,
        script: &Script,
    ) -> Result<Finished, PassError> {
        self.finished(rewrite(&self.t, choice, script)?)
    }

    /// A plan, finished on trial by the passes that follow the strategy.
    ///
    /// # Errors
    /// What these passes refuse.
    pub fn finished(&self, plan: Plan) -> Result<Finished, PassError> {
        self.tail.finish(self.t.g, plan, self.device, self.cx, Depth::Trial)
    }

    /// The fastest plan that fits of those that `choose` leads to, and how many were placed.
    /// Choices are about live bytes: where addresses take more than the limit, the next
    /// choice aims lower, and then between what fitted and what did not.
    ///
    /// # Errors
    /// As [`Problem::planned`].
    pub fn aim(
        &self,
        mut choose: impl FnMut(u64) -> Option<ResidencyChoice>,
    ) -> Result<(Option<Finished>, u64), PassError> {
        self.aim_with(|aim| match choose(aim) {
            Some(choice) => self.carry_out(&choice, aim),
            None => Ok(None),
        })
    }

    /// As [`Problem::aim`], for a strategy that makes its plans itself: `plan` is given the bytes to aim at.
    ///
    /// # Errors
    /// What `plan` returns.
    pub fn aim_with(
        &self,
        mut plan: impl FnMut(u64) -> Result<Option<Finished>, PassError>,
    ) -> Result<(Option<Finished>, u64), PassError> {
        let (mut best, mut placed): (Option<Finished>, u64) = (None, 0);
        let (mut fitted, mut failed) = (None, None);
        let mut aim = self.limit;
        while placed < AIMS && !self.cx.search.is_stopped() {
            let Some(planned) = plan(aim)? else { break };
            placed += 1;
            let over = planned.arena.device.saturating_sub(self.limit);
            match over {
                0 => fitted = Some(aim),
                _ => failed = Some(aim),
            }
            let faster = best.as_ref().is_none_or(|b| planned.seconds < b.seconds);
            if planned.fits(&self.cx.limits) && faster {
                best = Some(planned);
            }
            aim = match (fitted, failed) {
                (Some(low), Some(high)) if (high - low) / CLOSE < self.limit / 1000 => break,
                (Some(low), Some(high)) => low + (high - low) / 2,
                (Some(_), None) => break,
                (None, _) => aim.saturating_sub(over.div_ceil(2)),
            };
        }
        Ok((best, placed))
    }
}
