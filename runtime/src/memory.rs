//! Bytes that tensors live in.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of every allocation: a cache line, and enough for any vector load.
pub const ALIGN: usize = 64;

/// The machine has no allocation of this size to give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {bytes} bytes of memory could be allocated")]
pub struct OutOfMemory {
    /// The bytes asked for.
    pub bytes: u64,
}

/// A zeroed allocation aligned to [`ALIGN`], freed on drop.
#[derive(Debug)]
pub struct AlignedBytes {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an exclusive owner of plain bytes, like a `Box<[u8]>`.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates `bytes` zeroed bytes. Fresh pages are touched only when they are used.
    ///
    /// # Errors
    /// The allocator refuses.
    pub fn zeroed(bytes: u64) -> Result<Self, OutOfMemory> {
        let refused = OutOfMemory { bytes };
        let size = usize::try_from(bytes).map_err(|_| refused.clone())?.max(1);
        let layout = Layout::from_size_align(size, ALIGN).map_err(|_| refused.clone())?;
        // SAFETY: the layout's size is not zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(refused)?;
        Ok(AlignedBytes { ptr, layout })
    }

    /// A copy of `bytes`; for small things where failure is as fatal as for a `Vec`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let Ok(mut copy) = Self::zeroed(bytes.len() as u64) else {
            handle_alloc_error(Layout::for_value(bytes))
        };
        copy.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        copy
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// All bytes (at least one).
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated, zeroed, owned.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.layout.size()) }
    }

    /// All bytes (at least one).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated, zeroed, owned exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with this layout.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}
