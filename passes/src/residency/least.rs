//! The least device memory that a step can do with.

use super::{Choice, Layout, Planned, Room, Timeline, Walker, rewrite, with_early_commits};
use crate::order::{Method, Order};
use crate::{Cx, PassError, PlanPass};
use arenic_ir::cost::Device;
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::plan::{Plan, Task, TaskKind};

/// What a step needs at least. It follows from the graph and the plan's order alone, so that
/// it is the same for every limit.
#[derive(Clone)]
pub(crate) struct Least {
    /// The plan without a limit.
    pub(crate) whole: Planned,
    /// A plan with the least memory: whole, or with everything in host memory that the task at
    /// hand does not read or write.
    pub(crate) planned: Planned,
    /// No plan of this graph needs fewer bytes of device memory: what the largest task reads,
    /// writes and scratches.
    pub(crate) bound: u64,
    /// That task could be cut if sums may be taken in another order.
    pub(crate) sums: bool,
}

impl Least {
    /// What a plan needs in its own order, states committed early, or in definition order.
    pub(crate) fn of(g: &Graph, plan: &Plan, device: &Device, cx: &Cx) -> Result<Self, PassError> {
        let mut least = Self::in_order(g, plan, device, cx)?;
        let other = Self::in_order(g, &in_definition_order(g, plan.clone(), cx)?, device, cx)?;
        if other.minimum() < least.minimum() {
            least = other;
        }
        Ok(least)
    }

    /// What a graph needs in definition order.
    pub(crate) fn of_graph(g: &Graph, device: &Device, cx: &Cx) -> Result<Self, PassError> {
        let plan = in_definition_order(g, Plan::new(g, cx.target)?, cx)?;
        Self::in_order(g, &plan, device, cx)
    }

    /// Bytes of device memory that suffice.
    pub(crate) fn minimum(&self) -> u64 {
        self.planned.arena.device
    }

    fn in_order(g: &Graph, plan: &Plan, device: &Device, cx: &Cx) -> Result<Self, PassError> {
        let whole = Planned::of(g, plan.clone(), device, cx, Layout::Heuristic)?;
        let t = Timeline::new(g, &whole.plan, device)?;
        let (node, own) = largest_task(g, &whole.plan);
        let spilled = spilled(&t, device, cx)?;
        let planned = match spilled {
            Some(spilled) if spilled.arena.device < whole.arena.device => spilled,
            _ => whole.clone(),
        };
        let bound = own.min(planned.arena.device);
        Ok(Least { whole, planned, bound, sums: node.is_some_and(|n| is_sum(g, n)) })
    }
}

/// The plan in definition order, each state committed as soon as it can be.
pub(crate) fn in_definition_order(g: &Graph, mut plan: Plan, cx: &Cx) -> Result<Plan, PassError> {
    Order { method: Method::Definition, ..Order::default() }.run(g, &mut plan, cx)?;
    let order = with_early_commits(g, &plan)?;
    plan.set_order(g, order)?;
    Ok(plan)
}

/// The plan in which everything leaves that the task at hand does not need.
fn spilled(t: &Timeline, device: &Device, cx: &Cx) -> Result<Option<Planned>, PassError> {
    let choice = Choice::spill_all(t);
    let mut walker = Walker::new(t);
    let Some(script) = walker.walk(&choice) else { return Ok(None) };
    Room::new(t, device).schedule(script, 0);
    let plan = rewrite(t, &choice, script)?;
    Planned::of(t.g, plan, device, cx, Layout::Heuristic).map(Some)
}

/// The task that needs most at once, and the bytes that it reads, writes and scratches: no
/// plan of the graph needs fewer, whatever it copies or computes again.
pub(crate) fn largest_task(g: &Graph, plan: &Plan) -> (Option<NodeId>, u64) {
    let own = |task: &Task| match task.kind {
        TaskKind::Run(n) => Some((Some(n), own_bytes(g, plan, task, n))),
        TaskKind::Copy { .. } | TaskKind::Commit { .. } => None,
    };
    plan.tasks.values().filter_map(own).max_by_key(|o| o.1).unwrap_or((None, 0))
}

/// True where a node could be cut if sums may be taken in another order.
fn is_sum(g: &Graph, n: NodeId) -> bool {
    let Ok(outputs) = g.output_types(n) else { return false };
    !g.nodes[n].op.cuts(&g.input_types(n), &outputs.iter().collect::<Vec<_>>()).is_empty()
}

/// Bytes that a task cannot do without: its distinct operands, its results less what may
/// share bytes with them, its scratch.
fn own_bytes(g: &Graph, plan: &Plan, task: &Task, n: NodeId) -> u64 {
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
