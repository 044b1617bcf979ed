//! From a problem to the best order found and its certificate: the portfolio of list
//! schedulers, the cut, then, while a gap is left, the search just below the peak, repair by
//! the cut, budgeted search, branch and bound, and exact windows.
//!
//! Repair: where the peak of the incumbent lies above the bound of the operator v that
//! runs there, all of the cut's D runs first, then v, then the rest. The list schedulers
//! order each part; the next peak splits its part again, under the order of parts so far.

use super::branch::branch;
use super::cut::{Certificate, certificate};
use super::limits::{Limits, Meter};
use super::list::{RULES, Rule, schedule, schedule_steps};
use super::problem::Problem;
use super::search::{Branch, SearchResult, mix, within};
use super::window::window;
use crate::Progress;
use crate::flow::Network;

/// An order with what is known about it.
#[derive(Clone, Debug)]
pub struct Solution {
    /// Operators in order.
    pub order: Vec<usize>,
    /// Its peak.
    pub peak: u64,
    /// Why no order can be much better.
    pub certificate: Certificate,
    /// What found it.
    pub method: &'static str,
}

impl Solution {
    /// True where no order has a lower peak.
    pub fn is_optimal(&self) -> bool {
        self.certificate.bound == self.peak
    }
}

/// An order with its peak.
#[derive(Clone, Debug)]
pub struct OrderCandidate {
    /// What made it.
    pub method: &'static str,
    /// Operators in order.
    pub order: Vec<usize>,
    /// Its peak.
    pub peak: u64,
}

/// The orders of all rules, forwards and backwards, definition order first.
pub fn portfolio(p: &Problem) -> Vec<OrderCandidate> {
    let phase = vec![0; p.len()];
    let rules = RULES.into_iter().flat_map(|rule| [(rule, false), (rule, true)]);
    std::iter::once((Rule::Definition, false))
        .chain(rules)
        .map(|(rule, reversed)| {
            let order = schedule(p, rule, reversed, &phase);
            OrderCandidate { method: rule.name(reversed), peak: p.peak(&order), order }
        })
        .collect()
}

/// Arcs that all cuts of one certificate may look at, per operator and at least.
const CUT_WORK: (u64, u64) = (4_000, 4_000_000);

#[cfg(test)]
thread_local! {
    /// Operators of each problem that was certified.
    pub(super) static CERTIFIED: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Why no order can have a much lower peak. `order` is a good one, by which the operators
/// are found whose cut is worth computing.
pub fn certify(p: &Problem, order: &[usize]) -> Certificate {
    #[cfg(test)]
    CERTIFIED.with_borrow_mut(|certified| certified.push(p.len()));
    let mut work = CUT_WORK.1.max(CUT_WORK.0 * p.len() as u64);
    certificate(p, order, &p.profile(order), &mut work)
}

/// The best order within the limits, beginning with the best candidate, and its certificate.
pub fn solve(
    p: &Problem,
    candidates: &[OrderCandidate],
    limits: &Limits,
    progress: &dyn Fn(&Progress),
) -> Solution {
    let first = first(p, candidates);
    let certificate = certify(p, &first.order);
    improved(p, first, certificate, limits, progress)
}

/// The candidate to begin with: of equals the first, which is definition order, where it is one.
pub(super) fn first(p: &Problem, candidates: &[OrderCandidate]) -> OrderCandidate {
    candidates.iter().min_by_key(|c| c.peak).cloned().unwrap_or_else(|| {
        let order = schedule(p, Rule::Definition, false, &vec![0; p.len()]);
        OrderCandidate { method: "definition", peak: p.peak(&order), order }
    })
}

/// The best order within the limits, beginning with one whose certificate is known.
pub(super) fn improved(
    p: &Problem,
    first: OrderCandidate,
    certificate: Certificate,
    limits: &Limits,
    progress: &dyn Fn(&Progress),
) -> Solution {
    let OrderCandidate { method, order, peak } = first;
    let best = Solution { order, peak, certificate, method };
    let meter = Meter::new(*limits);
    let mut improve = Improve { p, meter, network: Network::default(), best, progress };
    improve.report();
    improve.run();
    improve.best
}

struct Improve<'a> {
    p: &'a Problem,
    meter: Meter<'a>,
    network: Network,
    best: Solution,
    progress: &'a dyn Fn(&Progress),
}

impl Improve<'_> {
    fn run(&mut self) {
        self.settle();
        self.repair();
        for round in 0.. {
            if !self.goes_on() {
                return;
            }
            let peak = self.best.peak;
            self.search(round);
            if self.best.peak < peak {
                self.repair();
            }
            match round {
                1 => self.branch(),
                2 => self.windows(),
                _ => {}
            }
        }
    }

    fn goes_on(&self) -> bool {
        !self.best.is_optimal() && !self.meter.is_over()
    }

    fn report(&self) {
        let Solution { peak, certificate, method, .. } = &self.best;
        (self.progress)(&Progress { method, incumbent: *peak, bound: certificate.bound });
    }

    /// Takes the order where it is better; what a method claims is measured again.
    fn take(&mut self, order: Vec<usize>, method: &'static str) -> bool {
        let peak = self.p.peak(&order);
        let better = peak < self.best.peak;
        if better {
            (self.best.peak, self.best.order, self.best.method) = (peak, order, method);
            self.report();
        }
        better
    }

    fn prove(&mut self, bound: u64) {
        if bound > self.best.certificate.bound {
            self.best.certificate.bound = bound.min(self.best.peak);
            self.report();
        }
    }

    fn repair(&mut self) {
        while self.goes_on() {
            let peak = self.best.peak;
            let profile = self.p.profile(&self.best.order);
            let at_peak = (0..profile.len()).filter(|&i| profile[i] == peak);
            let operators: Vec<usize> = at_peak.map(|i| self.best.order[i]).collect();
            for v in operators {
                self.split_at(v);
                if self.best.peak < peak || self.meter.is_over() {
                    break;
                }
            }
            if self.best.peak == peak {
                return;
            }
        }
    }

    /// Splits at v, then at the peak of what comes out, until a part cannot be improved.
    fn split_at(&mut self, mut v: usize) {
        let mut phase = vec![0; self.p.len()];
        while self.goes_on() {
            let mut work = self.meter.left();
            let before = work;
            let cut = self.network.cut(self.p, v, &phase, &mut work);
            self.meter.spend(before - work);
            let alone = phase.iter().filter(|&&f| f == phase[v]).count() == 1;
            if cut.bound >= self.best.peak || alone {
                return;
            }
            split(&mut phase, v, &cut.before);
            let mut least: Option<(u64, usize)> = None;
            for rule in RULES {
                for reversed in [false, true] {
                    if self.meter.is_over() {
                        return;
                    }
                    let order = schedule(self.p, rule, reversed, &phase);
                    self.meter.spend(schedule_steps(self.p.len()));
                    let profile = self.p.profile(&order);
                    let Some((at, &peak)) =
                        profile.iter().enumerate().rev().max_by_key(|&(_, &memory)| memory)
                    else {
                        return;
                    };
                    if least.is_none_or(|(l, _)| peak < l) {
                        least = Some((peak, order[at]));
                    }
                    self.take(order, "repair_by_cut");
                }
            }
            match least {
                Some((_, next)) => v = next,
                None => return,
            }
        }
    }
}

/// Of all steps, one in so many goes to the search just below the peak, which ends with a
/// better order or with the proof that there is none.
const PROOF_SHARE: u64 = 8;

/// Of all steps, one in so many goes to one try of a round.
const TRY_SHARE: u64 = 128;

impl Improve<'_> {
    /// Tries budgets between the bound and the peak, the boldest first. The first round
    /// ranks operators by the incumbent, later ones move them about. A budget that no order
    /// keeps to raises the bound.
    fn search(&mut self, round: u64) {
        let rank = self.rank(round);
        let (peak, bound) = (self.best.peak, self.best.certificate.bound);
        let gap = peak - bound;
        for budget in [bound, bound + gap / 4, bound + gap / 2, peak - 1] {
            for branch in [Branch::Gain, Branch::Rank, Branch::Allocation] {
                self.within(budget, branch, &rank, TRY_SHARE);
            }
        }
    }

    fn within(&mut self, budget: u64, branch: Branch, rank: &[usize], share: u64) {
        let open = self.best.certificate.bound..self.best.peak;
        if !open.contains(&budget) || self.meter.is_over() {
            return;
        }
        let steps = (self.meter.limits().steps / share).min(self.meter.left());
        match within(self.p, budget, branch, rank, steps, &mut self.meter) {
            SearchResult::Order(order) => {
                self.take(order, "budgeted_search");
            }
            SearchResult::Nothing => self.prove(budget + 1),
            SearchResult::Unknown => {}
        }
    }

    /// Searches just below the peak until no better order is found.
    fn settle(&mut self) {
        let mut peak = u64::MAX;
        while self.best.peak < peak && self.goes_on() {
            peak = self.best.peak;
            let rank = self.rank(0);
            self.within(peak - 1, Branch::Gain, &rank, PROOF_SHARE);
        }
    }

    fn rank(&self, round: u64) -> Vec<usize> {
        let mut rank = vec![0; self.p.len()];
        let seed = self.meter.limits().seed;
        for (i, &v) in self.best.order.iter().enumerate() {
            let noise = mix(mix(seed ^ mix(round)) ^ v as u64) as usize;
            let window = self.p.len() / 8 * usize::from(round > 0);
            rank[v] = i + noise % (window + 1);
        }
        rank
    }
}

/// Cases copy the problem; beyond this many operators that would be all they do.
const MAX_BRANCHED: usize = 4_000;

/// Operators of a window, the smallest first.
const WINDOWS: [usize; 3] = [16, 32, 96];

impl Improve<'_> {
    fn branch(&mut self) {
        if !self.goes_on() || self.p.len() > MAX_BRANCHED {
            return;
        }
        let steps = self.meter.left() / 2;
        let bound = self.best.certificate.bound;
        let branched = branch(self.p, &self.best.order, bound, steps, &mut self.meter);
        if let Some((_, order)) = branched.better {
            self.take(order, "branch_and_bound");
        }
        self.prove(branched.bound);
    }

    /// Orders the operators around the peak exactly.
    fn windows(&mut self) {
        for size in WINDOWS {
            while self.goes_on() {
                let profile = self.p.profile(&self.best.order);
                let Some(at) = profile.iter().position(|&m| m == self.best.peak) else { return };
                let start = at.saturating_sub(size / 2);
                let range = start..(start + size).min(profile.len());
                let found = exact_window(self.p, &self.best.order, &range, &mut self.meter);
                if !found.is_some_and(|order| self.take(order, "exact_window")) {
                    break;
                }
            }
            if self.p.len() <= size {
                return;
            }
        }
    }
}

/// Steps of the search in a window.
const WINDOW_STEPS: u64 = 100_000;

/// The order with a window of it replaced by a better order of the same operators, or `None`
/// where there is none or the limits came first.
pub(super) fn exact_window(
    p: &Problem,
    order: &[usize],
    range: &std::ops::Range<usize>,
    meter: &mut Meter,
) -> Option<Vec<usize>> {
    let sub = window(p, order, range).ok()?;
    let identity: Vec<usize> = (0..sub.len()).collect();
    let budget = sub.peak(&identity).checked_sub(1)?;
    if certify(&sub, &identity).bound > budget {
        return None;
    }
    let steps = WINDOW_STEPS.min(meter.left());
    let SearchResult::Order(inner) = within(&sub, budget, Branch::Gain, &identity, steps, meter)
    else {
        return None;
    };
    let mut spliced = order.to_vec();
    for (to, &from) in spliced[range.clone()].iter_mut().zip(&inner) {
        *to = order[range.start + from];
    }
    Some(spliced)
}

/// Splits v's part into what runs before it, itself, and the rest.
fn split(phase: &mut [u32], v: usize, before: &[bool]) {
    let part = phase[v];
    for (w, f) in phase.iter_mut().enumerate() {
        if *f > part || (*f == part && w != v && !before[w]) {
            *f += 2;
        } else if w == v {
            *f += 1;
        }
    }
}
