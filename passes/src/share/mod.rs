//! Slots for an order: which buffers share bytes because they follow one another.
//!
//! Shared by `share_in_place` and `share_parallel`. A walk over the order gives each buffer
//! a slot when it is written: an operand's that dies there (where the operator declares the
//! pair), a state's home, one from a [`Pool`] of dead slots, or a new one.

mod pool;

use crate::Stats;
use arenic_ir::graph::{Def, Graph, StateId, ValueId};
use arenic_ir::plan::{
    BufferId, BufferKind, LiveRange, Plan, PlanError, Slot, SlotId, Slots, Task, TaskId, TaskKind,
};
use cranelift_entity::{PrimaryMap, SecondaryMap};
pub(crate) use pool::{Pool, PoolOptions};

/// The buffer of a state's exit value, where that value could live in the state's home:
/// a node's whole result that no earlier state claims.
pub(crate) fn exit_buffer(g: &Graph, plan: &Plan, s: StateId) -> Option<BufferId> {
    let exit = g.resolve(g.states[s].exit);
    let whole = exit.offset == 0 && g.ty(exit.root).bytes() == g.ty(g.states[s].exit).bytes();
    let from_node = matches!(g.values[exit.root].def, Def::Node { .. });
    (whole && from_node).then(|| plan.buffer_of[exit.root]).flatten()
}

/// For each state the buffers of its new value that could live in its home, the last one first: that of
/// the exit value, and those that are turned into it in place, one after another, each read by the
/// next one's node alone.
pub(crate) fn updated_buffers(g: &Graph, plan: &Plan) -> SecondaryMap<StateId, Vec<BufferId>> {
    let (readers, kept) = (g.readers(), g.kept());
    let before = |v: ValueId| {
        let Def::Node { node: n, output } = g.values[v].def else { return None };
        let outputs = g.output_types(n).ok()?;
        let outputs: Vec<_> = outputs.iter().collect();
        let node = &g.nodes[n];
        let pairs = node.op.in_place_pairs(&g.input_types(n), &outputs);
        let mut operands = pairs.iter().filter(|pair| pair.1 == output).map(|pair| pair.0);
        let (Some(operand), None) = (operands.next(), operands.next()) else { return None };
        let x = g.resolve(node.inputs[operand]);
        let reads = node.inputs.iter().filter(|&&v| g.resolve(v).root == x.root).count();
        let fits = g.ty(x.root).bytes() == g.ty(v).bytes()
            && matches!(g.values[x.root].def, Def::Node { .. })
            && readers[x.root] == [n]
            && reads == 1
            && !kept[x.root];
        fits.then_some(x.root)
    };
    let mut all: SecondaryMap<StateId, Vec<BufferId>> = SecondaryMap::new();
    for (s, state) in &g.states {
        let Some(exit) = exit_buffer(g, plan, s) else { continue };
        let earlier = std::iter::successors(before(g.resolve(state.exit).root), |&v| before(v));
        let earlier = earlier.filter_map(|v| plan.buffer_of[v]);
        all[s] = std::iter::once(exit).chain(earlier).collect();
    }
    all
}

/// Slots for the plan's order: in place alone.
///
/// # Errors
/// The plan has no order.
pub(crate) fn assign(g: &Graph, plan: &Plan) -> Result<Slots, PlanError> {
    Sharing::new(g, plan)?.assign()
}

/// What a pass that shares counts: buffers, slots, and states whose exit value is written
/// straight home.
pub(crate) fn statistics(g: &Graph, plan: &Plan, slots: &Slots) -> Stats {
    let at_home = |s: &StateId| {
        let exit = exit_buffer(g, plan, *s).and_then(|b| slots.of[b]);
        exit.is_some() && exit == plan.enter_buffer(g, *s).and_then(|b| slots.of[b])
    };
    Stats::from([
        ("buffers", plan.buffers.len() as u64),
        ("slots", slots.slots.len() as u64),
        ("states_updated_at_home", g.states.keys().filter(at_home).count() as u64),
    ])
}

/// A result that needs bytes, where it is written.
struct Site<'a> {
    task: &'a Task,
    output: usize,
    buffer: BufferId,
    position: u32,
    /// The task's pairs (operand, result) that may share bytes.
    pairs: &'a [(usize, usize)],
}

/// Walks the order and gives each buffer a slot when it is written.
pub(crate) struct Sharing<'a> {
    g: &'a Graph,
    plan: &'a Plan,
    in_place: bool,
    pool: Option<Pool>,
    order: &'a [TaskId],
    /// Buffers that must outlive the step.
    pinned: SecondaryMap<BufferId, bool>,
    /// The state whose home a buffer of its new value may take.
    home: SecondaryMap<BufferId, Option<StateId>>,
    /// The buffers that have been in each state's home, in order. More than one hold the old
    /// value where copies take it to host memory and back.
    stays: SecondaryMap<StateId, Vec<BufferId>>,
    of: SecondaryMap<BufferId, Option<SlotId>>,
    slots: PrimaryMap<SlotId, Slot>,
}

impl<'a> Sharing<'a> {
    /// In-place sharing alone.
    ///
    /// # Errors
    /// The plan has no order.
    pub(crate) fn new(g: &'a Graph, plan: &'a Plan) -> Result<Self, PlanError> {
        let mut pinned: SecondaryMap<BufferId, bool> = SecondaryMap::new();
        for output in &g.outputs {
            if let Some(b) = plan.buffer_of[g.resolve(output.value).root] {
                pinned[b] = true;
            }
        }
        let mut home: SecondaryMap<BufferId, Option<StateId>> = SecondaryMap::new();
        for (s, updated) in updated_buffers(g, plan).iter() {
            for &b in updated {
                home[b].get_or_insert(s);
            }
        }
        let (stays, of, slots) = Default::default();
        let order = plan.order()?;
        Ok(Sharing { g, plan, in_place: true, pool: None, order, pinned, home, stays, of, slots })
    }

    /// No results take over operands' bytes, and no exit values their state's home.
    pub(crate) fn not_in_place(mut self) -> Self {
        self.in_place = false;
        self
    }

    /// Results without an operand to take over take their slot from the pool.
    pub(crate) fn with_pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Assigns the slots.
    ///
    /// # Errors
    /// The plan has no order.
    pub(crate) fn assign(mut self) -> Result<Slots, PlanError> {
        let end = self.order.len().saturating_sub(1) as u32;
        let mut homes: SecondaryMap<StateId, Option<SlotId>> = SecondaryMap::new();
        for (b, buffer) in &self.plan.buffers {
            if let BufferKind::Enter(s) = buffer.kind {
                homes[s] = self.open(b, LiveRange { first: 0, last: end });
                self.stays[s].push(b);
            }
        }
        for (b, buffer) in &self.plan.buffers {
            match buffer.kind {
                BufferKind::Exit(s) => self.of[b] = homes[s],
                BufferKind::Input | BufferKind::Const => {
                    if let Some(live) = self.plan.live(b)? {
                        self.open(b, live);
                    }
                }
                BufferKind::Enter(_) | BufferKind::Value | BufferKind::Scratch => {}
            }
        }
        for (position, &t) in self.order.iter().enumerate() {
            let (task, position) = (&self.plan.tasks[t], position as u32);
            if let Some(pool) = &mut self.pool {
                pool.begin(t, position, &self.slots);
            }
            let pairs = self.pairs(task);
            for (output, b) in task.writes.iter().enumerate() {
                let Some(b) = *b else { continue };
                if self.of[b].is_some() || self.plan.buffers[b].kind != BufferKind::Value {
                    continue;
                }
                let Some(live) = self.plan.live(b)? else { continue };
                let result = Site { task, output, buffer: b, position, pairs: &pairs };
                let taken = match self.home_slot(&result)? {
                    Some(s) => {
                        self.stays[s].push(b);
                        homes[s]
                    }
                    None => self.dead_slot(&result)?,
                };
                self.join_or_open(taken, b, live);
            }
            if let Some(b) = task.scratch
                && let Some(live) = self.plan.live(b)?
            {
                let taken = self.pool.as_mut().and_then(|p| p.take(&self.plan.buffers[b], None));
                self.join_or_open(taken, b, live);
            }
        }
        if let Some(pool) = &self.pool {
            pool.finish(&mut self.slots, end);
        }
        for s in self.g.states.keys() {
            if let Some(home) = homes[s] {
                self.slots[home].away = self.absences(&self.stays[s])?;
            }
        }
        Ok(Slots { of: self.of, slots: self.slots })
    }

    /// Gives a buffer a slot of its own; `None` for an empty buffer.
    fn open(&mut self, b: BufferId, live: LiveRange) -> Option<SlotId> {
        let buffer = &self.plan.buffers[b];
        if buffer.bytes > 0 {
            let slot = self.slots.push(Slot {
                bytes: buffer.rounded(),
                align: buffer.align,
                space: buffer.space,
                live,
                away: Vec::new(),
            });
            self.of[b] = Some(slot);
            if let Some(pool) = &mut self.pool {
                pool.opened(b, buffer.kind, slot, live.last);
            }
        }
        self.of[b]
    }

    fn join_or_open(&mut self, taken: Option<SlotId>, b: BufferId, live: LiveRange) {
        let Some(slot) = taken else {
            self.open(b, live);
            return;
        };
        let buffer = &self.plan.buffers[b];
        let shared = &mut self.slots[slot];
        shared.bytes = shared.bytes.max(buffer.rounded());
        shared.align = shared.align.max(buffer.align);
        shared.live.first = shared.live.first.min(live.first);
        shared.live.last = shared.live.last.max(live.last);
        self.of[b] = Some(slot);
        if let Some(pool) = &mut self.pool {
            pool.occupied(b, slot, live.last);
        }
    }

    /// The state whose home this result may be written to: the old value comes back, or the
    /// new one comes and the old one is dead by now, or dies in this very task through
    /// declared pairs.
    fn home_slot(&self, result: &Site) -> Result<Option<StateId>, PlanError> {
        let returns = || self.returns(result.buffer);
        let home = self.home[result.buffer].filter(|_| self.in_place).or_else(returns);
        let Some((s, &old)) = home.and_then(|s| Some((s, self.stays[s].last()?))) else {
            return Ok(None);
        };
        let Some(live) = self.plan.live(old)? else { return Ok(None) };
        if self.plan.buffers[old].space != self.plan.buffers[result.buffer].space {
            return Ok(None);
        }
        let dead = live.last < result.position
            || (live.last == result.position && self.only_in_place(result, old));
        Ok(dead.then_some(s))
    }

    /// The state whose old value the buffer holds once more, where the step renews it: the
    /// value that is home at the end must be one that was written there.
    fn returns(&self, b: BufferId) -> Option<StateId> {
        let Def::State(s) = self.g.values[self.plan.buffers[b].holds?].def else { return None };
        exit_buffer(self.g, self.plan, s).map(|_| s)
    }

    /// True for a buffer with a state's old value that is home again.
    fn is_back_home(&self, b: BufferId) -> bool {
        self.returns(b).is_some_and(|s| self.stays[s].contains(&b))
    }

    /// The positions between buffers that took turns in a home; empty if nothing left it and
    /// came back.
    fn absences(&self, stays: &[BufferId]) -> Result<Vec<LiveRange>, PlanError> {
        let mut away = Vec::new();
        if stays.iter().filter(|&&b| self.returns(b).is_some()).count() < 2 {
            return Ok(away);
        }
        let mut free = None;
        for &b in stays {
            let Some(live) = self.plan.live(b)? else { continue };
            if let Some(first) = free.filter(|&first| first < live.first) {
                away.push(LiveRange { first, last: live.first - 1 });
            }
            free = free.max(Some(live.last + 1));
        }
        Ok(away)
    }

    /// A slot whose bytes nobody needs any more: that of an operand which dies here and may
    /// be overwritten, or one from the pool. Those that no other task may still be using
    /// at the time come first.
    fn dead_slot(&mut self, result: &Site) -> Result<Option<SlotId>, PlanError> {
        let Some(pool) = &self.pool else { return self.operand_slot(result, |_| true) };
        let done = self.operand_slot(result, |slot| pool.is_done(slot))?;
        let crossing = match pool.crosses() {
            true => self.operand_slot(result, |_| true)?,
            false => None,
        };
        let buffer = &self.plan.buffers[result.buffer];
        let pool = self.pool.as_mut();
        Ok(done.or_else(|| pool?.take(buffer, crossing)))
    }

    /// The slot of an operand that dies here and may be overwritten by this result.
    fn operand_slot(
        &self,
        result: &Site,
        allowed: impl Fn(SlotId) -> bool,
    ) -> Result<Option<SlotId>, PlanError> {
        for &(input, output) in result.pairs.iter().filter(|_| self.in_place) {
            let x = result.task.reads[input];
            let buffer = &self.plan.buffers[x];
            let takes_turns = matches!(buffer.kind, BufferKind::Value | BufferKind::Input);
            // What lives at home gives its bytes to nothing but the state's new value.
            let at_home = self.is_back_home(x)
                || self.home[x].is_some_and(|s| self.home[result.buffer] != Some(s));
            let free = output == result.output
                && takes_turns
                && !at_home
                && !self.pinned[x]
                && buffer.space == self.plan.buffers[result.buffer].space
                && buffer.bytes == self.plan.buffers[result.buffer].bytes
                && self.plan.live(x)?.is_some_and(|l| l.last == result.position)
                && self.only_in_place(result, x)
                && !self.taken(result.task, x);
            if free && self.of[x].is_some_and(&allowed) {
                return Ok(self.of[x]);
            }
        }
        Ok(None)
    }

    /// True where another result of the task already took the operand's slot.
    fn taken(&self, task: &Task, x: BufferId) -> bool {
        self.of[x].is_some() && task.writes.iter().flatten().any(|&w| self.of[w] == self.of[x])
    }

    fn pairs(&self, task: &Task) -> Vec<(usize, usize)> {
        let TaskKind::Run(n) = task.kind else { return Vec::new() };
        let Ok(outputs) = self.g.output_types(n) else { return Vec::new() };
        let outputs: Vec<_> = outputs.iter().collect();
        self.g.nodes[n].op.in_place_pairs(&self.g.input_types(n), &outputs)
    }

    /// True where the task reads the buffer through operands that are declared in place
    /// with this result and cover the whole buffer, or not at all.
    fn only_in_place(&self, result: &Site, x: BufferId) -> bool {
        let task = result.task;
        let TaskKind::Run(n) = task.kind else { return !task.reads.contains(&x) };
        let whole = |v: ValueId| {
            self.g.resolve(v).offset == 0 && self.g.ty(v).bytes() == self.plan.buffers[x].bytes
        };
        task.reads
            .iter()
            .zip(&self.g.nodes[n].inputs)
            .enumerate()
            .filter(|(_, (b, _))| **b == x)
            .all(|(input, (_, &v))| result.pairs.contains(&(input, result.output)) && whole(v))
    }
}
