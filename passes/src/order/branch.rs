//! Branch and bound: cases "v runs before w" and "w runs before v", each with its own cuts.
//!
//! A case is the problem with more dependences. Its certificate bounds all its orders, and
//! the list schedulers look for better ones in it. Where the peak of a case lies above the
//! cut of the operator v that runs there, the order and the cut disagree about some operator
//! w: one of them has run it before v. Both answers become cases. The case with the least
//! bound comes first, so that the least of all open cases bounds the problem at any time.

use super::cut::certificate;
use super::limits::Meter;
use super::list::{RULES, schedule, schedule_steps};
use super::problem::Problem;
use crate::flow::Network;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What branching found out.
pub(super) struct Branched {
    /// No order's peak is lower.
    pub(super) bound: u64,
    /// A better order, with its peak.
    pub(super) better: Option<(u64, Vec<usize>)>,
}

/// Added dependences, under the bound of the case they were added to.
type Case = (Reverse<u64>, usize, Vec<(usize, usize)>);

/// Looks for an order below `peak`, and for the least bound of all cases. `steps` limits the
/// arcs looked at.
pub(super) fn branch(
    p: &Problem,
    order: &[usize],
    bound: u64,
    steps: u64,
    meter: &mut Meter,
) -> Branched {
    let mut best = Branched { bound, better: None };
    let mut peak = p.peak(order);
    let mut cases: BinaryHeap<Case> = BinaryHeap::from([(Reverse(bound), 0, Vec::new())]);
    let end = meter.spent() + steps;
    // The least bound of the cases in which there is nothing to branch on.
    let mut stuck = u64::MAX;
    while let Some((Reverse(inherited), depth, arcs)) = cases.pop() {
        best.bound = inherited.min(stuck).min(peak);
        if inherited >= peak.min(stuck) || meter.is_over() || meter.spent() >= end {
            return best;
        }
        let mut case = p.clone();
        if case.add_dependences(&arcs).is_err() {
            continue;
        }
        meter.spend(p.len() as u64);
        let Some(at) = examine(&case, end, meter) else { continue };
        if at.peak < peak {
            peak = at.peak;
            best.better = Some((at.peak, at.order.clone()));
        }
        let bound = at.bound.max(inherited);
        if bound >= peak {
            continue;
        }
        match at.disputed {
            Some((v, w)) => {
                for arc in [(v, w), (w, v)] {
                    let more = [&arcs[..], &[arc]].concat();
                    cases.push((Reverse(bound), depth + 1, more));
                }
            }
            None => stuck = stuck.min(bound),
        }
    }
    best.bound = peak.min(stuck);
    best
}

/// What a case looks like.
struct Examined {
    peak: u64,
    order: Vec<usize>,
    bound: u64,
    /// Two operators that the order and the cut run in different orders.
    disputed: Option<(usize, usize)>,
}

fn examine(case: &Problem, end: u64, meter: &mut Meter) -> Option<Examined> {
    let free = vec![0; case.len()];
    let orders = RULES
        .into_iter()
        .flat_map(|rule| [false, true].map(|reversed| schedule(case, rule, reversed, &free)));
    let (peak, order) = orders.map(|order| (case.peak(&order), order)).min()?;
    meter.spend(8 * schedule_steps(case.len()));
    let profile = case.profile(&order);
    let mut work = end.saturating_sub(meter.spent());
    let before = work;
    let bound = certificate(case, &order, &profile, &mut work).bound;
    let at = (0..profile.len()).max_by_key(|&i| (profile[i], Reverse(i)))?;
    let v = order[at];
    let cut = Network::default().cut(case, v, &free, &mut work);
    meter.spend(before - work);
    let weight = |w: usize| case.bytes(&case.reads[w]) + case.bytes(&case.writes[w]);
    let differs = |&(i, &w): &(usize, &usize)| i != at && cut.before[w] != (i < at);
    let disputed = order.iter().enumerate().filter(differs).map(|(_, &w)| w);
    let heaviest = disputed.max_by_key(|&w| (weight(w), Reverse(w)));
    Some(Examined { peak, order, bound, disputed: heaviest.map(|w| (v, w)) })
}
