//! The search: a quick look at several orders, and a thorough one at the best of them.

use super::improve::{Walls, anneal, prune};
use super::relieve::{Styles, relieve};
use super::rewrite::rewrite;
use super::ruin::ruin;
use super::runs::{Meter, RepeatCandidate};
use super::step::RecomputeStep;
use crate::PassError;
use crate::residency::Timeline;
use crate::strategy::Problem;
use crate::tail::Finished;
use rayon::prelude::*;
use std::cmp::Ordering;

/// The effort where none is given, for every thousand operators, in seconds of the reference core.
pub const EFFORT: f64 = 8.0;

/// Runs that are measured in a second of effort.
const RUNS_PER_SECOND: f64 = 2e7;

/// Fewer operators than these have fewer sequences that are worth trying: each gets less effort, too.
const FEW: f64 = 200.0;

/// The part of the effort for the first changes of one thorough search is one in so many.
const SHARES: f64 = 8.0;

/// Parts of that: of a first look, and of what follows the first changes.
const LOOK: u64 = 4;
const RUIN: u64 = 2;
const AGAIN: u64 = 2;
/// What is aimed at next begins with what was found before.
const NEXT: u64 = 8;

/// What is searched thoroughly: orders by their rank after the first look.
const THOROUGH: [(usize, Walls); 4] =
    [(0, Walls::Soft), (1, Walls::Soft), (2, Walls::Soft), (0, Walls::Hard)];

/// The fastest plan that keeps the limit, of searches that begin with the plan's order and with those of `others`
/// ([`in_other_orders`](super::in_other_orders)), and how many plans were placed; `None` if none was found.
/// `effort` is that of all searches together, for every thousand operators, in seconds of the reference core.
///
/// # Errors
/// What the passes refuse that finish plans.
pub fn search(
    p: &Problem,
    others: &[Finished],
    effort: f64,
) -> Result<(Option<Finished>, u64), PassError> {
    let timelines: Vec<Timeline> = others
        .iter()
        .map(|whole| Ok(Timeline::new(p.t.g, whole.base(), p.device)?.with_homes(p.cx)))
        .collect::<Result<_, PassError>>()?;
    let all = std::iter::once(&p.t).chain(&timelines);
    let steps: Vec<RecomputeStep> = all.map(RecomputeStep::new).collect::<Result<_, _>>()?;
    let operators = p.t.order.len() as f64;
    let effort = p.cx.search.effort(effort * operators / 1000.0 * (operators / FEW).min(1.0));
    let most = (effort / SHARES * RUNS_PER_SECOND) as u64;
    let mut looks: Vec<FirstLook> =
        steps.par_iter().map(|step| FirstLook::new(p, step, most)).collect();
    let key = |look: &FirstLook| (look.found.load.over, look.found.load.seconds);
    looks.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(Ordering::Equal));
    let searched: Vec<(Option<Finished>, u64)> = THOROUGH
        .par_iter()
        .filter_map(|&(rank, walls)| Some(looks.get(rank)?.thoroughly(p, most, walls)))
        .collect::<Result<_, _>>()?;
    let placed = searched.iter().map(|(_, placed)| placed).sum();
    let whole = others.iter().filter(|whole| whole.fits(&p.cx.limits)).cloned().map(Some);
    let found = searched.into_iter().map(|(found, _)| found).chain(whole);
    Ok((Finished::fastest(found), placed))
}

/// An order with what a quick look at it found.
struct FirstLook<'a> {
    step: &'a RecomputeStep<'a>,
    found: RepeatCandidate,
}

impl<'a> FirstLook<'a> {
    fn new(p: &Problem, step: &'a RecomputeStep<'a>, most: u64) -> Self {
        let mut meter = Meter::new(step, p.cx.search);
        let mut random = fastrand::Rng::with_seed(p.cx.search.seed);
        let whole = (0..step.operators() as u32).collect();
        let found = relieve(&mut meter, &whole, p.limit, most / LOOK, Styles::All);
        let found = anneal(&mut meter, found, p.limit, most / LOOK, &mut random, Walls::Soft);
        FirstLook { step, found: prune(&mut meter, found, p.limit) }
    }

    /// The fastest plan that a thorough search finds from here on, and how many it placed.
    fn thoroughly(
        &self,
        p: &Problem,
        most: u64,
        walls: Walls,
    ) -> Result<(Option<Finished>, u64), PassError> {
        let mut meter = Meter::new(self.step, p.cx.search);
        let mut random = fastrand::Rng::with_seed(p.cx.search.seed);
        let mut last: Option<RepeatCandidate> = None;
        p.aim_with(|aim| {
            let (start, most) = match last.take() {
                None => (self.found.clone(), most),
                Some(last) => {
                    (relieve(&mut meter, &last.runs, aim, most / NEXT, Styles::One), most / NEXT)
                }
            };
            let found = anneal(&mut meter, start, aim, most, &mut random, walls);
            let found = prune(&mut meter, found, aim);
            let found = ruin(&mut meter, found, aim, most / RUIN, &mut random);
            let found = anneal(&mut meter, found, aim, most / AGAIN, &mut random, walls);
            let found = prune(&mut meter, found, aim);
            let plan = rewrite(self.step, &found.runs)?;
            last = Some(found);
            p.finished(plan).map(Some)
        })
    }
}
