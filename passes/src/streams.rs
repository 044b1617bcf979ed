//! Streams by path colouring: tasks on one long path run on one stream.
//!
//! From the MXNet note ("Squeeze the Memory Consumption of Deep Learning", "Try to Allow
//! More Parallelization"): find a longest path, colour its tasks, and go on with what is
//! left; the first `count` paths get a stream each. The note leaves the rest open: here
//! each remaining task goes to the stream with the least work so far. A task's length
//! is the bytes that it reads and writes.
//!
//! Sound whatever the streams are: `sync` orders every conflict between them.

use crate::{Cx, PassError, PlanOutcome, PlanPass, Stats};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan, Task, TaskId, TaskKind};
use arenic_ir::program::StreamId;
use cranelift_entity::{EntityRef, SecondaryMap};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU8;

/// Gives each task a stream: the longest paths of the graph one each (MXNet note).
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Streams {
    /// How many streams, up to 255.
    pub count: NonZeroU8,
}

impl Default for Streams {
    fn default() -> Self {
        Streams { count: NonZeroU8::MIN.saturating_add(1) }
    }
}

impl PlanPass for Streams {
    fn needs(&self) -> &[Fact] {
        &[]
    }

    fn gives(&self) -> &[Fact] {
        &[]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<PlanOutcome, PassError> {
        let mut before: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
        for (a, b) in plan.dependences(g) {
            before[b].push(a);
        }
        let order = plan.topological(g);
        let mut work = vec![0u64; usize::from(self.count.get())];
        let mut stream: SecondaryMap<TaskId, Option<usize>> = SecondaryMap::new();
        for (s, total) in work.iter_mut().enumerate() {
            for t in longest_path(plan, &order, &before, |t| stream[t].is_none()) {
                stream[t] = Some(s);
                *total = total.saturating_add(length(plan, t));
            }
        }
        for &t in &order {
            if stream[t].is_some() {
                continue;
            }
            let least = (0..work.len()).min_by_key(|&s| work[s]).unwrap_or(0);
            stream[t] = Some(least);
            work[least] = work[least].saturating_add(length(plan, t));
        }
        let others = usize::from(self.count.get());
        for (t, task) in &mut plan.tasks {
            let own = stream[t].unwrap_or(0);
            task.stream = StreamId::new(if communicates(g, task) { others } else { own });
        }
        let used = work.iter().filter(|&&w| w > 0).count();
        Ok(Stats::from([("streams", used as u64)]).into())
    }
}

/// True for exchanges between ranks, which stay on one stream: all ranks must run them in one order.
fn communicates(g: &Graph, task: &Task) -> bool {
    matches!(task.kind, TaskKind::Run(n) if g.nodes[n].op.communicates())
}

/// Bytes that the task reads and writes, at least 1.
fn length(plan: &Plan, t: TaskId) -> u64 {
    let task = &plan.tasks[t];
    let used = task.reads.iter().chain(task.writes.iter().flatten());
    used.fold(1, |sum: u64, &b| sum.saturating_add(plan.buffers[b].bytes))
}

/// The tasks of a longest path among those that are `open`, the last one first.
fn longest_path(
    plan: &Plan,
    order: &[TaskId],
    before: &SecondaryMap<TaskId, Vec<TaskId>>,
    open: impl Fn(TaskId) -> bool,
) -> Vec<TaskId> {
    let mut longest: SecondaryMap<TaskId, (u64, Option<TaskId>)> = SecondaryMap::new();
    let mut end: Option<(u64, TaskId)> = None;
    for &t in order.iter().filter(|&&t| open(t)) {
        // Of equal paths the one whose last task comes first.
        let mut best = (0, None);
        for &a in before[t].iter().filter(|&&a| open(a)) {
            if longest[a].0 > best.0 {
                best = (longest[a].0, Some(a));
            }
        }
        longest[t] = (best.0.saturating_add(length(plan, t)), best.1);
        if end.is_none_or(|(most, _)| longest[t].0 > most) {
            end = Some((longest[t].0, t));
        }
    }
    std::iter::successors(end.map(|(_, t)| t), |&t| longest[t].1).collect()
}
