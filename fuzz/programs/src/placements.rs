//! Random small problems of placement, all placements of them, and a checker of placements of its own.

use crate::Random;
use arenic_passes::place::{Buffer, Gap, Problem};

/// From 0 to below `n`.
fn below(random: &mut Random, n: u64) -> u64 {
    random.below(n as usize) as u64
}

/// The bytes of a buffer that are in use at an instant.
fn in_use(b: &Buffer, at: u64, time: i64) -> (u64, u64) {
    if time < b.lower || b.upper <= time {
        return (0, 0);
    }
    let (low, high) = match b.gaps.iter().find(|g| g.lower <= time && time < g.upper) {
        Some(gap) => gap.window.unwrap_or((0, 0)),
        None => (0, b.size.div_ceil(b.alignment) * b.alignment),
    };
    if low < high { (at + low, at + high) } else { (0, 0) }
}

/// Holds a placement against the problem, at every instant at which a buffer begins or a gap ends.
///
/// # Panics
/// Buffers overlap that are alive at once, or one is not where it must be.
pub fn assert_valid(buffers: &[Buffer], offsets: &[u64], height: u64) {
    assert_eq!(buffers.len(), offsets.len());
    let mut times: Vec<i64> = buffers.iter().map(|b| b.lower).collect();
    times.extend(buffers.iter().flat_map(|b| b.gaps.iter().flat_map(|g| [g.lower, g.upper])));
    for &time in &times {
        let ranges = buffers.iter().zip(offsets).map(|(b, &at)| in_use(b, at, time));
        let mut ranges: Vec<(u64, u64)> = ranges.filter(|(low, high)| low < high).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "overlap at {time}: {ranges:?}");
    }
    for (b, &at) in buffers.iter().zip(offsets) {
        assert_eq!(at % b.alignment, 0);
        assert!(b.offset.is_none_or(|o| o == at), "fixed {b:?} at {at}");
        assert!(b.size == 0 || at + b.size <= height);
    }
}

/// So many buffers; by `kind` they are plain (0), aligned (1), fixed (2), with gaps (3) or with hints (4).
pub fn random_buffers(random: &mut Random, n: usize, kind: u64) -> Vec<Buffer> {
    let span = 2 + below(random, 8);
    let mut buffers: Vec<Buffer> = Vec::new();
    for _ in 0..n {
        let lower = below(random, span) as i64 - 3;
        let upper = lower + 1 + below(random, span) as i64;
        let alignment = if kind == 1 { 1 << below(random, 3) } else { 1 };
        let mut b = Buffer { lower, upper, size: below(random, 6), alignment, ..Buffer::default() };
        if kind == 2 && below(random, 3) == 0 && Problem::new(buffers.clone()).is_ok() {
            b.offset = Some(below(random, 12));
            let with = [&buffers[..], &[b.clone()]].concat();
            if Problem::new(with).is_err() {
                b.offset = None;
            }
        }
        if kind == 3 && upper - lower > 2 {
            let window = (b.size > 2 && below(random, 2) == 0).then(|| (1, b.size - 1));
            b.gaps.push(Gap { lower: lower + 1, upper: upper - 1, window });
        }
        if kind == 4 && below(random, 2) == 0 {
            b.hint = Some(below(random, 9));
        }
        buffers.push(b);
    }
    buffers
}

/// The least height, by trying every buffer at every offset below `limit`.
pub fn optimum(buffers: &[Buffer], limit: u64) -> u64 {
    fn clash(a: &Buffer, at: u64, b: &Buffer, bt: u64) -> bool {
        (a.lower.max(b.lower)..a.upper.min(b.upper)).any(|time| {
            let (x, y) = (in_use(a, at, time), in_use(b, bt, time));
            x.0 < y.1 && y.0 < x.1
        })
    }
    fn place(buffers: &[Buffer], offsets: &mut Vec<u64>, best: &mut u64) {
        let height = |offsets: &[u64]| {
            let sized = buffers.iter().zip(offsets).filter(|(b, _)| b.size > 0);
            sized.map(|(b, at)| at + b.size.next_multiple_of(b.alignment)).max().unwrap_or(0)
        };
        if height(offsets) >= *best {
            return;
        }
        let Some(b) = buffers.get(offsets.len()) else {
            *best = height(offsets);
            return;
        };
        if b.size == 0 {
            offsets.push(b.offset.unwrap_or(0));
            place(buffers, offsets, best);
            offsets.pop();
            return;
        }
        for at in 0..*best {
            let free = offsets.iter().zip(buffers).all(|(&o, other)| !clash(b, at, other, o));
            if at % b.alignment == 0 && b.offset.is_none_or(|o| o == at) && free {
                offsets.push(at);
                place(buffers, offsets, best);
                offsets.pop();
            }
        }
    }
    let mut best = limit;
    place(buffers, &mut Vec::new(), &mut best);
    best
}
