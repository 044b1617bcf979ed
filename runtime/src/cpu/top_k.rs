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
        // SAFETY: places below `k`, here and below.
        let mut at = len;
        while at > 0 && before(x, unsafe { self.get(at - 1) }) {
            at -= 1;
            if at + 1 < k {
                unsafe { self.set(at + 1, self.get(at)) };
            }
        }
        if at < k {
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
        // SAFETY: each task has rows of `k` elements of its own, here and below.
        let values = values.as_ref().map(|y| Row { first: unsafe { y.ptr().add(first) }, stride });
        let indices =
            indices.as_ref().map(|y| Row { first: unsafe { y.ptr().add(first) }, stride });
        for i in 0..extent {
            let len = i.min(k);
            match (&values, &indices) {
                (_, Some(row)) => unsafe {
                    row.insert(len, k, i as i64, |a, b| before(at(a as usize), at(b as usize)));
                },
                (Some(row), None) => unsafe { row.insert(len, k, at(i), before) },
                (None, None) => {}
            }
        }
        if let (Some(values), Some(indices)) = (&values, &indices) {
            for i in 0..k {
                unsafe { values.set(i, at(indices.get(i) as usize)) };
            }
        }
    });
}
