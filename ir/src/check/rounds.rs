//! The parts of a step in rounds: programs that take turns ([`super::turns`]) and have all their states
//! in common, in the same order.

use super::turns::{Part, check_each, check_turns, same_states};
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
