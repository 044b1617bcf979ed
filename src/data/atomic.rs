//! Files that appear whole or not at all.

use super::error::DataError;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file under a temporary name beside its target. [`AtomicFile::commit`] puts it in the
/// target's place; dropped before that, it is removed and the target stays untouched.
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates the temporary file `.NAME.RANDOM.tmp` in the folder of `path`. A symbolic
    /// link is followed, so that the link stays.
    ///
    /// # Errors
    /// The folder does not exist or is not writable, or `path` is there and no regular
    /// file (a folder, a device).
    pub fn create(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref().to_owned();
        let target = match std::fs::metadata(&path) {
            Ok(there) if !there.is_file() => return Err(DataError::NotAFile(path)),
            Ok(_) => path.canonicalize().map_err(|e| DataError::io("find", &path, e))?,
            Err(_) => path.clone(),
        };
        let Some(name) = target.file_name() else {
            return Err(DataError::NotAFile(path));
        };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        // The usual mode of a new file instead of a private one's.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder
            .tempfile_in(folder(&target))
            .map_err(|e| DataError::io("create a file in the folder of", &path, e))?;
        Ok(AtomicFile { file: BufWriter::with_capacity(1 << 18, file), path, target })
    }

    /// The path that the file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes at the present position; an error names the path.
    ///
    /// # Errors
    /// The write fails.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file.write_all(bytes).map_err(|e| DataError::io("write", &self.path, e))
    }

    /// Brings all bytes to disk, then renames the file to its target.
    ///
    /// # Errors
    /// A write or the rename fails; the target is then as it was.
    pub fn commit(self) -> Result<(), DataError> {
        let AtomicFile { file, path, target } = self;
        let fail = |e| DataError::io("write", &path, e);
        let file = file.into_inner().map_err(|e| fail(e.into_error()))?;
        file.as_file().sync_all().map_err(fail)?;
        file.persist(&target).map_err(|e| DataError::io("rename a file to", &path, e.error))?;
        // The rename itself lasts once the folder is on disk. Some file systems cannot
        // sync a folder; the file is whole either way.
        #[cfg(unix)]
        if let Ok(folder) = std::fs::File::open(folder(&target)) {
            drop(folder.sync_all());
        }
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.file.seek(pos)
    }
}

/// The folder a path lies in.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
