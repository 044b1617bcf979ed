//! From a problem to the best order found and its certificate: the portfolio of list
//! schedulers, the cut, then, while a gap is left, repair by the cut and budgeted search.
//!
//! Repair: where the peak of the incumbent lies above the bound of the operator v that
//! runs there, all of the cut's D runs first, then v, then the rest. The list schedulers
//! order each part; the next peak splits its part again, under the order of parts so far.

use super::cut::{Certificate, Network, certificate};
use super::list::{RULES, Rule, schedule};
use super::problem::Problem;
use super::search::{Branch, mix, within};
use std::time::{Duration, Instant};

/// How long to look for better orders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Steps of a search: operators placed or arcs looked at. Under this limit alone the
    /// result is the same on every machine.
    pub steps: u64,
    /// Wall time; none where the clock does not run that far.
    pub deadline: Option<Instant>,
    /// Seed of random moves.
    pub seed: u64,
}

/// The time limit where none is given, in seconds.
pub const DEFAULT_TIME_LIMIT: f64 = 10.0;

/// Steps for each second of a time limit, a fraction of what a core does, so that the time
/// runs out on slow machines alone.
const STEPS_PER_SECOND: f64 = 2e5;

impl Limits {
    /// Limits for a search of some seconds that begins now.
    pub fn new(seconds: f64, seed: u64) -> Limits {
        let wall = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        Limits {
            steps: (seconds * STEPS_PER_SECOND) as u64,
            deadline: Instant::now().checked_add(wall),
            seed,
        }
    }

    fn spent(&self, steps: u64) -> bool {
        steps >= self.steps || self.deadline.is_some_and(|end| Instant::now() >= end)
    }
}

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

/// The orders of all rules, forwards and backwards, definition order first.
pub(super) fn portfolio(p: &Problem) -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    let phase = vec![0; p.len()];
    let rules = RULES.into_iter().flat_map(|rule| [(rule, false), (rule, true)]);
    std::iter::once((Rule::Definition, false))
        .chain(rules)
        .map(move |(rule, reversed)| (rule.name(reversed), schedule(p, rule, reversed, &phase)))
}

/// Arcs that all cuts of one certificate may look at, per operator and at least.
const CUT_WORK: (u64, u64) = (4_000, 4_000_000);

/// The best of the portfolio with its certificate.
fn heuristic(p: &Problem) -> Solution {
    let mut best = Solution {
        order: Vec::new(),
        peak: u64::MAX,
        certificate: Certificate::default(),
        method: "definition",
    };
    for (method, order) in portfolio(p) {
        let peak = p.peak(&order);
        if peak < best.peak {
            best = Solution { order, peak, method, ..best };
        }
    }
    let profile = p.profile(&best.order);
    let mut work = CUT_WORK.1.max(CUT_WORK.0 * p.len() as u64);
    best.certificate = certificate(p, &best.order, &profile, &mut work);
    best
}

/// Why no order can have a much lower peak.
pub(crate) fn certify(p: &Problem) -> Certificate {
    heuristic(p).certificate
}

/// The best order within the limits. The portfolio and the certificate are always made.
pub fn solve(p: &Problem, limits: &Limits) -> Solution {
    let mut best = heuristic(p);
    let mut improve = Improve { p, limits, steps: 0, network: Network::default() };
    let mut peak = u64::MAX;
    while best.peak < peak {
        peak = best.peak;
        improve.repair(&mut best);
        improve.search(&mut best);
    }
    best
}

struct Improve<'a> {
    p: &'a Problem,
    limits: &'a Limits,
    steps: u64,
    network: Network,
}

impl Improve<'_> {
    fn repair(&mut self, best: &mut Solution) {
        while !best.is_optimal() && !self.spent() {
            let peak = best.peak;
            let profile = self.p.profile(&best.order);
            let at_peak = (0..profile.len()).filter(|&i| profile[i] == peak);
            let operators: Vec<usize> = at_peak.map(|i| best.order[i]).collect();
            for v in operators {
                self.from(v, best);
                if best.peak < peak || self.spent() {
                    break;
                }
            }
            if best.peak == peak {
                return;
            }
        }
    }

    fn spent(&self) -> bool {
        self.limits.spent(self.steps)
    }

    /// Splits at v, then at the peak of what comes out, until a part cannot be improved.
    fn from(&mut self, mut v: usize, best: &mut Solution) {
        let mut phase = vec![0; self.p.len()];
        while !best.is_optimal() && !self.spent() {
            let mut work = self.limits.steps.saturating_sub(self.steps);
            let before = work;
            let cut = self.network.cut(self.p, v, &phase, &mut work);
            self.steps += before - work;
            if cut.bound >= best.peak {
                return;
            }
            split(&mut phase, v, &cut.before);
            let mut least: Option<(u64, usize)> = None;
            for rule in RULES {
                for reversed in [false, true] {
                    let order = schedule(self.p, rule, reversed, &phase);
                    self.steps += self.p.len() as u64;
                    let profile = self.p.profile(&order);
                    let Some((at, &peak)) =
                        profile.iter().enumerate().rev().max_by_key(|&(_, &memory)| memory)
                    else {
                        return;
                    };
                    if least.is_none_or(|(l, _)| peak < l) {
                        least = Some((peak, order[at]));
                    }
                    if peak < best.peak {
                        best.order = order;
                        best.peak = peak;
                        best.method = "repair_by_cut";
                    }
                }
            }
            match least {
                Some((_, next)) => v = next,
                None => return,
            }
        }
    }
}

/// Rounds of the budgeted search without success before it gives up.
const ROUNDS: u64 = 4;

impl Improve<'_> {
    /// Tries budgets between the bound and the peak, the boldest first. The first round
    /// ranks operators by the incumbent, later ones move them about.
    fn search(&mut self, best: &mut Solution) {
        let mut round = 0;
        while round < ROUNDS && !best.is_optimal() && !self.spent() {
            let mut rank = vec![0; self.p.len()];
            for (i, &v) in best.order.iter().enumerate() {
                let noise = mix(mix(self.limits.seed ^ mix(round)) ^ v as u64) as usize;
                let window = self.p.len() / 8 * usize::from(round > 0);
                rank[v] = i + noise % (window + 1);
            }
            let bound = best.certificate.bound;
            let gap = best.peak - bound;
            let budgets = [bound, bound + gap / 4, bound + gap / 2, best.peak - 1];
            let branches = [Branch::Gain, Branch::Rank, Branch::Allocation];
            let found = budgets
                .into_iter()
                .flat_map(|budget| branches.map(|branch| (budget, branch)))
                .find_map(|(budget, branch)| self.within(budget, branch, &rank));
            // What the search returns is measured again: only a lower peak counts.
            let lower = found.map(|order| (self.p.peak(&order), order)).filter(|f| f.0 < best.peak);
            match lower {
                Some((peak, order)) => {
                    (best.peak, best.order, best.method) = (peak, order, "budgeted_search");
                    round = 0;
                }
                None => round += 1,
            }
        }
    }

    fn within(&mut self, budget: u64, branch: Branch, rank: &[usize]) -> Option<Vec<usize>> {
        let left = self.limits.steps.saturating_sub(self.steps);
        if left == 0 || self.spent() {
            return None;
        }
        let share = left.min(self.limits.steps / 64);
        let mut steps = share;
        let order = within(self.p, budget, branch, rank, &mut steps);
        self.steps += share - steps;
        order
    }
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
