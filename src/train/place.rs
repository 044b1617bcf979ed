//! Where steps run, and which program of an artifact that needs.

use crate::artifact::{Artifact, Target};
use arenic_ir::Backend;
use std::fmt;
use std::str::FromStr;

/// Where a step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// On this machine's processors.
    #[default]
    Cpu,
    /// On the GPU of this number.
    Cuda(u32),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(name: &str) -> Result<Place, String> {
        let number = name.strip_prefix("cuda:").map(str::parse);
        match (name, number) {
            ("cpu", _) => Ok(Place::Cpu),
            ("cuda", _) => Ok(Place::Cuda(0)),
            (_, Some(Ok(n))) => Ok(Place::Cuda(n)),
            _ => Err("a step runs on `cpu` or on `cuda:N`, a GPU by its number".into()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(n) => write!(f, "cuda:{n}"),
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
    fn backend(self) -> Backend {
        match self {
            Place::Cpu => Backend::CPU,
            Place::Cuda(_) => Backend::CUDA,
        }
    }

    /// The artifact's program for this place.
    ///
    /// # Errors
    /// It holds none.
    pub fn program(self, artifact: &Artifact) -> Result<&Target, PlaceError> {
        let backend = self.backend().name();
        artifact.target(backend).ok_or_else(|| {
            let held = artifact.targets.iter().map(|t| t.name.clone()).collect();
            PlaceError::Program { held, backend }
        })
    }

    /// The artifact's forward pass for this place.
    ///
    /// # Errors
    /// It holds none.
    pub fn evaluation(self, artifact: &Artifact) -> Result<&Target, PlaceError> {
        self.program(artifact)?;
        artifact.evaluation(self.backend().name()).ok_or(PlaceError::Evaluation)
    }
}
