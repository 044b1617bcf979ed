//! An order as a timeline: when tasks run, what each tensor's accesses are, and how many
//! bytes are alive at each position. What to move away and what to compute again is
//! decided on it.

use crate::Cx;
use arenic_ir::cost::{Device, Direction};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Buffer, BufferId, BufferKind, Plan, PlanError, SlotId, TaskId, TaskKind};
use arenic_ir::program::Space;
use cranelift_entity::SecondaryMap;

/// Bytes that are on the device at some of the step's positions: one buffer, or a state's
/// home with the new value that is written there.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The buffer; of a state its home as the step begins.
    pub buffer: BufferId,
    /// Bytes, rounded up to the alignment.
    pub bytes: u64,
    /// Positions at which a task reads or writes it, increasing.
    pub accesses: Vec<u32>,
    /// The task that makes it; `None` if it has a home.
    pub producer: Option<TaskId>,
    /// The position at which a state's new value is first written: nothing can bring the old one
    /// back after it.
    pub renewed: Option<u32>,
    /// The position at which that value is copied home; its home holds it from then on.
    pub committed: Option<u32>,
    /// The position that overwrites a state's old value, in its home or by the copy there: no
    /// task that reads it is repeated after that.
    pub overwritten: Option<u32>,
    /// It has a home, which may be in host memory.
    pub homed: bool,
    /// It must be there when the step ends.
    pub pinned: bool,
    /// Where its home has to be; `None` where that is open.
    pub home: Option<Space>,
}

impl Tensor {
    /// How often it lies between two accesses.
    pub fn gaps(&self) -> usize {
        self.accesses.len().saturating_sub(1)
    }
}

/// Rows of different lengths, one after another.
pub struct RaggedRows<T> {
    first: Vec<usize>,
    items: Vec<T>,
}

impl<T: Copy> RaggedRows<T> {
    /// Packs rows.
    pub fn new(rows: &[Vec<T>]) -> Self {
        let mut first = vec![0];
        first.extend(rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        }));
        RaggedRows { first, items: rows.concat() }
    }

    /// A row.
    pub fn row(&self, i: usize) -> &[T] {
        &self.items[self.first[i]..self.first[i + 1]]
    }
}

/// The plan's order with times and bytes.
pub struct Timeline<'a> {
    /// The graph.
    pub g: &'a Graph,
    /// Its plan, which has order and slots.
    pub plan: &'a Plan,
    /// The tasks, in order.
    pub order: Vec<TaskId>,
    /// Where each task stands in it.
    pub position: SecondaryMap<TaskId, u32>,
    /// When each position begins if nothing waits, in seconds; the end comes last.
    pub start: Vec<f64>,
    /// What has bytes on the device, homes first; tensors are named by their index here.
    pub tensors: Vec<Tensor>,
    /// The tensor that a buffer's bytes belong to; `None` for scratch and empty buffers.
    pub tensor: SecondaryMap<BufferId, Option<usize>>,
    /// Live bytes on the device at each position.
    pub live: Vec<u64>,
    /// Of these, bytes that are alive at the position before as well.
    pub passing: Vec<u64>,
    /// Pairs (operand, result) of each task that may share bytes.
    in_place: SecondaryMap<TaskId, Vec<(usize, usize)>>,
    /// Each position's accesses: the tensor, and which of its accesses it is.
    pub at: RaggedRows<(usize, usize)>,
    /// What each position reads: the tensor, and whether it is a home's old value.
    pub reads: RaggedRows<(usize, bool)>,
    /// The tensors that each position writes.
    pub writes: RaggedRows<usize>,
    /// Bytes of each position's scratch.
    pub scratch: Vec<u64>,
    /// For a position that commits: the tensor of the value, and that of the home.
    pub commits: Vec<Option<(usize, usize)>>,
    /// The first of each tensor's gaps; their count comes last.
    first_gap: Vec<usize>,
}

impl<'a> Timeline<'a> {
    /// The timeline with states in the homes that are given, where some are.
    pub fn with_homes(mut self, cx: &Cx) -> Self {
        for tensor in &mut self.tensors {
            if let (Some(homes), BufferKind::Enter(s)) =
                (cx.state_homes, self.plan.buffers[tensor.buffer].kind)
            {
                tensor.home = homes.get(&self.g.states[s]);
            }
        }
        self
    }

    /// True where a tensor must have its home in host memory.
    pub fn forces_host(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.home == Some(Space::Host))
    }

    /// Reads off a plan that has its order and slots.
    ///
    /// # Errors
    /// Order or slots are missing.
    pub fn new(g: &'a Graph, plan: &'a Plan, device: &Device) -> Result<Self, PlanError> {
        let order = plan.order()?.to_vec();
        let slots = plan.slots()?;
        let mut position = SecondaryMap::new();
        let mut start = vec![0.0];
        for (i, &t) in order.iter().enumerate() {
            position[t] = i as u32;
            start.push(start[i] + task_seconds(g, plan, t, device));
        }
        let mut tensor: SecondaryMap<BufferId, Option<usize>> = SecondaryMap::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        // The tensor of the state whose home the slot is: a new value there belongs to it.
        let mut home: SecondaryMap<SlotId, Option<usize>> = SecondaryMap::new();
        let writer = plan.writers();
        let with_homes_first = |(b, _): &(BufferId, &Buffer)| !plan.buffers[*b].kind.is_home();
        let mut buffers: Vec<(BufferId, &Buffer)> = plan.buffers.iter().collect();
        buffers.sort_by_key(with_homes_first);
        for (b, buffer) in buffers {
            let Some(slot) = slots.of[b].filter(|_| buffer.space == Space::Device) else {
                continue;
            };
            if !buffer.kind.is_home() && buffer.kind != BufferKind::Value {
                continue;
            }
            if let Some(x) = home[slot] {
                tensor[b] = Some(x);
                let written = writer[b].map(|t| position[t]);
                tensors[x].renewed = tensors[x].renewed.into_iter().chain(written).min();
                continue;
            }
            if matches!(buffer.kind, BufferKind::Enter(_)) {
                home[slot] = Some(tensors.len());
            }
            tensor[b] = Some(tensors.len());
            tensors.push(Tensor {
                buffer: b,
                bytes: buffer.rounded(),
                accesses: Vec::new(),
                producer: writer[b],
                renewed: None,
                committed: None,
                overwritten: None,
                homed: buffer.kind.is_home(),
                pinned: false,
                home: None,
            });
        }
        for output in &g.outputs {
            let buffer = plan.buffer_of[g.resolve(output.value).root];
            if let Some(x) = buffer.and_then(|b| tensor[b]) {
                tensors[x].pinned = true;
            }
        }
        for (i, &t) in order.iter().enumerate() {
            let task = &plan.tasks[t];
            if let TaskKind::Commit { state, .. } = task.kind
                && let Some(x) = task.reads.first().and_then(|&b| tensor[b])
                && plan.enter_buffer(g, state) == Some(tensors[x].buffer)
            {
                tensors[x].committed = Some(i as u32);
            }
            for &b in task.reads.iter().chain(task.writes.iter().flatten()) {
                if let Some(x) = tensor[b] {
                    tensors[x].accesses.push(i as u32);
                }
            }
        }
        let mut at = vec![Vec::new(); order.len()];
        for (x, tensor) in tensors.iter_mut().enumerate() {
            tensor.accesses.dedup();
            for (k, &p) in tensor.accesses.iter().enumerate() {
                at[p as usize].push((x, k));
            }
        }
        let mut first_gap = vec![0];
        first_gap.extend(tensors.iter().scan(0, |end, x| {
            *end += x.gaps();
            Some(*end)
        }));
        let reads = |&t: &TaskId| {
            let read = |&b: &BufferId| tensor[b].map(|x| (x, b == tensors[x].buffer));
            plan.tasks[t].reads.iter().filter_map(read).collect::<Vec<_>>()
        };
        let writes = |&t: &TaskId| {
            let written = plan.tasks[t].writes.iter().flatten();
            written.filter_map(|&b| tensor[b]).collect::<Vec<_>>()
        };
        let scratch = |t: &TaskId| plan.tasks[*t].scratch.map_or(0, |b| plan.buffers[b].rounded());
        let scratch = order.iter().map(scratch).collect();
        let (reads, writes): (Vec<_>, Vec<_>) = order.iter().map(|t| (reads(t), writes(t))).unzip();
        let mut live = slots.live_curve(Space::Device);
        live.resize(order.len(), 0);
        let mut passing = live.clone();
        for slot in slots.slots.values().filter(|slot| slot.space == Space::Device) {
            if let Some(bytes) = passing.get_mut(slot.live.first as usize) {
                *bytes -= slot.bytes;
            }
        }
        let mut timeline = Timeline {
            g,
            plan,
            order,
            position,
            start,
            tensors,
            tensor,
            live,
            passing,
            in_place: SecondaryMap::new(),
            at: RaggedRows::new(&at),
            reads: RaggedRows::new(&reads),
            writes: RaggedRows::new(&writes),
            scratch,
            commits: Vec::new(),
            first_gap,
        };
        timeline.commits = timeline.order.iter().map(|&t| timeline.commit(t)).collect();
        for x in &mut timeline.tensors {
            x.overwritten = x.renewed;
        }
        for (p, &(_, home)) in
            timeline.commits.iter().enumerate().filter_map(|(p, c)| Some((p, c.as_ref()?)))
        {
            timeline.tensors[home].overwritten.get_or_insert(p as u32);
        }
        for t in plan.tasks.keys() {
            timeline.in_place[t] = timeline.in_place_pairs(t);
        }
        Ok(timeline)
    }

    /// True where a tensor cannot leave at a position: its state's new value is there, and
    /// not yet at home.
    pub fn is_between_homes(&self, x: usize, position: u32) -> bool {
        let tensor = &self.tensors[x];
        tensor.renewed.is_some_and(|r| r <= position)
            && tensor.committed.is_none_or(|c| position < c)
    }

    fn commit(&self, t: TaskId) -> Option<(usize, usize)> {
        let task = &self.plan.tasks[t];
        let TaskKind::Commit { state, .. } = task.kind else { return None };
        let home = self.tensor[self.plan.enter_buffer(self.g, state)?]?;
        Some((self.tensor[*task.reads.first()?]?, home))
    }

    fn in_place_pairs(&self, t: TaskId) -> Vec<(usize, usize)> {
        let task = &self.plan.tasks[t];
        let TaskKind::Run(n) = task.kind else { return Vec::new() };
        let Ok(outputs) = self.g.output_types(n) else { return Vec::new() };
        let outputs: Vec<_> = outputs.iter().collect();
        let pairs = self.g.nodes[n].op.in_place_pairs(&self.g.input_types(n), &outputs);
        let tensors = |(operand, result): (usize, usize)| {
            let operand = self.g.resolve(self.g.nodes[n].inputs[operand]).root;
            let operand = self.plan.buffer_of[operand].and_then(|b| self.tensor[b])?;
            Some((operand, self.tensor[task.writes[result]?]?))
        };
        pairs.into_iter().filter_map(tensors).collect()
    }

    /// True where a task may write a result over an operand.
    pub fn may_share(&self, t: TaskId, operand: usize, result: usize) -> bool {
        self.in_place[t].contains(&(operand, result))
    }

    /// The place of a tensor's gap in a choice.
    pub fn gap(&self, x: usize, k: usize) -> usize {
        self.first_gap[x] + k
    }

    /// Gaps of all tensors.
    pub fn gap_count(&self) -> usize {
        self.first_gap.last().copied().unwrap_or(0)
    }

    /// True where a tensor may be away between an access and the next, if it has no home on
    /// the device.
    pub fn may_leave(&self, x: usize, k: usize) -> bool {
        let accesses = &self.tensors[x].accesses;
        accesses[k] + 1 < accesses[k + 1] && !self.is_between_homes(x, accesses[k])
    }

    /// The same where it has one: it must come back before the step renews it there.
    pub fn may_leave_home(&self, x: usize, k: usize) -> bool {
        let tensor = &self.tensors[x];
        self.may_leave(x, k) && tensor.renewed.is_some_and(|r| tensor.accesses[k + 1] <= r)
    }

    /// True where it may also be away before its first access.
    pub fn may_begin_away(&self, x: usize) -> bool {
        let tensor = &self.tensors[x];
        let first = tensor.accesses.first().filter(|&&first| first > 0);
        let read = |&p: &u32| self.reads.row(p as usize).contains(&(x, true));
        tensor.renewed.is_some() && first.is_some_and(read)
    }

    /// True where the task that made a tensor can run again.
    pub fn may_repeat(&self, x: usize) -> bool {
        let tensor = &self.tensors[x];
        let runs = |t: TaskId| matches!(self.plan.tasks[t].kind, TaskKind::Run(_));
        !tensor.homed && tensor.producer.is_some_and(runs)
    }

    /// True for an input that nobody needs after its last reader, wherever its home is.
    pub fn is_input(&self, x: usize) -> bool {
        let tensor = &self.tensors[x];
        self.plan.buffers[tensor.buffer].kind == BufferKind::Input && !tensor.pinned
    }

    /// Seconds of the task at a position.
    pub fn seconds(&self, position: u32) -> f64 {
        self.start[position as usize + 1] - self.start[position as usize]
    }
}

/// Seconds of a task on the device, or on the link.
fn task_seconds(g: &Graph, plan: &Plan, t: TaskId, device: &Device) -> f64 {
    let task = &plan.tasks[t];
    match task.kind {
        TaskKind::Run(n) => device.node_seconds(g, n).unwrap_or(0.0),
        TaskKind::Copy { .. } | TaskKind::Commit { .. } => {
            let buffer = |b: Option<&BufferId>| b.map(|&b| &plan.buffers[b]);
            let (from, to) =
                (buffer(task.reads.first()), buffer(task.writes.iter().flatten().next()));
            match (from.map(|b| b.space), to.map(|b| (b.space, b.bytes))) {
                (Some(Space::Device), Some((Space::Host, n))) => {
                    device.copy_seconds(Direction::ToHost, n)
                }
                (Some(Space::Host), Some((Space::Device, n))) => {
                    device.copy_seconds(Direction::ToDevice, n)
                }
                _ => 0.0,
            }
        }
    }
}
