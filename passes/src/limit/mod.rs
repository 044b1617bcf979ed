//! What every strategy under a byte limit begins and ends with ([`keep_limit`]), and the least limit that can
//! be kept ([`Least`]).

mod least;

use crate::commits::with_early_commits;
use crate::report::{Minimum, StepTimes};
use crate::residency::{ResidencyChoice, Timeline};
use crate::strategy::{Problem, Strategy, StrategyResult};
use crate::tail::{Depth, Finished, Tail};
use crate::{Cx, PassError, Stats, devices, recompute};
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_ir::program::{PerSpace, Program};
pub(crate) use least::Least;

/// A step that keeps its limit on device memory.
pub struct Kept {
    /// Plan and program.
    pub finished: Finished,
    /// What it takes.
    pub times: StepTimes,
    /// What is known of the least limit that can be kept.
    pub minimum: Option<Minimum>,
    /// What the strategy counted.
    pub stats: Stats,
    /// Bytes that the step needs without a limit above those that it had.
    pub missing: u64,
}

/// How much more the last bytes of a limit may cost than bytes do on average: the cheapest way to save some is
/// taken first.
const STEEPER: f64 = 4.0;

/// What a strategy makes of an ordered plan so that it keeps a limit on device memory, in bytes; the
/// plan as it is, its states committed early, if that keeps the limit. `pass` is the strategy's
/// name in errors.
///
/// Where memory above the arena would make the step shorter ([`Tail::room`]), the limit is kept with that much left
/// free. Where that may cost more than it saves, the whole limit is tried, too, and the faster plan is taken.
///
/// # Errors
/// [`PassError::Limit`] if the strategy found nothing; what the strategy returns.
pub fn keep_limit(
    g: &Graph,
    plan: Plan,
    limit: u64,
    tail: &Tail,
    cx: &Cx,
    strategy: (&str, &dyn Strategy),
) -> Result<Kept, PassError> {
    let room = tail.room(g, cx);
    if room == 0 || room >= limit {
        return keep_whole_limit(g, plan, limit, tail, cx, strategy);
    }
    let (within, roomy) = (limit - room, tail.with_spare(room));
    let spared = match keep_whole_limit(g, plan.clone(), within, &roomy, cx, strategy) {
        Err(error) if !error.is_of_limits() => return Err(error),
        spared => spared.ok(),
    };
    let device = &*devices::or_cpu(cx.device)?;
    let is_best = |spared: &Kept| {
        let program = Program { ahead: Vec::new(), ..spared.finished.program.clone() };
        let missed = tail.missed_seconds(g, &program, device, cx);
        let cost = spared.times.seconds - spared.times.unlimited;
        let part = (STEEPER * room as f64 / spared.missing as f64).min(1.0);
        cost * part <= missed || cx.search.is_stopped()
    };
    let spared = match spared {
        Some(spared) if is_best(&spared) => return Ok(spared),
        spared => spared,
    };
    let whole = keep_whole_limit(g, plan, limit, tail, cx, strategy)?;
    Ok(spared.filter(|spared| spared.times.seconds <= whole.times.seconds).unwrap_or(whole))
}

fn keep_whole_limit(
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
    let t = Timeline::new(g, whole.base(), device)?.with_homes(cx);
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
        true => Some(unlimited + recompute::bound(&problem.t, limit.saturating_add(tail.spare()))?),
        false => None,
    };
    let missing = problem.whole.saturating_sub(limit);
    let finished = best.settled(tail, g, device, cx)?;
    let times = StepTimes { seconds: finished.seconds, unlimited, bound };
    let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
    stats.insert("step_nanoseconds", nanoseconds(times.seconds));
    stats.insert("unlimited_step_nanoseconds", nanoseconds(unlimited));
    stats.extend(bound.map(|bound| ("step_nanoseconds_bound", nanoseconds(bound))));
    stats.append(&mut minimum.map(Minimum::figures).unwrap_or_default());
    Ok(Kept { finished, times, minimum, stats, missing })
}
