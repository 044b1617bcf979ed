//! A plan with little memory: how low a limit can be kept by computing tensors again alone.
//!
//! First a bisection by cuts, quick and coarse; then random changes, which keep a little less
//! than cuts do, again and again until they lead no further.

use super::improve::{Walls, anneal};
use super::relieve::{Styles, relieve};
use super::rewrite::rewrite;
use super::runs::{Meter, RepeatCandidate, Runs};
use super::step::RecomputeStep;
use crate::residency::Timeline;
use crate::{PassError, Search};
use arenic_ir::plan::Plan;

/// How often a step is measured for a limit: by cuts, and by random changes.
const CUTS: u64 = 2000;
const CHANGES: u64 = 10_000;

/// Addresses of a plan with little memory take no more than so many times its live bytes.
const MARGIN: f64 = 1.03;

/// The bisection ends where what was kept and what was not are as close as this.
const CLOSE: f64 = 1.02;
/// The same for a first look.
const ROUGH: f64 = 1.05;

/// Random changes are to bring what is kept down to this part of it at once.
const LESS: f64 = 0.97;

/// They end where they no longer bring it down to this part.
const PROGRESS: f64 = 0.995;

/// How low a limit is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As a first look, by a few cuts.
    Rough,
    /// By all cuts and by random changes.
    Full,
}

/// A plan with little memory.
pub(crate) struct Lowest {
    /// The plan.
    pub(crate) plan: Plan,
    /// None with less was found. Otherwise it takes no more than enough, by a margin.
    pub(crate) is_least: bool,
    /// No plan that computes tensors again alone takes fewer bytes.
    pub(crate) floor: u64,
}

/// A plan with as little memory as can be found, or with no more than `enough` bytes.
///
/// # Errors
/// The plan is not one of a verified graph.
pub(crate) fn least(
    t: &Timeline,
    enough: u64,
    effort: Effort,
    search: Search,
) -> Result<Lowest, PassError> {
    let step = RecomputeStep::new(t)?;
    let mut meter = Meter::new(&step, search);
    let (styles, close) = match effort {
        Effort::Rough => (Styles::One, ROUGH),
        Effort::Full => (Styles::UntilKept, CLOSE),
    };
    let (cuts, changes) = (CUTS * step.operators() as u64, CHANGES * step.operators() as u64);
    let whole: Runs = (0..step.operators() as u32).collect();
    let load = meter.measure(&whole, u64::MAX);
    let mut best = RepeatCandidate { runs: whole.clone(), load };
    let is_enough = |best: &RepeatCandidate| best.load.peak as f64 * MARGIN <= enough as f64;
    let floor = step.floor();
    let mut fails = floor.max(1) as f64;
    let goes_on = |best: &RepeatCandidate, meter: &Meter| !is_enough(best) && !meter.is_stopped();
    while best.load.peak as f64 > fails * close && goes_on(&best, &meter) {
        let limit = (best.load.peak as f64 * fails).sqrt();
        let found = relieve(&mut meter, &whole, limit as u64, cuts, styles);
        match found.load.over {
            0 => best = found,
            _ => fails = limit,
        }
    }
    let mut random = fastrand::Rng::with_seed(0);
    while effort == Effort::Full && best.load.peak > floor && goes_on(&best, &meter) {
        let limit = (best.load.peak as f64 * LESS) as u64;
        let start = relieve(&mut meter, &best.runs, limit, cuts, Styles::One);
        let found = anneal(&mut meter, start, limit, changes, &mut random, Walls::Hard);
        if found.load.peak as f64 > best.load.peak as f64 * PROGRESS {
            break;
        }
        best = found;
    }
    let is_least = !is_enough(&best) && !meter.is_stopped();
    Ok(Lowest { plan: rewrite(&step, &best.runs)?, is_least, floor })
}

/// Seconds of a step that keeps the limit in live bytes, found quickly; `None` where it was not.
///
/// # Errors
/// The plan is not one of a verified graph.
pub(crate) fn promise(t: &Timeline, limit: u64, search: Search) -> Result<Option<f64>, PassError> {
    let step = RecomputeStep::new(t)?;
    let whole = (0..step.operators() as u32).collect();
    let most = CUTS * step.operators() as u64;
    let found = relieve(&mut Meter::new(&step, search), &whole, limit, most, Styles::One);
    Ok((found.load.over == 0).then_some(found.load.seconds))
}
