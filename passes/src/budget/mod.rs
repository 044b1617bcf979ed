//! The byte limit: what leaves the device and what is computed again, so that the plan fits.
//!
//! From AutoSwap (Zhang et al., section IV) come the load curve, the area that a tensor's
//! absence frees and the schedule of copies; the DQN planner (section 4.6) combines swapping
//! with recomputation because they use different engines. Here both compete in one greedy
//! choice ([`choose`]) whose cost is what the simulated step would wait or repeat; several
//! weightings are carried out ([`rewrite`]), placed and simulated, and the fastest plan that fits is taken.
//!
//! The limit is hard. Where nothing chosen fits, everything that the task at hand does not
//! read or write is in host memory: `minimum_device_bytes` is the arena of that plan, so
//! every limit from there on can be kept and every lower one is refused.
//!
//! Sound because a copy holds the same bytes, a repeated node is pure and reads the same
//! operands (states as they enter, the generator's key its own), and `check` proves it.

mod choose;
mod link;
mod rewrite;
mod timeline;

use crate::lower::Lower;
use crate::place::{Place, Wish, place_within};
use crate::simulate::{roofline, simulate};
use crate::sync::Sync;
use crate::{Cx, PassError, PlanPass, ProgramPass, Search, Stats, devices, share};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan, TaskId, TaskKind};
use arenic_ir::program::{PerSpace, Program};
use choose::{Choice, Weights, choose};
use cranelift_entity::SecondaryMap;
use rewrite::rewrite;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use timeline::Timeline;

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
const HIDDEN: [f64; 3] = [0.02, 0.1, 0.5];

/// Tasks in all random trials together, and how many trials there are at least and at most.
const RANDOM_TASKS: usize = 40_000;
const RANDOM: (usize, usize) = (8, 100);

/// A step that takes no more than this times the unlimited one is not improved further.
const GOOD_ENOUGH: f64 = 1.002;

/// How often a weighting aims lower, after its plan was above the limit.
const AIMS: usize = 6;

/// Seconds of search for the addresses of each plan that plain weightings give.
const PLACE_SECONDS: f64 = 0.2;

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
        let slotted = &whole.plan;
        let timeline = Timeline::new(g, slotted, device)?;
        let unlimited = timeline.start.last().copied().unwrap_or(0.0);
        let everything = Choice::spill_all(&timeline);
        let spilled = rewrite(&timeline, &everything).unwrap_or_else(|| slotted.clone());
        let spilled = Planned::of(g, spilled, device, PLACE_SECONDS, cx)?;
        let minimum = spilled.arena.device.min(whole.arena.device);
        let fits = |p: &Planned| {
            p.arena.device <= limit && cx.limits.host.is_none_or(|most| p.arena.host <= most)
        };
        if self.swap && limit < minimum {
            let bound = floor(&timeline);
            return Err(PassError::DeviceMemory { limit, minimum, bound });
        }
        let (best, tried) = match fits(&whole) {
            true => (Some(whole.clone()), 0),
            false => self.fastest(&timeline, device, limit, fits, cx)?,
        };
        let best = match best {
            Some(best) => best,
            None if !self.swap => return Err(PassError::WithoutSwaps { limit }),
            None if fits(&spilled) => spilled,
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
    /// The fastest plan that fits, of those that all weightings lead to, and how many plans
    /// these are. What leads among the plain weightings goes on with random factors.
    fn fastest(
        &self,
        t: &Timeline,
        device: &Device,
        limit: u64,
        fits: impl Fn(&Planned) -> bool,
        cx: &Cx,
    ) -> Result<(Option<Planned>, u64), PassError> {
        let good_enough = t.start.last().copied().unwrap_or(0.0) * GOOD_ENOUGH;
        let mut weightings = self.weightings();
        let random = (RANDOM_TASKS / t.order.len().max(1)).clamp(RANDOM.0, RANDOM.1);
        let most = weightings.len() + random;
        let mut best: Option<Planned> = None;
        let (mut next, mut leading, mut tried) = (0, 0, 0);
        while let Some(&weights) = weightings.get(next) {
            for planned in attempts(t, device, limit, weights, cx)? {
                tried += 1;
                let faster = best.as_ref().is_none_or(|b| planned.seconds < b.seconds);
                if fits(&planned) && faster {
                    best = Some(planned);
                    leading = next;
                }
            }
            next += 1;
            let done = best.as_ref().is_some_and(|b| b.seconds <= good_enough);
            if next == weightings.len() && next < most && !done {
                let seed = cx.search.seed.wrapping_add(next as u64);
                weightings.push(Weights { seed, ..weightings[leading] });
            }
        }
        Ok((best, tried))
    }

    fn weightings(&self) -> Vec<Weights> {
        let mut all: Vec<Weights> = Vec::new();
        let kinds = [(true, true), (true, false), (false, true)];
        for (swap, repeat) in kinds {
            let allowed = (self.swap || !swap) && (self.recompute || !repeat);
            let hidden: &[f64] = if swap && repeat { &HIDDEN } else { &HIDDEN[..1] };
            all.extend(hidden.iter().filter(|_| allowed).map(|&h| Weights {
                swap,
                repeat,
                hidden: h,
                seed: 0,
            }));
        }
        all
    }
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

/// Plans that one weighting leads to: where one is above the limit, the next aims lower.
fn attempts(
    t: &Timeline,
    device: &Device,
    limit: u64,
    weights: Weights,
    cx: &Cx,
) -> Result<Vec<Planned>, PassError> {
    let mut found = Vec::new();
    let mut aim = limit;
    for _ in 0..AIMS {
        if cx.search.is_stopped() {
            break;
        }
        let Some(choice) = choose(t, device, aim, weights) else { break };
        let Some(plan) = rewrite(t, &choice) else { break };
        let seconds = if weights.seed == 0 { PLACE_SECONDS } else { 0.0 };
        let planned = Planned::of(t.g, plan, device, seconds, cx)?;
        let over = planned.arena.device.saturating_sub(limit);
        found.push(planned);
        if over == 0 {
            break;
        }
        aim = aim.saturating_sub(over);
    }
    Ok(found)
}

/// No plan needs less: the most that one task reads, writes and scratches at once.
fn floor(t: &Timeline) -> u64 {
    let least = |&task: &TaskId| own_bytes(t.g, t.plan, task);
    t.order.iter().map(least).max().unwrap_or(0)
}

/// A plan with its addresses and what it takes.
#[derive(Clone)]
struct Planned {
    plan: Plan,
    arena: PerSpace<u64>,
    seconds: f64,
}

impl Planned {
    /// Shares, places with so many seconds of search for each space, and simulates.
    fn of(
        g: &Graph,
        mut plan: Plan,
        device: &Device,
        seconds: f64,
        cx: &Cx,
    ) -> Result<Planned, PassError> {
        let slots = share::assign(g, &plan)?;
        plan.set_slots(slots);
        let search = Search { time_limit: Some(seconds), progress: None, ..cx.search };
        let wish = Wish { capacity: None, search };
        place_within(&mut plan, &cx.limits, &Place::default(), &wish)?;
        let mut program = Program::new(cx.target.align);
        Lower {}.run(g, &plan, &mut program)?;
        Sync {}.run(g, &plan, &mut program)?;
        let kernel = roofline(g, device);
        let seconds = simulate(&program, device, &kernel).seconds;
        let arena = plan.placement()?.sizes;
        Ok(Planned { plan, arena, seconds })
    }
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
