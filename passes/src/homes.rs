//! Common homes: programs that take turns over the same arenas find states and constants at the same places.
//!
//! Plans are made one by one, each as if the arenas were its own. What is alive throughout lies at the
//! bottom of an arena then, so that addresses follow at the end: first come the states of all plans,
//! then their constants, equal ones once, then what each plan has for itself, as it was placed. So
//! homes cost a plan nothing but the bytes of others. Sound because what two plans have at one place is
//! the same, and nobody else's bytes lie there; `check_turns` proves it again.
//!
//! A step that is added to programs that are there already has its states and constants where these have
//! theirs ([`Pinned`]), and all else beside them.

use crate::PassError;
use crate::place::{
    Buffer, MAX_HEIGHT, Placer, Problem, Wish, as_buffer, is_resident, last_position,
};
use arenic_ir::graph::{Data, Def, Graph, State, StateId, ValueId};
use arenic_ir::plan::{BufferKind, Placement, Plan, Slot, SlotId};
use arenic_ir::program::{PerSpace, Program, Range, Space};
use arenic_ir::types::TensorType;
use cranelift_entity::SecondaryMap;
use std::collections::HashMap;

/// What programs have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Home {
    State(u32),
    Const(u32),
}

/// What makes a home of one plan that of another.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    /// A state by name and first row.
    State(&'a str, usize),
    /// A constant, and how many equal ones the plan has before it. A run may replace constants by
    /// name, so that equal ones of other names stay apart.
    Const(&'a str, &'a TensorType, &'a [u8], usize),
    /// A constant whose data are not at hand, of a plan.
    Unknown(usize, u32),
}

/// Where a plan's states and constants lie.
#[derive(Clone, Debug, Default)]
pub(crate) struct Homes {
    /// First byte of each slot that is a home.
    offset: SecondaryMap<SlotId, Option<u64>>,
    /// The homes of all plans: first byte and end of each run of bytes, increasing.
    taken: PerSpace<Vec<(u64, u64)>>,
}

/// The homes of programs that are there already.
#[derive(Debug, Default)]
pub struct Pinned<'a> {
    /// By name and first row.
    states: HashMap<(&'a str, usize), Range>,
    /// Equal ones, in the order of their places.
    constants: HashMap<(&'a str, &'a TensorType, &'a [u8]), Vec<Range>>,
    taken: PerSpace<Vec<(u64, u64)>>,
}

impl<'a> Pinned<'a> {
    /// The homes of these programs, which may take turns.
    pub fn of(parts: &[(&'a Graph, &'a Program)]) -> Pinned<'a> {
        let mut pinned = Pinned::default();
        for &(g, program) in parts {
            for home in &program.homes {
                let value = &g.values[home.value];
                match &value.def {
                    Def::State(s) => {
                        let state = &g.states[*s];
                        let row = state.rows.map_or(0, |rows| rows.first);
                        pinned.states.insert((&state.name, row), home.range);
                    }
                    Def::Const(Data::Bytes(bytes)) => {
                        let key = (value.name.as_str(), &value.ty, &bytes[..]);
                        let ranges = pinned.constants.entry(key).or_default();
                        if !ranges.contains(&home.range) {
                            ranges.push(home.range);
                        }
                    }
                    Def::Const(Data::Absent) => {}
                    _ => continue,
                }
                let (range, align) = (home.range, program.target.align.max(1));
                let end = range.end().checked_next_multiple_of(align).unwrap_or(u64::MAX);
                pinned.taken[range.space].push((range.offset, end));
            }
        }
        pinned
            .constants
            .values_mut()
            .for_each(|ranges| ranges.sort_by_key(|r| (r.space, r.offset)));
        for space in Space::ALL {
            let ranges = &mut pinned.taken[space];
            ranges.sort_unstable();
            ranges.dedup_by(|next, last| {
                let meets = next.0 <= last.1;
                if meets {
                    last.1 = last.1.max(next.1);
                }
                meets
            });
        }
        pinned
    }

    /// Constants that have homes on the device: names, types, contents, and how many equal ones there are.
    pub fn constants(&self) -> impl Iterator<Item = (&'a str, &'a TensorType, &'a [u8], usize)> {
        self.constants.iter().map(|(&(name, ty, bytes), ranges)| {
            let on_device = ranges.iter().filter(|r| r.space == Space::Device);
            (name, ty, bytes, on_device.count())
        })
    }

    /// Where the states and constants of a plan that has its slots must lie.
    ///
    /// # Errors
    /// The programs have no home for one of them.
    pub(crate) fn homes(&self, g: &Graph, plan: &Plan) -> Result<Homes, PassError> {
        let slots = &plan.slots()?.slots;
        let mut met: HashMap<(&str, &TensorType, &[u8], Space), usize> = HashMap::new();
        let mut offset = SecondaryMap::new();
        for (home, slot) in homes(plan)? {
            let held = &slots[slot];
            let (name, found) = match home {
                Home::State(s) => {
                    let state = &g.states[StateId::from_u32(s)];
                    let row = state.rows.map_or(0, |rows| rows.first);
                    (&state.name, self.states.get(&(state.name.as_str(), row)).copied())
                }
                Home::Const(v) => {
                    let value = &g.values[ValueId::from_u32(v)];
                    let bytes = match &value.def {
                        Def::Const(Data::Bytes(bytes)) => &bytes[..],
                        _ => &[],
                    };
                    let before =
                        met.entry((&value.name, &value.ty, bytes, held.space)).or_default();
                    *before += 1;
                    let of = self.constants.get(&(value.name.as_str(), &value.ty, bytes));
                    let mut there = of.into_iter().flatten().filter(|r| r.space == held.space);
                    (&value.name, there.nth(*before - 1).copied())
                }
            };
            // Whoever shares the slot takes no more than the home has.
            let room = |range: &Range| range.len.checked_next_multiple_of(held.align);
            let fits = |range: &Range| {
                range.space == held.space
                    && range.offset.is_multiple_of(held.align)
                    && room(range).is_some_and(|room| held.bytes <= room)
            };
            let Some(range) = found.filter(fits) else { return Err(PassError::Home(name.clone())) };
            offset[slot] = Some(range.offset);
        }
        Ok(Homes { offset, taken: self.taken.clone() })
    }
}

/// In which memory each state has its home as a step begins and ends, by name and first row: the same
/// in all steps that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateHomes(HashMap<(String, usize), Space>);

impl StateHomes {
    /// The homes of steps that were planned by themselves: in host memory where one of them has a state
    /// there. The others can have it there, too: they fetch it before it is read and store it at the end.
    pub fn of(parts: &[(&Graph, &Program)]) -> StateHomes {
        let mut homes = StateHomes::default();
        for part in parts {
            for (key, space) in spaces(part) {
                let home = homes.0.entry(key).or_insert(space);
                *home = (*home).max(space);
            }
        }
        homes
    }

    /// True where the states of a step have these homes.
    pub fn are_of(&self, part: &(&Graph, &Program)) -> bool {
        spaces(part).all(|(key, space)| self.0.get(&key) == Some(&space))
    }

    /// Where a state has its home.
    pub(crate) fn get(&self, state: &State) -> Option<Space> {
        let row = state.rows.map_or(0, |rows| rows.first);
        self.0.get(&(state.name.clone(), row)).copied()
    }
}

/// The states of a step with the memory that they have their homes in.
fn spaces<'a>(
    (g, program): &(&'a Graph, &'a Program),
) -> impl Iterator<Item = ((String, usize), Space)> {
    let g = *g;
    program.homes.iter().filter_map(move |home| {
        let Def::State(s) = g.values[home.value].def else { return None };
        let state = &g.states[s];
        let row = state.rows.map_or(0, |rows| rows.first);
        Some(((state.name.clone(), row), home.range.space))
    })
}

/// The slots of a plan's states, then those of its constants.
fn homes(plan: &Plan) -> Result<Vec<(Home, SlotId)>, PassError> {
    let slots = plan.slots()?;
    let mut homes = Vec::new();
    for (b, buffer) in &plan.buffers {
        let home = match (buffer.kind, buffer.holds) {
            (BufferKind::Enter(s), _) => Home::State(s.as_u32()),
            (BufferKind::Const, Some(v)) => Home::Const(v.as_u32()),
            _ => continue,
        };
        homes.extend(slots.of[b].map(|slot| (home, slot)));
    }
    homes.sort_unstable();
    Ok(homes)
}

impl Homes {
    /// Common homes of plans that have their slots.
    pub(crate) fn of(parts: &[(&Graph, &Plan)]) -> Result<Vec<Homes>, PassError> {
        let mut index: HashMap<(Space, Key), usize> = HashMap::new();
        // Bytes, alignment, and the order in which they lie.
        let mut common: Vec<(&Slot, u64, bool)> = Vec::new();
        let mut places: Vec<Vec<(SlotId, usize)>> = Vec::new();
        for (i, &(g, plan)) in parts.iter().enumerate() {
            let slots = &plan.slots()?.slots;
            let mut equal: HashMap<(&str, &TensorType, &[u8]), usize> = HashMap::new();
            let mut of_part = Vec::new();
            for (home, slot) in homes(plan)? {
                let key = match home {
                    Home::State(s) => {
                        let state = &g.states[StateId::from_u32(s)];
                        Key::State(&state.name, state.rows.map_or(0, |rows| rows.first))
                    }
                    Home::Const(v) => {
                        let value = &g.values[ValueId::from_u32(v)];
                        match &value.def {
                            Def::Const(Data::Bytes(bytes)) => {
                                let what = (value.name.as_str(), &value.ty, &bytes[..]);
                                let before = equal.entry(what).or_default();
                                *before += 1;
                                Key::Const(what.0, what.1, what.2, *before)
                            }
                            _ => Key::Unknown(i, v),
                        }
                    }
                };
                let held = &slots[slot];
                let at = *index.entry((held.space, key)).or_insert_with(|| {
                    common.push((held, held.bytes, matches!(home, Home::Const(_))));
                    common.len() - 1
                });
                common[at].1 = common[at].1.max(held.bytes);
                of_part.push((slot, at));
            }
            places.push(of_part);
        }
        let (mut top, mut offsets) = (PerSpace::default(), vec![0u64; common.len()]);
        for constants in [false, true] {
            let of = common.iter().enumerate().filter(|(_, home)| home.2 == constants);
            for (at, &(slot, bytes, _)) in of {
                let top: &mut u64 = &mut top[slot.space];
                offsets[at] = top.next_multiple_of(slot.align);
                *top = offsets[at].saturating_add(bytes);
                if *top > MAX_HEIGHT {
                    return Err(PassError::TooLarge);
                }
            }
        }
        let taken = |end: u64| if end > 0 { vec![(0, end)] } else { Vec::new() };
        let taken = PerSpace { device: taken(top.device), host: taken(top.host) };
        let homes = |of_part: Vec<(SlotId, usize)>| {
            let mut offset = SecondaryMap::new();
            of_part.into_iter().for_each(|(slot, at)| offset[slot] = Some(offsets[at]));
            Homes { offset, taken: taken.clone() }
        };
        Ok(places.into_iter().map(homes).collect())
    }

    /// Places a plan that was placed by itself over these homes. What lies above the plan's own homes
    /// is moved as a whole; where homes are left for a part of the step and others lie in them
    /// meanwhile, or where homes have room between them, the method places anew.
    pub(crate) fn place(
        &self,
        plan: &mut Plan,
        placer: &dyn Placer,
        wish: &Wish,
        limits: &PerSpace<Option<u64>>,
    ) -> Result<(), PassError> {
        let slots = &plan.slots()?.slots;
        let before = plan.placement()?;
        let mut placement = Placement::default();
        for space in Space::ALL {
            let ids: Vec<SlotId> =
                slots.iter().filter(|(_, s)| s.space == space).map(|(id, _)| id).collect();
            let last = last_position(slots, &ids);
            let (homes, others): (Vec<SlotId>, Vec<SlotId>) =
                ids.iter().partition(|&&s| self.offset[s].is_some());
            for &s in &homes {
                placement.offset[s] = self.offset[s].unwrap_or(0);
            }
            let taken = &self.taken[space];
            let mut top = taken.last().map_or(0, |last| last.1);
            let (resident, transient): (Vec<SlotId>, Vec<SlotId>) =
                others.into_iter().partition(|&s| is_resident(&slots[s], last));
            for s in resident {
                placement.offset[s] = top.next_multiple_of(slots[s].align);
                top = placement.offset[s].saturating_add(slots[s].bytes);
            }
            let align = transient.iter().map(|&s| slots[s].align).max().unwrap_or(1);
            let base = top.next_multiple_of(align);
            let left: Vec<SlotId> =
                homes.into_iter().filter(|&s| !slots[s].away.is_empty()).collect();
            let is_whole = matches!(taken[..], [] | [(0, _)]);
            if left.is_empty() && is_whole {
                let lowest = transient.iter().map(|&s| before.offset[s]).min().unwrap_or(0);
                let lowest = lowest - lowest % align;
                for s in transient {
                    placement.offset[s] = base + (before.offset[s] - lowest);
                }
            } else {
                let fixed = |(s, at): (&Slot, u64)| Buffer { offset: Some(at), ..as_buffer(s) };
                let mut buffers: Vec<Buffer> =
                    transient.iter().map(|&s| as_buffer(&slots[s])).collect();
                buffers.extend(left.iter().map(|&s| fixed((&slots[s], placement.offset[s]))));
                let mut left: Vec<(u64, u64)> =
                    left.iter().map(|&s| (placement.offset[s], slots[s].bytes)).collect();
                left.sort_unstable();
                // What is resident lies behind the homes.
                let end = taken.last().map_or(0, |last| last.1);
                let behind = (end < base).then_some((end, base));
                for (mut from, end) in taken.iter().copied().chain(behind) {
                    let inside = left.iter().filter(|l| from <= l.0 && l.0 < end);
                    for (at, bytes) in inside.copied().chain([(end, 0)]).collect::<Vec<_>>() {
                        if from < at {
                            buffers.push(Buffer {
                                lower: 0,
                                upper: i64::from(last) + 1,
                                size: at - from,
                                alignment: 1,
                                offset: Some(from),
                                ..Buffer::default()
                            });
                        }
                        from = at + bytes;
                    }
                }
                let problem = Problem::new(buffers).map_err(|_| PassError::TooLarge)?;
                let wish = Wish { capacity: limits[space].or(wish.capacity), ..*wish };
                let solution = placer.place(&problem, &wish);
                for (&s, at) in transient.iter().zip(solution.offsets) {
                    placement.offset[s] = at;
                }
            }
            let end = |&s: &SlotId| placement.offset[s].saturating_add(slots[s].bytes);
            placement.sizes[space] = ids.iter().map(end).max().unwrap_or(0);
            if placement.sizes[space] > MAX_HEIGHT {
                return Err(PassError::TooLarge);
            }
        }
        plan.set_placement(placement);
        Ok(())
    }
}
