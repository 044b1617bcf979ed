//! The task that needs the most memory by itself, which bounds every plan of a graph from below.

use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::plan::{Plan, Task, TaskKind};

/// The task that needs most at once, and the bytes that it reads, writes and scratches: no
/// plan of the graph needs fewer, whatever it copies or computes again.
pub(crate) fn largest_task(g: &Graph, plan: &Plan) -> (Option<NodeId>, u64) {
    let own = |task: &Task| match task.kind {
        TaskKind::Run(n) => Some((Some(n), own_bytes(g, plan, task, n))),
        TaskKind::Copy { .. } | TaskKind::Commit { .. } => None,
    };
    plan.tasks.values().filter_map(own).max_by_key(|o| o.1).unwrap_or((None, 0))
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
