//! Placement: every slot gets an offset in the arena of its space.
//!
//! One-pass heuristics, the lowest arena kept: slots by decreasing size, area (size ×
//! lifetime) or lifetime, each put by first fit (the least free offset; by size this is
//! "greedy by size") or best fit (the smallest gap that is large enough; SmartPool,
//! section IV). Resident slots come first and stack up from zero without gaps. Sound
//! because a slot is only put where no slot that is alive at the same time lies; nothing
//! here is trusted, `check` proves it again.

use crate::{Cx, PassError, PlanPass, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{Fact, Placement, Plan, Slot, SlotId};
use arenic_ir::program::Space;
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Places every slot in its arena; the best of several one-pass heuristics.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Place {
    /// Which heuristics are tried.
    pub method: Method,
}

/// How slots are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// First fit and best fit in every sequence; the lowest arena is kept.
    #[default]
    Best,
    /// Decreasing size, each at its least free offset.
    FirstFit,
    /// Decreasing size, each in the smallest gap that is large enough.
    BestFit,
}

/// What slots are sorted by, largest first, before they are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sequence {
    Size,
    Area,
    Lifetime,
}

impl Sequence {
    const ALL: [Sequence; 3] = [Sequence::Size, Sequence::Area, Sequence::Lifetime];

    fn key(self, s: &Slot) -> (u128, u64) {
        let lifetime = u64::from(s.live.last - s.live.first) + 1;
        match self {
            Sequence::Size => (u128::from(s.bytes), lifetime),
            Sequence::Area => (u128::from(s.bytes) * u128::from(lifetime), s.bytes),
            Sequence::Lifetime => (u128::from(lifetime), s.bytes),
        }
    }
}

/// An arena beyond this is refused, so that no sum of offsets can overflow.
const MAX_ARENA: u64 = 1 << 60;

impl PlanPass for Place {
    fn needs(&self) -> &[Fact] {
        &[Fact::Slots]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Placement]
    }

    fn run(&self, _: &Graph, plan: &mut Plan, _: &Cx) -> Result<Stats, PassError> {
        let live_peak = plan.slots()?.live_peak();
        let slots = &plan.slots()?.slots;
        let tried: Vec<(Method, Sequence)> = match self.method {
            Method::Best => [Method::FirstFit, Method::BestFit]
                .into_iter()
                .flat_map(|method| Sequence::ALL.map(|sequence| (method, sequence)))
                .collect(),
            method => vec![(method, Sequence::Size)],
        };
        let mut placement = Placement::default();
        for space in Space::ALL {
            let ids: Vec<SlotId> =
                slots.iter().filter(|(_, s)| s.space == space).map(|(id, _)| id).collect();
            let total = ids.iter().try_fold(0u64, |sum, &s| sum.checked_add(slots[s].bytes));
            if total.is_none_or(|t| t > MAX_ARENA) {
                return Err(PassError::TooLarge);
            }
            let last = ids.iter().map(|&s| slots[s].live.last).max().unwrap_or(0);
            let resident = |s: SlotId| slots[s].live.first == 0 && slots[s].live.last == last;
            let mut best: Option<(u64, SecondaryMap<SlotId, u64>)> = None;
            for &(method, sequence) in &tried {
                let mut ids = ids.clone();
                ids.sort_by_key(|&s| (!resident(s), Reverse(sequence.key(&slots[s])), s));
                let sorted: Vec<(SlotId, &Slot)> = ids.iter().map(|&s| (s, &slots[s])).collect();
                let placed = one_pass(&sorted, method);
                if best.as_ref().is_none_or(|(size, _)| placed.0 < *size) {
                    best = Some(placed);
                }
                if best.as_ref().is_some_and(|(size, _)| *size == live_peak[space]) {
                    break; // no placement is lower
                }
            }
            let Some((size, offset)) = best else { continue };
            for s in ids {
                placement.offset[s] = offset[s];
            }
            placement.sizes[space] = size;
        }
        let stats = Stats::from([("arena_bytes", placement.sizes.device)]);
        plan.set_placement(placement);
        Ok(stats)
    }
}

/// Places the slots in the given sequence; the arena's size and every offset.
fn one_pass(slots: &[(SlotId, &Slot)], method: Method) -> (u64, SecondaryMap<SlotId, u64>) {
    let mut offset = SecondaryMap::new();
    let mut size = 0;
    // Placed slots in order of offset.
    let mut placed: Vec<(u64, &Slot)> = Vec::with_capacity(slots.len());
    for &(id, slot) in slots {
        let neighbours = placed
            .iter()
            .filter(|(_, p)| p.live.first <= slot.live.last && slot.live.first <= p.live.last)
            .map(|&(at, p)| (at, at + p.bytes));
        let at = find_gap(slot, neighbours, method);
        offset[id] = at;
        size = size.max(at + slot.bytes);
        let index = placed.partition_point(|&(o, _)| o < at);
        placed.insert(index, (at, slot));
    }
    (size, offset)
}

/// An offset for the slot between neighbours in time, which come in order of offset.
fn find_gap(slot: &Slot, neighbours: impl Iterator<Item = (u64, u64)>, method: Method) -> u64 {
    let mut top = 0u64;
    let mut best: Option<(u64, u64)> = None;
    for (start, end) in neighbours {
        let at = top.next_multiple_of(slot.align);
        if at + slot.bytes <= start {
            let gap = start - at;
            if method == Method::FirstFit {
                return at;
            }
            if best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, at));
            }
        }
        top = top.max(end);
    }
    best.map_or(top.next_multiple_of(slot.align), |(_, at)| at)
}
