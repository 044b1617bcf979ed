//! The byte limit: what leaves the device and what is computed again, so that the plan fits.
//!
//! From AutoSwap (Zhang et al., section IV) come the load curve, the area that a tensor's
//! absence frees and the schedule of copies; the DQN planner (section 4.6) combines swapping
//! with recomputation because they use different engines. Here both compete: a [`greedy`]
//! choice for several prices of the link, which [`anneal`] improves by what the schedule
//! predicts; it is placed and simulated, and aims lower until it fits.
//!
//! The limit is hard. Where nothing chosen fits, everything that the task at hand does not
//! read or write is in host memory: `minimum_device_bytes` is the arena of that plan, so
//! every limit from there on can be kept and every lower one is refused.
//!
//! Sound for the reasons that [`crate::residency`] gives.

mod anneal;
mod greedy;
mod sites;

use crate::residency::{
    Choice, Found, Layout, Planned, Prediction, Problem, Room, Timeline, Walker, under_limit,
};
use crate::{Cx, PassError, PlanPass, Stats};
use anneal::{Annealer, Candidate, HOT, WARM};
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::plan::{Fact, Plan, TaskId, TaskKind};
use greedy::greedy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sites::sites;

/// Swaps and recomputes until the plan keeps the byte limit; without a limit it does nothing.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Tensors may go to host memory.
    pub swap: bool,
    /// Tensors may be computed again.
    pub recompute: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { swap: true, recompute: true }
    }
}

/// Prices of a second of the link that kernels hide, in seconds, that are tried.
const HIDDEN: [f64; 4] = [0.01, 0.1, 0.5, 2.0];

/// Random changes times tasks, and how many changes there are at least and at most; for few
/// decisions there are no more than pairs of them.
const CHANGED_TASKS: usize = 40_000_000;
const CHANGES: (usize, usize) = (2_000, 100_000);

impl PlanPass for Budget {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<Stats, PassError> {
        under_limit(g, plan, cx, "budget", Layout::Searched, |p| self.search(p))
    }
}

impl Budget {
    /// The fastest plan that was found to fit.
    fn search(&self, p: &Problem) -> Result<Found, PassError> {
        let (t, limit) = (&p.t, p.limit);
        let spilled = p.carry_out(&Choice::spill_all(t), 0)?;
        let minimum = spilled.as_ref().map_or(p.whole, |s| p.whole.min(s.arena.device));
        let (node, floor) = largest(t);
        let bound = floor.min(minimum);
        if self.swap && limit < minimum {
            let sums = !p.cx.allow_reassociation && node.is_some_and(|n| is_sum(t.g, n));
            return Err(PassError::DeviceMemory { limit, minimum, bound, sums });
        }
        let mut stats =
            Stats::from([("minimum_device_bytes", minimum), ("minimum_device_bytes_bound", bound)]);
        if p.whole <= limit {
            return Ok(Found { best: None, stats });
        }
        let (best, placed) = self.anneal(p)?;
        stats.insert("plans_placed", placed);
        let best = match (best, spilled) {
            (Some(best), _) => Some(best),
            (None, _) if !self.swap => return Err(PassError::WithoutSwaps { limit }),
            (None, Some(spilled)) if spilled.fits(&p.cx.limits) => Some(spilled),
            (None, spilled) => {
                let needed = spilled.map_or(0, |s| s.arena.host);
                let limit = p.cx.limits.host.unwrap_or(0);
                return Err(PassError::HostMemory { limit, needed });
            }
        };
        Ok(Found { best, stats })
    }

    /// The best of greedy choices for several prices of the link.
    pub(crate) fn greedy(&self, p: &Problem, limit: u64) -> Option<Choice> {
        let sites = sites(&p.t, self);
        let (mut walker, mut room) = (Walker::new(&p.t), Room::new(&p.t, p.device));
        let mut best: Option<(Choice, Prediction)> = None;
        // Repeats may need what is overwritten by then; swaps alone can always be carried out.
        let swaps = Budget { swap: self.swap, recompute: false };
        let starts = [self, &swaps].into_iter().flat_map(|allowed| {
            let greedy = |hidden| greedy(&p.t, p.device, allowed, &sites, limit, hidden);
            HIDDEN.map(greedy)
        });
        for choice in starts.chain([Choice::keep_all(&p.t)]) {
            let Some(script) = walker.walk(&choice) else { continue };
            let promise = room.schedule(script, limit);
            if best.as_ref().is_none_or(|(_, b)| promise.is_better_than(b)) {
                best = Some((choice, promise));
            }
        }
        best.map(|(choice, _)| choice)
    }

    /// The best of greedy choices, improved.
    fn anneal(&self, p: &Problem) -> Result<(Option<Planned>, u64), PassError> {
        let sites = sites(&p.t, self);
        let mut annealer = Annealer::new(&p.t, p.device, self, &sites, p.cx.search.seed);
        if sites.is_empty() {
            return Ok((None, 0));
        }
        let changes = (CHANGED_TASKS / p.t.order.len().max(1)).clamp(CHANGES.0, CHANGES.1);
        let changes = changes.min(sites.len() * sites.len());
        let Some(choice) = self.greedy(p, p.limit) else { return Ok((None, 0)) };
        let Some(promise) = annealer.judge(&choice, p.limit) else { return Ok((None, 0)) };
        let mut best = Candidate { choice, promise };
        let mut first = true;
        p.aim(|aim| {
            let (changes, begin) = if first { (changes, HOT) } else { (changes / 8, WARM) };
            first = false;
            best.promise = annealer.judge(&best.choice, aim)?;
            best = annealer.improve(best.clone(), aim, changes, begin);
            Some(best.choice.clone())
        })
    }
}

/// The task that needs most at once, and the bytes that it reads, writes and scratches: no
/// plan needs less.
fn largest(t: &Timeline) -> (Option<NodeId>, u64) {
    let own = |&task: &TaskId| match t.plan.tasks[task].kind {
        TaskKind::Run(n) => Some((Some(n), own_bytes(t, task, n))),
        TaskKind::Copy { .. } | TaskKind::Commit { .. } => None,
    };
    t.order.iter().filter_map(own).max_by_key(|o| o.1).unwrap_or((None, 0))
}

/// True where a node could be cut if sums may be taken in another order.
fn is_sum(g: &Graph, n: NodeId) -> bool {
    let Ok(outputs) = g.output_types(n) else { return false };
    let cuts = g.nodes[n].op.cuts(&g.input_types(n), &outputs.iter().collect::<Vec<_>>());
    cuts.iter().any(|cut| !cut.keeps_bits)
}

/// Bytes that a task cannot do without: its distinct operands, its results less what may
/// share bytes with them, its scratch.
fn own_bytes(t: &Timeline, task: TaskId, n: NodeId) -> u64 {
    let (g, plan) = (t.g, t.plan);
    let task = &plan.tasks[task];
    let mut buffers: Vec<_> = task.reads.clone();
    buffers.extend(task.writes.iter().flatten());
    buffers.extend(task.scratch);
    buffers.sort_unstable();
    buffers.dedup();
    let all: u64 = buffers.iter().map(|&b| plan.buffers[b].rounded()).sum();
    let Ok(outputs) = g.output_types(n) else { return all };
    let pairs =
        g.nodes[n].op.in_place_pairs(&g.input_types(n), &outputs.iter().collect::<Vec<_>>());
    let shared = |&(_, output): &(usize, usize)| task.writes[output];
    let mut shared: Vec<_> = pairs.iter().filter_map(shared).collect();
    shared.sort_unstable();
    shared.dedup();
    all - shared.iter().map(|&b| plan.buffers[b].rounded()).sum::<u64>()
}
