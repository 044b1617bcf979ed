//! Writing `.npz`: the outputs of every step.

use super::atomic::{AtomicFile, folder};
use super::error::DataError;
use super::npy;
use arenic_ir::types::TensorType;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use zip::write::{SimpleFileOptions, ZipWriter};

/// Collects the outputs of each step on disk, and writes them as one `.npz` at the end:
/// per output an array of shape `[steps, ...shape]`, in the given order, not compressed.
///
/// The members of an archive follow one another while outputs arrive step by step, so they
/// wait in one file without a name in the folder of the target.
#[derive(Debug)]
pub struct OutputSpool {
    target: AtomicFile,
    file: File,
    outputs: Vec<Output>,
    /// Bytes of all outputs of one step.
    step_bytes: u64,
}

#[derive(Debug)]
struct Output {
    name: String,
    ty: TensorType,
    /// Where the output lies among those of its step, in bytes.
    offset: u64,
    steps: u64,
}

impl OutputSpool {
    /// Prepares for these outputs; `path` is where [`OutputSpool::finish`] puts the archive.
    ///
    /// # Errors
    /// The folder of `path` is not writable, or an output's name or rank does not fit an
    /// archive.
    pub fn new(
        path: impl AsRef<Path>,
        outputs: &[(String, TensorType)],
    ) -> Result<Self, DataError> {
        let path = path.as_ref();
        let unwritable = |detail: String| DataError::Unwritable { path: path.to_owned(), detail };
        let mut seen = HashSet::new();
        let mut step_bytes = 0u64;
        let mut list = Vec::with_capacity(outputs.len());
        for (name, ty) in outputs {
            if !seen.insert(name) {
                return Err(unwritable(format!("two outputs are named \"{name}\"; rename one")));
            }
            if name.len() > usize::from(u16::MAX) - ".npy".len() {
                return Err(unwritable("an output's name is longer than 65531 bytes".to_owned()));
            }
            if ty.rank() >= npy::MAX_RANK {
                let detail = format!("output \"{name}\" is {ty}; NumPy stacks at most 63 axes");
                return Err(unwritable(detail));
            }
            list.push(Output { name: name.clone(), ty: ty.clone(), offset: step_bytes, steps: 0 });
            step_bytes = step_bytes
                .checked_add(ty.bytes())
                .ok_or_else(|| unwritable("the outputs are too large".to_owned()))?;
        }
        let target = AtomicFile::create(path)?;
        let file = tempfile::tempfile_in(folder(path))
            .map_err(|e| DataError::io("create a file in the folder of", path, e))?;
        Ok(OutputSpool { target, file, outputs: list, step_bytes })
    }

    /// Adds the value of output `i` at its next step.
    ///
    /// # Errors
    /// The write fails.
    ///
    /// # Panics
    /// There is no output `i`, or `bytes` is not as long as its type says.
    pub fn append(&mut self, i: usize, bytes: &[u8]) -> Result<(), DataError> {
        let output = &mut self.outputs[i];
        assert_eq!(bytes.len() as u64, output.ty.bytes(), "output {i} has another size");
        let position = output.steps * self.step_bytes + output.offset;
        output.steps += 1;
        self.file
            .seek(SeekFrom::Start(position))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(|e| DataError::io("write the outputs for", self.target.path(), e))
    }

    /// Writes the archive and puts it in its place. Each output has as many steps as were
    /// appended for it.
    ///
    /// # Errors
    /// A read or write fails; a file that was there before is then untouched.
    pub fn finish(mut self) -> Result<(), DataError> {
        let path: PathBuf = self.target.path().to_owned();
        let fail = |e: std::io::Error| DataError::io("write", &path, e);
        let mut zip = ZipWriter::new(self.target);
        let mut buf = vec![0u8; 1 << 18];
        for output in &self.outputs {
            let bytes = output.steps.saturating_mul(output.ty.bytes());
            // Sizes of 4 GiB need the 64-bit fields; the header is well below a mebibyte.
            let options = SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Stored)
                .large_file(bytes >= u64::from(u32::MAX) - (1 << 20));
            zip.start_file(format!("{}.npy", output.name), options).map_err(|e| fail(e.into()))?;
            let steps = usize::try_from(output.steps).unwrap_or(usize::MAX);
            let shape: Vec<usize> = std::iter::once(steps).chain(output.ty.shape.clone()).collect();
            zip.write_all(&npy::write_header(output.ty.dtype, &shape)).map_err(fail)?;
            for step in 0..output.steps {
                let start = SeekFrom::Start(step * self.step_bytes + output.offset);
                self.file.seek(start).map_err(fail)?;
                let mut left = output.ty.bytes();
                while left > 0 {
                    let chunk = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
                    self.file.read_exact(&mut buf[..chunk]).map_err(fail)?;
                    zip.write_all(&buf[..chunk]).map_err(fail)?;
                    left -= chunk as u64;
                }
            }
        }
        zip.finish().map_err(|e| fail(e.into()))?.commit()
    }
}
