//! One model compiled by a [`Compiler`]: it is imported once for all targets, limits and sizes.

use super::{Compiler, Watch};
use crate::compile::{CompileError, Compiled, Constraints, Source, plan};
use crate::human_bytes;
use crate::largest::{Largest, largest};
use crate::limit::{Limit, free_bytes};
use crate::model::Model;
use crate::onnx::{ImportOptions, Imported, Mode, Training};
use arenic_backends::{ALL, CPU, CUDA};
use arenic_ir::cost::Device;
use arenic_ir::program::PerSpace;
use arenic_ir::{Backend, Math};
use arenic_passes::differentiate::{Glob, WeightRole};
use arenic_passes::pipeline::{Pipeline, Report, RunOptions};
use arenic_passes::shard::Level;
use arenic_passes::{Purpose, Search};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

impl Compiler {
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
            let help = format!("there are: {}; `loss` is for training steps", known.join(", "));
            return Err(CompileError::options(message, help));
        }
        if self.math != Math::default() && !self.targets.contains(&CUDA) {
            let message = format!("--math {} is for GPUs", self.math.name());
            return Err(CompileError::options(message, "add `--target cuda`"));
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
            ranks: self.ranks * self.micro_batches_of_ranks().unwrap_or(1),
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
}

/// Limits that are tried for an overhead.
const OVERHEADS: usize = 7;

/// What is compiled, whatever the limits and the sizes of dimensions.
pub(crate) struct Job<'a> {
    pub(super) compiler: &'a Compiler,
    model: &'a Model,
    pub(super) pipeline: Pipeline,
    pub(super) targets: Vec<Backend>,
    pub(super) import: ImportOptions,
    /// Sizes of dimensions as they are now.
    pub(super) dims: RefCell<BTreeMap<String, u64>>,
    imports: RefCell<Imports>,
    pub(super) watch: &'a Watch<'a>,
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
    pub(super) fn limit(&self) -> Result<Option<u64>, CompileError> {
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
    pub(super) fn least(&self, most: Option<u64>, overhead: f64) -> Result<Compiled, CompileError> {
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
    pub(super) fn largest(&self, name: &str, limit: Option<u64>) -> Result<Compiled, CompileError> {
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

    pub(super) fn constraints(&self, device_limit: Option<u64>) -> Constraints<'_> {
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

    pub(super) fn search(&self) -> Search<'_> {
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
        let level = self.compiler.shard;
        let mut compiled = match device_limit {
            _ if stop_after.is_some() => self.plan(self.step()?, constraints, options)?,
            None if level > Level::None => self.least_level(constraints, options)?,
            Some(_) if level == Level::Parameters => self.least_gathered(constraints, options)?,
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

    pub(super) fn plan(
        &self,
        imported: Imported,
        constraints: Constraints,
        options: RunOptions,
    ) -> Result<Compiled, CompileError> {
        self.plan_by(&self.pipeline, imported, constraints, options)
    }

    pub(super) fn plan_by(
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
    pub(super) fn step(&self) -> Result<Imported, CompileError> {
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
