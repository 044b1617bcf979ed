//! Addresses that tasks share.

use crate::kernel::{Destination, Operand};

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
    pub(super) fn of(y: &Destination) -> Dst {
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
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub(super) unsafe fn slice<'a>(self, at: usize, n: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), n) }
    }
}

/// Asks for `n` elements that are read soon, of which there may be none.
#[inline(always)]
pub(super) fn ask_for<T>(x: *const T, n: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..n).step_by(64 / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: an address where nothing can be read is no error.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, n);
}
