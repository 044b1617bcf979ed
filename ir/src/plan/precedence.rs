//! Which buffers can never be alive together, whatever the order (OLLA, section 4.2).
//!
//! Two conditions are enough: their maximum useful lifetimes do not overlap, or all readers
//! of one are in the transitive fan-in of the other's writer. No pair is stored. Whether a
//! task reaches another is answered by interval labels (Yıldırım, Chaoji and Zaki, "GRAIL",
//! VLDB 2010): a task's interval holds the intervals of all that follow it, so most pairs are
//! told apart by comparing numbers, and a search that keeps to fitting labels settles the
//! rest. Memory is linear in the plan.

use super::{BufferId, BufferKind, Plan, PlanError, Spans, TaskId};
use crate::graph::Graph;
use cranelift_entity::{EntityRef, SecondaryMap};
use std::collections::HashSet;

/// Interval labels of one traversal: the least rank below a task, and its own.
type Label = (u32, u32);

/// Answers whether two buffers can be alive at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precedence {
    spans: Spans,
    after: Vec<Vec<TaskId>>,
    labels: Vec<[Label; 2]>,
    writer: SecondaryMap<BufferId, Option<TaskId>>,
    readers: SecondaryMap<BufferId, Vec<TaskId>>,
    /// Buffers that are alive after the last task.
    open_ended: SecondaryMap<BufferId, bool>,
}

impl Precedence {
    /// Labels the plan's tasks.
    ///
    /// # Errors
    /// The plan has no spans.
    pub fn new(g: &Graph, plan: &Plan) -> Result<Precedence, PlanError> {
        let n = plan.tasks.len();
        let mut after: Vec<Vec<TaskId>> = vec![Vec::new(); n];
        for (a, b) in plan.dependences(g) {
            after[a.index()].push(b);
        }
        let forwards = labels(&after, false);
        let backwards = labels(&after, true);
        let labels = forwards.into_iter().zip(backwards).map(|(a, b)| [a, b]).collect();
        let mut readers: SecondaryMap<BufferId, Vec<TaskId>> = SecondaryMap::new();
        let mut open_ended: SecondaryMap<BufferId, bool> = SecondaryMap::new();
        for (t, task) in &plan.tasks {
            task.reads.iter().for_each(|&b| readers[b].push(t));
        }
        let carried = g.states.values().filter(|s| g.resolve(s.exit).root == s.enter);
        let outputs = g.outputs.iter().map(|o| g.resolve(o.value).root);
        for root in outputs.chain(carried.map(|s| s.enter)) {
            if let Some(b) = plan.buffer_of[root] {
                open_ended[b] = true;
            }
        }
        for (b, buffer) in &plan.buffers {
            open_ended[b] |= matches!(buffer.kind, BufferKind::Const | BufferKind::Exit(_));
        }
        let mut writer = plan.writers();
        for (t, task) in &plan.tasks {
            task.scratch.into_iter().for_each(|b| writer[b] = Some(t));
        }
        let spans = plan.spans()?.clone();
        Ok(Precedence { spans, after, labels, writer, readers, open_ended })
    }

    /// True where task `b` runs after task `a` in every order.
    pub fn reaches(&self, a: TaskId, b: TaskId) -> bool {
        let goal = self.labels[b.index()];
        let may = |t: TaskId| {
            self.spans.asap[t] < self.spans.asap[b]
                && self.labels[t.index()].iter().zip(&goal).all(|(l, g)| l.0 <= g.0 && g.1 <= l.1)
        };
        let mut seen: HashSet<TaskId> = HashSet::new();
        let mut stack = vec![a];
        while let Some(t) = stack.pop() {
            for &next in &self.after[t.index()] {
                if next == b {
                    return true;
                }
                if may(next) && seen.insert(next) {
                    stack.push(next);
                }
            }
        }
        false
    }

    /// True where the buffers' maximum useful lifetimes do not overlap.
    pub fn spans_apart(&self, a: BufferId, b: BufferId) -> bool {
        match (self.spans.useful[a], self.spans.useful[b]) {
            (Some(x), Some(y)) => x.last < y.first || y.last < x.first,
            _ => true,
        }
    }

    /// True where all that use `a` have run before `b` is written, in every order.
    pub fn precedes(&self, a: BufferId, b: BufferId) -> bool {
        let Some(writer) = self.writer[b].filter(|_| !self.open_ended[a]) else { return false };
        let uses = match &self.readers[a][..] {
            [] => self.writer[a].as_slice(),
            readers => readers,
        };
        !uses.is_empty() && uses.iter().all(|&t| self.reaches(t, writer))
    }

    /// True where no order keeps both buffers alive at the same time.
    pub fn apart(&self, a: BufferId, b: BufferId) -> bool {
        self.spans_apart(a, b) || self.precedes(a, b) || self.precedes(b, a)
    }
}

/// Post-order ranks from the tasks that depend on nothing, successors in order or reversed.
fn labels(after: &[Vec<TaskId>], reversed: bool) -> Vec<Label> {
    let n = after.len();
    let mut label: Vec<Label> = vec![(u32::MAX, u32::MAX); n];
    let mut entered = vec![false; n];
    let mut rank = 0;
    let child = |v: usize, i: usize| {
        let list = &after[v];
        let i = if reversed { list.len().checked_sub(i + 1)? } else { i };
        list.get(i).map(|t| t.index())
    };
    let roots: Vec<usize> = if reversed { (0..n).rev().collect() } else { (0..n).collect() };
    let mut stack: Vec<(usize, usize)> = Vec::new();
    for root in roots {
        if std::mem::replace(&mut entered[root], true) {
            continue;
        }
        stack.push((root, 0));
        while let Some((v, i)) = stack.pop() {
            match child(v, i) {
                Some(next) => {
                    stack.push((v, i + 1));
                    if !std::mem::replace(&mut entered[next], true) {
                        stack.push((next, 0));
                    }
                }
                None => {
                    let least = after[v].iter().map(|t| label[t.index()].0).min();
                    label[v] = (least.unwrap_or(rank).min(rank), rank);
                    rank += 1;
                }
            }
        }
    }
    label
}
