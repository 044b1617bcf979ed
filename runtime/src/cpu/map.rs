//! Elementwise application of a function to up to three broadcast operands.
//!
//! Elements pass through blocks on the stack: a block of every operand is read before a
//! block of the result is written. So the result may take an operand's bytes, and the
//! compiler vectorises the function either way, with the same bits.

use super::address::{Dst, Src};
use super::nest::{EvenRows, Nest};
use super::wide::wide;
use crate::kernel::{Destination, Element, Operand};
use std::mem::MaybeUninit;

/// Elements of one block.
const BLOCK: usize = 64;

/// Elements of a block at the end of a row or in a short one.
const SHORT: usize = 8;

/// `y = f(a)`.
pub(super) fn map1<A: Element, Y: Element>(
    a: &Operand,
    y: &Destination,
    grain: usize,
    f: impl Fn(A) -> Y + Copy + Sync,
) {
    map(&[a], y, grain, move |a: A, (): (), (): ()| f(a));
}

/// `y = f(a, b)`, broadcast.
pub(super) fn map2<A: Element, B: Element, Y: Element>(
    [a, b]: [&Operand; 2],
    y: &Destination,
    grain: usize,
    f: impl Fn(A, B) -> Y + Copy + Sync,
) {
    map(&[a, b], y, grain, move |a: A, b: B, (): ()| f(a, b));
}

/// `y = f(a, b, c)`, broadcast.
pub(super) fn map3<A: Element, B: Element, C: Element, Y: Element>(
    [a, b, c]: [&Operand; 3],
    y: &Destination,
    grain: usize,
    f: impl Fn(A, B, C) -> Y + Copy + Sync,
) {
    map(&[a, b, c], y, grain, f);
}

/// Operands that are not given have type `()`.
fn map<A: Cell, B: Cell, C: Cell, Y: Cell>(
    operands: &[&Operand],
    y: &Destination,
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
        nest.run(x, Dst::of(y), size_of::<Y>(), grain, &|rows| {
            map_rows::<A, B, C, Y, _>(rows, &f);
        });
    }
}

/// An element, or none of an operand that is not there.
trait Cell: Copy {
    const IS_FLOAT: bool;
}

impl<T: Element> Cell for T {
    const IS_FLOAT: bool = <T as Element>::IS_FLOAT;
}

impl Cell for () {
    const IS_FLOAT: bool = false;
}

/// Of what is seldom there is less code: without wide vectors, and in short blocks alone.
const fn has_floats<A: Cell, B: Cell, C: Cell, Y: Cell>() -> bool {
    A::IS_FLOAT || B::IS_FLOAT || C::IS_FLOAT || Y::IS_FLOAT
}

wide! {
    /// Applies `f` to every element; a step is an element or zero.
    ///
    /// # Safety
    /// The rows are valid for elements of these types.
    unsafe fn map_rows<A: Cell, B: Cell, C: Cell, Y: Cell, F: Fn(A, B, C) -> Y>(
        rows: EvenRows<3>,
        f: &F,
    ) where has_floats::<A, B, C, Y>(); {
        let n = rows.n;
        for r in 0..rows.rows { let (x, y) = rows.row(r, size_of::<Y>());
            let y: *mut Y = y.cast();
            let mut a = Block::<A>::new(x[0], rows.steps[0]);
            let mut b = Block::<B>::new(x[1], rows.steps[1]);
            let mut c = Block::<C>::new(x[2], rows.steps[2]);
            let mut i = 0;
            // SAFETY: elements of the row, of an operand that does not advance its first;
            // what is read of a block was loaded or filled.
            unsafe {
                if const { has_floats::<A, B, C, Y>() } && n >= BLOCK {
                    a.fill::<BLOCK>();
                    b.fill::<BLOCK>();
                    c.fill::<BLOCK>();
                    while i + BLOCK <= n {
                        block::<A, B, C, Y, F, BLOCK>((&mut a, &mut b, &mut c), y, i, f);
                        i += BLOCK;
                    }
                } else if n >= SHORT {
                    a.fill::<SHORT>();
                    b.fill::<SHORT>();
                    c.fill::<SHORT>();
                }
                while i + SHORT <= n {
                    block::<A, B, C, Y, F, SHORT>((&mut a, &mut b, &mut c), y, i, f);
                    i += SHORT;
                }
                for j in i..n {
                    y.add(j).write(f(a.element(j), b.element(j), c.element(j)));
                }
            }
        }
    }
}

/// Elements `i..i + N` of a row.
///
/// # Safety
/// The row has them; blocks of operands that do not advance are filled.
#[inline(always)]
unsafe fn block<A: Copy, B: Copy, C: Copy, Y, F: Fn(A, B, C) -> Y, const N: usize>(
    (a, b, c): (&mut Block<A>, &mut Block<B>, &mut Block<C>),
    y: *mut Y,
    i: usize,
    f: &F,
) {
    let mut out = [const { MaybeUninit::<Y>::uninit() }; N];
    // SAFETY: the caller's promise.
    unsafe {
        a.load::<N>(i);
        b.load::<N>(i);
        c.load::<N>(i);
        for (j, out) in out.iter_mut().enumerate() {
            out.write(f(a.get(j), b.get(j), c.get(j)));
        }
        y.add(i).copy_from_nonoverlapping(out.as_ptr().cast(), N);
    }
}

/// A block of one operand.
struct Block<T> {
    row: *const T,
    varies: bool,
    values: [MaybeUninit<T>; BLOCK],
}

impl<T: Copy> Block<T> {
    /// Of the row at `row`.
    #[inline(always)]
    fn new(row: *const u8, step: isize) -> Self {
        Block { row: row.cast(), varies: step != 0, values: [MaybeUninit::uninit(); BLOCK] }
    }

    /// Fills `N` elements of the block of an operand that does not advance.
    ///
    /// # Safety
    /// The row has an element.
    #[inline(always)]
    unsafe fn fill<const N: usize>(&mut self) {
        if !self.varies {
            // SAFETY: the caller's promise.
            let value = unsafe { self.row.read() };
            self.values[..N].fill(MaybeUninit::new(value));
        }
    }

    /// Reads elements `i..i + N`.
    ///
    /// # Safety
    /// The row has them, and a block is not shorter.
    #[inline(always)]
    unsafe fn load<const N: usize>(&mut self, i: usize) {
        if self.varies {
            // SAFETY: the caller's promise; the block is on the stack.
            unsafe {
                let to = self.values.as_mut_ptr().cast::<T>();
                to.copy_from_nonoverlapping(self.row.add(i), N);
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
