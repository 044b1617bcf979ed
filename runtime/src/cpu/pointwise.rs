//! `Pointwise`: straight-line arithmetic on a block of elements at a time, as an operator and as part
//! of others.
//!
//! All steps of a block are computed before any of its results is written, so that a
//! result may take the bytes of any operand of its shape. Every step rounds once, as the
//! operator does that it stands for. Within a block conditions are numbers, 1 or 0.

use super::address::{Dst, Src, ask_for};
use super::dispatch::for_float;
use super::nest::{EvenRows, Nest};
use super::number::Float;
use super::region::{Region, Update};
use super::scalar::{self, condition};
use super::tasks::{CHEAP, DEAR};
use super::terms::{Room, Terms};
use super::wide::wide;
use crate::kernel::{Call, Destination, Operand};
use arenic_ir::DType;
use arenic_ir::op::{Binary, MAX_OPERANDS, MAX_STEPS, Step};
use arenic_ir::types::bf16;
use std::mem::MaybeUninit;

/// Elements of one block.
const BLOCK: usize = 256;

/// A program with its results.
#[derive(Clone, Copy)]
struct Program<'a> {
    steps: &'a [Step],
    kinds: [Stored; MAX_OPERANDS],
    operands: usize,
    /// The value of each operand of one element.
    scalars: [Option<f64>; MAX_OPERANDS],
    /// Results, before all that are none: which source, how it is stored, and where.
    y: [Option<(usize, Stored, Dst)>; MAX_OPERANDS],
}

/// How what a source holds is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// As numbers of the program's type.
    Number,
    /// As `bf16`, by programs of `f32`.
    Bf16,
    /// As `bool`.
    Condition,
}

impl Stored {
    fn of(d: DType) -> Stored {
        match d {
            DType::Bf16 => Stored::Bf16,
            DType::Bool => Stored::Condition,
            _ => Stored::Number,
        }
    }

    fn size<T>(self) -> usize {
        match self {
            Stored::Number => size_of::<T>(),
            Stored::Bf16 => 2,
            Stored::Condition => 1,
        }
    }
}

/// Rows of elements: where operands and results have them.
struct Span {
    /// The first element of every operand, and how far it is to the next one and to the next row,
    /// in bytes.
    x: [*const u8; MAX_OPERANDS],
    steps: [isize; MAX_OPERANDS],
    row_steps: [isize; MAX_OPERANDS],
    /// The first element of the results, and how far it is to the next row, in elements.
    first: usize,
    stride: usize,
    rows: usize,
    cols: usize,
}

/// Runs the steps on operands that broadcast.
pub(super) fn run(steps: &[Step], results: &[usize], call: &Call) {
    let Some(y) = call.outputs.iter().flatten().next() else { return };
    let size = y.ty().dtype.size() as usize;
    let mut x = [Src::NONE; MAX_OPERANDS];
    let mut shapes: [(&[usize], usize); MAX_OPERANDS] = [(&[], 0); MAX_OPERANDS];
    for (k, operand) in call.inputs.iter().enumerate() {
        x[k] = Src::of(operand);
        shapes[k] = (&operand.ty().shape, operand.ty().dtype.size() as usize);
    }
    let nest = Nest::broadcast(&y.ty().shape, shapes);
    let grain = if steps.iter().any(Step::is_dear) { DEAR } else { CHEAP / 2 };
    let (y, begin) = (Dst::of(y), Dst::of(y).0 as usize);
    for_float!(float_type(call.inputs), T => {
        let program = Program::new::<T>(steps, results, call.inputs, call.outputs, None);
        let kernel = |r: EvenRows<MAX_OPERANDS>| {
            let EvenRows { x, steps, row_steps, .. } = r;
            let first = (r.y as usize - begin) / size;
            let span = Span { x, steps, row_steps, first, stride: r.n, rows: r.rows, cols: r.n };
            // SAFETY: rows of operands and results as `infer` checked them, a task's own.
            unsafe { rows::<T>(&program, &span) };
        };
        // SAFETY: the shapes broadcast to the result's by the operator's inference.
        unsafe { nest.run(x, y, size, grain, &kernel) };
    });
}

/// Runs the steps in the regions of an update whose gradient comes as tiles.
pub(super) fn run_tiled(steps: &[Step], results: &[usize], call: &Update) {
    for_float!(float_type(call.inputs), T => {
        let (inputs, gradient) = (call.inputs, call.tiled);
        let program = Program::new::<T>(steps, results, inputs, call.outputs, gradient);
        (call.drive)(&|region: Region, tile| {
            let mut span = Span {
                x: [Src::NONE.0; MAX_OPERANDS],
                steps: [0; MAX_OPERANDS],
                row_steps: [0; MAX_OPERANDS],
                first: region.first,
                stride: region.stride,
                rows: region.rows,
                cols: region.cols,
            };
            for (k, operand) in inputs.iter().enumerate() {
                let tiled = gradient == Some(k);
                let size = program.kinds[k].size::<T>();
                if !tiled && operand.ty().elements() == 1 {
                    span.x[k] = Src::of(operand).0;
                    continue;
                }
                let (from, stride) = match tiled {
                    true => (tile.unwrap_or(Src::NONE).0, region.cols),
                    false => {
                        let bytes = region.first * size;
                        (Src::of(operand).0.wrapping_add(bytes), region.stride)
                    }
                };
                span.x[k] = from;
                (span.steps[k], span.row_steps[k]) = (size as isize, (stride * size) as isize);
            }
            // SAFETY: as above; the tile has the region's elements.
            unsafe { rows::<T>(&program, &span) };
        });
    });
}

/// What the last step computes, an element for each of the operands that have more than one.
pub(super) struct Computed<'a> {
    program: Program<'a>,
    elements: usize,
    x: [Src; MAX_OPERANDS],
    /// How far it is from one element of each operand to the next, in bytes.
    steps: [isize; MAX_OPERANDS],
}

impl<'a> Computed<'a> {
    pub(super) fn new<T: Float>(steps: &'a [Step], elements: usize, inputs: &[Operand]) -> Self {
        Computed::with_tiled::<T>(steps, elements, inputs, None)
    }

    /// The same where one operand's own bytes are never read.
    fn with_tiled<T: Float>(
        steps: &'a [Step],
        elements: usize,
        inputs: &[Operand],
        tiled: Option<usize>,
    ) -> Self {
        let program = Program::new::<T>(steps, &[], inputs, &[], tiled);
        let mut computed =
            Computed { program, elements, x: [Src::NONE; MAX_OPERANDS], steps: [0; MAX_OPERANDS] };
        for (k, operand) in inputs.iter().enumerate() {
            computed.x[k] = Src::of(operand);
            if operand.ty().elements() > 1 {
                computed.steps[k] = operand.ty().dtype.size() as isize;
            }
        }
        computed
    }

    /// The last source.
    fn last(&self) -> usize {
        self.program.operands + self.program.steps.len() - 1
    }

    /// So many elements from one on, whose results begin at `first`.
    fn span(&self, at: usize, len: usize, first: usize) -> Span {
        let x = |k: usize| self.x[k].0.wrapping_offset(at as isize * self.steps[k]);
        Span {
            x: std::array::from_fn(x),
            steps: self.steps,
            row_steps: [0; MAX_OPERANDS],
            first,
            stride: len,
            rows: 1,
            cols: len,
        }
    }
}

impl<T: Float> Terms<T> for Computed<'_> {
    fn len(&self) -> usize {
        self.elements
    }

    fn run<'b>(&'b self, at: usize, len: usize, room: &'b mut Room<T>) -> &'b [T] {
        assert!(len <= room.len() && at + len <= self.elements);
        let mut program = self.program;
        program.y[0] = Some((self.last(), Stored::Number, Dst(room.as_mut_ptr().cast())));
        // SAFETY: dense operands with so many elements (`infer`), or one that all read; the room
        // is this call's and has been written as far as it is read.
        unsafe {
            rows::<T>(&program, &self.span(at, len, 0));
            std::slice::from_raw_parts(room.as_ptr().cast(), len)
        }
    }
}

/// Steps whose first operand another kernel makes, some elements at a time, and whose last one is
/// a result, or several.
pub(super) struct Following<'a>(Computed<'a>);

impl<'a> Following<'a> {
    /// The first operand is one of the type of what is made. None without a result.
    pub(super) fn new<T: Float>(
        steps: &'a [Step],
        inputs: &[Operand],
        results: [Option<&Destination>; 2],
    ) -> Option<Following<'a>> {
        let elements = results.iter().flatten().next()?.ty().elements();
        let mut computed = Computed::with_tiled::<T>(steps, elements, inputs, Some(0));
        let last = computed.last();
        for (to, y) in computed.program.y.iter_mut().zip(results.into_iter().flatten()) {
            *to = Some((last, Stored::of(y.ty().dtype), Dst::of(y)));
        }
        computed.steps[0] = size_of::<T>() as isize;
        Some(Following(computed))
    }

    /// Runs the steps on what was made for the elements from `at` on.
    ///
    /// # Safety
    /// Nobody else accesses these elements of the result, nor writes those of an operand.
    pub(super) unsafe fn run<T: Float>(&self, made: &[T], at: usize) {
        assert!(at + made.len() <= self.0.elements);
        let mut span = self.0.span(at, made.len(), at);
        span.x[0] = made.as_ptr().cast();
        // SAFETY: dense operands with so many elements (`infer`), or one that all read; else the
        // caller's promise.
        unsafe { rows::<T>(&self.0.program, &span) };
    }
}

/// The program's one type of floats.
pub(super) fn float_type(x: &[Operand]) -> DType {
    x.iter().map(|x| x.ty().dtype.accumulated()).find(|d| d.is_float()).unwrap_or(DType::F32)
}

impl<'a> Program<'a> {
    /// The operand `tiled` comes as tiles: its own bytes are never read.
    fn new<T: Float>(
        steps: &'a [Step],
        results: &[usize],
        inputs: &[Operand],
        outputs: &[Option<Destination>],
        tiled: Option<usize>,
    ) -> Self {
        let mut program = Program {
            steps,
            kinds: [Stored::Number; MAX_OPERANDS],
            operands: inputs.len(),
            scalars: [None; MAX_OPERANDS],
            y: [None; MAX_OPERANDS],
        };
        for (k, operand) in inputs.iter().enumerate() {
            let stored = Stored::of(operand.ty().dtype);
            program.kinds[k] = stored;
            let is_number = stored != Stored::Condition && tiled != Some(k);
            if is_number && operand.ty().elements() == 1 {
                // SAFETY: the operand's only element.
                let value: T = unsafe { number(Src::of(operand).0, stored) };
                program.scalars[k] = Some(value.to_f64());
            }
        }
        let made = results.iter().zip(outputs).filter_map(|(&s, y)| Some((s, y.as_ref()?)));
        for (to, (source, y)) in program.y.iter_mut().zip(made) {
            *to = Some((source, Stored::of(y.ty().dtype), Dst::of(y)));
        }
        program
    }
}

/// A block of every source. A vector of any width lies within a cache line.
#[repr(align(64))]
struct Blocks<T>([[MaybeUninit<T>; BLOCK]; MAX_OPERANDS + MAX_STEPS]);

wide! {
    /// Runs all steps on rows of elements.
    ///
    /// # Safety
    /// The rows lie in operands and results, and nobody else accesses these results.
    unsafe fn rows<T: Float>(p: &Program, span: &Span) {
        let mut blocks = Blocks([[const { MaybeUninit::uninit() }; BLOCK]; MAX_OPERANDS + MAX_STEPS]);
        // Source `s` of a block is at `at[s]`.
        let mut at = [std::ptr::null::<T>(); MAX_OPERANDS + MAX_STEPS];
        let sources = p.operands + p.steps.len();
        for (at, block) in at[..sources].iter_mut().zip(&blocks.0) {
            *at = block.as_ptr().cast();
        }
        let base: *mut [MaybeUninit<T>; BLOCK] = blocks.0.as_mut_ptr();
        for row in 0..span.rows {
            let x: [*const u8; MAX_OPERANDS] = std::array::from_fn(|k| {
                span.x[k].wrapping_offset(row as isize * span.row_steps[k])
            });
            for k in (0..p.operands).filter(|&k| span.steps[k] == 0) {
                if row == 0 || span.row_steps[k] != 0 {
                    // SAFETY: a row has an element; the block is on the stack.
                    unsafe {
                        let value = number(x[k], p.kinds[k]);
                        let to: *mut T = base.add(k).cast();
                        std::slice::from_raw_parts_mut(to, BLOCK.min(span.cols)).fill(value);
                    }
                }
            }
            for col in (0..span.cols).step_by(BLOCK) {
                let n = BLOCK.min(span.cols - col);
                // SAFETY: sources are in bounds by inference, elements by the caller's
                // promise; a block of a source is filled before it is read.
                unsafe {
                    for k in (0..p.operands).filter(|&k| span.steps[k] != 0) {
                        match p.kinds[k] {
                            Stored::Number => {
                                at[k] = x[k].cast::<T>().add(col);
                                // What a processor asks for by itself comes too late for elements that are
                                // read in bursts, and ends at every page.
                                ask_for(at[k].wrapping_add(2 * BLOCK), BLOCK);
                            }
                            stored => {
                                let first = x[k].add(col * stored.size::<T>());
                                numbers(first, stored, base.add(k).cast::<T>(), n);
                            }
                        }
                    }
                    for (i, step) in p.steps.iter().enumerate() {
                        let to: *mut T = base.add(p.operands + i).cast();
                        match *step {
                            Step::Unary(f, x) => scalar::unary_step(f, at[x], to, n),
                            Step::Binary(Binary::Pow, a, b) => {
                                let exponent = p.scalars.get(b).copied().flatten();
                                scalar::power_step(exponent, at[a], at[b], to, n);
                            }
                            Step::Binary(f, a, b) => scalar::binary_step(f, at[a], at[b], to, n),
                            Step::Where(c, a, b) => {
                                let slice = std::slice::from_raw_parts;
                                choose(slice(at[c], n), slice(at[a], n), slice(at[b], n), to);
                            }
                            Step::Cast(x) => to.copy_from_nonoverlapping(at[x], n),
                            Step::Round(x) => scalar::each(at[x], at[x], to, n, |x, _| rounded(x)),
                        }
                    }
                    let first = span.first + row * span.stride + col;
                    for &(s, stored, y) in p.y.iter().map_while(Option::as_ref) {
                        // The next block's place, too: stores of a burst wait for every line that no cache has.
                        let size = stored.size::<T>();
                        ask_for(y.0.wrapping_add((first + BLOCK) * size), BLOCK * size);
                        store(at[s], stored, y.0.add(first * size), n);
                    }
                }
            }
        }
    }
}

/// An element as a number.
///
/// # Safety
/// There is one that is stored so.
#[inline(always)]
unsafe fn number<T: Float>(x: *const u8, stored: Stored) -> T {
    // SAFETY: the caller's promise.
    unsafe {
        match stored {
            Stored::Number => x.cast::<T>().read(),
            Stored::Bf16 => T::from_f64(bf16::to_f32(x.cast::<u16>().read()).into()),
            Stored::Condition => condition(x.read() != 0),
        }
    }
}

/// The nearest number that a `bf16` holds, in programs of `f32`.
#[inline(always)]
fn rounded<T: Float>(x: T) -> T {
    T::from_f64(bf16::round(x.to_f64() as f32).into())
}

/// `y = c ? a : b`.
///
/// # Safety
/// `y` is a block of its own, and has room.
#[inline(always)]
unsafe fn choose<T: Float>(c: &[T], a: &[T], b: &[T], y: *mut T) {
    // SAFETY: the caller's promise.
    let y = unsafe { std::slice::from_raw_parts_mut(y, c.len()) };
    for (((y, &c), &a), &b) in y.iter_mut().zip(c).zip(a).zip(b) {
        *y = if c != T::ZERO { a } else { b };
    }
}

/// Elements that are stored otherwise, as numbers.
///
/// # Safety
/// There are `n`, and `y` is a block of its own with room for them.
#[inline(always)]
unsafe fn numbers<T: Float>(x: *const u8, stored: Stored, y: *mut T, n: usize) {
    // SAFETY: the caller's promise.
    let y = unsafe { std::slice::from_raw_parts_mut(y, n) };
    match stored {
        Stored::Bf16 => {
            // SAFETY: the caller's promise.
            let x = unsafe { std::slice::from_raw_parts(x.cast::<u16>(), n) };
            for (y, &x) in y.iter_mut().zip(x) {
                *y = T::from_f64(bf16::to_f32(x).into());
            }
        }
        _ => {
            // SAFETY: the caller's promise.
            let x = unsafe { std::slice::from_raw_parts(x, n) };
            for (y, &x) in y.iter_mut().zip(x) {
                *y = condition(x != 0);
            }
        }
    }
}

/// Stores what a step made.
///
/// # Safety
/// There are `n` elements, with room for as many at `y`.
#[inline(always)]
unsafe fn store<T: Float>(x: *const T, stored: Stored, y: *mut u8, n: usize) {
    // SAFETY: the caller's promise; steps write to blocks of the program's own.
    unsafe {
        let x = std::slice::from_raw_parts(x, n);
        match stored {
            Stored::Number => y.cast::<T>().copy_from_nonoverlapping(x.as_ptr(), n),
            Stored::Bf16 => {
                let y = std::slice::from_raw_parts_mut(y.cast::<u16>(), n);
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = bf16::from_f32(x.to_f64() as f32);
                }
            }
            Stored::Condition => {
                let y = std::slice::from_raw_parts_mut(y, n);
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = u8::from(x != T::ZERO);
                }
            }
        }
    }
}
