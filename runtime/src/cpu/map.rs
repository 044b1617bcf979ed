//! Elementwise application of a function to up to three broadcast operands.
//!
//! Elements pass through blocks on the stack: a block of every operand is read before a
//! block of the result is written. So the result may take an operand's bytes, and the
//! compiler vectorises the function either way, with the same bits.

use super::nest::Nest;
use super::spread::{Dst, Loop, Src, vectorised};
use crate::kernel::{Operand, Target};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Elements of one block.
const BLOCK: usize = 64;

/// Below this many elements a block costs more than it saves.
const SHORT: usize = 8;

/// `y = f(a)`.
pub(super) fn map1<A: Copy, Y: Copy>(
    a: &Operand,
    y: &Target,
    grain: usize,
    f: impl Fn(A) -> Y + Copy + Sync,
) {
    map(&[a], y, grain, move |a: A, (): (), (): ()| f(a));
}

/// `y = f(a, b)`, broadcast.
pub(super) fn map2<A: Copy, B: Copy, Y: Copy>(
    [a, b]: [&Operand; 2],
    y: &Target,
    grain: usize,
    f: impl Fn(A, B) -> Y + Copy + Sync,
) {
    map(&[a, b], y, grain, move |a: A, b: B, (): ()| f(a, b));
}

/// `y = f(a, b, c)`, broadcast.
pub(super) fn map3<A: Copy, B: Copy, C: Copy, Y: Copy>(
    [a, b, c]: [&Operand; 3],
    y: &Target,
    grain: usize,
    f: impl Fn(A, B, C) -> Y + Copy + Sync,
) {
    map(&[a, b, c], y, grain, f);
}

/// Operands that are not given have type `()`.
fn map<A: Copy, B: Copy, C: Copy, Y: Copy>(
    operands: &[&Operand],
    y: &Target,
    grain: usize,
    f: impl Fn(A, B, C) -> Y + Copy + Sync,
) {
    let mut x = [Src::NONE; 3];
    let mut shapes: [(&[usize], usize); 3] = [(&[], size_of::<()>()); 3];
    for (k, operand) in operands.iter().enumerate() {
        x[k] = Src::of(operand);
        shapes[k] = (&operand.ty().shape, operand.ty().dtype.size() as usize);
    }
    debug_assert_eq!(shapes.map(|s| s.1), [size_of::<A>(), size_of::<B>(), size_of::<C>()]);
    debug_assert_eq!(y.ty().dtype.size() as usize, size_of::<Y>());
    let nest = Nest::broadcast(&y.ty().shape, shapes);
    // SAFETY: the shapes broadcast to the result's by the operator's inference.
    unsafe {
        nest.run(x, Dst::of(y), size_of::<Y>(), grain, &|x, steps, y, n| {
            vectorised(MapRow { x, steps, y, n, f, types: PhantomData });
        });
    }
}

/// One row, valid for `n` elements of `A, B, C → Y`; a step is an element or zero.
struct MapRow<A, B, C, Y, F> {
    x: [*const u8; 3],
    steps: [isize; 3],
    y: *mut u8,
    n: usize,
    f: F,
    types: PhantomData<fn(A, B, C) -> Y>,
}

impl<A: Copy, B: Copy, C: Copy, Y: Copy, F: Fn(A, B, C) -> Y> Loop for MapRow<A, B, C, Y, F> {
    #[inline(always)]
    fn run(self) {
        let MapRow { x, steps, y, n, f, .. } = self;
        let y: *mut Y = y.cast();
        let mut a = Block::<A>::new(x[0], steps[0], n);
        let mut b = Block::<B>::new(x[1], steps[1], n);
        let mut c = Block::<C>::new(x[2], steps[2], n);
        let mut out = [const { MaybeUninit::<Y>::uninit() }; BLOCK];
        let mut i = 0;
        while i + BLOCK <= n {
            // SAFETY: elements i..i + BLOCK are inside the row, and what is read of a
            // block was loaded or filled.
            unsafe {
                a.load(i, BLOCK);
                b.load(i, BLOCK);
                c.load(i, BLOCK);
                for (j, out) in out.iter_mut().enumerate() {
                    out.write(f(a.get(j), b.get(j), c.get(j)));
                }
                y.add(i).copy_from_nonoverlapping(out.as_ptr().cast(), BLOCK);
            }
            i += BLOCK;
        }
        let rest = n - i;
        if rest < SHORT {
            for j in i..n {
                // SAFETY: element `j` of the row, read before it is written; an operand
                // that does not advance stays at its first.
                unsafe { y.add(j).write(f(a.element(j), b.element(j), c.element(j))) };
            }
            return;
        }
        // SAFETY: as above, for the elements that are left.
        unsafe {
            a.load(i, rest);
            b.load(i, rest);
            c.load(i, rest);
            for (j, out) in out[..rest].iter_mut().enumerate() {
                out.write(f(a.get(j), b.get(j), c.get(j)));
            }
            y.add(i).copy_from_nonoverlapping(out.as_ptr().cast(), rest);
        }
    }
}

/// A block of one operand.
struct Block<T> {
    row: *const T,
    varies: bool,
    values: [MaybeUninit<T>; BLOCK],
}

impl<T: Copy> Block<T> {
    /// Of the row at `row`; an operand that does not advance fills the block once.
    #[inline(always)]
    fn new(row: *const u8, step: isize, n: usize) -> Self {
        let row: *const T = row.cast();
        let mut values = [MaybeUninit::uninit(); BLOCK];
        if step == 0 && n >= SHORT {
            // SAFETY: a row has at least one element.
            let value = unsafe { row.read() };
            values[..n.min(BLOCK)].fill(MaybeUninit::new(value));
        }
        Block { row, varies: step != 0, values }
    }

    /// Reads elements `i..i + n`.
    ///
    /// # Safety
    /// The row has them, and a block is not shorter.
    #[inline(always)]
    unsafe fn load(&mut self, i: usize, n: usize) {
        if self.varies {
            // SAFETY: the caller's promise; the block is on the stack.
            unsafe {
                let to = self.values.as_mut_ptr().cast::<T>();
                to.copy_from_nonoverlapping(self.row.add(i), n);
            }
        }
    }

    /// Element `j` of the row.
    ///
    /// # Safety
    /// The row has it.
    #[inline(always)]
    unsafe fn element(&self, j: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.row.add(if self.varies { j } else { 0 }).read() }
    }

    /// Element `j` of the block.
    ///
    /// # Safety
    /// It was loaded or filled.
    #[inline(always)]
    unsafe fn get(&self, j: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.values[j].assume_init() }
    }
}
