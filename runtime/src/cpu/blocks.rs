//! Elements worked on in blocks: all operands are read before the result is written, so that
//! it may take the bytes of any of them, and a block is a few registers.

use super::number::Float;

/// Elements of a block.
pub(super) const BLOCK: usize = 16;

/// A block of `x` from `at` on, filled up with zeros.
#[inline(always)]
pub(super) fn block<T: Float>(x: &[T], at: usize) -> [T; BLOCK] {
    let x = &x[at..];
    match x.first_chunk() {
        Some(block) => *block,
        None => {
            let mut block = [T::ZERO; BLOCK];
            block[..x.len()].copy_from_slice(x);
            block
        }
    }
}

/// Of every operand the block of `count` elements from `at` on, filled up with zeros.
///
/// # Safety
/// The operands are valid for these elements.
#[inline(always)]
pub(super) unsafe fn read<T: Float, const K: usize>(
    x: [*const T; K],
    at: usize,
    count: usize,
) -> [[T; BLOCK]; K] {
    let mut blocks = [[T::ZERO; BLOCK]; K];
    for k in 0..K {
        // SAFETY: the caller's promise.
        unsafe {
            match count {
                BLOCK => blocks[k] = x[k].add(at).cast::<[T; BLOCK]>().read(),
                _ => blocks[k].as_mut_ptr().copy_from_nonoverlapping(x[k].add(at), count),
            }
        }
    }
    blocks
}

/// Writes the first `count` elements of every block from `at` on.
///
/// # Safety
/// The results are valid for these elements, and nobody else accesses them.
#[inline(always)]
pub(super) unsafe fn write<T: Float, const K: usize>(
    y: [*mut T; K],
    at: usize,
    count: usize,
    blocks: [[T; BLOCK]; K],
) {
    for k in 0..K {
        // SAFETY: the caller's promise.
        unsafe {
            match count {
                BLOCK => y[k].add(at).cast::<[T; BLOCK]>().write(blocks[k]),
                _ => y[k].add(at).copy_from_nonoverlapping(blocks[k].as_ptr(), count),
            }
        }
    }
}

/// `y[i] = f(x[i])` for `n` elements: `f` gets the place of a block's first element and the
/// block of every operand, filled up with zeros.
///
/// # Safety
/// The operands are valid for `n` elements of reads, `y` for writes; each operand is equal to
/// `y` or disjoint from it, and nobody else accesses `y`.
#[inline(always)]
pub(super) unsafe fn map<T: Float, const K: usize>(
    x: [*const T; K],
    y: *mut T,
    n: usize,
    mut f: impl FnMut(usize, [[T; BLOCK]; K]) -> [T; BLOCK],
) {
    for at in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - at);
        // SAFETY: the caller's promise.
        let block = f(at, unsafe { read(x, at, count) });
        // SAFETY: as above.
        unsafe { write([y], at, count, [block]) };
    }
}

/// The sums of `terms(i)` over `i` below `n`, each in interleaved lanes.
#[inline(always)]
pub(super) fn sums<T: Float, const K: usize>(n: usize, terms: impl Fn(usize) -> [T; K]) -> [T; K] {
    let mut lanes = [[T::ZERO; BLOCK]; K];
    let whole = n / BLOCK * BLOCK;
    for at in (0..whole).step_by(BLOCK) {
        for lane in 0..BLOCK {
            for (lanes, term) in lanes.iter_mut().zip(terms(at + lane)) {
                lanes[lane] = lanes[lane].add(term);
            }
        }
    }
    for at in whole..n {
        for (lanes, term) in lanes.iter_mut().zip(terms(at)) {
            lanes[at - whole] = lanes[at - whole].add(term);
        }
    }
    lanes.map(fold)
}

/// The sum of lanes.
#[inline(always)]
pub(super) fn fold<T: Float>(mut lanes: [T; BLOCK]) -> T {
    let mut width = BLOCK;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = lanes[i].add(lanes[i + width]);
        }
    }
    lanes[0]
}
