//! `TopK`: the first elements of each row in order, kept sorted while the row is read.

use super::address::Shared;
use super::dispatch::for_number;
use super::number::Number;
use super::tasks::for_each;
use crate::kernel::Call;
use arenic_ir::DType;

/// A row of a result, elements `stride` apart.
struct Row<T> {
    first: *mut T,
    stride: usize,
}

impl<T: Copy> Row<T> {
    /// # Safety
    /// The row has such an element.
    unsafe fn get(&self, i: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.first.add(i * self.stride).read() }
    }

    /// # Safety
    /// As for [`Row::get`].
    unsafe fn set(&self, i: usize, x: T) {
        // SAFETY: the caller's promise.
        unsafe { self.first.add(i * self.stride).write(x) }
    }

    /// Puts `x` behind all that it does not come before, in a row of `len` sorted elements that
    /// has room for `k`; the last one may fall out.
    ///
    /// # Safety
    /// The row has `k` elements.
    unsafe fn insert(&self, len: usize, k: usize, x: T, before: impl Fn(T, T) -> bool) {
        let mut at = len;
        while at > 0 {
            // SAFETY: a place below `len`, which is at most `k`.
            let last = unsafe { self.get(at - 1) };
            if !before(x, last) {
                break;
            }
            if at < k {
                // SAFETY: a place below `k`.
                unsafe { self.set(at, last) };
            }
            at -= 1;
        }
        if at < k {
            // SAFETY: a place below `k`.
            unsafe { self.set(at, x) };
        }
    }
}

/// Runs a `TopK`.
pub(super) fn run(axis: usize, k: usize, largest: bool, call: &Call) {
    let x = &call.inputs[0];
    if k > 0 && x.ty().elements() > 0 {
        for_number!(x.ty().dtype, T => typed::<T>(axis, k, largest, call));
    }
}

fn typed<T: Number>(axis: usize, k: usize, largest: bool, call: &Call) {
    let shape = &call.inputs[0].ty().shape;
    let (extent, stride) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let all = call.inputs[0].ty().elements();
    let x = Shared::new(call.inputs[0].ptr::<T>().cast_mut());
    let values = call.outputs[0].map(|y| Shared::new(y.ptr::<T>()));
    let indices = call.outputs[1].map(|y| Shared::new(y.ptr::<i64>()));
    let greater = |a: T, b: T| a > b || (a.is_nan() && !b.is_nan());
    let before = |a: T, b: T| if largest { greater(a, b) } else { greater(b, a) };
    for_each(all / extent, 8 * all, |row| {
        let (outer, inner) = (row / stride, row % stride);
        // SAFETY: element `i` of the task's own row of the operand.
        let at = |i: usize| unsafe { x.ptr().add((outer * extent + i) * stride + inner).read() };
        let first = outer * k * stride + inner;
        // SAFETY: each task has rows of `k` elements of its own.
        let values = values.as_ref().map(|y| Row { first: unsafe { y.ptr().add(first) }, stride });
        let indices =
            // SAFETY: as above.
            indices.as_ref().map(|y| Row { first: unsafe { y.ptr().add(first) }, stride });
        for i in 0..extent {
            let len = i.min(k);
            match (&values, &indices) {
                (_, Some(row)) => {
                    let by_place = |a: i64, b: i64| before(at(a as usize), at(b as usize));
                    // SAFETY: as above.
                    unsafe { row.insert(len, k, i as i64, by_place) };
                }
                // SAFETY: as above.
                (Some(row), None) => unsafe { row.insert(len, k, at(i), before) },
                (None, None) => {}
            }
        }
        if let (Some(values), Some(indices)) = (&values, &indices) {
            for i in 0..k {
                // SAFETY: as above, and indices that were written before.
                unsafe { values.set(i, at(indices.get(i) as usize)) };
            }
        }
    });
}
