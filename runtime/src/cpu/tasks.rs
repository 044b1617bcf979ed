//! Splitting work over threads, and loops compiled for wide vectors.

use rayon::prelude::*;

/// Work, in elements touched, below which threads cost more than they save.
const SMALL: usize = 1 << 15;

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

/// Defines a function that calls another one, `body`, compiled for the widest vectors that
/// the machine surely profits from. Bits do not depend on it: lanes are independent and
/// nothing is contracted. `body` must be `#[inline(always)]`, and so must all that it
/// calls in its loops: what is not inlined keeps the baseline's vectors.
macro_rules! wide {
    (
        $(#[$meta:meta])*
        unsafe fn $name:ident<$($g:ident: $bound:path),+>($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? = $body:path
    ) => {
        $(#[$meta])*
        #[inline]
        unsafe fn $name<$($g: $bound),+>($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                unsafe fn avx2<$($g: $bound),+>($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promise.
                    unsafe { $body($($arg),*) }
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature was just detected; else the caller's promise.
                    return unsafe { avx2::<$($g),+>($($arg),*) };
                }
            }
            // SAFETY: the caller's promise.
            unsafe { $body($($arg),*) }
        }
    };
    (
        $(#[$meta:meta])*
        fn $name:ident<$($g:ident: $bound:path),+>($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? = $body:path
    ) => {
        $(#[$meta])*
        #[inline]
        fn $name<$($g: $bound),+>($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2<$($g: $bound),+>($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature was just detected.
                    return unsafe { avx2::<$($g),+>($($arg),*) };
                }
            }
            $body($($arg),*)
        }
    };
}
pub(super) use wide;

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
