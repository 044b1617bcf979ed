//! `arenic compile`

use super::device::{read_profiled, unmeasured};
use super::dims::{Dimension, Dimensions, parse_dimension};
use super::interrupt;
use super::loss::{LossOptions, MicroBatches, parameters_json};
use super::pipeline::read_pipeline;
use super::recorded;
use super::search::{CUT, SearchOptions};
use super::sweep::{self, Sweep};
use super::variants::{self, Only, parse_only};
use super::{Failure, Json, Outcome, can_write, failed, human_bytes, name_value, print};
use crate::artifact::{Artifact, Figures, Target};
use crate::compile::{CompileError, Compiled};
use crate::compiler::{Compiler, Variant, Watch};
use crate::data::Npz;
use crate::explain;
use crate::largest::Largest;
use crate::limit::{Limit, parse_percent};
use crate::model::Model;
use crate::onnx::ImportOptions;
use crate::recipe::{Recorded, RecordedOption};
use crate::size::parse_size;
use arenic_backends::{ALL, CPU, CUDA};
use arenic_ir::cost::Device;
use arenic_ir::op::MAX_RANKS;
use arenic_ir::{Backend, Math, TensorType};
use arenic_passes::pipeline::{Pipeline, Report};
use arenic_passes::precision::Format;
use arenic_passes::shard::{Level, Travels};
use arenic_passes::{Minimum, devices};
use clap::{Args, CommandFactory, FromArgMatches, Parser};
use miette::miette;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
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
    /// Limit on device memory, for example 4GiB; to keep it, tensors are computed again or moved to
    /// host memory. 60% and half refer to the step's arena without a limit; fit takes what this
    /// machine has free, less a margin
    #[arg(long, visible_alias = "memory", value_name = "SIZE", value_parser = Limit::from_str)]
    device_memory: Option<Limit>,
    /// Limit on host memory for moved tensors [default: 0 on a CPU, whose own memory it is; no
    /// limit for a GPU]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    host_memory: Option<u64>,
    /// Instead of a limit: take the least memory with which the step is predicted to take at most
    /// this much longer, for example 2%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, conflicts_with_all = ["device_memory", "sweep", "stop_after"])]
    overhead: Option<f64>,
    /// Let `section` cut sums, which changes bits
    #[arg(long)]
    allow_reassociation: bool,
    /// Backend whose kernels run the step: cpu or cuda. If given more than once, the artifact holds
    /// a program for each, and the printed figures are those of the first
    #[arg(long = "target", value_name = "T", default_value = CPU.name, value_parser = backend)]
    targets: Vec<Backend>,
    /// Store kernels for GPUs as source text, which is compiled when they first run
    #[arg(long)]
    no_gpu_code: bool,
    /// Arithmetic of a GPU's libraries in products and convolutions: f32, or tf32, which rounds
    /// operands to 10 bits for tensor cores
    #[arg(long, value_name = "M", default_value = Math::F32.name(), value_parser = math)]
    math: Math,
    /// Type of the operands of products and convolutions: f32, or bf16 (state, updates and losses
    /// stay f32). Short for the pass `precision`
    #[arg(long, value_name = "P", value_parser = precision)]
    precision: Option<Format>,
    /// Ranks that run the step together, processes that MPI starts: each has its rows of the batch, whose size
    /// in --dim is a rank's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = ranks)]
    ranks: usize,
    /// What each rank has a part of alone: none, optimizer (its states), gradients (these, too) or
    /// parameters (all three)
    #[arg(long, value_name = "LEVEL", default_value = Level::None.name(), value_parser = level, requires = "ranks")]
    shard: Level,
    /// Type in which gradients travel between ranks: f32, or bf16
    #[arg(long, value_name = "P", default_value = "f32", value_parser = travels, requires = "ranks")]
    grad_precision: Travels,
    /// Batch normalisation goes by the statistics of all ranks' rows [default: of a rank's own]
    #[arg(long, requires = "ranks")]
    sync_batch_norm: bool,
    /// Device that times are predicted for: a device file, cuda:N, or one of cpu, gtx1080ti,
    /// titanx, p100, a100, h100, h200, rtx4090. Its memory is the limit unless --device-memory
    /// gives one
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// Times of kernels that `arenic profile` measured on the device
    #[arg(long, value_name = "TABLE")]
    profile: Option<PathBuf>,
    /// Import a forward model for inference: dropout does nothing, and normalisation uses running
    /// statistics
    #[arg(long, conflicts_with = "loss")]
    inference: bool,
    /// Leave out the forward pass that `arenic eval` runs
    #[arg(long, requires = "loss")]
    no_eval: bool,
    /// Also print what the forward pass alone needs
    #[arg(long, requires = "loss", conflicts_with = "no_eval")]
    compare: bool,
    #[command(flatten)]
    pub(super) loss: LossOptions,
    /// Print what each limit costs instead of writing an artifact: percentages of the arena
    /// without a limit, 100%..30% or 100%..30%:5% [default step: 10%]
    #[arg(long, value_name = "RANGE", conflicts_with_all = ["artifact", "device_memory", "stop_after"])]
    sweep: Option<Sweep>,
    /// Plan without tensor data: missing external files are fine, the artifact cannot be run
    #[arg(long)]
    plan_only: bool,
    /// Print the module to stderr after this pass (`all`: after each)
    #[arg(long, value_name = "PASS")]
    dump_ir_after: Vec<String>,
    /// Stop after this pass, print the module to stdout and write no artifact
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
    /// Print what each pass counted and how long it took to stderr
    #[arg(long)]
    print_stats: bool,
    #[command(flatten)]
    search: SearchOptions,
    #[command(flatten)]
    pub(super) json: Json,
}

impl Arguments {
    /// The model, or the folder of training artifacts.
    pub(super) fn model(&self) -> Result<Model, Failure> {
        let path = match (&self.model, &self.ort) {
            (Some(model), _) if model.is_dir() => {
                let help = "a folder of ONNX Runtime's training artifacts is given by --ort";
                Err(miette!(help = help, "`{}` is a folder, no model", model.display()))?
            }
            (_, Some(ort)) if !ort.is_dir() => {
                let help = "--ort takes the folder with training_model.onnx, optimizer_model.onnx \
                            and checkpoint";
                Err(miette!(help = help, "`{}` is no folder", ort.display()))?
            }
            (Some(path), _) | (None, Some(path)) => path,
            (None, None) => Err(miette!("neither a model nor --ort is given"))?,
        };
        Model::open(path).map_err(failed)
    }

    /// What the options ask for.
    pub(super) fn compiler(&self) -> Result<Compiler, Failure> {
        let pipeline = self.pipeline.as_deref();
        let pipeline = pipeline.map(|name| read_pipeline(name, Pipeline::from_yaml)).transpose()?;
        for (pass, fact) in pipeline.iter().flat_map(Pipeline::unread) {
            tell!("note: no pass after `{pass}` reads the {fact} that it gives");
        }
        let counted = self.loss.accumulate.and_then(MicroBatches::count);
        if counted.is_some() && self.loss.loss.is_none() && self.ort.is_none() {
            let help = "give --loss, or --ort; `--accumulate auto` is for every step";
            let message = "--accumulate N has a model's rows N times, in steps that are made here";
            return Err(miette!(help = help, "{message}").into());
        }
        let dims = Dimensions::new(&self.dims)?;
        let device = match (self.device.as_deref(), self.profile.as_deref()) {
            (None, None) => None,
            (name, profile) => Some(read_profiled(name.unwrap_or(devices::NAMED[0].0), profile)?),
        };
        let compiler = Compiler {
            pipeline,
            differentiate: self.loss.pass()?,
            precision: self.precision,
            ranks: self.ranks,
            shard: self.shard,
            grad_precision: self.grad_precision,
            sync_batch_norm: self.sync_batch_norm,
            auto_rounds: self.loss.accumulate == Some(MicroBatches::Auto),
            targets: self.targets.clone(),
            device,
            is_within_device: self.device.is_some(),
            memory: self.device_memory,
            host_memory: self.host_memory,
            overhead: self.overhead,
            allow_reassociation: self.allow_reassociation,
            math: self.math,
            no_gpu_code: self.no_gpu_code,
            evaluation: !self.no_eval,
            inference: self.inference,
            training: self.loss.training(),
            import: ImportOptions {
                dims: dims.given,
                states: self.states.clone(),
                plan_only: self.plan_only,
                bind: bound(&self.bind)?,
                micro_batches: self.ort.as_ref().and(counted).map(usize::from),
                ..self.loss.import()
            },
            largest: dims.largest,
            defaults: self.loss.defaults(),
            drop_layers: self.loss.drop_layers.clone(),
            most_structures: self.loss.variants_at_most,
            stop_after: self.stop_after.clone(),
            ..self.search.searching()
        };
        let pipeline = compiler.passes().map_err(failed)?;
        let passes: Vec<&str> = pipeline.names().collect();
        let dumped = self.dump_ir_after.iter().filter(|n| *n != "all");
        for name in self.stop_after.iter().chain(dumped) {
            if !passes.contains(&name.as_str()) {
                let known = passes.join(", ");
                return Err(miette!("the pipeline has no pass `{name}`; it has {known}").into());
            }
        }
        Ok(compiler)
    }

    /// The same, whose artifacts keep these options and the model.
    fn recording(&self, options: Vec<RecordedOption>) -> Result<Compiler, Failure> {
        let dims = self.dims.iter().map(|dim| dim.name().to_owned()).collect();
        Ok(Compiler { recorded: Some(Recorded { options, dims }), ..self.compiler()? })
    }

    /// Prints what a pass left behind, where that is wanted.
    pub(super) fn dump(&self, report: &Report) {
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

    /// What there is to say of all variants, each thing once.
    fn remarks_of_all(
        &self,
        artifact: &Artifact,
        compiled: &[Compiled],
        timed: &Device,
    ) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        for line in compiled.iter().flat_map(|compiled| self.remarks(compiled, timed)) {
            if !said.contains(&line) {
                said.push(line);
            }
        }
        said.extend(Self::lacks(artifact));
        said
    }

    /// What the artifact lacks, in a line.
    fn lacks(artifact: &Artifact) -> Option<String> {
        let gpu = artifact.target(CUDA.name).filter(|gpu| gpu.kernels.is_none());
        let what = "note: there is no NVRTC here; kernels are compiled when a run begins";
        gpu.filter(|_| artifact.runnable).map(|_| what.to_owned())
    }

    /// What there is to say of weights and of what the artifact lacks, in lines.
    pub(super) fn remarks(&self, compiled: &Compiled, timed: &Device) -> Vec<String> {
        let mut lines = Vec::new();
        if self.profile.is_some() {
            lines.extend(unmeasured(timed, &compiled.module.graph));
        }
        if !compiled.weights.parameters.is_empty() {
            lines.extend(LossOptions::describe(&compiled.weights, self.search.verbose));
        }
        let unused = |name: &String| format!("note: initializer `{name}` is not used");
        lines.extend(compiled.unused.iter().map(unused));
        lines.extend(compiled.artifact.as_ref().and_then(Self::lacks));
        lines
    }
}

pub(super) fn run(a: &Arguments, options: Vec<RecordedOption>) -> Outcome {
    let start = Instant::now();
    can_write(&a.artifact)?;
    let compiler = a.recording(options)?;
    let one = if a.variants.is_empty() { Some(a.model()?) } else { None };
    let variants = variants::named(&a.variants, one, &Dimensions::new(&a.dims)?, &a.only)?;
    let timed = compiler.timed().map_err(failed)?;
    let progress = a.search.listener();
    let watch = Watch {
        stop: Some(interrupt::flag()),
        progress: Some(&progress),
        note: Some(&|text: &str| tell!("{text}")),
        after_pass: Some(&|report: &Report| a.dump(report)),
    };
    let ([Variant { model, .. }], true) = (&variants[..], a.loss.drop_layers.is_empty()) else {
        let about_one = [("--sweep", a.sweep.is_some()), ("--compare", a.compare)];
        if let Some((option, _)) = about_one.iter().find(|(_, is_given)| *is_given) {
            let help = "leave it out, or compile one step: one size of each dimension";
            let n = variants.len();
            return Err(miette!(help = help, "{option} is about one step, not {n} variants").into());
        }
        let compiled = compiler.compile_variants_watched(&variants, &watch);
        let (artifact, compiled) = compiled.map_err(|e| refused(a, e))?;
        a.remarks_of_all(&artifact, &compiled, &timed).iter().for_each(|line| tell!("{line}"));
        let Some(output) = &a.artifact else { return Ok(()) };
        artifact.write(output).map_err(failed)?;
        return variants::told(a, &artifact, &compiled, output, start);
    };
    if let Some(sweep) = a.sweep {
        if let Some(name) = &compiler.largest {
            return Err(miette!("--sweep needs a size for {name}, not max").into());
        }
        let job = compiler.job(model, &watch).map_err(failed)?;
        let compile = |limit| job.compile(limit);
        return sweep::run(sweep, &timed, compile, interrupt::flag(), a.json);
    }
    let compiled = compiler.compile_watched(model, &watch).map_err(|e| refused(a, e))?;
    a.remarks(&compiled, &timed).iter().for_each(|line| tell!("{line}"));
    if a.stop_after.is_some() {
        return print(&compiled.module);
    }
    let target = compiled.target().map_err(failed)?;
    let (Some(artifact), Some(output)) = (&compiled.artifact, &a.artifact) else { return Ok(()) };
    artifact.write(output).map_err(failed)?;
    let is_cut = artifact.provenance.is_cut;
    let seconds = start.elapsed().as_secs_f64();
    let (step, unlimited) = compiled.seconds(&timed).map_err(failed)?;
    let largest = compiled.largest.as_ref();
    if a.json.json {
        let mut object = figures(target, compiled.report.minimum);
        object.insert("search_cut".into(), is_cut.into());
        object.insert("predicted_step_seconds".into(), step.into());
        object.insert("unlimited_step_seconds".into(), unlimited.into());
        if let Some(bound) = compiled.report.seconds_bound() {
            object.insert("step_seconds_bound".into(), bound.into());
        }
        if let Some(Largest { size, found: name, tried }) = largest {
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
    if let Some(Largest { size, found: name, tried }) = largest {
        tell!("{name}={size} is the largest that fits, by {tried} compilations");
    }
    summary(&target.figures, output, seconds);
    if is_cut {
        tell!("note: {CUT}");
    }
    if let Some(forward) = artifact.evaluation(&target.name).filter(|_| a.compare) {
        let (forward, step) = (forward.figures.arena_bytes, target.figures.arena_bytes);
        let percent = forward as f64 / step.max(1) as f64 * 100.0;
        tell!("the forward pass alone takes {}, {percent:.1} % of that", human_bytes(forward));
    }
    if compiler.device.is_some() || compiled.limit.is_some() || a.overhead.is_some() {
        let percent = |seconds: f64| (seconds / unlimited - 1.0) * 100.0;
        let least = compiled.report.seconds_bound().filter(|_| step > unlimited);
        let least = least.map_or(String::new(), |s| format!(", at least {:+.1} %", percent(s)));
        let (name, ms, overhead) = (&timed.name, step * 1e3, percent(step));
        tell!("simulated on {name}: {ms:.3} ms a step, overhead {overhead:+.1} %{least}");
    }
    match compiled.report.minimum {
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
    let of_plan = target.figures.named().into_iter();
    object.extend(of_plan.map(|(name, figure)| (name.to_owned(), figure.into())));
    let known = minimum.map(Minimum::figures).unwrap_or_default();
    object.extend(known.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())));
    let (peak, bound) = (target.figures.live_peak_bytes, target.figures.lower_bound_bytes);
    object.insert("proved_optimal".into(), (peak == bound).into());
    object.insert("gap".into(), explain::relative_gap(peak, bound).into());
    object.insert("certificate".into(), explain::stored_to_json(target));
    object
}

/// A precision by its name.
fn precision(name: &str) -> Result<Format, String> {
    match name {
        "f32" => Ok(Format::F32),
        "bf16" => Ok(Format::Bf16),
        _ => Err(format!("`{name}` is no precision; f32 and bf16 are")),
    }
}

/// A number of ranks.
fn ranks(text: &str) -> Result<usize, String> {
    let known = text.parse().ok().filter(|n| (1..=MAX_RANKS).contains(n));
    known.ok_or_else(|| format!("`{text}` is no number of ranks from 1 to {MAX_RANKS}"))
}

/// What ranks share, by its name.
fn level(name: &str) -> Result<Level, String> {
    let known = Level::ALL.into_iter().find(|level| level.name() == name);
    known.ok_or_else(|| {
        format!("`{name}` is no level; none, optimizer, gradients and parameters are")
    })
}

/// A type of gradients that travel, by its name.
fn travels(name: &str) -> Result<Travels, String> {
    match name {
        "f32" => Ok(Travels::F32),
        "bf16" => Ok(Travels::Bf16),
        _ => Err(format!("gradients do not travel as `{name}`; f32 and bf16 are possible")),
    }
}

/// A way to multiply by its name.
fn math(name: &str) -> Result<Math, String> {
    let known = Math::ALL.into_iter().find(|m| m.name() == name);
    known.ok_or_else(|| format!("`{name}` is no way to multiply; f32 and tf32 are"))
}

/// A backend by its name.
fn backend(name: &str) -> Result<Backend, String> {
    let known = ALL.into_iter().find(|b| b.name == name);
    known.ok_or_else(|| format!("`{name}` is no target; cpu and cuda are"))
}

/// A limit that cannot be kept comes with the least one that can.
fn refused(a: &Arguments, e: CompileError) -> Failure {
    print_minimum(a, &e).err().unwrap_or_else(|| Failure::of_compiling(e))
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

fn summary(figures: &Figures, output: &Path, seconds: f64) {
    let rows = [
        ("arena", figures.arena_bytes),
        ("live peak", figures.live_peak_bytes),
        ("lower bound", figures.lower_bound_bytes),
        ("definition order", figures.definition_order_bytes),
        ("states", figures.state_bytes),
        ("constants", figures.constant_bytes),
    ];
    for (label, bytes) in rows {
        tell!("{label:<17} {:>12}", human_bytes(bytes));
    }
    if let Some(bytes) = figures.bf16_bytes {
        tell!("{:<17} {:>12}", "in bf16", human_bytes(bytes));
    }
    let in_each = |n| format!(" in each of {n} micro-batches");
    let rounds = figures.micro_batches.map_or_else(String::new, in_each);
    let nodes = figures.nodes;
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

/// What the command would say of its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// What is wrong.
    pub message: String,
    /// How to mend it, where the message does not say that.
    pub help: Option<String>,
}

impl CommandError {
    fn of(failure: Failure) -> CommandError {
        let Some(report) = failure.report else {
            return CommandError { message: "it failed".to_owned(), help: None };
        };
        let help = report.help().map(|help| help.to_string());
        CommandError { message: report.to_string(), help }
    }
}

/// A compiled model, and what there is to say of it.
pub struct Compilation {
    /// The artifact.
    pub artifact: Artifact,
    /// The figures that `--json` prints as numbers, by name.
    pub figures: BTreeMap<String, f64>,
}

/// `arenic compile` as others call it, with its options alone.
#[derive(Debug)]
pub struct Request {
    arguments: Arguments,
    options: Vec<RecordedOption>,
}

/// What stands for the model, which is given apart, and for the artifact, which is not written.
const PLACEHOLDER: &str = "model.onnx";

impl Request {
    /// Reads options as the command line has them.
    ///
    /// # Errors
    /// An option is unknown, has a wrong value, or is of no use where no file is written.
    pub fn parse(options: &[String]) -> Result<Request, CommandError> {
        let named = |name: &str| options.iter().any(|o| o.split('=').next() == Some(name));
        for (option, help) in [
            ("--json", "the artifact has the figures as attributes"),
            ("--sweep", "the command `arenic compile --sweep` prints what each limit costs"),
            ("--stop-after", "the command `arenic compile --stop-after` prints a module"),
        ] {
            if named(option) {
                let message = format!("{option} is of no use here");
                return Err(CommandError { message, help: Some(help.to_owned()) });
            }
        }
        let mut all = vec!["arenic compile".to_owned(), "-o".to_owned(), PLACEHOLDER.to_owned()];
        if !named("--ort") {
            all.push(PLACEHOLDER.to_owned());
        }
        all.extend(options.iter().cloned());
        let command = Wrapped::command();
        let parsed = command.clone().try_get_matches_from(all).and_then(|given| {
            let options = recorded::options(&command, &given);
            Ok((Wrapped::from_arg_matches(&given)?, options))
        });
        match parsed {
            Ok((Wrapped { arguments }, options)) => Ok(Request { arguments, options }),
            Err(e) => {
                let text = e.to_string();
                let first = text.lines().take_while(|line| !line.is_empty());
                let message = first.collect::<Vec<_>>().join("\n");
                let message = message.trim_start_matches("error: ").to_owned();
                Err(CommandError { message, help: None })
            }
        }
    }

    /// What the options ask for, whatever the model.
    ///
    /// # Errors
    /// What the command would say.
    pub(super) fn compiler(&self) -> Result<Compiler, CommandError> {
        self.arguments.compiler().map_err(CommandError::of)
    }

    /// Compiles `model`, or the folder that the options name.
    ///
    /// # Errors
    /// What the command would say.
    pub fn compile(
        &self,
        model: Option<Model>,
        watch: &Watch,
    ) -> Result<Compilation, CommandError> {
        self.compiled(model, watch).map_err(CommandError::of)
    }

    fn compiled(&self, model: Option<Model>, watch: &Watch) -> Result<Compilation, Failure> {
        let Request { arguments: a, options } = self;
        let start = Instant::now();
        let model = model.map_or_else(|| a.model(), Ok)?;
        let compiler = a.recording(options.clone())?;
        let after_pass = |report: &Report| a.dump(report);
        let watch = Watch { after_pass: Some(&after_pass), ..*watch };
        let timed = compiler.timed().map_err(failed)?;
        let number = |(name, value): (String, Value)| Some((name, value.as_f64()?));
        let variants = variants::named(&[], Some(model), &Dimensions::new(&a.dims)?, &a.only)?;
        let ([Variant { model, .. }], true) = (&variants[..], a.loss.drop_layers.is_empty()) else {
            let compiled = compiler.compile_variants_watched(&variants, &watch);
            let (artifact, compiled) = compiled.map_err(Failure::of_compiling)?;
            for line in a.remarks_of_all(&artifact, &compiled, &timed) {
                watch.note(&line);
            }
            let mut object = variants::figures_of_all(&artifact, &compiled);
            object.insert("seconds".into(), start.elapsed().as_secs_f64().into());
            let figures = object.into_iter().filter_map(number).collect();
            return Ok(Compilation { artifact, figures });
        };
        let compiled = compiler.compile_watched(model, &watch).map_err(Failure::of_compiling)?;
        for line in a.remarks(&compiled, &timed) {
            watch.note(&line);
        }
        let mut object = figures(compiled.target().map_err(failed)?, compiled.report.minimum);
        let (step, unlimited) = compiled.seconds(&timed).map_err(failed)?;
        object.insert("predicted_step_seconds".into(), step.into());
        object.insert("unlimited_step_seconds".into(), unlimited.into());
        if let Some(Largest { size, found: name, .. }) = &compiled.largest {
            watch.note(&format!("{name}={size} is the largest that fits"));
            object.insert("largest".into(), (*size).into());
        }
        object.insert("seconds".into(), start.elapsed().as_secs_f64().into());
        let figures = object.into_iter().filter_map(number).collect();
        let artifact = compiled.artifact.ok_or_else(|| failed(CompileError::NoProgram))?;
        if artifact.provenance.is_cut {
            watch.note(&format!("note: {CUT}"));
        }
        Ok(Compilation { artifact, figures })
    }
}

/// The options as a command of their own.
#[derive(Debug, Parser)]
#[command(name = "arenic compile", disable_help_flag = true)]
struct Wrapped {
    #[command(flatten)]
    arguments: Arguments,
}
