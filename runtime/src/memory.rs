//! Bytes that tensors live in, and those that a process has.

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

/// What the allocator is asked to align to. For no more than this it has zero pages of the
/// system, which nobody touches; for [`ALIGN`] it would write zeros to every byte.
const ASKED: usize = 8;

/// Asks for large pages for a large allocation: with one of them, an address is translated once for 512 ordinary pages.
/// Where the system has none, or gives them anyway, nothing changes; pages that nobody touches take no memory either
/// way.
#[cfg(target_os = "linux")]
fn ask_for_large_pages(memory: NonNull<u8>, bytes: usize) {
    use nix::sys::mman::{MmapAdvise, madvise};

    const PAGE: usize = 2 << 20;
    /// An allocation of this size holds a whole page wherever it begins.
    const LARGE: usize = 2 * PAGE;

    // Whole pages alone: none holds bytes of something else.
    let skipped = memory.addr().get().next_multiple_of(PAGE) - memory.addr().get();
    let whole = bytes.saturating_sub(skipped) / PAGE * PAGE;
    if bytes >= LARGE {
        // SAFETY: these bytes are allocated, and keep what they hold. Nothing depends on the answer.
        let _ = unsafe { madvise(memory.add(skipped).cast(), whole, MmapAdvise::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_: NonNull<u8>, _: usize) {}

/// A zeroed allocation aligned to [`ALIGN`], freed on drop.
#[derive(Debug)]
pub struct AlignedBytes {
    /// The first byte that is aligned.
    ptr: NonNull<u8>,
    /// Bytes from there on.
    len: usize,
    /// What was allocated: the same with room to align it.
    allocation: NonNull<u8>,
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
        let len = usize::try_from(bytes).map_err(|_| refused.clone())?.max(1);
        let size = len.checked_add(ALIGN - ASKED).ok_or_else(|| refused.clone())?;
        let layout = Layout::from_size_align(size, ASKED).map_err(|_| refused.clone())?;
        // SAFETY: the layout's size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(refused)?;
        ask_for_large_pages(allocation, size);
        let address = allocation.addr().get();
        // SAFETY: this skips at most `ALIGN - ASKED` bytes, which are allocated beside `len`.
        let ptr = unsafe { allocation.add(address.next_multiple_of(ALIGN) - address) };
        Ok(AlignedBytes { ptr, len, allocation, layout })
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
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// All bytes (at least one).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated, zeroed, owned exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with this layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// What Linux counts of this process' memory, by the name of a line in `/proc/self/status`: `VmRSS` is resident now, `VmHWM`
/// was the most at once, `RssShmem` is resident and shared with other processes. `None` where the system does not say.
pub fn process_bytes(line: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let figure = status.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':'))?;
    let kib: u64 = figure.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use super::process_bytes;
    use super::{ALIGN, AlignedBytes};

    #[test]
    fn allocations_are_aligned_and_zero() {
        for bytes in [0, 1, 63, 64, 65, 4096, 1 << 20] {
            let memory = AlignedBytes::zeroed(bytes).unwrap();
            assert_eq!(memory.as_ptr().addr() % ALIGN, 0);
            assert_eq!(memory.as_slice().len(), bytes.max(1) as usize);
            assert!(memory.as_slice().iter().all(|&b| b == 0));
        }
        assert!(AlignedBytes::zeroed(u64::MAX).is_err());
        assert_eq!(AlignedBytes::copy_of(b"abc").as_slice(), b"abc");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_that_nobody_touches_take_no_memory() {
        let before = process_bytes("VmRSS").unwrap();
        let mut memory = AlignedBytes::zeroed(1 << 30).unwrap();
        let last = memory.as_slice().len() - 1;
        memory.as_mut_slice()[last] = 1;
        let more = process_bytes("VmRSS").unwrap().saturating_sub(before);
        assert!(more < 1 << 28, "{more} bytes of which one was written");
    }

    /// The system notes `hg` of mappings that were asked for, where it has large pages.
    #[cfg(target_os = "linux")]
    #[test]
    fn large_allocations_ask_for_large_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let memory = AlignedBytes::zeroed(6 << 20).unwrap();
        let inside = memory.as_ptr().addr() + (3 << 20);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &str| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            range.is_some_and(|(first, end)| {
                let address = |x| usize::from_str_radix(x, 16).ok();
                address(first).is_some_and(|x| x <= inside)
                    && address(end).is_some_and(|x| inside < x)
            })
        };
        let of_it = maps.lines().skip_while(|line| !holds(line));
        let flags = of_it.into_iter().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
    }
}
