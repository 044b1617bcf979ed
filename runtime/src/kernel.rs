//! The interface between whoever holds the bytes and the kernels.

use arenic_ir::{Op, TensorType};

/// One operand: a type and where its bytes begin.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    ty: &'a TensorType,
    ptr: *const u8,
}

/// One result: a type and where its bytes go.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    ty: &'a TensorType,
    ptr: *mut u8,
}

// SAFETY: both are plain addresses. Whoever makes one promises (see `new`) that the
// bytes behind it stay valid and free of conflicting access while a kernel runs, on
// whichever thread that is.
unsafe impl Send for Operand<'_> {}
// SAFETY: as above.
unsafe impl Sync for Operand<'_> {}
// SAFETY: as above.
unsafe impl Send for Destination<'_> {}
// SAFETY: as above.
unsafe impl Sync for Destination<'_> {}

/// A plain element type that may be read from arena bytes.
///
/// # Safety
/// Every bit pattern that the arena can hold for the type is a valid value. `bool` is
/// none: its tensors are read as `u8` and hold 0 or 1.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Kernels of floats are compiled for the vectors of each processor, others once.
    const IS_FLOAT: bool;
}

/// Implements [`Element`] for types.
macro_rules! elements {
    ($is_float:literal: $($T:ty),*) => {$(
        // SAFETY: plain numbers; every bit pattern is valid.
        unsafe impl Element for $T {
            const IS_FLOAT: bool = $is_float;
        }
    )*};
}
elements!(false: u8, i8, u16, i16, u32, i32, u64, i64);
elements!(true: f32, f64);

impl<'a> Operand<'a> {
    /// An operand at `ptr`.
    ///
    /// # Safety
    /// While the operand is in use, `ty.bytes()` initialised bytes at `ptr`, aligned for
    /// the element type, are valid for reads, and nobody writes them but the kernel it is
    /// passed to, and that only where the operator declares the pair in place.
    pub unsafe fn new(ty: &'a TensorType, ptr: *const u8) -> Self {
        Operand { ty, ptr }
    }

    /// The type.
    pub fn ty(&self) -> &'a TensorType {
        self.ty
    }

    /// The first byte.
    pub(crate) fn bytes(&self) -> *const u8 {
        self.ptr
    }

    /// The first element.
    pub fn ptr<T: Element>(&self) -> *const T {
        debug_assert_eq!(size_of::<T>() as u64, self.ty.dtype.size());
        self.ptr.cast()
    }

    /// All elements.
    ///
    /// # Safety
    /// No result of the same call shares these bytes: for operands that the operator
    /// declares in no in-place pair this holds by invariant I7.
    pub unsafe fn slice<T: Element>(&self) -> &'a [T] {
        if self.ty.elements() == 0 {
            return &[];
        }
        // SAFETY: `new` promised validity and alignment, the caller that nobody writes.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.ty.elements()) }
    }
}

impl<'a> Destination<'a> {
    /// A result at `ptr`.
    ///
    /// # Safety
    /// While the target is in use, `ty.bytes()` bytes at `ptr`, aligned for the element
    /// type, are valid for reads and writes, and nobody else reads or writes them, except
    /// as an operand of the same call that the operator declares as an in-place pair.
    pub unsafe fn new(ty: &'a TensorType, ptr: *mut u8) -> Self {
        Destination { ty, ptr }
    }

    /// The type.
    pub fn ty(&self) -> &'a TensorType {
        self.ty
    }

    /// The first element.
    pub fn ptr<T: Element>(&self) -> *mut T {
        debug_assert_eq!(size_of::<T>() as u64, self.ty.dtype.size());
        self.ptr.cast()
    }

    /// The first byte.
    pub(crate) fn bytes_mut(&self) -> *mut u8 {
        self.ptr
    }

    /// The first byte, as an address to read.
    pub fn bytes(&self) -> *const u8 {
        self.ptr
    }

    /// All elements.
    ///
    /// # Safety
    /// No operand of the same call shares these bytes, and no other slice of them is
    /// alive. Bytes may hold anything before they are written.
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub unsafe fn slice_mut<T: Element>(&self) -> &'a mut [T] {
        if self.ty.elements() == 0 {
            return &mut [];
        }
        // SAFETY: `new` promised validity and alignment, the caller exclusiveness.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.ty.elements()) }
    }
}

/// Scratch bytes of one call, aligned to 64.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: a plain address, exclusive to one call (see `new`).
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// No scratch.
    pub const NONE: Scratch = Scratch { ptr: std::ptr::NonNull::dangling().as_ptr(), bytes: 0 };

    /// Scratch of `bytes` bytes at `ptr`.
    ///
    /// # Safety
    /// While the scratch is in use the bytes are valid for reads and writes, initialised
    /// (with anything), aligned to 64, and nobody else uses them.
    pub unsafe fn new(ptr: *mut u8, bytes: usize) -> Self {
        Scratch { ptr, bytes }
    }

    /// Where it begins, and its size in bytes.
    pub(crate) fn span(&self) -> (*const u8, usize) {
        (self.ptr, self.bytes)
    }

    /// The first bytes, and the scratch that follows them. `bytes` is a multiple of 64.
    ///
    /// # Panics
    /// The scratch is smaller: the operator table and its kernel disagree.
    pub fn split(self, bytes: usize) -> (*mut u8, Scratch) {
        assert!(bytes <= self.bytes, "scratch of {} bytes is too small", self.bytes);
        let rest = Scratch { ptr: self.ptr.wrapping_add(bytes), bytes: self.bytes - bytes };
        (self.ptr, rest)
    }

    /// The first `n` elements of the scratch, contents arbitrary.
    ///
    /// # Safety
    /// No other slice of the scratch is alive.
    ///
    /// # Panics
    /// The scratch is smaller: the operator table and its kernel disagree.
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub unsafe fn slice_mut<'a, T: Element>(&self, n: usize) -> &'a mut [T] {
        let needed = n.checked_mul(size_of::<T>());
        let fits = needed.is_some_and(|bytes| bytes <= self.bytes);
        assert!(fits, "scratch of {} bytes is too small", self.bytes);
        if n == 0 {
            return &mut [];
        }
        // SAFETY: `new` promised validity and alignment, the caller exclusiveness.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), n) }
    }
}

/// What random operators draw from besides their own key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The number of the step, from 0.
    pub step: u64,
    /// Which of equal parts of the batch operators work on, from 0 ([`arenic_ir::rounds`]). They
    /// draw what an operator on the whole batch draws for this part, where the part's elements are
    /// a multiple of four; else others, but in no two rounds the same.
    pub round: u64,
}

impl Draw {
    /// The first counter of this round for an operator that draws for so many elements: each
    /// counter gives words for four.
    pub(crate) fn first_counter(self, elements: usize) -> u64 {
        self.round.wrapping_mul(elements.div_ceil(4) as u64)
    }
}

/// One application of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operator.
    pub op: &'a Op,
    /// Operands.
    pub inputs: &'a [Operand<'a>],
    /// Results; `None` where nobody reads one.
    pub outputs: &'a [Option<Destination<'a>>],
    /// Scratch of [`Op::scratch_bytes`].
    pub scratch: Scratch,
    /// Seed and step.
    pub draw: Draw,
}

/// Why a kernel refused its operands. Types were checked before: this is about contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// An index that selects nothing.
    #[error("index {index} is out of range for an extent of {extent}")]
    IndexOutOfRange {
        /// The index as it stands in the tensor.
        index: i64,
        /// The extent it selects from.
        extent: usize,
    },
    /// An operator of a memory graph: only its sizes are known.
    #[error("an opaque operator has no kernel; memory graphs can be planned, not run")]
    Opaque,
    /// An integer divided by zero.
    #[error("an integer was divided by zero")]
    DivisionByZero,
    /// Scratch of the reference interpreter could not be allocated.
    #[error(transparent)]
    Memory(#[from] crate::memory::OutOfMemory),
    /// Other ranks are not there, or silent.
    #[error(transparent)]
    Ranks(#[from] crate::ranks::RankError),
    /// A dropout ratio outside [0, 1).
    #[error("dropout ratio {0} is not in [0, 1)")]
    Ratio(String),
}
