//! A choice becomes tasks: copies out and in, and repeats, between the tasks of the order.
//!
//! A walk over the order knows where each tensor is. Before a task, what it reads is brought
//! back: copied from the host where a copy is there, else computed again from operands that
//! are brought back first. After a task, what leaves is copied out where no copy is there
//! yet. So whatever was chosen, every task finds its operands.

use super::choose::{Choice, Gap, HOME};
use super::timeline::Timeline;
use arenic_ir::plan::{BufferId, Plan, TaskId, TaskKind};
use arenic_ir::program::{Space, StreamId};
use cranelift_entity::EntityRef;

/// The plan with the choice carried out; `None` where it would need a value that is
/// overwritten by then.
pub(super) fn rewrite(t: &Timeline, choice: &Choice) -> Option<Plan> {
    let last = t.plan.tasks.values().map(|task| task.stream.index()).max().unwrap_or(0);
    let mut rewriter = Rewriter {
        t,
        choice,
        plan: t.plan.clone(),
        order: Vec::with_capacity(t.order.len()),
        here: vec![None; t.tensors.len()],
        host: vec![None; t.tensors.len()],
        to_host: StreamId::new(last + 1),
        to_device: StreamId::new(last + 2),
    };
    rewriter.place_homes();
    let mut leaving: Vec<Vec<(usize, usize)>> = vec![Vec::new(); t.order.len()];
    for (x, needed) in choice.needed.iter().enumerate() {
        for (k, &p) in needed.iter().enumerate() {
            leaving[p as usize].push((x, k));
        }
    }
    // Tensors to fetch before each position; those needed first come first.
    let mut fetched: Vec<Vec<(u32, usize)>> = vec![Vec::new(); t.order.len()];
    for (&(x, from), window) in &choice.windows {
        let needed = &choice.needed[x];
        let next = if from == HOME { 0 } else { needed.partition_point(|&n| n <= from) };
        if let Some(&to) = needed.get(next).filter(|&&to| window.fetch < to) {
            fetched[window.fetch as usize].push((to, x));
        }
    }
    for p in 0..t.order.len() as u32 {
        fetched[p as usize].sort_unstable();
        for &(_, x) in &fetched[p as usize] {
            if rewriter.host[x].is_some() {
                rewriter.bring(x, p)?;
            }
        }
        rewriter.issue(p)?;
        for &(x, k) in &leaving[p as usize] {
            rewriter.leave(x, k, p);
        }
    }
    let Rewriter { mut plan, order, .. } = rewriter;
    plan.set_order(t.g, order).ok()?;
    Some(plan)
}

struct Rewriter<'a> {
    t: &'a Timeline<'a>,
    choice: &'a Choice,
    plan: Plan,
    order: Vec<TaskId>,
    /// The buffer that holds each tensor on the device now.
    here: Vec<Option<BufferId>>,
    /// The one that holds it in host memory.
    host: Vec<Option<BufferId>>,
    to_host: StreamId,
    to_device: StreamId,
}

impl Rewriter<'_> {
    fn place_homes(&mut self) {
        for (x, tensor) in self.t.tensors.iter().enumerate().filter(|(_, tensor)| tensor.homed) {
            if self.choice.host_home[x] {
                self.plan.buffers[tensor.buffer].space = Space::Host;
                self.host[x] = Some(tensor.buffer);
            } else {
                self.here[x] = Some(tensor.buffer);
            }
        }
        for t in self.plan.tasks.keys() {
            let TaskKind::Commit { state, .. } = self.plan.tasks[t].kind else { continue };
            let home = self.plan.enter_buffer(self.t.g, state);
            if home.is_some_and(|b| self.plan.buffers[b].space == Space::Host) {
                self.plan.tasks[t].stream = self.to_host;
                for b in self.plan.tasks[t].writes.clone().into_iter().flatten() {
                    self.plan.buffers[b].space = Space::Host;
                }
            }
        }
    }

    /// Issues the task at a position, with its operands.
    fn issue(&mut self, p: u32) -> Option<()> {
        let t = self.t.order[p as usize];
        self.read(t, t, p)?;
        self.order.push(t);
        // From its commit on, a state's home in host memory holds the new value.
        if let (TaskKind::Commit { .. }, Some(&b)) =
            (self.t.plan.tasks[t].kind, self.t.plan.tasks[t].reads.first())
            && let Some(x) = self.t.tensor[b].filter(|&x| self.t.tensors[x].committed == Some(p))
            && self.choice.host_home[x]
        {
            self.host[x] = self.t.plan.tasks[t].writes.first().copied().flatten();
        }
        for b in self.t.plan.tasks[t].writes.iter().flatten() {
            if let Some(x) = self.t.tensor[*b] {
                self.here[x] = Some(*b);
            }
        }
        Some(())
    }

    /// Brings back what `original` reads, and makes `t` read it there.
    fn read(&mut self, t: TaskId, original: TaskId, p: u32) -> Option<()> {
        for i in 0..self.t.plan.tasks[original].reads.len() {
            let b = self.t.plan.tasks[original].reads[i];
            let Some(x) = self.t.tensor[b] else { continue };
            let tensor = &self.t.tensors[x];
            if b == tensor.buffer && tensor.renewed.is_some_and(|r| r < p) {
                return None;
            }
            let here = self.bring(x, p)?;
            self.plan.tasks[t].reads[i] = here;
        }
        Some(())
    }

    /// Makes a tensor be on the device.
    fn bring(&mut self, x: usize, p: u32) -> Option<BufferId> {
        if let Some(b) = self.here[x] {
            return Some(b);
        }
        let b = match self.host[x] {
            Some(host) => {
                let (copy, b) = self.plan.add_copy(host, Space::Device, self.to_device);
                self.order.push(copy);
                b
            }
            None => self.repeat(x, p)?,
        };
        self.here[x] = Some(b);
        Some(b)
    }

    /// Computes a tensor again.
    fn repeat(&mut self, x: usize, p: u32) -> Option<BufferId> {
        let tensor = &self.t.tensors[x];
        let original = tensor.producer?;
        if !matches!(self.t.plan.tasks[original].kind, TaskKind::Run(_)) || tensor.homed {
            return None;
        }
        let before = self.here.clone();
        let operands = self.t.plan.tasks[original].reads.clone();
        for b in operands {
            if let Some(y) = self.t.tensor[b] {
                self.bring(y, p)?;
            }
        }
        let t = self.plan.add_repeat(original, |b| b == tensor.buffer);
        self.read(t, original, p)?;
        self.order.push(t);
        // What was brought for this alone is not kept.
        for (y, was) in before.into_iter().enumerate() {
            if was.is_none() && self.choice.needed[y].binary_search(&p).is_err() {
                self.here[y] = None;
            }
        }
        self.plan.tasks[t].writes.iter().flatten().next().copied()
    }

    /// What becomes of a tensor after a position at which it was needed.
    fn leave(&mut self, x: usize, k: usize, p: u32) {
        let tensor = &self.t.tensors[x];
        let last = k + 1 == self.choice.needed[x].len();
        let stays = tensor.homed && !self.choice.host_home[x] && !self.t.is_input(x);
        match self.choice.gaps[x].get(k) {
            Some(Gap::Keep) => return,
            None if stays || tensor.pinned && !self.choice.host_end[x] && !tensor.homed => return,
            Some(Gap::Swap | Gap::Repeat) | None => {}
        }
        let Some(here) = self.here[x] else { return };
        let swaps = self.choice.gaps[x].get(k) == Some(&Gap::Swap);
        let key = if last { HOME } else { p };
        let window = self.choice.windows.get(&(x, key));
        let released = window.map(|w| self.t.order[w.release as usize]);
        if (swaps || last && self.choice.host_end[x]) && self.host[x].is_none() {
            let (copy, b) = self.plan.add_copy(here, Space::Host, self.to_host);
            self.order.push(copy);
            self.host[x] = Some(b);
            self.plan.buffers[here].release = released;
        } else if last && tensor.renewed.is_some() && self.choice.host_home[x] {
            self.plan.buffers[here].release = released;
        }
        if last && self.choice.host_end[x] {
            self.hand_out(x);
        }
        self.here[x] = None;
    }

    /// The graph's outputs find the tensor in host memory.
    fn hand_out(&mut self, x: usize) {
        let root = self.t.plan.buffers[self.t.tensors[x].buffer].holds;
        if let (Some(v), Some(host)) = (root, self.host[x]) {
            self.plan.buffer_of[v] = Some(host);
        }
    }
}
