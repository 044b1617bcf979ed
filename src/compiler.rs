//! How models are compiled: targets, byte limits, loss and optimizer, searches.

mod joined;
mod levels;
mod variants;

pub use variants::Variant;

use crate::artifact::Artifact;
use crate::compile::{CompileError, Compiled, Constraints, Source, plan};
use crate::human_bytes;
use crate::largest::{Largest, largest};
use crate::limit::{Limit, free_bytes};
use crate::model::Model;
use crate::onnx::{ImportOptions, Imported, Mode, Training};
use crate::recipe::Recorded;
use arenic_backends::{ALL, CPU, CUDA};
use arenic_ir::cost::Device;
use arenic_ir::program::PerSpace;
use arenic_ir::{Backend, Math};
use arenic_passes::accumulate::Accumulate;
use arenic_passes::differentiate::{Differentiate, Glob, Optimizer, WeightRole};
use arenic_passes::pipeline::{NAMED, Pipeline, Report, RunOptions};
use arenic_passes::precision::{Format, Precision};
use arenic_passes::shard::{Level, Shard, Travels};
use arenic_passes::{Pass, Progress, Purpose, Search, Standard, devices};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Compiles models to artifacts that a checker has proved to implement them.
///
/// ```
/// use arenic::{Compiler, Limit, Model, Optimizer};
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/small_cnn.onnx");
/// let forward = Model::open(path)?.dim("batch", 32);
/// let whole = Compiler::new().loss("cross_entropy", Optimizer::Adamw).compile(&forward)?;
/// let limit = whole.arena_bytes() * 9 / 10;
/// let tight = Compiler::new()
///     .loss("cross_entropy", Optimizer::Adamw)
///     .memory(Limit::Bytes(limit))
///     .compile(&forward)?;
/// assert!(tight.arena_bytes() <= limit);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Compiler {
    /// `None` for `training` with a loss, else `default`.
    pub(crate) pipeline: Option<Pipeline>,
    /// Makes a training step of a forward model.
    pub(crate) differentiate: Option<Differentiate>,
    pub(crate) precision: Option<Format>,
    /// Ranks that run the step together, each with its rows of the batch; 1 for one process.
    pub(crate) ranks: usize,
    /// What each rank has a part of alone.
    pub(crate) shard: Level,
    /// The type in which gradients travel.
    pub(crate) grad_precision: Travels,
    /// Batch normalisation goes by the statistics of all ranks' rows.
    pub(crate) sync_batch_norm: bool,
    /// The step's rows are cut into as many rounds as make it fastest.
    pub(crate) auto_rounds: bool,
    /// Passes of the user's own: name, pass, and the pass that they come before.
    pub(crate) own: Vec<(String, Pass, String)>,
    pub(crate) targets: Vec<Backend>,
    /// What times are for.
    pub(crate) device: Option<Device>,
    /// Without another limit, the device's memory is one.
    pub(crate) is_within_device: bool,
    pub(crate) memory: Option<Limit>,
    /// Bytes that moved tensors may take in host memory.
    pub(crate) host_memory: Option<u64>,
    /// By how much the step may be longer than without a limit, as a part of it.
    pub(crate) overhead: Option<f64>,
    pub(crate) allow_reassociation: bool,
    pub(crate) math: Math,
    pub(crate) no_gpu_code: bool,
    /// The artifact holds the forward pass that evaluates what was trained.
    pub(crate) evaluation: bool,
    /// A forward model is imported as it is after training.
    pub(crate) inference: bool,
    /// How a forward model is imported for training.
    pub(crate) training: Training,
    pub(crate) import: ImportOptions,
    /// The dimension that is to be as large as fits.
    pub(crate) largest: Option<String>,
    /// Values of inputs where a run gives none.
    pub(crate) defaults: BTreeMap<String, f64>,
    pub(crate) effort: Option<f64>,
    pub(crate) time_limit: Option<f64>,
    pub(crate) seed: u64,
    pub(crate) stop_after: Option<String>,
    /// Residual branches that steps leave out, by patterns of parameters and how probable that is; and how many
    /// structures have programs of their own at most.
    pub(crate) drop_layers: Vec<(Glob, f64)>,
    pub(crate) most_structures: usize,
    /// The options that made it, where the artifact is to keep them with the model.
    pub(crate) recorded: Option<Recorded>,
}

/// Who watches a compilation, and may end its searches.
#[derive(Clone, Copy, Default)]
pub struct Watch<'a> {
    /// Ends searches when it becomes true; the best plan so far is kept.
    pub stop: Option<&'a AtomicBool>,
    /// Told of every better plan and bound.
    pub progress: Option<&'a (dyn Fn(&Progress) + Sync)>,
    /// Told what there is to say meanwhile, in sentences.
    pub note: Option<&'a dyn Fn(&str)>,
    /// Called after each pass of the first target.
    pub after_pass: Option<&'a dyn Fn(&Report)>,
}

impl Watch<'_> {
    pub(crate) fn note(&self, text: &str) {
        if let Some(note) = self.note {
            note(text);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

impl Default for Compiler {
    fn default() -> Compiler {
        Compiler::new()
    }
}

impl Compiler {
    /// For the CPU, without a byte limit, by the default pipeline.
    pub fn new() -> Compiler {
        Compiler {
            pipeline: None,
            differentiate: None,
            precision: None,
            ranks: 1,
            shard: Level::default(),
            grad_precision: Travels::default(),
            sync_batch_norm: false,
            auto_rounds: false,
            own: Vec::new(),
            targets: Vec::new(),
            device: None,
            is_within_device: false,
            memory: None,
            host_memory: None,
            overhead: None,
            allow_reassociation: false,
            math: Math::default(),
            no_gpu_code: false,
            evaluation: true,
            inference: false,
            training: Training::default(),
            import: ImportOptions::default(),
            largest: None,
            defaults: BTreeMap::new(),
            effort: None,
            time_limit: None,
            seed: 0,
            stop_after: None,
            drop_layers: Vec::new(),
            most_structures: MOST_STRUCTURES,
            recorded: None,
        }
    }

    /// Makes a training step of a forward model: `loss` is `cross_entropy`, `mse` or another of
    /// [`Differentiate::loss`], of the model's output and the input `target`. The learning rate is the input `lr`.
    #[must_use]
    pub fn loss(self, loss: &str, optimizer: Optimizer) -> Compiler {
        self.differentiate(Differentiate {
            loss: loss.to_owned(),
            optimizer,
            ..Differentiate::default()
        })
    }

    /// As [`Compiler::loss`], with all options of the pass.
    #[must_use]
    pub fn differentiate(mut self, pass: Differentiate) -> Compiler {
        self.differentiate = Some(pass);
        self
    }

    /// Replaces the pipeline. With a loss it must have the pass `differentiate`.
    #[must_use]
    pub fn pipeline(mut self, pipeline: Pipeline) -> Compiler {
        self.pipeline = Some(pipeline);
        self
    }

    /// Adds a pass of one's own before the first one called `before`. `name` is what reports call it.
    #[must_use]
    pub fn pass(mut self, name: &str, pass: Pass, before: &str) -> Compiler {
        self.own.push((name.to_owned(), pass, before.to_owned()));
        self
    }

    /// Compiles for a backend, too; for the CPU alone where none is named. The first one's figures are the
    /// artifact's.
    #[must_use]
    pub fn target(mut self, backend: Backend) -> Compiler {
        self.targets.push(backend);
        self
    }

    /// Limits the arena on the device: tensors are computed again, or moved to host memory, to keep it.
    #[must_use]
    pub fn memory(mut self, limit: impl Into<Limit>) -> Compiler {
        self.memory = Some(limit.into());
        self
    }

    /// Gives the device that predicted times are for. Its memory is a limit where there is no other.
    #[must_use]
    pub fn device(mut self, device: Device) -> Compiler {
        (self.device, self.is_within_device) = (Some(device), true);
        self
    }

    /// Products and convolutions take `bf16`, beside state and losses in `f32`.
    #[must_use]
    pub fn precision(mut self, format: Format) -> Compiler {
        self.precision = Some(format);
        self
    }

    /// Compiles for so many ranks, processes that MPI starts: sizes of the batch are a rank's, and `shard` says what
    /// each rank has a part of alone.
    #[must_use]
    pub fn ranks(mut self, ranks: usize, shard: Level) -> Compiler {
        (self.ranks, self.shard) = (ranks, shard);
        self
    }

    /// Of several ranks: batch normalisation goes by the statistics of all rows, not of each rank's own.
    #[must_use]
    pub fn sync_batch_norm(mut self) -> Compiler {
        self.sync_batch_norm = true;
        self
    }

    /// Whether the artifact of a forward model holds the forward pass that evaluates what was trained; by default it
    /// does.
    #[must_use]
    pub fn evaluation(mut self, wanted: bool) -> Compiler {
        self.evaluation = wanted;
        self
    }

    /// Imports a forward model as it is after training: nothing is dropped, statistics are the running ones.
    #[must_use]
    pub fn inference(mut self) -> Compiler {
        self.inference = true;
        self
    }

    /// Plans without tensor data: external files may be missing, and the artifact cannot be run.
    #[must_use]
    pub fn plan_only(mut self) -> Compiler {
        self.import.plan_only = true;
        self
    }

    /// Sets the effort of each search, in seconds of a reference core; 0 takes the best heuristic.
    #[must_use]
    pub fn effort(mut self, seconds: f64) -> Compiler {
        self.effort = Some(seconds);
        self
    }

    /// Leaves out residual branches whose parameters match a pattern at random, each with the probability
    /// `p` in `0..1` (stochastic depth). At most `structures` of them are variants; where there are more, one
    /// can be any.
    #[must_use]
    pub fn drop_layers(mut self, pattern: Glob, p: f64, structures: usize) -> Compiler {
        self.drop_layers.push((pattern, p));
        self.most_structures = structures;
        self
    }

    /// Compiles a model.
    ///
    /// # Errors
    /// The model holds what is not supported, no plan keeps the limit, or options contradict one another.
    pub fn compile(&self, model: &Model) -> Result<Artifact, CompileError> {
        if !self.drop_layers.is_empty() {
            let (name, structure) = (String::new(), String::new());
            return self.compile_variants(&[Variant { name, structure, model: model.clone() }]);
        }
        let compiled = self.compile_watched(model, &Watch::default())?;
        compiled.artifact.ok_or(CompileError::NoProgram)
    }

    /// As [`Compiler::compile`], but says what became of weights and limits, and is watched.
    ///
    /// # Errors
    /// As for [`Compiler::compile`].
    pub fn compile_watched(&self, model: &Model, watch: &Watch) -> Result<Compiled, CompileError> {
        let job = self.job(model, watch)?;
        let is_relative = matches!(self.memory, Some(Limit::Part(_))) || self.overhead.is_some();
        if let (Some(name), true) = (&self.largest, is_relative) {
            let message = format!("the largest {name} needs a limit that is known");
            return Err(CompileError::options(message, "give --device-memory as bytes"));
        }
        let limit = job.limit()?;
        let mut compiled = match (&self.largest, self.overhead) {
            (None, Some(overhead)) => job.least(limit, overhead)?,
            (None, None) => job.compile(limit)?,
            (Some(name), _) => job.largest(name, limit)?,
        };
        if let Some(artifact) = &mut compiled.artifact {
            artifact.recipe = job.recipe(&[("", model)])?;
        }
        Ok(Compiled { limit, ..compiled })
    }

    /// The passes that are run.
    pub(crate) fn passes(&self) -> Result<Pipeline, CompileError> {
        let mut pipeline = match &self.pipeline {
            Some(pipeline) => pipeline.clone(),
            None => {
                let name = if self.differentiate.is_some() { "training" } else { NAMED[0].0 };
                let yaml = NAMED.iter().find(|(n, _)| *n == name).map_or("", |(_, yaml)| yaml);
                Pipeline::from_yaml(yaml, &Standard)?
            }
        };
        if let Some(pass) = &self.differentiate {
            pipeline = pipeline.differentiating(pass.clone())?;
        }
        if let Some(to) = self.precision {
            pipeline = pipeline.with_precision(Precision { to });
        }
        if self.ranks > 1 {
            pipeline = pipeline.on_ranks(self.sharded(self.shard, None));
        }
        if self.auto_rounds {
            pipeline = pipeline.in_micro_batches(Accumulate::default());
        }
        for (name, pass, before) in &self.own {
            pipeline = pipeline.with_pass(name, pass.clone(), before)?;
        }
        Ok(pipeline)
    }

    /// The pass that makes the step that of one of several ranks.
    fn sharded(&self, shard: Level, bucket_bytes: Option<u64>) -> Shard {
        let Compiler { ranks, grad_precision, sync_batch_norm, .. } = *self;
        Shard { ranks, shard, grad_precision, sync_batch_norm, bucket_bytes }
    }

    /// What is compiled, whatever the limit.
    pub(crate) fn job<'a>(
        &'a self,
        model: &'a Model,
        watch: &'a Watch<'a>,
    ) -> Result<Job<'a>, CompileError> {
        let pipeline = self.passes()?;
        let known = ALL.map(|backend| backend.name);
        if let Some(unknown) = pipeline.backends().find(|backend| !known.contains(backend)) {
            let message = format!("the pipeline has a pass for `{unknown}`, which is no backend");
            return Err(CompileError::options(message, format!("there are: {}", known.join(", "))));
        }
        if self.math != Math::default() && !self.targets.contains(&CUDA) {
            let message = format!("--math {} is for GPUs", self.math.name());
            return Err(CompileError::options(message, "add `--target cuda`"));
        }
        if self.ranks > 1 && self.targets.contains(&CUDA) {
            let message = "ranks exchange tensors between CPUs alone so far";
            return Err(CompileError::options(message, "leave out `--target cuda`, or --ranks"));
        }
        let trains = pipeline.differentiation().is_some();
        let mode = match trains {
            _ if self.inference => Mode::Inference,
            true => Mode::Training(self.training),
            false if self.training != Training::default() => {
                let what = "--dropout and --bn-variance are for training a forward model";
                return Err(CompileError::options(what, "add --loss and --optimizer"));
            }
            false => Mode::AsWritten,
        };
        let mut targets = self.targets.clone();
        if targets.is_empty() {
            targets.push(CPU);
        }
        let import = ImportOptions {
            mode,
            ranks: self.ranks,
            sync_batch_norm: self.sync_batch_norm,
            ..self.import.clone()
        };
        let dims = self.import.dims.clone();
        let imports = RefCell::default();
        Ok(Job {
            compiler: self,
            model,
            pipeline,
            targets,
            import,
            dims: dims.into(),
            imports,
            watch,
        })
    }

    /// The device that times are for.
    ///
    /// # Errors
    /// Never in a release: a test reads every description.
    pub(crate) fn timed(&self) -> Result<Device, CompileError> {
        match &self.device {
            Some(device) => Ok(device.clone()),
            None => Ok(devices::cpu()?),
        }
    }
}

/// Structures that have programs of their own, where nothing else is said.
pub(crate) const MOST_STRUCTURES: usize = 8;

/// Limits that are tried for an overhead.
const OVERHEADS: usize = 7;

/// What is compiled, whatever the limits and the sizes of dimensions.
pub(crate) struct Job<'a> {
    compiler: &'a Compiler,
    model: &'a Model,
    pipeline: Pipeline,
    targets: Vec<Backend>,
    import: ImportOptions,
    /// Sizes of dimensions as they are now.
    dims: RefCell<BTreeMap<String, u64>>,
    imports: RefCell<Imports>,
    watch: &'a Watch<'a>,
}

/// Graphs of the model with the dimensions of the last compilation: one serves all targets and limits.
#[derive(Default)]
struct Imports {
    dims: BTreeMap<String, u64>,
    step: Option<Imported>,
    /// With the weights that are trained.
    evaluation: Option<(Vec<Glob>, Imported)>,
}

impl Job<'_> {
    /// The limit that was given, in bytes, or else the memory of the device that was.
    fn limit(&self) -> Result<Option<u64>, CompileError> {
        let Compiler { device, is_within_device, memory, .. } = self.compiler;
        let usable = device.as_ref().filter(|_| *is_within_device).map(Device::usable_bytes);
        let given = match memory {
            None => return Ok(usable),
            Some(Limit::Bytes(bytes)) => *bytes,
            Some(Limit::Part(part)) => {
                let whole = self.compile(None)?;
                let limit = (whole.target()?.figures.arena_bytes as f64 * part) as u64;
                let percent = part * 100.0;
                self.watch.note(&format!(
                    "the limit is {limit} bytes, {percent:.1} % of the step's arena"
                ));
                limit
            }
            Some(Limit::Free) if self.targets.contains(&CUDA) => {
                let help = "--device takes the memory of a GPU for the limit";
                return Err(CompileError::options("fit is what this machine has free", help));
            }
            Some(Limit::Free) => {
                let (free, usable) = free_bytes();
                let Some(usable) = usable else {
                    let message = format!("the machine has {} free, too little", human_bytes(free));
                    return Err(CompileError::options(message, "give a limit in bytes"));
                };
                let (free, left) = (human_bytes(free), human_bytes(free - usable));
                self.watch.note(&format!("{free} are free; the step may take all but {left}"));
                usable
            }
        };
        match usable.filter(|&usable| given > usable) {
            Some(usable) => {
                let device = device.as_ref().map_or("", |d| d.name.as_str());
                let help = format!("{device} has {usable} bytes for a plan");
                let message = format!("a limit of {given} bytes is more than the device has");
                Err(CompileError::options(message, help))
            }
            None => Ok(Some(given)),
        }
    }

    /// With the least memory that makes the step no longer than by `overhead`, as a part of it.
    fn least(&self, most: Option<u64>, overhead: f64) -> Result<Compiled, CompileError> {
        let device = self.compiler.timed()?;
        let mut best = self.compile(most)?;
        let arena =
            |compiled: &Compiled| Ok::<u64, CompileError>(compiled.target()?.figures.arena_bytes);
        let (mut keeps, mut fails) = (arena(&best)?, 0);
        for _ in 0..OVERHEADS {
            let limit = keeps.midpoint(fails);
            match self.compile(Some(limit)) {
                Ok(compiled) => {
                    let (step, whole) = compiled.seconds(&device)?;
                    if step <= whole * (1.0 + overhead) {
                        (keeps, best) = (arena(&compiled)?.min(limit), compiled);
                    } else {
                        fails = limit;
                    }
                }
                Err(e) if e.is_of_limits() => {
                    fails = e.minimum().map_or(limit, |least| limit.max(least.bytes.min(keeps)));
                }
                Err(e) => return Err(e),
            }
            if self.watch.is_stopped() {
                break;
            }
        }
        Ok(best)
    }

    /// For the largest size of a dimension that keeps the limit.
    fn largest(&self, name: &str, limit: Option<u64>) -> Result<Compiled, CompileError> {
        if limit.is_none() || self.compiler.stop_after.is_some() {
            let help = "give --device-memory or --device, and compile to the end";
            return Err(CompileError::options(
                format!("--dim {name}=max needs a byte limit"),
                help,
            ));
        }
        let attempt = |size| {
            self.dims.borrow_mut().insert(name.to_owned(), size);
            let compiled = self.compile(limit).and_then(|compiled| {
                compiled.target()?;
                Ok(compiled)
            });
            match &compiled {
                Ok(_) => self.watch.note(&format!("{name}={size} fits")),
                Err(e) if e.is_of_limits() => {
                    self.watch.note(&format!("{name}={size} does not fit"));
                }
                Err(_) => {}
            }
            compiled
        };
        static GOES_ON: AtomicBool = AtomicBool::new(false);
        let stop = self.watch.stop.unwrap_or(&GOES_ON);
        let found = largest(attempt, CompileError::is_of_limits, stop);
        let Largest { size, found, tried } = found.map_err(|(size, error)| {
            let (name, error) = (name.to_owned(), Box::new(error));
            CompileError::Size { name, size, error }
        })?;
        Ok(Compiled { largest: Some(Largest { size, found: name.to_owned(), tried }), ..found })
    }

    fn constraints(&self, device_limit: Option<u64>) -> Constraints<'_> {
        let Compiler { device, host_memory, allow_reassociation, math, no_gpu_code, .. } =
            self.compiler;
        Constraints {
            backend: self.targets.first().copied().unwrap_or(CPU),
            device: device.as_ref(),
            limits: PerSpace { device: device_limit, host: *host_memory },
            allow_reassociation: *allow_reassociation,
            math: *math,
            purpose: Purpose::Step,
            no_gpu_code: *no_gpu_code,
        }
    }

    fn search(&self) -> Search<'_> {
        let Compiler { effort, time_limit, seed, .. } = *self.compiler;
        let Watch { stop, progress, .. } = *self.watch;
        Search { effort, time_limit, seed, stop, cut: None, progress }
    }

    /// Under a limit on device memory, in bytes.
    pub(crate) fn compile(&self, device_limit: Option<u64>) -> Result<Compiled, CompileError> {
        let constraints = self.constraints(device_limit);
        let mut after_pass = |report: &Report| {
            if let Some(after_pass) = self.watch.after_pass {
                after_pass(report);
            }
        };
        let stop_after = self.compiler.stop_after.as_deref();
        let options = RunOptions { stop_after, after_pass: Some(&mut after_pass) };
        let mut compiled = match self.compiler.shard > Level::None && device_limit.is_none() {
            true if stop_after.is_none() => self.least_level(constraints, options)?,
            _ => self.plan(self.step()?, constraints, options)?,
        };
        let Some(artifact) = &mut compiled.artifact else { return Ok(compiled) };
        artifact.defaults.extend(self.compiler.defaults.clone());
        for &backend in self.targets.iter().skip(1) {
            if artifact.target(backend.name).is_none() {
                let constraints = Constraints { backend, ..constraints };
                let other = self.plan(self.step()?, constraints, RunOptions::default())?;
                if let Some(other) = other.artifact {
                    artifact.provenance.is_cut |= other.provenance.is_cut;
                    artifact.targets.extend(other.targets);
                }
            }
        }
        if self.pipeline.differentiation().is_some() && self.compiler.evaluation {
            let weights = compiled.weights.parameters.iter();
            let trained = weights.filter(|p| p.role == WeightRole::Trained);
            let trainable: Vec<Glob> = trained.map(|p| Glob::exactly(&p.name)).collect();
            for backend in self.targets.iter().copied().collect::<BTreeSet<_>>() {
                let purpose = Purpose::Evaluation;
                let constraints = Constraints { backend, purpose, ..constraints };
                let imported = self.evaluation(&trainable)?;
                let forward = self.plan(imported, constraints, RunOptions::default())?;
                if let Some(forward) = forward.artifact {
                    artifact.provenance.is_cut |= forward.provenance.is_cut;
                    artifact.evaluations.extend(forward.targets);
                }
            }
        }
        Ok(compiled)
    }

    fn plan(
        &self,
        imported: Imported,
        constraints: Constraints,
        options: RunOptions,
    ) -> Result<Compiled, CompileError> {
        self.plan_by(&self.pipeline, imported, constraints, options)
    }

    fn plan_by(
        &self,
        pipeline: &Pipeline,
        imported: Imported,
        constraints: Constraints,
        options: RunOptions,
    ) -> Result<Compiled, CompileError> {
        let (model, plan_only) = (self.model, self.import.plan_only);
        let source = Source { model, plan_only, imported };
        plan(source, pipeline, constraints, self.search(), options)
    }

    /// The graph of the step, or the forward model that it is made of.
    fn step(&self) -> Result<Imported, CompileError> {
        let mut imports = self.imports();
        let step = match imports.step.take() {
            Some(step) => step,
            None => {
                let dims = imports.dims.clone();
                self.model.import(&ImportOptions { dims, ..self.import.clone() })?
            }
        };
        Ok(imports.step.insert(step).clone())
    }

    /// The forward model as it is after training.
    fn evaluation(&self, trainable: &[Glob]) -> Result<Imported, CompileError> {
        let mut imports = self.imports();
        let evaluation = match imports.evaluation.take() {
            Some((with, evaluation)) if with == trainable => evaluation,
            _ => {
                let (mode, trainable) = (Mode::Inference, trainable.to_vec());
                let dims = imports.dims.clone();
                // One process evaluates.
                let ranks = 1;
                let options = ImportOptions { mode, trainable, dims, ranks, ..self.import.clone() };
                self.model.import(&options)?
            }
        };
        Ok(imports.evaluation.insert((trainable.to_vec(), evaluation)).1.clone())
    }

    /// The graphs with the dimensions as they are now.
    fn imports(&self) -> std::cell::RefMut<'_, Imports> {
        let (mut imports, dims) = (self.imports.borrow_mut(), self.dims.borrow());
        if imports.dims != *dims {
            *imports = Imports { dims: dims.clone(), ..Imports::default() };
        }
        imports
    }
}
