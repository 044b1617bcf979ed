//! A file whose tensors are read where they lie.

use bytes::Bytes;
use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Bytes of a file that are copied at once.
const PIECE: usize = 4 << 20;

/// A mapped file; by default none.
#[derive(Clone, Debug, Default)]
pub struct Mapping(Option<Arc<Mmap>>);

/// What keeps a file mapped as long as slices of it are in use.
struct Owner(Arc<Mmap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Mapping {
    /// Maps a file, all of it.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn new(file: &File) -> io::Result<Mapping> {
        // SAFETY: the mapping is private and read-only; the documentation of `run` asks
        // that an artifact in use is not truncated by others.
        let map = unsafe { Mmap::map(file) }?;
        Ok(Mapping(Some(Arc::new(map))))
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Bytes {
        self.0.as_ref().map_or(Bytes::new(), |map| Bytes::from_owner(Owner(Arc::clone(map))))
    }

    /// Copies bytes that may lie in the file, and keeps none of its pages: beside the copy there
    /// is never more than a piece of them in memory.
    pub(crate) fn copy(&self, from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
            to.copy_from_slice(from);
            self.release();
        }
    }

    /// Gives back the memory of the pages that were read so far. What is read again comes from
    /// the file again.
    pub(crate) fn release(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.0 {
            // SAFETY: nothing writes to the mapping, so that its pages are those of the file.
            // Where the system does not release them, they stay.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}
