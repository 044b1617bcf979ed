//! Recomputation alone: which tensors are dropped and computed again, so that the plan fits.
//!
//! The search is over sequences of runs ([`runs`]): least cuts at the moments above the limit say what is held
//! across them and what runs again ([`cut`], [`relieve`]), and random changes improve what they lead to
//! ([`improve`]).
//!
//! A repeated task reads each state as it enters the step. After the state's update there is
//! no such value any more, and the task is not repeated; the update never waits for a repeat.
//! What a repeat would write to a state goes to bytes of its own and is dropped. A random
//! operator draws the same numbers again: its generator is keyed by seed, step and node.
//!
//! Sound because a repeated operator is pure and reads the same operands, and `check` proves it.

mod bound;
mod cut;
mod divide;
mod improve;
mod least;
mod relieve;
mod rewrite;
mod runs;
mod step;
#[cfg(test)]
mod tests;

use crate::PassError;
use crate::commits::in_definition_order;
use crate::residency::Timeline;
use crate::strategy::Problem;
use crate::tail::Finished;
use improve::{anneal, prune};
pub(crate) use least::{Effort, Lowest, least, promise};
use relieve::{Styles, relieve};
use rewrite::rewrite;
use runs::{Meter, RepeatCandidate};
use step::RecomputeStep;

/// The effort where none is given, for every thousand operators, in seconds of the reference core.
pub const EFFORT: f64 = 1.0;

/// Runs that are measured in a second of effort.
const RUNS_PER_SECOND: f64 = 2e7;

/// The fastest plan that keeps the limit, of searches from the plan's order and from definition order, and how
/// many plans were placed; `None` if none was found. `effort` is for every thousand operators, in seconds of the
/// reference core.
///
/// # Errors
/// What the passes refuse that finish plans.
pub fn search(p: &Problem, effort: f64) -> Result<(Option<Finished>, u64), PassError> {
    let (own, other) =
        rayon::join(|| in_order(p, &p.t, effort), || from_definition_order(p, effort));
    let ((own, a), (other, b)) = (own?, other?);
    Ok((Finished::fastest([own, other]), a + b))
}

fn from_definition_order(p: &Problem, effort: f64) -> Result<(Option<Finished>, u64), PassError> {
    let plan = in_definition_order(p.t.g, p.t.plan.clone(), p.cx)?;
    let whole = p.finished(plan)?;
    let t = Timeline::new(p.t.g, &whole.plan, p.device)?.with_homes(p.cx);
    let (found, placed) = in_order(p, &t, effort)?;
    let whole = Some(whole.clone()).filter(|whole| whole.fits(&p.cx.limits));
    Ok((Finished::fastest([whole, found]), placed))
}

fn in_order(p: &Problem, t: &Timeline, effort: f64) -> Result<(Option<Finished>, u64), PassError> {
    let step = RecomputeStep::new(t)?;
    let mut meter = Meter::new(&step, p.cx.search);
    let mut random = fastrand::Rng::with_seed(p.cx.search.seed);
    let effort = p.cx.search.effort(effort * step.len() as f64 / 1000.0);
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

/// Seconds that every plan that computes tensors again, and moves none, takes more than the step
/// without a limit, at least.
///
/// # Errors
/// The plan is not one of a verified graph.
pub(crate) fn bound(t: &Timeline, limit: u64) -> Result<f64, PassError> {
    Ok(bound::bound(&RecomputeStep::new(t)?, limit))
}
