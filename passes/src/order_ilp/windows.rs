//! From a problem to the best order that OLLA's integer program finds, whole or on windows.

use crate::mip::{self, Failure};
use crate::order::{OrderCandidate, Problem, certify, lifetime, window};
use crate::search::Budget;
use crate::{PassError, Progress};
use std::ops::Range;

/// Limits of the integer programs of one pass.
pub(super) struct IlpLimits<'a> {
    /// Effort of all programs together.
    pub(super) budget: Budget<'a>,
    /// Seed of the solver's random decisions.
    pub(super) seed: u64,
    /// Branch-and-bound nodes of each program.
    pub(super) nodes: Option<u64>,
    /// Relative gap at which an order is good enough.
    pub(super) gap: f64,
    /// Operators of a program.
    pub(super) window: usize,
}

/// An order with what the programs say about it.
pub(super) struct Solved {
    pub(super) order: Vec<usize>,
    pub(super) peak: u64,
    /// No order has a lower peak: by a cut, or by the solver's word.
    pub(super) bound: u64,
    pub(super) proved: bool,
    /// How many programs were solved.
    pub(super) programs: u64,
}

/// The best order that the programs find from the best candidate on.
///
/// # Errors
/// The solver failed for another reason than its limits.
pub(super) fn solve_by_ilp(
    p: &Problem,
    candidates: &[OrderCandidate],
    limits: &IlpLimits,
    progress: &dyn Fn(&Progress),
) -> Result<Solved, PassError> {
    let incumbent = candidates.iter().min_by_key(|c| c.peak);
    let order = incumbent.map_or_else(Vec::new, |c| c.order.clone());
    let bound = certify(p, &order).bound;
    let peak = p.peak(&order);
    let mut solved = Solved { peak, order, bound, proved: bound == peak, programs: 0 };
    let parts = parts(p);
    while !solved.proved && !limits.budget.is_over() {
        let profile = p.profile(&solved.order);
        let Some(at) = profile.iter().position(|&memory| memory == solved.peak) else { break };
        let Some(part) = parts.iter().find(|part| part.contains(&at)) else { break };
        let whole = part.len() <= limits.window;
        let range = if whole { part.clone() } else { around(at, part, limits.window) };
        let inner = solve_window(p, &solved, &range, limits, progress)?;
        solved.programs += 1;
        if range.len() == p.len() {
            solved.bound = solved.bound.max(inner.bound);
        }
        let better = inner.peak < solved.peak;
        // Another part, or another step of this one, may now hold the peak.
        let moved: Vec<usize> =
            inner.order.iter().map(|&i| solved.order[range.start + i]).collect();
        solved.order[range].copy_from_slice(&moved);
        let peak = p.peak(&solved.order);
        if whole && inner.proved && inner.peak == peak {
            (solved.proved, solved.bound) = (true, peak);
        }
        solved.peak = peak;
        if !better {
            break;
        }
    }
    Ok(solved)
}

/// Ranges of positions that hold the same operators in every order, as small as possible.
fn parts(p: &Problem) -> Vec<Range<usize>> {
    let fixed = p.fixed_positions();
    let mut parts = Vec::new();
    let mut start = 0;
    for at in fixed {
        parts.push(start..at);
        parts.push(at..at + 1);
        start = at + 1;
    }
    parts.push(start..p.len());
    parts.retain(|part| !part.is_empty());
    parts
}

fn around(at: usize, part: &Range<usize>, size: usize) -> Range<usize> {
    let start = at.saturating_sub(size / 2).max(part.start).min(part.end - size);
    start..start + size
}

fn solve_window(
    p: &Problem,
    solved: &Solved,
    range: &Range<usize>,
    limits: &IlpLimits,
    progress: &dyn Fn(&Progress),
) -> Result<lifetime::LifetimeOrder, PassError> {
    let sub = window(p, &solved.order, range)?;
    let identity: Vec<usize> = (0..sub.len()).collect();
    let IlpLimits { ref budget, seed, nodes, gap, .. } = *limits;
    let program = mip::Limits { nodes, gap, ..mip::Limits::new(budget, seed) };
    // Outside of the window the memory may be higher.
    let rest = p.profile(&solved.order);
    let elsewhere = rest[..range.start].iter().chain(&rest[range.end..]).max().copied();
    let mut report = |peak: u64, bound: u64| {
        let peak = peak.max(elsewhere.unwrap_or(0));
        let bound = if range.len() == p.len() { bound } else { solved.bound };
        progress(&Progress { method: "order_ilp", incumbent: peak, bound: bound.min(peak) });
    };
    match lifetime::solve(&sub, &identity, &program, &mut report) {
        Ok(outcome) => Ok(outcome),
        Err(Failure::Limit) => {
            let peak = sub.peak(&identity);
            Ok(lifetime::LifetimeOrder { order: identity, peak, bound: 0, proved: false })
        }
        Err(Failure::Infeasible) => {
            Err(PassError::Solver("it calls a program infeasible that has a solution".into()))
        }
        Err(Failure::Solver(why)) => Err(PassError::Solver(why)),
    }
}
