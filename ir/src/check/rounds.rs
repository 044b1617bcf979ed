//! The parts of a step in rounds: programs that take turns ([`super::turns`]) and have all their states
//! in common, in the same order.

use super::turns::{Part, check_each, check_turns, closing};
use super::{Footprint, Violation};

/// Judges the parts of a step in rounds: each against its graph, and all against one another.
///
/// # Errors
/// Every violation found in the first program that has some, up to 64; if none has, those between
/// them. Messages begin with the part's place in `parts`.
pub fn check_rounds(parts: &[Part]) -> Result<Vec<Footprint>, Vec<Violation>> {
    let footprints = check_each(parts)?;
    check_round_turns(parts)?;
    Ok(footprints)
}

/// As [`check_rounds`], for programs that [`check`](super::check) has accepted.
///
/// # Errors
/// Every violation between parts.
pub fn check_round_turns(parts: &[Part]) -> Result<(), Vec<Violation>> {
    same_states(parts, 0)?;
    check_turns(parts)
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
