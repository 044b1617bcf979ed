//! Recomputation alone: which tensors are dropped and computed again, so that the plan fits.
//!
//! The search is over sequences of runs ([`runs`]): least cuts at the moments above the limit say what is held
//! across them and what runs again ([`cut`], [`relieve`]), and random changes improve what they lead to
//! ([`improve`], [`ruin`]). It begins with several orders ([`starts`]), takes a quick look at each, and goes on with the best
//! of them.
//!
//! A repeated task reads each state as it enters the step. After the state's update there is
//! no such value any more, and the task is not repeated; the update never waits for a repeat.
//! What a repeat would write to a state goes to bytes of its own and is dropped. A random
//! operator draws the same numbers again: its generator is keyed by seed, step and node.
//!
//! Sound because a repeated operator is pure and reads the same operands, and `check` proves it.

mod bound;
mod changes;
mod cut;
mod divide;
mod improve;
mod least;
mod relieve;
mod rewrite;
mod ruin;
mod runs;
mod search;
mod starts;
mod step;
#[cfg(test)]
mod tests;

use crate::PassError;
use crate::residency::Timeline;
pub(crate) use least::{Effort, Lowest, least, promise};
pub use rewrite::rewrite;
pub use runs::{Load, Meter, Runs};
pub use search::{EFFORT, search};
pub use starts::in_other_orders;
pub use step::RecomputeStep;

/// Seconds that every plan that computes tensors again, and moves none, takes more than the step
/// without a limit, at least.
///
/// # Errors
/// The plan is not one of a verified graph.
pub(crate) fn bound(t: &Timeline, limit: u64) -> Result<f64, PassError> {
    Ok(bound::bound(&RecomputeStep::new(t)?, limit))
}
