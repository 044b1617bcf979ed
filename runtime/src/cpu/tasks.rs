//! Splitting work over threads.
//!
//! What a task computes never depends on which thread runs it or in which company, and how a sum is cut
//! into tasks follows from shapes alone, so that the number of threads changes speed and nothing else.

use super::address::{Dst, Src};
use crate::workers;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Work, in elements touched, below which threads cost more than they save: some microseconds, what it
/// takes to give work to a thread that waits for it. A step in rounds has many operators of little more.
const SMALL: usize = 1 << 14;

/// Elements of one task where an element costs about as much as its memory traffic.
pub(super) const CHEAP: usize = 8 << 10;

/// Elements of one task where an element costs several nanoseconds.
pub(super) const DEAR: usize = 2 << 10;

/// Bytes of one task that only copies.
const COPY_BYTES: usize = 64 << 10;

/// Runs `f` for every index below `n`. `work` is the effort of all of them, in elements
/// touched. Each index must write results of its own: which thread runs it, and with
/// which neighbours, is open.
#[inline]
pub(super) fn for_each(n: usize, work: usize, f: impl Fn(usize) + Sync) {
    if work <= SMALL || n <= 1 || workers::count() == 1 {
        (0..n).for_each(f);
    } else {
        let least = (SMALL / 2).div_ceil((work / n).max(1));
        in_parallel(n, least, &|indices: Range<usize>| indices.for_each(&f));
    }
}

/// As [`for_each`], for tasks of which the first are the largest: each thread takes the next one when it has
/// done its last.
pub(super) fn for_each_in_order(n: usize, work: usize, f: impl Fn(usize) + Sync) {
    let tasks = Queue::new(n);
    for_each(workers::count(), work, |_| tasks.rest().for_each(&f));
}

/// Indices that threads take in order. None has a share of its own, which it could still be at while others
/// wait.
pub(super) struct Queue {
    len: usize,
    taken: AtomicUsize,
}

impl Queue {
    /// The indices below `len`.
    pub(super) fn new(len: usize) -> Self {
        Queue { len, taken: AtomicUsize::new(0) }
    }

    /// What no thread has taken yet.
    pub(super) fn rest(&self) -> impl Iterator<Item = usize> {
        std::iter::from_fn(|| Some(self.taken.fetch_add(1, Relaxed)).filter(|&i| i < self.len))
    }
}

/// Covers `0..n` with ranges of `least` indices, on all threads. Not generic: a pool's machinery
/// is compiled once and not for every kernel and type.
fn in_parallel(n: usize, least: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    workers::enter(|| {
        (0..n.div_ceil(least)).into_par_iter().for_each(|i| f(i * least..((i + 1) * least).min(n)));
    });
}

/// As [`for_each`], for tasks that are each worth a thread.
pub(super) fn for_tasks(n: usize, task: &(dyn Fn(usize) + Sync)) {
    for_each(n, n.saturating_mul(SMALL), task);
}

/// Covers `0..n` with ranges of `grain` (the last may be shorter).
pub(super) fn for_ranges(n: usize, grain: usize, task: &(dyn Fn(Range<usize>) + Sync)) {
    for_tasks(n.div_ceil(grain), &|i| task(i * grain..((i + 1) * grain).min(n)));
}

/// Copies `n` bytes. The ranges are equal (nothing is copied then) or disjoint.
///
/// # Safety
/// `x` is valid for `n` bytes of reads, `y` for writes.
pub(super) unsafe fn copy(x: Src, y: Dst, n: usize) {
    if x.0 == y.0.cast_const() {
        return;
    }
    for_ranges(n, COPY_BYTES, &|r| {
        // SAFETY: inside both ranges, which are disjoint.
        unsafe { y.at(r.start).0.copy_from_nonoverlapping(x.at(r.start).0, r.len()) };
    });
}
