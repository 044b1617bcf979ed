//! Placement: every slot gets an offset in the arena of its space.
//!
//! The bare problem is offline dynamic storage allocation ([`problem`]). The pass tries
//! one-pass heuristics ([`skyline`], [`one_pass`], OLLA's [`pyramid`] among them), then
//! searches exactly at the lower bound ([`search`]), then between that and the best
//! ([`solve`]). The exact search is a portfolio of short ones: in each round every preference once,
//! stirred by a seed of its own; no seed is chosen by how it did on some instance (`--seed` draws
//! others). Resident slots, alive throughout, stack up first from zero. Sound because
//! a buffer is only put where no other lies that is alive at the same time; nothing here
//! is trusted, `check` proves it again.

mod noise;
mod one_pass;
mod problem;
mod pyramid;
mod search;
mod skyline;
mod solve;
#[cfg(test)]
mod tests;

use crate::{Cx, PassError, PlanOutcome, PlanPass, Search, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{Fact, LiveRange, Placement, Plan, Slot, SlotId};
use arenic_ir::program::{PerSpace, Space};
use cranelift_entity::PrimaryMap;
pub use one_pass::{Fit, Sequence, one_pass, stack};
pub use problem::{Buffer, Gap, Invalid, MAX_ALIGNMENT, MAX_HEIGHT, Problem, Use};
pub use pyramid::pyramid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use solve::{DEFAULT_EFFORT, Limits, Solution, solve};
pub(crate) use solve::{ONE_PASS, one_pass_work};

/// Places every slot in its arena: heuristics, then an exact search at the lower bound.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Place {
    /// Effort of the search for each space, in seconds of the reference core; with 0 heuristics
    /// alone.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
}

impl Default for Place {
    fn default() -> Self {
        Place { effort: DEFAULT_EFFORT }
    }
}

impl Placer for Place {
    fn place(&self, p: &Problem, wish: &Wish) -> Solution {
        let (capacity, deadline) = (wish.capacity, wish.search.deadline());
        let limits = Limits::new(wish.search.effort(self.effort), capacity, deadline);
        solve(p, &Limits { seed: wish.search.seed, near: wish.near, ..limits })
    }
}

/// What a placement must achieve, and how long it may search.
#[derive(Clone, Copy, Default)]
pub struct Wish<'a> {
    /// Stop as soon as the placement is not higher than this, in bytes.
    pub capacity: Option<u64>,
    /// Bytes above the lower bound that are worth a small part of the search alone.
    pub near: u64,
    /// How the search is limited and watched.
    pub search: Search<'a>,
}

/// Bytes of a page of memory: a machine shows no difference below that.
pub(crate) const PAGE: u64 = 4096;

/// A method of placement that can be used without a graph.
pub trait Placer: Send + Sync {
    /// Places all buffers.
    fn place(&self, p: &Problem, wish: &Wish) -> Solution;
}

/// Every method is a pass that places a plan's slots.
impl<P: Placer> PlanPass for P {
    fn needs(&self) -> &[Fact] {
        &[Fact::Slots]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Placement]
    }

    fn run(&self, _: &Graph, plan: &mut Plan, cx: &Cx) -> Result<PlanOutcome, PassError> {
        let wish = Wish { near: PAGE, search: cx.search, ..Wish::default() };
        Ok(place_within(plan, &cx.limits, self, &wish)?.into())
    }

    fn placer(&self) -> Option<&dyn Placer> {
        Some(self)
    }
}

/// True for a slot whose bytes are its own throughout the step.
pub(crate) fn is_resident(slot: &Slot, last: u32) -> bool {
    slot.live == LiveRange { first: 0, last } && slot.away.is_empty()
}

/// The last position of any of these slots.
pub(crate) fn last_position(slots: &PrimaryMap<SlotId, Slot>, ids: &[SlotId]) -> u32 {
    ids.iter().map(|&s| slots[s].live.last).max().unwrap_or(0)
}

/// A slot as something to place.
pub(crate) fn as_buffer(slot: &Slot) -> Buffer {
    let gap = |away: &LiveRange| Gap {
        lower: away.first.into(),
        upper: i64::from(away.last) + 1,
        window: None,
    };
    Buffer {
        lower: slot.live.first.into(),
        upper: i64::from(slot.live.last) + 1,
        size: slot.bytes,
        alignment: slot.align,
        gaps: slot.away.iter().map(gap).collect(),
        ..Buffer::default()
    }
}

/// Places the plan's slots with a method; where a space has a limit, whatever keeps it is
/// good enough.
pub(crate) fn place_within(
    plan: &mut Plan,
    limits: &PerSpace<Option<u64>>,
    placer: &dyn Placer,
    wish: &Wish,
) -> Result<Stats, PassError> {
    place_slots(plan, |space, base, _, problem| {
        let capacity = limits[space].map(|limit| limit.saturating_sub(base)).or(wish.capacity);
        placer.place(problem, &Wish { capacity, ..*wish })
    })
}

/// Places the plan's slots space by space, on top of the resident ones. `place` gets the
/// space, the bytes of the resident slots, the other slots and, in the same sequence, their
/// problem.
pub fn place_slots(
    plan: &mut Plan,
    place: impl Fn(Space, u64, &[SlotId], &Problem) -> Solution,
) -> Result<Stats, PassError> {
    let live_peak = plan.slots()?.live_peak();
    let slots = &plan.slots()?.slots;
    let mut placement = Placement::default();
    for space in Space::ALL {
        let ids: Vec<SlotId> =
            slots.iter().filter(|(_, s)| s.space == space).map(|(id, _)| id).collect();
        let last = last_position(slots, &ids);
        let (resident, transient): (Vec<SlotId>, Vec<SlotId>) =
            ids.into_iter().partition(|&s| is_resident(&slots[s], last));
        let mut top = 0u64;
        for s in resident {
            let at = top.next_multiple_of(slots[s].align);
            placement.offset[s] = at;
            top = at.saturating_add(slots[s].bytes);
            if top > MAX_HEIGHT {
                return Err(PassError::TooLarge);
            }
        }
        let align = transient.iter().map(|&s| slots[s].align).max().unwrap_or(1);
        let base = if transient.is_empty() { top } else { top.next_multiple_of(align) };
        // Slots of a plan are sound in all but their sum.
        let problem = Problem::new(transient.iter().map(|&s| as_buffer(&slots[s])).collect())
            .map_err(|_| PassError::TooLarge)?;
        let solution = place(space, base, &transient, &problem);
        for (s, at) in transient.into_iter().zip(solution.offsets) {
            placement.offset[s] = base + at;
        }
        placement.sizes[space] = base + solution.height;
        if placement.sizes[space] > MAX_HEIGHT {
            return Err(PassError::TooLarge);
        }
    }
    let arena = placement.sizes.device;
    let fragmentation = arena.saturating_sub(live_peak[Space::Device]);
    plan.set_placement(placement);
    Ok(Stats::from([("arena_bytes", arena), ("fragmentation_bytes", fragmentation)]))
}
