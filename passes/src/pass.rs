//! What a pass is, and what it knows.
//!
//! | trait | is handed | may change |
//! |---|---|---|
//! | [`GraphPass`] | the graph, before it freezes | operators and values |
//! | [`PlanPass`] | the frozen graph, the plan | facts of the plan |
//! | [`Strategy`](crate::Strategy) | an ordered plan and a byte limit | tasks: copies, repeats |
//! | [`ProgramPass`] | graph and plan, both frozen; the program | commands |
//!
//! The traits name the few passes that the pipeline knows by more than their name: [`Differentiate`], what divides a
//! step ([`rounds::Divides`]) and a [`Placer`]. These implement the traits, so that the files import one another.

use crate::certificate::PeakBound;
use crate::differentiate::Differentiate;
use crate::error::PassError;
use crate::homes::StateHomes;
use crate::place::Placer;
use crate::rounds;
use crate::search::Search;
use arenic_ir::cost::Device;
use arenic_ir::plan::Fact;
use arenic_ir::program::PerSpace;
use arenic_ir::{Graph, Op, Plan, Program, TargetInfo, TensorType};
use std::collections::BTreeMap;

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
    /// Whether other programs take turns with this one over the same arenas.
    pub turns: Turns,
    /// Where it does: in which memory states have their homes; `None` leaves that to the passes.
    pub state_homes: Option<&'a StateHomes>,
}

/// Whether a program takes turns with others over the same arenas, so that states are the same in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// It does not.
    #[default]
    Alone,
    /// With other steps.
    OfVariants,
    /// With other parts of its step.
    OfRounds,
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
            turns: Turns::Alone,
            state_homes: None,
        }
    }
}

/// Rewrites the graph. It freezes when planning begins.
pub trait GraphPass: Send + Sync {
    /// Rewrites `g`.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError>;
    /// The pass as the one that makes a training step of a forward graph.
    fn differentiates(&self) -> Option<&Differentiate> {
        None
    }
    /// How this pass divides the step into rounds; `None` for passes that rewrite one graph.
    fn divides(&self, _: &Cx) -> Option<&dyn rounds::Divides> {
        None
    }
    /// How this pass cuts operators into parts, of which the pipeline chooses how many; `None` for passes
    /// that rewrite the one graph.
    fn in_parts(&self, _: &Cx) -> Option<&dyn InParts> {
        None
    }
}

/// A graph pass that leaves it to the pipeline how far it goes.
pub trait InParts {
    /// The graph with its largest operators in so many parts, computing the same, and how many
    /// operators are cut; 0 if nothing is.
    ///
    /// # Errors
    /// See [`PassError`].
    fn cut(&self, g: &Graph, parts: usize, cx: &Cx) -> Result<(Graph, u64), PassError>;
}

/// What a pass over plans leaves beside the plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOutcome {
    /// What it counted.
    pub stats: Stats,
    /// Why no order of the graph has a lower peak, if it proved that.
    pub bound: Option<PeakBound>,
}

impl From<Stats> for PlanOutcome {
    fn from(stats: Stats) -> Self {
        PlanOutcome { stats, bound: None }
    }
}

/// Establishes facts of the plan. That it cannot change the meaning is in its type.
pub trait PlanPass: Send + Sync {
    /// The facts it reads.
    fn needs(&self) -> &[Fact];
    /// The facts it establishes.
    fn gives(&self) -> &[Fact];
    /// Plans.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<PlanOutcome, PassError>;
    /// True for a pass that gives an ordered plan of the graph another order, which keeps what is known of the plan.
    /// Strategies change plans as they are before it.
    fn reorders(&self, _: &Graph) -> bool {
        false
    }
    /// Its method, for a pass that places and can do so without a graph.
    fn placer(&self) -> Option<&dyn Placer> {
        None
    }
}

/// Makes or completes the program.
pub trait ProgramPass: Send + Sync {
    /// The facts it reads.
    fn needs(&self) -> &[Fact];
    /// Makes or changes `program`.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(
        &self,
        g: &Graph,
        plan: &Plan,
        program: &mut Program,
        cx: &Cx,
    ) -> Result<Stats, PassError>;
    /// Bytes of device memory above the arena of a plan under a byte limit that would make the step shorter.
    fn room(&self, _g: &Graph, _cx: &Cx) -> u64 {
        0
    }
    /// Seconds that a step on the device takes longer because the pass had no room.
    fn missed_seconds(&self, _g: &Graph, _program: &Program, _device: &Device, _cx: &Cx) -> f64 {
        0.0
    }
}
