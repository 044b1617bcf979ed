//! Parts of a problem that is too large for one integer program.

/// Runs of decisions that overlap by half, then decisions spread over all, as many in each.
pub(super) fn windows<T: Copy + PartialEq>(decisions: &[T], size: usize) -> Vec<Vec<T>> {
    let size = size.min(decisions.len());
    let mut windows: Vec<Vec<T>> = Vec::new();
    for first in (0..decisions.len()).step_by((size / 2).max(1)) {
        windows.push(decisions[first.min(decisions.len() - size)..][..size].to_vec());
    }
    let apart = decisions.len().div_ceil(size.max(1));
    if apart > 1 {
        let spread = |first| decisions.iter().skip(first).step_by(apart).copied().collect();
        windows.extend((0..apart).map(spread));
    }
    windows.dedup();
    windows
}
