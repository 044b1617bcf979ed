//! Overlap: exchanges between ranks run beside kernels instead of before them.
//!
//! In the order with the least peak a parameter is gathered right before it is read, and an update comes right after
//! its gradient's sum or at the very end, so that kernels wait for the links, and the links for kernels. Here a gather
//! goes before kernels that take as long as it does (`lanes`), and an update before the first kernel that begins when its sum is
//! there (`updates`). What an exchange reads and its scratch keep their bytes until it has ended, since kernels that took
//! them would wait for it. All that takes bytes that the order leaves below the limit, or, where there is none, below its
//! own peak: the peak does not rise. Of gathers, of updates, and of both, the change that makes the step shortest is taken.
//!
//! Sound because each is an order of the plan's dependences, which `Plan::set_order` checks again; the bytes that each
//! needs are counted, and placed on trial, before one is taken.
//!
//! Kernels take what their rooflines say, exchanges what the links between ranks do (`cluster`). An exchange is given more
//! time than that where links have it ([`SLACK`]).
//! From Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2.3, for
//! sums beside the backward pass, and Zhao et al., "PyTorch FSDP" (VLDB 2023), section 3.3, for gathers before their readers;
//! both are silent on bytes.

mod lanes;
#[cfg(test)]
mod tests;
mod updates;

use crate::cluster::Cluster;
use crate::order::{arena, problem, waits};
use crate::simulate::roofline;
use crate::{Cx, PassError, PlanOutcome, PlanPass, Stats, devices, share};
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::op::{Family, Op};
use arenic_ir::plan::{BufferId, Fact, Plan, Task, TaskId, TaskKind};
use arenic_ir::program::Space;
use cranelift_entity::EntityRef;
use lanes::{Lane, Lanes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Exchanges are given up to so many times the seconds that they are said to take: ranks are late now and then, and
/// there may be more of them than the links within a node serve. But never so many that links would be busy for more than
/// this part of the kernels' time: what waits for its exchange would pile up.
const SLACK: (f64, f64) = (4.0, 0.5);

/// How often a change is made that takes too many bytes, each time with fewer.
const TRIES: usize = 3;

/// Runs exchanges between ranks beside kernels, in bytes that the order leaves.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Overlap {}

impl PlanPass for Overlap {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn gives(&self) -> &[Fact] {
        &[]
    }

    fn reorders(&self, g: &Graph) -> bool {
        g.nodes.values().any(|node| node.op.communicates())
    }

    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<PlanOutcome, PassError> {
        if !self.reorders(g) {
            return Ok(PlanOutcome::default());
        }
        let device = devices::or_cpu(cx.device)?;
        let lanes = of_plan(g, plan, &Cluster::of_device(&device), roofline(g, &device));
        let problem = problem(g, plan)?;
        let waits = waits(g, plan).into_iter().map(|(a, b)| (a.index(), b.index()));
        let lanes = Lanes::new(&problem, lanes, waits, SLACK);
        let used = used(g, plan);
        // It may come from a plan that was changed since.
        used.release(plan, |_| None);
        let before = Tried::new(g, plan, plan.order()?.to_vec(), &lanes)?;
        let most = cx.limits.device.unwrap_or(before.peak).max(before.peak);
        let order: Vec<usize> = before.order.iter().map(|t| t.index()).collect();
        let changes: [&dyn Fn(u64) -> Vec<usize>; 4] = [
            &|_| order.clone(),
            &|most| lanes.gather_early(&order, most),
            &|most| lanes.update_when_summed(&order, most),
            &|most| lanes.update_when_summed(&lanes.gather_early(&order, most), most),
        ];
        let mut best: Option<Tried> = None;
        for change in changes {
            // Sharing and addresses may take more than a problem counts.
            let mut aimed_at = most;
            for _ in 0..TRIES {
                let order: Vec<TaskId> = change(aimed_at).into_iter().map(TaskId::new).collect();
                used.hold(plan, &order, &lanes);
                let tried = Tried::new(g, plan, order, &lanes)?;
                let above = tried.peak.saturating_sub(most);
                let above = above.max(tried.arena.saturating_sub(most.max(before.arena)));
                if above == 0 {
                    if best.as_ref().is_none_or(|best| tried.seconds < best.seconds) {
                        best = Some(tried);
                    }
                    break;
                }
                aimed_at = aimed_at.saturating_sub(above);
            }
        }
        let microseconds = |seconds: f64| (seconds * 1e6) as u64;
        let taken = best.as_ref().unwrap_or(&before);
        let usual = |tried: &Tried| lanes.seconds(tried.order.iter().map(|t| t.index()), 1.0);
        let stats = Stats::from([
            ("us_before", microseconds(usual(&before))),
            ("us_after", microseconds(usual(taken))),
            ("us_of_kernels", microseconds(lanes.kernel_seconds())),
            ("us_of_exchanges", microseconds(lanes.exchange_seconds())),
        ]);
        match best {
            Some(_) => used.hold(plan, &taken.order, &lanes),
            None => used.release(plan, |_| None),
        }
        plan.set_order(g, taken.order.clone())?;
        Ok(stats.into())
    }
}

/// What each exchange uses that comes and goes: terms, but for those that their sums take the place of, and scratch.
struct Used(Vec<(TaskId, Vec<BufferId>)>);

fn used(g: &Graph, plan: &Plan) -> Used {
    let is_copy = |t: &&Task| matches!(t.kind, TaskKind::Copy { .. });
    // A copy to another space has an end of its own.
    let copied: HashSet<BufferId> =
        plan.tasks.values().filter(is_copy).flat_map(|t| &t.reads).copied().collect();
    let comes_and_goes = |b: &BufferId| !plan.buffers[*b].kind.is_home() && !copied.contains(b);
    let by = |(t, task): (TaskId, &Task)| {
        let TaskKind::Run(n) = task.kind else { return None };
        let op = &g.nodes[n].op;
        let is_in_place = matches!(op, Op::AllReduce { .. });
        let terms = if is_in_place { &[][..] } else { &task.reads };
        let all = terms.iter().chain(&task.scratch).copied().filter(comes_and_goes);
        op.communicates().then(|| (t, all.collect()))
    };
    Used(plan.tasks.iter().filter_map(by).collect())
}

impl Used {
    /// Has all of it keep its bytes until its exchange has ended, in an order.
    fn hold(&self, plan: &mut Plan, order: &[TaskId], lanes: &Lanes) {
        let ends = lanes.ends(order.iter().map(|t| t.index())).into_iter();
        let last: HashMap<TaskId, TaskId> =
            ends.map(|(v, last)| (TaskId::new(v), order[last])).collect();
        self.release(plan, |t| last.get(&t).copied());
    }

    /// Has what each exchange uses keep its bytes until this task.
    fn release(&self, plan: &mut Plan, until: impl Fn(TaskId) -> Option<TaskId>) {
        for (t, used) in &self.0 {
            used.iter().for_each(|&b| plan.buffers[b].release = until(*t));
        }
    }
}

/// An order with what it needs.
struct Tried {
    order: Vec<TaskId>,
    /// With exchanges that have their slack.
    seconds: f64,
    /// Bytes that are live at once at most, and those of an arena by heuristics.
    peak: u64,
    arena: u64,
}

impl Tried {
    fn new(
        g: &Graph,
        plan: &mut Plan,
        order: Vec<TaskId>,
        lanes: &Lanes,
    ) -> Result<Tried, PassError> {
        plan.set_order(g, order.clone())?;
        let slots = share::assign(g, plan)?;
        let peak = slots.live_peak()[Space::Device];
        plan.set_slots(slots);
        let arena = arena(plan)?;
        let seconds = lanes.seconds(order.iter().map(|t| t.index()), lanes.slack());
        Ok(Tried { order, seconds, peak, arena })
    }
}

/// What each task occupies.
fn of_plan(g: &Graph, plan: &Plan, wires: &Cluster, kernel: impl Fn(NodeId) -> f64) -> Vec<Lane> {
    let lane = |kind: TaskKind| {
        let TaskKind::Run(n) = kind else {
            // What is swapped has its own place in the order.
            let is_light = matches!(kind, TaskKind::Commit { .. });
            return Lane::Kernel { seconds: 0.0, is_light };
        };
        let op = &g.nodes[n].op;
        match wires.node_seconds(g, n, g.rank_count()) {
            Some(seconds) => Lane::Exchange { seconds, sums: !matches!(op, Op::AllGather { .. }) },
            None => Lane::Kernel { seconds: kernel(n), is_light: is_light(op) },
        }
    };
    plan.tasks.values().map(|task| lane(task.kind)).collect()
}

/// True for what updates and norms of gradients are made of.
fn is_light(op: &Op) -> bool {
    matches!(
        op.family(),
        Family::Elementwise(_)
            | Family::Update(_)
            | Family::Reducing(_)
            | Family::Movement(_)
            | Family::Collective(_)
    )
}
