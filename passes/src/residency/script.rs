//! A choice as a sequence of kernels, with the copies between them.
//!
//! A walk over the order knows where each tensor is. Before a task, what it reads is brought
//! back: copied from the host where a copy is there, else computed again from operands that
//! are brought back first. After a task, what leaves is copied out where no copy is there yet.

use super::choice::{Gap, ResidencyChoice};
use super::timeline::Timeline;
use arenic_ir::plan::TaskId;

/// A kernel: a task of the order, or its repeat.
#[derive(Clone, Copy, Debug)]
pub struct ScriptStep {
    /// The task of the order that runs (again).
    pub task: TaskId,
    /// The tensor that a repeat is for.
    pub again: Option<usize>,
    /// How long it takes.
    pub seconds: f64,
    /// Bytes on the device meanwhile, without those that copies in flight need.
    pub live: u64,
}

/// A copy to the device.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    /// The tensor.
    pub tensor: usize,
    /// The step that needs it.
    pub before: usize,
    /// The first step before which it may be issued: the tensor is away from then on.
    pub away: usize,
    /// The step before which it is issued.
    pub from: usize,
    /// Its turn among all copies of the walk.
    pub turn: usize,
}

/// What a copy to the host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The tensor comes back, or the step's caller finds it in host memory.
    Swap,
    /// The task that takes a state's new value home.
    Commit(TaskId),
}

/// A copy to the host.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// The tensor.
    pub tensor: usize,
    /// What for.
    pub kind: StoreKind,
    /// The step whose result it is; `None` if it entered the step.
    pub made: Option<usize>,
    /// The step before which it is issued.
    pub before: usize,
    /// The first step that does without the tensor.
    pub left: usize,
    /// The first step that reuses its bytes, which waits for the copy.
    pub release: usize,
    /// Its turn among all copies of the walk.
    pub turn: usize,
}

/// What a choice amounts to.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Kernels, in order.
    pub steps: Vec<ScriptStep>,
    /// Copies to the device, in the order of need.
    pub fetches: Vec<Fetch>,
    /// Copies to the host, in order.
    pub stores: Vec<Store>,
    /// Bytes of homes in host memory.
    pub homes: u64,
    /// Further tensors that a repeat brings back: (step, tensor), by step.
    also: Vec<(usize, usize)>,
}

impl Script {
    fn copies(&self) -> usize {
        self.fetches.len() + self.stores.len()
    }

    /// Further tensors that a repeat brings back, beside the one that it is for.
    pub fn also(&self, step: usize) -> Vec<usize> {
        let first = self.also.partition_point(|&(s, _)| s < step);
        self.also[first..].iter().take_while(|a| a.0 == step).map(|a| a.1).collect()
    }
}

/// Most repeats in a row.
const MAX_CHAIN: usize = 400;

/// Carries choices out, one after another.
pub struct Walker<'a> {
    t: &'a Timeline<'a>,
    script: Script,
    here: Vec<bool>,
    host: Vec<bool>,
    /// The first step that does without the tensor.
    away: Vec<usize>,
    made: Vec<Option<usize>>,
    /// The commit's copy of a state that is still here.
    committed: Vec<Option<usize>>,
    /// Bytes on the device beyond those that the order has there.
    more: i64,
    /// Tensors that were brought for the repeat at hand.
    brought: Vec<usize>,
    chain: usize,
}

impl<'a> Walker<'a> {
    /// A walker over the order.
    pub fn new(t: &'a Timeline<'a>) -> Self {
        let n = t.tensors.len();
        Walker {
            t,
            script: Script::default(),
            here: vec![false; n],
            host: vec![false; n],
            away: vec![0; n],
            made: vec![None; n],
            committed: vec![None; n],
            more: 0,
            brought: Vec::new(),
            chain: 0,
        }
    }

    /// The script of a choice; `None` where it would need a value that is overwritten by
    /// then.
    pub fn walk(&mut self, choice: &ResidencyChoice) -> Option<&mut Script> {
        self.begin(choice);
        for p in 0..self.t.order.len() {
            self.issue(choice, p)?;
            for &(x, k) in self.t.at.row(p) {
                self.leave(choice, x, k);
            }
        }
        Some(&mut self.script)
    }

    fn begin(&mut self, choice: &ResidencyChoice) {
        self.script.steps.clear();
        self.script.fetches.clear();
        self.script.stores.clear();
        self.script.also.clear();
        self.script.homes = 0;
        self.more = 0;
        self.away.fill(0);
        self.made.fill(None);
        self.committed.fill(None);
        for (x, tensor) in self.t.tensors.iter().enumerate() {
            let is_host = choice.is_host_home(self.t, x);
            self.here[x] = tensor.homed && !is_host;
            self.host[x] = tensor.homed && is_host;
            if self.host[x] {
                self.more -= tensor.bytes as i64;
                self.script.homes += tensor.bytes;
            } else if choice.leaves[x] {
                self.store(x, StoreKind::Swap);
                self.here[x] = false;
                self.host[x] = true;
                self.more -= tensor.bytes as i64;
            }
        }
    }

    /// Issues the task at a position, with its operands.
    fn issue(&mut self, choice: &ResidencyChoice, p: usize) -> Option<()> {
        let task = self.t.order[p];
        for &(x, _) in self.t.reads.row(p) {
            if !self.here[x] {
                self.brought.clear();
                self.chain = 0;
                self.bring(choice, x, p)?;
            }
        }
        let step = self.script.steps.len();
        if let Some(x) = self.commits_to_host(choice, p) {
            self.host[x] |= self.t.tensors[x].committed == Some(p as u32);
            self.committed[x] = Some(self.script.stores.len());
            self.store(x, StoreKind::Commit(task));
            return Some(());
        }
        let live = self.t.live[p].saturating_add_signed(self.more);
        let seconds = self.t.seconds(p as u32);
        self.script.steps.push(ScriptStep { task, again: None, seconds, live });
        for &x in self.t.writes.row(p) {
            let tensor = &self.t.tensors[x];
            if tensor.homed && !self.here[x] {
                self.more += tensor.bytes as i64;
                self.script.steps[step].live += tensor.bytes;
            }
            self.here[x] = true;
            self.made[x] = Some(step);
        }
        Some(())
    }

    /// The tensor that a commit copies to a home in host memory.
    fn commits_to_host(&self, choice: &ResidencyChoice, p: usize) -> Option<usize> {
        let (value, home) = self.t.commits[p]?;
        choice.is_host_home(self.t, home).then_some(value)
    }

    fn store(&mut self, tensor: usize, kind: StoreKind) {
        let before = self.script.steps.len();
        let made = self.made[tensor];
        let (left, release, turn) = (before, before, self.script.copies());
        self.script.stores.push(Store { tensor, kind, made, before, left, release, turn });
    }

    /// Makes a tensor be on the device.
    fn bring(&mut self, choice: &ResidencyChoice, x: usize, p: usize) -> Option<()> {
        let before = self.script.steps.len();
        if self.host[x] {
            let (away, turn) = (self.away[x], self.script.copies());
            self.script.fetches.push(Fetch { tensor: x, before, away, from: before, turn });
            self.made[x] = None;
        } else {
            self.repeat(choice, x, p)?;
        }
        self.here[x] = true;
        self.more += self.t.tensors[x].bytes as i64;
        self.brought.push(x);
        Some(())
    }

    /// Computes a tensor again.
    fn repeat(&mut self, choice: &ResidencyChoice, x: usize, p: usize) -> Option<()> {
        let task = self.t.tensors[x].producer.filter(|_| self.t.may_repeat(x))?;
        self.chain += 1;
        if self.chain > MAX_CHAIN {
            return None;
        }
        let first = self.brought.len();
        for &(y, old) in self.t.reads.row(self.t.position[task] as usize) {
            if !self.here[y] {
                self.bring(choice, y, p)?;
            }
            if old && self.t.tensors[y].overwritten.is_some_and(|r| r < p as u32) {
                return None;
            }
        }
        let position = self.t.position[task] as usize;
        let made = self.t.writes.row(position).iter().map(|&y| self.t.tensors[y].bytes);
        let made: u64 = made.sum::<u64>() + self.t.scratch[position];
        let live = (self.t.passing[p] + made).saturating_add_signed(self.more);
        let seconds = self.t.seconds(position as u32);
        let step = self.script.steps.len();
        self.script.steps.push(ScriptStep { task, again: Some(x), seconds, live });
        self.made[x] = Some(step);
        for &y in self.t.writes.row(position) {
            if y != x && !self.here[y] && !self.host[y] && self.stays(choice, y, p) {
                self.here[y] = true;
                self.made[y] = Some(step);
                self.more += self.t.tensors[y].bytes as i64;
                self.script.also.push((step, y));
            }
        }
        // What was brought for this alone is not kept.
        let mut in_place = 0;
        for i in first..self.brought.len() {
            let y = self.brought[i];
            if self.here[y] && !self.stays(choice, y, p) {
                self.here[y] = false;
                self.away[y] = step + 1;
                self.more -= self.t.tensors[y].bytes as i64;
                if self.t.may_share(task, y, x) {
                    in_place = in_place.max(self.t.tensors[y].bytes);
                }
            }
        }
        self.script.steps[step].live -= in_place.min(live);
        self.brought.truncate(first);
        Some(())
    }

    /// True where a tensor that a repeat needed is kept for the access at the position, or
    /// for the next one.
    fn stays(&self, choice: &ResidencyChoice, x: usize, p: usize) -> bool {
        let accesses = &self.t.tensors[x].accesses;
        let next = accesses.partition_point(|&a| a < p as u32);
        match accesses.get(next) {
            Some(&a) if a == p as u32 => true,
            Some(_) if next > 0 => choice.gaps[self.t.gap(x, next - 1)].holds(),
            _ => false,
        }
    }

    /// What becomes of a tensor after one of its accesses.
    fn leave(&mut self, choice: &ResidencyChoice, x: usize, k: usize) {
        // A home in host memory is written without being here.
        if !self.here[x] {
            return;
        }
        let tensor = &self.t.tensors[x];
        let gap = (k < tensor.gaps()).then(|| choice.gaps[self.t.gap(x, k)]);
        // The order has the tensor's bytes there for longer.
        let mut freed = true;
        match gap {
            Some(Gap::Keep) => return,
            Some(Gap::Swap { .. }) if !self.host[x] => {
                self.host[x] = true;
                self.store(x, StoreKind::Swap);
            }
            Some(Gap::Swap { .. } | Gap::Repeat { .. }) => {}
            None if self.t.is_input(x) => freed = false,
            None if tensor.homed && !choice.is_host_home(self.t, x) => return,
            None if tensor.homed && !(tensor.pinned && tensor.renewed.is_some()) => {}
            None if tensor.pinned && !choice.host_end[x] => return,
            None if tensor.pinned && !self.host[x] => {
                self.host[x] = true;
                self.store(x, StoreKind::Swap);
            }
            None => freed = tensor.pinned,
        }
        self.here[x] = false;
        let step = self.script.steps.len();
        self.away[x] = step;
        if let Some(store) = self.committed[x].take() {
            self.script.stores[store].left = step;
            self.script.stores[store].release = step;
        }
        if freed {
            self.more -= tensor.bytes as i64;
        }
    }
}
