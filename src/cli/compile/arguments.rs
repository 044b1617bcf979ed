//! The options of `arenic compile`, and the compiler that they ask for.

use crate::cli::device::read_profiled;
use crate::cli::dims::{Dimension, Dimensions, parse_dimension};
use crate::cli::loss::{LossOptions, MicroBatches};
use crate::cli::named::help;
use crate::cli::pipeline::read_pipeline;
use crate::cli::search::SearchOptions;
use crate::cli::sweep::Sweep;
use crate::cli::variants::{Only, parse_only};
use crate::cli::{Failure, Json, failed, name_value};
use crate::compiler::Compiler;
use crate::data::Npz;
use crate::limit::{Limit, parse_percent};
use crate::model::Model;
use crate::onnx::ImportOptions;
use crate::recipe::{Recorded, RecordedOption};
use crate::size::parse_size;
use arenic_backends::{ALL, CPU};
use arenic_ir::op::MAX_RANKS;
use arenic_ir::{Backend, Math, TensorType};
use arenic_passes::devices;
use arenic_passes::pipeline::{Pipeline, Report};
use arenic_passes::precision::Format;
use arenic_passes::shard::{Level, Travels};
use clap::Args;
use miette::miette;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// Arguments of `arenic compile`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// The model
    #[arg(required_unless_present_any = ["ort", "variants"])]
    pub(super) model: Option<PathBuf>,
    /// Instead of a model, a folder of ONNX Runtime's training artifacts: training_model.onnx,
    /// optimizer_model.onnx and checkpoint become one step, with the learning rate as input `lr`
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    pub(super) ort: Option<PathBuf>,
    /// The artifact to write
    #[arg(short = 'o', value_name = "OUT.arenic", required_unless_present_any = ["stop_after", "sweep"])]
    pub(super) artifact: Option<PathBuf>,
    /// A pipeline file, or the name of a pipeline (see `arenic pipeline list`) [default: default]
    #[arg(long, value_name = "P.yaml")]
    pub(super) pipeline: Option<String>,
    /// Size of a symbolic dimension; NAME=max is the largest one that keeps the limit. Several sizes make
    /// a variant of each combination: steps over one arena, which share their states
    #[arg(long = "dim", value_name = "NAME=N[,N...]", value_parser = parse_dimension)]
    pub(super) dims: Vec<Dimension>,
    /// Of these combinations the ones with such sizes, for example batch=8,seq=*
    #[arg(long, value_name = "NAME=N|*,...", value_parser = parse_only)]
    pub(super) only: Vec<Only>,
    /// A model whose step is a variant by this name. States of equal names are one state, and those that
    /// a variant lacks stay as they are
    #[arg(long = "variant", value_name = "NAME=MODEL", value_parser = name_value, conflicts_with_all = ["model", "ort"])]
    pub(super) variants: Vec<(String, String)>,
    /// Carry output Y into input X from step to step
    #[arg(long = "state", value_name = "X=Y", value_parser = name_value)]
    pub(super) states: Vec<(String, String)>,
    /// Make an input a constant: the array of its name in an .npz file
    #[arg(long = "bind", value_name = "NAME=FILE", value_parser = name_value)]
    pub(super) bind: Vec<(String, String)>,
    /// Limit on device memory, for example 4GiB; to keep it, tensors are computed again or moved to
    /// host memory. 60% and half refer to the step's arena without a limit; fit takes what this
    /// machine has free, less a margin
    #[arg(long, visible_alias = "memory", value_name = "SIZE", value_parser = Limit::from_str)]
    pub(super) device_memory: Option<Limit>,
    /// Limit on host memory for moved tensors [default: 0 on a CPU, whose own memory it is; no
    /// limit for a GPU]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) host_memory: Option<u64>,
    /// Instead of a limit: take the least memory with which the step is predicted to take at most
    /// this much longer, for example 2%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, conflicts_with_all = ["device_memory", "sweep", "stop_after"])]
    pub(super) overhead: Option<f64>,
    /// Let `section` cut sums, which changes bits
    #[arg(long)]
    pub(super) allow_reassociation: bool,
    /// Backend whose kernels run the step: cpu or cuda. If given more than once, the artifact holds
    /// a program for each, and the printed figures are those of the first
    #[arg(long = "target", value_name = "T", default_value = CPU.name, value_parser = backend)]
    pub(super) targets: Vec<Backend>,
    /// Store kernels for GPUs as source text, which is compiled when they first run
    #[arg(long)]
    pub(super) no_gpu_code: bool,
    /// Arithmetic of a GPU's libraries in products and convolutions: f32, or tf32, which rounds
    /// operands to 10 bits for tensor cores
    #[arg(long, value_name = "M", default_value = Math::F32.name(), value_parser = math)]
    pub(super) math: Math,
    /// Type of the operands of products and convolutions: f32, or bf16 (state, updates and losses
    /// stay f32). Short for the pass `precision`
    #[arg(long, value_name = "P", value_parser = precision)]
    pub(super) precision: Option<Format>,
    /// Ranks that run the step together, processes that MPI starts: each has its rows of the batch, whose size
    /// in --dim is a rank's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = ranks)]
    pub(super) ranks: usize,
    /// What each rank has a part of alone: none, optimizer (its states), gradients (these, too) or
    /// parameters (all three)
    #[arg(long, value_name = "LEVEL", default_value = Level::None.name(), value_parser = level, requires = "ranks")]
    pub(super) shard: Level,
    /// Type in which gradients travel between ranks: f32, or bf16
    #[arg(long, value_name = "P", default_value = "f32", value_parser = travels, requires = "ranks")]
    pub(super) grad_precision: Travels,
    /// Batch normalisation goes by the statistics of all ranks' rows [default: of a rank's own]
    #[arg(long, requires = "ranks")]
    pub(super) sync_batch_norm: bool,
    #[arg(
        long,
        value_name = "D",
        help = help(
            "Device that times are predicted for: a device file, cuda:N, or one of {names}. Its memory is the limit \
             unless --device-memory gives one",
            devices::NAMED,
        )
    )]
    pub(super) device: Option<String>,
    /// Times of kernels that `arenic profile` measured on the device
    #[arg(long, value_name = "TABLE")]
    pub(super) profile: Option<PathBuf>,
    /// Import a forward model for inference: dropout does nothing, and normalisation uses running
    /// statistics
    #[arg(long, conflicts_with = "loss")]
    pub(super) inference: bool,
    /// Leave out the forward pass that `arenic eval` runs
    #[arg(long, requires = "loss")]
    pub(super) no_eval: bool,
    /// Also print what the forward pass alone needs
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
    pub(super) plan_only: bool,
    /// Print the module to stderr after this pass (`all`: after each)
    #[arg(long, value_name = "PASS")]
    pub(super) dump_ir_after: Vec<String>,
    /// Stop after this pass, print the module to stdout and write no artifact
    #[arg(long, value_name = "PASS")]
    pub(super) stop_after: Option<String>,
    /// Print what each pass counted and how long it took to stderr
    #[arg(long)]
    pub(super) print_stats: bool,
    #[command(flatten)]
    pub(super) search: SearchOptions,
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
    pub(super) fn recording(&self, options: Vec<RecordedOption>) -> Result<Compiler, Failure> {
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
