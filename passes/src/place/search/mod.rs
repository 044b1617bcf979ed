//! Exact search: a placement within a capacity, or the proof that there is none.
//!
//! After MiniMalloc (Moffitt, ASPLOS 2023): only canonical placements are looked at, those
//! in which each buffer rests on another or on the ground, built upwards; sections of time
//! bound what is still to come (`floor + rest ≤ capacity`), parts that no lifetime
//! connects are solved apart, and several preferences are tried in turn.
//!
//! Instead of the next buffer by offset a branch decides what rests on one section: the
//! *pivot*, in a valley of the skyline between higher walls. Whatever rests at its floor
//! lies within the valley, and nothing can come below it any more; so a branch takes each
//! buffer that fits there, or none, which lifts the floor to the next level at which
//! anything can rest. The pivot with the fewest ways out is taken: sections without slack
//! cannot be left empty. Branches exclude each other, and a part whose skyline and
//! remaining buffers were found impossible before is not tried again.
//!
//! Gaps are not used here: buffers count for their whole lifetime.

mod pivot;
mod trail;

use super::noise::{mix, noise};
use super::problem::Problem;
use crate::search::Deadline;
use std::cmp::Reverse;
use std::collections::HashSet;

/// What a branch tries first; the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preference {
    Area,
    Lifetime,
    Size,
    Walls,
}

impl Preference {
    pub(super) const ALL: [Preference; 4] = [Self::Size, Self::Area, Self::Walls, Self::Lifetime];
}

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The offset of each buffer.
    Placed(Vec<u64>),
    /// There is no such placement.
    Impossible,
    /// The work or the time was spent.
    Undecided,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    first: u32,
    end: u32,
    size: u64,
    alignment: u64,
    fixed: Option<u64>,
}

/// The search on one problem.
pub(super) struct ExactSearch {
    /// Buffers that are not empty, by first section.
    items: Vec<Item>,
    /// The buffer of each item.
    source: Vec<u32>,
    /// Number of buffers, empty ones included.
    buffers: usize,
    sections: usize,
    /// No fixed offsets and one alignment for all: slabs may change places.
    uniform: bool,
    /// States that were found impossible, under one capacity.
    failed: HashSet<(u64, u64)>,
    capacity: u64,
    /// Items and sections looked at in this run.
    work: u64,
}

/// States remembered as impossible.
const MAX_FAILED: usize = 1 << 21;

impl ExactSearch {
    pub(super) fn new(p: &Problem) -> ExactSearch {
        let mut items = Vec::with_capacity(p.buffers().len());
        for (i, b) in p.buffers().iter().enumerate() {
            let Some((first, end)) = p.span(i) else { continue };
            let (size, alignment, fixed) = (b.rounded(), b.alignment, b.offset);
            items.push((Item { first, end, size, alignment, fixed }, i as u32));
        }
        items.sort_by_key(|(i, source)| (i.first, i.end, i.size, *source));
        let (items, source): (Vec<Item>, Vec<u32>) = items.into_iter().unzip();
        let alignment = items.first().map_or(1, |i| i.alignment);
        ExactSearch {
            sections: items.iter().map(|i| i.end as usize).max().unwrap_or(0),
            uniform: items.iter().all(|i| i.fixed.is_none() && i.alignment == alignment),
            items,
            source,
            buffers: p.buffers().len(),
            failed: HashSet::new(),
            capacity: 0,
            work: 0,
        }
    }

    /// About the work of placing every buffer without ever turning back.
    pub(super) fn dive(&self) -> u64 {
        let n = self.items.len() as u64;
        n * (n + self.sections as u64) / 2 + 1
    }

    /// Looks for a placement within the capacity until the work reaches `limit`; how that
    /// ended, and the work. A seed above zero stirs the preference.
    pub(super) fn run(
        &mut self,
        capacity: u64,
        preference: Preference,
        seed: u64,
        limit: u64,
        deadline: &Deadline,
    ) -> (End, u64) {
        self.work = 0;
        let end = self.look(capacity, preference, seed, limit, deadline);
        (end, self.work)
    }

    fn look(
        &mut self,
        capacity: u64,
        preference: Preference,
        seed: u64,
        limit: u64,
        deadline: &Deadline,
    ) -> End {
        if self.capacity != capacity {
            self.failed.clear();
            self.capacity = capacity;
        }
        let mut state = State::new(self, preference, seed);
        if state.floor.iter().zip(&state.rest).any(|(f, r)| f + r > capacity) {
            return End::Impossible;
        }
        let mut part = Part { from: 0, to: self.sections as u32, head: 0 };
        let mut clock = 0u32;
        loop {
            clock += 1;
            let late = clock.is_multiple_of(256) && deadline.is_over();
            if self.work >= limit || late {
                return End::Undecided;
            }
            match state.expand(self, part) {
                Step::Again => {}
                Step::Part(p) => part = p,
                Step::Done => {
                    let mut offsets = vec![0; self.buffers];
                    for (&source, &at) in self.source.iter().zip(&state.offset) {
                        offsets[source as usize] = at;
                    }
                    return End::Placed(offsets);
                }
                Step::Fail => match state.backtrack(self) {
                    Some(p) => part = p,
                    None => return End::Impossible,
                },
            }
        }
    }
}

/// Sections `from..to`, which no waiting lifetime leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    from: u32,
    to: u32,
    /// The first item that waits in it.
    head: u32,
}

enum Step {
    /// The same part again: something was decided.
    Again,
    /// Another part is next.
    Part(Part),
    /// Everything is placed.
    Done,
    /// There is no placement from here.
    Fail,
}

/// What rests on the pivot.
#[derive(Clone, Copy, Debug)]
enum Way {
    Item(u32),
    /// Nothing below this level.
    Empty {
        section: u32,
        level: u64,
    },
}

/// A branch: the ways that are left, best last.
struct Branch {
    ways: Vec<Way>,
    part: Part,
    trail: usize,
    hash: (u64, u64),
}

/// What to undo.
enum Change {
    Floor(u32, u64),
    Placed(u32),
    Pushed,
    Popped(Waiting),
}

/// A part that is to be solved after others. Nothing in the others can mend it, so their
/// branches, all above `branches`, are dropped by then.
#[derive(Clone, Copy)]
struct Waiting {
    part: Part,
    branches: usize,
}

/// Sections of one floor.
#[derive(Clone, Copy)]
struct Stretch {
    from: u32,
    to: u32,
    floor: u64,
    /// The lower of the nearest higher walls. Whatever comes to a section here but not at
    /// its floor rests at least there, or on something that is not placed yet.
    next: u64,
    /// Both neighbours are higher.
    valley: bool,
}

struct State {
    capacity: u64,
    /// Per section the least offset of what is waiting there.
    floor: Vec<u64>,
    /// Per section the bytes that are waiting.
    rest: Vec<u64>,
    /// Waiting items by first section, as a list: `next[items]` is the first.
    next: Vec<u32>,
    before: Vec<u32>,
    offset: Vec<u64>,
    /// Preference among items, larger is better.
    rank: Vec<u64>,
    walls: bool,
    trail: Vec<Change>,
    branches: Vec<Branch>,
    agenda: Vec<Waiting>,
    // Working space of `expand`.
    here: Vec<u32>,
    stretches: Vec<Stretch>,
    stretch_of: Vec<u32>,
    walls_ahead: Vec<u64>,
    count: Vec<i32>,
    /// Least size of what lies in the valley and ends by the section; begins after it.
    ended: Vec<u64>,
    to_begin: Vec<u64>,
}

impl State {
    fn new(s: &ExactSearch, preference: Preference, seed: u64) -> State {
        let n = s.items.len();
        let mut rest = vec![0u64; s.sections];
        for i in &s.items {
            for r in &mut rest[i.first as usize..i.end as usize] {
                *r += i.size;
            }
        }
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_cached_key(|&i| {
            let item = &s.items[i as usize];
            let (size, lifetime) = (u128::from(item.size), u128::from(item.end - item.first));
            let noise = noise(seed, i);
            let key = match preference {
                Preference::Area => (size * lifetime * noise, size),
                Preference::Lifetime => (lifetime * noise, size),
                Preference::Size | Preference::Walls => (size * noise, lifetime),
            };
            (key, Reverse(i))
        });
        let mut rank = vec![0; n];
        for (r, &i) in order.iter().enumerate() {
            rank[i as usize] = r as u64;
        }
        let ring = |i: usize| (i % (n + 1)) as u32;
        State {
            capacity: s.capacity,
            floor: vec![0; s.sections],
            rest,
            next: (0..=n).map(|i| ring(i + 1)).collect(),
            before: (0..=n).map(|i| ring(i + n)).collect(),
            offset: vec![0; n],
            rank,
            walls: preference == Preference::Walls,
            trail: Vec::new(),
            branches: Vec::new(),
            agenda: Vec::new(),
            here: Vec::new(),
            stretches: Vec::new(),
            stretch_of: vec![0; s.sections],
            walls_ahead: Vec::new(),
            count: vec![0; s.sections + 1],
            ended: vec![0; s.sections],
            to_begin: vec![0; s.sections],
        }
    }

    /// Lifts floors, splits, or branches.
    fn expand(&mut self, s: &mut ExactSearch, part: Part) -> Step {
        let items = &s.items;
        self.here.clear();
        let mut i = part.head;
        while let Some(item) = items.get(i as usize)
            && item.first < part.to
        {
            self.here.push(i);
            i = self.next[i as usize];
        }
        s.work += (self.here.len() + (part.to - part.from) as usize) as u64;
        if let Some(step) = self.split(items, part) {
            return step;
        }
        self.find_stretches(part);
        if !self.count_ways(items) {
            return Step::Fail;
        }
        let Some((lifted, pivot)) = self.find_pivot() else { return Step::Fail };
        if lifted {
            return Step::Again;
        }
        let whole = |i: &&u32| {
            let item = &items[**i as usize];
            (item.first, item.end) == (part.from, part.to)
        };
        if s.uniform
            && self.stretches.len() == 1
            && let Some(&i) = self.here.iter().find(whole)
        {
            // What lives throughout may as well be at the bottom.
            return Step::Part(self.put(items, part, i));
        }
        let valley = self.stretches[self.stretch_of[pivot as usize] as usize];
        let mut ways: Vec<u32> = Vec::new();
        for &i in &self.here {
            let item = &items[i as usize];
            let on_pivot = item.first <= pivot && pivot < item.end;
            let inside = valley.from <= item.first && item.end <= valley.to;
            let twin = ways.last().is_some_and(|&w| items[w as usize] == *item);
            if on_pivot && inside && !twin && least_offset(item, valley.floor) == valley.floor {
                ways.push(i);
            }
        }
        let level = self.empty_level(pivot, &valley);
        let may_be_empty = level.saturating_add(self.rest[pivot as usize]) <= self.capacity;
        if let ([only], false) = (&ways[..], may_be_empty) {
            return Step::Part(self.put(items, part, *only));
        }
        let hash = self.hash(part);
        if s.failed.contains(&hash) {
            return Step::Fail;
        }
        let key = |&i: &u32| {
            let item = &items[i as usize];
            let touches = u64::from(item.first == valley.from) + u64::from(item.end == valley.to);
            (if self.walls { touches } else { 0 }, self.rank[i as usize])
        };
        ways.sort_by_key(key);
        let empty = may_be_empty.then_some(Way::Empty { section: pivot, level });
        let ways = empty.into_iter().chain(ways.into_iter().map(Way::Item)).collect();
        self.branches.push(Branch { ways, part, trail: self.trail.len(), hash });
        match self.take_way(items) {
            Some(part) => Step::Part(part),
            None => Step::Fail,
        }
    }

    /// A figure of the part's skyline and of what waits in it.
    fn hash(&self, part: Part) -> (u64, u64) {
        let mut hash = (0u64, 0u64);
        let mut add = |x: u64| {
            let x = mix(x);
            hash.0 = hash.0.wrapping_add(x);
            hash.1 ^= mix(x);
        };
        for &i in &self.here {
            add(u64::from(i) << 1);
        }
        for t in part.from..part.to {
            add(mix((u64::from(t) << 1) | 1) ^ self.floor[t as usize]);
        }
        hash
    }
}

/// Where an item comes to rest on a floor, or is fixed.
fn least_offset(item: &Item, floor: u64) -> u64 {
    item.fixed.unwrap_or_else(|| floor.next_multiple_of(item.alignment))
}
