//! Where steps run, and which program of an artifact that needs.

use crate::artifact::{Artifact, Target};
use arenic_backends::{CPU, CUDA};
use arenic_ir::Backend;
use std::fmt;
use std::str::FromStr;

/// Where a step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// On this machine's processors.
    #[default]
    Cpu,
    /// On the GPU of this number; without one, on that of the process's number among the ranks of its machine, which
    /// is the first for a process alone.
    Cuda(Option<u32>),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(name: &str) -> Result<Place, String> {
        let number = name.strip_prefix("cuda:").map(str::parse);
        match (name, number) {
            ("cpu", _) => Ok(Place::Cpu),
            ("cuda", _) => Ok(Place::Cuda(None)),
            (_, Some(Ok(n))) => Ok(Place::Cuda(Some(n))),
            _ => Err("a step runs on `cpu`, on `cuda`, or on `cuda:N`, a GPU by its number".into()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(None) => f.write_str("cuda"),
            Place::Cuda(Some(n)) => write!(f, "cuda:{n}"),
        }
    }
}

/// Why an artifact cannot be run at a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It holds no tensor data.
    #[error("{0} was compiled with --plan-only and holds no tensor data")]
    PlanOnly(String),
    /// It holds no program for the backend.
    #[error("the artifact holds a program for {}, none for {backend}", .held.join(" and "))]
    Program {
        /// What it holds programs for.
        held: Vec<String>,
        /// What is needed.
        backend: &'static str,
    },
    /// It holds no forward pass to evaluate with.
    #[error("the artifact holds no forward pass to evaluate with")]
    Evaluation,
}

impl PlaceError {
    /// How to mend it.
    pub fn help(&self) -> String {
        match self {
            PlaceError::PlanOnly(_) => {
                "compile it again without --plan-only, with all external data at hand".to_owned()
            }
            PlaceError::Program { backend, .. } => format!("compile it with `--target {backend}`"),
            PlaceError::Evaluation => {
                "compile a forward model with --loss and --optimizer, without --no-eval".to_owned()
            }
        }
    }
}

impl Place {
    /// The number of the GPU, for a process of this number among the ranks of its machine; `None` for processors.
    pub fn gpu(self, local_rank: usize) -> Option<u32> {
        match self {
            Place::Cpu => None,
            Place::Cuda(given) => Some(given.unwrap_or(local_rank as u32)),
        }
    }

    fn backend(self) -> Backend {
        match self {
            Place::Cpu => CPU,
            Place::Cuda(_) => CUDA,
        }
    }

    /// The artifact's steps for this place: one, or several variants.
    ///
    /// # Errors
    /// It holds none.
    pub fn programs(self, artifact: &Artifact) -> Result<Vec<&Target>, PlaceError> {
        let backend = self.backend().name;
        let variants = artifact.variants(backend);
        if variants.is_empty() {
            let held = artifact.target_names().into_iter().map(str::to_owned).collect();
            return Err(PlaceError::Program { held, backend });
        }
        Ok(variants)
    }

    /// The artifact's forward passes for this place: one, or one for each variant.
    ///
    /// # Errors
    /// It holds none.
    pub fn evaluations(self, artifact: &Artifact) -> Result<Vec<&Target>, PlaceError> {
        self.programs(artifact)?;
        let backend = self.backend().name;
        let all: Vec<&Target> = artifact.evaluations.iter().filter(|t| t.name == backend).collect();
        if all.is_empty() { Err(PlaceError::Evaluation) } else { Ok(all) }
    }
}
