//! Sharing for several streams: dead slots are taken over where that costs no parallelism.
//!
//! From the MXNet note ("Squeeze the Memory Consumption of Deep Learning", "Memory
//! Allocation Algorithm" and "Try to Allow More Parallelization"): results that find no
//! operand to overwrite take a slot from the box of those whose counter went to zero, of a
//! similar size, and preferably one whose users cannot run at the same time anyway. The
//! note asks the graph for ancestors or colours paths; here the pass `streams` colours the
//! paths, and vector clocks over the streams know both relations. Where a slot is taken
//! from tasks that could still run, `sync` makes the taker wait.
//!
//! Sound because the live ranges of a slot's buffers follow one another in the order, and
//! because `sync` orders every conflict on bytes between streams; without `across_streams`
//! nothing is left for it to order but what the graph asks for. What it costs: a slot is as
//! large as its largest buffer, from the first to the last of them.

use crate::share::{self, Pool, PoolOptions, Sharing};
use crate::{Cx, PassError, PlanOutcome, PlanPass};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;

/// Shares in place and takes over dead buffers' bytes, preferably of tasks that cannot run in parallel.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShareParallel {
    /// A buffer takes a slot of at most this many times its bytes, and no less than its
    /// bytes divided by it.
    pub match_range: NonZeroU64,
    /// If no other slot fits, take one of tasks that could still run in parallel, and let the
    /// placement overlap such slots; `sync` then adds the dependences. If false, a slot keeps its
    /// bytes until every later task knows that its users are done.
    pub across_streams: bool,
    /// Keep the bytes of every slot for the whole step, as MXNet's storages do; the arena is then
    /// the sum of all slots.
    pub hold: bool,
}

impl Default for ShareParallel {
    fn default() -> Self {
        let match_range = NonZeroU64::MIN.saturating_add(15);
        ShareParallel { match_range, across_streams: true, hold: false }
    }
}

impl PlanPass for ShareParallel {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Slots]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<PlanOutcome, PassError> {
        let &ShareParallel { match_range, across_streams, hold } = self;
        let options = PoolOptions { match_range: match_range.get(), across_streams, hold };
        let pool = Pool::new(g, plan, options)?;
        let slots = Sharing::new(g, plan)?.with_pool(pool).assign()?;
        let stats = share::statistics(g, plan, &slots);
        plan.set_slots(slots);
        Ok(stats.into())
    }
}
