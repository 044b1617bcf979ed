//! How models are compiled: targets, byte limits, loss and optimizer, searches.
//!
//! The command line and the Python package only read options and print: both make a [`Compiler`] of them
//! (`cli/compile/arguments.rs`). A [`Job`] imports a model once for all targets, limits and sizes; `compile.rs` is
//! one compilation of it.

mod job;
mod joined;
mod levels;
mod variants;

pub(crate) use job::Job;
pub use variants::Variant;

use crate::artifact::Artifact;
use crate::compile::{CompileError, Compiled};
use crate::limit::Limit;
use crate::model::Model;
use crate::onnx::{ImportOptions, Training};
use crate::recipe::Recorded;
use arenic_ir::cost::Device;
use arenic_ir::{Backend, Math};
use arenic_passes::accumulate::Accumulate;
use arenic_passes::differentiate::{Differentiate, Glob, Optimizer};
use arenic_passes::pipeline::{NAMED, Pipeline, Report};
use arenic_passes::precision::{Format, Precision};
use arenic_passes::shard::{Level, Shard, Travels};
use arenic_passes::{Pass, Progress, Standard, devices};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Compiles models to artifacts that a checker has proved to implement them.
///
/// ```
/// use arenic::{Compiler, Limit, Model, Optimizer};
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/tiny_resnet.onnx");
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
    /// `None` for `default`.
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

    /// Kernels of GPUs stay text in the artifact, which is compiled where it runs.
    #[must_use]
    pub fn without_gpu_code(mut self) -> Compiler {
        self.no_gpu_code = true;
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
            None => Pipeline::from_yaml(NAMED[0].1, &Standard)?,
        };
        let micro_batches = self.micro_batches_of_ranks();
        if let Some(pass) = &self.differentiate {
            let accumulate = pass.accumulate.filter(|_| micro_batches.is_none());
            let pass = Differentiate { accumulate, ..pass.clone() };
            pipeline = pipeline.differentiating(pass)?;
        }
        if let Some(to) = self.precision {
            pipeline = pipeline.with_precision(Precision { to });
        }
        if self.ranks > 1 {
            pipeline = pipeline.on_ranks(self.sharded(self.shard));
        }
        if self.auto_rounds || micro_batches.is_some() {
            pipeline = pipeline.in_micro_batches(Accumulate { rounds: micro_batches });
        }
        for (name, pass, before) in &self.own {
            pipeline = pipeline.with_pass(name, pass.clone(), before)?;
        }
        Ok(pipeline)
    }

    /// How many micro-batches each of several ranks has. Their step is cut after it is shared among the ranks, so that
    /// its sums are exchanged once, after the last micro-batch.
    fn micro_batches_of_ranks(&self) -> Option<usize> {
        let wanted = self.differentiate.as_ref()?.accumulate?;
        (self.ranks > 1 && wanted > 1).then_some(wanted as usize)
    }

    /// The pass that makes the step that of one of several ranks.
    fn sharded(&self, shard: Level) -> Shard {
        let Compiler { ranks, grad_precision, sync_batch_norm, .. } = *self;
        Shard { ranks, shard, grad_precision, sync_batch_norm, ..Shard::default() }
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
