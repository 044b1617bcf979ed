//! Budgeted search: an order whose memory never exceeds a budget, the knowledge that there
//! is none, or neither within the limits.
//!
//! A ready operator that fits and frees at least what it allocates is run at once: that is
//! always safe. Moved to the front of any order, it lowers the memory of those it overtakes,
//! and an input that dies in one of them has no reader behind it, so none of their in-place
//! pairs is lost. Otherwise the search branches; a set of operators that was run before is
//! not tried again. So a search that ends without an order proves that there is none.

use super::limits::Meter;
use super::problem::Problem;
use std::collections::HashSet;

/// What a branch tries first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Branch {
    /// The largest (bytes freed − bytes allocated).
    Gain,
    /// The least bytes allocated.
    Allocation,
    /// The first by a given rank.
    Rank,
}

/// What a search found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SearchResult {
    /// An order within the budget.
    Order(Vec<usize>),
    /// No order keeps to the budget.
    Nothing,
    /// The limits came first.
    Unknown,
}

/// Looks for an order within the budget. A step is an operator looked at; at most `steps`
/// are taken.
pub(super) fn within(
    p: &Problem,
    budget: u64,
    branch: Branch,
    rank: &[usize],
    steps: u64,
    meter: &mut Meter,
) -> SearchResult {
    if budget < p.at_start() {
        return SearchResult::Nothing;
    }
    let end = meter.spent() + steps;
    let mut s = Search::new(p, budget);
    let mut seen: HashSet<u128> = HashSet::new();
    // Where each branch began, and what is left to try there, best last.
    let mut branches: Vec<(usize, Vec<usize>)> = Vec::new();
    loop {
        while let Some(v) = s.safe(meter) {
            s.run(v);
        }
        if s.order.len() == p.len() {
            return SearchResult::Order(s.order);
        }
        if meter.is_over() || meter.spent() >= end {
            return SearchResult::Unknown;
        }
        if seen.insert(s.hash) {
            let fitting = s.ready.iter().copied().filter(|&v| s.fits(v));
            let mut choices: Vec<usize> = fitting.collect();
            choices.sort_by_key(|&v| match branch {
                Branch::Gain => (s.gain(v), std::cmp::Reverse(rank[v])),
                Branch::Allocation => (-s.allocates[v], std::cmp::Reverse(rank[v])),
                Branch::Rank => (0, std::cmp::Reverse(rank[v])),
            });
            branches.push((s.order.len(), choices));
        }
        loop {
            let Some((start, choices)) = branches.last_mut() else { return SearchResult::Nothing };
            while s.order.len() > *start {
                s.undo();
                meter.spend(1);
            }
            match choices.pop() {
                Some(v) => {
                    s.run(v);
                    break;
                }
                None => branches.pop(),
            };
        }
    }
}

struct Search<'a> {
    p: &'a Problem,
    budget: i64,
    allocates: Vec<i64>,
    /// Bytes that are freed again as soon as the operator has run.
    unread: Vec<i64>,
    left: Vec<usize>,
    blocked: Vec<usize>,
    ready: Vec<usize>,
    order: Vec<usize>,
    live: i64,
    /// A digest of the set of operators that have run, of 128 bits so that no two sets of a
    /// search ever share one.
    hash: u128,
}

impl<'a> Search<'a> {
    fn new(p: &'a Problem, budget: u64) -> Self {
        let unread = |v: usize| p.writes[v].iter().copied().filter(|&t| p.is_unread(t));
        let blocked: Vec<usize> = p.before.iter().map(Vec::len).collect();
        Search {
            p,
            budget: i64::try_from(budget).unwrap_or(i64::MAX),
            allocates: p.writes.iter().map(|w| p.bytes(w) as i64).collect(),
            unread: (0..p.len()).map(|v| p.bytes(&unread(v).collect::<Vec<_>>()) as i64).collect(),
            left: p.holders(),
            ready: (0..p.len()).filter(|&v| blocked[v] == 0).collect(),
            blocked,
            order: Vec::with_capacity(p.len()),
            live: p.at_start() as i64,
            hash: 0,
        }
    }

    fn fits(&self, v: usize) -> bool {
        let saved = self.p.saving(v, &self.left) as i64;
        self.live + self.allocates[v] - saved <= self.budget
    }

    fn gain(&self, v: usize) -> i64 {
        let dying = self.p.reads[v].iter().filter(|&&t| self.left[t] == 1);
        let frees: i64 = dying.map(|&t| self.p.tensors[t].bytes as i64).sum();
        frees + self.unread[v] - self.allocates[v]
    }

    /// The first ready operator that can be run without regret.
    fn safe(&self, meter: &mut Meter) -> Option<usize> {
        meter.spend(self.ready.len() as u64);
        let safe = |v: &usize| self.fits(*v) && self.gain(*v) >= 0;
        self.ready.iter().copied().filter(safe).min()
    }

    fn run(&mut self, v: usize) {
        self.ready.retain(|&r| r != v);
        self.live -= self.gain(v);
        for &t in &self.p.reads[v] {
            self.left[t] -= 1;
        }
        for &next in &self.p.after[v] {
            self.blocked[next] -= 1;
            if self.blocked[next] == 0 {
                self.ready.push(next);
            }
        }
        self.order.push(v);
        self.hash ^= digest(v);
    }

    fn undo(&mut self) {
        let Some(v) = self.order.pop() else { return };
        for &next in &self.p.after[v] {
            if self.blocked[next] == 0 {
                self.ready.retain(|&r| r != next);
            }
            self.blocked[next] += 1;
        }
        for &t in &self.p.reads[v] {
            self.left[t] += 1;
        }
        self.live += self.gain(v);
        self.ready.push(v);
        self.hash ^= digest(v);
    }
}

fn digest(v: usize) -> u128 {
    let low = mix(v as u64);
    u128::from(low) | u128::from(mix(low ^ 0x5851_f42d_4c95_7f2d)) << 64
}

/// Spreads a number over all bits (SplitMix64).
pub(super) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
