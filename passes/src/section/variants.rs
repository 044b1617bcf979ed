//! How many parts: graphs with their largest operators in 2 to 64 of them, judged by what they
//! need at least and by a first plan under the limit.

use super::{Section, figures};
use crate::budget::Budget;
use crate::detach_states::DetachStates;
use crate::recompute;
use crate::residency::{Least, Timeline, largest_task};
use crate::views::Views;
use crate::{Cx, GraphPass, OffersVariants, PassError, Stats, Variants, devices};
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;

/// Numbers of parts that are tried.
const PARTS: [usize; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// Nodes of the largest graph that is tried, unless the uncut one has a quarter of them.
const MOST_NODES: usize = 4096;

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
        let uncut = Least::of_graph(&uncut_graph, &device, cx)?;
        let start = Timeline::new(&uncut_graph, &uncut.whole.plan, &device)?.start;
        let (mut minimum, mut bound, mut sums) = (uncut.minimum(), uncut.bound, uncut.sums);
        let mut promising: Vec<(f64, Graph, Stats)> = Vec::new();
        let mut in_vain = 0;
        for parts in PARTS {
            let (cut, operators) = self.cut(g, parts, cx)?;
            let too_large = cut.nodes.len() > MOST_NODES.max(4 * g.nodes.len());
            if too_large || in_vain == IN_VAIN || cx.search.is_stopped() {
                break;
            }
            if operators == 0 {
                continue;
            }
            let planned = planned_as(&cut)?;
            let least = Least::of_graph(&planned, &device, cx)?;
            bound = bound.min(least.bound);
            in_vain += 1;
            if least.minimum() < minimum {
                (minimum, sums, in_vain) = (least.minimum(), least.sums, 0);
            }
            if least.minimum() <= limit {
                let t = Timeline::new(&planned, &least.whole.plan, &device)?;
                let swaps = [false, true].into_iter().filter_map(|homes_leave| {
                    let budget = Budget::default();
                    let (_, promise) = budget.greedy(&t, &device, cx.limits, homes_leave)?;
                    (promise.over == 0).then_some(promise.seconds)
                });
                let promise = match cx.limits.host {
                    Some(0) => recompute::promise(&t, limit)?.unwrap_or(least.planned.seconds),
                    _ => swaps.fold(f64::MAX, f64::min),
                };
                if promise < seconds * (1.0 - WORTH) {
                    promising.push((promise, cut, figures(parts, operators)));
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
            sums,
        }))
    }
}

/// True where, beside the states, a limit leaves twice what the largest operator needs: what is
/// computed again costs little more on a graph without cuts then.
fn has_room(g: &Graph, limit: u64, cx: &Cx) -> Result<bool, PassError> {
    let (_, own) = largest_task(g, &Plan::new(g, cx.target)?);
    let states: u64 = g.states.values().map(|s| g.ty(s.enter).bytes()).sum();
    Ok(limit >= states.saturating_add(2 * own))
}
