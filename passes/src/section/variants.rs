//! How many parts: graphs with their largest operators in 2 to 64 of them, judged by what they
//! need at least and by a first plan under the limit.

use super::{Section, figures};
use crate::budget::Budget;
use crate::detach_states::DetachStates;
use crate::recompute::{self, Effort};
use crate::residency::{Least, Timeline, largest_task};
use crate::views::Views;
use crate::{Cx, GraphPass, OffersVariants, PassError, Stats, Variants, devices};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;

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

/// Graphs that are offered.
const OFFERED: usize = 2;

/// What a variant has to save of a step's seconds, as a part of them.
const WORTH: f64 = 0.02;

impl OffersVariants for Section {
    fn variants(&self, g: &Graph, cx: &Cx, seconds: f64) -> Result<Option<Variants>, PassError> {
        let limit = cx.limits.device.unwrap_or(u64::MAX);
        let device = devices::or_cpu(cx.device)?;
        let planned_as = |g: &Graph| -> Result<Graph, PassError> {
            let mut g = g.clone();
            Views {}.run(&mut g, cx)?;
            DetachStates {}.run(&mut g, cx)?;
            Ok(g)
        };
        let uncut_graph = planned_as(g)?;
        if cx.limits.host == Some(0) && seconds.is_finite() && has_room(&uncut_graph, limit, cx)? {
            return Ok(None);
        }
        let uncut = Least::of_graph(&uncut_graph, &device, cx, Effort::Rough)?;
        let start = Timeline::new(&uncut_graph, &uncut.whole.plan, &device)?.start;
        let most = if cx.limits.host == Some(0) { MOST_SEARCHED } else { MOST_NODES };
        let mut tried: Vec<Tried> = Vec::new();
        let (mut minimum, mut in_vain) = (uncut.minimum(), 0);
        for parts in PARTS {
            let (graph, operators) = self.cut(g, parts, cx)?;
            let too_large = graph.nodes.len() > most.max(4 * g.nodes.len());
            if too_large || in_vain == IN_VAIN || cx.search.is_stopped() {
                break;
            }
            if operators == 0 {
                continue;
            }
            let planned = planned_as(&graph)?;
            let least = Least::of_graph(&planned, &device, cx, Effort::Rough)?;
            in_vain = if least.minimum() < minimum { 0 } else { in_vain + 1 };
            minimum = minimum.min(least.minimum());
            tried.push(Tried { graph, planned, stats: figures(parts, operators), least });
        }
        if let Some(best) = tried.iter_mut().min_by_key(|tried| tried.least.minimum())
            && best.least.minimum() > limit
            && (best.least.minimum() as f64) < LOWER * uncut.minimum() as f64
        {
            best.least = Least::of_graph(&best.planned, &device, cx, Effort::Full)?;
        }
        let all = || std::iter::once(&uncut).chain(tried.iter().map(|tried| &tried.least));
        let least = all().min_by_key(|least| least.minimum()).unwrap_or(&uncut);
        let (minimum, is_exact, sums) = (least.minimum(), least.is_exact, least.sums);
        let bound = all().map(|least| least.bound).min().unwrap_or(0);
        let mut promising: Vec<(f64, Graph, Stats)> = Vec::new();
        for Tried { graph, planned, stats, least } in tried {
            if least.minimum() <= limit {
                let promise = promise(&planned, &least, limit, &device, cx)?;
                if promise < seconds * (1.0 - WORTH) {
                    promising.push((promise, graph, stats));
                }
            }
        }
        promising.sort_by(|a, b| a.0.total_cmp(&b.0));
        promising.truncate(OFFERED);
        Ok(Some(Variants {
            graphs: promising.into_iter().map(|(_, g, stats)| (g, stats)).collect(),
            unlimited_seconds: start.last().copied().unwrap_or(0.0),
            minimum,
            bound: bound.min(minimum),
            is_exact,
            sums,
        }))
    }
}

/// A graph in parts.
struct Tried {
    graph: Graph,
    /// The same as it is planned.
    planned: Graph,
    stats: Stats,
    least: Least,
}

/// Seconds of a first plan of a graph that keeps the limit.
fn promise(
    g: &Graph,
    least: &Least,
    limit: u64,
    device: &Device,
    cx: &Cx,
) -> Result<f64, PassError> {
    let t = Timeline::new(g, &least.whole.plan, device)?.with_homes(cx);
    if cx.limits.host == Some(0) {
        return Ok(recompute::promise(&t, limit)?.unwrap_or(least.planned.seconds));
    }
    let swaps = [false, true].into_iter().filter_map(|homes_leave| {
        let (_, promise) = Budget::default().greedy(&t, device, cx.limits, homes_leave)?;
        (promise.over == 0).then_some(promise.seconds)
    });
    Ok(swaps.fold(f64::MAX, f64::min))
}

/// True where, beside the states, a limit leaves twice what the largest operator needs: what is
/// computed again costs little more on a graph without cuts then.
fn has_room(g: &Graph, limit: u64, cx: &Cx) -> Result<bool, PassError> {
    let (_, own) = largest_task(g, &Plan::new(g, cx.target)?);
    let states: u64 = g.states.values().map(|s| g.ty(s.enter).bytes()).sum();
    Ok(limit >= states.saturating_add(2 * own))
}
