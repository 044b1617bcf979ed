//! The facts that passes establish about a plan.

use super::{BufferId, SlotId, TaskId};
use crate::space::{PerSpace, Space};
use cranelift_entity::{PrimaryMap, SecondaryMap};
use std::fmt;

/// First and last position in the order at which a buffer's bytes matter, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRange {
    /// First position.
    pub first: u32,
    /// Last position.
    pub last: u32,
}

/// Buffers that share an address because their live ranges follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Bytes, rounded up to the alignment.
    pub bytes: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// The arena.
    pub space: Space,
    /// From the first to the last position of any of its buffers.
    pub live: LiveRange,
    /// Positions in between at which its bytes are free for other slots, in order: those at
    /// which what has its home here is in host memory.
    pub away: Vec<LiveRange>,
}

/// Which buffer is in which slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// The slot of each buffer; `None` for a buffer that owns no bytes.
    pub of: SecondaryMap<BufferId, Option<SlotId>>,
    /// The slots.
    pub slots: PrimaryMap<SlotId, Slot>,
}

impl Slots {
    /// The largest sum of live bytes over all positions, per space.
    pub fn live_peak(&self) -> PerSpace<u64> {
        let mut peak = PerSpace::default();
        for space in Space::ALL {
            peak[space] = self.live_curve(space).into_iter().max().unwrap_or(0);
        }
        peak
    }

    /// Live bytes at each position that any slot of the space reaches.
    pub fn live_curve(&self, space: Space) -> Vec<u64> {
        let slots = || self.slots.values().filter(|s| s.space == space);
        let Some(last) = slots().map(|s| s.live.last).max() else { return Vec::new() };
        let mut change = vec![0i64; last as usize + 2];
        for s in slots() {
            change[s.live.first as usize] += s.bytes as i64;
            change[s.live.last as usize + 1] -= s.bytes as i64;
            for away in &s.away {
                change[away.first as usize] -= s.bytes as i64;
                change[away.last as usize + 1] += s.bytes as i64;
            }
        }
        let mut live = 0;
        change.truncate(last as usize + 1);
        change
            .into_iter()
            .map(|c| {
                live += c;
                live as u64
            })
            .collect()
    }
}

/// Where each slot is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// First byte of each slot in its arena.
    pub offset: SecondaryMap<SlotId, u64>,
    /// Arena sizes in bytes.
    pub sizes: PerSpace<u64>,
}

/// Earliest and latest position of each task, and what follows for buffers (OLLA,
/// equations 10–12). An order that runs one task per position keeps to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// ASAP: tasks on the longest path from the start.
    pub asap: SecondaryMap<TaskId, u32>,
    /// ALAP: the last position minus the tasks on the longest path to the end.
    pub alap: SecondaryMap<TaskId, u32>,
    /// `MUL`, the maximum useful lifetime: outside of it a buffer is never alive. `None`
    /// for a buffer that no task uses.
    pub useful: SecondaryMap<BufferId, Option<LiveRange>>,
    /// `PRES`: a buffer is alive all through it; `None` where that is empty.
    pub preserved: SecondaryMap<BufferId, Option<LiveRange>>,
}

/// What a pass may need or give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fact {
    /// [`Spans`].
    Spans,
    /// [`Precedence`](super::Precedence).
    Precedence,
    /// The order of tasks, and the buffers' live ranges, which follow from it.
    Order,
    /// [`Slots`].
    Slots,
    /// [`Placement`].
    Placement,
}

impl Fact {
    /// Every fact; each depends on earlier ones alone.
    pub const ALL: [Fact; 5] =
        [Fact::Spans, Fact::Precedence, Fact::Order, Fact::Slots, Fact::Placement];

    /// The pass of the default pipeline that gives it.
    pub fn given_by(self) -> &'static str {
        match self {
            Fact::Spans => "spans",
            Fact::Precedence => "prune_precedence",
            Fact::Order => "order",
            Fact::Slots => "share_in_place",
            Fact::Placement => "place",
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fact::Spans => "spans",
            Fact::Precedence => "precedence",
            Fact::Order => "order",
            Fact::Slots => "slots",
            Fact::Placement => "placement",
        })
    }
}
