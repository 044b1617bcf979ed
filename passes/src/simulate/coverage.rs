//! How many bytes at least one of many ranges covers, while ranges come and go.

use std::ops::Range;

/// A segment tree over the ranges' ends.
pub(super) struct Coverage {
    ends: Vec<u64>,
    /// For each node of the tree, how many ranges cover all of it, less those that cover a
    /// parent; and how many of its bytes are covered.
    nodes: Vec<(i32, u64)>,
}

impl Coverage {
    /// For ranges that may come.
    pub(super) fn new(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let mut ends: Vec<u64> = ranges.flat_map(|r| [r.start, r.end]).collect();
        ends.sort_unstable();
        ends.dedup();
        let leaves = ends.len().saturating_sub(1).next_power_of_two();
        Coverage { ends, nodes: vec![(0, 0); 2 * leaves] }
    }

    /// Bytes that are covered.
    pub(super) fn bytes(&self) -> u64 {
        self.nodes.get(1).map_or(0, |root| root.1)
    }

    /// Lets a range come (1) or go (-1).
    pub(super) fn change(&mut self, range: &Range<u64>, by: i32) {
        let place = |end: u64| self.ends.partition_point(|&e| e < end);
        let (first, end) = (place(range.start), place(range.end));
        self.visit(1, 0..self.nodes.len() / 2, &(first..end), by);
    }

    fn visit(&mut self, node: usize, span: Range<usize>, range: &Range<usize>, by: i32) {
        if range.end <= span.start || span.end <= range.start {
            return;
        }
        let whole = range.start <= span.start && span.end <= range.end;
        if whole {
            self.nodes[node].0 += by;
        } else {
            let middle = span.start + span.len() / 2;
            self.visit(2 * node, span.start..middle, range, by);
            self.visit(2 * node + 1, middle..span.end, range, by);
        }
        let at = |i: usize| self.ends[i.min(self.ends.len() - 1)];
        self.nodes[node].1 = match self.nodes[node].0 {
            0 if span.len() == 1 => 0,
            0 => self.nodes[2 * node].1 + self.nodes[2 * node + 1].1,
            _ => at(span.end) - at(span.start),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_once() {
        let ranges = [0..64, 32..96, 128..160, 0..160];
        let mut coverage = Coverage::new(ranges.iter().cloned());
        let mut random = fastrand::Rng::with_seed(1);
        let mut there: Vec<&Range<u64>> = Vec::new();
        for _ in 0..200 {
            if there.is_empty() || random.bool() {
                there.push(&ranges[random.usize(0..ranges.len())]);
                coverage.change(there[there.len() - 1], 1);
            } else {
                coverage.change(there.swap_remove(random.usize(0..there.len())), -1);
            }
            let covered = (0..160).filter(|byte| there.iter().any(|r| r.contains(byte)));
            assert_eq!(coverage.bytes(), covered.count() as u64);
        }
    }
}
