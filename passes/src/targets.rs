//! Passes that are meant for some backends alone.

use crate::Cx;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose programs a pass rewrites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Targets {
    /// Those of every backend.
    #[default]
    All,
    /// Those of GPUs alone.
    Cuda,
}

impl Targets {
    /// True where the program that is compiled is among them.
    pub fn includes(self, cx: &Cx) -> bool {
        match self {
            Targets::All => true,
            Targets::Cuda => cx.target.backend.name == "cuda",
        }
    }
}
