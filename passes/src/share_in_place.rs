//! In-place sharing: an output takes over an input's slot, a state's exit value is
//! written straight home.
//!
//! From the MXNet note ("Squeeze the Memory Consumption of Deep Learning"): an output
//! may take an input's bytes only where the operator declares the pair and no one reads
//! the input later. Sound because a declared kernel reads each element before it writes
//! there, and because live ranges say that nothing else needs the old value: not a later
//! reader, not an output, not another operand of the same task.
//!
//! A state's exit value lives in the state's home when the old value is dead by then;
//! the commit that would copy it home then costs nothing. Constants have a home that
//! nothing may write into.

use crate::{Cx, PassError, PlanPass, Stats};
use arenic_ir::graph::{Def, Graph, StateId, ValueId};
use arenic_ir::plan::{
    BufferId, BufferKind, Fact, LiveRange, Plan, PlanError, Slot, SlotId, Slots, Task, TaskKind,
};
use cranelift_entity::{PrimaryMap, SecondaryMap};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lets outputs take over dead inputs' bytes, and exit values their state's home.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShareInPlace {
    /// Without it every buffer keeps bytes of its own.
    pub enabled: bool,
}

impl Default for ShareInPlace {
    fn default() -> Self {
        ShareInPlace { enabled: true }
    }
}

impl PlanPass for ShareInPlace {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Slots]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<Stats, PassError> {
        let slots = Sharing::new(g, plan, self.enabled)?.assign()?;
        let homed = g.states.keys().filter(|&s| {
            let exit = exit_buffer(g, plan, s).and_then(|b| slots.of[b]);
            exit.is_some() && exit == plan.enter_buffer(g, s).and_then(|b| slots.of[b])
        });
        let stats = Stats::from([
            ("buffers", plan.buffers.len() as u64),
            ("slots", slots.slots.len() as u64),
            ("states_updated_at_home", homed.count() as u64),
        ]);
        plan.set_slots(slots);
        Ok(stats)
    }
}

/// The buffer of a state's exit value, where that value could live in the state's home:
/// a node's whole result that no earlier state claims.
pub(crate) fn exit_buffer(g: &Graph, plan: &Plan, s: StateId) -> Option<BufferId> {
    let exit = g.resolve(g.states[s].exit);
    let whole = exit.offset == 0 && g.ty(exit.root).bytes() == g.ty(g.states[s].exit).bytes();
    let from_node = matches!(g.values[exit.root].def, Def::Node { .. });
    (whole && from_node).then(|| plan.buffer_of[exit.root]).flatten()
}

/// Slots for the plan's order.
///
/// # Errors
/// The plan has no order.
pub(crate) fn assign(g: &Graph, plan: &Plan) -> Result<Slots, PlanError> {
    Sharing::new(g, plan, true)?.assign()
}

struct Sharing<'a> {
    g: &'a Graph,
    plan: &'a Plan,
    enabled: bool,
    order: &'a [arenic_ir::plan::TaskId],
    /// Buffers that must outlive the step.
    pinned: SecondaryMap<BufferId, bool>,
    /// The state whose home an exit value's buffer may take.
    home: SecondaryMap<BufferId, Option<StateId>>,
    of: SecondaryMap<BufferId, Option<SlotId>>,
    slots: PrimaryMap<SlotId, Slot>,
}

impl<'a> Sharing<'a> {
    fn new(g: &'a Graph, plan: &'a Plan, enabled: bool) -> Result<Self, PlanError> {
        let mut pinned: SecondaryMap<BufferId, bool> = SecondaryMap::new();
        for output in &g.outputs {
            if let Some(b) = plan.buffer_of[g.resolve(output.value).root] {
                pinned[b] = true;
            }
        }
        let mut home: SecondaryMap<BufferId, Option<StateId>> = SecondaryMap::new();
        for s in g.states.keys() {
            if let Some(b) = exit_buffer(g, plan, s) {
                home[b].get_or_insert(s);
            }
        }
        let (of, slots) = Default::default();
        Ok(Sharing { g, plan, enabled, order: plan.order()?, pinned, home, of, slots })
    }

    fn assign(mut self) -> Result<Slots, PlanError> {
        let end = self.order.len().saturating_sub(1) as u32;
        let mut homes: SecondaryMap<StateId, Option<SlotId>> = SecondaryMap::new();
        for (b, buffer) in &self.plan.buffers {
            if let BufferKind::Enter(s) = buffer.kind {
                homes[s] = self.open(b, LiveRange { first: 0, last: end });
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
            let task = &self.plan.tasks[t];
            let pairs = self.pairs(task);
            for output in 0..task.writes.len() {
                let Some(b) = task.writes[output] else { continue };
                if self.of[b].is_some() || self.plan.buffers[b].kind != BufferKind::Value {
                    continue;
                }
                let Some(live) = self.plan.live(b)? else { continue };
                let taken = match self.home_slot(task, output, b, position as u32, &pairs)? {
                    Some(s) => homes[s],
                    None => self.input_slot(task, output, b, position as u32, &pairs)?,
                };
                match taken {
                    Some(slot) => self.join(slot, b, live),
                    None => {
                        self.open(b, live);
                    }
                }
            }
            if let Some(b) = task.scratch
                && let Some(live) = self.plan.live(b)?
            {
                self.open(b, live);
            }
        }
        Ok(Slots { of: self.of, slots: self.slots })
    }

    /// Gives a buffer a slot of its own; none for an empty buffer.
    fn open(&mut self, b: BufferId, live: LiveRange) -> Option<SlotId> {
        let buffer = &self.plan.buffers[b];
        if buffer.bytes > 0 {
            let slot =
                Slot { bytes: buffer.rounded(), align: buffer.align, space: buffer.space, live };
            self.of[b] = Some(self.slots.push(slot));
        }
        self.of[b]
    }

    fn join(&mut self, slot: SlotId, b: BufferId, live: LiveRange) {
        let range = &mut self.slots[slot].live;
        range.first = range.first.min(live.first);
        range.last = range.last.max(live.last);
        self.of[b] = Some(slot);
    }

    /// The state whose home this result may be written to: the old value is dead by
    /// now, or dies in this very task through declared pairs.
    fn home_slot(
        &self,
        task: &Task,
        output: usize,
        b: BufferId,
        position: u32,
        pairs: &[(usize, usize)],
    ) -> Result<Option<StateId>, PlanError> {
        let Some(s) = self.home[b].filter(|_| self.enabled) else { return Ok(None) };
        let Some(enter) = self.plan.enter_buffer(self.g, s) else { return Ok(None) };
        let Some(old) = self.plan.live(enter)? else { return Ok(None) };
        let dead = old.last < position
            || (old.last == position && self.only_in_place(task, output, enter, pairs));
        Ok(dead.then_some(s))
    }

    /// The slot of an operand that dies here and may be overwritten by this result.
    fn input_slot(
        &self,
        task: &Task,
        output: usize,
        b: BufferId,
        position: u32,
        pairs: &[(usize, usize)],
    ) -> Result<Option<SlotId>, PlanError> {
        for &(input, o) in pairs.iter().filter(|_| self.enabled) {
            let x = task.reads[input];
            let buffer = &self.plan.buffers[x];
            let takes_turns = matches!(buffer.kind, BufferKind::Value | BufferKind::Input);
            // An exit value that lives at home must stay there.
            let at_home = self.home[x].is_some();
            let free = o == output
                && takes_turns
                && !at_home
                && !self.pinned[x]
                && buffer.bytes == self.plan.buffers[b].bytes
                && self.plan.live(x)?.is_some_and(|l| l.last == position)
                && self.only_in_place(task, output, x, pairs)
                && !self.taken(task, x);
            if free {
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
    fn only_in_place(
        &self,
        task: &Task,
        output: usize,
        x: BufferId,
        pairs: &[(usize, usize)],
    ) -> bool {
        let TaskKind::Run(n) = task.kind else { return !task.reads.contains(&x) };
        let whole = |v: ValueId| {
            self.g.resolve(v).offset == 0 && self.g.ty(v).bytes() == self.plan.buffers[x].bytes
        };
        task.reads
            .iter()
            .zip(&self.g.nodes[n].inputs)
            .enumerate()
            .filter(|(_, (b, _))| **b == x)
            .all(|(input, (_, &v))| pairs.contains(&(input, output)) && whole(v))
    }
}
