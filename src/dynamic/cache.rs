//! Steps that were compiled while training, in a folder beside the artifact: `step.arenic.d`.
//!
//! A file is an artifact of one step, named after the digest of the artifact, the target and the variant.
//! Nothing depends on it but time: every failure to read or write one is to be without it, and whoever
//! takes a step from it judges that first.

use crate::artifact::{Artifact, Origin};
use std::path::PathBuf;

/// The folder of an artifact's steps.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    /// Of the artifact.
    digest: [u8; 32],
}

impl Cache {
    /// The folder beside an artifact.
    pub(super) fn beside(origin: &Origin) -> Cache {
        let mut folder = origin.path.clone().into_os_string();
        folder.push(".d");
        Cache { folder: folder.into(), digest: origin.digest }
    }

    fn path(&self, target: &str, variant: &str) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.digest);
        for text in [env!("CARGO_PKG_VERSION"), target, variant] {
            hasher.update(text.as_bytes()).update(&[0]);
        }
        self.folder.join(format!("{}.arenic", hasher.finalize().to_hex()))
    }

    /// The step that is kept; `None` where none is, or where its file was cut or altered.
    pub(super) fn read(&self, target: &str, variant: &str) -> Option<Artifact> {
        Artifact::read(&self.path(target, variant)).ok()
    }

    /// Keeps a step.
    pub(super) fn write(&self, target: &str, variant: &str, step: &Artifact) {
        let _ = std::fs::create_dir_all(&self.folder);
        let _ = step.write(&self.path(target, variant));
    }
}
