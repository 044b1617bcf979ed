//! From a model file to a checked artifact.

mod joined;
mod variants;

pub use joined::Misfit;
pub(crate) use joined::compile_joined;
pub(crate) use variants::{compile_variants, structures};

use crate::artifact::{Artifact, Certificate, Figures, Part, Provenance, Target, Turn};
use crate::evaluator::Kernels;
use crate::gpu_code::{self, CodeError};
use crate::largest::Largest;
use crate::mapping::Mapping;
use crate::model::Model;
use crate::onnx::parameters::Said;
use crate::onnx::{ImportError, ImportOptions, Imported};
use arenic_backends::{CPU, CUDA};
use arenic_ir::check::Footprint;
use arenic_ir::cost::Device;
use arenic_ir::graph::Data;
use arenic_ir::program::{Command, PerSpace, Program, Space};
use arenic_ir::text::Module;
use arenic_ir::{Backend, DType, Def, Graph, Math, Op, TargetInfo, ValueId};
use arenic_passes::certificate::{self, floor};
use arenic_passes::differentiate::{Differentiate, Glob, Parameter};
use arenic_passes::order::definition_order_peak;
use arenic_passes::pipeline::{PartOutcome, Pipeline, PipelineOutcome, RunError, RunOptions};
use arenic_passes::simulate::roofline;
use arenic_passes::yaml::YamlError;
use arenic_passes::{
    Cx, Evaluate, Minimum, PassError, PlanReport, Purpose, Search, StateHomes, Turns, devices,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a model could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The pipeline failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The figures about the plan could not be computed.
    #[error(transparent)]
    Figures(#[from] PassError),
    /// The pipeline's plan is above a limit.
    #[error(
        "the plan needs {arena} bytes of {space} memory, the limit is {limit}; the pass `budget` keeps \
         limits, and the pipeline does without it"
    )]
    Limit {
        /// Whose limit.
        space: Space,
        /// The limit, in bytes.
        limit: u64,
        /// What the plan needs, in bytes.
        arena: u64,
    },
    /// Variants that cannot be of one artifact.
    #[error("{0}")]
    Variants(String),
    /// A step that does not fit the arena of those that it is added to.
    #[error("it needs an arena of {} bytes, and there are {}", .0.least, .0.arena)]
    Joined(Misfit),
    /// Kernels for a GPU could not be made.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The pipeline stopped at a plan.
    #[error("the pipeline makes no program; end it with `lower` and `sync`")]
    NoProgram,
    /// The model file could not be read again for its digest.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// What is asked for contradicts itself or cannot be had here.
    #[error("{message}")]
    Options {
        /// What.
        message: String,
        /// How to mend it.
        help: String,
    },
    /// A size of the dimension that was to be as large as fits.
    #[error("{name}={size} {}: {error}", if error.is_of_limits() { "does not fit" } else { "cannot be compiled" })]
    Size {
        /// The dimension.
        name: String,
        /// Its size.
        size: u64,
        /// Why not.
        error: Box<CompileError>,
    },
    /// A pipeline or a description of a device.
    #[error(transparent)]
    Yaml(#[from] YamlError),
}

impl CompileError {
    pub(crate) fn options(message: impl Into<String>, help: impl Into<String>) -> CompileError {
        CompileError::Options { message: message.into(), help: help.into() }
    }

    /// How to mend it, where the message does not say that.
    pub fn help(&self) -> Option<&str> {
        match self {
            CompileError::Options { help, .. } => Some(help),
            _ => None,
        }
    }

    /// True where another limit on memory might do.
    pub fn is_of_limits(&self) -> bool {
        match self {
            CompileError::Limit { .. } | CompileError::Joined(_) => true,
            CompileError::Run(RunError::Pass { error, .. }) => error.is_of_limits(),
            CompileError::Size { error, .. } => error.is_of_limits(),
            _ => false,
        }
    }

    /// The least limit on device memory that can be kept, where this is why the compilation failed.
    pub fn minimum(&self) -> Option<Minimum> {
        match self {
            CompileError::Run(RunError::Pass { error, .. }) => error.minimum(),
            CompileError::Size { error, .. } => error.minimum(),
            _ => None,
        }
    }
}

/// What a compilation gives.
pub struct Compiled {
    /// The artifact; `None` where the pipeline made no program.
    pub artifact: Option<Artifact>,
    /// Graph, plan and program as far as the pipeline went.
    pub module: Module,
    /// What the checker says of the program.
    pub footprint: Option<Footprint>,
    /// Initializers that nothing depends on.
    pub unused: Vec<String>,
    /// Where a forward model became a step: its weights.
    pub weights: Weights,
    /// What planning learned: under a limit on device memory the least one that can be kept, and what
    /// the limit costs.
    pub report: PlanReport,
    /// The limit on device memory, in bytes, where there is one.
    pub limit: Option<u64>,
    /// Where a dimension was to be as large as fits: its name, and its size.
    pub largest: Option<Largest<String>>,
}

/// The weights of a forward model that became a step.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// Each, and what becomes of it.
    pub parameters: Vec<Parameter>,
    /// What the file says of them.
    pub said: Said,
    /// What its exporter seems to have left out.
    pub notes: Vec<String>,
}

impl Weights {
    /// Decides what is trained: makes constants of all other weights of a graph, and gives the
    /// pass that trains what is left.
    ///
    /// # Errors
    /// Nothing can be trained, or a pattern fits nothing.
    pub fn decided(
        g: &mut Graph,
        pass: &Differentiate,
        said: Said,
        stops: &[String],
        mut notes: Vec<String>,
    ) -> Result<(Weights, Differentiate), PassError> {
        let mut pass = Differentiate { weights: said.standing.clone(), ..pass.clone() };
        pass.stop_gradient.extend(stops.iter().map(|name| Glob::exactly(name)));
        if !stops.is_empty() {
            notes.push(format!("gradients stop at `{}`, as the file says", stops.join("`, `")));
        }
        notes.extend(pass.remarks(g)?);
        let parameters = pass.parameters(g)?;
        let pass = pass.settled(g, &parameters);
        Ok((Weights { parameters, said, notes }, pass))
    }
}

impl Compiled {
    /// The one target of the artifact.
    ///
    /// # Errors
    /// [`CompileError::NoProgram`].
    pub fn target(&self) -> Result<&Target, CompileError> {
        self.artifact.as_ref().and_then(|a| a.targets.first()).ok_or(CompileError::NoProgram)
    }

    /// Seconds of a step, simulated, and those without a limit, which are of every kernel once.
    ///
    /// # Errors
    /// [`CompileError::NoProgram`].
    pub fn seconds(&self, device: &Device) -> Result<(f64, f64), CompileError> {
        Ok(seconds(self.target()?, device, self.report.uncut_seconds))
    }
}

/// Seconds of a step, simulated, and those without a limit: of every kernel as often as its part of
/// the step runs, unless the operators are those of a step that was cut.
fn seconds(target: &Target, device: &Device, uncut: Option<f64>) -> (f64, f64) {
    let turn_seconds = |turn: Turn| {
        let device = device.with_math(turn.program.target.math);
        let kernel = roofline(turn.graph, &device);
        f64::from(turn.times) * turn.graph.nodes.keys().map(kernel).sum::<f64>()
    };
    let unlimited = || target.turns().into_iter().map(turn_seconds).sum();
    (target.simulated_seconds(device), uncut.unwrap_or_else(unlimited))
}

/// What a plan must keep to, and the device that its times are for.
#[derive(Clone, Copy, Debug)]
pub struct Constraints<'a> {
    /// Whose kernels will run it.
    pub backend: Backend,
    /// The device; without one it is the `cpu` description.
    pub device: Option<&'a Device>,
    /// Bytes that the arenas may have. Without a limit on host memory there is no host arena where
    /// it would lie in the device's own memory, as on the CPU, else as large a one as is of use.
    pub limits: PerSpace<Option<u64>>,
    /// Sums may be taken in another order where that saves memory, which changes bits.
    pub allow_reassociation: bool,
    /// How a GPU's libraries multiply.
    pub math: Math,
    /// What the program is for.
    pub purpose: Purpose,
    /// Kernels for GPUs are left as text, which is compiled where they first run.
    pub no_gpu_code: bool,
}

/// A step on the CPU, without limits.
impl Default for Constraints<'_> {
    fn default() -> Self {
        Constraints {
            backend: CPU,
            device: None,
            limits: PerSpace::default(),
            allow_reassociation: false,
            math: Math::default(),
            purpose: Purpose::default(),
            no_gpu_code: false,
        }
    }
}

/// Compiles a model for one target.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(
    model: &Model,
    import: &ImportOptions,
    pipeline: &Pipeline,
    constraints: Constraints,
    search: Search,
    options: RunOptions,
) -> Result<Compiled, CompileError> {
    let imported = model.import(import)?;
    let source = Source { model, plan_only: import.plan_only, imported };
    plan(source, pipeline, constraints, search, options)
}

/// An imported model.
pub(crate) struct Source<'m> {
    /// What it was imported from.
    pub(crate) model: &'m Model,
    /// Tensors may be known by type alone.
    pub(crate) plan_only: bool,
    /// The graph.
    pub(crate) imported: Imported,
}

/// Compiles an imported model for one target.
///
/// # Errors
/// See [`CompileError`].
pub(crate) fn plan(
    source: Source,
    pipeline: &Pipeline,
    constraints: Constraints,
    search: Search,
    options: RunOptions,
) -> Result<Compiled, CompileError> {
    let planning = Planning::new(source, pipeline, constraints, search)?;
    let outcome = planning.run(0, Turns::Alone, None, options)?;
    planning.finished(outcome)
}

/// A model that is imported and to be planned.
struct Planning<'a> {
    model: &'a Model,
    plan_only: bool,
    pipeline: &'a Pipeline,
    constraints: Constraints<'a>,
    search: Search<'a>,
    /// As it was imported, with what is not trained as constants.
    graph: Graph,
    bound: Vec<String>,
    unused: Vec<String>,
    defaults: BTreeMap<String, f64>,
    weights: Weights,
    /// The pass that trains it.
    differentiate: Option<Differentiate>,
    target: TargetInfo,
    device: Option<Device>,
    limits: PerSpace<Option<u64>>,
    /// True once a time limit, or the user, has ended a search.
    cut: AtomicBool,
}

impl<'a> Planning<'a> {
    fn new(
        source: Source<'a>,
        pipeline: &'a Pipeline,
        constraints: Constraints<'a>,
        search: Search<'a>,
    ) -> Result<Self, CompileError> {
        let Source { model, plan_only, imported } = source;
        let Imported { mut graph, bound, unused, defaults, said, stops, notes } = imported;
        let (weights, differentiate) = match (pipeline.differentiation(), constraints.purpose) {
            (Some(pass), Purpose::Step) => {
                let (weights, pass) = Weights::decided(&mut graph, pass, said, &stops, notes)?;
                (weights, Some(pass))
            }
            _ => (Weights::default(), None),
        };
        let Constraints { backend, device, limits, math, .. } = constraints;
        let least = backend.target();
        let align = device.map_or(0, |d| d.alignment).max(least.align);
        let math = if backend == CUDA { math } else { least.math };
        // What was measured may need less; a part of the alignment is no workspace.
        let used = device.and_then(|d| d.workspace?.checked_next_multiple_of(align));
        let workspace = used.map_or(least.workspace, |used| used.min(least.workspace));
        let target = TargetInfo { align, math, workspace, ..least };
        // Without a description the kernels of a backend run where it runs.
        let unified = device.map_or(backend == CPU, |d| d.unified_memory);
        let device = device.map(|d| d.with_math(math));
        let limits = PerSpace { host: limits.host.or(unified.then_some(0)), ..limits };
        Ok(Planning {
            model,
            plan_only,
            pipeline,
            constraints,
            search,
            graph,
            bound,
            unused,
            defaults,
            weights,
            differentiate,
            target,
            device,
            limits,
            cut: AtomicBool::new(false),
        })
    }

    fn cx(&self, turns: Turns) -> Cx<'_> {
        Cx {
            target: self.target,
            purpose: self.constraints.purpose,
            evaluate: Some(&Kernels as &dyn Evaluate),
            search: Search { cut: Some(&self.cut), ..self.search },
            device: self.device.as_ref(),
            limits: self.limits,
            allow_reassociation: self.constraints.allow_reassociation,
            differentiate: self.differentiate.as_ref(),
            turns,
            state_homes: None,
        }
    }

    /// Runs the pipeline. Of the limit on device memory, `reserved` bytes are others'.
    fn run(
        &self,
        reserved: u64,
        turns: Turns,
        state_homes: Option<&StateHomes>,
        options: RunOptions,
    ) -> Result<PipelineOutcome, CompileError> {
        let mut cx = Cx { state_homes, ..self.cx(turns) };
        cx.limits.device = cx.limits.device.map(|limit| limit.saturating_sub(reserved));
        let outcome = self.pipeline.run(self.graph.clone(), &cx, options);
        Ok(outcome.map_err(|e| e.with_reserved(reserved))?)
    }

    /// What the pipeline's outcome comes to.
    fn finished(self, outcome: PipelineOutcome) -> Result<Compiled, CompileError> {
        let cx = self.cx(Turns::Alone);
        let Constraints { backend, no_gpu_code, .. } = self.constraints;
        let report = outcome.report;
        let module = outcome.module;
        let rounds = outcome.rounds;
        let artifact = match (&outcome.footprint, &module.program) {
            (Some(footprint), Some(program)) => {
                let parts = rounds.as_ref().map_or(Vec::new(), |r| vec![&r.before, &r.after]);
                let mut footprint = footprint.clone();
                parts.iter().for_each(|part| footprint.cover(&part.footprint));
                for space in Space::ALL {
                    let (limit, arena) = (self.limits[space], footprint.arena_bytes[space]);
                    if let Some(limit) = limit.filter(|&limit| arena > limit) {
                        return Err(CompileError::Limit { space, limit, arena });
                    }
                }
                let bound = match &report.peak_bound {
                    Some(known) => known.clone(),
                    None => certificate::bound(&module.graph, program.nodes(), &cx)?,
                };
                // What holds for orders holds no longer where tensors leave or are made again.
                let bound_bytes = match moves_tensors(program) {
                    true => floor(&module.graph, &cx)?,
                    false => bound.bytes,
                };
                let bound_bytes = bound_bytes.saturating_add(waiting(program));
                let compiles = backend == CUDA && !self.plan_only && !no_gpu_code;
                let kernels = |graph: &Graph, program: &Program| match compiles {
                    true => gpu_code::make(graph, program),
                    false => Ok(None),
                };
                let figures = figures(&module.graph, program, &footprint, bound_bytes, &cx)?;
                let stored =
                    |g: &Graph| if self.plan_only { without_weights(g) } else { g.clone() };
                let part = |part: &PartOutcome| {
                    let (graph, program) = (stored(&part.graph), part.program.clone());
                    Ok::<_, CodeError>(Part { kernels: kernels(&graph, &program)?, graph, program })
                };
                let rounds_of_target =
                    rounds.as_ref().map(|rounds| rounds.map(part)).transpose()?;
                let mut target = Target {
                    kernels: kernels(&module.graph, program)?,
                    name: backend.name.into(),
                    variant: String::new(),
                    structure: String::new(),
                    graph: stored(&module.graph),
                    program: program.clone(),
                    figures,
                    certificate: Certificate::from(&bound),
                    bound: self.bound,
                    fed: BTreeMap::new(),
                    rounds: rounds_of_target.map(Box::new),
                    file: Mapping::default(),
                };
                target.figures.micro_batches = rounds.as_ref().map(|rounds| rounds.count.into());
                if self.limits.device.is_some() {
                    let device = devices::or_cpu(self.device.as_ref()).map_err(PassError::from)?;
                    let (step, unlimited) = seconds(&target, &device, report.uncut_seconds);
                    let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
                    target.figures.step_nanoseconds = Some(nanoseconds(step));
                    target.figures.unlimited_step_nanoseconds = Some(nanoseconds(unlimited));
                    target.figures.step_nanoseconds_bound = report.seconds_bound().map(nanoseconds);
                }
                let is_cut = self.cut.load(Ordering::Relaxed);
                let provenance = Provenance { is_cut, ..provenance(self.model, self.pipeline)? };
                Some(Artifact {
                    targets: vec![target],
                    evaluations: Vec::new(),
                    defaults: self.defaults,
                    provenance,
                    runnable: !self.plan_only,
                    recipe: None,
                    drops: None,
                    origin: None,
                })
            }
            _ => None,
        };
        Ok(Compiled {
            artifact,
            module,
            footprint: outcome.footprint,
            unused: self.unused,
            weights: self.weights,
            report,
            limit: None,
            largest: None,
        })
    }
}

/// The graph as an artifact has it that cannot run: without contents of states and of large constants.
fn without_weights(g: &Graph) -> Graph {
    /// Bytes of constants that are shown.
    const SHOWN: u64 = 4096;
    let mut g = g.clone();
    for state in g.states.values_mut() {
        state.init = state.init.take().map(|_| Data::Absent);
    }
    for value in g.values.values_mut() {
        if matches!(value.def, Def::Const(_)) && value.ty.bytes() > SHOWN {
            value.def = Def::Const(Data::Absent);
        }
    }
    g
}

/// The figures of a plan; peaks and arenas come from the checker (invariant I11).
fn figures(
    g: &Graph,
    program: &Program,
    footprint: &Footprint,
    bound: u64,
    cx: &Cx,
) -> Result<Figures, CompileError> {
    let (arena, peak) = (footprint.arena_bytes, footprint.live_peak_bytes);
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
    let mut figures = Figures {
        arena_bytes: arena.device,
        live_peak_bytes: peak.device,
        lower_bound_bytes: bound,
        definition_order_bytes: definition_order_peak(g, cx)?.saturating_add(waiting(program)),
        fragmentation_bytes: arena.device.saturating_sub(peak.device),
        host_arena_bytes: arena.host,
        state_bytes: sum(&mut g.states.values().map(|s| g.ty(s.enter).bytes())),
        constant_bytes: sum(&mut g.consts().map(|(v, _)| g.ty(v).bytes())),
        nodes: g.nodes.len() as u64,
        swapped_bytes: swapped_bytes(program),
        recomputed_nodes: (program.nodes().count() - distinct_nodes(program)) as u64,
        ..Figures::default()
    };
    let narrow = || g.values.values().filter(|v| v.ty.dtype == DType::Bf16);
    if narrow().next().is_some() {
        let roots = narrow().filter(|v| !matches!(v.def, Def::View { .. }));
        figures.bf16_bytes = Some(sum(&mut roots.map(|v| v.ty.bytes())));
        let of_bf16 = |v: &ValueId| g.ty(*v).dtype == DType::Bf16;
        let operators = g.nodes.values().filter(|node| {
            let mut all = node.inputs.iter().chain(node.outputs.iter().flatten());
            !matches!(node.op, Op::Cast { .. }) && all.any(of_bf16)
        });
        figures.bf16_operators = Some(operators.count() as u64);
    }
    Ok(figures)
}

/// Bytes in which inputs of the next step wait, in whatever order the step runs.
fn waiting(program: &Program) -> u64 {
    let align = program.target.align;
    program.ahead.iter().map(|ahead| ahead.range.len.next_multiple_of(align)).sum()
}

/// Bytes that the step copies between device and host memory.
fn swapped_bytes(program: &Program) -> u64 {
    let swapped = program.commands.iter().map(|command| match command {
        Command::Copy { from, to, .. } if from.space != to.space => from.len,
        _ => 0,
    });
    swapped.sum()
}

/// True where a program copies tensors to host memory and back, or computes some again.
pub fn moves_tensors(program: &Program) -> bool {
    swapped_bytes(program) > 0 || program.nodes().count() > distinct_nodes(program)
}

fn distinct_nodes(program: &Program) -> usize {
    program.nodes().collect::<std::collections::HashSet<_>>().len()
}

fn provenance(model: &Model, pipeline: &Pipeline) -> Result<Provenance, CompileError> {
    let digest = model.digest().map_err(|(path, error)| CompileError::Io { path, error })?;
    Ok(Provenance {
        compiler: format!("arenic {}", env!("CARGO_PKG_VERSION")),
        model: model.name().to_owned(),
        model_digest: digest.to_vec(),
        passes: pipeline.names().map(str::to_owned).collect(),
        is_cut: false,
    })
}
