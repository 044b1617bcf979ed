//! What repeats must cost at least under a limit, in any order.
//!
//! As an operator begins, all that it depends on has run, and nothing that depends on it. What
//! it reads is there; what its dependents read is there, too, or runs again. With every other
//! operator at no price, a least cut for that moment ([`super::cut`]) is a lower bound on the
//! seconds of repeats, whatever the order. The bound is the largest of a few moments near the
//! turn of the step, on its longest path.
//!
//! It is one for plans that move nothing to host memory.

use super::cut::{Cutter, Needs};
use super::step::RecomputeStep;

/// Moments that a bound is sought at, and operators of the longest path that are looked at.
const MOMENTS: usize = 6;
const CANDIDATES: usize = 1024;

/// Moments are so far apart, as a part of the step's seconds.
const APART: f64 = 0.01;

/// Seconds that every plan of the step repeats at least under a limit, of those that compute
/// tensors again alone.
pub(super) fn bound(step: &RecomputeStep, limit: u64) -> f64 {
    let around = Around::new(step);
    let moments = around.moments();
    moments.iter().map(|&t| around.at(t, limit)).fold(0.0, f64::max)
}

/// Which operators depend on which.
struct Around<'a> {
    step: &'a RecomputeStep<'a>,
    /// The operators that read each operator's results.
    readers: Vec<Vec<u32>>,
}

impl<'a> Around<'a> {
    fn new(step: &'a RecomputeStep<'a>) -> Self {
        let mut readers = vec![Vec::new(); step.operators()];
        for op in 0..step.operators() as u32 {
            for maker in Self::makers(step, op) {
                readers[maker as usize].push(op);
            }
        }
        Around { step, readers }
    }

    fn makers(step: &RecomputeStep, op: u32) -> impl Iterator<Item = u32> {
        step.reads.row(op as usize).iter().filter_map(|&x| step.producer[x as usize])
    }

    /// The operators that one depends on, or that depend on it; itself not.
    fn reached(&self, from: u32, back: bool) -> Vec<bool> {
        let mut reached = vec![false; self.step.operators()];
        let mut stack = vec![from];
        while let Some(op) = stack.pop() {
            let visit = |next: u32| {
                let new = !std::mem::replace(&mut reached[next as usize], true);
                new.then_some(next)
            };
            match back {
                true => stack.extend(Self::makers(self.step, op).filter_map(visit)),
                false => stack.extend(self.readers[op as usize].iter().copied().filter_map(visit)),
            }
        }
        reached
    }

    /// Operators with much before and much after them.
    fn moments(&self) -> Vec<u32> {
        let step = self.step;
        let seconds = |reached: &[bool]| -> f64 {
            reached.iter().zip(&step.seconds).filter(|(r, _)| **r).map(|(_, s)| s).sum()
        };
        let path = self.longest_path();
        let every = path.len().div_ceil(CANDIDATES).max(1);
        let mut scored: Vec<(f64, f64, u32)> = path
            .iter()
            .step_by(every)
            .map(|&op| {
                let before = seconds(&self.reached(op, true));
                (before * seconds(&self.reached(op, false)), before, op)
            })
            .collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
        let apart = APART * step.seconds.iter().sum::<f64>();
        let mut chosen: Vec<(f64, u32)> = Vec::new();
        for (_, before, op) in scored {
            if chosen.len() < MOMENTS && chosen.iter().all(|c| (c.0 - before).abs() > apart) {
                chosen.push((before, op));
            }
        }
        chosen.into_iter().map(|(_, op)| op).collect()
    }

    /// The path of operators that takes longest.
    fn longest_path(&self) -> Vec<u32> {
        let step = self.step;
        let mut until = vec![0.0f64; step.operators()];
        let mut previous: Vec<Option<u32>> = vec![None; step.operators()];
        for op in 0..step.operators() {
            let later = |a: &u32, b: &u32| until[*a as usize].total_cmp(&until[*b as usize]);
            previous[op] = Self::makers(step, op as u32).max_by(later);
            let begin = previous[op].map_or(0.0, |p| until[p as usize]);
            until[op] = begin + step.seconds[op];
        }
        let last = (0..step.operators() as u32)
            .max_by(|a, b| until[*a as usize].total_cmp(&until[*b as usize]));
        let mut path: Vec<u32> = std::iter::successors(last, |&op| previous[op as usize]).collect();
        path.reverse();
        path
    }

    /// The bound at the moment at which an operator begins.
    fn at(&self, t: u32, limit: u64) -> f64 {
        let step = self.step;
        let (before, after) = (self.reached(t, true), self.reached(t, false));
        let is_later = |op: u32| op == t || after[op as usize];
        // An output may be there or made once more: it counts nothing.
        let mut there = step.pinned.clone();
        let mut held = step.resident;
        for &x in step.reads.row(t as usize) {
            if !std::mem::replace(&mut there[x as usize], true) {
                held += step.bytes[x as usize];
            }
        }
        let made_later = |x: u32| step.producer[x as usize].is_some_and(is_later);
        let later = (0..step.operators() as u32).filter(|&op| is_later(op));
        let read: Vec<u32> = later
            .flat_map(|op| step.reads.row(op as usize).iter().copied())
            .filter(|&x| !made_later(x))
            .collect();
        let again = |op: u32| {
            let seconds = if before[op as usize] { step.seconds[op as usize] } else { 0.0 };
            (!is_later(op)).then_some(seconds)
        };
        let again = (0..step.operators() as u32).map(again).collect();
        let needs = Needs { step, read, there, again };
        let mut cutter = Cutter::new(&needs);
        cutter.within(limit.saturating_sub(held));
        cutter.bound
    }
}
