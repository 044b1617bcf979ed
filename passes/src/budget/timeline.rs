//! An order as a timeline: when tasks run, what each tensor's accesses are, and how many
//! bytes are alive at each position. What to move away and what to compute again is
//! decided on it.

use arenic_ir::cost::{Device, Direction};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Buffer, BufferId, BufferKind, Plan, PlanError, SlotId, TaskId, TaskKind};
use arenic_ir::program::Space;
use cranelift_entity::SecondaryMap;

/// Bytes that are on the device at some of the step's positions: one buffer, or a state's
/// home with the new value that is written there.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// The buffer; of a state its home as the step begins.
    pub(super) buffer: BufferId,
    /// Bytes, rounded up to the alignment.
    pub(super) bytes: u64,
    /// Positions at which a task reads or writes it, increasing.
    pub(super) accesses: Vec<u32>,
    /// The task that makes it; none where it has a home.
    pub(super) producer: Option<TaskId>,
    /// The position at which a state's new value is written: nothing can bring the old one
    /// back after it.
    pub(super) renewed: Option<u32>,
    /// The position at which that value is copied home; its home holds it from then on.
    pub(super) committed: Option<u32>,
    /// It has a home, which may be in host memory.
    pub(super) homed: bool,
    /// It must be there when the step ends.
    pub(super) pinned: bool,
}

/// The plan's order with times and bytes.
pub(super) struct Timeline<'a> {
    pub(super) g: &'a Graph,
    pub(super) plan: &'a Plan,
    pub(super) order: Vec<TaskId>,
    pub(super) position: SecondaryMap<TaskId, u32>,
    /// When each position begins if nothing waits, in seconds; the end comes last.
    pub(super) start: Vec<f64>,
    pub(super) tensors: Vec<Tensor>,
    /// The tensor that a buffer's bytes belong to; none for scratch and empty buffers.
    pub(super) tensor: SecondaryMap<BufferId, Option<usize>>,
    /// Live bytes on the device at each position.
    pub(super) live: Vec<u64>,
}

impl<'a> Timeline<'a> {
    /// Reads off a plan that has its order and slots.
    ///
    /// # Errors
    /// Order or slots are missing.
    pub(super) fn new(g: &'a Graph, plan: &'a Plan, device: &Device) -> Result<Self, PlanError> {
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
                tensors[x].renewed = writer[b].map(|t| position[t]);
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
                homed: buffer.kind.is_home(),
                pinned: false,
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
        tensors.iter_mut().for_each(|x| x.accesses.dedup());
        let mut live = slots.live_curve(Space::Device);
        live.resize(order.len(), 0);
        Ok(Timeline { g, plan, order, position, start, tensors, tensor, live })
    }

    /// True where a tensor cannot leave at a position: its state's new value is there, and
    /// not yet at home.
    pub(super) fn is_between_homes(&self, x: usize, position: u32) -> bool {
        let tensor = &self.tensors[x];
        tensor.renewed.is_some_and(|r| r <= position)
            && tensor.committed.is_none_or(|c| position < c)
    }

    /// True for an input that nobody needs after its last reader, wherever its home is.
    pub(super) fn is_input(&self, x: usize) -> bool {
        let tensor = &self.tensors[x];
        self.plan.buffers[tensor.buffer].kind == BufferKind::Input && !tensor.pinned
    }

    /// Seconds of the task at a position.
    pub(super) fn seconds(&self, position: u32) -> f64 {
        self.start[position as usize + 1] - self.start[position as usize]
    }
}

/// Seconds of a task on the device, or on the link.
pub(super) fn task_seconds(g: &Graph, plan: &Plan, t: TaskId, device: &Device) -> f64 {
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
