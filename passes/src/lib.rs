//! The passes of arenic and the pipeline that runs them.
//!
//! A pass is one file and one line in the list below. Its struct *is* its YAML entry:
//! fields are options with defaults, unknown ones are refused, and the first line of its
//! doc comment is its help.

pub mod pipeline;
mod registry;

pub mod certificate;
pub mod dead_code;
pub mod detach_states;
pub mod early_update;
pub mod fold_constants;
pub mod fuse_cross_entropy;
pub mod fuse_transposes;
pub mod fuse_updates;
pub mod lower;
mod mip;
pub mod order;
pub mod order_ilp;
pub mod place;
pub mod prune_precedence;
pub mod share_in_place;
pub mod spans;
pub mod sync;
pub mod views;

use arenic_ir::plan::{Fact, PlanError};
use arenic_ir::{Graph, Op, Plan, Program, TargetInfo, TensorType};
pub use registry::{Pass, PassInfo};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

registry::passes! {
    graph fold_constants::FoldConstants,
    graph dead_code::DeadCode,
    graph fuse_transposes::FuseTransposes,
    graph views::Views,
    graph fuse_cross_entropy::FuseCrossEntropy,
    graph fuse_updates::FuseUpdates,
    graph detach_states::DetachStates,
    plan spans::Spans,
    plan early_update::EarlyUpdate,
    plan prune_precedence::PrunePrecedence,
    plan order::Order,
    plan order_ilp::OrderIlp,
    plan share_in_place::ShareInPlace,
    plan place::Place,
    program lower::Lower,
    program sync::Sync,
}

/// What a pass counted: names and figures for `--print-stats`.
pub type Stats = BTreeMap<&'static str, u64>;

/// Evaluates an operator on constants; the facade passes the runtime's kernels in.
pub trait Evaluate {
    /// All results of the operator, dense and little-endian, or `None` where it refuses.
    fn evaluate(&self, op: &Op, inputs: &[(&TensorType, &[u8])]) -> Option<Vec<Vec<u8>>>;
}

/// What passes know besides graph and plan.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// The target planned for.
    pub target: TargetInfo,
    /// Evaluates constants; without it `fold_constants` does nothing.
    pub evaluate: Option<&'a dyn Evaluate>,
    /// How searches are limited and watched.
    pub search: Search<'a>,
}

impl Cx<'_> {
    /// A target alone: constants are not evaluated, searches run as the pipeline says.
    pub const fn new(target: TargetInfo) -> Cx<'static> {
        let search = Search { time_limit: None, seed: 0, stop: None, progress: None };
        Cx { target, evaluate: None, search }
    }
}

/// How passes that search are limited and watched from outside.
#[derive(Clone, Copy, Default)]
pub struct Search<'a> {
    /// Seconds for each search, instead of what the pipeline says.
    pub time_limit: Option<f64>,
    /// Seed of random moves.
    pub seed: u64,
    /// Ends searches when it becomes true; the best found so far is kept.
    pub stop: Option<&'a AtomicBool>,
    /// Told of every better solution and bound.
    pub progress: Option<&'a dyn Fn(&Progress)>,
}

/// What a search tells while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What found the incumbent.
    pub method: &'a str,
    /// Peak of the best solution so far, in bytes.
    pub incumbent: u64,
    /// No solution has a lower peak, in bytes.
    pub bound: u64,
}

impl<'a> Search<'a> {
    /// Limits of a search that begins now and that the pipeline allows some seconds.
    pub(crate) fn limits(&self, seconds: f64) -> order::Limits<'a> {
        order::Limits::new(self.time_limit.unwrap_or(seconds), self.seed, self.stop)
    }

    pub(crate) fn report(&self, progress: &Progress) {
        if let Some(listener) = self.progress {
            listener(progress);
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
    /// An integer program's solver failed.
    #[error("the solver failed: {0}")]
    Solver(String),
    /// A rewrite made operands that do not fit: a defect of the pass.
    #[error(transparent)]
    Type(#[from] arenic_ir::op::TypeError),
}

/// Rewrites the graph. It freezes when planning begins.
pub trait GraphPass {
    /// Rewrites `g`.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError>;
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
