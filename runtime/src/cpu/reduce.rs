//! `Reduce` and `PointwiseReduce`: neighbouring axes of one kind are merged, so that kept and
//! reduced axes alternate. What is reduced is there, or computed a run at a time.
//!
//! A reduced last axis is combined in interleaved lanes, segment by segment, and the
//! segments pairwise; below a kept last axis whole rows are combined, in blocks of rows.
//! Either way a sum of n terms has errors of far fewer than n roundings. Where the results
//! are too few for many threads, parts go to scratch and are combined afterwards, always
//! in one order.

use super::address::Shared;
use super::dispatch::{for_float, for_number};
use super::nest::Nest;
use super::number::Number;
use super::pointwise::{Computed, float_type};
use super::tasks::for_each;
use super::terms::Terms;
use super::wide::wide;
use crate::kernel::Call;
use arenic_backends::reduce::{COLUMNS, ReducePlan, SEGMENT, reduce};
use arenic_ir::DType;
use arenic_ir::op::{Reduction, Step};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Runs a `Reduce`.
pub(super) fn run(f: Reduction, axes: &[usize], call: &Call) {
    let ty = call.inputs[0].ty();
    for_number!(ty.dtype, T => {
        // SAFETY: a reduction has no in-place pairs.
        reduced::<T>(call, f, &reduce(ty, axes), &unsafe { call.inputs[0].slice::<T>() });
    });
}

/// Runs a `PointwiseReduce`.
pub(super) fn run_computed(steps: &[Step], f: Reduction, axes: &[usize], call: &Call) {
    // The type of what is reduced, but for the element type of conditions and axes of one element.
    let Some(ty) = call.inputs.iter().map(|x| x.ty()).max_by_key(|ty| ty.elements() != 1) else {
        return;
    };
    for_float!(float_type(call.inputs), T => {
        let x = Computed::new::<T>(steps, ty.elements(), call.inputs);
        reduced::<T>(call, f, &reduce(ty, axes), &x);
    });
}

fn reduced<T: Number>(call: &Call, f: Reduction, plan: &ReducePlan, x: &impl Terms<T>) {
    match f {
        Reduction::Sum => folded::<Sum, T, _>(call, plan, x),
        Reduction::Mean => folded::<Mean, T, _>(call, plan, x),
        Reduction::Min => folded::<Min, T, _>(call, plan, x),
        Reduction::Max => folded::<Max, T, _>(call, plan, x),
        Reduction::Prod => folded::<Prod, T, _>(call, plan, x),
    }
}

/// Results that are computed by one call, and elements that are enough for one.
const ROWS: usize = 64;
const ELEMENTS: usize = 4096;

/// How elements combine.
trait Fold<T: Number>: 'static {
    /// What they are combined in.
    type Acc: Number;
    const IDENTITY: Self::Acc;
    fn lift(x: T) -> Self::Acc;
    fn combine(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn finish(acc: Self::Acc, count: usize) -> T;
}

macro_rules! fold {
    ($name:ident, $identity:ident, $combine:ident) => {
        struct $name;
        impl<T: Number> Fold<T> for $name {
            type Acc = T;
            const IDENTITY: T = T::$identity;
            #[inline(always)]
            fn lift(x: T) -> T {
                x
            }
            #[inline(always)]
            fn combine(a: T, b: T) -> T {
                a.$combine(b)
            }
            #[inline(always)]
            fn finish(acc: T, _: usize) -> T {
                acc
            }
        }
    };
}
fold!(Sum, ZERO, add);
fold!(Prod, ONE, mul);
fold!(Min, HIGHEST, smaller);
fold!(Max, LOWEST, larger);
fold!(Most, LOWEST, above);

struct Mean;
impl<T: Number> Fold<T> for Mean {
    type Acc = T::Wide;
    const IDENTITY: T::Wide = <T::Wide as Number>::ZERO;
    #[inline(always)]
    fn lift(x: T) -> T::Wide {
        x.widen()
    }
    #[inline(always)]
    fn combine(a: T::Wide, b: T::Wide) -> T::Wide {
        a.add(b)
    }
    fn finish(acc: T::Wide, count: usize) -> T {
        T::narrow(acc.div(T::Wide::of_count(count)))
    }
}

/// The outer axes of one kind.
fn outer(plan: &ReducePlan, reduced: bool) -> Nest<1> {
    let mut nest = Nest::new();
    let mut stride = plan.extents[plan.rank - 1] as isize;
    for i in (0..plan.rank - 1).rev() {
        if plan.reduced(i) == reduced {
            nest.push(plan.extents[i], [stride]);
        }
        stride *= plan.extents[i] as isize;
    }
    nest
}

/// A reduction of the elements of `x`.
struct Job<'a, X> {
    x: &'a X,
    plan: &'a ReducePlan,
    /// Extent of the last merged axis.
    inner: usize,
    kept: Nest<1>,
    reduced: Nest<1>,
}

fn folded<F: Fold<T>, T: Number, X: Terms<T>>(call: &Call, plan: &ReducePlan, x: &X) {
    let Some(y) = call.outputs[0] else { return };
    let count = x.len() / plan.results.max(1);
    if x.len() == 0 {
        // SAFETY: a reduction has no in-place pairs.
        unsafe { y.slice_mut::<T>() }.fill(F::finish(F::IDENTITY, 0));
        return;
    }
    let job = Job {
        x,
        plan,
        inner: plan.extents[plan.rank - 1],
        kept: outer(plan, false),
        reduced: outer(plan, true),
    };
    let y = Shared::new(y.ptr::<T>());
    if plan.parts == 1 {
        job.parts::<F, T>(|_, at, acc| {
            // SAFETY: every result is written by one task.
            let to = unsafe { y.slice(at, acc.len()) };
            for (to, &acc) in to.iter_mut().zip(acc) {
                *to = F::finish(acc, count);
            }
        });
        return;
    }
    let results = plan.results;
    // SAFETY: the only slice of this call's scratch.
    let partial = unsafe { call.scratch.slice_mut::<F::Acc>(plan.parts * results) };
    let partial = Shared::new(partial.as_mut_ptr());
    job.parts::<F, T>(|part, at, acc| {
        // SAFETY: every partial result is written by one task.
        unsafe { partial.slice(part * results + at, acc.len()) }.copy_from_slice(acc);
    });
    for_each(results, results * plan.parts, |i| {
        let acc = (0..plan.parts).fold(F::IDENTITY, |acc, part| {
            // SAFETY: complete by now; each result is written by one task.
            F::combine(acc, unsafe { *partial.ptr().add(part * results + i) })
        });
        // SAFETY: as above.
        unsafe { *y.ptr().add(i) = F::finish(acc, count) };
    });
}

impl<X> Job<'_, X> {
    /// Reduces every part and hands on what came of it: part, first result, results.
    fn parts<F: Fold<T>, T: Number>(&self, emit: impl Fn(usize, usize, &[F::Acc]) + Sync)
    where
        X: Terms<T>,
    {
        let plan = self.plan;
        let range = |part: usize| {
            let share = plan.segments.div_ceil(plan.parts);
            (part * share).min(plan.segments)..((part + 1) * share).min(plan.segments)
        };
        if plan.inner_reduced {
            // Short rows go together, since a call costs as much as some of them.
            let group = match plan.parts {
                1 => (ELEMENTS / (self.x.len() / plan.results)).clamp(1, ROWS),
                _ => 1,
            };
            for_each(plan.results.div_ceil(group) * plan.parts, self.x.len(), |task| {
                let (first, part) = (task / plan.parts * group, task % plan.parts);
                let mut acc = [F::IDENTITY; ROWS];
                let acc = &mut acc[..group.min(plan.results - first)];
                results::<T, F, X>(self, first, range(part), acc);
                emit(part, first, acc);
            });
            return;
        }
        let strips = self.inner.div_ceil(COLUMNS);
        for_each(self.kept.elements() * strips * plan.parts, self.x.len(), |task| {
            let (strip, part) = (task / plan.parts, task % plan.parts);
            let (outer, column) = (strip / strips, strip % strips * COLUMNS);
            let width = COLUMNS.min(self.inner - column);
            let mut acc = [F::IDENTITY; COLUMNS];
            rows::<T, F, X>(self, self.kept.offset(outer) + column, range(part), &mut acc[..width]);
            emit(part, outer * self.inner + column, &acc[..width]);
        });
    }

    /// One segment of the last axis of reduced rows.
    #[inline(always)]
    fn segment<F: Fold<T>, T: Number>(&self, segment: usize, base: usize) -> F::Acc
    where
        X: Terms<T>,
    {
        let per_row = self.inner.div_ceil(SEGMENT);
        let (row, column) = (segment / per_row, segment % per_row * SEGMENT);
        let at = base + self.reduced.offset(row) + column;
        let mut room = [const { MaybeUninit::uninit() }; SEGMENT];
        lanes::<F, T>(self.x.run(at, SEGMENT.min(self.inner - column), &mut room), F::lift)
    }

    /// Segments of the last axis, from every reduced row, combined pairwise.
    #[inline(always)]
    fn segments<F: Fold<T>, T: Number>(&self, base: usize, range: Range<usize>) -> F::Acc
    where
        X: Terms<T>,
    {
        let (start, end) = (range.start, range.end);
        if end == start + 1 {
            return self.segment::<F, T>(start, base);
        }
        // `tree[i]` holds 2^i segments while bit `i` of their number is set.
        let mut tree = [F::IDENTITY; usize::BITS as usize];
        for i in range {
            let mut acc = self.segment::<F, T>(i, base);
            let mut level = 0;
            while (i - start) >> level & 1 == 1 {
                acc = F::combine(tree[level], acc);
                level += 1;
            }
            tree[level] = acc;
        }
        let mut total = None;
        for (level, &acc) in tree.iter().enumerate() {
            if (end - start) >> level & 1 == 1 {
                total = Some(total.map_or(acc, |t| F::combine(acc, t)));
            }
        }
        total.unwrap_or(F::IDENTITY)
    }
}

wide! {
    /// The same segments of each of some results, from `first` on.
    fn results<T: Number, F: Fold<T>, X: Terms<T>>(
        job: &Job<X>,
        first: usize,
        range: Range<usize>,
        acc: &mut [F::Acc],
    ) where T::IS_FLOAT; {
        for (i, acc) in acc.iter_mut().enumerate() {
            *acc = job.segments::<F, T>(job.kept.offset(first + i), range.clone());
        }
    }
}

wide! {
    /// Rows, combined column by column.
    fn rows<T: Number, F: Fold<T>, X: Terms<T>>(
        job: &Job<X>,
        base: usize,
        range: Range<usize>,
        acc: &mut [F::Acc],
    ) where T::IS_FLOAT; {
        /// Rows combined before they join the rest.
        const BLOCK: usize = 64;
        let width = acc.len();
        let mut room = [const { MaybeUninit::uninit() }; SEGMENT];
        let mut first = range.start;
        while first < range.end {
            let end = (first + BLOCK).min(range.end);
            let mut block = [F::IDENTITY; COLUMNS];
            let block = &mut block[..width];
            for row in first..end {
                let x = job.x.run(base + job.reduced.offset(row), width, &mut room);
                for (acc, &x) in block.iter_mut().zip(x) {
                    *acc = F::combine(*acc, F::lift(x));
                }
            }
            for (acc, &block) in acc.iter_mut().zip(block.iter()) {
                *acc = F::combine(*acc, block);
            }
            first = end;
        }
    }
}

/// Dense elements, combined in interleaved lanes; fewer of them where elements are few. Integers come to the same in
/// any lanes.
#[inline(always)]
fn lanes<F: Fold<T>, T: Number>(x: &[T], lift: impl Fn(T) -> F::Acc) -> F::Acc {
    if const { !T::IS_FLOAT } {
        return in_lanes::<F, T, 8>(x, lift);
    }
    match x.len() {
        128.. => in_lanes::<F, T, 32>(x, lift),
        8.. => in_lanes::<F, T, 8>(x, lift),
        _ => in_lanes::<F, T, 1>(x, lift),
    }
}

/// Dense elements, combined in `LANES` lanes, a power of two.
#[inline(always)]
fn in_lanes<F: Fold<T>, T: Number, const LANES: usize>(
    x: &[T],
    lift: impl Fn(T) -> F::Acc,
) -> F::Acc {
    let mut acc = [F::IDENTITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            acc[i] = F::combine(acc[i], lift(chunk[i]));
        }
    }
    if !rest.is_empty() {
        // What is indexed by variables would not stay in registers above.
        let mut last = [F::IDENTITY; LANES];
        for (lane, &x) in last.iter_mut().zip(rest) {
            *lane = lift(x);
        }
        for i in 0..LANES {
            acc[i] = F::combine(acc[i], last[i]);
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            acc[i] = F::combine(acc[i], acc[i + width]);
        }
    }
    acc[0]
}

/// The sum of dense elements, by the same scheme.
#[inline(always)]
pub(super) fn sum<T: Number>(x: &[T]) -> T {
    sum_of(x, |x| x)
}

/// The sum of a function of dense elements, which is short.
#[inline(always)]
pub(super) fn sum_of<T: Number>(x: &[T], f: impl Fn(T) -> T) -> T {
    let mut total = T::ZERO;
    for x in x.chunks(SEGMENT) {
        total = total.add(lanes::<Sum, T>(x, &f));
    }
    total
}

/// The largest of dense elements.
#[inline(always)]
pub(super) fn largest<T: Number>(x: &[T]) -> T {
    lanes::<Max, T>(x, |x| x)
}

/// The largest of dense elements that are no NaN, or NaN.
#[inline(always)]
pub(super) fn largest_number<T: Number>(x: &[T]) -> T {
    lanes::<Most, T>(x, |x| x)
}
