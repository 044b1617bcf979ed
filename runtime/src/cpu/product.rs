//! Matrix products of any strides: tiles of the result run in parallel, each as one call
//! of a library's kernel or, where packing would dominate, as a plain loop.
//!
//! Every tile sums over the whole inner extent in one fixed order, so that results do not depend on how
//! many tiles there are, and so not on the number of threads.

use super::address::Shared;
use super::factor::Factor;
use super::number::Number;
use super::tasks::for_each;
use super::wide::wide;
use crate::workers;
use arenic_backends::cpu::sums::{PLAIN_ROWS, Route};
use arenic_ir::op::Extents;

/// A matrix to read: its first element and its strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Mat<T> {
    pub(super) ptr: *const T,
    pub(super) rows: isize,
    pub(super) cols: isize,
}

/// A matrix to write.
#[derive(Clone, Copy)]
pub(super) struct MatMut<T> {
    pub(super) ptr: *mut T,
    pub(super) rows: isize,
    pub(super) cols: isize,
}

// SAFETY: plain addresses; whoever calls `products` promises what may be read and written.
unsafe impl<T: Send + Sync> Send for Mat<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Mat<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for MatMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for MatMut<T> {}

impl<T> Mat<T> {
    pub(super) fn new(ptr: *const T, rows: usize, cols: usize) -> Self {
        Mat { ptr, rows: rows as isize, cols: cols as isize }
    }

    pub(super) fn transposed(self) -> Self {
        Mat { ptr: self.ptr, rows: self.cols, cols: self.rows }
    }

    /// The matrix from row `i`, column `j` on.
    #[inline(always)]
    pub(super) fn at(self, i: usize, j: usize) -> Self {
        let ptr = self.ptr.wrapping_offset(i as isize * self.rows + j as isize * self.cols);
        Mat { ptr, ..self }
    }
}

impl<T> MatMut<T> {
    pub(super) fn new(ptr: *mut T, rows: usize, cols: usize) -> Self {
        MatMut { ptr, rows: rows as isize, cols: cols as isize }
    }

    pub(super) fn transposed(self) -> Self {
        MatMut { ptr: self.ptr, rows: self.cols, cols: self.rows }
    }

    /// The matrix from row `i`, column `j` on.
    #[inline(always)]
    pub(super) fn at(self, i: usize, j: usize) -> Self {
        let ptr = self.ptr.wrapping_offset(i as isize * self.rows + j as isize * self.cols);
        MatMut { ptr, ..self }
    }
}

impl<T: Copy> MatMut<T> {
    /// Fills the first `n` elements of its first rows, each with its value.
    ///
    /// # Safety
    /// They lie densely and may be written.
    pub(super) unsafe fn fill_rows(self, n: usize, values: &[T]) {
        for (i, &value) in values.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts_mut(self.at(i, 0).ptr, n) }.fill(value);
        }
    }
}

/// One product on one thread.
///
/// # Safety
/// As for [`products`].
pub(super) unsafe fn one<A: Factor>(
    way: Route,
    e: Extents,
    alpha: A::Sum,
    (a, b): (Mat<A>, Mat<A>),
    add: bool,
    c: MatMut<A::Sum>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match way {
            Route::Library => A::packed(e, alpha, (a, b), add, c),
            Route::Plain => plain(e, alpha, a, b, add, c),
            Route::PlainTransposed => {
                let t = Extents { m: e.n, k: e.k, n: e.m };
                plain(t, alpha, b.transposed(), a.transposed(), add, c.transposed());
            }
        }
    }
}

/// Columns of the result that a plain product accumulates at a time.
const STRIP: usize = 256;

/// The first `n` elements of row `p`.
///
/// # Safety
/// They exist, lie densely, and nobody writes them meanwhile.
#[inline(always)]
unsafe fn row_of<'a, T>(b: Mat<T>, p: usize, n: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(b.at(p, 0).ptr, n) }
}

/// A strip of a plain product: every row of `b` is read once for all rows of the result.
///
/// # Safety
/// As for [`products`]; rows of `b` are dense.
#[inline(always)]
unsafe fn strip<A: Factor>(
    e: Extents,
    alpha: A::Sum,
    a: Mat<A>,
    b: Mat<A>,
    add: bool,
    c: MatMut<A::Sum>,
) {
    let mut sums = [[A::Sum::ZERO; STRIP]; PLAIN_ROWS];
    // SAFETY: the caller's promise, for every element in turn.
    unsafe {
        let mut p = 0;
        while p + 4 <= e.k {
            let r = [
                row_of(b, p, e.n),
                row_of(b, p + 1, e.n),
                row_of(b, p + 2, e.n),
                row_of(b, p + 3, e.n),
            ];
            for (i, sums) in sums[..e.m].iter_mut().enumerate() {
                let f = [
                    (*a.at(i, p).ptr).read(),
                    (*a.at(i, p + 1).ptr).read(),
                    (*a.at(i, p + 2).ptr).read(),
                    (*a.at(i, p + 3).ptr).read(),
                ];
                for (x, sum) in sums[..e.n].iter_mut().enumerate() {
                    let s = f[0].mul(r[0][x].read()).add(f[1].mul(r[1][x].read()));
                    let t = f[2].mul(r[2][x].read()).add(f[3].mul(r[3][x].read()));
                    *sum = sum.add(s.add(t));
                }
            }
            p += 4;
        }
        for p in p..e.k {
            for (i, sums) in sums[..e.m].iter_mut().enumerate() {
                let f = (*a.at(i, p).ptr).read();
                for (sum, &r) in sums.iter_mut().zip(row_of(b, p, e.n)) {
                    *sum = sum.add(f.mul(r.read()));
                }
            }
        }
        for (i, sums) in sums[..e.m].iter().enumerate() {
            for (j, &sum) in sums[..e.n].iter().enumerate() {
                store(c.at(i, j), alpha.mul(sum), add);
            }
        }
    }
}

wide! {
    /// A product without packing: rows of `b` are added up where they lie densely, else rows
    /// of `a` are multiplied with columns of `b`.
    ///
    /// # Safety
    /// As for [`products`].
    pub(super) unsafe fn plain<A: Factor>(
        e: Extents, alpha: A::Sum, a: Mat<A>, b: Mat<A>, add: bool, c: MatMut<A::Sum>,
    ) {
        // SAFETY: the caller's promise, for every element in turn.
        unsafe {
            if b.cols == 1 && (b.rows != 1 || e.n > 1) {
                for j in (0..e.n).step_by(STRIP) {
                    for i in (0..e.m).step_by(PLAIN_ROWS) {
                        let (rows, width) = (PLAIN_ROWS.min(e.m - i), STRIP.min(e.n - j));
                        let part = Extents { m: rows, k: e.k, n: width };
                        strip(part, alpha, a.at(i, 0), b.at(0, j), add, c.at(i, j));
                    }
                }
                return;
            }
            for i in 0..e.m {
                for j in 0..e.n {
                    let sum = if a.cols == 1 && b.rows == 1 {
                        let x = std::slice::from_raw_parts(a.at(i, 0).ptr, e.k);
                        dot(x, std::slice::from_raw_parts(b.at(0, j).ptr, e.k))
                    } else {
                        let mut sum = A::Sum::ZERO;
                        for p in 0..e.k {
                            sum = sum.add((*a.at(i, p).ptr).read().mul((*b.at(p, j).ptr).read()));
                        }
                        sum
                    };
                    store(c.at(i, j), alpha.mul(sum), add);
                }
            }
        }
    }
}

/// Writes or adds to the first element of `c`.
///
/// # Safety
/// It may be written.
#[inline(always)]
pub(super) unsafe fn store<T: Number>(c: MatMut<T>, value: T, add: bool) {
    // SAFETY: the caller's promise.
    unsafe { *c.ptr = if add { (*c.ptr).add(value) } else { value } }
}

/// The inner product of two slices of one length, in 32 interleaved sums.
#[inline(always)]
pub(super) fn dot<A: Factor>(a: &[A], b: &[A]) -> A::Sum {
    const LANES: usize = 32;
    let mut sums = [A::Sum::ZERO; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..LANES {
            sums[i] = sums[i].add(a[i].read().mul(b[i].read()));
        }
    }
    let mut rest = A::Sum::ZERO;
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        rest = rest.add(a.read().mul(b.read()));
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] = sums[i].add(sums[i + width]);
        }
    }
    sums[0].add(rest)
}

/// Multiplications of one tile: enough to be worth a task and the packing of its operands, few enough to
/// share out.
const TILE: usize = 1 << 19;

/// Tiles for each of several threads, so that all end at about the same time. More would only pack the
/// operands more often.
const TILES: usize = 2;

/// In how many tiles a batch of products suffices.
fn enough() -> usize {
    match workers::count() {
        1 => 1,
        threads => TILES * threads,
    }
}

/// Extents of a tile of the result, for a batch of products of which so many tiles suffice.
fn tile(batch: usize, e: Extents, enough: usize) -> (usize, usize) {
    let (mut m, mut n) = (e.m, e.n);
    loop {
        let tiles = batch * e.m.div_ceil(m) * e.n.div_ceil(n);
        if tiles >= enough || m * e.k * n < 2 * TILE || m.max(n) <= 32 {
            return (m, n);
        }
        if m >= n {
            m = m.div_ceil(2).next_multiple_of(16);
        } else {
            n = n.div_ceil(2).next_multiple_of(16);
        }
    }
}

/// Computes a batch of products: `c = alpha · a b`, or `c += alpha · a b` where `begin`
/// says so. The route is that of the whole of which these products are a part.
///
/// `operands` gives `a`, `b` and `c` of one product. `begin(i, c, row, col, m, n)` runs
/// before the tile of `c` at (`row`, `col`) is computed and may fill its `m × n` elements;
/// it returns whether the product is added to them.
///
/// # Safety
/// Every element of every `a` and `b` may be read and every element of every `c` be read
/// and written, no two elements of the results share bytes, and operands share none with
/// results.
pub(super) unsafe fn products<A: Factor>(
    route: Route,
    batch: usize,
    e: Extents,
    alpha: A::Sum,
    operands: impl Fn(usize) -> (Mat<A>, Mat<A>, MatMut<A::Sum>) + Sync,
    begin: impl Fn(usize, MatMut<A::Sum>, [usize; 4]) -> bool + Sync,
) {
    if batch == 0 || e.m == 0 || e.n == 0 {
        return;
    }
    let (tm, tn) = tile(batch, e, enough());
    let (across, down) = (e.n.div_ceil(tn), e.m.div_ceil(tm));
    // A multiplication costs about a sixteenth of an element's trip through memory.
    let work = batch * (e.multiplications() / 16 + e.m * e.n);
    for_each(batch * down * across, work, |task| {
        let (i, row, col) = (task / (down * across), task / across % down * tm, task % across * tn);
        let (a, b, c) = operands(i);
        let part = Extents { m: tm.min(e.m - row), k: e.k, n: tn.min(e.n - col) };
        let c = c.at(row, col);
        let add = begin(i, c, [row, col, part.m, part.n]);
        // SAFETY: the caller's promise; tiles are disjoint.
        unsafe { one(route, part, alpha, (a.at(row, 0), b.at(0, col)), add, c) };
    });
}

/// A part of a product's result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) row: usize,
    pub(super) col: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// Extents of at most `elements` elements, 1024 or more, into which a tile is cut: wider
/// than high, since long rows please the memory, but not by much, since each part packs
/// its own share of the operands. Cuts fall on multiples of 16, as whole vectors of
/// the library's kernels.
fn cut(rows: usize, cols: usize, elements: usize) -> (usize, usize) {
    if rows * cols <= elements {
        return (rows, cols);
    }
    let whole = |n: usize, unit: usize| n / unit * unit;
    let widest = whole((4 * elements).isqrt(), 64).max(whole(elements / rows, 16));
    let cols = cols.min(widest);
    (rows.min(whole(elements / cols, 16).max(16)), cols)
}

/// Computes one product part by part and gives every part to `consume`, dense and row by
/// row. So many `lanes` each own `size` elements of `scratch` and every `lanes`-th part.
/// Every element has the bits that [`products`] gives it.
///
/// # Safety
/// Every element of `a` and `b` may be read; `size` is at least 1024 or all elements of
/// the result, and nobody else uses `scratch`.
pub(super) unsafe fn product_by_parts<A: Factor>(
    (lanes, size): (usize, usize),
    e: Extents,
    alpha: A::Sum,
    (a, b): (Mat<A>, Mat<A>),
    scratch: &mut [A::Sum],
    consume: impl Fn(Part, *const A::Sum) + Sync,
) {
    if e.m == 0 || e.n == 0 {
        return;
    }
    assert!(scratch.len() >= lanes * size);
    let scratch = Shared::new(scratch.as_mut_ptr());
    let (tm, tn) = tile(1, e, enough());
    let (pm, pn) = cut(tm, tn, size);
    assert!(pm.min(e.m) * pn.min(e.n) <= size);
    let (across, parts_across) = (e.n.div_ceil(tn), tn.div_ceil(pn));
    let (down, parts_down) = (e.m.div_ceil(tm), tm.div_ceil(pm));
    let (tiles, parts) = (across * down, parts_across * parts_down);
    let work = e.multiplications() / 16 + e.m * e.n;
    for_each(lanes, work, |lane| {
        let room = scratch.ptr().wrapping_add(lane * size);
        for unit in (lane..tiles * parts).step_by(lanes) {
            let (in_tile, at) = (unit / parts, unit % parts);
            let (top, left) = (in_tile / across * tm, in_tile % across * tn);
            let (height, width) = (tm.min(e.m - top), tn.min(e.n - left));
            let (down, right) = (at / parts_across * pm, at % parts_across * pn);
            if down >= height || right >= width {
                continue;
            }
            let (rows, cols) = (pm.min(height - down), pn.min(width - right));
            let part = Part { row: top + down, col: left + right, rows, cols };
            let c = MatMut::new(room, cols, 1);
            // SAFETY: the caller's promise; the room is this lane's.
            unsafe {
                let operands = (a.at(part.row, 0), b.at(0, part.col));
                one(Route::of(e), Extents { m: rows, k: e.k, n: cols }, alpha, operands, false, c);
            }
            consume(part, room);
        }
    });
}

/// One product whose inner extent is cut into `parts`, each with partial results of its
/// own in `scratch`, which are then summed in order.
///
/// # Safety
/// As for [`products`]; `scratch` holds `parts · m · n` elements.
pub(super) unsafe fn product_in_parts<A: Factor>(
    parts: usize,
    batch: usize,
    e: Extents,
    alpha: A::Sum,
    scratch: &mut [A::Sum],
    operands: impl Fn(usize) -> (Mat<A>, Mat<A>, MatMut<A::Sum>) + Sync,
    begin: impl Fn(usize, MatMut<A::Sum>, [usize; 4]) -> bool + Sync,
) {
    let (depth, size) = (e.k / parts, e.m * e.n);
    let partial = Shared::new(scratch.as_mut_ptr());
    assert!(scratch.len() >= parts * batch * size);
    // The last part also takes what is left over.
    for (from, parts_here, k) in [(0, parts - 1, depth), (parts - 1, 1, e.k - (parts - 1) * depth)]
    {
        let part_operands = |task: usize| {
            let (i, part) = (task / parts_here, from + task % parts_here);
            let (a, b, _) = operands(i);
            let c = partial.ptr().wrapping_add((i * parts + part) * size);
            (a.at(0, part * depth), b.at(part * depth, 0), MatMut::new(c, e.n, 1))
        };
        // SAFETY: the caller's promise; each part has results of its own.
        unsafe {
            let (e, batch) = (Extents { k, ..e }, batch * parts_here);
            products(Route::of(e), batch, e, alpha, part_operands, |_, _, _| false);
        }
    }
    for i in 0..batch {
        let (_, _, c) = operands(i);
        let add = begin(i, c, [0, 0, e.m, e.n]);
        for at in 0..size {
            let sum =
                (0..parts).fold(A::Sum::ZERO, |s, p| s.add(scratch[(i * parts + p) * size + at]));
            // SAFETY: the caller's promise.
            unsafe { store(c.at(at / e.n, at % e.n), sum, add) };
        }
    }
}
