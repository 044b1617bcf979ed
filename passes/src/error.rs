//! Why passes fail.

use crate::report::Minimum;
use crate::{accumulate, differentiate, drop_layers, shard, yaml};
use arenic_ir::plan::PlanError;

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// A fact is missing, or an order is none.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The arena would be beyond any address space.
    #[error("the arena would need more than 2^60 bytes")]
    TooLarge,
    /// Branches cannot be left out.
    #[error(transparent)]
    Drop(#[from] drop_layers::DropError),
    /// A step that is added to others has a state or a constant that they have no home for.
    #[error("the programs that are there have no home for `{0}`, which the step needs")]
    Home(String),
    /// No plan keeps the limit on device memory.
    #[error(
        "the step cannot keep to {limit} bytes of device memory; it needs {minimum} at least \
         (no plan of this graph needs less than {bound}){}",
        if *sums { "; `section` may cut its largest operator with --allow-reassociation" } else { "" }
    )]
    DeviceMemory {
        /// The limit.
        limit: u64,
        /// The least limit that can be kept.
        minimum: u64,
        /// What one operator needs alone.
        bound: u64,
        /// That operator could be cut through its sums.
        sums: bool,
    },
    /// The search was ended from outside before it found a plan that keeps the limit on device memory.
    #[error(
        "the search was ended before it found a plan that keeps to {limit} bytes of device memory; \
         the best so far needs {least} (no plan of this graph needs less than {bound})"
    )]
    Ended {
        /// The limit.
        limit: u64,
        /// What the best plan so far needs.
        least: u64,
        /// No plan of this graph needs less.
        bound: u64,
    },
    /// A strategy found no plan that keeps the limit on device memory.
    #[error(
        "`{pass}` found no plan that keeps to {limit} bytes of device memory; `budget` combines \
         all strategies"
    )]
    Limit {
        /// The strategy.
        pass: String,
        /// The limit.
        limit: u64,
    },
    /// The description of the device cannot be used.
    #[error("the device: {0}")]
    Device(#[from] yaml::YamlError),
    /// An integer program's solver failed.
    #[error("the solver failed: {0}")]
    Solver(String),
    /// The graph cannot be differentiated.
    #[error(transparent)]
    Differentiate(#[from] differentiate::DifferentiateError),
    /// Ranks cannot run the step together.
    #[error(transparent)]
    Shard(#[from] shard::ShardError),
    /// The step cannot run in micro-batches.
    #[error(transparent)]
    Accumulate(#[from] accumulate::AccumulateError),
    /// What a pass of another crate says.
    #[error("{0}")]
    Other(String),
    /// A rewrite made operands that do not fit: a defect of the pass.
    #[error(transparent)]
    Type(#[from] arenic_ir::op::TypeError),
}

impl PassError {
    /// The least limit on device memory that can be kept, where this is what failed.
    pub fn minimum(&self) -> Option<Minimum> {
        match self {
            PassError::DeviceMemory { minimum, bound, .. } => {
                Some(Minimum { bytes: *minimum, bound: *bound, is_exact: true })
            }
            _ => None,
        }
    }

    /// True where another limit on memory might do.
    pub fn is_of_limits(&self) -> bool {
        matches!(
            self,
            PassError::DeviceMemory { .. } | PassError::Limit { .. } | PassError::Ended { .. }
        )
    }
}
