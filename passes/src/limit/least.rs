//! The least device memory that a step can do with.

use crate::commits::ordered_by;
use crate::largest::largest_task;
use crate::order::Method;
use crate::recompute::{self, Effort, Lowest};
use crate::residency::{ResidencyChoice, Room, Timeline, Walker, rewrite};
use crate::tail::{Depth, Finished, Tail};
use crate::{Cx, PassError};
use arenic_ir::cost::Device;
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::plan::Plan;

/// Orders that are tried where neither a plan's own nor that of definition reaches the limit.
const ORDERS: [Method; 2] = [Method::EagerFree, Method::FreedMinusAllocated];

/// What a step needs at least. It follows from the graph, the plan's order and what may leave the
/// device alone, so that it is the same for every limit on device memory.
#[derive(Clone)]
pub(crate) struct Least {
    /// The plan without a limit.
    pub(crate) whole: Finished,
    /// A plan with the least memory: whole, with everything in host memory that the task at hand
    /// does not read or write, or, where host memory has no room for that, with what is computed
    /// again.
    pub(crate) planned: Finished,
    /// No plan of this graph needs fewer bytes of device memory: what the largest task reads,
    /// writes and scratches, where nothing may leave the device beside what is alive throughout.
    pub(crate) bound: u64,
    /// No less is known to suffice: the search for it went to its end.
    pub(crate) is_exact: bool,
    /// That task could be cut if sums may be taken in another order.
    pub(crate) sums: bool,
}

impl Least {
    /// What a plan needs in its own order or in others.
    pub(crate) fn of(
        g: &Graph,
        plan: &Plan,
        tail: &Tail,
        device: &Device,
        cx: &Cx,
    ) -> Result<Self, PassError> {
        let in_order = |plan: &Plan| Self::in_order(g, plan, tail, device, cx, Effort::Full);
        let by = |method| in_order(&ordered_by(method, g, plan.clone(), cx)?);
        let (own, other) = rayon::join(|| in_order(plan), || by(Method::Definition));
        let mut all = vec![own?, other?];
        let limit = cx.limits.device.unwrap_or(u64::MAX);
        if all.iter().all(|least| least.minimum() > limit) {
            let (a, b) = rayon::join(|| by(ORDERS[0]), || by(ORDERS[1]));
            all.extend([a?, b?]);
        }
        let is_exact = all.iter().all(|least| least.is_exact);
        let own = all.remove(0);
        let lower = |a: Self, b: Self| if b.minimum() < a.minimum() { b } else { a };
        Ok(Least { is_exact, ..all.into_iter().fold(own, lower) })
    }

    /// What a graph needs in definition order.
    pub(crate) fn of_graph(
        g: &Graph,
        tail: &Tail,
        device: &Device,
        cx: &Cx,
        effort: Effort,
    ) -> Result<Self, PassError> {
        let plan = ordered_by(Method::Definition, g, Plan::new(g, cx.target)?, cx)?;
        Self::in_order(g, &plan, tail, device, cx, effort)
    }

    /// Bytes of device memory that suffice.
    pub(crate) fn minimum(&self) -> u64 {
        self.planned.arena.device
    }

    fn in_order(
        g: &Graph,
        plan: &Plan,
        tail: &Tail,
        device: &Device,
        cx: &Cx,
        effort: Effort,
    ) -> Result<Self, PassError> {
        let outlined = |plan| tail.finish(g, plan, device, cx, Depth::Outline);
        let whole = outlined(plan.clone())?;
        let t = Timeline::new(g, whole.base(), device)?.with_homes(cx);
        let (node, own) = largest_task(g, whole.base());
        let has_room =
            |planned: &Finished| cx.limits.host.is_none_or(|most| planned.arena.host <= most);
        let spilled = match cx.limits.host {
            Some(0) => None,
            _ => spilled(&t, device)?.map(outlined).transpose()?.filter(has_room),
        };
        let (planned, is_exact, floor) = match spilled {
            Some(spilled) => (spilled, true, own),
            None => {
                let limit = cx.limits.device.unwrap_or(0);
                let placed = |enough| {
                    let Lowest { plan, is_least, floor } =
                        recompute::least(&t, enough, effort, cx.search)?;
                    Ok::<_, PassError>((outlined(plan)?, is_least && effort == Effort::Full, floor))
                };
                match placed(limit)? {
                    // Addresses took more than the margin.
                    (planned, false, _) if planned.arena.device > limit => placed(0)?,
                    found => found,
                }
            }
        };
        let smaller = planned.arena.device < whole.arena.device;
        let planned = if smaller { planned } else { whole.clone() };
        let floor = if cx.limits.host == Some(0) { floor.max(own) } else { own };
        let bound = floor.min(planned.arena.device);
        Ok(Least { whole, planned, bound, is_exact, sums: node.is_some_and(|n| is_sum(g, n)) })
    }
}

/// The plan in which everything leaves that the task at hand does not need.
fn spilled(t: &Timeline, device: &Device) -> Result<Option<Plan>, PassError> {
    let choice = ResidencyChoice::spill_all(t);
    let mut walker = Walker::new(t);
    let Some(script) = walker.walk(&choice) else { return Ok(None) };
    Room::new(t, device).schedule(script, 0);
    Ok(Some(rewrite(t, &choice, script)?))
}

/// True where a node could be cut if sums may be taken in another order.
fn is_sum(g: &Graph, n: NodeId) -> bool {
    let Ok(outputs) = g.output_types(n) else { return false };
    !g.nodes[n].op.cuts(&g.input_types(n), &outputs.iter().collect::<Vec<_>>()).is_empty()
}
