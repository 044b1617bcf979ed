//! What every strategy under a byte limit begins and ends with.

use super::{Layout, Planned, ResidencyChoice, Room, Script, Timeline, Walker, rewrite};
use crate::{Cx, PassError, Stats, devices, recompute};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Plan, TaskId, TaskKind};
use cranelift_entity::SecondaryMap;

/// How many plans of a strategy are placed.
const AIMS: u64 = 8;

/// Aims that are as close as this, in thousandths of the limit, are not told apart.
const CLOSE: u64 = 10;

/// A step that does not fit, and the limit that it must keep.
pub(crate) struct Problem<'a> {
    pub(crate) t: Timeline<'a>,
    pub(crate) device: &'a Device,
    /// Bytes of device memory.
    pub(crate) limit: u64,
    /// What the step needs without a limit, in bytes of device memory.
    pub(crate) whole: u64,
    pub(crate) cx: &'a Cx<'a>,
    /// How its plans are placed.
    pub(crate) layout: Layout,
}

/// What a strategy found.
pub(crate) struct StrategyResult {
    /// The best plan that fits, if there is one.
    pub(crate) best: Option<Planned>,
    /// What it counted.
    pub(crate) stats: Stats,
}

/// Replaces the plan by what a strategy finds to keep the limit on device memory; without a
/// limit, or where the plan keeps it as it is, nothing changes.
///
/// # Errors
/// [`PassError::Limit`] where the strategy found nothing; what the strategy returns.
pub(crate) fn under_limit(
    g: &Graph,
    plan: &mut Plan,
    cx: &Cx,
    pass: &'static str,
    layout: Layout,
    strategy: impl FnOnce(&Problem) -> Result<StrategyResult, PassError>,
) -> Result<Stats, PassError> {
    let Some(limit) = cx.limits.device else { return Ok(Stats::new()) };
    let device = &*devices::or_cpu(cx.device)?;
    let order = with_early_commits(g, plan)?;
    plan.set_order(g, order)?;
    let whole = Planned::of(g, plan.clone(), device, cx, layout)?;
    let t = Timeline::new(g, &whole.plan, device)?.with_homes(cx);
    let unlimited = t.start.last().copied().unwrap_or(0.0);
    let mut problem = Problem { t, device, limit, whole: whole.arena.device, cx, layout };
    // With homes in host memory the plan is not what it is without: they are fetched and stored.
    let kept = match problem.t.forces_host() {
        true => problem.carry_out(&ResidencyChoice::keep_all(&problem.t), limit)?,
        false => None,
    };
    let whole = kept.as_ref().unwrap_or(&whole);
    problem.whole = whole.arena.device;
    let StrategyResult { best, mut stats } = strategy(&problem)?;
    let best = match whole.fits(&cx.limits) {
        true => whole.clone(),
        false => best.ok_or(PassError::Limit { pass, limit })?,
    };
    if best.moves_nothing() {
        let least = unlimited + recompute::bound(&problem.t, limit)?;
        stats.insert("step_nanoseconds_bound", (least * 1e9) as u64);
    }
    stats.insert("step_nanoseconds", (best.seconds * 1e9) as u64);
    stats.insert("unlimited_step_nanoseconds", (unlimited * 1e9) as u64);
    *plan = best.plan;
    let order = plan.order()?.to_vec();
    plan.set_order(g, order)?;
    Ok(stats)
}

/// A part of the step that is not worth another search.
const WORTH: f64 = 1e-3;

impl Problem<'_> {
    /// True where a plan is as fast as the step without a limit.
    pub(crate) fn hides_copies(&self, planned: &Planned) -> bool {
        let unlimited = self.t.start.last().copied().unwrap_or(0.0);
        planned.seconds <= unlimited * (1.0 + WORTH)
    }

    /// The plan of a choice, its copies scheduled so that `aim` bytes are kept; `None` where
    /// it would need a value that is overwritten by then.
    pub(crate) fn carry_out(
        &self,
        choice: &ResidencyChoice,
        aim: u64,
    ) -> Result<Option<Planned>, PassError> {
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
    ) -> Result<Planned, PassError> {
        let plan = rewrite(&self.t, choice, script)?;
        Planned::of(self.t.g, plan, self.device, self.cx, self.layout)
    }

    /// The fastest plan that fits of those that `choose` leads to, and how many were placed.
    /// Choices are about live bytes: where addresses take more than the limit, the next
    /// choice aims lower, and then between what fitted and what did not.
    pub(crate) fn aim(
        &self,
        mut choose: impl FnMut(u64) -> Option<ResidencyChoice>,
    ) -> Result<(Option<Planned>, u64), PassError> {
        self.aim_with(|aim| match choose(aim) {
            Some(choice) => self.carry_out(&choice, aim),
            None => Ok(None),
        })
    }

    /// The same for what makes plans itself.
    pub(crate) fn aim_with(
        &self,
        mut plan: impl FnMut(u64) -> Result<Option<Planned>, PassError>,
    ) -> Result<(Option<Planned>, u64), PassError> {
        let (mut best, mut placed): (Option<Planned>, u64) = (None, 0);
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
