//! The byte limit: what leaves the device and what is computed again, so that the plan fits.
//!
//! From AutoSwap (Zhang et al., section IV) come the load curve, the area that a tensor's
//! absence frees, the schedule of copies and choices to begin with; the DQN planner (section 4.6) combines swapping
//! with recomputation because they use different engines. Here both compete: a [`greedy`]
//! choice for several prices of the link, which [`anneal`] improves by what the schedule
//! predicts; it is placed and simulated, and aims lower until it fits. Where that costs time,
//! the same is done in definition order and with states that leave their homes on the device
//! for a part of the step, and AutoSwap's own plans compete; where host memory is scarce,
//! repeats also come first, until what is left has room there, and swaps after them; and the random changes
//! of [`anneal`] begin from several seeds, of whose choices the best parts are joined.
//!
//! Where nothing may leave the device, because host memory is the same memory or not to be
//! had, tensors are computed again alone ([`crate::recompute`]).
//!
//! The limit is hard. Where nothing chosen fits, everything that the task at hand does not
//! read or write is in host memory, or is computed again: `minimum_device_bytes` is the arena
//! of that plan ([`Least`]), so every limit from there on can be kept and every lower one is
//! refused.
//!
//! Sound because a copy holds the same bytes, a repeated operator is pure and reads the same operands
//! ([`crate::residency`]), and `check` proves it.

mod anneal;
mod annealing;
mod greedy;
mod sites;

use crate::commits::ordered_by;
use crate::limit::Least;
use crate::order::Method;
use crate::report::Minimum;
use crate::residency::{Prediction, ResidencyChoice, Room, Timeline, Walker};
use crate::scores::{by_each_score, fastest_alone};
use crate::strategy::{Problem, Strategy, StrategyResult};
use crate::tail::Finished;
use crate::{Cx, PassError, Stats, recompute};
use anneal::{COOLER, HOT};
use annealing::Annealing;
use arenic_ir::cost::Device;
use arenic_ir::program::PerSpace;
use greedy::greedy;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sites::Sites;

/// Swaps and recomputes until the plan keeps the byte limit; without a limit it does nothing.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Tensors may go to host memory.
    pub swap: bool,
    /// Tensors may be computed again.
    pub recompute: bool,
    /// Effort of improving a plan by random changes, in seconds of the reference core: for each start, and a
    /// little more for every target limit that is missed.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
}

/// Swaps alone.
pub const SWAPS: Budget = Budget { swap: true, recompute: false, effort: EFFORT };

impl Default for Budget {
    fn default() -> Self {
        Budget { recompute: true, ..SWAPS }
    }
}

/// Weights that are tried for a second of copying that overlaps with kernels.
const HIDDEN: [f64; 4] = [0.01, 0.1, 0.5, 2.0];

/// Of what a plan without a limit has above it, which parts are tried to be moved where repeats have
/// freed the rest.
const PARTS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// Effort of the repeats of one part, as a part of what repeats alone have.
const OF_PARTS: f64 = 0.25;

/// How far finer parts are from the best one.
const FINER: f64 = 0.125;

/// Random changes of a first choice: what is added to the seed that they follow from, and at which temperature
/// they begin.
const FIRST: (u64, f64) = (0, HOT);

/// Further random changes, as [`FIRST`]. Where they end depends on luck: what each leads to is a candidate
/// by itself, and is joined with all others.
const ALONE: [(u64, f64); 2] = [(1, HOT), (2, HOT)];

/// The same of random changes whose results are only joined: with each other, and with all.
const JOINED: [(u64, f64); 4] = [(0, COOLER), (1, COOLER), (2, COOLER), (3, COOLER)];

/// The effort where none is given, in seconds of the reference core.
const EFFORT: f64 = 2.0;

impl Strategy for Budget {
    fn moves(&self) -> bool {
        self.swap
    }

    fn search(&self, p: &Problem) -> Result<StrategyResult, PassError> {
        let (t, limit) = (&p.t, p.limit);
        let least = Least::of(t.g, t.plan, p.tail, p.device, p.cx)?;
        let bytes = least.minimum().min(p.whole);
        let minimum = Minimum { bytes, bound: least.bound.min(bytes), is_exact: least.is_exact };
        let sums = !p.cx.allow_reassociation && least.sums;
        let refused = PassError::DeviceMemory { limit, minimum: bytes, bound: minimum.bound, sums };
        // What little host memory leads to is known once it was tried.
        let is_least = p.cx.limits.host.is_none_or(|host| host == 0);
        if limit < bytes && is_least {
            return Err(refused);
        }
        let minimum = Some(minimum);
        if p.whole <= limit {
            return Ok(StrategyResult { minimum, ..StrategyResult::default() });
        }
        let (best, placed) = match p.cx.limits.host {
            Some(0) if self.recompute => {
                recompute::search(p, &recompute::in_other_orders(p)?, recompute::EFFORT)?
            }
            Some(0) => (None, 0),
            _ => self.best_of_all(p)?,
        };
        let stats = Stats::from([("plans_placed", placed)]);
        match best {
            None if limit < bytes => Err(refused),
            best => {
                Ok(StrategyResult { best: Some(best.unwrap_or(least.planned)), minimum, stats })
            }
        }
    }
}

impl Budget {
    /// The best in the plan's order and, where that costs time, of AutoSwap's plans, in
    /// definition order, and with states that leave their homes on the device. A search for the
    /// lowest peak may move what is cheap to compute again, and costs no memory, far from its
    /// readers; the model has it beside them.
    fn best_of_all(&self, p: &Problem) -> Result<(Option<Finished>, u64), PassError> {
        let Some(annealing) = Annealing::new(self, p, false) else { return Ok((None, 0)) };
        let one = annealing.improved(FIRST);
        let (first, placed) = annealing.finished(one.clone(), FIRST)?;
        if first.as_ref().is_some_and(|first| p.hides_copies(first)) {
            return Ok((first, placed));
        }
        let scored = || Ok((fastest_alone(p)?, 0));
        let others: [&(dyn Fn() -> Result<_, PassError> + Sync); 6] = [
            &scored,
            &|| annealing.plain(),
            &|| self.in_definition_order(p),
            &|| self.anneal(p, true, FIRST),
            &|| annealing.of_seeds(one.clone()),
            &|| self.repeats_then_swaps(p),
        ];
        let others: Vec<_> =
            others.par_iter().map(|other| other()).collect::<Result<_, PassError>>()?;
        Ok(fastest(others.into_iter().chain([(first, placed)])))
    }

    /// The best that computes tensors again until what is left above the limit is a part of what
    /// was there, with room in host memory, and moves that. Where the parts are best, finer ones follow:
    /// the larger the part, the less is computed again, up to where copies no longer hide.
    fn repeats_then_swaps(&self, p: &Problem) -> Result<(Option<Finished>, u64), PassError> {
        if !self.recompute {
            return Ok((None, 0));
        }
        let others = recompute::in_other_orders(p)?;
        let tried = |parts: &[f64]| {
            let found = parts.par_iter().map(|&part| repeats_to(p, &others, part));
            found.collect::<Result<Vec<_>, PassError>>()
        };
        let seconds = |found: &(Option<Finished>, u64)| {
            found.0.as_ref().map_or(f64::INFINITY, |found| found.seconds)
        };
        let coarse = tried(&PARTS)?;
        let each = PARTS.iter().zip(&coarse);
        let best = each.min_by(|a, b| seconds(a.1).total_cmp(&seconds(b.1)));
        let mut finer = best.map_or(vec![], |(part, _)| vec![part - FINER, part + FINER]);
        finer.retain(|part| (0.0..=1.0).contains(part));
        Ok(fastest(coarse.into_iter().chain(tried(&finer)?)))
    }

    /// The best in definition order.
    fn in_definition_order(&self, p: &Problem) -> Result<(Option<Finished>, u64), PassError> {
        let plan = ordered_by(Method::Definition, p.t.g, p.t.plan.clone(), p.cx)?;
        let whole = p.finished(plan)?;
        let t = Timeline::new(p.t.g, whole.base(), p.device)?.with_homes(p.cx);
        let p = Problem { t, whole: whole.arena.device, ..*p };
        let (found, placed) = self.anneal(&p, false, FIRST)?;
        let fits = whole.fits(&p.cx.limits) && !p.t.forces_host();
        let whole = Some(whole.clone()).filter(|_| fits);
        Ok((Finished::fastest([whole, found]), placed))
    }

    /// The best of greedy choices for several prices of the link, and what it promises; with
    /// `homes_leave` what has its home on the device may be away from it for a part of the step.
    pub fn greedy(
        &self,
        t: &Timeline,
        device: &Device,
        limits: PerSpace<Option<u64>>,
        homes_leave: bool,
    ) -> Option<(ResidencyChoice, Prediction)> {
        self.greedy_of(t, device, limits, &Sites::new(t, homes_leave))
    }

    /// The same for some decisions alone.
    fn greedy_of(
        &self,
        t: &Timeline,
        device: &Device,
        limits: PerSpace<Option<u64>>,
        sites: &Sites,
    ) -> Option<(ResidencyChoice, Prediction)> {
        let limit = limits.device.unwrap_or(u64::MAX);
        let (mut walker, mut room) =
            (Walker::new(t), Room::new(t, device).within_host(limits.host));
        let mut best: Option<(ResidencyChoice, Prediction)> = None;
        // Repeats may need what is overwritten by then; swaps alone can always be carried out.
        let swaps = Budget { recompute: false, ..self.clone() };
        let starts = [self, &swaps].into_iter().flat_map(|allowed| {
            let greedy = |hidden| greedy(t, device, allowed, sites, limit, hidden);
            HIDDEN.map(greedy)
        });
        let scored = by_each_score(t, device, limit);
        for choice in starts.chain(scored).chain([ResidencyChoice::keep_all(t)]) {
            let Some(script) = walker.walk(&choice) else { continue };
            let promise = room.schedule(script, limit);
            if best.as_ref().is_none_or(|(_, b)| promise.is_better_than(b)) {
                best = Some((choice, promise));
            }
        }
        best
    }

    /// The best of greedy choices, as it is and improved by random changes.
    fn anneal(
        &self,
        p: &Problem,
        homes_leave: bool,
        changes: (u64, f64),
    ) -> Result<(Option<Finished>, u64), PassError> {
        let Some(annealing) = Annealing::new(self, p, homes_leave) else { return Ok((None, 0)) };
        let (annealed, placed) = annealing.finished(annealing.improved(changes), changes)?;
        if annealed.as_ref().is_some_and(|a| p.hides_copies(a)) {
            return Ok((annealed, placed));
        }
        Ok(fastest([(annealed, placed), annealing.plain()?]))
    }
}

/// The best that computes tensors again until this part of what was above the limit is left, and moves that.
fn repeats_to(
    p: &Problem,
    others: &[Finished],
    part: f64,
) -> Result<(Option<Finished>, u64), PassError> {
    let above = p.whole.saturating_sub(p.limit);
    let moved = above.min(p.cx.limits.host.unwrap_or(above));
    let limit = p.limit.saturating_add((moved as f64 * part) as u64);
    if limit >= p.whole {
        return Ok((None, 0));
    }
    let limits = PerSpace { device: Some(limit), host: Some(0) };
    let cx = Cx { limits, ..*p.cx };
    let t = Timeline::new(p.t.g, p.t.plan, p.device)?.with_homes(&cx);
    let one = Problem { t, limit, cx: &cx, ..*p };
    let (repeats, placed) = recompute::search(&one, others, recompute::EFFORT * OF_PARTS)?;
    let Some(repeats) = repeats else { return Ok((None, placed)) };
    if repeats.fits(&p.cx.limits) && !p.t.forces_host() {
        return Ok((Some(repeats), placed));
    }
    let t = Timeline::new(p.t.g, &repeats.plan, p.device)?.with_homes(p.cx);
    let rest = Problem { t, whole: repeats.arena.device, ..*p };
    // Repeats chose well, so that swaps begin near what greedy ones leave.
    let near = SWAPS.anneal(&rest, false, (0, COOLER))?;
    if near.0.as_ref().is_some_and(|near| rest.hides_copies(near)) {
        return Ok((near.0, placed + near.1));
    }
    Ok(fastest([(None, placed), near, SWAPS.anneal(&rest, false, FIRST)?]))
}

/// The fastest plan of all, and how many were placed.
fn fastest(found: impl IntoIterator<Item = (Option<Finished>, u64)>) -> (Option<Finished>, u64) {
    found.into_iter().fold((None, 0), |(best, placed), (other, more)| {
        (Finished::fastest([best, other]), placed + more)
    })
}
