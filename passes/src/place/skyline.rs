//! Best fit on a skyline: always the lowest valley, and in it the best buffer that fits
//! between its walls; a valley that nothing fits into is filled up to its lower wall.
//!
//! Burke et al.'s heuristic for strip packing, brought to memory by Sekiyama et al.
//! ("Profile-guided memory optimization for deep neural networks", 2018). Nothing is ever
//! put below what is there, so there are no neighbours to look for: O(n log n) in
//! practice, whatever the number of overlapping pairs.

use super::noise::noise;
use super::problem::Problem;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which of the buffers that fit into a valley is taken; the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValleyChoice {
    Lifetime,
    Size,
    Area,
}

/// Places all buffers; those that are not fixed stand above those that are. Gaps are not
/// used. A seed above zero stirs the choice.
pub(super) fn skyline(p: &Problem, choice: ValleyChoice, seed: u64) -> Vec<u64> {
    let mut offsets: Vec<u64> = p.buffers().iter().map(|b| b.offset.unwrap_or(0)).collect();
    let mut waiting = Waiting::new(p, choice, seed);
    let mut left = waiting.items.len();
    let Some(from) = waiting.items.iter().map(|i| i.first).min() else { return offsets };
    let to = waiting.items.iter().map(|i| i.end).max().unwrap_or(from);
    let mut line = Line::new(from, to, p.fixed_top());
    while left > 0 {
        let Some((level, l)) = line.lowest() else { break };
        let r = line.segments[l as usize].end;
        let Some(best) = waiting.best(l + from, r + from) else {
            line.fill(l);
            continue;
        };
        let item = &waiting.items[best];
        let at = level.next_multiple_of(item.alignment);
        offsets[item.buffer as usize] = at;
        line.put(l, item.first - from, item.end - from, at + item.size);
        waiting.take(best);
        left -= 1;
    }
    offsets
}

/// Sections at one height.
#[derive(Clone, Copy)]
struct Segment {
    end: u32,
    /// Where the segment before it begins.
    before: u32,
    level: u64,
    alive: bool,
}

/// The upper contour of what is placed: segments by their first section.
struct Line {
    segments: Vec<Segment>,
    /// Level and first section; entries of segments that changed are stale.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Line {
    fn new(from: u32, to: u32, ground: u64) -> Line {
        let none = Segment { end: 0, before: u32::MAX, level: 0, alive: false };
        let mut line = Line { segments: vec![none; (to - from) as usize], heap: BinaryHeap::new() };
        line.set(0, to - from, u32::MAX, ground);
        line
    }

    fn set(&mut self, at: u32, end: u32, before: u32, level: u64) {
        self.segments[at as usize] = Segment { end, before, level, alive: true };
        if let Some(next) = self.segments.get_mut(end as usize) {
            next.before = at;
        }
        self.heap.push(Reverse((level, at)));
    }

    /// The lowest valley, joined with neighbours of its level.
    fn lowest(&mut self) -> Option<(u64, u32)> {
        loop {
            let Reverse((level, mut at)) = self.heap.pop()?;
            let mut segment = self.segments[at as usize];
            if !segment.alive || segment.level != level {
                continue;
            }
            while let Some(&before) = self.segments.get(segment.before as usize)
                && before.level == level
            {
                self.segments[at as usize].alive = false;
                at = segment.before;
                segment = Segment { end: segment.end, ..before };
            }
            while let Some(&next) = self.segments.get(segment.end as usize)
                && next.level == level
            {
                self.segments[segment.end as usize].alive = false;
                segment.end = next.end;
            }
            self.segments[at as usize] = segment;
            if let Some(next) = self.segments.get_mut(segment.end as usize) {
                next.before = at;
            }
            return Some((level, at));
        }
    }

    /// Raises a valley to its lower wall.
    fn fill(&mut self, at: u32) {
        let Segment { end, before, .. } = self.segments[at as usize];
        let left = self.segments.get(before as usize).map_or(u64::MAX, |s| s.level);
        let right = self.segments.get(end as usize).map_or(u64::MAX, |s| s.level);
        // Without walls everything fits, so the valley would not have been filled.
        self.set(at, end, before, left.min(right));
    }

    /// Raises the sections `first..end` of the valley at `at`.
    fn put(&mut self, at: u32, first: u32, end: u32, top: u64) {
        let valley = self.segments[at as usize];
        self.segments[at as usize].alive = false;
        let mut before = valley.before;
        if at < first {
            self.set(at, first, before, valley.level);
            before = at;
        }
        self.set(first, end, before, top);
        if end < valley.end {
            self.set(end, valley.end, first, valley.level);
        }
    }
}

struct Item {
    buffer: u32,
    first: u32,
    end: u32,
    size: u64,
    alignment: u64,
}

/// The buffers that are not placed yet, by first section, below a binary tree.
struct Waiting {
    items: Vec<Item>,
    /// Per node the least end and the best rank of what waits below it; ranks count from 1.
    nodes: Vec<(u32, u32)>,
    /// The item of each rank.
    by_rank: Vec<u32>,
    base: usize,
}

impl Waiting {
    fn new(p: &Problem, choice: ValleyChoice, seed: u64) -> Waiting {
        let item = |buffer: u32| {
            let b = &p.buffers()[buffer as usize];
            let (first, end) = p.span(buffer as usize).filter(|_| b.offset.is_none())?;
            Some(Item { buffer, first, end, size: b.rounded(), alignment: b.alignment })
        };
        let mut items: Vec<Item> = (0..p.buffers().len() as u32).filter_map(item).collect();
        items.sort_by_key(|i| (i.first, i.buffer));
        let mut by_rank: Vec<u32> = (0..items.len() as u32).collect();
        by_rank.sort_by_cached_key(|&i| {
            let i = &items[i as usize];
            let (size, lifetime) = (u128::from(i.size), u128::from(i.end - i.first));
            let noise = noise(seed, i.buffer);
            let key = match choice {
                ValleyChoice::Lifetime => (lifetime * noise, size),
                ValleyChoice::Size => (size * noise, lifetime),
                ValleyChoice::Area => (size * lifetime * noise, size),
            };
            (key, Reverse(i.buffer))
        });
        let base = items.len().next_power_of_two();
        let mut nodes = vec![(u32::MAX, 0); 2 * base];
        for (rank, &i) in by_rank.iter().enumerate() {
            nodes[base + i as usize] = (items[i as usize].end, rank as u32 + 1);
        }
        for node in (1..base).rev() {
            let (a, b) = (nodes[2 * node], nodes[2 * node + 1]);
            nodes[node] = (a.0.min(b.0), a.1.max(b.1));
        }
        Waiting { items, nodes, by_rank, base }
    }

    fn take(&mut self, item: usize) {
        let mut node = self.base + item;
        self.nodes[node] = (u32::MAX, 0);
        while node > 1 {
            node /= 2;
            let (a, b) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            self.nodes[node] = (a.0.min(b.0), a.1.max(b.1));
        }
    }

    /// The best item that lives within the sections.
    fn best(&self, first: u32, end: u32) -> Option<usize> {
        let from = self.items.partition_point(|i| i.first < first);
        let to = self.items.partition_point(|i| i.first < end);
        let rank = self.search(1, 0, self.base, (from, to), end, 0);
        (rank > 0).then(|| self.by_rank[rank as usize - 1] as usize)
    }

    /// The best rank below the node that is above `best` and ends in time, else `best`.
    fn search(
        &self,
        node: usize,
        at: usize,
        leaves: usize,
        range: (usize, usize),
        end: u32,
        best: u32,
    ) -> u32 {
        let (least_end, rank) = self.nodes[node];
        if at >= range.1 || at + leaves <= range.0 || least_end > end || rank <= best {
            return best;
        }
        if leaves == 1 {
            return rank;
        }
        let half = leaves / 2;
        let left = (2 * node, at);
        let right = (2 * node + 1, at + half);
        let (one, two) = match self.nodes[left.0].1 >= self.nodes[right.0].1 {
            true => (left, right),
            false => (right, left),
        };
        let best = self.search(one.0, one.1, half, range, end, best);
        self.search(two.0, two.1, half, range, end, best)
    }
}
