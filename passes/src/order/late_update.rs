//! Updates after the last reader of what they overwrite.
//!
//! An exit value that is computed before its state's old value is dead cannot be written
//! home and needs bytes of its own until the end of the step. The scheduling problem counts
//! an exit value as nothing wherever it is computed, which a bound must; so an order that
//! the search likes may have such updates. Here they wait for the old value's readers,
//! everything else keeps its turn; or all of the search is done again where updates wait.

use super::problem::Problem;
use crate::share::exit_buffer;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Plan, TaskId};
use cranelift_entity::{EntityRef, SecondaryMap};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which tasks wait for which, updates for the readers of what they overwrite included.
pub(super) struct LateUpdates {
    waits: Vec<(TaskId, TaskId)>,
    after: SecondaryMap<TaskId, Vec<TaskId>>,
    blocked: SecondaryMap<TaskId, usize>,
}

impl LateUpdates {
    pub(super) fn new(g: &Graph, plan: &Plan) -> Self {
        let mut late = LateUpdates {
            waits: waits(g, plan),
            after: SecondaryMap::new(),
            blocked: SecondaryMap::new(),
        };
        if late.waits.is_empty() {
            return late;
        }
        for (first, then) in plan.dependences(g).into_iter().chain(late.waits.iter().copied()) {
            late.after[first].push(then);
            late.blocked[then] += 1;
        }
        late
    }

    /// The problem in which all updates are late: its orders can be carried out with every exit value at
    /// home. `None` where none has to wait, or where an old value is read by what depends on the new one.
    pub(super) fn problem(&self, p: &Problem) -> Option<Problem> {
        let waits: Vec<_> = self.waits.iter().map(|(a, b)| (a.index(), b.index())).collect();
        let mut late = p.clone();
        (!waits.is_empty() && late.add_dependences(&waits).is_ok()).then_some(late)
    }

    /// The peak in bytes of an order of the problem's operators, with updates late enough to be written home.
    pub(super) fn peak(&self, p: &Problem, order: &[usize]) -> u64 {
        let tasks: Vec<TaskId> = order.iter().map(|&t| TaskId::new(t)).collect();
        match self.apply(&tasks) {
            Some(late) => p.peak(&late.iter().map(|t| t.index()).collect::<Vec<_>>()),
            None => p.peak(order),
        }
    }

    /// The order with updates late enough to be written home; `None` if it has them so
    /// already, or where an old value is read by what depends on the new one.
    pub(super) fn apply(&self, order: &[TaskId]) -> Option<Vec<TaskId>> {
        let mut position: SecondaryMap<TaskId, usize> = SecondaryMap::new();
        order.iter().enumerate().for_each(|(i, &t)| position[t] = i);
        if self.waits.iter().all(|&(before, after)| position[before] < position[after]) {
            return None;
        }
        let mut blocked = self.blocked.clone();
        let ready = order.iter().filter(|&&t| blocked[t] == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = ready.map(|&t| Reverse(position[t])).collect();
        let mut late = Vec::with_capacity(order.len());
        while let Some(Reverse(i)) = ready.pop() {
            late.push(order[i]);
            for &next in &self.after[order[i]] {
                blocked[next] -= 1;
                if blocked[next] == 0 {
                    ready.push(Reverse(position[next]));
                }
            }
        }
        (late.len() == order.len()).then_some(late)
    }
}

/// Pairs (reader of a state's old value, task that computes its exit value).
fn waits(g: &Graph, plan: &Plan) -> Vec<(TaskId, TaskId)> {
    let mut writer: SecondaryMap<_, Option<TaskId>> = SecondaryMap::new();
    for (t, task) in &plan.tasks {
        task.writes.iter().flatten().for_each(|&b| writer[b] = Some(t));
    }
    let mut update_of: SecondaryMap<_, Vec<TaskId>> = SecondaryMap::new();
    for s in g.states.keys() {
        let update = exit_buffer(g, plan, s).and_then(|b| writer[b]);
        if let (Some(update), Some(enter)) = (update, plan.enter_buffer(g, s)) {
            update_of[enter].push(update);
        }
    }
    let mut pairs = Vec::new();
    for (t, task) in &plan.tasks {
        let updates = task.reads.iter().flat_map(|&b| &update_of[b]);
        pairs.extend(updates.filter(|&&u| u != t).map(|&u| (t, u)));
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}
