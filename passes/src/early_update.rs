//! Early updates: control edges that keep the update of a parameter from running late.
//!
//! OLLA, section 4.3, functions 3 and 4: from the fan-in of an update the search looks for an
//! *anchor*, a task of a higher level than the update's, and among those for the one that is
//! furthest from the end; the update must run before it. Sound as a restriction: every order
//! that keeps to more dependences keeps to the graph's own, and an edge to a higher level
//! closes no cycle with those. It narrows the search and is not always good: where a gradient is larger
//! than the tensors that produce it, an early update costs memory, so the default pipeline
//! leaves it out.

use crate::spans::spans;

use crate::{Cx, PassError, PlanOutcome, PlanPass, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{BufferId, Fact, Plan, TaskId};
use cranelift_entity::{EntityRef, SecondaryMap};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Adds control edges from updates to anchors, so that updates run early.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyUpdate {}

impl PlanPass for EarlyUpdate {
    fn needs(&self) -> &[Fact] {
        &[Fact::Spans]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Spans]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<PlanOutcome, PassError> {
        let levels = Levels::new(g, plan)?;
        let updates = updates(g, plan, &levels.after);
        let edges: Vec<(TaskId, TaskId)> =
            updates.iter().filter_map(|&v| Some((v, levels.anchor(v)?))).collect();
        let stats =
            Stats::from([("updates", updates.len() as u64), ("control_edges", edges.len() as u64)]);
        plan.add_control_edges(g, edges)?;
        plan.set_spans(spans(g, plan));
        Ok(stats.into())
    }
}

/// The tasks that end the way of a gradient: nobody waits for them, and they leave nothing
/// alive but a state's new value.
fn updates(g: &Graph, plan: &Plan, after: &SecondaryMap<TaskId, Vec<TaskId>>) -> Vec<TaskId> {
    let mut live: SecondaryMap<BufferId, bool> = SecondaryMap::new();
    for output in &g.outputs {
        if let Some(b) = plan.buffer_of[g.resolve(output.value).root] {
            live[b] = plan.buffers[b].bytes > 0;
        }
    }
    let leaves_nothing = |t: TaskId| !plan.tasks[t].writes.iter().flatten().any(|&b| live[b]);
    plan.tasks
        .keys()
        .filter(|&t| after[t].is_empty() && !plan.tasks[t].reads.is_empty() && leaves_nothing(t))
        .collect()
}

/// The levelizations of function 3.
struct Levels {
    /// Longest path from the start.
    forward: SecondaryMap<TaskId, u32>,
    /// Longest path to the end.
    backward: SecondaryMap<TaskId, u32>,
    before: SecondaryMap<TaskId, Vec<TaskId>>,
    after: SecondaryMap<TaskId, Vec<TaskId>>,
}

/// The best anchor from somewhere, with its level from the end.
type Candidate = Option<(u32, TaskId)>;

impl Levels {
    fn new(g: &Graph, plan: &Plan) -> Result<Levels, PassError> {
        let spans = plan.spans()?;
        let last = plan.tasks.len().saturating_sub(1) as u32;
        let mut backward = SecondaryMap::new();
        for t in plan.tasks.keys() {
            backward[t] = last.saturating_sub(spans.alap[t]);
        }
        let mut levels = Levels {
            forward: spans.asap.clone(),
            backward,
            before: SecondaryMap::new(),
            after: SecondaryMap::new(),
        };
        for (a, b) in plan.dependences(g) {
            levels.before[b].push(a);
            levels.after[a].push(b);
        }
        Ok(levels)
    }

    /// Function 3 for one update: widens the search from its fan-in until an anchor is found.
    fn anchor(&self, update: TaskId) -> Option<TaskId> {
        let mut visited: HashMap<TaskId, Candidate> = HashMap::new();
        let mut starts = vec![update];
        loop {
            let mut next: Vec<TaskId> =
                starts.iter().flat_map(|&v| self.before[v].iter().copied()).collect();
            next.sort_unstable_by_key(|t| t.index());
            next.dedup();
            if next.is_empty() {
                return None;
            }
            let mut best: Candidate = None;
            for &start in &next {
                let found = self.candidate(start, self.forward[update], &mut visited);
                if found.is_some_and(|(level, _)| best.is_none_or(|(l, _)| level > l)) {
                    best = found;
                }
            }
            if let Some((_, anchor)) = best {
                return Some(anchor);
            }
            starts = next;
        }
    }

    /// Function 4 without recursion: the successor, or the successor of a successor that is
    /// not high enough, with the highest level from the end.
    fn candidate(
        &self,
        start: TaskId,
        above: u32,
        visited: &mut HashMap<TaskId, Candidate>,
    ) -> Candidate {
        let mut stack = vec![start];
        while let Some(&v) = stack.last() {
            if visited.contains_key(&v) {
                stack.pop();
                continue;
            }
            let low = |t: &&TaskId| self.forward[**t] <= above && !visited.contains_key(*t);
            let waiting: Vec<TaskId> = self.after[v].iter().filter(low).copied().collect();
            if !waiting.is_empty() {
                stack.extend(waiting);
                continue;
            }
            let mut best: Candidate = None;
            for &next in &self.after[v] {
                let found = match self.forward[next] <= above {
                    true => visited[&next],
                    false => Some((self.backward[next], next)),
                };
                if found.is_some_and(|(level, _)| best.is_none_or(|(l, _)| level > l)) {
                    best = found;
                }
            }
            visited.insert(v, best);
            stack.pop();
        }
        visited.get(&start).copied().flatten()
    }
}
