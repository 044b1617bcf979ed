//! Order: which task runs when. The order decides the peak.
//!
//! Candidates are definition order and a list scheduler that always runs the ready task
//! with the largest (bytes freed − bytes allocated), ties in definition order, so that
//! distances between uses survive. The candidate with the lowest live peak after
//! in-place sharing is kept. Sound because every candidate is a topological order of the
//! plan's dependences, which `Plan::set_order` checks again.

mod list;

use crate::share_in_place;
use crate::{Cx, PassError, PlanPass, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{BufferKind, Fact, Plan, TaskId};
use arenic_ir::program::Space;
use cranelift_entity::EntityRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Orders the tasks so that the live peak is low.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Order {
    /// How candidates are made.
    pub method: Method,
}

/// How orders are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Every method below; the best result is kept.
    #[default]
    Best,
    /// The order of definition in the model, each state committed as soon as it can be.
    Definition,
    /// The ready task with the largest (bytes freed − bytes allocated).
    FreedMinusAllocated,
}

impl PlanPass for Order {
    fn needs(&self) -> &[Fact] {
        &[]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<Stats, PassError> {
        let definition = || plan.tasks.keys().collect::<Vec<TaskId>>();
        let listed = || {
            let order = list::freed_minus_allocated(&problem(g, plan));
            order.into_iter().map(TaskId::new).collect::<Vec<TaskId>>()
        };
        let candidates = match self.method {
            Method::Best => vec![definition(), listed()],
            Method::Definition => vec![definition()],
            Method::FreedMinusAllocated => vec![listed()],
        };
        let mut best: Option<(u64, Vec<TaskId>)> = None;
        for order in candidates {
            plan.set_order(g, order.clone())?;
            let peak = share_in_place::assign(g, plan)?.live_peak()[Space::Device];
            // The first of equals stays: definition order, where it is one.
            if best.as_ref().is_none_or(|(p, _)| peak < *p) {
                best = Some((peak, order));
            }
        }
        let (peak, order) = best.unwrap_or_default();
        plan.set_order(g, order)?;
        Ok(Stats::from([("live_peak_bytes", peak)]))
    }
}

/// The live peak of definition order under in-place sharing, in bytes of device memory.
///
/// # Errors
/// The graph cannot be planned; see [`PassError`].
pub fn definition_order_peak(g: &Graph, cx: &Cx) -> Result<u64, PassError> {
    let mut plan = Plan::new(g, cx.target)?;
    Order { method: Method::Definition }.run(g, &mut plan, cx)?;
    Ok(share_in_place::assign(g, &plan)?.live_peak()[Space::Device])
}

/// The plan as a bare scheduling problem. A state's exit value counts nothing where its
/// commit can be left out: it is written straight home.
fn problem(g: &Graph, plan: &Plan) -> list::Problem {
    let mut size = vec![0i64; plan.buffers.len()];
    for (b, buffer) in &plan.buffers {
        size[b.index()] = match buffer.kind {
            BufferKind::Input | BufferKind::Value => buffer.rounded() as i64,
            _ => 0,
        };
    }
    for s in g.states.keys() {
        if let Some(b) = share_in_place::exit_buffer(g, plan, s) {
            size[b.index()] = 0;
        }
    }
    let mut pinned = vec![false; plan.buffers.len()];
    for output in &g.outputs {
        if let Some(b) = plan.buffer_of[g.resolve(output.value).root] {
            pinned[b.index()] = true;
        }
    }
    let tasks = plan.tasks.values().map(|task| {
        let mut reads: Vec<usize> = task.reads.iter().map(|b| b.index()).collect();
        reads.sort_unstable();
        reads.dedup();
        list::Task { reads, writes: task.writes.iter().flatten().map(|b| b.index()).collect() }
    });
    list::Problem {
        size,
        pinned,
        tasks: tasks.collect(),
        dependences: plan.dependences(g).into_iter().map(|(a, b)| (a.index(), b.index())).collect(),
    }
}
