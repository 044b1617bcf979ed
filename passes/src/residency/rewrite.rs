//! A script becomes a plan: tasks for copies and repeats, between the tasks of the order.

use super::choice::ResidencyChoice;
use super::script::{Fetch, Script, ScriptStep, Store, StoreKind};
use super::timeline::Timeline;
use arenic_ir::plan::{BufferId, Plan, PlanError, TaskId};
use arenic_ir::program::{Space, StreamId};
use cranelift_entity::EntityRef;

/// The plan with a choice's script carried out.
///
/// # Errors
/// The script breaks a dependence: a defect.
pub fn rewrite(t: &Timeline, choice: &ResidencyChoice, script: &Script) -> Result<Plan, PlanError> {
    let last = t.plan.tasks.values().map(|task| task.stream.index()).max().unwrap_or(0);
    let mut rewriter = Rewriter {
        t,
        plan: t.plan.clone(),
        order: Vec::with_capacity(t.order.len()),
        here: vec![None; t.tensors.len()],
        host: vec![None; t.tensors.len()],
        to_host: StreamId::new(last + 1),
        to_device: StreamId::new(last + 2),
    };
    rewriter.place_homes(choice);
    let mut fetches: Vec<&Fetch> = script.fetches.iter().collect();
    fetches.sort_by_key(|fetch| (fetch.from, fetch.turn));
    let (mut stores, mut fetches) = (script.stores.iter().peekable(), fetches.iter().peekable());
    let mut tasks = Vec::with_capacity(script.steps.len());
    // Bytes that are kept until a step.
    let mut kept: Vec<(BufferId, usize)> = Vec::new();
    for i in 0..=script.steps.len() {
        loop {
            let fetch = fetches.peek().filter(|f| f.from == i).map_or(usize::MAX, |f| f.turn);
            if let Some(store) = stores.next_if(|s| s.before == i && s.turn < fetch) {
                let from = rewriter.store(store)?;
                if store.release > store.left {
                    kept.push((from, store.release - 1));
                }
            } else if let Some(fetch) = fetches.next_if(|f| f.from == i) {
                rewriter.fetch(fetch.tensor)?;
            } else {
                break;
            }
        }
        if let Some(step) = script.steps.get(i) {
            tasks.push(rewriter.run(step, &script.also(i))?);
        }
    }
    for (x, tensor) in t.tensors.iter().enumerate().filter(|&(x, _)| choice.host_end[x]) {
        if let Some(v) = t.plan.buffers[tensor.buffer].holds {
            rewriter.plan.buffer_of[v] = rewriter.host[x];
        }
    }
    let Rewriter { mut plan, order, .. } = rewriter;
    for (b, step) in kept {
        plan.buffers[b].release = tasks.get(step).copied();
    }
    plan.set_order(t.g, order)?;
    Ok(plan)
}

struct Rewriter<'a> {
    t: &'a Timeline<'a>,
    plan: Plan,
    order: Vec<TaskId>,
    /// The buffer that held each tensor on the device last.
    here: Vec<Option<BufferId>>,
    /// The one that holds it in host memory.
    host: Vec<Option<BufferId>>,
    to_host: StreamId,
    to_device: StreamId,
}

impl Rewriter<'_> {
    fn place_homes(&mut self, choice: &ResidencyChoice) {
        for (x, tensor) in self.t.tensors.iter().enumerate().filter(|(_, tensor)| tensor.homed) {
            if choice.is_host_home(self.t, x) {
                self.plan.buffers[tensor.buffer].space = Space::Host;
                self.host[x] = Some(tensor.buffer);
            } else {
                self.here[x] = Some(tensor.buffer);
            }
        }
    }

    /// Copies a tensor to the host; gives the buffer that it leaves.
    fn store(&mut self, store: &Store) -> Result<BufferId, PlanError> {
        let x = store.tensor;
        let from = held(self.here[x], self.t, x)?;
        let copy = match store.kind {
            StoreKind::Swap => {
                let (copy, to) = self.plan.add_copy(from, Space::Host, self.to_host);
                self.host[x] = Some(to);
                copy
            }
            StoreKind::Commit(commit) => {
                let task = &mut self.plan.tasks[commit];
                task.stream = self.to_host;
                task.reads = vec![from];
                for &home in task.writes.iter().flatten() {
                    self.plan.buffers[home].space = Space::Host;
                    // Another tensor's home may hold a part of this one.
                    if self.t.tensors[x].committed.is_some() {
                        self.host[x] = Some(home);
                    }
                }
                commit
            }
        };
        self.order.push(copy);
        Ok(from)
    }

    fn fetch(&mut self, x: usize) -> Result<(), PlanError> {
        let host = held(self.host[x], self.t, x)?;
        let (copy, to) = self.plan.add_copy(host, Space::Device, self.to_device);
        self.here[x] = Some(to);
        self.order.push(copy);
        Ok(())
    }

    /// Runs a task, or a task again, on operands where they are now.
    fn run(&mut self, step: &ScriptStep, also: &[usize]) -> Result<TaskId, PlanError> {
        let original = step.task;
        let t = match step.again {
            None => original,
            Some(_) => self.plan.add_repeat(original),
        };
        for (i, &b) in self.t.plan.tasks[original].reads.iter().enumerate() {
            if let Some(x) = self.t.tensor[b] {
                self.plan.tasks[t].reads[i] = held(self.here[x], self.t, x)?;
            }
        }
        let results = self.t.plan.tasks[original].writes.iter().zip(&self.plan.tasks[t].writes);
        for (was, is) in results {
            if let (Some(was), &Some(is)) = (was, is)
                && let Some(x) = self.t.tensor[*was]
                && step.again.is_none_or(|again| again == x || also.contains(&x))
            {
                self.here[x] = Some(is);
            }
        }
        self.order.push(t);
        Ok(t)
    }
}

/// The buffer of a tensor that a script says is there.
fn held(b: Option<BufferId>, t: &Timeline, x: usize) -> Result<BufferId, PlanError> {
    b.ok_or_else(|| PlanError::Order(format!("{} is not there", t.tensors[x].buffer)))
}
