//! List schedulers with heaps: always the best ready operator by some rule, ties in
//! definition order. Each takes O((operators + uses) log uses).
//!
//! The rules are XLA's list scheduler (largest bytes freed − bytes allocated), PyTorch
//! Inductor's least-peak-memory-first, definition order with everything run early that
//! frees at least what it allocates, and XLA's depth-first order. Each also runs on the
//! reversed graph, where time goes backwards: a tensor is made by the first of its readers
//! to run and freed by its producer.

use super::problem::{Kind, Problem};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How the next operator is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The first by definition.
    Definition,
    /// The largest (bytes freed − bytes allocated).
    FreedMinusAllocated,
    /// What keeps the peak so far and frees most; otherwise what allocates least.
    LeastPeakFirst,
    /// What frees at least what it allocates, else the first by definition.
    EagerFree,
    /// Operands before their reader, the heaviest first.
    DepthFirst,
}

impl Rule {
    /// The name in options and reports.
    pub(super) fn name(self, reversed: bool) -> &'static str {
        match (self, reversed) {
            (Rule::Definition, _) => "definition",
            (Rule::FreedMinusAllocated, false) => "freed_minus_allocated",
            (Rule::FreedMinusAllocated, true) => "freed_minus_allocated_reversed",
            (Rule::LeastPeakFirst, false) => "least_peak_first",
            (Rule::LeastPeakFirst, true) => "least_peak_first_reversed",
            (Rule::EagerFree, false) => "eager_free",
            (Rule::EagerFree, true) => "eager_free_reversed",
            (Rule::DepthFirst, false) => "depth_first",
            (Rule::DepthFirst, true) => "depth_first_reversed",
        }
    }
}

/// The rules that look at sizes.
pub(super) const RULES: [Rule; 4] =
    [Rule::FreedMinusAllocated, Rule::LeastPeakFirst, Rule::EagerFree, Rule::DepthFirst];

/// An order by the rule, where all operators of a lower phase come before those of a
/// higher one. Phases must agree with the dependences; without any, all are equal.
pub(super) fn schedule(p: &Problem, rule: Rule, reversed: bool, phase: &[u32]) -> Vec<usize> {
    let mut order = match rule {
        Rule::DepthFirst => depth_first(p, reversed, phase),
        _ => List::new(p, rule, reversed, phase).run(),
    };
    if reversed {
        order.reverse();
    }
    order
}

/// Larger is better: phase, then the rule's figure, then the place in definition order,
/// which tells the operator. Small, since heaps of them take most of the time.
type Entry = (Reverse<u32>, i64, Reverse<u32>);

/// The same with a second figure.
type Waiting = (Reverse<u32>, i64, i64, Reverse<u32>);

struct List<'a> {
    p: &'a Problem,
    rule: Rule,
    reversed: bool,
    phase: &'a [u32],
    /// Bytes that running the operator now would free and allocate.
    frees: Vec<i64>,
    allocates: Vec<i64>,
    /// Tensors that exist, and how many operators must still run to free them.
    made: Vec<bool>,
    left: Vec<usize>,
    blocked: Vec<usize>,
    done: Vec<bool>,
    live: i64,
    peak: i64,
    ready: BinaryHeap<Entry>,
    /// Ready operators that would raise the peak: least allocation first, then what frees
    /// most.
    waiting: BinaryHeap<Waiting>,
}

impl<'a> List<'a> {
    fn new(p: &'a Problem, rule: Rule, reversed: bool, phase: &'a [u32]) -> Self {
        let n = p.len();
        let blocking = if reversed { &p.after } else { &p.before };
        let mut list = List {
            p,
            rule,
            reversed,
            phase,
            frees: vec![0; n],
            allocates: vec![0; n],
            made: vec![false; p.tensors.len()],
            left: vec![0; p.tensors.len()],
            blocked: blocking.iter().map(Vec::len).collect(),
            done: vec![false; n],
            live: 0,
            peak: 0,
            ready: BinaryHeap::new(),
            waiting: BinaryHeap::new(),
        };
        for t in 0..p.tensors.len() {
            let tensor = &p.tensors[t];
            let bytes = tensor.bytes as i64;
            let at_start = if reversed { Kind::Pinned } else { Kind::Input };
            list.made[t] = tensor.kind == at_start;
            if list.made[t] {
                list.live += bytes;
            }
            let never = if reversed { Kind::Input } else { Kind::Pinned };
            let freers = list.freers(t).len();
            list.left[t] = freers + usize::from(tensor.kind == never);
        }
        for v in 0..n {
            let (makes, frees) = list.uses(v);
            list.allocates[v] = list.total(makes, |l, t| !l.made[t]);
            if reversed {
                // An unread tensor is there for its producer alone in either direction.
                list.allocates[v] += list.total(frees, |l, t| l.p.is_unread(t));
            }
            list.frees[v] = list.total(frees, |l, t| l.left[t] == 1)
                + list.total(makes, |l, t| l.p.is_unread(t));
        }
        list
    }

    fn total(&self, tensors: &[usize], counts: impl Fn(&Self, usize) -> bool) -> i64 {
        let counted = tensors.iter().filter(|&&t| counts(self, t));
        counted.map(|&t| self.p.tensors[t].bytes as i64).sum()
    }

    /// What the operator makes and what it may free.
    fn uses(&self, v: usize) -> (&'a [usize], &'a [usize]) {
        let (reads, writes) = (&self.p.reads[v][..], &self.p.writes[v][..]);
        match self.reversed {
            true => (reads, writes),
            false => (writes, reads),
        }
    }

    fn freers(&self, t: usize) -> &'a [usize] {
        let tensor = &self.p.tensors[t];
        match self.reversed {
            true => tensor.producer.as_slice(),
            false => &tensor.readers,
        }
    }

    /// The operator at a place, and the other way round.
    fn mirrored(&self, i: usize) -> usize {
        if self.reversed { self.p.len() - 1 - i } else { i }
    }

    fn at(&self, place: Reverse<u32>) -> usize {
        self.mirrored(place.0 as usize)
    }

    fn entry(&self, v: usize) -> Entry {
        let gain = self.frees[v] - self.allocates[v];
        let figure = match self.rule {
            Rule::Definition => 0,
            Rule::EagerFree => i64::from(gain >= 0),
            _ => gain,
        };
        let phase = if self.reversed { u32::MAX - self.phase[v] } else { self.phase[v] };
        (Reverse(phase), figure, Reverse(self.mirrored(v) as u32))
    }

    fn fits(&self, v: usize) -> bool {
        self.rule != Rule::LeastPeakFirst || self.live + self.allocates[v] <= self.peak
    }

    fn offer(&mut self, v: usize) {
        let (phase, figure, place) = self.entry(v);
        if self.fits(v) {
            self.ready.push((phase, figure, place));
        } else {
            self.waiting.push((phase, -self.allocates[v], figure, place));
        }
    }

    /// The next operator. Entries whose figures have changed since are left over; the
    /// newer and better one came first.
    fn next(&mut self) -> Option<usize> {
        loop {
            while let Some(&(.., place)) = self.waiting.peek() {
                let v = self.at(place);
                if !self.done[v] && !self.fits(v) {
                    break;
                }
                self.waiting.pop();
                if !self.done[v] {
                    self.ready.push(self.entry(v));
                }
            }
            while let Some(&(.., place)) = self.ready.peek()
                && self.done[self.at(place)]
            {
                self.ready.pop();
            }
            // What fits goes first, but not before an earlier phase.
            let waiting = self.waiting.peek().map(|w| w.0);
            match self.ready.peek() {
                Some((phase, ..)) if waiting.is_none_or(|w| w <= *phase) => {
                    let (.., place) = self.ready.pop()?;
                    let v = self.at(place);
                    if self.fits(v) {
                        return Some(v);
                    }
                    self.offer(v);
                }
                _ => {
                    let (.., place) = self.waiting.pop()?;
                    return Some(self.at(place));
                }
            }
        }
    }

    fn run(mut self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.p.len());
        for v in 0..self.p.len() {
            if self.blocked[v] == 0 {
                self.offer(v);
            }
        }
        while let Some(v) = self.next() {
            self.done[v] = true;
            order.push(v);
            self.commit(v);
        }
        order
    }

    fn commit(&mut self, v: usize) {
        self.live += self.allocates[v];
        self.peak = self.peak.max(self.live);
        self.live -= self.frees[v];
        let (makes, frees) = self.uses(v);
        let p = self.p;
        for &t in makes {
            if !std::mem::replace(&mut self.made[t], true) && self.reversed {
                for &other in &p.tensors[t].readers {
                    self.allocates[other] -= p.tensors[t].bytes as i64;
                    self.offer_if_ready(other);
                }
            }
        }
        for &t in frees {
            self.left[t] -= 1;
            if self.left[t] == 1
                && let Some(&last) = self.freers(t).iter().find(|&&r| !self.done[r])
            {
                self.frees[last] += p.tensors[t].bytes as i64;
                self.offer_if_ready(last);
            }
        }
        let unblocks = if self.reversed { &p.before[v] } else { &p.after[v] };
        for &next in unblocks {
            self.blocked[next] -= 1;
            self.offer_if_ready(next);
        }
    }

    fn offer_if_ready(&mut self, v: usize) {
        if self.blocked[v] == 0 && !self.done[v] {
            self.offer(v);
        }
    }
}

/// Post-order from the operators that nobody waits for, in definition order. Operands with
/// more other users come first, then heavier ones (XLA's `DFSMemoryScheduler`).
fn depth_first(p: &Problem, reversed: bool, phase: &[u32]) -> Vec<usize> {
    let n = p.len();
    let (operands, users, made) = match reversed {
        true => (&p.after, &p.before, &p.reads),
        false => (&p.before, &p.after, &p.writes),
    };
    let place = |v: usize| if reversed { n - v } else { v };
    let mut weight = vec![(0u64, 0u64); n];
    for v in topological(operands, users) {
        let sum = operands[v].iter().fold((0u64, 0u64), |(extra, bytes), &o| {
            (extra.saturating_add(weight[o].0), bytes.saturating_add(weight[o].1))
        });
        let extra = users[v].len().saturating_sub(1) as u64;
        weight[v] = (sum.0.saturating_add(extra), sum.1.saturating_add(p.bytes(&made[v])));
    }
    let level = |v: usize| if reversed { u32::MAX - phase[v] } else { phase[v] };
    // Within a phase only its own sinks are roots, so that phases do not mix.
    let is_root = |v: &usize| users[*v].iter().all(|&u| level(u) != level(*v));
    let mut roots: Vec<usize> = (0..n).filter(is_root).collect();
    roots.sort_by_key(|&v| (level(v), place(v)));
    let mut seen = vec![false; n];
    let mut order = Vec::with_capacity(n);
    let mut stack: Vec<(usize, bool)> = Vec::new();
    let mut sorted: Vec<usize> = Vec::new();
    for root in roots {
        stack.push((root, false));
        while let Some((v, entered)) = stack.pop() {
            if entered {
                order.push(v);
            } else if !std::mem::replace(&mut seen[v], true) {
                stack.push((v, true));
                sorted.clear();
                sorted.extend(operands[v].iter().filter(|&&o| !seen[o]));
                sorted.sort_by_key(|&o| (weight[o], Reverse(place(o))));
                stack.extend(sorted.iter().map(|&o| (o, false)));
            }
        }
    }
    order
}

fn topological(operands: &[Vec<usize>], users: &[Vec<usize>]) -> Vec<usize> {
    let mut blocked: Vec<usize> = operands.iter().map(Vec::len).collect();
    let mut order: Vec<usize> = (0..blocked.len()).filter(|&v| blocked[v] == 0).collect();
    let mut next = 0;
    while next < order.len() {
        for &u in &users[order[next]] {
            blocked[u] -= 1;
            if blocked[u] == 0 {
                order.push(u);
            }
        }
        next += 1;
    }
    order
}

/// What a list scheduler and the profile of its order cost, in steps: more per operator the
/// less of a graph fits into caches.
pub(super) fn schedule_steps(operators: usize) -> u64 {
    let n = operators as u64;
    n * (16 + n / 2000)
}

#[cfg(test)]
mod tests {
    use super::super::problem::Tensor;
    use super::*;

    #[test]
    fn every_rule_frees_a_large_tensor_before_it_makes_another() {
        // 0 and 1 each make 100 bytes, 2 and 3 reduce them to 1 byte.
        let tensor = |bytes, producer, readers: &[usize], kind| Tensor {
            bytes,
            producer: Some(producer),
            readers: readers.to_vec(),
            kind,
        };
        let tensors = vec![
            tensor(100, 0, &[2], Kind::Transient),
            tensor(100, 1, &[3], Kind::Transient),
            tensor(1, 2, &[], Kind::Pinned),
            tensor(1, 3, &[], Kind::Pinned),
        ];
        let p = Problem::new(4, tensors, &[], &[]).unwrap();
        for rule in RULES {
            for reversed in [false, true] {
                let order = schedule(&p, rule, reversed, &[0; 4]);
                assert_eq!(order, [0, 2, 1, 3], "{rule:?} {reversed}");
            }
        }
        // Phases go before everything else.
        for rule in RULES {
            for reversed in [false, true] {
                let order = schedule(&p, rule, reversed, &[0, 0, 1, 1]);
                assert!(order[..2].iter().all(|&v| v < 2), "{rule:?} {reversed} {order:?}");
            }
        }
    }
}
