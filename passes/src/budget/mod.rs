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

use crate::residency::{Choice, Found, Layout, Planned, Problem, Timeline, under_limit};
use crate::{Cx, PassError, PlanPass, Stats};
use anneal::{Annealer, Candidate, HOT, WARM};
use arenic_ir::graph::Graph;
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

/// Random changes times tasks, and how many changes there are at least and at most.
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
        let bound = floor(t).min(minimum);
        if self.swap && limit < minimum {
            return Err(PassError::DeviceMemory { limit, minimum, bound });
        }
        let (best, placed) = if p.whole <= limit { (None, 0) } else { self.anneal(p)? };
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
        let stats = Stats::from([
            ("minimum_device_bytes", minimum),
            ("minimum_device_bytes_bound", bound),
            ("plans_placed", placed),
        ]);
        Ok(Found { best, stats })
    }

    /// The best of greedy choices, improved.
    fn anneal(&self, p: &Problem) -> Result<(Option<Planned>, u64), PassError> {
        let sites = sites(&p.t, self);
        let mut annealer = Annealer::new(&p.t, p.device, self, &sites, p.cx.search.seed);
        let changes = (CHANGED_TASKS / p.t.order.len().max(1)).clamp(CHANGES.0, CHANGES.1);
        let mut best: Option<Candidate> = None;
        for hidden in HIDDEN {
            let choice = greedy(&p.t, p.device, self, &sites, p.limit, hidden);
            let Some(promise) = annealer.judge(&choice, p.limit) else { continue };
            if best.as_ref().is_none_or(|b| promise.is_better_than(&b.promise)) {
                best = Some(Candidate { choice, promise });
            }
        }
        let Some(mut best) = best else { return Ok((None, 0)) };
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

/// No plan needs less: the most that one task reads, writes and scratches at once.
fn floor(t: &Timeline) -> u64 {
    let least = |&task: &TaskId| own_bytes(t.g, t.plan, task);
    t.order.iter().map(least).max().unwrap_or(0)
}

/// Bytes that a task cannot do without: its distinct operands, its results less what may
/// share bytes with them, its scratch.
fn own_bytes(g: &Graph, plan: &Plan, t: TaskId) -> u64 {
    let task = &plan.tasks[t];
    let TaskKind::Run(n) = task.kind else { return 0 };
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
