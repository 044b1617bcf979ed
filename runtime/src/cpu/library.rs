//! Products by the kernels of the `gemm` crates, on one thread.
//!
//! A product goes to them block by block, so that what they pack is bounded. They add the terms of an element one
//! after another, up to 512 at least, wherever blocks and vectors end: blocks have fewer terms, so that the order
//! follows from the operands alone. The crate's own entry has other orders for one row, one column and few
//! elements.

use super::factor;
use super::number::Number;
use super::product::{Mat, MatMut, plain};
use arenic_backends::cpu::sums::LIBRARY_DEPTH;
use arenic_ir::op::Extents;
use gemm_common::Parallelism;
use gemm_common::cache::CACHE_INFO;
#[cfg(target_arch = "x86_64")]
use gemm_common::simd::{MixedSimd, V3, V4};

/// A kernel of the library, for a matrix `dst` of `m` rows and `n` columns whose columns lie densely:
/// `dst = of_dst · dst + factor · lhs · rhs`, the first term only if it is asked for.
pub(super) type Kernel<T> = unsafe fn(
    m: usize,
    n: usize,
    k: usize,
    dst: *mut T,
    dst_cols: isize,
    dst_rows: isize,
    add: bool,
    lhs: *const T,
    lhs_cols: isize,
    lhs_rows: isize,
    rhs: *const T,
    rhs_cols: isize,
    rhs_rows: isize,
    of_dst: T,
    factor: T,
    conjugate_dst: bool,
    conjugate_lhs: bool,
    conjugate_rhs: bool,
    Parallelism,
);

/// Bytes of the rows of one operand that a kernel may pack at once.
const BLOCK: usize = 1 << 20;

/// Bytes that products pack at once on so many threads, and widen, where operands may be `bf16`.
///
/// A thread is in one kernel at a time, which packs a block of one operand. Of the other it packs all where it has few
/// columns, else a part, into memory of the size of a second-level cache that each thread keeps. Blocks are
/// rounded up to panels of at most 64 rows, and a byte for each panel says whether it is packed.
pub fn library_bytes(threads: usize, bf16: bool) -> u64 {
    const PANEL: usize = 64 * LIBRARY_DEPTH * size_of::<f64>();
    // Where no third-level cache is known, kernels have room for 768 rows.
    const LEAST: usize = 768 * LIBRARY_DEPTH * size_of::<f64>();
    let cache = CACHE_INFO[1].cache_bytes;
    let each = BLOCK.max(LEAST) + BLOCK + 2 * PANEL + cache + cache / 256;
    let widened = if bf16 { factor::bytes() } else { 0 };
    threads as u64 * (each + widened) as u64
}

/// An element type that products take.
pub(super) trait Scalar: Number {
    /// The library's kernel, where it has one that this machine runs.
    fn kernel() -> Option<Kernel<Self>> {
        None
    }
}

impl Scalar for f32 {
    fn kernel() -> Option<Kernel<f32>> {
        has_instructions().then(gemm_f32::gemm::f32::get_gemm_fn)
    }
}

impl Scalar for f64 {
    fn kernel() -> Option<Kernel<f64>> {
        has_instructions().then(gemm_f64::gemm::f64::get_gemm_fn)
    }
}

impl Scalar for i32 {}
impl Scalar for i64 {}
impl Scalar for u32 {}
impl Scalar for u64 {}

/// True where the machine has all instructions of the kernel that the library chooses. It chooses by AVX-512's
/// foundation and by FMA, and panics where others are missing that its kernel has as well.
fn has_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return <V4 as MixedSimd<f32, f32, f32, f32>>::try_new().is_some();
    } else if is_x86_feature_detected!("fma") {
        return <V3 as MixedSimd<f32, f32, f32, f32>>::try_new().is_some();
    }
    true
}

/// `c = alpha · a b`, or `c += alpha · a b`.
///
/// # Safety
/// As for [`products`](super::product::products).
pub(super) unsafe fn packed<T: Scalar>(
    e: Extents,
    alpha: T,
    (a, b): (Mat<T>, Mat<T>),
    add: bool,
    c: MatMut<T>,
) {
    let t = Extents { m: e.n, k: e.k, n: e.m };
    let (at, bt, ct) = (a.transposed(), b.transposed(), c.transposed());
    // SAFETY: the caller's promise, of the product or of the transposed one, which is the same.
    unsafe {
        if cost(t, (bt, at), ct) < cost(e, (a, b), c) {
            blocks(t, alpha, (bt, at), add, ct);
        } else {
            blocks(e, alpha, (a, b), add, c);
        }
    }
}

/// The library's time for a product whose rows of `c` are the columns of its kernel, in multiplications: it
/// computes whole vectors of columns, and moves elements of `b`, `a` and `c` one by one where their rows do
/// not lie as it reads or writes them.
fn cost<T: Scalar>(e: Extents, (a, b): (Mat<T>, Mat<T>), c: MatMut<T>) -> usize {
    /// Columns of a vector.
    const LANES: usize = 16;
    /// To pack an element of `b`.
    const PACK: usize = 25;
    /// To read an element of `a`.
    const READ: usize = 17;
    /// To write an element of `c`, which lies on a line of its own.
    const WRITE: usize = 200;
    let across = |stride: isize, each: usize| if stride == 1 { 0 } else { each };
    let writes = across(c.cols, WRITE) * e.m * e.n * e.k.div_ceil(LIBRARY_DEPTH);
    let moves = (across(b.cols, PACK) * e.n + across(a.cols, READ) * e.m) * e.k;
    e.m * e.n.next_multiple_of(LANES) * e.k + moves + writes
}

/// As [`packed`], block by block, by a kernel whose columns are the rows of `c`.
///
/// # Safety
/// As for [`products`](super::product::products).
unsafe fn blocks<T: Scalar>(
    e: Extents,
    alpha: T,
    (a, b): (Mat<T>, Mat<T>),
    add: bool,
    c: MatMut<T>,
) {
    let kernel = T::kernel();
    let rows = BLOCK / (LIBRARY_DEPTH * size_of::<T>());
    for i in (0..e.m).step_by(rows) {
        // A sum of no terms is written, too.
        for p in (0..e.k.max(1)).step_by(LIBRARY_DEPTH) {
            let e = Extents { m: rows.min(e.m - i), k: LIBRARY_DEPTH.min(e.k - p), n: e.n };
            let (a, b, c, add) = (a.at(i, p), b.at(p, 0), c.at(i, 0), add || p > 0);
            // SAFETY: the caller's promise, of a block.
            unsafe {
                match kernel {
                    // A real number is its own conjugate. Asked for conjugates, the library has one
                    // order of sums.
                    Some(kernel) => kernel(
                        e.n,
                        e.m,
                        e.k,
                        c.ptr,
                        c.rows,
                        c.cols,
                        add,
                        b.ptr,
                        b.rows,
                        b.cols,
                        a.ptr,
                        a.rows,
                        a.cols,
                        T::ONE,
                        alpha,
                        true,
                        true,
                        true,
                        Parallelism::None,
                    ),
                    None => plain(e, alpha, a, b, add, c),
                }
            }
        }
    }
}
