//! What every strategy under a byte limit begins and ends with.

use super::{ResidencyChoice, Room, Script, Timeline, Walker, rewrite};
use crate::report::{Minimum, StepTimes};
use crate::tail::{Depth, Finished, Tail};
use crate::{Cx, PassError, Stats, Strategy, devices, recompute};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Plan, TaskId, TaskKind};
use arenic_ir::program::PerSpace;
use cranelift_entity::SecondaryMap;

/// How many plans of a strategy are placed.
const AIMS: u64 = 8;

/// Aims that are as close as this, in thousandths of the limit, are not told apart.
const CLOSE: u64 = 10;

/// A step that may not fit, and the limit that it must keep.
pub struct Problem<'a> {
    pub(crate) t: Timeline<'a>,
    pub(crate) device: &'a Device,
    /// Bytes of device memory.
    pub(crate) limit: u64,
    /// What the step needs without a limit, in bytes of device memory.
    pub(crate) whole: u64,
    pub(crate) cx: &'a Cx<'a>,
    /// How its plans are finished.
    pub(crate) tail: &'a Tail,
}

/// What a strategy found.
#[derive(Default)]
pub struct StrategyResult {
    /// The best plan that fits, if there is one.
    pub(crate) best: Option<Finished>,
    /// What it knows of the least limit that can be kept.
    pub(crate) minimum: Option<Minimum>,
    /// What it counted.
    pub(crate) stats: Stats,
}

/// A step that keeps its limit on device memory.
pub(crate) struct Kept {
    /// Plan and program.
    pub(crate) finished: Finished,
    /// What it takes.
    pub(crate) times: StepTimes,
    /// What is known of the least limit that can be kept.
    pub(crate) minimum: Option<Minimum>,
    /// What the strategy counted.
    pub(crate) stats: Stats,
}

/// What a strategy makes of an ordered plan so that it keeps a limit on device memory, in bytes; the
/// plan as it is, its states committed early, if that keeps the limit. `pass` is the strategy's
/// name in errors.
///
/// # Errors
/// [`PassError::Limit`] if the strategy found nothing; what the strategy returns.
pub(crate) fn keep_limit(
    g: &Graph,
    mut plan: Plan,
    limit: u64,
    tail: &Tail,
    cx: &Cx,
    (pass, strategy): (&str, &dyn Strategy),
) -> Result<Kept, PassError> {
    let host = if strategy.moves() { cx.limits.host } else { Some(0) };
    let cx = &Cx { limits: PerSpace { device: Some(limit), host }, ..*cx };
    let device = &*devices::or_cpu(cx.device)?;
    let order = with_early_commits(g, &plan)?;
    plan.set_order(g, order)?;
    let whole = tail.finish(g, plan, device, cx, Depth::Trial)?;
    let t = Timeline::new(g, &whole.plan, device)?.with_homes(cx);
    let unlimited = t.start.last().copied().unwrap_or(0.0);
    let mut problem = Problem { t, device, limit, whole: whole.arena.device, cx, tail };
    // With homes in host memory the plan is not what it is without: they are fetched and stored.
    let kept = match problem.t.forces_host() {
        true => problem.carry_out(&ResidencyChoice::keep_all(&problem.t), limit)?,
        false => None,
    };
    let whole = kept.as_ref().unwrap_or(&whole);
    problem.whole = whole.arena.device;
    let StrategyResult { best, minimum, mut stats } = strategy.search(&problem)?;
    let best = match whole.fits(&cx.limits) {
        true => whole.clone(),
        false => best.ok_or_else(|| PassError::Limit { pass: pass.to_owned(), limit })?,
    };
    let bound = match best.moves_nothing() {
        true => Some(unlimited + recompute::bound(&problem.t, limit)?),
        false => None,
    };
    let finished = best.settled(tail, g, device, cx)?;
    let times = StepTimes { seconds: finished.seconds, unlimited, bound };
    let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
    stats.insert("step_nanoseconds", nanoseconds(times.seconds));
    stats.insert("unlimited_step_nanoseconds", nanoseconds(unlimited));
    stats.extend(bound.map(|bound| ("step_nanoseconds_bound", nanoseconds(bound))));
    stats.append(&mut minimum.map(Minimum::figures).unwrap_or_default());
    Ok(Kept { finished, times, minimum, stats })
}

/// A part of the step that is not worth another search.
const WORTH: f64 = 1e-3;

impl Problem<'_> {
    /// True where a plan is as fast as the step without a limit.
    pub(crate) fn hides_copies(&self, planned: &Finished) -> bool {
        let unlimited = self.t.start.last().copied().unwrap_or(0.0);
        planned.seconds <= unlimited * (1.0 + WORTH)
    }

    /// The plan of a choice, its copies scheduled so that `aim` bytes are kept; `None` where
    /// it would need a value that is overwritten by then.
    pub(crate) fn carry_out(
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
    pub(crate) fn planned(
        &self,
        choice: &ResidencyChoice,
        script: &Script,
    ) -> Result<Finished, PassError> {
        self.finished(rewrite(&self.t, choice, script)?)
    }

    /// A plan, finished on trial.
    pub(crate) fn finished(&self, plan: Plan) -> Result<Finished, PassError> {
        self.tail.finish(self.t.g, plan, self.device, self.cx, Depth::Trial)
    }

    /// The fastest plan that fits of those that `choose` leads to, and how many were placed.
    /// Choices are about live bytes: where addresses take more than the limit, the next
    /// choice aims lower, and then between what fitted and what did not.
    pub(crate) fn aim(
        &self,
        mut choose: impl FnMut(u64) -> Option<ResidencyChoice>,
    ) -> Result<(Option<Finished>, u64), PassError> {
        self.aim_with(|aim| match choose(aim) {
            Some(choice) => self.carry_out(&choice, aim),
            None => Ok(None),
        })
    }

    /// The same for what makes plans itself.
    pub(crate) fn aim_with(
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

/// The plan's order with every commit as soon as it can be: a new value whose home is in host
/// memory has bytes on the device until then.
pub(super) fn with_early_commits(g: &Graph, plan: &Plan) -> Result<Vec<TaskId>, PassError> {
    let is_commit = |t: TaskId| matches!(plan.tasks[t].kind, TaskKind::Commit { .. });
    let mut position: SecondaryMap<TaskId, usize> = SecondaryMap::new();
    for (i, &t) in plan.order()?.iter().enumerate() {
        position[t] = i;
    }
    let mut last: SecondaryMap<TaskId, Option<TaskId>> = SecondaryMap::new();
    for (before, after) in plan.dependences(g) {
        if is_commit(after) && last[after].is_none_or(|l| position[l] < position[before]) {
            last[after] = Some(before);
        }
    }
    let mut following: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
    let mut order = Vec::with_capacity(plan.tasks.len());
    // A commit that waits for another one stays where it is.
    let moves = |t: TaskId| is_commit(t) && last[t].is_none_or(|l| !is_commit(l));
    for &t in plan.order()?.iter().filter(|&&t| moves(t)) {
        match last[t] {
            Some(l) => following[l].push(t),
            None => order.push(t),
        }
    }
    for &t in plan.order()?.iter().filter(|&&t| !moves(t)) {
        order.push(t);
        order.append(&mut following[t]);
    }
    Ok(order)
}
