//! One pass over the buffers in some sequence: each is put by first fit (the least free
//! offset) or by best fit (the smallest gap that is large enough) between the buffers
//! that are there already and alive at the same time.
//!
//! Those neighbours are found through a tree over lifetimes, so that no list of pairs is
//! ever made: O(log n + k log k) for a buffer with k neighbours.

use super::problem::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Which of the holes that are large enough a buffer takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// The least offset.
    First,
    /// The smallest; the least offset among equals.
    #[default]
    Best,
}

/// What buffers are sorted by before they are placed; largest first, but for times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Bytes.
    Size,
    /// Bytes times duration.
    Area,
    /// Duration.
    Lifetime,
    /// The instant at which it begins to live, the first first.
    Start,
    /// The instant at which it ends, the last first.
    End,
}

impl Sequence {
    /// All buffers in this sequence. Those with fixed offsets come first.
    pub(super) fn of(self, p: &Problem) -> Vec<u32> {
        let mut buffers: Vec<u32> = (0..p.buffers().len() as u32).collect();
        buffers.sort_by_cached_key(|&i| {
            let b = &p.buffers()[i as usize];
            let (first, end) = p.span(i as usize).unwrap_or((0, 0));
            let (size, lifetime) = (b.rounded(), u64::from(end - first));
            let key = match self {
                Sequence::Size => (u128::from(size), lifetime),
                Sequence::Area => (u128::from(size) * u128::from(lifetime), size),
                Sequence::Lifetime => (u128::from(lifetime), size),
                Sequence::Start => (u128::from(u32::MAX - first), size),
                Sequence::End => (u128::from(end), size),
            };
            (b.offset.is_none(), Reverse(key), first, i)
        });
        buffers
    }
}

/// A piece of a buffer, and where it is once it is placed.
#[derive(Clone, Copy)]
struct Leaf {
    first: u32,
    end: u32,
    low: u64,
    high: u64,
}

/// What is placed already.
pub(super) struct Placed<'a> {
    p: &'a Problem,
    /// Pieces by first section.
    leaves: Vec<Leaf>,
    /// The leaf of each piece.
    leaf: Vec<u32>,
    /// Per node of a binary tree over the leaves the last end of what is placed below.
    ends: Vec<u32>,
    /// First index of the leaves' nodes in `ends`.
    base: usize,
    /// Forbidden offsets of the buffer at hand: from below the first to the second.
    forbidden: Vec<(i64, i64)>,
    /// Neighbours that may still be looked at.
    work: u64,
}

impl<'a> Placed<'a> {
    /// Nothing is placed yet. At most `work` neighbours will be looked at.
    pub(super) fn new(p: &'a Problem, work: u64) -> Self {
        let pieces: Vec<_> = (0..p.buffers().len()).flat_map(|i| p.pieces(i)).collect();
        let mut sorted: Vec<u32> = (0..pieces.len() as u32).collect();
        sorted.sort_by_key(|&i| pieces[i as usize].first);
        let mut leaf = vec![0; pieces.len()];
        for (at, &i) in sorted.iter().enumerate() {
            leaf[i as usize] = at as u32;
        }
        let place = |&i: &u32| {
            let piece = pieces[i as usize];
            Leaf { first: piece.first, end: piece.end, low: 0, high: 0 }
        };
        let base = pieces.len().next_power_of_two();
        let leaves = sorted.iter().map(place).collect();
        Placed { p, leaves, leaf, ends: vec![0; 2 * base], base, forbidden: Vec::new(), work }
    }

    /// Places one buffer at an offset.
    pub(super) fn put(&mut self, buffer: usize, offset: u64) {
        let range = self.p.piece_range(buffer);
        for (piece, i) in self.p.pieces(buffer).iter().zip(range) {
            let at = self.leaf[i] as usize;
            let leaf = &mut self.leaves[at];
            (leaf.low, leaf.high) = (offset + piece.low, offset + piece.high);
            let mut node = self.base + at;
            while node > 0 && self.ends[node] < piece.end {
                self.ends[node] = piece.end;
                node /= 2;
            }
        }
    }

    /// An offset for the buffer; `None` if the work is spent.
    pub(super) fn find(&mut self, buffer: usize, fit: Fit) -> Option<u64> {
        let b = &self.p.buffers()[buffer];
        if b.offset.is_some() {
            return b.offset;
        }
        self.forbid(buffer)?;
        self.forbidden.sort_unstable();
        let mut top = 0u64;
        let mut best: Option<(u64, u64)> = None;
        for &(below, above) in &self.forbidden {
            let at = top.next_multiple_of(b.alignment);
            if let Ok(below) = u64::try_from(below)
                && at <= below
            {
                let spare = below - at;
                if fit == Fit::First || spare == 0 {
                    return Some(at);
                }
                if best.is_none_or(|(least, _)| spare < least) {
                    best = Some((spare, at));
                }
            }
            top = top.max(u64::try_from(above).unwrap_or(0));
        }
        Some(best.map_or(top.next_multiple_of(b.alignment), |(_, at)| at))
    }

    /// True where the buffer can be at the offset.
    pub(super) fn is_free(&mut self, buffer: usize, offset: u64) -> bool {
        // No figure is beyond 2^60.
        let at = i64::try_from(offset).unwrap_or(i64::MAX);
        let hits = |&(below, above): &(i64, i64)| below < at && at < above;
        self.forbid(buffer).is_some() && !self.forbidden.iter().any(hits)
    }

    /// Finds what is forbidden for the buffer; `None` if the work is spent.
    fn forbid(&mut self, buffer: usize) -> Option<()> {
        self.forbidden.clear();
        for piece in self.p.pieces(buffer) {
            let reach = self.leaves.partition_point(|l| l.first < piece.end);
            let looked = self.collect(1, 0, reach, piece.first, (piece.low, piece.high));
            self.work = self.work.checked_sub(looked)?;
        }
        Some(())
    }

    /// Adds what is forbidden by placed leaves before `reach` that end after `first`, to a
    /// piece of these bytes; the number of nodes looked at.
    fn collect(
        &mut self,
        node: usize,
        from: usize,
        reach: usize,
        first: u32,
        bytes: (u64, u64),
    ) -> u64 {
        if from >= reach || self.ends[node] <= first {
            return 1;
        }
        if node >= self.base {
            let leaf = self.leaves[node - self.base];
            // No figure is beyond 2^60.
            let (low, high) = (bytes.0 as i64, bytes.1 as i64);
            if leaf.end > first {
                self.forbidden.push((leaf.low as i64 - high, leaf.high as i64 - low));
            }
            return 1;
        }
        // The level of a node says how many leaves are below it.
        let half = (self.base >> (usize::BITS - 1 - node.leading_zeros())) / 2;
        let left = self.collect(2 * node, from, reach, first, bytes);
        left + self.collect(2 * node + 1, from + half, reach, first, bytes)
    }
}

/// Places all buffers in a sequence of their own, each at its least free offset; what is
/// fixed comes first.
pub fn stack(p: &Problem, sequence: &[usize]) -> Vec<u64> {
    let mut placed = Placed::new(p, u64::MAX);
    let mut offsets = vec![0; p.buffers().len()];
    for fixed in [true, false] {
        for &i in sequence.iter().filter(|&&i| p.buffers()[i].offset.is_some() == fixed) {
            // Unlimited work always ends in a place.
            offsets[i] = placed.find(i, Fit::First).unwrap_or(0);
            placed.put(i, offsets[i]);
        }
    }
    offsets
}

/// Places all buffers that have no offset in `base`, in this sequence and beside those
/// that do. The work is reduced by the neighbours looked at; `None` if it is spent.
pub fn one_pass(
    p: &Problem,
    (sequence, fit): (Sequence, Fit),
    base: &[(usize, u64)],
    work: &mut u64,
) -> Option<Vec<u64>> {
    let mut placed = Placed::new(p, *work);
    let mut offsets = vec![None; p.buffers().len()];
    for &(i, at) in base {
        placed.put(i, at);
        offsets[i] = Some(at);
    }
    for i in sequence.of(p) {
        let i = i as usize;
        if offsets[i].is_none() {
            let at = placed.find(i, fit);
            *work = placed.work;
            let at = at?;
            placed.put(i, at);
            offsets[i] = Some(at);
        }
    }
    Some(offsets.into_iter().flatten().collect())
}
