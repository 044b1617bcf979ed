//! The plan: *when* and *where*, as typed side tables over the frozen graph.
//!
//! Tasks and buffers are the plan's own; `spans → precedence → order → slots → placement` are facts
//! that passes establish. Setting a fact drops the facts that depend on it, and reading
//! an absent one is an error that names the pass which gives it, so no stale fact is
//! readable (invariant I4).

mod facts;
mod precedence;

use crate::backend::TargetInfo;
use crate::graph::{Def, Graph, NodeId, StateId, ValueId};
use crate::op::TypeError;
use crate::program::StreamId;
use crate::space::Space;
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use facts::{Fact, LiveRange, Placement, Slot, Slots, Spans};
pub use precedence::Precedence;

/// A task, printed `t5`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u32);
entity_impl!(TaskId, "t");

/// A buffer, printed `b12`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(u32);
entity_impl!(BufferId, "b");

/// A slot, printed `slot3`: buffers at one address that take turns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(u32);
entity_impl!(SlotId, "slot");

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Runs a node. A second task of the same node is a recomputation.
    Run(NodeId),
    /// Copies a value from one buffer to another; between spaces it is half a swap.
    Copy {
        /// First byte of the value in the buffer it is read from.
        offset: u64,
    },
    /// Copies a state's exit value home. It costs nothing where both share a slot.
    Commit {
        /// The state.
        state: StateId,
        /// First byte of the exit value in the buffer it is read from.
        offset: u64,
    },
}

/// A unit of scheduling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What it does.
    pub kind: TaskKind,
    /// The stream it is issued on.
    pub stream: StreamId,
    /// The buffer of each operand's root.
    pub reads: Vec<BufferId>,
    /// The buffer of each result; `None` for results that nobody reads.
    pub writes: Vec<Option<BufferId>>,
    /// Scratch, alive for this task alone.
    pub scratch: Option<BufferId>,
}

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// A fed input: written before the step.
    Input,
    /// A constant: its home, for good.
    Const,
    /// A state's home as the step begins.
    Enter(StateId),
    /// A state's home as the step ends.
    Exit(StateId),
    /// A node's result, or a copy of a value.
    Value,
    /// Scratch of one task.
    Scratch,
}

impl BufferKind {
    /// True for what is there as the step begins.
    pub fn is_home(self) -> bool {
        matches!(self, BufferKind::Input | BufferKind::Const | BufferKind::Enter(_))
    }

    /// The name in text and reports.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::Input => "input",
            BufferKind::Const => "const",
            BufferKind::Enter(_) => "state",
            BufferKind::Exit(_) => "exit",
            BufferKind::Value => "value",
            BufferKind::Scratch => "scratch",
        }
    }
}

/// Bytes that hold one value (or scratch) for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The root value it holds; `None` for scratch.
    pub holds: Option<ValueId>,
    /// What it is for.
    pub kind: BufferKind,
    /// Bytes.
    pub bytes: u64,
    /// Alignment in bytes, a power of two.
    pub align: u64,
    /// The arena it is in.
    pub space: Space,
    /// The task until which it keeps its bytes, whoever still reads it: a swap's source
    /// whose copy has the time until then.
    pub release: Option<TaskId>,
}

impl Buffer {
    /// Bytes rounded up to the alignment: what the buffer counts for.
    pub fn rounded(&self) -> u64 {
        self.bytes.next_multiple_of(self.align)
    }
}

/// Errors of making and reading plans.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A fact was read that no pass has established (or a later change dropped).
    #[error("the plan has no {fact} yet; the pass `{}` gives it", fact.given_by())]
    MissingFact {
        /// The fact.
        fact: Fact,
    },
    /// A state's exit or an output would need bytes that another state's update destroys.
    #[error(
        "`{0}` is the old value of state `{1}`, which the step overwrites; the pass \
         `detach_states` gives it bytes of its own"
    )]
    Attached(String, String),
    /// Operands that do not fit; the graph was not verified.
    #[error("{0}")]
    Type(TypeError),
    /// The order leaves out a task, repeats one, or breaks a dependence.
    #[error("not an order of the plan's tasks: {0}")]
    Order(String),
}

/// Side tables over a frozen graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Tasks in definition order: a valid order of the plan as it was made.
    pub tasks: PrimaryMap<TaskId, Task>,
    /// Buffers.
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// The buffer that holds each root value first.
    pub buffer_of: SecondaryMap<ValueId, Option<BufferId>>,
    control: Vec<(TaskId, TaskId)>,
    spans: Option<Spans>,
    precedence: Option<Precedence>,
    order: Option<Vec<TaskId>>,
    live: SecondaryMap<BufferId, Option<LiveRange>>,
    slots: Option<Slots>,
    placement: Option<Placement>,
}

impl Plan {
    /// The unplanned plan: one task per node, one buffer per root value that is used,
    /// and a commit for each state whose value changes.
    ///
    /// # Errors
    /// [`PlanError::Attached`]; [`PlanError::Type`] for a graph that was not verified.
    pub fn new(g: &Graph, target: TargetInfo) -> Result<Plan, PlanError> {
        let mut plan = Plan::default();
        let readers = g.readers();
        let mut wanted: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for (v, value) in &g.values {
            let read = !readers[v].is_empty();
            wanted[v] = read || matches!(value.def, Def::State(_) | Def::Node { .. });
        }
        for output in &g.outputs {
            wanted[g.resolve(output.value).root] = true;
        }
        for state in g.states.values() {
            wanted[g.resolve(state.exit).root] = true;
        }
        for (v, value) in &g.values {
            let kind = match value.def {
                Def::View { .. } => continue,
                Def::Input => BufferKind::Input,
                Def::Const(_) => BufferKind::Const,
                Def::State(s) => BufferKind::Enter(s),
                Def::Node { .. } => BufferKind::Value,
            };
            if wanted[v] {
                let buffer = plan.add_buffer(Some(v), kind, value.ty.bytes(), target);
                plan.buffer_of[v] = Some(buffer);
            }
        }
        plan.refuse_attached(g)?;

        // Commits follow as early as definition order allows: after the producer of the
        // exit value and after every reader of the enter value.
        let mut after: SecondaryMap<NodeId, Vec<StateId>> = SecondaryMap::new();
        let mut first: Vec<StateId> = Vec::new();
        for (s, state) in &g.states {
            let exit = g.resolve(state.exit);
            if exit.root == state.enter {
                continue;
            }
            let producer = match g.values[exit.root].def {
                Def::Node { node, .. } => Some(node),
                _ => None,
            };
            match readers[state.enter].last().copied().max(producer) {
                Some(node) => after[node].push(s),
                None => first.push(s),
            }
        }
        for s in first {
            plan.add_commit(g, s, target);
        }
        for (n, node) in &g.nodes {
            let outputs = g.output_types(n).map_err(PlanError::Type)?;
            let (x, y) = (g.input_types(n), outputs.iter().collect::<Vec<_>>());
            let scratch = node.op.scratch_bytes(target, &x, &y);
            let scratch =
                (scratch > 0).then(|| plan.add_buffer(None, BufferKind::Scratch, scratch, target));
            let buffer = |v: ValueId| plan.buffer_of[g.resolve(v).root];
            let task = Task {
                kind: TaskKind::Run(n),
                // Exchanges between ranks have a stream of their own, so that others go on meanwhile.
                stream: StreamId::new(usize::from(node.op.communicates())),
                reads: node.inputs.iter().filter_map(|&v| buffer(v)).collect(),
                writes: node.outputs.iter().map(|v| v.and_then(buffer)).collect(),
                scratch,
            };
            plan.tasks.push(task);
            for &s in &after[n] {
                plan.add_commit(g, s, target);
            }
        }
        Ok(plan)
    }

    fn add_buffer(
        &mut self,
        holds: Option<ValueId>,
        kind: BufferKind,
        bytes: u64,
        target: TargetInfo,
    ) -> BufferId {
        let (align, space) = (target.align, Space::Device);
        self.buffers.push(Buffer { holds, kind, bytes, align, space, release: None })
    }

    fn add_commit(&mut self, g: &Graph, state: StateId, target: TargetInfo) {
        let exit = g.resolve(g.states[state].exit);
        let bytes = g.ty(g.states[state].exit).bytes();
        let home = self.add_buffer(Some(exit.root), BufferKind::Exit(state), bytes, target);
        self.tasks.push(Task {
            kind: TaskKind::Commit { state, offset: exit.offset },
            stream: StreamId::new(0),
            reads: self.buffer_of[exit.root].into_iter().collect(),
            writes: vec![Some(home)],
            scratch: None,
        });
    }

    /// Adds a task that copies a buffer's bytes to a new buffer in `space`, which holds the
    /// same value; drops every fact.
    pub fn add_copy(
        &mut self,
        from: BufferId,
        space: Space,
        stream: StreamId,
    ) -> (TaskId, BufferId) {
        let kind = BufferKind::Value;
        let to = Buffer { kind, space, release: None, ..self.buffers[from].clone() };
        let to = self.buffers.push(to);
        let kind = TaskKind::Copy { offset: 0 };
        let task = Task { kind, stream, reads: vec![from], writes: vec![Some(to)], scratch: None };
        self.drop_facts();
        (self.tasks.push(task), to)
    }

    /// Adds a task that runs a task's node again, with results in new buffers; drops every
    /// fact. It reads what the task reads.
    pub fn add_repeat(&mut self, t: TaskId) -> TaskId {
        let mut task = self.tasks[t].clone();
        for b in task.writes.iter_mut().flatten().chain(&mut task.scratch) {
            let buffer = Buffer { release: None, ..self.buffers[*b].clone() };
            *b = self.buffers.push(buffer);
        }
        self.drop_facts();
        self.tasks.push(task)
    }

    /// Old values that outlive their state's update need bytes of their own.
    fn refuse_attached(&self, g: &Graph) -> Result<(), PlanError> {
        let overwritten = |v: ValueId| match g.values[g.resolve(v).root].def {
            Def::State(s) if g.resolve(g.states[s].exit).root != g.states[s].enter => Some(s),
            _ => None,
        };
        for state in g.states.values() {
            if let Def::State(s) = g.values[g.resolve(state.exit).root].def
                && g.states[s].enter != state.enter
            {
                return Err(PlanError::Attached(state.name.clone(), g.states[s].name.clone()));
            }
        }
        for output in &g.outputs {
            if let Some(s) = overwritten(output.value) {
                return Err(PlanError::Attached(output.name.clone(), g.states[s].name.clone()));
            }
        }
        Ok(())
    }

    /// The home of a state as the step begins.
    pub fn enter_buffer(&self, g: &Graph, s: StateId) -> Option<BufferId> {
        self.buffer_of[g.states[s].enter]
    }

    /// The spans.
    ///
    /// # Errors
    /// They were not computed, or dropped since.
    pub fn spans(&self) -> Result<&Spans, PlanError> {
        self.spans.as_ref().ok_or(PlanError::MissingFact { fact: Fact::Spans })
    }

    /// Sets the spans; drops the precedence and the order, and what depends on them.
    pub fn set_spans(&mut self, spans: Spans) {
        self.spans = Some(spans);
        self.precedence = None;
        self.drop_order();
    }

    /// Which buffers are never alive together.
    ///
    /// # Errors
    /// It was not computed, or dropped since.
    pub fn precedence(&self) -> Result<&Precedence, PlanError> {
        self.precedence.as_ref().ok_or(PlanError::MissingFact { fact: Fact::Precedence })
    }

    /// Sets the precedence; drops the order and what depends on it.
    pub fn set_precedence(&mut self, precedence: Precedence) {
        self.precedence = Some(precedence);
        self.drop_order();
    }

    /// Control edges: dependences (before, after) that the graph does not have.
    pub fn control_edges(&self) -> &[(TaskId, TaskId)] {
        &self.control
    }

    /// Adds control edges; drops every fact.
    ///
    /// # Errors
    /// With these edges a task would wait for itself; the plan is left as it was.
    pub fn add_control_edges(
        &mut self,
        g: &Graph,
        edges: impl IntoIterator<Item = (TaskId, TaskId)>,
    ) -> Result<(), PlanError> {
        let before = self.control.len();
        self.control.extend(edges);
        let known = |&(a, b): &(TaskId, TaskId)| self.tasks.is_valid(a) && self.tasks.is_valid(b);
        if !self.control.iter().all(known) || self.topological(g).len() < self.tasks.len() {
            self.control.truncate(before);
            return Err(PlanError::Order("control edges make a cycle".into()));
        }
        self.control.sort_unstable();
        self.control.dedup();
        self.drop_facts();
        Ok(())
    }

    /// The tasks in an order that keeps to all dependences, the first in definition order
    /// where there is a choice; some are missing where control edges make a cycle.
    pub fn topological(&self, g: &Graph) -> Vec<TaskId> {
        let mut after: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
        let mut blocked: SecondaryMap<TaskId, usize> = SecondaryMap::new();
        for (a, b) in self.dependences(g) {
            after[a].push(b);
            blocked[b] += 1;
        }
        let mut ready: BinaryHeap<Reverse<TaskId>> =
            self.tasks.keys().filter(|&t| blocked[t] == 0).map(Reverse).collect();
        let mut order = Vec::with_capacity(self.tasks.len());
        while let Some(Reverse(t)) = ready.pop() {
            order.push(t);
            for &next in &after[t] {
                blocked[next] -= 1;
                if blocked[next] == 0 {
                    ready.push(Reverse(next));
                }
            }
        }
        order
    }

    /// The order of tasks.
    ///
    /// # Errors
    /// It was not set, or dropped since.
    pub fn order(&self) -> Result<&[TaskId], PlanError> {
        self.order.as_deref().ok_or(PlanError::MissingFact { fact: Fact::Order })
    }

    /// Live range of a buffer under the order; `None` for a buffer that no task uses.
    ///
    /// # Errors
    /// There is no order.
    pub fn live(&self, b: BufferId) -> Result<Option<LiveRange>, PlanError> {
        self.order()?;
        Ok(self.live[b])
    }

    /// Sets the order and with it the live ranges; drops slots and placement.
    ///
    /// # Errors
    /// Not a permutation of the tasks, or a dependence is broken.
    pub fn set_order(&mut self, g: &Graph, order: Vec<TaskId>) -> Result<(), PlanError> {
        self.drop_order();
        let position = self.positions(&order)?;
        for (before, after) in self.dependences(g) {
            if position[before] >= position[after] {
                return Err(PlanError::Order(format!("{after} runs before {before}")));
            }
        }
        self.live = self.live_ranges(g, &order, &position);
        self.order = Some(order);
        Ok(())
    }

    fn positions(&self, order: &[TaskId]) -> Result<SecondaryMap<TaskId, u32>, PlanError> {
        let mut seen: SecondaryMap<TaskId, bool> = SecondaryMap::new();
        let mut position = SecondaryMap::new();
        for (i, &t) in order.iter().enumerate() {
            if !self.tasks.is_valid(t) || std::mem::replace(&mut seen[t], true) {
                return Err(PlanError::Order(format!("{t} is unknown or comes twice")));
            }
            position[t] = i as u32;
        }
        if order.len() != self.tasks.len() {
            let left = self.tasks.keys().find(|&t| !seen[t]);
            let left = left.map_or(String::new(), |t| t.to_string());
            return Err(PlanError::Order(format!("{left} is left out")));
        }
        Ok(position)
    }

    /// The slots.
    ///
    /// # Errors
    /// They were not set, or dropped since.
    pub fn slots(&self) -> Result<&Slots, PlanError> {
        self.slots.as_ref().ok_or(PlanError::MissingFact { fact: Fact::Slots })
    }

    /// Sets the slots; drops the placement.
    pub fn set_slots(&mut self, slots: Slots) {
        self.placement = None;
        self.slots = Some(slots);
    }

    /// The placement.
    ///
    /// # Errors
    /// It was not set, or dropped since.
    pub fn placement(&self) -> Result<&Placement, PlanError> {
        self.placement.as_ref().ok_or(PlanError::MissingFact { fact: Fact::Placement })
    }

    /// Sets the placement.
    pub fn set_placement(&mut self, placement: Placement) {
        self.placement = Some(placement);
    }

    /// True where the fact can be read.
    pub fn has(&self, fact: Fact) -> bool {
        match fact {
            Fact::Spans => self.spans.is_some(),
            Fact::Precedence => self.precedence.is_some(),
            Fact::Order => self.order.is_some(),
            Fact::Slots => self.slots.is_some(),
            Fact::Placement => self.placement.is_some(),
        }
    }

    fn drop_facts(&mut self) {
        self.spans = None;
        self.precedence = None;
        self.drop_order();
    }

    fn drop_order(&mut self) {
        self.order = None;
        self.live.clear();
        self.slots = None;
        self.placement = None;
    }

    /// The task that writes each buffer; homes of inputs, constants and enter values
    /// have none.
    pub fn writers(&self) -> SecondaryMap<BufferId, Option<TaskId>> {
        let mut writer = SecondaryMap::new();
        for (t, task) in &self.tasks {
            for &b in task.writes.iter().flatten() {
                writer[b] = Some(t);
            }
        }
        writer
    }

    /// All pairs (before, after): writer before reader, every reader of a state's enter
    /// value before its commit, and control edges.
    pub fn dependences(&self, g: &Graph) -> Vec<(TaskId, TaskId)> {
        let writer = self.writers();
        let mut commit_of: SecondaryMap<BufferId, Option<TaskId>> = SecondaryMap::new();
        for (t, task) in &self.tasks {
            if let TaskKind::Commit { state, .. } = task.kind
                && let Some(b) = self.enter_buffer(g, state)
            {
                commit_of[b] = Some(t);
            }
        }
        let mut pairs = Vec::new();
        for (t, task) in &self.tasks {
            for &b in &task.reads {
                pairs.extend(writer[b].map(|w| (w, t)));
                pairs.extend(commit_of[b].filter(|&c| c != t).map(|c| (t, c)));
            }
        }
        pairs.extend(&self.control);
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    fn live_ranges(
        &self,
        g: &Graph,
        order: &[TaskId],
        position: &SecondaryMap<TaskId, u32>,
    ) -> SecondaryMap<BufferId, Option<LiveRange>> {
        let end = order.len().saturating_sub(1) as u32;
        let mut live: SecondaryMap<BufferId, Option<LiveRange>> = SecondaryMap::new();
        let mut touch = |b: BufferId, at: u32| {
            let r = live[b].get_or_insert(LiveRange { first: at, last: at });
            r.first = r.first.min(at);
            r.last = r.last.max(at);
        };
        for (b, buffer) in &self.buffers {
            match buffer.kind {
                BufferKind::Input | BufferKind::Enter(_) => touch(b, 0),
                BufferKind::Const => {
                    touch(b, 0);
                    touch(b, end);
                }
                BufferKind::Exit(_) => touch(b, end),
                BufferKind::Value | BufferKind::Scratch => {}
            }
            if let Some(t) = buffer.release {
                touch(b, position[t]);
            }
        }
        for (t, task) in &self.tasks {
            let used = task.reads.iter().chain(task.writes.iter().flatten()).chain(&task.scratch);
            used.for_each(|&b| touch(b, position[t]));
        }
        for output in &g.outputs {
            if let Some(b) = self.buffer_of[g.resolve(output.value).root] {
                touch(b, end);
            }
        }
        for state in g.states.values() {
            if g.resolve(state.exit).root == state.enter
                && let Some(b) = self.buffer_of[state.enter]
            {
                touch(b, end);
            }
        }
        live
    }
}
