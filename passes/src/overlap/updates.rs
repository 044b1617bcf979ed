//! Updates when their sums are there: neither before, when kernels would wait, nor long after, when links are idle.
//!
//! What follows from sums of all ranks and leads to updates alone leaves the order's turn. An operator of it is issued
//! before the first kernel that begins after all that it depends on has ended. It may be held back beyond its own place
//! in the order as long as the bytes that wait for it keep the limit with all else; then kernels wait for it after all.
//! What it needs beside sums, as a rank's own part of a parameter, is made when it is issued.

use super::lanes::{Clock, Lane, Lanes};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Whose turn an operator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The order's.
    Own,
    /// Its sums'.
    OfSums,
    /// That of whatever needs it.
    OnDemand,
}

impl Lanes<'_> {
    /// The order with updates when their sums are there, where what waits stays below `most` bytes with all else.
    pub(super) fn update_when_summed(&self, order: &[usize], most: u64) -> Vec<usize> {
        let profile = self.p.profile(order);
        let mut issue = Issue::new(self, order);
        for (i, &v) in order.iter().enumerate() {
            if issue.is_issued(v) {
                continue;
            }
            issue.what_is_due();
            match issue.turns[v] {
                Turn::OnDemand => {}
                Turn::OfSums if issue.is_issued(v) => {}
                Turn::OfSums => issue.hold(v),
                Turn::Own => {
                    while issue.takes_more_than(most.saturating_sub(profile[i]))
                        && issue.something_that_waits()
                    {}
                    while issue.needs_what_waits(v) && issue.first_that_waits() {}
                    issue.issue(v);
                }
            }
        }
        while issue.first_that_waits() {}
        // Nobody demanded it.
        for &v in order {
            issue.issue(v);
        }
        issue.order
    }

    /// Whose turn each operator has.
    fn turns(&self, order: &[usize]) -> Vec<Turn> {
        let n = self.p.len();
        let is_sum = |v: usize| matches!(self.lanes[v], Lane::Exchange { sums: true, .. });
        let (mut of_sums, mut leads, mut is_summed) =
            (vec![false; n], vec![false; n], vec![false; n]);
        for &v in order {
            of_sums[v] = self.p.before(v).iter().any(|&b| of_sums[b] || is_sum(b));
        }
        for &v in order.iter().rev() {
            let is_light = match self.lanes[v] {
                Lane::Kernel { is_light, .. } => is_light,
                Lane::Exchange { .. } => true,
            };
            let readers = self.p.after(v);
            leads[v] = is_light && readers.iter().all(|&reader| leads[reader]);
            is_summed[v] = is_sum(v) || readers.iter().any(|&r| is_summed[r] && !of_sums[r]);
        }
        let mut turns = vec![Turn::Own; n];
        for &v in order {
            // What is made of what the step begins with can be made at any time.
            let is_free = self.p.before(v).iter().all(|&b| turns[b] == Turn::OnDemand);
            turns[v] = match (leads[v], of_sums[v], is_free && !is_summed[v]) {
                (true, true, _) => Turn::OfSums,
                (true, false, true) => Turn::OnDemand,
                _ => Turn::Own,
            };
        }
        turns
    }

    /// Bytes that each operator of an order is the last to read.
    fn freed(&self, order: &[usize]) -> Vec<u64> {
        let mut left = vec![0; self.p.tensors()];
        order.iter().flat_map(|&v| self.p.reads(v)).for_each(|&t| left[t] += 1);
        let mut freed = vec![0; self.p.len()];
        for &v in order {
            for &t in self.p.reads(v) {
                left[t] -= 1;
                // Where a result takes their place they are not freed.
                let is_taken = self.p.pairs(v).iter().any(|&(x, _)| x == t);
                freed[v] += if left[t] == 0 && !is_taken { self.p.tensor(t).bytes } else { 0 };
            }
        }
        freed
    }

    /// Bytes of an operator's scratch.
    fn scratch(&self, v: usize) -> u64 {
        let made = self.p.writes(v).iter().copied();
        let unread = made.filter(|&t| self.p.tensor(t).readers.is_empty());
        self.p.bytes(&unread.collect::<Vec<_>>())
    }
}

/// Operators while they are issued.
struct Issue<'a> {
    lanes: &'a Lanes<'a>,
    clock: Clock,
    order: Vec<usize>,
    turns: Vec<Turn>,
    /// Of each operator its place in the order that was.
    position: Vec<usize>,
    /// Of each operator how many it still waits for, but for those on demand.
    missing: Vec<usize>,
    /// Operators that wait for each.
    dependents: Vec<Vec<usize>>,
    /// Those of sums that nothing is missing for, by when it has ended, as bits, and by their places.
    ready: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Those of sums that were held back beyond their places, in their order.
    waiting: VecDeque<usize>,
    is_held: Vec<bool>,
    /// Bytes that are held while each operator waits.
    freed: Vec<u64>,
    held: u64,
    /// Exchanges that are under way, when they end, and what they use.
    running: VecDeque<(f64, u64)>,
}

impl<'a> Issue<'a> {
    fn new(lanes: &'a Lanes<'a>, order: &[usize]) -> Issue<'a> {
        let n = lanes.p.len();
        let turns = lanes.turns(order);
        let mut position = vec![0; n];
        order.iter().enumerate().for_each(|(i, &v)| position[v] = i);
        let (mut missing, mut dependents) = (vec![0; n], vec![Vec::new(); n]);
        for v in (0..n).filter(|&v| turns[v] == Turn::OfSums) {
            for &b in lanes.needs(v).filter(|&&b| turns[b] != Turn::OnDemand) {
                missing[v] += 1;
                dependents[b].push(v);
            }
        }
        Issue {
            lanes,
            clock: Clock::new(n, lanes.slack()),
            order: Vec::with_capacity(n),
            turns,
            position,
            missing,
            dependents,
            ready: BinaryHeap::new(),
            waiting: VecDeque::new(),
            is_held: vec![false; n],
            freed: lanes.freed(order),
            held: 0,
            running: VecDeque::new(),
        }
    }

    fn is_issued(&self, v: usize) -> bool {
        self.clock.ended(v).is_some()
    }

    /// Issues those of sums that the next kernel would not wait for.
    fn what_is_due(&mut self) {
        while let Some(&Reverse((ready, _, v))) = self.ready.peek() {
            if f64::from_bits(ready) > self.clock.kernels() {
                break;
            }
            self.ready.pop();
            self.issue(v);
        }
    }

    /// Holds an operator back.
    fn hold(&mut self, v: usize) {
        self.waiting.push_back(v);
        self.is_held[v] = true;
        self.held += self.freed[v];
    }

    /// True where what waits, and what exchanges use that are under way, is more than there is room for.
    fn takes_more_than(&mut self, room: u64) -> bool {
        while self.running.front().is_some_and(|(end, _)| *end <= self.clock.kernels()) {
            self.running.pop_front();
        }
        self.held + self.running.iter().map(|(_, bytes)| bytes).sum::<u64>() > room
    }

    /// Has kernels wait for a sum, so that what it uses and what waits for it are there no longer; false where there is
    /// none to wait for.
    fn something_that_waits(&mut self) -> bool {
        while let Some(Reverse((_, _, v))) = self.ready.pop() {
            if !self.is_issued(v) {
                self.issue(v);
                return true;
            }
        }
        self.first_that_waits()
    }

    /// Issues the first of those that were held back; false where there is none.
    fn first_that_waits(&mut self) -> bool {
        let Some(first) = self.waiting.pop_front() else { return false };
        self.issue(first);
        true
    }

    /// True where an operator depends on one that was held back.
    fn needs_what_waits(&self, v: usize) -> bool {
        self.lanes.needs(v).any(|&b| self.is_held[b] && !self.is_issued(b))
    }

    /// Issues an operator, and before it what it demands.
    fn issue(&mut self, v: usize) {
        if self.is_issued(v) {
            return;
        }
        let lanes = self.lanes;
        for &b in lanes.p.before(v) {
            if self.turns[b] == Turn::OnDemand {
                self.issue(b);
            }
        }
        self.clock.issue(lanes, v);
        self.order.push(v);
        if lanes.of_exchange(v).is_some() {
            let end = self.clock.ended(v).unwrap_or(0.0);
            self.running.push_back((end, self.freed[v] + lanes.scratch(v)));
        }
        if self.is_held[v] {
            self.held -= self.freed[v];
        }
        for dependent in std::mem::take(&mut self.dependents[v]) {
            self.missing[dependent] -= 1;
            if self.missing[dependent] == 0 {
                let ready = self.clock.ready(lanes, dependent);
                let place = self.position[dependent];
                self.ready.push(Reverse((ready.to_bits(), place, dependent)));
            }
        }
    }
}
