//! Data parallel training: ranks run one step together, each on its rows of the batch.
//!
//! The graph is that of the whole batch. What each operator makes of a rank's rows follows from the table of
//! cuts, as it does for micro-batches (`accumulate`): parts of results, or terms of sums. Here
//! terms are added by the ranks as soon as they are known, by `all_reduce` or `reduce_scatter`. So a step
//! of N ranks with a batch of b rows each computes what one process computes of N·b rows, but for the
//! order of sums: means are over what all ranks count, the norm that clips gradients is that of
//! the sums, and a random operator draws for a row what it draws for it in the whole batch.
//! Sound because every cut is one of the table, as it is for micro-batches; all ranks run one graph, so that they
//! meet in every exchange. A step is shared among ranks first and divided into rounds afterwards, so that
//! exchanges run once, before the first round or after the last.
//!
//! **Sharded states** (`needs`, `build`). An update is elementwise, so that each rank can do its part of
//! it: elements are the same wherever they are computed. From `optimizer` on every rank keeps its part of
//! each moment, updates its part of the parameter by its part of the gradient's sum, and gathers the
//! parameter. With `parameters` it keeps its part of the parameter alone and gathers it before
//! it is used, once for the forward pass and once more for the backward pass; the planner
//! gives the bytes back in between. Where a limit has room for them, some stay whole until then (`kept_bytes`). These are stages 1 to 3 of Rajbhandari et al., "ZeRO" (SC 2020). Where one
//! update reads each gradient once, stages 1 and 2 are one graph: a gradient's sum never exists whole.
//!
//! Batch normalisation goes by the statistics of a rank's own rows unless it is taken apart before
//! (`sync_batch_norm`).
//!
//! All levels have the same bits. Sums are by rank, element by element, whether all of them go to all ranks
//! or a part to each; the sum of squares of a gradient is taken part by part, then by rank, at every level.
//!
//! **Buckets.** Exchanges of small tensors wait for one another and go together, up to what the device's
//! link moves while a message is under way (latency times rate): beyond that a message costs its bytes.

mod bucket;
mod build;
mod needs;
mod sync_batch_norm;

use crate::accumulate::AccumulateError;
use crate::accumulate::rows::Rows;
use crate::cluster::Cluster;
use crate::yaml::YamlError;
use crate::{Cx, GraphPass, PassError, Purpose, Stats, devices};
use arenic_ir::cost::Device;
use arenic_ir::graph::{Def, Graph, Node, Ranks, ValueId};
use arenic_ir::op::{MAX_RANKS, Op, TypeError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Runs the step on several ranks, each with its rows of the batch and its part of the states.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shard {
    /// How many ranks.
    #[schemars(range(min = 1, max = 65536))]
    pub ranks: usize,
    /// What each rank has a part of alone.
    pub shard: Level,
    /// The type in which gradients travel.
    pub grad_precision: Travels,
    /// Batch normalisation goes by the statistics of all ranks' rows, not of the rank's own.
    pub sync_batch_norm: bool,
    /// Bytes of tensors that are exchanged together at most; without it what the device's link makes of them.
    pub bucket_bytes: Option<u64>,
    /// Bytes of parameters that stay whole from the forward pass to the backward pass, those of the last layers
    /// first. The others are gathered once more.
    pub kept_bytes: u64,
}

impl Default for Shard {
    fn default() -> Self {
        let (shard, grad_precision) = Default::default();
        Shard {
            ranks: 1,
            shard,
            grad_precision,
            sync_batch_norm: false,
            bucket_bytes: None,
            kept_bytes: 0,
        }
    }
}

/// What each rank has a part of alone.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// The optimizer's states.
    Optimizer,
    /// These, and sums of gradients.
    Gradients,
    /// These, and parameters.
    Parameters,
}

impl Level {
    /// All of them, the one with the most bytes first.
    pub const ALL: [Level; 4] =
        [Level::None, Level::Optimizer, Level::Gradients, Level::Parameters];

    /// The level of a rank's graph. Of one in which each gradient's sum is read once it is [`Level::Optimizer`], whichever
    /// of the two that are one graph then was asked for.
    pub fn of(g: &Graph) -> Level {
        let is_part = |v: &ValueId| match g.values[*v].def {
            Def::State(s) => g.states[s].part_of.is_some(),
            _ => false,
        };
        let gathers = |node: &Node| {
            matches!(node.op, Op::AllGather { .. }) && node.inputs.iter().any(is_part)
        };
        match g.states.values().any(|state| state.part_of.is_some()) {
            false => Level::None,
            true if g.nodes.values().any(gathers) => Level::Parameters,
            true => Level::Optimizer,
        }
    }

    /// The name in options.
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::Optimizer => "optimizer",
            Level::Gradients => "gradients",
            Level::Parameters => "parameters",
        }
    }
}

/// The type in which gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Travels {
    /// As they are.
    #[default]
    F32,
    /// Each rank's term rounded to `bf16`; their sum is taken in `f32` and rounded once.
    Bf16,
}

/// Why ranks cannot run a step together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// No input holds a batch.
    #[error("ranks have nothing to share: no input that the step reads has rows of a batch")]
    NoBatch,
    /// The batch has no equal parts.
    #[error("the {extent} rows of `{name}` are no {ranks} equal parts, one for each of the ranks")]
    Uneven {
        /// The input.
        name: String,
        /// Its rows.
        extent: usize,
        /// How many ranks.
        ranks: usize,
    },
    /// An operator needs all rows at once.
    #[error(
        "{op} `{name}` needs all rows of the batch at once, so that no rank can compute it of its own; \
         compile the step without --ranks"
    )]
    Operator {
        /// The operator.
        op: String,
        /// The node's name, or its result's.
        name: String,
    },
    /// A random operator whose numbers all rows have in common.
    #[error(
        "{op} `{name}` draws numbers that all rows of the batch have in common, and every rank would draw \
         others; compile the step without --ranks"
    )]
    Random {
        /// The operator.
        op: String,
        /// The node's name.
        name: String,
    },
    /// A state has a row for each row of the batch.
    #[error(
        "the state `{0}` has rows of the batch, and every rank would have others; compile the step \
         without --ranks"
    )]
    State(String),
    /// An output that no rank has whole.
    #[error(
        "the output `{0}` cannot be put together from the ranks' rows; compile the step without \
         --ranks, or without that output"
    )]
    Output(String),
    /// Types that do not fit: a defect of the pass.
    #[error(transparent)]
    Type(#[from] TypeError),
}

impl From<AccumulateError> for ShardError {
    fn from(e: AccumulateError) -> Self {
        match e {
            AccumulateError::NoBatch => ShardError::NoBatch,
            AccumulateError::Uneven { name, extent, count } => {
                ShardError::Uneven { name, extent, ranks: count }
            }
            AccumulateError::Operator { op, name, .. } => ShardError::Operator { op, name },
            AccumulateError::State(name) => ShardError::State(name),
            AccumulateError::Output(name) => ShardError::Output(name),
            AccumulateError::Type(e) => ShardError::Type(e),
        }
    }
}

impl GraphPass for Shard {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        // What evaluates a model runs in one process.
        if self.ranks < 2 || cx.purpose == Purpose::Evaluation {
            return Ok(Stats::new());
        }
        let mut whole = g.clone();
        if self.sync_batch_norm {
            sync_batch_norm::take_apart(&mut whole)?;
        }
        let by_rows = Default::default();
        whole.ranks = Some(Ranks { count: self.ranks.min(MAX_RANKS), by_rows });
        let rows = Rows::of_ranks(&whole, self.ranks).map_err(ShardError::from)?;
        let bucket = match self.bucket_bytes {
            Some(bytes) => bytes,
            None => bucket_bytes(cx.device)?,
        };
        let (new, stats) = build::build(rows, self, bucket)?;
        *g = new;
        Ok(stats)
    }
}

/// Bytes that the device's link moves in the time that a message takes at least.
///
/// # Errors
/// Never in a release: a test reads the description that stands for no device.
pub fn bucket_bytes(device: Option<&Device>) -> Result<u64, YamlError> {
    let device = devices::or_cpu(device)?;
    let wire = Cluster::of_device(&device).within;
    Ok((wire.latency_seconds * wire.bytes_per_second) as u64)
}
