//! `arenic compile`

use super::device::{note_unmeasured, read_profiled};
use super::dims::{Dimension, Dimensions, parse_dimension};
use super::interrupt;
use super::loss::{LossOptions, MicroBatches, parameters_json};
use super::memory::{Limit, free_bytes, parse_limit, parse_percent};
use super::pipeline::read_pipeline;
use super::search::{CUT, SearchOptions};
use super::size::parse_size;
use super::sweep::{self, Sweep};
use super::variants::{self, Only, parse_only};
use super::{Failure, Json, Outcome, can_write, failed, human_bytes, name_value, print};
use arenic::artifact::Target;
use arenic::compile::{CompileError, Compiled, Constraints, compile};
use arenic::data::Npz;
use arenic::explain;
use arenic::largest::{Largest, largest};
use arenic::onnx::{ImportOptions, Mode};
use arenic_ir::cost::Device;
use arenic_ir::program::PerSpace;
use arenic_ir::{Backend, Math, TensorType};
use arenic_passes::accumulate::Accumulate;
use arenic_passes::differentiate::{Glob, Role};
use arenic_passes::pipeline::{NAMED, Pipeline, Report, RunOptions};
use arenic_passes::precision::{Format, Precision};
use arenic_passes::{Minimum, Purpose, Search, devices};
use clap::Args;
use miette::miette;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `arenic compile`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The model
    #[arg(required_unless_present_any = ["ort", "variants"])]
    model: Option<PathBuf>,
    /// Instead of a model, a folder of ONNX Runtime's training artifacts: training_model.onnx,
    /// optimizer_model.onnx and checkpoint become one step, with the learning rate as input `lr`
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    ort: Option<PathBuf>,
    /// The artifact to write
    #[arg(short = 'o', value_name = "OUT.arenic", required_unless_present_any = ["stop_after", "sweep"])]
    pub(super) artifact: Option<PathBuf>,
    /// A pipeline file, or the name of a pipeline (see `arenic pipeline list`) [default: default; with
    /// --loss: training]
    #[arg(long, value_name = "P.yaml")]
    pipeline: Option<String>,
    /// Size of a symbolic dimension; NAME=max is the largest one that keeps the limit. Several sizes make
    /// a variant of each combination: steps over one arena, which share their states
    #[arg(long = "dim", value_name = "NAME=N[,N...]", value_parser = parse_dimension)]
    dims: Vec<Dimension>,
    /// Of these combinations the ones with such sizes, for example batch=8,seq=*
    #[arg(long, value_name = "NAME=N|*,...", value_parser = parse_only)]
    only: Vec<Only>,
    /// A model whose step is a variant by this name. States of equal names are one state, and those that
    /// a variant lacks stay as they are
    #[arg(long = "variant", value_name = "NAME=MODEL", value_parser = name_value, conflicts_with_all = ["model", "ort"])]
    variants: Vec<(String, String)>,
    /// Carry output Y into input X from step to step
    #[arg(long = "state", value_name = "X=Y", value_parser = name_value)]
    states: Vec<(String, String)>,
    /// Make an input a constant: the array of its name in an .npz file
    #[arg(long = "bind", value_name = "NAME=FILE", value_parser = name_value)]
    bind: Vec<(String, String)>,
    /// What the step may take on the device, for example 4GiB: tensors are computed again, or moved to
    /// host memory, to keep it. 60% or half are of the step's arena without a limit; fit is what this
    /// machine has free, less a margin
    #[arg(long, visible_alias = "memory", value_name = "SIZE", value_parser = parse_limit)]
    pub(super) device_memory: Option<Limit>,
    /// Bytes that moved tensors may take in host memory [default: none on a CPU, whose memory that is;
    /// no limit for a GPU]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    host_memory: Option<u64>,
    /// The other way round: the least memory with which the step is at most so much longer, for
    /// example 2%, as predicted
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, conflicts_with_all = ["device_memory", "sweep", "stop_after"])]
    pub(super) overhead: Option<f64>,
    /// Let `section` cut sums, which changes bits
    #[arg(long)]
    allow_reassociation: bool,
    /// Whose kernels run the step: cpu or cuda. Given more than once, the artifact holds a program
    /// for each; figures are then of the first
    #[arg(long = "target", value_name = "T", default_value = Backend::CPU.name(), value_parser = backend)]
    pub(super) targets: Vec<Backend>,
    /// Leave the kernels for GPUs as text, which is compiled where they first run
    #[arg(long)]
    pub(super) no_gpu_code: bool,
    /// Arithmetic of a GPU's libraries in products and convolutions: f32, or tf32, which rounds
    /// operands to 10 bits for tensor cores
    #[arg(long, value_name = "M", default_value = Math::F32.name(), value_parser = math)]
    math: Math,
    /// What products and convolutions take: f32, or bf16, beside state, updates and losses of f32. A
    /// short way to the pass `precision`
    #[arg(long, value_name = "P", value_parser = precision)]
    precision: Option<Format>,
    /// A device file, cuda:N, or one of cpu, gtx1080ti, titanx, p100, a100, h100, h200, rtx4090: times are
    /// for it, and without --device-memory its memory is the limit
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// Times of kernels that `arenic profile` measured on the device
    #[arg(long, value_name = "TABLE")]
    profile: Option<PathBuf>,
    /// Import a forward model as it is after training: nothing is dropped, statistics are running ones
    #[arg(long, conflicts_with = "loss")]
    inference: bool,
    /// Leave out the forward pass that `arenic eval` runs
    #[arg(long, requires = "loss")]
    pub(super) no_eval: bool,
    /// Say what the step needs beside what the forward pass alone needs
    #[arg(long, requires = "loss", conflicts_with = "no_eval")]
    pub(super) compare: bool,
    #[command(flatten)]
    pub(super) loss: LossOptions,
    /// Print what each limit costs instead of writing an artifact: percentages of the arena
    /// without a limit, 100%..30% or 100%..30%:5% [default step: 10%]
    #[arg(long, value_name = "RANGE", conflicts_with_all = ["artifact", "device_memory", "stop_after"])]
    pub(super) sweep: Option<Sweep>,
    /// Plan without tensor data: missing external files are fine, the artifact cannot be run
    #[arg(long)]
    plan_only: bool,
    /// Print the module to stderr after this pass (`all`: after each)
    #[arg(long, value_name = "PASS")]
    dump_ir_after: Vec<String>,
    /// Stop after this pass, print the module to stdout and write no artifact
    #[arg(long, value_name = "PASS")]
    pub(super) stop_after: Option<String>,
    /// Print what each pass counted and how long it took to stderr
    #[arg(long)]
    print_stats: bool,
    #[command(flatten)]
    pub(super) search: SearchOptions,
    #[command(flatten)]
    pub(super) json: Json,
}

impl Arguments {
    /// Shows what a pass has left, where that is asked for.
    pub(super) fn after_pass(&self, report: &Report) {
        let wanted = |n: &String| n == "all" || n == report.pass;
        if self.dump_ir_after.iter().any(wanted) {
            tell!("# after {}\n{}", report.pass, report.module);
        }
        if self.print_stats {
            let stats: Vec<String> =
                report.stats.iter().map(|(name, n)| format!("{name}={n}")).collect();
            let ms = report.elapsed.as_secs_f64() * 1e3;
            tell!("{:<18} {ms:>9.2} ms  {}", report.pass, stats.join(" "));
        }
    }

    /// The limit follows from what the step takes.
    fn is_relative(&self) -> bool {
        matches!(self.device_memory, Some(Limit::Part(_))) || self.overhead.is_some()
    }

    /// The model's file, or the folder of training artifacts.
    fn source(&self) -> Result<&Path, Failure> {
        match (&self.model, &self.ort) {
            (Some(model), _) if model.is_dir() => {
                let help = "a folder of ONNX Runtime's training artifacts is given by --ort";
                Err(miette!(help = help, "`{}` is a folder, no model", model.display()).into())
            }
            (_, Some(ort)) if !ort.is_dir() => {
                let help = "--ort takes the folder with training_model.onnx, optimizer_model.onnx \
                            and checkpoint";
                Err(miette!(help = help, "`{}` is no folder", ort.display()).into())
            }
            (Some(path), _) | (None, Some(path)) => Ok(path),
            (None, None) => Err(miette!("neither a model nor --ort is given").into()),
        }
    }
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let start = Instant::now();
    let source = if a.variants.is_empty() { Some(a.source()?) } else { None };
    can_write(&a.artifact)?;
    let usual = if a.loss.loss.is_some() { "training" } else { NAMED[0].0 };
    let name = a.pipeline.as_deref().unwrap_or(usual);
    let mut pipeline = read_pipeline(name, Pipeline::from_yaml)?;
    if let Some(pass) = a.loss.pass()? {
        pipeline = pipeline.differentiating(pass).map_err(failed)?;
    }
    if let Some(to) = a.precision {
        pipeline = pipeline.with_precision(Precision { to, ..Precision::default() });
    }
    let passes: Vec<&str> = pipeline.names().collect();
    for name in a.stop_after.iter().chain(a.dump_ir_after.iter().filter(|n| *n != "all")) {
        if !passes.contains(&name.as_str()) {
            let known = passes.join(", ");
            return Err(miette!("the pipeline has no pass `{name}`; it has {known}").into());
        }
    }
    if a.math != Math::default() && !a.targets.contains(&Backend::CUDA) {
        let help = "add `--target cuda`";
        return Err(miette!(help = help, "--math {} is for GPUs", a.math.name()).into());
    }
    let counted = a.loss.accumulate.and_then(MicroBatches::count);
    if counted.is_some() && a.loss.loss.is_none() && a.ort.is_none() {
        let help = "give --loss, or --ort; `--accumulate auto` is for every step";
        let message = "--accumulate N has a model's rows N times, in steps that are made here";
        return Err(miette!(help = help, "{message}").into());
    }
    if a.loss.accumulate == Some(MicroBatches::Auto) {
        pipeline = pipeline.in_micro_batches(Accumulate::default());
    }
    let dims = Dimensions::new(&a.dims)?;
    let trains = pipeline.differentiation().is_some();
    let mode = if a.inference { Mode::Inference } else { a.loss.mode(trains)? };
    let import = ImportOptions {
        mode,
        dims: dims.given.clone(),
        states: a.states.clone(),
        plan_only: a.plan_only,
        bind: bound(&a.bind)?,
        micro_batches: a.ort.as_ref().and(counted).map(usize::from),
        ..a.loss.import()
    };
    let named = match (a.device.as_deref(), a.profile.as_deref()) {
        (None, None) => None,
        (name, profile) => Some(read_profiled(name.unwrap_or(devices::NAMED[0].0), profile)?),
    };
    let timed = match &named {
        Some(device) => device.clone(),
        None => devices::cpu().map_err(failed)?,
    };
    let progress = a.search.listener();
    let search = a.search.with(interrupt::flag(), &progress);
    let variants = variants::named(&a.variants, source, &dims, &a.only, &import)?;
    let source = match &variants[..] {
        [only] => &only.model,
        _ => source.unwrap_or(Path::new("")),
    };
    let job = Job { a, source, pipeline: &pipeline, device: named.as_ref(), search };
    if variants.len() > 1 {
        if let Some(name) = &dims.largest {
            let help = "give one size of each other dimension";
            return Err(miette!(help = help, "{name}=max is for one step, not variants").into());
        }
        let device = match a.device_memory {
            Some(Limit::Part(_)) => None,
            _ => job.limit(&import)?,
        };
        let limits = PerSpace { device, host: a.host_memory };
        let constraints = Constraints { limits, ..job.constraints(None) };
        let job = variants::Job { a, pipeline: &pipeline, constraints, search, start };
        return job.run(&variants);
    }
    if let Some(sweep) = a.sweep {
        if let Some(name) = &dims.largest {
            return Err(miette!("--sweep needs a size for {name}, not max").into());
        }
        let compile = |limit| job.compile(&import, limit);
        return sweep::run(sweep, &timed, compile, interrupt::flag(), a.json);
    }
    if let (Some(name), true) = (&dims.largest, a.is_relative()) {
        let help = "give --device-memory as bytes";
        return Err(miette!(help = help, "the largest {name} needs a limit that is known").into());
    }
    let limit = job.limit(&import)?;
    let (compiled, largest) = match (&dims.largest, a.overhead) {
        (None, Some(overhead)) => (job.compile_least(&import, &timed, limit, overhead)?, None),
        (None, None) => (job.compile(&import, limit).map_err(|e| refused(a, e))?, None),
        (Some(name), _) => {
            let Largest { size, found, tried } = job.compile_largest(import, name, limit)?;
            (found, Some((name, size, tried)))
        }
    };
    if a.profile.is_some() {
        note_unmeasured(&timed, &compiled.module.graph);
    }
    if !compiled.weights.parameters.is_empty() {
        LossOptions::print(&compiled.weights, a.search.verbose);
    }
    for name in &compiled.unused {
        tell!("note: initializer `{name}` is not used");
    }
    if a.stop_after.is_some() {
        return print(&compiled.module);
    }
    let target = compiled.target().map_err(failed)?;
    if let Some(artifact) = &compiled.artifact
        && let Some(gpu) = artifact.target(Backend::CUDA.name())
        && gpu.kernels.is_none()
        && artifact.runnable
    {
        tell!("note: there is no NVRTC here; kernels are compiled when a run begins");
    }
    let (Some(artifact), Some(output)) = (&compiled.artifact, &a.artifact) else { return Ok(()) };
    artifact.write(output).map_err(failed)?;
    let is_cut = artifact.provenance.is_cut;
    let seconds = start.elapsed().as_secs_f64();
    let (step, unlimited) = compiled.seconds(&timed).map_err(failed)?;
    if a.json.json {
        let mut object = figures(target, compiled.minimum);
        object.insert("search_cut".into(), is_cut.into());
        object.insert("predicted_step_seconds".into(), step.into());
        object.insert("unlimited_step_seconds".into(), unlimited.into());
        if let Some(bound) = compiled.step_seconds_bound {
            object.insert("step_seconds_bound".into(), bound.into());
        }
        if let Some((name, size, tried)) = largest {
            let largest = json!({"dimension": name, "size": size, "compilations": tried});
            object.insert("largest".into(), largest);
        }
        if a.loss.loss.is_some() {
            object.insert("parameters".into(), parameters_json(&compiled.weights));
        }
        if let Some(forward) = artifact.evaluation(&target.name).filter(|_| a.compare) {
            object.insert("inference".into(), Value::Object(figures(forward, None)));
        }
        object.insert("seconds".into(), seconds.into());
        return print(Value::Object(object));
    }
    if let Some((name, size, tried)) = largest {
        tell!("{name}={size} is the largest that fits, by {tried} compilations");
    }
    summary(&target.statistics, output, seconds);
    if is_cut {
        tell!("note: {CUT}");
    }
    if let Some(forward) = artifact.evaluation(&target.name).filter(|_| a.compare) {
        let arena = |t: &Target| t.statistics.get("arena_bytes").copied().unwrap_or(0);
        let (forward, step) = (arena(forward), arena(target));
        let percent = forward as f64 / step.max(1) as f64 * 100.0;
        tell!("the forward pass alone takes {}, {percent:.1} % of that", human_bytes(forward));
    }
    if named.is_some() || limit.is_some() || a.overhead.is_some() {
        let percent = |seconds: f64| (seconds / unlimited - 1.0) * 100.0;
        let least = compiled.step_seconds_bound.filter(|_| step > unlimited);
        let least = least.map_or(String::new(), |s| format!(", at least {:+.1} %", percent(s)));
        let (name, ms, overhead) = (&timed.name, step * 1e3, percent(step));
        tell!("simulated on {name}: {ms:.3} ms a step, overhead {overhead:+.1} %{least}");
    }
    match compiled.minimum {
        Some(Minimum { bytes, is_exact: true, .. }) => tell!("the least limit is {bytes} bytes"),
        Some(Minimum { bytes, bound, .. }) => {
            tell!("the least limit is at most {bytes} bytes, and at least {bound}");
        }
        None => {}
    }
    Ok(())
}

/// What there is to say of a target for scripts.
pub(super) fn figures(target: &Target, minimum: Option<Minimum>) -> Map<String, Value> {
    let mut object = Map::from_iter([("target".to_owned(), target.name.as_str().into())]);
    object.insert("math".into(), target.program.target.math.name().into());
    object.insert("precision".into(), target.precision().into());
    let statistics = target.statistics.iter();
    object.extend(statistics.map(|(name, figure)| (name.clone(), (*figure).into())));
    let known = minimum.map(Minimum::figures).unwrap_or_default();
    object.extend(known.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())));
    let figure = |name: &str| target.statistics.get(name).copied().unwrap_or(0);
    let (peak, bound) = (figure("live_peak_bytes"), figure("lower_bound_bytes"));
    object.insert("proved_optimal".into(), (peak == bound).into());
    object.insert("gap".into(), explain::relative_gap(peak, bound).into());
    object.insert("certificate".into(), explain::stored_to_json(target));
    object
}

/// Limits that are tried for an overhead.
const OVERHEADS: usize = 7;

/// What is compiled, whatever the limits and the sizes of dimensions.
struct Job<'a> {
    a: &'a Arguments,
    source: &'a Path,
    pipeline: &'a Pipeline,
    device: Option<&'a Device>,
    search: Search<'a>,
}

impl Job<'_> {
    /// The limit that was given, in bytes, or else the memory of the device that was.
    fn limit(&self, import: &ImportOptions) -> Result<Option<u64>, Failure> {
        let Job { a, device, .. } = self;
        let usable = device.filter(|_| a.device.is_some()).map(Device::usable_bytes);
        let given = match a.device_memory {
            None => return Ok(usable),
            Some(Limit::Bytes(bytes)) => bytes,
            Some(Limit::Part(part)) => {
                let whole = self.compile(import, None).map_err(failed)?;
                let arena = whole.target().map_err(failed)?.statistics.get("arena_bytes").copied();
                let limit = (arena.unwrap_or(0) as f64 * part) as u64;
                tell!("the limit is {limit} bytes, {:.1} % of the step's arena", part * 100.0);
                limit
            }
            Some(Limit::Free) if a.targets.contains(&Backend::CUDA) => {
                let help = "--device takes the memory of a GPU for the limit";
                return Err(miette!(help = help, "fit is what this machine has free").into());
            }
            Some(Limit::Free) => free_bytes()?,
        };
        match usable.filter(|&usable| given > usable) {
            Some(usable) => {
                let device = device.map_or("", |d| d.name.as_str());
                let help = format!("{device} has {usable} bytes for a plan");
                let message = format!("a limit of {given} bytes is more than the device has");
                Err(miette!(help = help, "{message}").into())
            }
            None => Ok(Some(given)),
        }
    }

    /// With the least memory that makes the step no longer than by `overhead`, as a part of it.
    fn compile_least(
        &self,
        import: &ImportOptions,
        device: &Device,
        most: Option<u64>,
        overhead: f64,
    ) -> Result<Compiled, Failure> {
        let mut best = self.compile(import, most).map_err(|e| refused(self.a, e))?;
        let arena = |compiled: &Compiled| {
            let target = compiled.target().map_err(failed)?;
            Ok::<u64, Failure>(target.statistics.get("arena_bytes").copied().unwrap_or(0))
        };
        let (mut keeps, mut fails) = (arena(&best)?, 0);
        for _ in 0..OVERHEADS {
            let limit = keeps.midpoint(fails);
            match self.compile(import, Some(limit)) {
                Ok(compiled) => {
                    let (step, whole) = compiled.seconds(device).map_err(failed)?;
                    if step <= whole * (1.0 + overhead) {
                        (keeps, best) = (arena(&compiled)?.min(limit), compiled);
                    } else {
                        fails = limit;
                    }
                }
                Err(e) if e.is_of_limits() => {
                    fails = e.minimum().map_or(limit, |least| limit.max(least.bytes.min(keeps)));
                }
                Err(e) => return Err(failed(e)),
            }
            if interrupt::flag().load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
        }
        Ok(best)
    }

    fn constraints(&self, device_limit: Option<u64>) -> Constraints<'_> {
        let a = self.a;
        Constraints {
            backend: a.targets.first().copied().unwrap_or_default(),
            device: self.device,
            limits: PerSpace { device: device_limit, host: a.host_memory },
            allow_reassociation: a.allow_reassociation,
            math: a.math,
            purpose: Purpose::Step,
            no_gpu_code: a.no_gpu_code,
        }
    }

    fn compile(
        &self,
        import: &ImportOptions,
        device_limit: Option<u64>,
    ) -> Result<Compiled, CompileError> {
        let a = self.a;
        let mut after_pass = |report: &Report| a.after_pass(report);
        let options =
            RunOptions { stop_after: a.stop_after.as_deref(), after_pass: Some(&mut after_pass) };
        let constraints = self.constraints(device_limit);
        let mut compiled =
            compile(self.source, import, self.pipeline, constraints, self.search, options)?;
        let Some(artifact) = &mut compiled.artifact else { return Ok(compiled) };
        artifact.defaults.extend(a.loss.defaults());
        for &backend in a.targets.iter().skip(1) {
            if artifact.target(backend.name()).is_none() {
                let constraints = Constraints { backend, ..constraints };
                let options = RunOptions::default();
                let other =
                    compile(self.source, import, self.pipeline, constraints, self.search, options)?;
                if let Some(other) = other.artifact {
                    artifact.provenance.is_cut |= other.provenance.is_cut;
                    artifact.targets.extend(other.targets);
                }
            }
        }
        if self.pipeline.differentiation().is_some() && !a.no_eval {
            let weights = compiled.weights.parameters.iter();
            let trained = weights.filter(|p| p.role == Role::Trained);
            let trainable = trained.map(|p| Glob::exactly(&p.name)).collect();
            let import = ImportOptions { mode: Mode::Inference, trainable, ..import.clone() };
            for backend in a.targets.iter().copied().collect::<BTreeSet<_>>() {
                let purpose = Purpose::Evaluation;
                let constraints = Constraints { backend, purpose, ..constraints };
                let options = RunOptions::default();
                let forward = compile(
                    self.source,
                    &import,
                    self.pipeline,
                    constraints,
                    self.search,
                    options,
                )?;
                if let Some(forward) = forward.artifact {
                    artifact.provenance.is_cut |= forward.provenance.is_cut;
                    artifact.evaluations.extend(forward.targets);
                }
            }
        }
        Ok(compiled)
    }

    /// For the largest size of a dimension that keeps the limit.
    fn compile_largest(
        &self,
        mut import: ImportOptions,
        name: &str,
        limit: Option<u64>,
    ) -> Result<Largest<Compiled>, Failure> {
        if limit.is_none() || self.a.stop_after.is_some() {
            let help = "give --device-memory or --device, and compile to the end";
            return Err(miette!(help = help, "--dim {name}=max needs a byte limit").into());
        }
        let attempt = |size| {
            import.dims.insert(name.to_owned(), size);
            let compiled = self.compile(&import, limit).and_then(|compiled| {
                compiled.target()?;
                Ok(compiled)
            });
            match &compiled {
                Ok(_) => tell!("{name}={size} fits"),
                Err(e) if e.is_of_limits() => tell!("{name}={size} does not fit"),
                Err(_) => {}
            }
            compiled
        };
        largest(attempt, CompileError::is_of_limits, interrupt::flag()).map_err(|(size, e)| {
            let what = if e.is_of_limits() { "does not fit" } else { "cannot be compiled" };
            let message = format!("{name}={size} {what}: {e}");
            match print_minimum(self.a, &e) {
                Ok(()) => miette!("{message}").into(),
                Err(failure) => failure,
            }
        })
    }
}

/// A precision by its name.
fn precision(name: &str) -> Result<Format, String> {
    match name {
        "f32" => Ok(Format::F32),
        "bf16" => Ok(Format::Bf16),
        _ => Err(format!("`{name}` is no precision; f32 and bf16 are")),
    }
}

/// A way to multiply by its name.
fn math(name: &str) -> Result<Math, String> {
    let known = Math::ALL.into_iter().find(|m| m.name() == name);
    known.ok_or_else(|| format!("`{name}` is no way to multiply; f32 and tf32 are"))
}

/// A backend by its name.
fn backend(name: &str) -> Result<Backend, String> {
    let known = Backend::ALL.into_iter().find(|b| b.name() == name);
    known.ok_or_else(|| format!("`{name}` is no target; cpu and cuda are"))
}

/// A limit that cannot be kept comes with the least one that can.
pub(super) fn refused(a: &Arguments, e: CompileError) -> Failure {
    print_minimum(a, &e).err().unwrap_or_else(|| failed(e))
}

/// For scripts, the least limit that can be kept.
fn print_minimum(a: &Arguments, e: &CompileError) -> Outcome {
    if !a.json.json || !e.is_of_limits() {
        return Ok(());
    }
    match e.minimum() {
        Some(minimum) => print(json!(minimum.figures())),
        None => print(json!({"minimum_device_bytes": null, "minimum_device_bytes_bound": null})),
    }
}

fn summary(figures: &BTreeMap<String, u64>, output: &Path, seconds: f64) {
    let figure = |name: &str| figures.get(name).copied().unwrap_or(0);
    let rows = [
        ("arena", "arena_bytes"),
        ("live peak", "live_peak_bytes"),
        ("lower bound", "lower_bound_bytes"),
        ("definition order", "definition_order_bytes"),
        ("states", "state_bytes"),
        ("constants", "constant_bytes"),
    ];
    for (label, name) in rows {
        tell!("{label:<17} {:>12}", human_bytes(figure(name)));
    }
    if figure("bf16_bytes") > 0 {
        tell!("{:<17} {:>12}", "in bf16", human_bytes(figure("bf16_bytes")));
    }
    let rounds = match figure("micro_batches") {
        0 => String::new(),
        n => format!(" in each of {n} micro-batches"),
    };
    let nodes = figure("nodes");
    tell!("{nodes} operators{rounds}, checked, in {seconds:.2} s: {}", output.display());
}

fn bound(given: &[(String, String)]) -> Result<BTreeMap<String, (TensorType, Vec<u8>)>, Failure> {
    let mut bind = BTreeMap::new();
    for (name, path) in given {
        let npz = Npz::open(path).map_err(failed)?;
        let Some(array) = npz.array(name) else {
            return Err(miette!("--bind: `{path}` holds no array `{name}`").into());
        };
        bind.insert(name.clone(), (array.ty().clone(), array.bytes().to_vec()));
    }
    Ok(bind)
}
