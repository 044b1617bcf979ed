//! Which tensors divide the repeats of a cut into segments.
//!
//! A cut knows one moment. Where it has a long chain run again, the whole chain runs for its
//! first reader, and what it makes for later ones is alive until then. Held tensors between
//! segments of the chain, as the checkpoints of Chen et al. (2016, section 4), let each segment
//! wait for its own readers. For a weight that no segment exceeds, the fewest bytes that do so
//! are a shortest path over the places where the chain may be divided.

use super::cut::{Cut, Needs};
use std::collections::VecDeque;
use std::ops::AddAssign;

/// Into how many segments chains are divided, if their weights were equal.
const SEGMENTS: [u64; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128];

/// Sets of tensors that are held to divide the repeats of a cut. `before` are the runs before its
/// moment.
pub(super) fn divisions(needs: &Needs, before: &[u32], cut: &Cut) -> Vec<Vec<u32>> {
    let chain = Chain::new(needs, before, cut);
    let whole: u64 = chain.weight.iter().sum();
    let largest = chain.weight.iter().copied().max().unwrap_or(0);
    let mut found: Vec<Vec<u32>> = Vec::new();
    for segments in SEGMENTS {
        let held = chain.divided((whole / segments).max(largest));
        if !held.is_empty() && !found.contains(&held) {
            found.push(held);
        }
    }
    found
}

/// Operators that run again, in order.
struct Chain<'a> {
    needs: &'a Needs<'a>,
    /// Bytes that each makes for later runs.
    weight: Vec<u64>,
    /// Tensors that one of them makes and another one reads: the tensor, the first and the last.
    spans: Vec<(u32, usize, usize)>,
}

impl<'a> Chain<'a> {
    fn new(needs: &'a Needs<'a>, before: &[u32], cut: &Cut) -> Self {
        let step = needs.step;
        let mut place: Vec<Option<usize>> = vec![None; step.operators()];
        let mut again = vec![false; step.operators()];
        cut.again.iter().for_each(|&op| again[op as usize] = true);
        let mut later = vec![false; step.tensors()];
        needs.read.iter().for_each(|&x| later[x as usize] = true);
        let mut chain: Vec<u32> = Vec::with_capacity(cut.again.len());
        for &op in before.iter().filter(|&&op| again[op as usize]) {
            if place[op as usize].is_none() {
                place[op as usize] = Some(chain.len());
                chain.push(op);
            }
        }
        let read_later = |x: &&u32| later[**x as usize];
        let bytes = |x: &u32| step.bytes[*x as usize];
        let weight =
            |&op: &u32| step.writes.row(op as usize).iter().filter(read_later).map(bytes).sum();
        let mut last: Vec<Option<usize>> = vec![None; step.tensors()];
        for (i, &op) in chain.iter().enumerate() {
            step.reads.row(op as usize).iter().for_each(|&x| last[x as usize] = Some(i));
        }
        let mut spans = Vec::new();
        for (i, &op) in chain.iter().enumerate() {
            let read = |&x: &u32| last[x as usize].filter(|&l| l > i).map(|l| (x, i, l));
            spans.extend(step.writes.row(op as usize).iter().filter_map(read));
        }
        Chain { needs, weight: chain.iter().map(weight).collect(), spans }
    }

    /// The tensors to hold so that no segment weighs more than so many bytes.
    fn divided(&self, most: u64) -> Vec<u32> {
        let places = self.places(most).into_iter().map(usize::from);
        let count: Vec<usize> = std::iter::once(0).chain(sums(places)).collect();
        // Held is what crosses a place: made before it, read from it on.
        let crosses =
            |&&(_, first, last): &&(u32, usize, usize)| count[last + 1] > count[first + 1];
        self.spans.iter().filter(crosses).map(|s| s.0).collect()
    }

    /// Where the chain is divided so that no segment weighs more than so many bytes, and the
    /// fewest bytes are held.
    fn places(&self, most: u64) -> Vec<bool> {
        let n = self.weight.len();
        let bytes = |x: u32| self.needs.step.bytes[x as usize];
        // Bytes that go from what runs before each place to what runs from there on.
        let mut change = vec![0i64; n + 1];
        for &(x, first, last) in &self.spans {
            change[first + 1] += bytes(x) as i64;
            change[last + 1] -= bytes(x) as i64;
        }
        let across = sums(change);
        let sum: Vec<u64> = std::iter::once(0).chain(sums(self.weight.iter().copied())).collect();
        // The fewest bytes with a division at each place, and the one before it.
        let mut fewest = vec![0i64; n + 1];
        let mut previous = vec![0usize; n + 1];
        let mut window: VecDeque<usize> = VecDeque::from([0]);
        for place in 1..=n {
            let is_too_far = |&from: &usize| sum[place] - sum[from] > most;
            while window.len() > 1 && window.front().is_some_and(is_too_far) {
                window.pop_front();
            }
            let best = window.front().copied().unwrap_or(0);
            previous[place] = best;
            fewest[place] = fewest[best] + if place < n { across[place] } else { 0 };
            while window.back().is_some_and(|&b| fewest[b] >= fewest[place]) {
                window.pop_back();
            }
            window.push_back(place);
        }
        let mut divides = vec![false; n + 1];
        let mut place = previous[n];
        while place > 0 {
            divides[place] = true;
            place = previous[place];
        }
        divides
    }
}

/// Of each number and all before it.
fn sums<T: Copy + Default + AddAssign>(numbers: impl IntoIterator<Item = T>) -> Vec<T> {
    let add = |sum: &mut T, number: T| {
        *sum += number;
        Some(*sum)
    };
    numbers.into_iter().scan(T::default(), add).collect()
}
