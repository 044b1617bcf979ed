//! The artifact: one file that holds everything needed to check and run a step.
//!
//! ```text
//! 0      magic "arenic\0\0", format version (u32), length of the header (u64),
//!        blake3 digest of everything else (32 bytes), zeros up to byte 64
//! 64     header: a protobuf message (`Header`)
//! …      4 KiB-aligned section of constants, 4 KiB-aligned section of initial states;
//!        each entry begins at a multiple of 64, and entries of equal contents are one
//! ```
//!
//! Graph and program are held in the text form, which has one printer and one parser;
//! only their larger tensors are in the sections, which are mapped, never copied. All
//! integers are little-endian. The same input and options give the same bytes.

mod figures;
mod header;
mod layout;
mod read;
mod recipe;
mod target;
mod write;

use crate::data::DataError;
use crate::drops::Drops;
use crate::recipe::Recipe;
use arenic_ir::check::{Footprint, Violation, check_variants};
use arenic_ir::program::PerSpace;
use arenic_ir::verify::Defect;
pub use figures::Figures;
pub use header::{Boundary, Certificate, Held, KernelImage, Kernels, Provenance};
use std::collections::BTreeMap;
use std::path::PathBuf;
pub use target::{Part, Target, Turn};

/// A compiled step: for each target a program that the checker has proved to implement its graph.
///
/// ```
/// use arenic::{Artifact, Compiler, Model};
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/digits/digits_step.onnx");
/// let artifact = Compiler::new().compile(&Model::open(path)?.dim("batch", 8))?;
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("digits.arenic");
/// artifact.write(&file)?;
/// assert_eq!(Artifact::read(&file)?.arena_bytes(), artifact.arena_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Artifact {
    /// One graph and checked program per target.
    pub targets: Vec<Target>,
    /// For a step that was made of a forward model: per target the forward pass that evaluates
    /// what was trained.
    pub evaluations: Vec<Target>,
    /// Values of inputs where a run gives none.
    pub defaults: BTreeMap<String, f64>,
    /// Where it came from.
    pub provenance: Provenance,
    /// False for a plan without data, which can be inspected but not run.
    pub runnable: bool,
    /// How to compile it at other sizes; `None` where that is not known.
    pub recipe: Option<Recipe>,
    /// Branches that its steps leave out; `None` where they leave out none.
    pub drops: Option<Drops>,
    /// The file that it was read from; `None` for one that was not.
    pub origin: Option<Origin>,
}

/// The file of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Where it is.
    pub path: PathBuf,
    /// The blake3 digest of its contents.
    pub digest: [u8; 32],
}

/// Why a file could not be written or read as an artifact.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The file system refused.
    #[error("cannot read `{}`: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] DataError),
    /// Not an artifact, or not one this version reads.
    #[error("`{}` {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The graph inside is malformed.
    #[error("`{}` holds a malformed graph: {defect}", path.display())]
    Graph {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        defect: Defect,
    },
}

impl Artifact {
    /// Bytes of the first target's arena on the device, which all its variants share.
    pub fn arena_bytes(&self) -> u64 {
        self.targets.first().map_or(0, |target| self.arenas(&target.name).device)
    }

    /// The target of this name; of several variants the first.
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|t| t.name == name)
    }

    /// The variants of the target of this name: steps that may follow one another in any sequence, over
    /// states that they have in common.
    pub fn variants(&self, name: &str) -> Vec<&Target> {
        self.targets.iter().filter(|t| t.name == name).collect()
    }

    /// The names of the targets, each once.
    pub fn target_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for target in &self.targets {
            if !names.contains(&&target.name[..]) {
                names.push(&target.name);
            }
        }
        names
    }

    /// What evaluates what the target of this name trains; of several variants the first.
    pub fn evaluation(&self, name: &str) -> Option<&Target> {
        self.evaluations.iter().find(|t| t.name == name)
    }

    /// Judges the programs of a target: each against its graph, and all variants against one another.
    /// Gives what each uses, by variant and in the order of [`Target::turns`].
    ///
    /// # Errors
    /// The violations; of several programs they name these by their places among those of all
    /// variants.
    pub fn check(&self, name: &str) -> Result<Vec<Vec<Footprint>>, Vec<Violation>> {
        let steps: Vec<_> = self.variants(name).into_iter().map(Target::parts).collect();
        check_variants(&steps)
    }

    /// Bytes of the arenas of a target, which are as large as its largest variant needs.
    pub fn arenas(&self, name: &str) -> PerSpace<u64> {
        let sizes = self.variants(name).into_iter().map(Target::arena_bytes);
        sizes.fold(PerSpace::default(), PerSpace::largest)
    }
}
