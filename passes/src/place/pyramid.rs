//! OLLA's preplacement (function 5): nested lifetimes stacked to a pyramid.
//!
//! Training frees activations in the reverse order of their making, so that long lives
//! enclose shorter ones. Starting from the longest, each next buffer is the longest whose
//! life lies within the last one's; they go on top of each other. In the paper an integer
//! program places the rest.

use super::problem::Problem;
use std::cmp::Reverse;

/// The pyramid: each buffer in it with its offset, from the ground up. Nothing fixed is in
/// it; where offsets are fixed, it stands above them.
///
/// As in the paper a buffer that lives for one instant only is left out, and of equals the
/// first is taken.
pub fn pyramid(p: &Problem) -> Vec<(usize, u64)> {
    let buffers = p.buffers();
    let free = |&i: &usize| buffers[i].offset.is_none() && buffers[i].size > 0;
    let mut longest: Vec<usize> = (0..buffers.len()).filter(free).collect();
    let duration = |i: usize| buffers[i].upper.abs_diff(buffers[i].lower) - 1;
    longest.sort_by_key(|&i| (Reverse(duration(i)), i));
    let fixed = buffers.iter().filter_map(|b| Some(b.offset? + b.rounded()));
    let mut base = fixed.max().unwrap_or(0);
    let (mut min_start, mut max_end) = (i64::MIN, i64::MAX);
    let mut placed = Vec::new();
    // The window only shrinks: what does not fit into it now never will.
    for i in longest.into_iter().filter(|&i| duration(i) > 0) {
        let b = &buffers[i];
        if min_start <= b.lower && b.upper <= max_end {
            let at = base.next_multiple_of(b.alignment);
            placed.push((i, at));
            base = at + b.rounded();
            (min_start, max_end) = (b.lower, b.upper);
        }
    }
    placed
}
