//! Matrix products of any strides: tiles of the result run in parallel, each as one call
//! of a library's kernel or, where packing would dominate, as a plain loop.
//!
//! Every tile sums over the whole inner extent in one fixed order, so that results do not depend on how
//! many tiles there are, and so not on the number of threads.

use super::address::Shared;
use super::factor::Factor;
use super::number::Number;
use super::tasks::{Queue, for_each, for_each_in_order};
use super::tiles::{Part, Tiles};
use super::wide::wide;
use arenic_backends::cpu::sums::{PLAIN_ROWS, Route};
use arenic_ir::op::Extents;
use std::ops::Range;

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
    let dense = || operands(0).0.cols == 1;
    in_tiles(batch, e, dense, |i, Part { row, col, rows, cols }| {
        let (a, b, c) = operands(i);
        let c = c.at(row, col);
        let add = begin(i, c, [row, col, rows, cols]);
        let part = Extents { m: rows, k: e.k, n: cols };
        // SAFETY: the caller's promise; tiles are disjoint.
        unsafe { one(route, part, alpha, (a.at(row, 0), b.at(0, col)), add, c) };
    });
}

/// Gives the tiles of a batch of results, and whose they are, to `compute`. `dense` says if the rows of the first
/// factors are.
fn in_tiles(
    batch: usize,
    e: Extents,
    dense: impl Fn() -> bool,
    compute: impl Fn(usize, Part) + Sync,
) {
    if batch == 0 || e.m == 0 || e.n == 0 {
        return;
    }
    let tiles = Tiles::new(batch, e, dense());
    // A multiplication costs about a sixteenth of an element's trip through memory.
    let work = batch * (e.multiplications() / 16 + e.m * e.n);
    let compute = |task| {
        if let Some((i, part)) = tiles.get(task) {
            compute(i, part);
        }
    };
    if tiles.come_in_pieces() {
        for_each_in_order(tiles.len(), work, compute);
    } else {
        for_each(tiles.len(), work, compute);
    }
}

/// Computes a batch of sums of products, each product added to those before it. `of(i)` says which terms
/// the result `i` has; `term(i, t)` gives `a`, `b` and the inner extent of one, at most `e.k`.
///
/// # Safety
/// As for [`products`]; each result has a term.
pub(super) unsafe fn sums_of_products<A: Factor>(
    batch: usize,
    e: Extents,
    alpha: A::Sum,
    of: impl Fn(usize) -> Range<usize> + Sync,
    term: impl Fn(usize, usize) -> (Mat<A>, Mat<A>, usize) + Sync,
    result: impl Fn(usize) -> MatMut<A::Sum> + Sync,
) {
    let whole = Extents { k: e.k * of(0).len(), ..e };
    let dense = || term(0, of(0).start).0.cols == 1;
    in_tiles(batch, whole, dense, |i, Part { row, col, rows, cols }| {
        let c = result(i).at(row, col);
        for t in of(i) {
            let (a, b, k) = term(i, t);
            let (a, b) = (a.at(row, 0), b.at(0, col));
            let (part, add) = (Extents { m: rows, k, n: cols }, t > of(i).start);
            // SAFETY: the caller's promise; tiles are disjoint.
            unsafe { one(Route::of(e), part, alpha, (a, b), add, c) };
        }
    });
}

/// As [`sums_of_products`], of `count`: so many results of so many terms each, cut into `parts` that go at
/// once. Each part has partial results of its own in `scratch`, which are then summed in order. `begin(i)` gives
/// the result `i`, which it may fill, and whether the sum is added to it.
///
/// # Safety
/// As for [`sums_of_products`]; `scratch` holds `m · n` elements for each part of each result.
pub(super) unsafe fn sums_of_products_in_parts<A: Factor>(
    parts: usize,
    count: [usize; 2],
    (e, alpha): (Extents, A::Sum),
    scratch: &mut [A::Sum],
    term: impl Fn(usize, usize) -> (Mat<A>, Mat<A>, usize) + Sync,
    begin: impl Fn(usize) -> (MatMut<A::Sum>, bool),
) {
    let ([batch, terms], size) = (count, e.m * e.n);
    assert!(scratch.len() >= batch * parts * size && terms >= parts);
    let partial = Shared::new(scratch.as_mut_ptr());
    let of = |i: usize| i % parts * terms / parts..(i % parts + 1) * terms / parts;
    let c = |i: usize| MatMut::new(partial.ptr().wrapping_add(i * size), e.n, 1);
    // SAFETY: the caller's promise; each part has results of its own.
    unsafe {
        sums_of_products(batch * parts, e, alpha, of, |i, t| term(i / parts, t), c);
        for i in 0..batch {
            let (c, add) = begin(i);
            add_parts(&scratch[i * parts * size..][..parts * size], c, e, add);
        }
    }
}

/// Sums partial results in order, each of all elements of a result, and writes or adds the sums.
///
/// # Safety
/// The result may be written.
unsafe fn add_parts<T: Number>(partial: &[T], c: MatMut<T>, e: Extents, add: bool) {
    let size = e.m * e.n;
    for at in 0..size {
        let sum = partial[at..].iter().step_by(size).fold(T::ZERO, |s, &p| s.add(p));
        // SAFETY: the caller's promise.
        unsafe { store(c.at(at / e.n, at % e.n), sum, add) };
    }
}

/// Computes one product part by part and gives every part to `consume`, dense and row by
/// row. So many `lanes` each own `size` elements of `scratch` and take the next part until none is left.
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
    let tiles = Tiles::of_at_most(size, e, a.cols == 1);
    assert!(tiles.elements() <= size);
    let (tasks, work) = (Queue::new(tiles.len()), e.multiplications() / 16 + e.m * e.n);
    for_each(lanes, work, |lane| {
        let room = scratch.ptr().wrapping_add(lane * size);
        for (_, part) in tasks.rest().filter_map(|task| tiles.get(task)) {
            let c = MatMut::new(room, part.cols, 1);
            // SAFETY: the caller's promise; the room is this lane's.
            unsafe {
                let operands = (a.at(part.row, 0), b.at(0, part.col));
                let of_part = Extents { m: part.rows, k: e.k, n: part.cols };
                one(Route::of(e), of_part, alpha, operands, false, c);
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
    let depth = e.k / parts;
    let term = |i: usize, part: usize| {
        let (a, b, _) = operands(i);
        // The last part also takes what is left over.
        let k = if part + 1 == parts { e.k - part * depth } else { depth };
        (a.at(0, part * depth), b.at(part * depth, 0), k)
    };
    let begin = |i: usize| {
        let (_, _, c) = operands(i);
        (c, begin(i, c, [0, 0, e.m, e.n]))
    };
    let of_part = (Extents { k: depth, ..e }, alpha);
    // SAFETY: the caller's promise.
    unsafe { sums_of_products_in_parts(parts, [batch, parts], of_part, scratch, term, begin) };
}
