//! What products multiply: numbers as they are, and `bf16`, which is read as `f32`.
//!
//! Blocks of `bf16` operands go to oneDNN, where the processor multiplies `bf16` and the system has the library, else they are
//! widened into memory of the thread, where the packing library reads them: the whole of an operand never is. Sums have the bits of those of whole operands that were widened before.

use super::library::{self, Scalar};
use super::onednn::{self, Kernel};
use super::product::{Mat, MatMut};
use super::wide::wide;
use crate::kernel::Element;
use arenic_backends::cpu::sums::LIBRARY_DEPTH;
use arenic_ir::op::Extents;
use arenic_ir::types::bf16;
use std::cell::RefCell;

/// An element of a product's operands.
pub(super) trait Factor: Element {
    /// The numbers that it is read as, and that are summed.
    type Sum: Scalar;
    /// What fills blocks up.
    const PADDING: Self;

    fn read(self) -> Self::Sum;

    /// One product on one thread by the packing library: `c = alpha · a b`, or `c += alpha · a b`.
    ///
    /// # Safety
    /// As for [`products`](super::product::products).
    unsafe fn packed(
        e: Extents,
        alpha: Self::Sum,
        operands: (Mat<Self>, Mat<Self>),
        add: bool,
        c: MatMut<Self::Sum>,
    );
}

impl<T: Scalar> Factor for T {
    type Sum = T;
    const PADDING: T = T::ZERO;

    #[inline(always)]
    fn read(self) -> T {
        self
    }

    unsafe fn packed(e: Extents, alpha: T, operands: (Mat<T>, Mat<T>), add: bool, c: MatMut<T>) {
        // SAFETY: the caller's promise.
        unsafe { library::packed(e, alpha, operands, add, c) };
    }
}

/// The upper half of an `f32`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

// SAFETY: a plain number; every bit pattern is valid.
unsafe impl Element for Bf16 {
    const IS_FLOAT: bool = true;
}

impl Bf16 {
    pub(super) fn nearest(x: f32) -> Bf16 {
        Bf16(bf16::from_f32(x))
    }
}

impl Factor for Bf16 {
    type Sum = f32;
    const PADDING: Bf16 = Bf16(0);

    #[inline(always)]
    fn read(self) -> f32 {
        bf16::to_f32(self.0)
    }

    unsafe fn packed(
        e: Extents,
        alpha: f32,
        (a, b): (Mat<Bf16>, Mat<Bf16>),
        add: bool,
        c: MatMut<f32>,
    ) {
        if let Some(kernel) = Kernel::of_bf16() {
            // SAFETY: the caller's promise.
            return unsafe { kernel.product(e, alpha, (a, b), add, c) };
        }
        BLOCKS.with_borrow_mut(|[of_a, of_b]| {
            for j in (0..e.n).step_by(ROWS) {
                // A sum of no terms is written, too.
                for p in (0..e.k.max(1)).step_by(LIBRARY_DEPTH) {
                    let (k, n) = (LIBRARY_DEPTH.min(e.k - p), ROWS.min(e.n - j));
                    // SAFETY: the caller's promise, of a block, here and below.
                    let b = unsafe { widened(b.at(p, j), [k, n], of_b) };
                    for i in (0..e.m).step_by(ROWS) {
                        let e = Extents { m: ROWS.min(e.m - i), k, n };
                        let (add, c) = (add || p > 0, c.at(i, j));
                        // SAFETY: as above.
                        unsafe {
                            let a = widened(a.at(i, p), [e.m, k], of_a);
                            library::packed(e, alpha, (a, b), add, c);
                        }
                    }
                }
            }
        });
    }
}

/// Rows of the first operand, and columns of the second, that are widened at once.
const ROWS: usize = 512;

/// Bytes of a thread's blocks of `bf16` products, at most.
pub(super) fn bytes() -> usize {
    match Kernel::of_bf16() {
        Some(_) => onednn::BYTES,
        None => 2 * ROWS * LIBRARY_DEPTH * size_of::<f32>(),
    }
}

thread_local! {
    /// A thread's blocks of the two operands, as `f32`.
    static BLOCKS: RefCell<[Vec<f32>; 2]> = const { RefCell::new([const { Vec::new() }; 2]) };
}

/// A block of rows and columns as `f32` in `room`, whose elements have the order of the block's in memory.
///
/// # Safety
/// The elements may be read.
unsafe fn widened(x: Mat<Bf16>, [rows, cols]: [usize; 2], room: &mut Vec<f32>) -> Mat<f32> {
    room.resize(room.len().max(ROWS * LIBRARY_DEPTH), 0.0);
    if x.rows == 1 && x.cols != 1 {
        // SAFETY: the caller's promise, of the transposed block.
        unsafe { widen::<Bf16>(x.transposed(), [cols, rows], room) };
        return Mat::new(room.as_ptr(), rows, 1).transposed();
    }
    // SAFETY: the caller's promise.
    unsafe { widen::<Bf16>(x, [rows, cols], room) };
    Mat::new(room.as_ptr(), cols, 1)
}

wide! {
    /// Writes a matrix row by row.
    ///
    /// # Safety
    /// Its elements may be read.
    unsafe fn widen<A: Factor>(x: Mat<A>, extents: [usize; 2], to: &mut [A::Sum]) {
        let [rows, cols] = extents;
        if cols == 0 {
            return;
        }
        for (i, to) in to.chunks_exact_mut(cols).take(rows).enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                if x.cols == 1 {
                    let from = std::slice::from_raw_parts(x.at(i, 0).ptr, cols);
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from.read();
                    }
                } else {
                    for (j, to) in to.iter_mut().enumerate() {
                        *to = (*x.at(i, j).ptr).read();
                    }
                }
            }
        }
    }
}
