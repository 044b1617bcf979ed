//! `TopK`: the first elements of each row in order, by a heap in the row of the result: time is
//! that of a sort at most, and no other memory is needed.

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

    /// Fills the row with the first `k` of `n` items in order. `before` orders items strictly.
    ///
    /// # Safety
    /// The row has `k` elements, and `k` is neither zero nor above `n`.
    unsafe fn select(
        &self,
        k: usize,
        n: usize,
        item: impl Fn(usize) -> T,
        before: impl Fn(T, T) -> bool,
    ) {
        // SAFETY: all places are below `k`.
        unsafe {
            for i in 0..k {
                self.set(i, item(i));
            }
            // The first element is the last in order of those that the row holds.
            for at in (0..k / 2).rev() {
                self.sift(k, at, self.get(at), &before);
            }
            for i in k..n {
                let x = item(i);
                if before(x, self.get(0)) {
                    self.sift(k, 0, x, &before);
                }
            }
            for len in (1..k).rev() {
                let x = self.get(len);
                self.set(len, self.get(0));
                self.sift(len, 0, x, &before);
            }
        }
    }

    /// Puts `x` into the heap of the first `len` elements, at `at` or below, where what stood at
    /// `at` goes.
    ///
    /// # Safety
    /// The row has `len` elements, and `at` is one of them.
    unsafe fn sift(&self, len: usize, mut at: usize, x: T, before: &impl Fn(T, T) -> bool) {
        // SAFETY: all places are below `len`.
        unsafe {
            while 2 * at + 1 < len {
                let (left, right) = (2 * at + 1, 2 * at + 2);
                let right_is_last = right < len && before(self.get(left), self.get(right));
                let child = if right_is_last { right } else { left };
                let last = self.get(child);
                if !before(x, last) {
                    break;
                }
                self.set(at, last);
                at = child;
            }
            self.set(at, x);
        }
    }

    /// Gives equal elements that differ in bits, which are zeros or NaN, the bits that a stable
    /// sort gives them: those of the first equal items. `before` is the order of [`Row::select`],
    /// by which the row is sorted.
    ///
    /// # Safety
    /// The row has `k` elements.
    unsafe fn stabilise(
        &self,
        k: usize,
        n: usize,
        item: impl Fn(usize) -> T,
        before: impl Fn(T, T) -> bool,
    ) where
        T: Number,
    {
        let equal = |a: T, b: T| !before(a, b) && !before(b, a);
        let mut at = 0;
        while at < k {
            // SAFETY: a place below `k`.
            let x = unsafe { self.get(at) };
            if !x.is_nan() && x != T::ZERO {
                at += 1;
                continue;
            }
            for y in (0..n).map(&item).filter(|&y| equal(x, y)) {
                // SAFETY: as above.
                if at == k || !equal(x, unsafe { self.get(at) }) {
                    break;
                }
                // SAFETY: as above.
                unsafe { self.set(at, y) };
                at += 1;
            }
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
        match (&values, &indices) {
            (_, Some(row)) => {
                // Of equal elements the first comes first.
                let by_place = |a: i64, b: i64| {
                    let (x, y) = (at(a as usize), at(b as usize));
                    before(x, y) || (a < b && !before(y, x))
                };
                // SAFETY: the task's row has `k` elements, at least one and at most `extent`.
                unsafe { row.select(k, extent, |i| i as i64, by_place) };
            }
            (Some(row), None) => {
                // SAFETY: as above.
                unsafe { row.select(k, extent, at, before) };
                // SAFETY: as above.
                unsafe { row.stabilise(k, extent, at, before) };
            }
            (None, None) => {}
        }
        if let (Some(values), Some(indices)) = (&values, &indices) {
            for i in 0..k {
                // SAFETY: as above, and indices that were written before.
                unsafe { values.set(i, at(indices.get(i) as usize)) };
            }
        }
    });
}
