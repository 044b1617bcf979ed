//! Inputs as files, for what reads by path.

use std::path::Path;

/// Calls `f` with the path of a file of these bytes, which is gone afterwards.
pub(crate) fn with_file<R>(name: &str, bytes: &[u8], f: impl FnOnce(&Path) -> R) -> R {
    with_folder(&[(name, bytes)], |folder| f(&folder.join(name)))
}

/// Calls `f` with the path of a folder of these files, which is gone afterwards.
pub(crate) fn with_folder<R>(files: &[(&str, &[u8])], f: impl FnOnce(&Path) -> R) -> R {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).expect("a temporary file");
    }
    f(folder.path())
}
