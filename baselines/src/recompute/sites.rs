//! What can be decided, and how a choice is judged.

use arenic_ir::cost::Device;
use arenic_passes::residency::{Gap, Prediction, ResidencyChoice, Room, Timeline, Walker};

/// A tensor between two accesses that it may miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RepeatSite {
    /// The tensor.
    pub(super) x: usize,
    /// The gap's place in a choice.
    pub(super) gap: usize,
    /// The access before it.
    pub(super) after: u32,
    /// The access that ends it.
    pub(super) before: u32,
}

/// All gaps of tensors whose task may run again, by the position of that task.
pub(super) fn sites(t: &Timeline) -> Vec<RepeatSite> {
    let mut sites = Vec::new();
    for (x, tensor) in t.tensors.iter().enumerate().filter(|&(x, _)| t.may_repeat(x)) {
        let site = |k: usize| {
            let (after, before) = (tensor.accesses[k], tensor.accesses[k + 1]);
            RepeatSite { x, gap: t.gap(x, k), after, before }
        };
        sites.extend((0..tensor.gaps()).filter(|&k| t.may_leave(x, k)).map(site));
    }
    sites.sort_by_key(|site| (made(t, site.x), site.after));
    sites
}

/// The position that makes a tensor; `None` if it has a home.
pub(super) fn made(t: &Timeline, x: usize) -> Option<u32> {
    t.tensors[x].producer.map(|task| t.position[task])
}

/// True where a tensor's task can run again before a position: no state that it reads has its
/// new value by then.
pub(super) fn runs_again(t: &Timeline, x: usize, p: u32) -> bool {
    let fresh = |&(y, old): &(usize, bool)| !old || t.tensors[y].overwritten.is_none_or(|r| r >= p);
    let reads = |task: u32| t.reads.row(task as usize).iter().all(fresh);
    t.may_repeat(x) && made(t, x).is_some_and(reads)
}

/// True where a tensor's bytes are on the device at a position whatever `open` tensors do:
/// those whose gap may be decided or is bridged by a repeat.
pub(super) fn stays(t: &Timeline, x: usize, p: u32, open: impl Fn(usize) -> bool) -> bool {
    let tensor = &t.tensors[x];
    if tensor.homed {
        return true;
    }
    let next = tensor.accesses.partition_point(|&a| a < p);
    match tensor.accesses.get(next) {
        Some(_) if next > 0 => !open(t.gap(x, next - 1)),
        Some(_) => false,
        None => tensor.pinned,
    }
}

/// Judges choices by the scripts that they amount to.
pub(super) struct Judge<'a> {
    pub(super) t: &'a Timeline<'a>,
    walker: Walker<'a>,
    room: Room,
}

impl<'a> Judge<'a> {
    pub(super) fn new(t: &'a Timeline<'a>, device: &Device) -> Self {
        Judge { t, walker: Walker::new(t), room: Room::new(t, device) }
    }

    /// What a choice promises; `None` where it needs a value that is gone for good.
    pub(super) fn judge(&mut self, choice: &ResidencyChoice, limit: u64) -> Option<Prediction> {
        let script = self.walker.walk(choice)?;
        Some(self.room.schedule(script, limit))
    }

    /// Live bytes at each position: of its task, and the most of the repeats before it.
    pub(super) fn load(&mut self, choice: &ResidencyChoice) -> Option<Vec<Load>> {
        let t = self.t;
        let script = self.walker.walk(choice)?;
        let mut load = Vec::with_capacity(t.order.len());
        let mut chain = 0;
        for step in &script.steps {
            if step.again.is_some() {
                chain = chain.max(step.live);
            } else {
                load.push(Load { task: step.live, chain: std::mem::take(&mut chain) });
            }
        }
        Some(load)
    }
}

/// Live bytes at a position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// While its task runs.
    pub(super) task: u64,
    /// The most while tasks are repeated before it; 0 where there are none.
    pub(super) chain: u64,
}

impl Load {
    /// The most at any time.
    pub(super) fn most(self) -> u64 {
        self.task.max(self.chain)
    }
}

/// A tensor that is computed again for its next access, or earlier for another repeat.
pub(super) const AGAIN: Gap = Gap::Repeat { hold: true };
