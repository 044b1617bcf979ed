//! Code that this user's arenic compiled: `ARENIC_CACHE`, else `arenic` in the user's folder for
//! caches. What lies there is run, so that a folder is used only if nobody else can write it.

use crate::data::AtomicFile;
use arenic_runtime::cuda::nvrtc::Architecture;
use std::env;
use std::fs::{self, DirBuilder};
use std::path::PathBuf;

/// A folder of compiled kernels. A file is named after the digest of the text, with its headers,
/// and the architecture. Nothing depends on it but time: every failure to read or write is one
/// to be without it.
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's; `None` where there is no folder that only this user can write.
    pub(super) fn of_user() -> Option<Cache> {
        let named = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = named("ARENIC_CACHE")
            .or_else(|| named("XDG_CACHE_HOME").map(|caches| caches.join("arenic")))
            .or_else(|| named("HOME").map(|home| home.join(".cache/arenic")))?
            .join("gpu-code");
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder).ok()?;
        let cache = Cache { folder };
        cache.is_private().then_some(cache)
    }

    /// True where the folder is this user's and nobody else may write it.
    #[cfg(unix)]
    fn is_private(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        // Who owns a fresh file is who this process is.
        let own = tempfile::tempfile_in(&self.folder).and_then(|file| file.metadata());
        match (fs::metadata(&self.folder), own) {
            (Ok(folder), Ok(own)) => folder.uid() == own.uid() && folder.mode() & 0o022 == 0,
            _ => false,
        }
    }

    #[cfg(not(unix))]
    fn is_private(&self) -> bool {
        true
    }

    fn path(&self, digest: &blake3::Hash, architecture: Architecture) -> PathBuf {
        self.folder.join(format!("{}.{}", digest.to_hex(), architecture.name()))
    }

    /// The code of a text with this digest.
    pub(super) fn read(
        &self,
        digest: &blake3::Hash,
        architecture: Architecture,
    ) -> Option<Vec<u8>> {
        fs::read(self.path(digest, architecture)).ok()
    }

    /// Keeps the code of a text with this digest.
    pub(super) fn write(&self, digest: &blake3::Hash, architecture: Architecture, code: &[u8]) {
        if let Ok(mut file) = AtomicFile::create(self.path(digest, architecture))
            && file.put(code).is_ok()
        {
            // Without it the text is compiled again.
            drop(file.commit());
        }
    }
}
