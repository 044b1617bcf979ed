//! Files that appear whole or not at all.

use super::error::DataError;
use std::ffi::{OsStr, OsString};
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
    /// Creates the temporary file `.NAME.arenic-RANDOM.tmp` in the folder of `path`, with the
    /// mode of the file that is there, or else the mode that the umask leaves. A symbolic link
    /// is followed, so that the link stays. Temporary files for the same path, which processes
    /// that have ended left there, are removed.
    ///
    /// # Errors
    /// The folder does not exist or is not writable, or `path` is there and no regular
    /// file (a folder, a device).
    pub fn create(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref().to_owned();
        let target = behind_links(&path)?;
        let there = std::fs::metadata(&target).ok();
        let Some(name) = target.file_name().filter(|_| there.as_ref().is_none_or(|m| m.is_file()))
        else {
            return Err(DataError::NotAFile(path));
        };
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".arenic-");
        remove_abandoned(folder(&target), &prefix);
        let file = temporary(folder(&target), &prefix, there.as_ref()).map_err(|cause| {
            DataError::NoFile { path: path.clone(), folder: folder(&target).to_owned(), cause }
        })?;
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

/// Tries whether a file can be written at each of these paths, for commands that work long
/// before they write. Nothing is left there, and what is there stays as it is.
///
/// # Errors
/// Those of [`AtomicFile::create`], and two of the paths lead to one file.
pub fn try_to_write<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), DataError> {
    let mut targets: Vec<PathBuf> = Vec::new();
    for path in paths {
        let AtomicFile { target, .. } = AtomicFile::create(path)?;
        let whole = folder(&target).canonicalize().map_err(|e| DataError::io("find", path, e))?;
        let target = whole.join(target.file_name().unwrap_or_default());
        if targets.contains(&target) {
            return Err(DataError::Unwritable {
                path: path.to_owned(),
                detail: "something else is written there, too; name another path".to_owned(),
            });
        }
        targets.push(target);
    }
    Ok(())
}

/// The folder a path lies in.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// So many links may follow one another, as on Linux.
const MOST_LINKS: usize = 40;

/// The path that the symbolic links at `path` lead to, where nothing need be.
fn behind_links(path: &Path) -> Result<PathBuf, DataError> {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&target) {
            Ok(next) => target = folder(&target).join(next),
            Err(_) => return Ok(target),
        }
    }
    let detail = "its symbolic links lead nowhere; name another path".to_owned();
    Err(DataError::Unwritable { path: path.to_owned(), detail })
}

/// So often a temporary file is made anew where another process takes it for an abandoned one.
#[cfg(unix)]
const MOST_TRIES: usize = 100;

/// A temporary file with a lock that ends with this process, whatever ends that.
fn temporary(
    folder: &Path,
    prefix: &OsStr,
    there: Option<&std::fs::Metadata>,
) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(SUFFIX);
    #[cfg(unix)]
    let mode = there.map(|m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()) & 0o777);
    // The usual mode of a new file instead of a private one's.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode.unwrap_or(0o666)));
    #[cfg(not(unix))]
    let _ = there;
    let mut file = builder.tempfile_in(folder)?;
    #[cfg(unix)]
    for _ in 0..MOST_TRIES {
        if lock::take(file.as_file()) {
            break;
        }
        file = builder.tempfile_in(folder)?;
    }
    // The umask took bits of the mode away. Where a file system has no modes, the file is no
    // more open than the one it replaces.
    #[cfg(unix)]
    if let Some(mode) = mode {
        let _ = file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    }
    Ok(file)
}

const SUFFIX: &str = ".tmp";

/// Removes temporary files that nobody writes any more.
#[cfg(unix)]
fn remove_abandoned(folder: &Path, prefix: &OsStr) {
    let is_temporary = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        name.starts_with(prefix.as_encoded_bytes()) && name.ends_with(SUFFIX.as_bytes())
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary(&entry.file_name()) {
            lock::remove_where_free(&entry.path());
        }
    }
}

#[cfg(not(unix))]
fn remove_abandoned(_: &Path, _: &OsStr) {}

/// Advisory locks, which the system gives back when the process that holds them ends. Unlike
/// the number of a process they are the same for all containers of a machine, and network file
/// systems carry them to other machines. Where a file system has no locks, nothing is removed.
#[cfg(unix)]
mod lock {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    use rustix::io::Errno;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    /// Locks a new file; false where another process has taken it for an abandoned one and
    /// removes it.
    pub(super) fn take(file: &File) -> bool {
        let is_taken =
            matches!(flock(file, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
        !is_taken && file.metadata().is_ok_and(|m| m.nlink() > 0)
    }

    /// Removes a file that no process has locked. The lock is held until it is gone: whoever has
    /// just made it and comes too late for the lock sees so.
    pub(super) fn remove_where_free(path: &Path) {
        if !path.symlink_metadata().is_ok_and(|m| m.is_file()) {
            return;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = open(path, flags, Mode::empty()) else { return };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // What cannot be removed stays: it is in nobody's way.
            let _ = std::fs::remove_file(path);
        }
    }
}
