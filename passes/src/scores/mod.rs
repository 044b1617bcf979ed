//! AutoSwap's priority scores (Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems",
//! section IV): which tensors leave first.
//!
//! [`Candidates`] are tensors of some size that lie idle across the peak of the load curve, states across the
//! step's boundary among them. Four scores rank them; in this sequence they leave until the load fits. Where all
//! candidates leave it above the limit, other tensors follow by the same scores ("by swapping variables not only
//! from the candidate variables", section VI-B). In one thing this departs from the paper: a tensor whose absence
//! frees nothing at a position above the limit is passed over.
//!
//! `budget` begins with what each score alone leads to, and compares its own plans with it.

mod candidates;
mod load;
mod score;
#[cfg(test)]
mod tests;

use crate::PassError;
use crate::residency::{ResidencyChoice, Timeline, Walker};
use crate::strategy::Problem;
use crate::tail::Finished;
use arenic_ir::cost::Device;
pub use candidates::Candidates;
pub use score::{ALONE, SCORES, Weights};

/// The least size of AutoSwap's candidates, in bytes.
pub const LEAST_BYTES: u64 = 1_000_000;

/// What each score alone lets leave so that live bytes keep a limit; for other searches to begin with.
pub(crate) fn by_each_score(t: &Timeline, device: &Device, limit: u64) -> Vec<ResidencyChoice> {
    let candidates = Candidates::new(t, device, LEAST_BYTES);
    ALONE.iter().map(|weights| candidates.select(weights, limit)).collect()
}

/// The peak of a choice whose copies take no time, in bytes; 0 if it cannot be carried out.
pub fn load_of(t: &Timeline, choice: &ResidencyChoice) -> u64 {
    let mut walker = Walker::new(t);
    let script = walker.walk(choice);
    script.and_then(|s| s.steps.iter().map(|step| step.live).max()).unwrap_or(0)
}

/// The plan in which everything leaves; `None` if it does not fit. Sharing in place may still do with less than
/// the load says.
///
/// # Errors
/// As [`Problem::carry_out`].
pub fn everything(p: &Problem, candidates: &Candidates) -> Result<Option<Finished>, PassError> {
    let found = p.carry_out(&candidates.select(&ALONE[0], 0), 0)?;
    Ok(found.filter(|found| found.fits(&p.cx.limits)))
}

/// True if the limit is above what is left where everything leaves, so that there is something to select.
pub fn selects(p: &Problem, candidates: &Candidates) -> bool {
    load_of(&p.t, &candidates.select(&ALONE[0], 0)) <= p.limit
}

/// The fastest plan that fits of those that each score alone leads to; `None` if there is none.
///
/// # Errors
/// As [`Problem::aim`].
pub(crate) fn fastest_alone(p: &Problem) -> Result<Option<Finished>, PassError> {
    let candidates = Candidates::new(&p.t, p.device, LEAST_BYTES);
    if !selects(p, &candidates) {
        return everything(p, &candidates);
    }
    let mut best = None;
    for weights in &ALONE {
        let (found, _) = p.aim(|aim| Some(candidates.select(weights, aim)))?;
        best = Finished::fastest([best, found]);
    }
    Ok(best)
}
