//! `Pointwise`: straight-line arithmetic on a block of elements at a time.
//!
//! All steps of a block are computed before any of its results is written, so that a
//! result may take the bytes of any operand of its shape. Every step rounds once, as the
//! operator does that it stands for.

use super::address::{Dst, Src};
use super::dispatch::for_float;
use super::number::{Float, Number};
use super::update::{Region, Update};
use super::wide::wide;
use arenic_ir::DType;
use arenic_ir::op::{Binary, MAX_OPERANDS, MAX_STEPS, Step, Unary};
use std::mem::MaybeUninit;

/// Elements of one block.
const BLOCK: usize = 64;

/// Elements computed at a time in a block at the end of a row.
const SHORT: usize = 8;

/// A source of a step.
#[derive(Clone, Copy)]
enum Source<T> {
    /// An operand of the result's shape.
    Tensor(Src),
    /// The gradient, which comes as tiles.
    Tile,
    /// An operand of one element.
    Scalar(T),
}

/// A program with the addresses of its operands and results.
struct Program<'a, T> {
    steps: &'a [Step],
    x: [Source<T>; MAX_OPERANDS],
    operands: usize,
    /// Results: which source, and where it goes.
    y: [Option<(usize, Dst)>; MAX_OPERANDS],
}

/// Runs the steps in the regions of the update.
pub(super) fn run(steps: &[Step], results: &[usize], call: &Update) {
    for_float!(call.inputs[0].ty().dtype, T => typed::<T>(steps, results, call));
}

fn typed<T: Float>(steps: &[Step], results: &[usize], call: &Update) {
    let mut program = Program {
        steps,
        x: [Source::<T>::Tile; MAX_OPERANDS],
        operands: call.inputs.len(),
        y: [None; MAX_OPERANDS],
    };
    for (i, (to, operand)) in program.x.iter_mut().zip(call.inputs).enumerate() {
        if call.tiled == Some(i) {
            continue;
        }
        *to = match operand.ty().elements() {
            // SAFETY: the operand's only element.
            1 => Source::Scalar(unsafe { operand.ptr::<T>().read() }),
            _ => Source::Tensor(Src::of(operand)),
        };
    }
    for ((to, &result), output) in program.y.iter_mut().zip(results).zip(call.outputs) {
        *to = output.as_ref().map(|y| (result, Dst::of(y)));
    }
    // SAFETY: operands and results as `infer` checked them; a task's region is its own.
    (call.drive)(&|region, tile| unsafe { rows(&program, region, tile.unwrap_or(Src::NONE)) });
}

wide! {
    /// Runs all steps on a region.
    ///
    /// # Safety
    /// The region lies in operands and results, nobody else accesses its results, and the
    /// gradient's rows lie at `tile` where a source is one.
    unsafe fn rows<T: Float>(p: &Program<T>, region: Region, tile: Src) {
        let mut blocks = [[const { MaybeUninit::<T>::uninit() }; BLOCK]; MAX_OPERANDS + MAX_STEPS];
        for (block, x) in blocks.iter_mut().zip(&p.x[..p.operands]) {
            if let Source::Scalar(x) = *x {
                block.fill(MaybeUninit::new(x));
            }
        }
        for row in 0..region.rows {
            let (first, in_tile) = (region.first + row * region.stride, row * region.cols);
            for at in (0..region.cols).step_by(BLOCK) {
                let n = BLOCK.min(region.cols - at);
                let base: *mut [MaybeUninit<T>; BLOCK] = blocks.as_mut_ptr();
                // SAFETY: sources are in bounds by inference, elements by the caller's
                // promise; a block of a source is filled before it is read.
                unsafe {
                    let source = |s: usize| -> *const T {
                        match p.x.get(s).filter(|_| s < p.operands) {
                            Some(Source::Tensor(x)) => x.0.cast::<T>().add(first + at),
                            Some(Source::Tile) => tile.0.cast::<T>().add(in_tile + at),
                            Some(Source::Scalar(_)) | None => base.add(s).cast(),
                        }
                    };
                    for (i, step) in p.steps.iter().enumerate() {
                        let to: *mut T = base.add(p.operands + i).cast();
                        match *step {
                            Step::Unary(f, x) => unary(f, source(x), to, n),
                            Step::Binary(Binary::Pow, a, b) => {
                                let exponent = match p.x.get(b).filter(|_| b < p.operands) {
                                    Some(Source::Scalar(x)) => Some(x.to_f64()),
                                    _ => None,
                                };
                                power(exponent, source(a), source(b), to, n);
                            }
                            Step::Binary(f, a, b) => binary(f, source(a), source(b), to, n),
                        }
                    }
                    for &(s, y) in p.y.iter().flatten() {
                        y.0.cast::<T>().add(first + at).copy_from_nonoverlapping(source(s), n);
                    }
                }
            }
        }
    }
}

/// `y = f(x)` for `n` elements.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
unsafe fn unary<T: Float>(f: Unary, x: *const T, y: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match f {
            Unary::Neg => each(x, x, y, n, |x, _| x.neg()),
            Unary::Reciprocal => each(x, x, y, n, |x, _| T::ONE.div(x)),
            Unary::Sqrt => each(x, x, y, n, |x, _| x.sqrt()),
            other => unreachable!("infer refuses {other:?}"),
        }
    }
}

/// `y = f(a, b)` for `n` elements.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
unsafe fn binary<T: Float>(f: Binary, a: *const T, b: *const T, y: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match f {
            Binary::Add => each(a, b, y, n, T::add),
            Binary::Div => each(a, b, y, n, T::div),
            Binary::Max => each(a, b, y, n, T::larger),
            Binary::Min => each(a, b, y, n, T::smaller),
            Binary::Mul => each(a, b, y, n, T::mul),
            Binary::Sub => each(a, b, y, n, T::sub),
            other => unreachable!("infer refuses {other:?}"),
        }
    }
}

/// Powers, as the operator computes them: squares and cubes by multiplication.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
unsafe fn power<T: Float>(exponent: Option<f64>, a: *const T, b: *const T, y: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match exponent {
            Some(2.0) => each(a, a, y, n, |x, _| x.mul(x)),
            Some(3.0) => each(a, a, y, n, |x, _| x.mul(x).mul(x)),
            _ => each(a, b, y, n, T::power),
        }
    }
}

/// `y = f(a, b)` for `n` elements, at most a block.
///
/// # Safety
/// `a` and `b` are valid for `n` elements of reads, `y` for as many writes; `y` is a block
/// of its own.
#[inline(always)]
unsafe fn each<T: Number>(
    a: *const T,
    b: *const T,
    y: *mut T,
    n: usize,
    f: impl Fn(T, T) -> T + Copy,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if n == BLOCK {
            return array::<T, BLOCK>(a, b, y, f);
        }
        let whole = n / SHORT * SHORT;
        for i in (0..whole).step_by(SHORT) {
            array::<T, SHORT>(a.add(i), b.add(i), y.add(i), f);
        }
        for i in whole..n {
            y.add(i).write(f(a.add(i).read(), b.add(i).read()));
        }
    }
}

/// `y = f(a, b)` for `N` elements.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
unsafe fn array<T: Number, const N: usize>(
    a: *const T,
    b: *const T,
    y: *mut T,
    f: impl Fn(T, T) -> T,
) {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (a.cast::<[T; N]>().read(), b.cast::<[T; N]>().read()) };
    let mut to = [T::ZERO; N];
    for i in 0..N {
        to[i] = f(a[i], b[i]);
    }
    // SAFETY: the caller's promise.
    unsafe { y.cast::<[T; N]>().write(to) };
}
