//! Elements worked on in blocks: all operands are read before the result is written, so that
//! it may take the bytes of any of them, and a block is a few registers.

use super::number::Float;
use std::hint::black_box;

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

/// What is computed of a block of every operand. A closure does where it is short: one of some size is not
/// inlined, which leaves it the baseline's vectors, and costs a call for every block.
pub(super) trait Formula<T, const K: usize> {
    /// The block of which the first element has the place `at`; what fills operands up does not matter.
    fn block(&self, at: usize, x: [[T; BLOCK]; K]) -> [T; BLOCK];
}

impl<T, F: Fn(usize, [[T; BLOCK]; K]) -> [T; BLOCK], const K: usize> Formula<T, K> for F {
    #[inline(always)]
    fn block(&self, at: usize, x: [[T; BLOCK]; K]) -> [T; BLOCK] {
        self(at, x)
    }
}

/// The number itself, which the compiler takes for any other. `black_box` would send it through memory, where its stores take the
/// places of those that wait for a cache.
#[inline(always)]
pub(super) fn unknown(n: usize) -> usize {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let mut n = n;
        // SAFETY: no instruction at all.
        unsafe {
            std::arch::asm!("/* {0} */", inout(reg) n, options(pure, nomem, nostack, preserves_flags));
        }
        n
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    black_box(n)
}

/// `y[i] = f(x[i])` for `n` elements. Where these are no whole blocks, the last one overlaps the one before it, or, if
/// there is none, is filled up with zeros.
///
/// # Safety
/// The operands are valid for `n` elements of reads, `y` for writes; each operand is equal to
/// `y` or disjoint from it, and nobody else accesses `y`.
#[inline(always)]
pub(super) unsafe fn map<T: Float, const K: usize>(
    x: [*const T; K],
    y: *mut T,
    n: usize,
    f: &impl Formula<T, K>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if n < BLOCK {
            if n > 0 {
                write([y], 0, n, [f.block(0, read(x, 0, n))]);
            }
            return;
        }
        // Before `y` takes the bytes of an operand.
        let end = n - BLOCK;
        let last = read(x, end, BLOCK);
        for at in (0..end).step_by(BLOCK) {
            // Blocks are vectors already: vectors across blocks would gather and scatter.
            let at = unknown(at);
            write([y], at, BLOCK, [f.block(at, read(x, at, BLOCK))]);
        }
        write([y], end, BLOCK, [f.block(end, last)]);
    }
}

/// `K` terms of sums. What holds for [`Formula`] holds here.
pub(super) trait Terms<T, const K: usize> {
    /// Those of element `i`.
    fn of(&self, i: usize) -> [T; K];
}

impl<T, F: Fn(usize) -> [T; K], const K: usize> Terms<T, K> for F {
    #[inline(always)]
    fn of(&self, i: usize) -> [T; K] {
        self(i)
    }
}

/// The sums of terms of `n` elements, each in interleaved lanes.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "with iterators gradients of parameters take 1.7 times as long"
)]
pub(super) fn sums<T: Float, const K: usize>(n: usize, terms: &impl Terms<T, K>) -> [T; K] {
    let mut lanes = [[T::ZERO; BLOCK]; K];
    let whole = n / BLOCK * BLOCK;
    for at in (0..whole).step_by(BLOCK) {
        // First the terms, then their sums: the compiler makes vectors of one loop at a time.
        let mut block = [[T::ZERO; BLOCK]; K];
        for lane in 0..BLOCK {
            let terms = terms.of(at + lane);
            for k in 0..K {
                block[k][lane] = terms[k];
            }
        }
        for k in 0..K {
            for lane in 0..BLOCK {
                lanes[k][lane] = lanes[k][lane].add(block[k][lane]);
            }
        }
    }
    // An index that is computed would keep the lanes in memory: it is one of a copy, which the compiler cannot tell
    // to be one.
    let mut rest = lanes;
    let all = black_box(&mut rest);
    for at in whole..n {
        for (lanes, term) in all.iter_mut().zip(terms.of(at)) {
            lanes[at - whole] = lanes[at - whole].add(term);
        }
    }
    rest.map(fold)
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
