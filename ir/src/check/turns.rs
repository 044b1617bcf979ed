//! Several programs that take turns over the same arenas.
//!
//! Each is judged by itself. What one of them leaves is what another begins with if a state that
//! several have is the same in all and has one home, and if nobody writes over the home of a state
//! or a constant that it does not have itself. A constant that several have at one place is one that
//! is equal in name, type and contents. Inputs are fed again before every turn, and nothing else lasts
//! beyond a turn, so that any sequence of turns is safe, by induction over it: before a turn the
//! home of each state holds what the last program that has it left there, or what it was filled with,
//! and the home of each constant holds the constant. Homes in host memory are homes like others.

use super::{Footprint, Invariant, Violation, check};
use crate::graph::{BatchRows, Data, Graph};
use crate::program::{Command, Program, Range};
use crate::types::TensorType;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A graph and its program.
pub type Part<'a> = (&'a Graph, &'a Program);

/// Judges programs, each against its graph; of several, messages begin with the part's place.
pub(super) fn check_each(parts: &[Part]) -> Result<Vec<Footprint>, Vec<Violation>> {
    let judged = parts.iter().enumerate().map(|(i, (g, p))| {
        check(g, p).map_err(|mut violations| {
            let name = |v: &mut Violation| v.message.insert_str(0, &format!("part {i}: "));
            violations.iter_mut().filter(|_| parts.len() > 1).for_each(name);
            violations
        })
    });
    judged.collect()
}

/// What is wrong with the boundary of a step.
pub(super) fn closing(message: String) -> Violation {
    Violation { command: None, invariant: Invariant::Closing, message }
}

/// Judges steps of which any may follow any other over the same arenas; each has a program, or those
/// of a step in rounds. Gives what each program uses, step by step.
///
/// # Errors
/// Every violation found in the first program that has some, up to 64; if none has, those between
/// them. Messages begin with the program's place among those of all steps.
pub fn check_variants(steps: &[Vec<Part>]) -> Result<Vec<Vec<Footprint>>, Vec<Violation>> {
    let parts = steps.concat();
    let mut footprints = check_each(&parts)?.into_iter();
    check_variant_turns(steps)?;
    Ok(steps.iter().map(|step| footprints.by_ref().take(step.len()).collect()).collect())
}

/// As [`check_variants`], for programs that [`check`] has accepted.
///
/// # Errors
/// Every violation between programs.
pub fn check_variant_turns(steps: &[Vec<Part>]) -> Result<(), Vec<Violation>> {
    let mut first = 0;
    for step in steps {
        same_states(step, first)?;
        first += step.len();
    }
    check_turns(&steps.concat())
}

/// Judges against one another programs that [`check`] has accepted: whether they may take turns.
///
/// # Errors
/// Every violation. Messages begin with the part's place in `parts`.
pub fn check_turns(parts: &[Part]) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    for (i, (_, program)) in parts.iter().enumerate().skip(1) {
        if program.target != parts[0].1.target {
            violations.push(closing(format!("part {i}: it is for another target than part 0")));
        }
    }
    let mut known = Known::default();
    for (i, &part) in parts.iter().enumerate() {
        known.add(i, part, &mut violations);
    }
    known.sort();
    for (j, &(_, p)) in parts.iter().enumerate() {
        let mut spoilt: BTreeMap<usize, (Range, &str)> = BTreeMap::new();
        // What a part does not have itself, it must not touch: neither by commands nor by filling homes.
        let filled = p.homes.iter().map(|h| h.range);
        for w in p.commands.iter().flat_map(Command::written).chain(filled) {
            for kept in known.reached(&w).filter(|kept| !kept.parts.contains(&j)) {
                let first = kept.parts.first().copied().unwrap_or(0);
                spoilt.entry(first).or_insert((w, kept.what));
            }
        }
        let message =
            |(i, (w, what))| closing(format!("part {j} uses {w}, where part {i} has {what}"));
        violations.extend(spoilt.into_iter().map(message));
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Bytes that hold the same before and after every turn of some parts, or are a state's.
struct Kept<'a> {
    range: Range,
    /// The parts that have it, increasing.
    parts: BTreeSet<usize>,
    /// In words.
    what: &'static str,
    data: Option<(&'a TensorType, &'a Data)>,
}

/// A state as a part has it.
#[derive(PartialEq)]
struct Seen<'a> {
    rows: Option<BatchRows>,
    carried: bool,
    ty: &'a TensorType,
    home: Option<Range>,
}

/// The homes of all parts' states and constants.
#[derive(Default)]
struct Known<'a> {
    kept: Vec<Kept<'a>>,
    /// States by name: the first part that has it, what it is there, and its places in `kept`.
    states: HashMap<&'a str, (usize, Vec<Seen<'a>>, Vec<usize>)>,
    /// Constants by name and place.
    constants: HashMap<(&'a str, Range), Vec<usize>>,
    /// The largest end up to each of `kept`, once that is in order.
    ends: Vec<(crate::Space, u64)>,
}

impl<'a> Known<'a> {
    fn add(&mut self, i: usize, (g, p): Part<'a>, violations: &mut Vec<Violation>) {
        let home: HashMap<_, _> = p.homes.iter().map(|h| (h.value, h.range)).collect();
        let mut states: BTreeMap<&str, Vec<Seen>> = BTreeMap::new();
        for state in g.states.values() {
            let (rows, carried, ty) = (state.rows, state.carried, g.ty(state.enter));
            let home = home.get(&state.enter).copied();
            states.entry(&state.name).or_default().push(Seen { rows, carried, ty, home });
        }
        for (name, seen) in states {
            match self.states.get(name) {
                Some((first, other, places)) => {
                    if let Some(difference) = difference(name, &seen, other) {
                        violations
                            .push(closing(format!("part {i}: {difference} than in part {first}")));
                    }
                    for &place in places {
                        self.kept[place].parts.insert(i);
                    }
                }
                None => {
                    let mut places = Vec::new();
                    for range in seen.iter().filter_map(|s| s.home) {
                        places.push(self.kept.len());
                        let parts = BTreeSet::from([i]);
                        self.kept.push(Kept { range, parts, what: "a state", data: None });
                    }
                    self.states.insert(name, (i, seen, places));
                }
            }
        }
        for (v, data) in g.consts() {
            let Some(&range) = home.get(&v) else { continue };
            let (name, ty) = (g.values[v].name.as_str(), g.ty(v));
            let places = self.constants.entry((name, range)).or_default();
            let is_same = |&&place: &&usize| match (self.kept[place].data, data) {
                (Some((other, Data::Bytes(held))), Data::Bytes(bytes)) => {
                    (other, held) == (ty, bytes)
                }
                _ => false,
            };
            match places.iter().find(is_same) {
                Some(&place) => drop(self.kept[place].parts.insert(i)),
                None => {
                    places.push(self.kept.len());
                    let (parts, data) = (BTreeSet::from([i]), Some((ty, data)));
                    self.kept.push(Kept { range, parts, what: "a constant", data });
                }
            }
        }
    }

    fn sort(&mut self) {
        self.kept.sort_by_key(|k| (k.range.space, k.range.offset));
        let mut end = (crate::Space::Device, 0);
        let largest = |k: &Kept| {
            end = end.max((k.range.space, k.range.end()));
            end
        };
        self.ends = self.kept.iter().map(largest).collect();
    }

    /// What shares bytes with a range.
    fn reached(&self, w: &Range) -> impl Iterator<Item = &Kept<'a>> {
        let (space, offset, end) = (w.space, w.offset, w.end());
        let from = self.ends.partition_point(|&e| e <= (space, offset));
        let before = move |k: &&Kept| (k.range.space, k.range.offset) < (space, end);
        let w = *w;
        self.kept[from..].iter().take_while(before).filter(move |k| k.range.overlaps(&w))
    }
}

/// In what a state differs, with a comparison that goes on with `than`.
fn difference(name: &str, of: &[Seen], other: &[Seen]) -> Option<String> {
    let rows = |all: &[Seen]| all.iter().map(|s| s.rows).collect::<Vec<_>>();
    if rows(of) != rows(other) {
        return Some(format!("the state `{name}` is in other parts"));
    }
    of.iter().zip(other).find(|(a, b)| a != b).map(|(a, b)| match a.ty == b.ty {
        _ if a.carried != b.carried => format!("the state `{name}` is kept otherwise"),
        false => format!("the state `{name}` has another type"),
        true => format!("the state `{name}` has another home"),
    })
}

/// Judges whether all parts have the states of the first one; `place` is that one's in messages.
pub(super) fn same_states(parts: &[Part], place: usize) -> Result<(), Vec<Violation>> {
    let differs = |(i, &part): (usize, &Part)| {
        let difference = differ(parts[0], part, place)?;
        Some(closing(format!("part {}: {difference}", place + i)))
    };
    let violations: Vec<Violation> = parts.iter().enumerate().filter_map(differs).collect();
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// In what targets, states or homes of states differ, if they do.
fn differ(a: Part, b: Part, first: usize) -> Option<String> {
    if a.1.target != b.1.target {
        return Some(format!("it is for another target than part {first}"));
    }
    if a.0.states.len() != b.0.states.len() {
        return Some(format!("{} states, part {first} has {}", b.0.states.len(), a.0.states.len()));
    }
    let home = |(g, p): Part, s| {
        let enter = g.states[s].enter;
        p.homes.iter().find(|h| h.value == enter).map(|h| h.range)
    };
    a.0.states.keys().find_map(|s| {
        let (x, y) = (&a.0.states[s], &b.0.states[s]);
        let same = (&x.name, x.rows, x.carried, a.0.ty(x.enter))
            == (&y.name, y.rows, y.carried, b.0.ty(y.enter));
        if !same {
            return Some(format!("{s} is `{}`, in part {first} `{}`", y.name, x.name));
        }
        let (x, y) = (home(a, s), home(b, s));
        (x != y).then(|| format!("{s} has another home than in part {first}"))
    })
}
