//! Operators in parts: how many parts there are follows from the byte limit. The rest of the pipeline
//! is run on the graph as it is and, where that is not as fast as without a limit, on the graphs
//! with 2 to 64 parts that promise most, judged by what they need at least and by a first plan under
//! the limit. The fastest stays.

use super::{Pipeline, PipelineOutcome, Report, RunError, RunOptions};
use crate::budget::Budget;
use crate::largest::largest_task;
use crate::limit::Least;
use crate::recompute::{self, Effort};
use crate::report::Minimum;
use crate::residency::Timeline;
use crate::section::section_stats;
use crate::{Cx, InParts, Pass, PassError, Stats, devices};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_ir::text::Module;
use std::time::Instant;

/// Numbers of parts that are tried.
const PARTS: [usize; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// Nodes of the largest graph that is tried, unless the uncut one has a quarter of them; and
/// where nothing may leave the device, so that the least limit takes a search to find.
const MOST_NODES: usize = 4096;
const MOST_SEARCHED: usize = 1024;

/// A graph whose least limit, at a first look, is below this part of the uncut one's is looked
/// at more closely.
const LOWER: f64 = 0.95;

/// So many numbers of parts in a row that need no less memory end the search.
const IN_VAIN: usize = 3;

/// Graphs that are planned.
const PLANNED: usize = 2;

/// What a graph in parts has to save of a step's seconds, as a part of them.
const WORTH: f64 = 0.02;

/// A step that is shorter by less than this, in seconds, is as fast.
const SAME: f64 = 1e-9;

/// A graph in parts.
struct Variant {
    graph: Graph,
    /// The same as the passes that follow rewrite it.
    frozen: Graph,
    stats: Stats,
    least: Least,
}

/// Graphs in parts.
struct Variants {
    /// Those that promise fewer seconds under the limit.
    graphs: Vec<(Graph, Stats)>,
    /// Seconds of the step on the graph as it was if there were no limit.
    uncut_seconds: f64,
    /// What is known of the least limit that can be kept with any of them.
    minimum: Minimum,
    /// That could be less if sums may be taken in another order.
    sums: bool,
}

impl Pipeline {
    /// Runs what follows pass `i` on the module and on graphs in parts; what came of the fastest.
    pub(super) fn fastest_in_parts(
        &self,
        i: usize,
        pass: &dyn InParts,
        module: &Module,
        cx: &Cx,
        options: &mut RunOptions,
    ) -> Result<PipelineOutcome, RunError> {
        let mut best = self.run_from(i + 1, module.clone(), cx, options);
        let (seconds, uncut) = match &best {
            Ok(outcome) => {
                let times = outcome.report.times;
                let is_fast = times.is_some_and(|times| times.is_as_fast_as_unlimited());
                let seconds = if is_fast { 0.0 } else { outcome.report.seconds() };
                (seconds, outcome.report.minimum)
            }
            Err(RunError::Pass { error, .. }) if error.is_of_limits() => {
                (f64::INFINITY, error.minimum())
            }
            Err(_) => return best,
        };
        let start = Instant::now();
        let Some(found) = self.variants(i, pass, &module.graph, cx, seconds)? else { return best };
        let minimum = uncut.map_or(found.minimum, |uncut| found.minimum.of_either(uncut));
        let mut chosen = None;
        for (graph, stats) in found.graphs {
            let module = Module { graph, ..Module::default() };
            let outcome = match self.run_from(i + 1, module.clone(), cx, options) {
                Err(RunError::Pass { error, .. }) if error.is_of_limits() => continue,
                outcome => outcome?,
            };
            let seconds = outcome.report.seconds();
            let is_slower = |best: &PipelineOutcome| best.report.seconds() - seconds > SAME;
            if best.as_ref().map_or(true, is_slower) {
                chosen = Some((module, stats));
                best = Ok(outcome);
            }
        }
        match &mut best {
            Ok(outcome) => {
                outcome.report.minimum = Some(minimum);
                if let Some((module, stats)) = chosen {
                    outcome.report.uncut_seconds = Some(found.uncut_seconds);
                    if let Some(after_pass) = &mut options.after_pass {
                        let (pass, elapsed) = (&self.steps[i].name, start.elapsed());
                        after_pass(&Report { pass, stats: &stats, elapsed, module: &module });
                    }
                }
            }
            Err(RunError::Pass { error: PassError::DeviceMemory { limit, .. }, pass }) => {
                let sums = found.sums && !cx.allow_reassociation;
                let Minimum { bytes: minimum, bound, .. } = minimum;
                let error = PassError::DeviceMemory { limit: *limit, minimum, bound, sums };
                best = Err(RunError::Pass { pass: std::mem::take(pass), error });
            }
            Err(_) => {}
        }
        best
    }

    /// Graphs in parts on which the rest of the pipeline should be run, if on `g` the step takes
    /// `seconds` (infinity: no plan of it keeps the limit; 0: one costs no time); `None` if nothing is to be gained.
    fn variants(
        &self,
        i: usize,
        pass: &dyn InParts,
        g: &Graph,
        cx: &Cx,
        seconds: f64,
    ) -> Result<Option<Variants>, RunError> {
        let failed = |error| self.failed(i, error);
        let limit = cx.limits.device.unwrap_or(u64::MAX);
        let device = &*devices::or_cpu(cx.device).map_err(|e| failed(e.into()))?;
        let tail = &self.tail(cx);
        let is_graph = |step: &super::Step| matches!(step.pass, Pass::Graph(_));
        let plans = self.steps.iter().position(|s| !is_graph(s)).unwrap_or(self.steps.len());
        let frozen = |g: &Graph| self.rewritten(i + 1..plans, g, cx);
        let least = |g: &Graph, effort| Least::of_graph(g, tail, device, cx, effort);
        let uncut_graph = frozen(g)?;
        if cx.limits.host == Some(0)
            && seconds.is_finite()
            && has_room(&uncut_graph, limit, cx).map_err(failed)?
        {
            return Ok(None);
        }
        let uncut = least(&uncut_graph, Effort::Rough).map_err(failed)?;
        let start = Timeline::new(&uncut_graph, uncut.whole.base(), device);
        let uncut_seconds = start.map_err(|e| failed(e.into()))?.start.last().copied();
        let most = if cx.limits.host == Some(0) { MOST_SEARCHED } else { MOST_NODES };
        let mut tried: Vec<Variant> = Vec::new();
        let (mut minimum, mut in_vain) = (uncut.minimum(), 0);
        for parts in PARTS {
            let (graph, operators) = pass.cut(g, parts, cx).map_err(failed)?;
            let too_large = graph.nodes.len() > most.max(4 * g.nodes.len());
            if too_large || in_vain == IN_VAIN || cx.search.is_stopped() {
                break;
            }
            if operators == 0 {
                continue;
            }
            let frozen = frozen(&graph)?;
            let least = least(&frozen, Effort::Rough).map_err(failed)?;
            in_vain = if least.minimum() < minimum { 0 } else { in_vain + 1 };
            minimum = minimum.min(least.minimum());
            let stats = section_stats(parts, operators);
            tried.push(Variant { graph, frozen, stats, least });
        }
        if let Some(best) = tried.iter_mut().min_by_key(|tried| tried.least.minimum())
            && best.least.minimum() > limit
            && (best.least.minimum() as f64) < LOWER * uncut.minimum() as f64
        {
            best.least = least(&best.frozen, Effort::Full).map_err(failed)?;
        }
        let all = || std::iter::once(&uncut).chain(tried.iter().map(|tried| &tried.least));
        let least = all().min_by_key(|least| least.minimum()).unwrap_or(&uncut);
        let (bytes, is_exact, sums) = (least.minimum(), least.is_exact, least.sums);
        let bound = all().map(|least| least.bound).min().unwrap_or(0).min(bytes);
        // First plans are compared with one another: what later searches gain is not known of them.
        // Nothing promises more than a plan that costs no time.
        let first = match seconds > 0.0 && uncut.minimum() <= limit {
            true => promise(&uncut_graph, &uncut, limit, device, cx).map_err(failed)?,
            false => seconds,
        };
        let mut promising: Vec<(f64, Graph, Stats)> = Vec::new();
        for Variant { graph, frozen, stats, least } in tried {
            if least.minimum() <= limit {
                let promise = promise(&frozen, &least, limit, device, cx).map_err(failed)?;
                if promise < seconds.max(first) * (1.0 - WORTH) {
                    promising.push((promise, graph, stats));
                }
            }
        }
        promising.sort_by(|a, b| a.0.total_cmp(&b.0));
        promising.truncate(PLANNED);
        Ok(Some(Variants {
            graphs: promising.into_iter().map(|(_, g, stats)| (g, stats)).collect(),
            uncut_seconds: uncut_seconds.unwrap_or(0.0),
            minimum: Minimum { bytes, bound, is_exact },
            sums,
        }))
    }
}

/// Seconds of a first plan of a graph that keeps the limit.
fn promise(
    g: &Graph,
    least: &Least,
    limit: u64,
    device: &Device,
    cx: &Cx,
) -> Result<f64, PassError> {
    let t = Timeline::new(g, least.whole.base(), device)?.with_homes(cx);
    if cx.limits.host == Some(0) {
        return Ok(recompute::promise(&t, limit, cx.search)?.unwrap_or(least.planned.seconds));
    }
    let swaps = [false, true].into_iter().filter_map(|homes_leave| {
        let (_, promise) = Budget::default().greedy(&t, device, cx.limits, homes_leave)?;
        (promise.over == 0).then_some(promise.seconds)
    });
    Ok(swaps.fold(f64::MAX, f64::min))
}

/// True if, beside the states, a limit leaves twice what the largest operator needs: what is
/// computed again costs little more on a graph without cuts then.
fn has_room(g: &Graph, limit: u64, cx: &Cx) -> Result<bool, PassError> {
    let (_, own) = largest_task(g, &Plan::new(g, cx.target)?);
    let states: u64 = g.states.values().map(|s| g.ty(s.enter).bytes()).sum();
    Ok(limit >= states.saturating_add(2 * own))
}
