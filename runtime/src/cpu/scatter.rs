//! Scatters: updates combine with what is there in the order of their indices.
//!
//! Work is shared out so that whatever can meet at one element stays in one task.

use super::address::{Dst, Src};
use super::dispatch::{for_number, for_signless, for_size};
use super::gather::Tuples;
use super::indices::Indices;
use super::nest::Nest;
use super::number::Number;
use super::tasks::{CHEAP, copy, for_tasks};
use crate::kernel::{Call, KernelError};
use arenic_ir::DType;
use arenic_ir::op::Scatter;

/// Combines `n` updates, the second argument, with as many elements.
///
/// Both must be valid for `n` elements of the type that it was chosen for.
type Combine = unsafe fn(*mut u8, *const u8, usize);

/// How updates of a type combine.
fn combine(reduction: Scatter, dtype: DType) -> Combine {
    macro_rules! with {
        ($T:ty, $f:expr) => {{
            unsafe fn run(y: *mut u8, update: *const u8, n: usize) {
                let (y, update): (*mut $T, *const $T) = (y.cast(), update.cast());
                for i in 0..n {
                    // SAFETY: the contract of `Combine`.
                    unsafe { y.add(i).write($f(y.add(i).read(), update.add(i).read())) };
                }
            }
            run
        }};
    }
    match reduction {
        Scatter::Replace => for_size!(dtype, T => with!(T, |_: T, update: T| update)),
        // As NumPy adds truth values.
        Scatter::Add if dtype == DType::Bool => with!(u8, |a: u8, b: u8| a | b),
        Scatter::Add => for_signless!(dtype, T => with!(T, <T as Number>::add)),
        Scatter::Mul => for_signless!(dtype, T => with!(T, <T as Number>::mul)),
        Scatter::Min => for_number!(dtype, T => with!(T, <T as Number>::smaller)),
        Scatter::Max => for_number!(dtype, T => with!(T, <T as Number>::larger)),
    }
}

/// `y = x`, then `y[i…] ∘= updates[i…]` with `indices[i…]` in place of the index along
/// `axis`.
pub(super) fn scatter_elements(
    axis: usize,
    reduction: Scatter,
    call: &Call,
) -> Result<(), KernelError> {
    let ([x, indices, updates], Some(y)) = (call.inputs, &call.outputs[0]) else {
        return Ok(());
    };
    let (shape, counts) = (&x.ty().shape, &indices.ty().shape);
    // SAFETY: the result may take the bytes of `x` alone.
    let indices = unsafe { Indices::of(indices) };
    indices.check(&[shape[axis]])?;
    // SAFETY: operand and result have one type; equal or disjoint ranges.
    unsafe { copy(Src::of(x), Dst::of(y), x.ty().bytes() as usize) };
    if indices.len() == 0 {
        return Ok(());
    }

    // Axes before and behind `axis` address lines that never meet.
    let size = x.ty().dtype.size() as usize;
    let (mut before, mut behind) = (Nest::<1>::new(), Nest::<1>::new());
    let (mut dense, mut along) = (size as isize, 0);
    for i in (0..shape.len()).rev() {
        if i > axis {
            behind.push(counts[i], [dense]);
        } else if i == axis {
            along = dense as usize;
        } else {
            before.push(counts[i], [dense]);
        }
        dense *= shape[i] as isize;
    }
    let (outer, steps, inner) = (before.elements(), counts[axis], behind.elements());
    let group = (CHEAP / (steps * inner)).max(1);
    let width = (CHEAP / steps).clamp(64, inner.max(64));
    let across = inner.div_ceil(width);

    let combine = combine(reduction, x.ty().dtype);
    let (to, from) = (Dst::of(y), Src::of(updates));
    for_tasks(outer.div_ceil(group) * across, &|task| {
        let (first, left) = (task / across * group, task % across * width);
        for o in first..(first + group).min(outer) {
            let line = before.offset(o);
            for k in 0..steps {
                for j in left..(left + width).min(inner) {
                    let i = (o * steps + k) * inner + j;
                    let at = line + behind.offset(j) + indices.position(i, shape[axis]) * along;
                    // SAFETY: update `i`, and an element by an index that was checked.
                    unsafe { combine(to.at(at).0, from.at(i * size).0, 1) };
                }
            }
        }
    });
    Ok(())
}

/// `y = x`, then `y[indices[i…]…] ∘= updates[i…]`, the last axis of `indices` being
/// tuples.
pub(super) fn scatter_nd(reduction: Scatter, call: &Call) -> Result<(), KernelError> {
    let ([x, indices, updates], Some(y)) = (call.inputs, &call.outputs[0]) else {
        return Ok(());
    };
    let counts = &indices.ty().shape;
    let depth = counts[counts.len() - 1];
    let count: usize = counts[..counts.len() - 1].iter().product();
    // SAFETY: the result may take the bytes of `x` alone.
    let indices = unsafe { Indices::of(indices) };
    let tuples = Tuples::new(indices, depth, &x.ty().shape);
    tuples.check()?;
    // SAFETY: operand and result have one type; equal or disjoint ranges.
    unsafe { copy(Src::of(x), Dst::of(y), x.ty().bytes() as usize) };
    if updates.ty().elements() == 0 {
        return Ok(());
    }

    let size = x.ty().dtype.size() as usize;
    let combine = combine(reduction, x.ty().dtype);
    let (to, from, run) = (Dst::of(y), Src::of(updates), tuples.run);
    // Columns of the runs never meet.
    let width = (CHEAP / count).clamp(64, run.max(64));
    for_tasks(run.div_ceil(width), &|task| {
        let left = task * width;
        let n = width.min(run - left);
        for i in 0..count {
            // SAFETY: a part of update `i` and, by indices that were checked, as much of
            // the result.
            unsafe {
                let to = to.at((tuples.offset(i) + left) * size);
                combine(to.0, from.at((i * run + left) * size).0, n);
            }
        }
    });
    Ok(())
}
