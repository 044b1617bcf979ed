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

use crate::residency::{Choice, Planned, Room, Timeline, Walker, rewrite};
use crate::{Cx, PassError, PlanPass, Stats, devices};
use anneal::{Annealer, Candidate, HOT, WARM};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan, TaskId, TaskKind};
use cranelift_entity::SecondaryMap;
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
const CHANGED_TASKS: usize = 20_000_000;
const CHANGES: (usize, usize) = (2_000, 10_000_000);

/// How often a choice aims lower, after its plan was above the limit.
const AIMS: usize = 8;

/// Seconds of search for the addresses of each plan.
const PLACE_SECONDS: f64 = 2.0;

impl PlanPass for Budget {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<Stats, PassError> {
        let Some(limit) = cx.limits.device else { return Ok(Stats::new()) };
        let cpu;
        let device = match cx.device {
            Some(device) => device,
            None => {
                cpu = devices::cpu()?;
                &cpu
            }
        };
        let order = with_early_commits(g, plan)?;
        plan.set_order(g, order)?;
        let whole = Planned::of(g, plan.clone(), device, PLACE_SECONDS, cx)?;
        let timeline = Timeline::new(g, &whole.plan, device)?;
        let unlimited = timeline.start.last().copied().unwrap_or(0.0);
        let everything = Choice::spill_all(&timeline);
        let spilled = carry_out(&timeline, &everything, device, 0, cx)?;
        let spilled = spilled.unwrap_or_else(|| whole.clone());
        let minimum = spilled.arena.device.min(whole.arena.device);
        if self.swap && limit < minimum {
            let bound = floor(&timeline);
            return Err(PassError::DeviceMemory { limit, minimum, bound });
        }
        let (best, tried) = match whole.fits(&cx.limits) {
            true => (Some(whole.clone()), 0),
            false => self.search(&timeline, device, limit, cx)?,
        };
        let best = match best {
            Some(best) => best,
            None if !self.swap => return Err(PassError::WithoutSwaps { limit }),
            None if spilled.fits(&cx.limits) => spilled,
            None => {
                let needed = spilled.arena.host;
                let limit = cx.limits.host.unwrap_or(0);
                return Err(PassError::HostMemory { limit, needed });
            }
        };
        let stats = Stats::from([
            ("minimum_device_bytes", minimum),
            ("minimum_device_bytes_bound", floor(&timeline).min(minimum)),
            ("plans_tried", tried),
            ("step_microseconds", (best.seconds * 1e6) as u64),
            ("unlimited_step_microseconds", (unlimited * 1e6) as u64),
        ]);
        *plan = best.plan;
        let order = plan.order()?.to_vec();
        plan.set_order(g, order)?;
        Ok(stats)
    }
}

impl Budget {
    /// The fastest plan that was found to fit, and how many plans were placed.
    fn search(
        &self,
        t: &Timeline,
        device: &Device,
        limit: u64,
        cx: &Cx,
    ) -> Result<(Option<Planned>, u64), PassError> {
        let sites = sites(t, self);
        let dbg_t = std::time::Instant::now();
        let mut annealer = Annealer::new(t, device, self, &sites, cx.search.seed);
        let changes = (std::env::var("CT").ok().and_then(|s| s.parse().ok()).unwrap_or(CHANGED_TASKS) / t.order.len().max(1)).clamp(CHANGES.0, CHANGES.1);
        let starts = HIDDEN.map(|hidden| greedy(t, device, self, &sites, limit, hidden));
        let mut start: Option<Candidate> = None;
        for choice in starts {
            let Some(promise) = annealer.judge(&choice, limit) else { continue };
            if std::env::var("DBG").is_ok() { eprintln!("start {promise:?} at {:.2}", dbg_t.elapsed().as_secs_f64()); }
            if start.as_ref().is_none_or(|s| promise.is_better_than(&s.promise)) {
                start = Some(Candidate { choice, promise });
            }
        }
        let Some(mut candidate) = start else { return Ok((None, 0)) };
        let (mut best, mut tried, mut aim): (Option<Planned>, _, _) = (None, 0, limit);
        for round in 0..AIMS {
            if cx.search.is_stopped() {
                break;
            }
            let (changes, begin) = if round == 0 { (changes, HOT) } else { (changes / 8, WARM) };
            candidate.promise = annealer.judge(&candidate.choice, aim).unwrap_or_default();
            candidate = annealer.improve(candidate, aim, changes, begin);
            if std::env::var("DBG").is_ok() { eprintln!("round annealed {changes} at {:.2}", dbg_t.elapsed().as_secs_f64()); }
            let Some(planned) = carry_out(t, &candidate.choice, device, aim, cx)? else { break };
            tried += 1;
            if std::env::var("DBG").is_ok() { eprintln!("round {round} aim {aim} {:?} → live {} arena {} {}", candidate.promise, planned.plan.slots().map_or(0, |s| s.live_peak().device), planned.arena.device, planned.seconds); }
            let over = planned.arena.device.saturating_sub(limit);
            if planned.fits(&cx.limits) && best.as_ref().is_none_or(|b| planned.seconds < b.seconds) {
                best = Some(planned);
            }
            if over == 0 {
                break;
            }
            aim = aim.saturating_sub(over);
        }
        Ok((best, tried))
    }
}

/// The plan of a choice, its copies scheduled under a limit; `None` where it would need a
/// value that is overwritten by then.
fn carry_out(
    t: &Timeline,
    choice: &Choice,
    device: &Device,
    limit: u64,
    cx: &Cx,
) -> Result<Option<Planned>, PassError> {
    let mut walker = Walker::new(t);
    let Some(script) = walker.walk(choice) else { return Ok(None) };
    Room::new(t, device).schedule(script, limit);
    let plan = rewrite(t, choice, script)?;
    Ok(Some(Planned::of(t.g, plan, device, PLACE_SECONDS, cx)?))
}

/// The plan's order with every commit as soon as it can be: a new value whose home is in host
/// memory has bytes on the device until then.
fn with_early_commits(g: &Graph, plan: &Plan) -> Result<Vec<TaskId>, PassError> {
    let is_commit = |t: TaskId| matches!(plan.tasks[t].kind, TaskKind::Commit { .. });
    let mut position: SecondaryMap<TaskId, usize> = SecondaryMap::new();
    for (i, &t) in plan.order()?.iter().enumerate() {
        position[t] = i;
    }
    let mut last: SecondaryMap<TaskId, Option<TaskId>> = SecondaryMap::new();
    for (before, after) in plan.dependences(g) {
        if is_commit(after) && last[after].is_none_or(|l| position[l] < position[before]) {
            last[after] = Some(before);
        }
    }
    let mut following: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
    let mut order = Vec::with_capacity(plan.tasks.len());
    // A commit that waits for another one stays where it is.
    let moves = |t: TaskId| is_commit(t) && last[t].is_none_or(|l| !is_commit(l));
    for &t in plan.order()?.iter().filter(|&&t| moves(t)) {
        match last[t] {
            Some(l) => following[l].push(t),
            None => order.push(t),
        }
    }
    for &t in plan.order()?.iter().filter(|&&t| !moves(t)) {
        order.push(t);
        order.append(&mut following[t]);
    }
    Ok(order)
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
