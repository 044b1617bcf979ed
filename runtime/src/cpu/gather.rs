//! Gathers: along an axis, element by element, and by index tuples.
//!
//! Every index is checked before the first element moves.

use super::address::{Dst, Src};
use super::dispatch::for_size;
use super::indices::Indices;
use super::nest::{EvenRows, Nest};
use super::tasks::{CHEAP, for_ranges};
use crate::kernel::{Call, KernelError};
use arenic_ir::DType;
use arenic_ir::op::MAX_RANK;

/// `y[…, i…, …] = x[…, indices[i…], …]` along `axis`.
pub(super) fn gather(axis: usize, call: &Call) -> Result<(), KernelError> {
    let ([x, indices], Some(y)) = (call.inputs, &call.outputs[0]) else { return Ok(()) };
    if y.ty().elements() == 0 {
        return Ok(());
    }
    let shape = &x.ty().shape;
    // SAFETY: gathers declare no in-place pair.
    let indices = unsafe { Indices::of(indices) };
    indices.check(&[shape[axis]])?;
    let size = x.ty().dtype.size() as usize;
    let run = shape[axis + 1..].iter().product::<usize>() * size;
    let (extent, count) = (shape[axis], indices.len());
    let batches = shape[..axis].iter().product();
    let source = |batch: usize, k: usize| (batch * extent + indices.position(k, extent)) * run;
    // SAFETY: runs of the operand, by indices that were checked.
    unsafe { copy_runs(Src::of(x), Dst::of(y), [batches, count], run, source) };
    Ok(())
}

/// `y[i…] = x[i…]` with `indices[i…]` in place of the index along `axis`.
pub(super) fn gather_elements(axis: usize, call: &Call) -> Result<(), KernelError> {
    let ([x, indices], Some(y)) = (call.inputs, &call.outputs[0]) else { return Ok(()) };
    if y.ty().elements() == 0 {
        return Ok(());
    }
    let shape = &x.ty().shape;
    let extent = shape[axis];
    // SAFETY: gathers declare no in-place pair.
    unsafe { Indices::of(indices) }.check(&[extent])?;
    let (size, index_size) = (x.ty().dtype.size(), indices.ty().dtype.size());
    let mut nest = Nest::new();
    let (mut dense, mut dense_index, mut along) = (size as isize, index_size as isize, 0);
    for i in (0..shape.len()).rev() {
        let own = if i == axis { 0 } else { dense };
        if i == axis {
            along = dense;
        }
        nest.push(y.ty().shape[i], [own, dense_index]);
        dense *= shape[i] as isize;
        dense_index *= y.ty().shape[i] as isize;
    }
    let narrow = indices.ty().dtype == DType::I32;
    for_size!(x.ty().dtype, T => {
        let kernel = |rows: EvenRows<2>| { for r in 0..rows.rows { let ([x, index], y) = rows.row(r, size_of::<T>());
            for i in 0..rows.n {
                // SAFETY: element `i` of a row of indices and result, and an element of
                // the operand by an index that was checked.
                unsafe {
                    let index = if narrow {
                        index.cast::<i32>().add(i).read() as isize
                    } else {
                        index.cast::<i64>().add(i).read() as isize
                    };
                    let index = if index < 0 { index + extent as isize } else { index };
                    let from = x.byte_offset(i as isize * rows.steps[0] + index * along);
                    y.cast::<T>().add(i).write(from.cast::<T>().read());
                }
            }
        } };
        // SAFETY: indices have the result's shape, and fit the operand by inference.
        unsafe {
            nest.run([Src::of(x), Src::of(indices)], Dst::of(y), size as usize, CHEAP, &kernel);
        }
    });
    Ok(())
}

/// `y[b…, i…, …] = x[b…, indices[b…, i…]…, …]`, the last axis of `indices` being tuples.
pub(super) fn gather_nd(batch_dims: usize, call: &Call) -> Result<(), KernelError> {
    let ([x, indices], Some(y)) = (call.inputs, &call.outputs[0]) else { return Ok(()) };
    if y.ty().elements() == 0 {
        return Ok(());
    }
    let shape = &x.ty().shape;
    let counts = &indices.ty().shape;
    let depth = counts[counts.len() - 1];
    // SAFETY: gathers declare no in-place pair.
    let indices = unsafe { Indices::of(indices) };
    let tuples = Tuples::new(indices, depth, &shape[batch_dims..]);
    tuples.check()?;
    let size = x.ty().dtype.size() as usize;
    let batches = shape[..batch_dims].iter().product();
    let count: usize = counts[batch_dims..counts.len() - 1].iter().product();
    let batch_size: usize = shape[batch_dims..].iter().product();
    let source =
        |batch: usize, k: usize| (batch * batch_size + tuples.offset(batch * count + k)) * size;
    // SAFETY: runs of the operand, by indices that were checked.
    unsafe { copy_runs(Src::of(x), Dst::of(y), [batches, count], tuples.run * size, source) };
    Ok(())
}

/// Index tuples into the leading axes of a shape.
pub(super) struct Tuples<'a> {
    indices: Indices<'a>,
    depth: usize,
    extents: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
    /// Elements that one tuple selects.
    pub(super) run: usize,
}

impl<'a> Tuples<'a> {
    /// Tuples of `depth` indices into `shape`.
    pub(super) fn new(indices: Indices<'a>, depth: usize, shape: &[usize]) -> Self {
        let (mut extents, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
        let run = shape[depth..].iter().product();
        let mut dense = run;
        for i in (0..depth).rev() {
            (extents[i], strides[i]) = (shape[i], dense);
            dense *= shape[i];
        }
        Tuples { indices, depth, extents, strides, run }
    }

    /// Refuses the first index that is out of range.
    pub(super) fn check(&self) -> Result<(), KernelError> {
        self.indices.check(&self.extents[..self.depth])
    }

    /// Element at which what tuple `i` selects begins.
    #[inline(always)]
    pub(super) fn offset(&self, i: usize) -> usize {
        (0..self.depth)
            .map(|k| self.indices.position(i * self.depth + k, self.extents[k]) * self.strides[k])
            .sum()
    }
}

/// Fills `y` with `batches` times `count` runs of `run` bytes, each from the byte that
/// `source` gives for batch and number in it.
///
/// # Safety
/// Every source is a run inside `x`; `y` has room for all and is disjoint.
unsafe fn copy_runs(
    x: Src,
    y: Dst,
    [batches, count]: [usize; 2],
    run: usize,
    source: impl Fn(usize, usize) -> usize + Sync,
) {
    for_ranges(batches * count, (4 * CHEAP / run).max(1), &|r| {
        let (mut batch, mut k) = (r.start / count, r.start % count);
        for i in r {
            // SAFETY: the caller's promise.
            unsafe {
                let (from, to) = (x.at(source(batch, k)).0, y.at(i * run).0);
                // Single elements are too short for a call.
                match run {
                    4 => to.cast::<[u8; 4]>().write(from.cast::<[u8; 4]>().read()),
                    8 => to.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read()),
                    _ => to.copy_from_nonoverlapping(from, run),
                }
            }
            k += 1;
            if k == count {
                (batch, k) = (batch + 1, 0);
            }
        }
    });
}
