//! Splitting work among threads, and loops compiled for wide vectors.
//!
//! Chunks follow from shapes alone. What a chunk computes never depends on which thread
//! runs it or in which company, so the number of threads changes speed and nothing else.

use crate::kernel::{Operand, Target};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of one task where an element costs about as much as its memory traffic.
pub(super) const CHEAP: usize = 32 << 10;

/// Elements of one task where an element costs several nanoseconds.
pub(super) const DEAR: usize = 8 << 10;

/// Bytes of one task that only copies.
const COPY_BYTES: usize = 256 << 10;

/// Where an operand's bytes begin.
#[derive(Clone, Copy)]
pub(super) struct Src(pub(super) *const u8);

/// Where a result's bytes begin.
#[derive(Clone, Copy)]
pub(super) struct Dst(pub(super) *mut u8);

// SAFETY: plain addresses out of an `Operand` or `Target`, which may cross threads.
unsafe impl Send for Src {}
// SAFETY: as above.
unsafe impl Sync for Src {}
// SAFETY: as above.
unsafe impl Send for Dst {}
// SAFETY: as above.
unsafe impl Sync for Dst {}

impl Src {
    /// No operand: an address of zero bytes.
    pub(super) const NONE: Src = Src(std::ptr::dangling());

    /// The first byte of an operand of any type.
    pub(super) fn of(x: &Operand) -> Src {
        Src(match x.ty().dtype.size() {
            1 => x.ptr::<u8>(),
            2 => x.ptr::<u16>().cast(),
            4 => x.ptr::<u32>().cast(),
            _ => x.ptr::<u64>().cast(),
        })
    }

    /// The address `bytes` further on.
    ///
    /// # Safety
    /// It lies in the same tensor or just behind it.
    pub(super) unsafe fn at(self, bytes: usize) -> Src {
        // SAFETY: the caller's promise.
        Src(unsafe { self.0.add(bytes) })
    }
}

impl Dst {
    /// The first byte of a result of any type.
    pub(super) fn of(y: &Target) -> Dst {
        Dst(match y.ty().dtype.size() {
            1 => y.ptr::<u8>(),
            2 => y.ptr::<u16>().cast(),
            4 => y.ptr::<u32>().cast(),
            _ => y.ptr::<u64>().cast(),
        })
    }

    /// The address `bytes` further on.
    ///
    /// # Safety
    /// It lies in the same tensor or just behind it.
    pub(super) unsafe fn at(self, bytes: usize) -> Dst {
        // SAFETY: the caller's promise.
        Dst(unsafe { self.0.add(bytes) })
    }
}

/// Runs tasks `0..n`; a single one on this thread, without any scheduling.
pub(super) fn for_tasks(n: usize, task: &(dyn Fn(usize) + Sync)) {
    match n {
        0 => {}
        1 => task(0),
        _ => (0..n).into_par_iter().for_each(task),
    }
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

/// A loop worth compiling for wide vectors.
///
/// `run` must be `#[inline(always)]`: what is not inlined keeps the baseline's vectors.
pub(super) trait Loop {
    /// Runs the loop.
    fn run(self);
}

/// Runs a loop with the widest vectors that this machine has.
///
/// No fused multiply-add is enabled, so the bits are the same on every machine.
#[inline]
pub(super) fn vectorised(l: impl Loop) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2(l: impl Loop) {
            l.run();
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was detected.
            return unsafe { avx2(l) };
        }
    }
    l.run();
}
