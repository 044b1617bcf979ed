//! The passes of arenic and the pipeline that runs them.
//!
//! A pass is one file and one line in the list below. Its struct *is* its YAML entry:
//! fields are options with defaults, unknown ones are refused, and the first line of its
//! doc comment is its help.

pub mod devices;
pub mod pipeline;
mod registry;
pub mod search;
pub mod simulate;

pub mod attention;
pub mod budget;
pub mod certificate;
pub mod dead_code;
pub mod detach_states;
pub mod differentiate;
pub mod early_update;
mod expression;
#[cfg(test)]
mod fixtures;
mod flow;
pub mod fold_constants;
pub mod fuse_cross_entropy;
pub mod fuse_elementwise;
pub mod fuse_gelu;
pub mod fuse_sums;
pub mod fuse_transposes;
pub mod fuse_updates;
mod group;
pub mod layout;
pub mod lower;
mod mip;
pub mod order;
pub mod order_ilp;
pub mod order_place_ilp;
pub mod place;
pub mod place_ilp;
pub mod place_pyramid;
pub mod place_smartpool;
pub mod plan_dqn;
mod polynomial;
pub mod precision;
mod products;
pub mod prune_precedence;
pub mod raise;
pub mod recompute;
mod residency;
pub mod section;
mod share;
pub mod share_in_place;
pub mod share_parallel;
pub mod spans;
pub mod streams;
pub mod swap_autoswap;
pub mod swap_ilp;
pub mod sync;
mod targets;
pub mod views;
pub mod yaml;

use crate::differentiate::Differentiate;
use crate::place::Placer;
use arenic_ir::cost::Device;
use arenic_ir::plan::{Fact, PlanError};
use arenic_ir::program::PerSpace;
use arenic_ir::{Graph, Op, Plan, Program, TargetInfo, TensorType};
pub use registry::{Pass, PassInfo};
pub use search::{Progress, Search};
use std::collections::BTreeMap;
pub use targets::Targets;

registry::passes! {
    graph fold_constants::FoldConstants,
    graph dead_code::DeadCode,
    graph fuse_transposes::FuseTransposes,
    graph differentiate::Differentiate,
    graph views::Views,
    graph raise::Raise,
    graph attention::Attention,
    graph fuse_cross_entropy::FuseCrossEntropy,
    graph fuse_updates::FuseUpdates,
    graph fuse_sums::FuseSums,
    graph fuse_gelu::FuseGelu,
    graph precision::Precision,
    graph layout::Layout,
    graph fuse_elementwise::FuseElementwise,
    graph section::Section,
    graph detach_states::DetachStates,
    plan streams::Streams,
    plan spans::Spans,
    plan early_update::EarlyUpdate,
    plan prune_precedence::PrunePrecedence,
    plan order::Order,
    plan order_ilp::OrderIlp,
    plan order_place_ilp::OrderPlaceIlp,
    plan budget::Budget,
    plan swap_autoswap::SwapAutoswap,
    plan plan_dqn::PlanDqn,
    plan recompute::Recompute,
    plan swap_ilp::SwapIlp,
    plan share_in_place::ShareInPlace,
    plan share_parallel::ShareParallel,
    plan place::Place,
    plan place_pyramid::PlacePyramid,
    plan place_smartpool::PlaceSmartpool,
    plan place_ilp::PlaceIlp,
    program lower::Lower,
    program sync::Sync,
}

/// What a pass counted: names and figures for `--print-stats`.
pub type Stats = BTreeMap<&'static str, u64>;

/// Evaluates an operator on constants; the facade passes the runtime's kernels in.
pub trait Evaluate: Sync {
    /// All results of the operator, dense and little-endian, or `None` where it refuses.
    fn evaluate(&self, op: &Op, inputs: &[(&TensorType, &[u8])]) -> Option<Vec<Vec<u8>>>;
}

/// What a program is compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A whole step.
    #[default]
    Step,
    /// A forward pass that says how good a model is: `differentiate` adds the loss alone.
    Evaluation,
}

/// What passes know besides graph and plan.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// The target planned for.
    pub target: TargetInfo,
    /// What the program is for.
    pub purpose: Purpose,
    /// Evaluates constants; without it `fold_constants` does nothing.
    pub evaluate: Option<&'a dyn Evaluate>,
    /// How searches are limited and watched.
    pub search: Search<'a>,
    /// The device that times are for; without one it is the `cpu` description.
    pub device: Option<&'a Device>,
    /// Bytes that the arenas may have.
    pub limits: PerSpace<Option<u64>>,
    /// Sums may be taken in another order where that saves memory, which changes bits.
    pub allow_reassociation: bool,
    /// What a pipeline's `differentiate` does instead of what it was told, where it was decided for
    /// this graph what is trained.
    pub differentiate: Option<&'a Differentiate>,
}

impl Cx<'_> {
    /// A target alone: constants are not evaluated, searches run as the pipeline says.
    pub const fn new(target: TargetInfo) -> Cx<'static> {
        let search = Search::USUAL;
        let limits = PerSpace { device: None, host: None };
        let (purpose, evaluate, device) = (Purpose::Step, None, None);
        Cx {
            target,
            purpose,
            evaluate,
            search,
            device,
            limits,
            allow_reassociation: false,
            differentiate: None,
        }
    }
}

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// A fact is missing, or an order is none.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The arena would be beyond any address space.
    #[error("the arena would need more than 2^60 bytes")]
    TooLarge,
    /// A graph is too large for a pass.
    #[error(
        "{tasks} tasks are too many for one program over orders and addresses (most: {most}); \
         use `order_ilp`, `share_in_place` and `place_ilp`"
    )]
    TooManyTasks {
        /// The plan's tasks.
        tasks: usize,
        /// As many as the pass takes.
        most: usize,
    },
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
    /// A strategy found no plan that keeps the limit on device memory.
    #[error(
        "`{pass}` found no plan that keeps to {limit} bytes of device memory; `budget` combines \
         all strategies"
    )]
    Limit {
        /// The strategy.
        pass: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The description of the device cannot be used.
    #[error("the device: {0}")]
    Device(#[from] yaml::YamlError),
    /// A pass needs a part of arenic that is not in this build.
    #[error("`{pass}` needs arenic built with the feature `{feature}`, which this one is not")]
    Feature {
        /// The pass.
        pass: &'static str,
        /// The feature.
        feature: &'static str,
    },
    /// The arithmetic of a neural network failed.
    #[error("the network failed: {0}")]
    Network(String),
    /// An integer program's solver failed.
    #[error("the solver failed: {0}")]
    Solver(String),
    /// The graph cannot be differentiated.
    #[error(transparent)]
    Differentiate(#[from] differentiate::DifferentiateError),
    /// A rewrite made operands that do not fit: a defect of the pass.
    #[error(transparent)]
    Type(#[from] arenic_ir::op::TypeError),
}

impl PassError {
    /// The least limit on device memory that can be kept, and the proven floor below it, in
    /// bytes, where this is what failed.
    pub fn minimum(&self) -> Option<(u64, u64)> {
        match self {
            PassError::DeviceMemory { minimum, bound, .. } => Some((*minimum, *bound)),
            _ => None,
        }
    }

    /// True where another limit on memory might do.
    pub fn is_of_limits(&self) -> bool {
        matches!(self, PassError::DeviceMemory { .. } | PassError::Limit { .. })
    }
}

/// Rewrites the graph. It freezes when planning begins.
pub trait GraphPass {
    /// Rewrites `g`.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError>;
    /// The pass as the one that makes a training step of a forward graph.
    fn differentiates(&self) -> Option<&Differentiate> {
        None
    }
    /// The pass as one that leaves the graph and offers others, if it does here.
    fn offers(&self, _: &Cx) -> Option<&dyn OffersVariants> {
        None
    }
}

/// A graph pass that leaves it to the plan how the graph is rewritten.
pub trait OffersVariants {
    /// Graphs that the rest of the pipeline should be run on, where on `g` the step takes
    /// `seconds` (infinity: no plan of it keeps the byte limit); `None` where nothing is to be
    /// gained.
    ///
    /// # Errors
    /// See [`PassError`].
    fn variants(&self, g: &Graph, cx: &Cx, seconds: f64) -> Result<Option<Variants>, PassError>;
}

/// Graphs that compute the same as another one.
pub struct Variants {
    /// Those that promise fewer seconds under the byte limit, each with the pass's figures.
    pub graphs: Vec<(Graph, Stats)>,
    /// Seconds of the step on the graph as it was if there were no limit.
    pub unlimited_seconds: f64,
    /// The least device memory of all that were tried, in bytes.
    pub minimum: u64,
    /// No plan of these graphs needs fewer bytes.
    pub bound: u64,
    /// No less is known to suffice: the search for it went to its end.
    pub is_exact: bool,
    /// That could be less if sums may be taken in another order.
    pub sums: bool,
}

/// Establishes facts of the plan. That it cannot change the meaning is in its type.
pub trait PlanPass {
    /// The facts it reads.
    fn needs(&self) -> &[Fact];
    /// The facts it establishes.
    fn gives(&self) -> &[Fact];
    /// Plans.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<Stats, PassError>;
    /// True for a pass that may move tensors to host memory.
    fn moves(&self) -> bool {
        false
    }
    /// Its method, for a pass that places and can do so without a graph.
    fn placer(&self) -> Option<&dyn Placer> {
        None
    }
}

/// Makes or completes the program.
pub trait ProgramPass {
    /// The facts it reads.
    fn needs(&self) -> &[Fact];
    /// Makes or changes `program`.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(&self, g: &Graph, plan: &Plan, program: &mut Program) -> Result<Stats, PassError>;
}
