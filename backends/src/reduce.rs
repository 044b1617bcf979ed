//! Reductions, with as few axes as they can have, and how the CPU cuts them into parts.

use arenic_ir::op::MAX_RANK;
use arenic_ir::types::TensorType;

/// A reduction with neighbouring axes of one kind merged; kinds alternate.
#[derive(Clone, Copy, Debug)]
pub struct ReducePlan {
    /// Merged axes.
    pub rank: usize,
    /// Their extents.
    pub extents: [usize; MAX_RANK],
    /// Whether the last merged axis is reduced; the others alternate.
    pub inner_reduced: bool,
    /// Elements of the result.
    pub results: usize,
    /// Reduced indices of the outer axes, times the segments of a reduced inner axis.
    pub segments: usize,
    /// Parts that the segments are cut into; each gives partial results.
    pub parts: usize,
}

impl ReducePlan {
    /// Elements of the partial results of so many parts.
    pub fn partial_results(&self, parts: usize) -> u64 {
        (parts as u64).saturating_mul(self.results as u64)
    }

    /// True where merged axis `i` is reduced.
    pub fn reduced(&self, i: usize) -> bool {
        (self.rank - 1 - i).is_multiple_of(2) == self.inner_reduced
    }
}

/// Elements of a reduced inner axis that are combined before anything else.
pub const SEGMENT: usize = 4096;

/// Columns of a kept inner axis that one task accumulates at a time.
pub const COLUMNS: usize = 256;

/// Merges axes and cuts a reduction into parts where its results are too few for many
/// threads.
pub fn reduce(x: &TensorType, axes: &[usize]) -> ReducePlan {
    let (mut rank, mut extents, mut last) = (0, [1; MAX_RANK], false);
    for (i, &d) in x.shape.iter().enumerate().filter(|&(_, &d)| d != 1) {
        let reduced = axes.contains(&i);
        if rank > 0 && reduced == last {
            extents[rank - 1] *= d;
        } else {
            extents[rank] = d;
            rank += 1;
        }
        last = reduced;
    }
    let mut plan = ReducePlan {
        rank: rank.max(1),
        extents,
        inner_reduced: last,
        results: 1,
        segments: 1,
        parts: 1,
    };
    for (i, &extent) in extents[..plan.rank].iter().enumerate() {
        match plan.reduced(i) {
            false => plan.results *= extent,
            true if i + 1 == plan.rank => plan.segments *= extent.div_ceil(SEGMENT),
            true => plan.segments *= extent,
        }
    }
    let inner = extents[plan.rank - 1];
    let tasks = match plan.inner_reduced {
        true => plan.results,
        false => plan.results / inner.max(1) * inner.div_ceil(COLUMNS),
    };
    let pays = x.elements() >> 15;
    if tasks < 16 {
        plan.parts = 32usize.div_ceil(tasks.max(1)).min(plan.segments).min(pays).max(1);
    }
    plan
}
