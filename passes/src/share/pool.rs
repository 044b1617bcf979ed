//! The pool of dead slots, and who may still be using one.
//!
//! Vector clocks over the streams say which tasks are done, as far as a task knows, when it
//! runs: those before it on its own stream, and those it depends on. Sharing with a slot
//! all of whose users are done costs no parallelism; sharing with any other one makes the
//! task wait, and its clock knows of that from then on.

use arenic_ir::graph::Graph;
use arenic_ir::plan::{
    Buffer, BufferId, BufferKind, LiveRange, Plan, PlanError, Slot, SlotId, TaskId,
};
use arenic_ir::program::{Space, StreamId};
use cranelift_entity::{PrimaryMap, SecondaryMap};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Slots of the pool that are looked at for one buffer, in each direction of size.
const CANDIDATES: usize = 64;

/// How many tasks of each stream are done.
type Clock = Vec<u32>;

/// What the pool may do.
pub(crate) struct PoolOptions {
    /// A slot is taken for a buffer of at most this many times its size, and of at least
    /// its size divided by it.
    pub(crate) match_range: u64,
    /// Also slots that tasks of other streams may still be using are taken.
    pub(crate) across_streams: bool,
    /// Slots of the pool keep their bytes for the whole step.
    pub(crate) hold: bool,
}

/// Slots that nobody needs any more, by size.
pub(crate) struct Pool {
    options: PoolOptions,
    before: SecondaryMap<TaskId, Vec<TaskId>>,
    users: SecondaryMap<BufferId, Vec<TaskId>>,
    /// Each task's stream, as an index of clocks, and its number on it, from 1.
    number: SecondaryMap<TaskId, (usize, u32)>,
    clocks: SecondaryMap<TaskId, Clock>,
    /// Each stream's tasks so far, with their positions.
    issued: Vec<Vec<(u32, TaskId)>>,
    now: Option<TaskId>,
    /// What a task must know to be done before it may overwrite the slot without waiting;
    /// empty for slots that never come back.
    done: SecondaryMap<SlotId, Clock>,
    /// Slots in use, with the last position of that use.
    busy: BinaryHeap<Reverse<(u32, SlotId)>>,
    free: BTreeSet<(Space, u64, SlotId)>,
}

impl Pool {
    /// An empty pool for the plan's order.
    ///
    /// # Errors
    /// The plan has no order.
    pub(crate) fn new(g: &Graph, plan: &Plan, options: PoolOptions) -> Result<Pool, PlanError> {
        let mut before: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
        for (a, b) in plan.dependences(g) {
            before[b].push(a);
        }
        let mut users: SecondaryMap<BufferId, Vec<TaskId>> = SecondaryMap::new();
        for (t, task) in &plan.tasks {
            let used = task.reads.iter().chain(task.writes.iter().flatten()).chain(&task.scratch);
            used.for_each(|&b| users[b].push(t));
        }
        let mut streams: Vec<StreamId> = plan.tasks.values().map(|t| t.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let mut count = vec![0; streams.len()];
        let mut number: SecondaryMap<TaskId, (usize, u32)> = SecondaryMap::new();
        for &t in plan.order()? {
            let s = streams.partition_point(|&s| s < plan.tasks[t].stream);
            count[s] += 1;
            number[t] = (s, count[s]);
        }
        Ok(Pool {
            options,
            before,
            users,
            number,
            clocks: SecondaryMap::new(),
            issued: vec![Vec::new(); streams.len()],
            now: None,
            done: SecondaryMap::new(),
            busy: BinaryHeap::new(),
            free: BTreeSet::new(),
        })
    }

    /// The next task of the order is about to take slots.
    pub(crate) fn begin(&mut self, t: TaskId, position: u32, slots: &PrimaryMap<SlotId, Slot>) {
        let (s, count) = self.number[t];
        let mut clock = vec![0; self.issued.len()];
        let previous = self.issued[s].last().map(|(_, t)| t);
        for &earlier in self.before[t].iter().chain(previous) {
            join(&mut clock, &self.clocks[earlier]);
        }
        clock[s] = count;
        self.clocks[t] = clock;
        self.issued[s].push((position, t));
        self.now = Some(t);
        while let Some(&Reverse((last, slot))) = self.busy.peek()
            && last < position
        {
            self.busy.pop();
            let Slot { live, space, bytes, .. } = slots[slot];
            if live.last == last {
                self.free.insert((space, bytes, slot));
            }
        }
    }

    /// A new slot was opened for the buffer. It comes to the pool when the buffer dies,
    /// unless it is the home of a state or of a constant.
    pub(crate) fn opened(&mut self, b: BufferId, kind: BufferKind, slot: SlotId, last: u32) {
        if matches!(kind, BufferKind::Value | BufferKind::Input | BufferKind::Scratch) {
            self.done[slot] = vec![0; self.issued.len()];
            self.occupied(b, slot, last);
        }
    }

    /// The buffer lives in the slot until the position `last`.
    pub(crate) fn occupied(&mut self, b: BufferId, slot: SlotId, last: u32) {
        if self.done[slot].is_empty() {
            return;
        }
        for &t in &self.users[b] {
            let (s, count) = self.number[t];
            self.done[slot][s] = self.done[slot][s].max(count);
        }
        self.busy.push(Reverse((last, slot)));
    }

    /// True where slots may be shared with tasks that could run at the same time.
    pub(crate) fn crosses(&self) -> bool {
        self.options.across_streams
    }

    /// True where all users of the slot so far are done when the present task runs,
    /// whatever the slot is used for.
    pub(crate) fn is_done(&self, slot: SlotId) -> bool {
        self.now.is_some_and(|now| covers(&self.clocks[now], &self.done[slot]))
    }

    /// Takes a slot for the buffer: a free one whose users are done; else `operand`, the
    /// slot of an operand that some other stream may still read; else any free one. Of
    /// several the one that fits best.
    pub(crate) fn take(&mut self, buffer: &Buffer, operand: Option<SlotId>) -> Option<SlotId> {
        let fitting = self.fitting(buffer);
        let done = fitting.iter().find(|(_, _, slot)| self.is_done(*slot));
        let crossing = fitting.first().filter(|_| self.crosses());
        let entry = match (done, operand) {
            (Some(entry), _) => entry,
            (None, Some(slot)) => {
                self.wait_for(slot);
                return Some(slot);
            }
            (None, None) => crossing?,
        };
        let &(_, _, slot) = entry;
        self.free.remove(entry);
        self.wait_for(slot);
        Some(slot)
    }

    /// Free slots for the buffer: from its size upwards, then from there downwards.
    fn fitting(&self, buffer: &Buffer) -> Vec<(Space, u64, SlotId)> {
        let (space, bytes) = (buffer.space, buffer.rounded());
        if bytes == 0 {
            return Vec::new();
        }
        let range = self.options.match_range;
        let (least, most) = (bytes.div_ceil(range.max(1)), bytes.saturating_mul(range));
        let first = |bytes| (space, bytes, SlotId::from_u32(0));
        let larger = self.free.range(first(bytes)..).take_while(|e| e.0 == space && e.1 <= most);
        let smaller = self.free.range(first(least)..first(bytes)).rev();
        larger.take(CANDIDATES).chain(smaller.take(CANDIDATES)).copied().collect()
    }

    /// The present task runs after all users of the slot.
    fn wait_for(&mut self, slot: SlotId) {
        if let Some(now) = self.now {
            join(&mut self.clocks[now], &self.done[slot]);
        }
    }

    /// Settles the live ranges of the pool's slots, where the plan's order ends at `end`.
    /// Where streams are not to be crossed, a slot keeps its bytes until every later task
    /// knows its users to be done, so that no placement crosses either.
    pub(crate) fn finish(&self, slots: &mut PrimaryMap<SlotId, Slot>, end: u32) {
        let pooled = slots.iter_mut().filter(|(slot, _)| !self.done[*slot].is_empty());
        for (slot, Slot { live, .. }) in pooled {
            if self.options.hold {
                *live = LiveRange { first: 0, last: end };
            } else if !self.options.across_streams {
                live.last = live.last.max(self.last_unaware(slot));
            }
        }
    }

    /// The last position of a task that does not know the slot's users to be done.
    fn last_unaware(&self, slot: SlotId) -> u32 {
        let positions = self.issued.iter().filter_map(|tasks| {
            let unaware = |t: &(u32, TaskId)| !covers(&self.clocks[t.1], &self.done[slot]);
            // Clocks grow along a stream.
            Some(tasks[tasks.partition_point(unaware).checked_sub(1)?].0)
        });
        positions.max().unwrap_or(0)
    }
}

/// True where all that `needed` asks for is done as far as `known` says.
fn covers(known: &Clock, needed: &Clock) -> bool {
    needed.iter().zip(known).all(|(needed, known)| needed <= known)
}

fn join(clock: &mut Clock, other: &Clock) {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}
