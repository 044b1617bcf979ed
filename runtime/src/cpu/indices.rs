//! Index operands of gathers and scatters.

use super::tasks::{CHEAP, for_ranges};
use crate::kernel::{KernelError, Operand};
use arenic_ir::DType;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Indices of either type, negative ones counting from the end.
#[derive(Clone, Copy)]
pub(super) enum Indices<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl<'a> Indices<'a> {
    /// # Safety
    /// As for [`Operand::slice`].
    pub(super) unsafe fn of(x: &Operand<'a>) -> Self {
        // SAFETY: the caller's promise; inference admits these two types.
        unsafe {
            match x.ty().dtype {
                DType::I32 => Indices::Narrow(x.slice()),
                _ => Indices::Wide(x.slice()),
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Indices::Narrow(x) => x.len(),
            Indices::Wide(x) => x.len(),
        }
    }

    /// Index `i` as it stands in the tensor.
    #[inline(always)]
    fn get(&self, i: usize) -> i64 {
        match self {
            Indices::Narrow(x) => i64::from(x[i]),
            Indices::Wide(x) => x[i],
        }
    }

    /// Position that index `i` selects from `extent`, in range when checked before.
    #[inline(always)]
    pub(super) fn position(&self, i: usize, extent: usize) -> usize {
        let index = self.get(i);
        (if index < 0 { index.wrapping_add(extent as i64) } else { index }) as usize
    }

    /// Refuses the first index that is out of range, `extents` in turn.
    pub(super) fn check(&self, extents: &[usize]) -> Result<(), KernelError> {
        if extents.is_empty() {
            return Ok(());
        }
        let first = AtomicUsize::new(usize::MAX);
        for_ranges(self.len(), CHEAP, &|r| {
            let mut k = r.start % extents.len();
            for i in r {
                if self.position(i, extents[k]) >= extents[k] {
                    first.fetch_min(i, Ordering::Relaxed);
                    break;
                }
                k = if k + 1 == extents.len() { 0 } else { k + 1 };
            }
        });
        match first.into_inner() {
            usize::MAX => Ok(()),
            i => {
                let extent = extents[i % extents.len()];
                Err(KernelError::IndexOutOfRange { index: self.get(i), extent })
            }
        }
    }
}
