//! Transposition.
//!
//! Axes that stay neighbours are one axis. When the last axis stays, rows are copied;
//! otherwise the two axes that are contiguous on either side are exchanged in tiles of
//! one cache line by one cache line.

use super::address::{Dst, Src};
use super::movement::strided;
use super::nest::Nest;
use super::tasks::{CHEAP, for_tasks};
use super::wide::wide;
use crate::kernel::{Call, Destination, Operand};
use arenic_ir::DType;
use arenic_ir::op::MAX_RANK;

/// `y.shape[i] = x.shape[perm[i]]`.
pub(super) fn run(perm: &[usize], call: &Call) {
    if let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) {
        transpose(perm, x, y);
    }
}

/// `y.shape[i] = x.shape[perm[i]]`.
pub(super) fn transpose(perm: &[usize], x: &Operand, y: &Destination) {
    if y.ty().elements() == 0 {
        return;
    }
    let (shape, d) = (&x.ty().shape, x.ty().dtype);
    let size = d.size() as usize;
    let mut strides = [0; MAX_RANK];
    let mut dense = size as isize;
    for axis in (0..shape.len()).rev() {
        strides[axis] = dense;
        dense *= shape[axis] as isize;
    }
    let mut nest = Nest::new();
    for &axis in perm.iter().rev() {
        nest.push(shape[axis], [strides[axis]]);
    }
    let contiguous = (1..nest.rank()).find(|&axis| nest.stride(0, axis) == size as isize);
    match contiguous {
        // SAFETY: a permutation of the operand's axes stays inside it.
        Some(axis) => unsafe { exchange(&nest, axis, Src::of(x), Dst::of(y), d) },
        // SAFETY: as above.
        None => unsafe { strided(&nest, Src::of(x), Dst::of(y), d) },
    }
}

/// Exchanges the result's last axis with `axis`, along which the operand is contiguous.
///
/// # Safety
/// The nest is a permutation of the axes of `x`, and `y` a disjoint result.
unsafe fn exchange(nest: &Nest<1>, axis: usize, x: Src, y: Dst, dtype: DType) {
    let size = dtype.size() as usize;
    let extents = nest.extents();
    let tile = 64 / size;
    // A task is a band of one tile's width, of bounded length.
    let band = CHEAP / tile;
    let (wide_n, long_n) = (extents[axis], extents[0]);
    let bands = long_n.div_ceil(band);
    let across = wide_n.div_ceil(tile);
    let outer: usize = nest.elements() / (wide_n * long_n);
    let pitch: usize = extents[..axis].iter().product::<usize>() * size;
    let units = outer * across * bands;
    // Small matrices: several to a task.
    let group = (CHEAP / (wide_n.min(tile) * long_n.min(band))).max(1);
    for_tasks(units.div_ceil(group), &|task| {
        for unit in task * group..((task + 1) * group).min(units) {
            let (mut rest, long) = (unit / bands, unit % bands * band);
            let across_at = rest % across * tile;
            rest /= across;
            let mut from = long as isize * nest.stride(0, 0) + (across_at * size) as isize;
            let mut to = long * size + across_at * pitch;
            let mut dense = size * long_n;
            for (i, &d) in extents.iter().enumerate().skip(1) {
                if i != axis {
                    from += (rest % d) as isize * nest.stride(0, i);
                    to += rest % d * dense;
                    rest /= d;
                }
                dense *= d;
            }
            // SAFETY: the band lies inside operand and result.
            unsafe {
                let (x, y) = (x.at(from as usize).0, y.at(to).0);
                let (step, long) = (nest.stride(0, 0) as usize, band.min(long_n - long));
                let width = tile.min(wide_n - across_at);
                let band = [step, pitch, width, long];
                match size {
                    1 => exchange_band::<[[u8; 64]; 64]>(x, y, band),
                    2 => exchange_band::<[[u16; 32]; 32]>(x, y, band),
                    4 => exchange_band::<[[u32; 16]; 16]>(x, y, band),
                    _ => exchange_band::<[[u64; 8]; 8]>(x, y, band),
                }
            }
        }
    });
}

/// `n` rows of `count` elements each, `apart.0` elements apart, become `count` rows of `n`, `apart.1` apart.
///
/// # Safety
/// Both are valid for all of them and disjoint; `count` is at most 16.
pub(super) unsafe fn exchange_rows(
    x: *const f32,
    y: *mut f32,
    apart: (usize, usize),
    (n, count): (usize, usize),
) {
    let size = size_of::<f32>();
    // SAFETY: the caller's promise.
    unsafe {
        let band = [apart.0 * size, apart.1 * size, count, n];
        exchange_band::<[[f32; 16]; 16]>(x.cast(), y.cast(), band);
    }
}

wide! {
    /// `long` runs of `width` elements, `step` bytes apart, become `width` runs of `long`
    /// elements, `pitch` bytes apart.
    ///
    /// # Safety
    /// `x` and `y` are valid for all of them; `width` fits a tile.
    unsafe fn exchange_band<L: Tile>(x: *const u8, y: *mut u8, band: [usize; 4]) {
        // SAFETY: the caller's promise.
        unsafe { L::exchange(x, y, band) }
    }
}

/// As many lines of one cache line as a line has elements.
trait Tile {
    /// As for [`exchange_band`].
    ///
    /// # Safety
    /// As for [`exchange_band`].
    unsafe fn exchange(x: *const u8, y: *mut u8, band: [usize; 4]);
}

impl<T: Copy + Default, const TILE: usize> Tile for [[T; TILE]; TILE] {
    #[inline(always)]
    unsafe fn exchange(x: *const u8, y: *mut u8, [step, pitch, width, long]: [usize; 4]) {
        let (x, y): (*const T, *mut T) = (x.cast(), y.cast());
        let mut lines = [[T::default(); TILE]; TILE];
        let mut at = 0;
        while at < long {
            let n = TILE.min(long - at);
            // SAFETY: the band's own elements; a line has room for `width`, a tile for `n`.
            unsafe {
                for (i, line) in lines[..n].iter_mut().enumerate() {
                    let from = x.byte_add((at + i) * step);
                    if width == TILE {
                        line.as_mut_ptr().copy_from_nonoverlapping(from, TILE);
                    } else {
                        line.as_mut_ptr().copy_from_nonoverlapping(from, width);
                    }
                }
                for j in 0..width {
                    let to = y.byte_add(j * pitch).add(at);
                    if n == TILE {
                        to.cast::<[T; TILE]>().write(std::array::from_fn(|i| lines[i][j]));
                    } else {
                        for (i, line) in lines[..n].iter().enumerate() {
                            to.add(i).write(line[j]);
                        }
                    }
                }
            }
            at += n;
        }
    }
}
