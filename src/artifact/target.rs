//! What an artifact holds for one target: a program, or those of a step in rounds.

use super::{Certificate, Figures, Kernels};
use crate::mapping::Mapping;
use arenic_ir::check::{self, Footprint, Violation, check, check_rounds};
use arenic_ir::cost::Device;
use arenic_ir::graph::Data;
use arenic_ir::program::{PerSpace, Program};
use arenic_ir::{DType, Graph, Rounds};
use arenic_passes::simulate::simulate_step;
use arenic_runtime::rounds::{self, RoundsError, WholeStep};
use std::collections::BTreeMap;

/// What an artifact holds for one target.
#[derive(Clone, Debug)]
pub struct Target {
    /// For example `cpu`.
    pub name: String,
    /// Which of the steps of this name it is that share their states in one arena: sizes of dimensions, or
    /// a model by a name. Empty where there is one step alone.
    pub variant: String,
    /// The model of the variant, by the name that it was given; empty where all are of one model.
    pub structure: String,
    /// The graph, frozen, with its constants and initial states.
    pub graph: Graph,
    /// The program.
    pub program: Program,
    /// What the plan takes.
    pub figures: Figures,
    /// Why no order of the graph has a much lower peak.
    pub certificate: Certificate,
    /// Initializers that were used up at compile time: replacing one has no effect.
    pub bound: Vec<String>,
    /// Inputs that hold the same in every step, with their contents: constants of a step that was added to
    /// others, which have no home for them. Nobody else feeds them.
    pub fed: BTreeMap<String, Data>,
    /// Its kernels, compiled; where there are none, or where a newer arenic would write others,
    /// they are compiled when a run begins.
    pub kernels: Option<Kernels>,
    /// Where the step runs in rounds: what runs around them. Graph, program and kernels above are
    /// those of a round then.
    pub rounds: Option<Box<Rounds<Part>>>,
    /// The file that constants and initial states lie in; none where they lie in memory.
    pub file: Mapping,
}

/// What runs once in a step in rounds, before or after them.
#[derive(Clone, Debug)]
pub struct Part {
    /// The graph, frozen, with its constants. Initial states are those of the target's graph.
    pub graph: Graph,
    /// The program.
    pub program: Program,
    /// Its kernels, as a target's.
    pub kernels: Option<Kernels>,
}

impl Part {
    fn turn(&self, name: &'static str) -> Turn<'_> {
        let Part { graph, program, kernels } = self;
        Turn { name, times: 1, graph, program, kernels: kernels.as_ref() }
    }
}

/// One of the programs of a target.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// When it runs in a step in rounds.
    pub name: &'static str,
    /// How often it runs in a step.
    pub times: u32,
    /// The graph.
    pub graph: &'a Graph,
    /// The program.
    pub program: &'a Program,
    /// Its kernels.
    pub kernels: Option<&'a Kernels>,
}

impl Target {
    /// `bf16` where the step computes or stores something in it, so that results are as precise as
    /// that, else `f32`.
    pub fn precision(&self) -> &'static str {
        let narrow = self.graph.values.values().any(|v| v.ty.dtype == DType::Bf16);
        if narrow { DType::Bf16.name() } else { DType::F32.name() }
    }

    /// The programs of a step, in the order in which they run; one of them alone is the whole step
    /// where that has no rounds.
    pub fn turns(&self) -> Vec<Turn<'_>> {
        let (graph, program, kernels) = (&self.graph, &self.program, self.kernels.as_ref());
        let main = |name, times| Turn { name, times, graph, program, kernels };
        let Some(rounds) = self.rounds.as_deref() else { return vec![main("step", 1)] };
        vec![
            rounds.before.turn("before the rounds"),
            main("each round", rounds.count),
            rounds.after.turn("after the rounds"),
        ]
    }

    /// Which of the turns runs this target's own graph and program: the step, or a round.
    pub fn main_turn(&self) -> usize {
        usize::from(self.rounds.is_some())
    }

    /// The programs of the step with their graphs, in the order of [`Target::turns`].
    pub fn parts(&self) -> Vec<check::Part<'_>> {
        self.turns().into_iter().map(|turn| (turn.graph, turn.program)).collect()
    }

    /// What a step in rounds is fed and gives, and where its parts have it; `None` for other steps.
    ///
    /// # Errors
    /// The parts make no step, which [`Artifact::read`] rules out.
    pub fn whole_step(&self) -> Result<Option<WholeStep<'_>>, RoundsError> {
        let Some(rounds) = self.rounds.as_deref() else { return Ok(None) };
        whole_step(&self.graph, &self.program, rounds).map(Some)
    }

    /// Judges every program of the step, and in rounds all against one another; gives what each
    /// uses, in the order of [`Target::turns`].
    ///
    /// # Errors
    /// The violations. Those of a step in rounds name parts in that order.
    pub fn check(&self) -> Result<Vec<Footprint>, Vec<Violation>> {
        match self.turns()[..] {
            [Turn { graph, program, .. }] => Ok(vec![check(graph, program)?]),
            _ => check_rounds(&self.parts()),
        }
    }

    /// As [`Target::check`], but gives what the program uses that is this target's own: the step's,
    /// or a round's.
    ///
    /// # Errors
    /// The violations.
    pub fn check_main(&self) -> Result<Footprint, Vec<Violation>> {
        let mut footprints = self.check()?;
        Ok(footprints.swap_remove(self.main_turn()))
    }

    /// Bytes of the arenas, which are as large as the largest program needs.
    pub fn arena_bytes(&self) -> PerSpace<u64> {
        let sizes = self.turns().into_iter().map(|turn| turn.program.sizes);
        sizes.fold(PerSpace::default(), PerSpace::largest)
    }

    /// Seconds of a step on a device, simulated: of rounds as often as they run.
    pub fn simulated_seconds(&self, device: &Device) -> f64 {
        let device = device.with_math(self.program.target.math);
        let turns = self.turns().into_iter().map(|turn| {
            f64::from(turn.times) * simulate_step(turn.graph, turn.program, &device).seconds
        });
        turns.sum()
    }
}

/// The step that a round's graph and program make with what runs around it.
///
/// # Errors
/// They make none.
pub(super) fn whole_step<'a>(
    graph: &'a Graph,
    program: &'a Program,
    all: &'a Rounds<Part>,
) -> Result<WholeStep<'a>, RoundsError> {
    let main = rounds::Part { graph, program };
    let part = |part: &'a Part| {
        Ok::<_, RoundsError>(rounds::Part { graph: &part.graph, program: &part.program })
    };
    WholeStep::new(main, &all.map(part)?)
}
