//! Where the maxima of a pool are: what its kernels write and read of it.

use crate::cpu::address::Shared;
use crate::cpu::sliding::{PerAxis, Sliding, unflatten};
use crate::kernel::{Destination, Operand};
use arenic_ir::DType;
use arenic_ir::op::{MAX_RANK, PoolIndices};

/// Writes the indices of a max pool.
pub(super) struct PlacesWriter<'a> {
    s: &'a Sliding,
    to: To,
}

enum To {
    Taps8(Shared<u8>),
    Taps16(Shared<u16>),
    Taps32(Shared<u32>),
    Positions(Shared<i64>, PoolIndices),
}

impl<'a> PlacesWriter<'a> {
    pub(super) fn new(s: &'a Sliding, indices: PoolIndices, to: &Destination) -> Self {
        let to = match to.ty().dtype {
            DType::U8 => To::Taps8(Shared::new(to.ptr())),
            DType::U16 => To::Taps16(Shared::new(to.ptr())),
            DType::U32 => To::Taps32(Shared::new(to.ptr())),
            _ => To::Positions(Shared::new(to.ptr()), indices),
        };
        PlacesWriter { s, to }
    }

    /// Writes the indices of a plane's positions from `first` on, which are on one row of the
    /// result.
    ///
    /// # Safety
    /// The positions lie in the plane, and no other thread writes their indices.
    pub(super) unsafe fn write(&self, plane: usize, first: usize, taps: &[u32]) {
        let (s, n) = (self.s, taps.len());
        let start = plane * s.outputs() + first;
        // SAFETY: the caller's promise.
        unsafe {
            match &self.to {
                To::Taps8(to) => copy(taps, to.slice(start, n), |tap| tap as u8),
                To::Taps16(to) => copy(taps, to.slice(start, n), |tap| tap as u16),
                To::Taps32(to) => to.slice(start, n).copy_from_slice(taps),
                To::Positions(to, order) => {
                    let mut at = [0; MAX_RANK];
                    unflatten(first, &s.output[..s.rank], &mut at[..s.rank]);
                    for (to, &tap) in to.slice(start, n).iter_mut().zip(taps) {
                        *to = (plane * s.inputs() + place(s, &at, tap, *order)) as i64;
                        at[s.last()] += 1;
                    }
                }
            }
        }
    }
}

#[inline]
fn copy<T>(taps: &[u32], to: &mut [T], narrow: impl Fn(u32) -> T) {
    to.iter_mut().zip(taps).for_each(|(to, &tap)| *to = narrow(tap));
}

/// The place in its plane that a tap sees at a position of the result; the first one if that lies in
/// padding.
fn place(s: &Sliding, position: &PerAxis<usize>, tap: u32, order: PoolIndices) -> usize {
    let mut taps = [0; MAX_RANK];
    unflatten(tap as usize, &s.kernel[..s.rank], &mut taps[..s.rank]);
    let mut flat = Some(0);
    for step in 0..s.rank {
        let d = match order {
            PoolIndices::ColumnMajorPositions => s.last() - step,
            PoolIndices::Positions | PoolIndices::Taps => step,
        };
        let x = position[d] * s.strides[d] + taps[d] * s.dilations[d];
        let x = x.checked_sub(s.pads[d]).filter(|&x| x < s.input[d]);
        flat = flat.zip(x).map(|(flat, x)| flat * s.input[d] + x);
    }
    flat.unwrap_or(0)
}

/// Taps that a max pool wrote.
pub(super) enum Taps<'a> {
    Bits8(&'a [u8]),
    Bits16(&'a [u16]),
    Bits32(&'a [u32]),
}

impl<'a> Taps<'a> {
    /// # Safety
    /// As for [`Operand::slice`].
    pub(super) unsafe fn of(x: &Operand<'a>) -> Self {
        // SAFETY: the caller's promise; inference admits these three types.
        unsafe {
            match x.ty().dtype {
                DType::U8 => Taps::Bits8(x.slice()),
                DType::U16 => Taps::Bits16(x.slice()),
                _ => Taps::Bits32(x.slice()),
            }
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> usize {
        match self {
            Taps::Bits8(x) => usize::from(x[i]),
            Taps::Bits16(x) => usize::from(x[i]),
            Taps::Bits32(x) => x[i] as usize,
        }
    }
}
