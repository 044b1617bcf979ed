//! Arrays whose bytes lie in a mapped file.

use super::error::{ArrayProblem, DataError};
use arenic_ir::types::{DType, TensorType};
use memmap2::Mmap;
use rayon::prelude::*;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that one thread reads at a time.
const PIECE: usize = 16 << 20;

/// One named array; its bytes are little-endian, row-major, mapped from a file and of no
/// particular alignment. Cloning shares the mapping.
#[derive(Clone, Debug)]
pub struct Array {
    name: String,
    ty: TensorType,
    file: Arc<MappedFile>,
    range: Range<usize>,
}

impl Array {
    /// The array at `range` of `file`, which must lie within it and be as long as `ty`.
    pub(super) fn new(
        path: &Path,
        name: String,
        ty: TensorType,
        file: &Arc<MappedFile>,
        range: Range<usize>,
    ) -> Result<Self, DataError> {
        let found = file.bytes().get(range.clone()).map_or(0, |bytes| bytes.len() as u64);
        match ty.checked_bytes() {
            None => Err(DataError::array(path, &name, ArrayProblem::TooLarge(ty.shape))),
            Some(expected) if expected != found => {
                let problem = ArrayProblem::Length { ty, expected, found };
                Err(DataError::array(path, &name, problem))
            }
            // The range of an empty array may lie outside of the file.
            Some(0) => Ok(Array { name, ty, file: file.clone(), range: 0..0 }),
            Some(_) => Ok(Array { name, ty, file: file.clone(), range }),
        }
    }

    /// The array's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The bytes where they are mapped; read from disk as they are touched.
    pub fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Copies the bytes from `start` on to `dst`, reading the file rather than the mapping:
    /// pages that are read through a mapping count as the process's memory, far more of them
    /// than the bytes asked for, and a file that was cut short is an error instead of a
    /// signal.
    ///
    /// # Errors
    /// The file cannot be read, or no longer is as long as it was.
    ///
    /// # Panics
    /// `dst` is longer than what is left of the array.
    pub fn read(&self, start: usize, dst: &mut [u8]) -> Result<(), DataError> {
        let len = self.range.len();
        assert!(start <= len && dst.len() <= len - start, "beyond the end of an array");
        self.file.read(self.range.start + start, dst)
    }

    /// Refuses a bool array with bytes other than 0 and 1; reads all of it.
    pub(super) fn check_bools(&self, path: &Path) -> Result<(), DataError> {
        if self.ty.dtype == DType::Bool && self.bytes().iter().any(|&b| b > 1) {
            return Err(DataError::array(path, &self.name, ArrayProblem::BoolValue));
        }
        Ok(())
    }
}

/// The arrays of one file, in file order.
#[derive(Debug)]
pub(super) struct Arrays {
    path: PathBuf,
    list: Vec<Array>,
    index: HashMap<String, usize>,
}

impl Arrays {
    pub(super) fn new(path: &Path) -> Self {
        Arrays { path: path.to_owned(), list: Vec::new(), index: HashMap::new() }
    }

    pub(super) fn push(&mut self, array: Array) -> Result<(), DataError> {
        if self.index.insert(array.name.clone(), self.list.len()).is_some() {
            return Err(DataError::array(&self.path, &array.name, ArrayProblem::Duplicate));
        }
        self.list.push(array);
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn list(&self) -> &[Array] {
        &self.list
    }

    pub(super) fn get(&self, name: &str) -> Option<&Array> {
        self.index.get(name).and_then(|&i| self.list.get(i))
    }
}

/// A file that stays open and mapped.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    #[cfg_attr(not(unix), expect(dead_code, reason = "read by position on Unix only"))]
    file: File,
    map: Mmap,
}

impl MappedFile {
    /// Opens and maps a regular file.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, DataError> {
        // Asked before opening: opening a pipe would wait for a writer.
        let kind = std::fs::metadata(path).map_err(|e| DataError::io("open", path, e))?;
        if !kind.is_file() {
            return Err(DataError::NotAFile(path.to_owned()));
        }
        let file = File::open(path).map_err(|e| DataError::io("open", path, e))?;
        Self::new(file, path)
    }

    /// Maps an open file; `path` is what messages call it.
    pub(super) fn new(file: File, path: &Path) -> Result<Arc<Self>, DataError> {
        // SAFETY: the mapping is read-only. That others leave the file alone while it is
        // mapped is the documented duty of the user (see the module `data`); arenic itself
        // replaces files only by renaming, which leaves mapped ones as they are.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| DataError::io("map", path, e))?;
        Ok(Arc::new(MappedFile { path: path.to_owned(), file, map }))
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Reads at a position within the mapping; much of it by several threads, since one copies less from the
    /// system's cache in a second than a GPU may want.
    fn read(&self, start: usize, dst: &mut [u8]) -> Result<(), DataError> {
        if dst.len() < 2 * PIECE {
            return self.read_piece(start, dst);
        }
        let pieces = dst.par_chunks_mut(PIECE).enumerate();
        pieces.try_for_each(|(i, piece)| self.read_piece(start + i * PIECE, piece))
    }

    fn read_piece(&self, start: usize, dst: &mut [u8]) -> Result<(), DataError> {
        #[cfg(unix)]
        let done = std::os::unix::fs::FileExt::read_exact_at(&self.file, dst, start as u64);
        #[cfg(not(unix))]
        let done = {
            dst.copy_from_slice(&self.map[start..][..dst.len()]);
            Ok(())
        };
        done.map_err(|e| DataError::io("read", &self.path, e))
    }
}
