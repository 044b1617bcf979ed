//! `arenic run`

use super::dynamic;
use super::interrupt::{self, INTERRUPTED};
use super::ranks::Ranks;
use super::terminal::Visible;
use super::ways::Telling;
use super::{
    Failure, Json, NON_FINITE, Outcome, can_write, failed, human_bytes, name_value, print,
};
use crate::artifact::{Artifact, Target};
use crate::data::{Mix, Mixing, Notice, Npz, Structure, TensorFile};
use crate::gpu_code::Trust;
use crate::train::{
    Initial, Length, OnSaveError, Place, PlaceError, StepReport, Summary, TrainOptions,
    train_variants, train_variants_on_device,
};
use arenic_backends::CPU;
use arenic_ir::Graph;
use arenic_passes::Purpose;
use arenic_runtime::cpu::{Isa, multiplies_bf16};
use arenic_runtime::cuda::Cuda;
use arenic_runtime::memory::process_bytes;
use arenic_runtime::ranks;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use miette::{Report, miette};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Arguments of `arenic run`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The artifact
    artifact: PathBuf,
    #[command(flatten)]
    feed: Feed,
    /// Start states that match at zero, if nothing else gives their value
    #[arg(long, value_name = "GLOB")]
    zeros: Vec<glob::Pattern>,
    /// Number of steps; after the last row of the data the first follows
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Number of epochs, each once through the data [default: 1]
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Permute rows in every epoch (whole batches, where inputs differ in rows)
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
    /// Order of the batches of several --data: in-turn takes one of each file in the order given, then
    /// begins with the first again; one-after-another ends a file before the next; shuffled:SEED permutes
    /// all batches of an epoch
    #[arg(long, value_name = "M", default_value = "in-turn", value_parser = mix)]
    mix: Mix,
    /// Fill up the last batch of a file, with this value of an input: of a mask, or a target that counts for
    /// nothing. Other inputs are zero there [default: rows that fill no batch are left out]
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    pad: Vec<(String, String)>,
    /// Compile steps of other sizes that the data need, within the arena that there is, and keep them in the
    /// folder ARTIFACT.d. What does not fit is left out with a note
    #[arg(long)]
    dynamic: bool,
    /// Which of several models a step takes: cycle, or random:SEED [default: cycle; random:0 where branches are left
    /// out by --drop-layers]
    #[arg(long, value_name = "S", value_parser = structure)]
    structure: Option<Structure>,
    /// How probable a model is; others share the rest equally
    #[arg(long, value_name = "NAME=P", value_parser = probability, requires = "structure")]
    probability: Vec<(String, f64)>,
    /// Seed of random operators [default: that of --init, else 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Save the states at the end
    #[arg(long, value_name = "W.safetensors")]
    save: Option<PathBuf>,
    /// Also save the states every N steps
    #[arg(long, value_name = "N", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,
    /// If states cannot be saved: stop and leave them beside W.safetensors or in a temporary
    /// folder, or wait until they can be saved [default: wait at a terminal, else stop]
    #[arg(long, value_name = "stop|wait", requires = "save", value_parser = on_save_error)]
    on_save_error: Option<OnSaveError>,
    /// Write when each command of the last step ran, in the trace event format of Chrome and
    /// Perfetto
    #[arg(long, value_name = "TRACE.json")]
    trace: Option<PathBuf>,
    /// On a GPU: use deterministic algorithms, which give the same bits in every run and under
    /// every byte limit, instead of those measured to be fastest
    #[arg(long)]
    deterministic: bool,
    /// End all ranks where one of them is silent for so many seconds [default: ten more than three times the longest
    /// step so far]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    rank_timeout: Option<Duration>,
    /// Fill bytes with NaN patterns as soon as they are dead; commands then run in issue order
    #[arg(long)]
    poison: bool,
    /// On the CPU: say which instructions kernels use. On a GPU: say of each product, convolution and
    /// attention which way it goes, and why not others. With --json the first line has this
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    json: Json,
}

/// What a program is run on, where, and what it begins with.
#[derive(Debug, Args)]
pub(super) struct Feed {
    /// Arrays named for the graph's inputs; the first axis of each is k times its input's. Each of several
    /// files goes to the variants that its shapes fit
    #[arg(long, value_name = "D.npz")]
    pub(super) data: Vec<PathBuf>,
    /// Initial values of states, and replacements of initializers: what `arenic run --save` wrote, say
    #[arg(long, value_name = "W.npz|W.safetensors")]
    pub(super) init: Option<PathBuf>,
    /// Ignore names in --init that match
    #[arg(long, value_name = "GLOB")]
    pub(super) skip: Vec<glob::Pattern>,
    /// Value of an input of one element
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    pub(super) set: Vec<(String, String)>,
    /// Write the non-scalar outputs of every step
    #[arg(long, value_name = "O.npz")]
    pub(super) outputs: Option<PathBuf>,
    /// Where to run: cpu, a GPU as cuda:N, or cuda: the first GPU, and of several ranks a GPU for each
    #[arg(long, value_name = "D", default_value = "cpu", value_parser = Place::from_str)]
    pub(super) device: Place,
    /// Threads; 0 takes one per core. The results do not depend on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) threads: usize,
    #[command(flatten)]
    pub(super) code: GpuCode,
}

/// Which code a GPU runs.
#[derive(Debug, Args)]
pub(super) struct GpuCode {
    /// Run the code for GPUs that the artifact holds, which nothing can verify, instead of
    /// compiling the kernels here
    #[arg(long)]
    trust_gpu_code: bool,
}

impl GpuCode {
    pub(super) fn trust(&self) -> Trust {
        if self.trust_gpu_code { Trust::Artifact } else { Trust::Own }
    }
}

/// Runs a program, or variants, at a place.
pub(super) fn train_at(
    place: Place,
    variants: &[&Target],
    options: &TrainOptions,
    notice: impl FnMut(&Notice) + Send,
    watch: impl FnMut(&StepReport) + Send,
) -> Result<Summary, Failure> {
    let ranks = options.ranks.as_ref();
    let trained = match place.gpu(ranks.map_or(0, |ranks| ranks.local_rank())) {
        None => train_variants(variants, options, notice, watch),
        Some(n) => {
            if let Some(ranks) = ranks.filter(|_| place == Place::Cuda(Some(n)))
                && ranks::any(&**ranks, ranks.local_rank() > 0).map_err(failed)?
            {
                let help = "`--device cuda` gives each of them its own";
                let message =
                    format!("cuda:{n} is one GPU, and several ranks of a machine are run");
                return Err(miette!(help = help, "{message}").into());
            }
            let mut driver = Cuda::new(n).map_err(failed)?;
            if let Some(ranks) = ranks {
                driver.join(Arc::clone(ranks)).map_err(failed)?;
            }
            train_variants_on_device(driver, variants, options, notice, watch)
        }
    };
    trained.map_err(|e| match e.is_non_finite() {
        true => Failure { report: Some(Report::msg(e.to_string())), code: NON_FINITE },
        false => failed(e),
    })
}

/// Why an artifact cannot be run.
pub(super) fn misplaced(e: &PlaceError) -> Failure {
    miette!(help = e.help(), "{e}").into()
}

/// Reads the targets of these purposes of an artifact that can be run.
pub(super) fn read(path: &Path, threads: usize, purposes: &[Purpose]) -> Result<Artifact, Failure> {
    if threads > MAX_THREADS {
        return Err(miette!("--threads {threads} is above {MAX_THREADS}").into());
    }
    let artifact = Artifact::read_for(path, purposes).map_err(failed)?;
    if !artifact.runnable {
        return Err(misplaced(&PlaceError::PlanOnly(format!("`{}`", path.display()))));
    }
    Ok(artifact)
}

/// What is set, and the artifact's defaults of inputs that neither this nor the data give.
fn with_defaults(
    set: &[(String, String)],
    data: &[PathBuf],
    artifact: &Artifact,
    graphs: &[&Graph],
) -> Result<Vec<(String, String)>, Failure> {
    let data = data.iter().map(Npz::open).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let mut all = set.to_vec();
    for (name, value) in &artifact.defaults {
        let is_fed = graphs.iter().any(|g| g.inputs().any(|v| g.values[v].name == *name));
        let is_given =
            set.iter().any(|(n, _)| n == name) || data.iter().any(|d| d.array(name).is_some());
        if is_fed && !is_given {
            all.push((name.clone(), value.to_string()));
        }
    }
    Ok(all)
}

/// An order of batches by its name.
fn mix(name: &str) -> Result<Mix, String> {
    match (name, name.strip_prefix("shuffled:").map(str::parse)) {
        ("in-turn", _) => Ok(Mix::InTurn),
        ("one-after-another", _) => Ok(Mix::OneAfterAnother),
        (_, Some(Ok(seed))) => Ok(Mix::Shuffled(seed)),
        _ => Err("in-turn, one-after-another and shuffled:SEED are".into()),
    }
}

/// A choice of models by its name.
fn structure(name: &str) -> Result<Structure, String> {
    match (name, name.strip_prefix("random:").map(str::parse)) {
        ("cycle", _) => Ok(Structure::Cycle),
        (_, Some(Ok(seed))) => Ok(Structure::Random(seed)),
        _ => Err("cycle and random:SEED are".into()),
    }
}

/// A model with its probability.
fn probability(text: &str) -> Result<(String, f64), String> {
    let (name, p) = name_value(text)?;
    let p = p.parse().map_err(|_| format!("`{p}` is no number"))?;
    Ok((name, p))
}

/// More threads than this are refused: each has a stack.
pub(super) const MAX_THREADS: usize = 1024;

/// A time in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let known = text.parse().ok().filter(|s: &f64| *s > 0.0);
    let time = known.and_then(|s| Duration::try_from_secs_f64(s).ok());
    time.ok_or_else(|| format!("`{text}` is no number of seconds above 0"))
}

/// What to do where states cannot be saved, by its name.
fn on_save_error(name: &str) -> Result<OnSaveError, String> {
    match name {
        "stop" => Ok(OnSaveError::Stop),
        "wait" => Ok(OnSaveError::Wait),
        _ => Err("stop and wait are".into()),
    }
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let artifact = read(&a.artifact, a.feed.threads, &[Purpose::Step])?;
    let compiled = artifact.targets.first().map_or(1, |target| target.graph.rank_count());
    let ranks = Ranks::join(compiled)?;
    let outcome = run_as(a, &artifact, &ranks);
    ranks.close(outcome)
}

/// Runs the artifact as one of several ranks, or alone.
fn run_as(a: &Arguments, artifact: &Artifact, ranks: &Ranks) -> Outcome {
    let is_first = ranks.is_first();
    if a.feed.outputs.is_some() && ranks.communicator().is_some() {
        let help = "leave out --outputs; the losses are those of all ranks";
        return Err(miette!(help = help, "outputs of several ranks are not put together").into());
    }
    if is_first {
        can_write(a.save.iter().chain(&a.feed.outputs).chain(&a.trace))?;
    }
    let mut variants = a.feed.device.programs(artifact).map_err(|e| misplaced(&e))?;
    let mut data = a.feed.data.clone();
    let added = match a.dynamic {
        true => dynamic::added(artifact, &variants, &mut data, !a.pad.is_empty())?,
        false => Vec::new(),
    };
    variants.extend(&added);
    let name = variants.first().map_or("", |target| target.name.as_str());
    if name == CPU.name && artifact.arenas(name).host > 0 && is_first {
        tell!(
            "note: what leaves the device goes to the host arena, which is ordinary memory here, too"
        );
    }
    let parts = variants.iter().flat_map(|target| target.turns());
    let graphs: Vec<&Graph> = parts.map(|turn| turn.graph).collect();
    let set = with_defaults(&a.feed.set, &data, artifact, &graphs)?;
    let options = TrainOptions {
        data,
        initial: Initial {
            file: a.feed.init.as_ref().map(TensorFile::open).transpose().map_err(failed)?,
            skip: a.feed.skip.clone(),
            zeros: a.zeros.clone(),
            ..Initial::default()
        },
        mixing: Mixing {
            mix: a.mix,
            pad: a.pad.clone(),
            structure: match &artifact.drops {
                None => a.structure.unwrap_or_default(),
                // Left out are as many as the artifact says, whether or not a seed is given.
                Some(_) => a.structure.unwrap_or(Structure::Random(0)),
            },
            probability: a.probability.clone(),
            drops: artifact.drops.clone(),
        },
        set,
        length: match (a.steps, a.epochs) {
            (Some(n), _) => Length::Steps(n),
            (None, n) => Length::Epochs(n.unwrap_or(1)),
        },
        shuffle: a.shuffle,
        seed: a.seed,
        save: a.save.clone(),
        save_every: a.save_every,
        on_save_error: a.on_save_error.unwrap_or(match std::io::stderr().is_terminal() {
            true => OnSaveError::Wait,
            false => OnSaveError::Stop,
        }),
        outputs: a.feed.outputs.clone(),
        threads: a.feed.threads,
        deterministic: a.deterministic,
        trust: a.feed.code.trust(),
        poison: a.poison,
        trace: a.trace.clone(),
        ranks: ranks.communicator(),
        rank_timeout: a.rank_timeout,
        ways: Some(telling(a).with()).filter(|_| is_first),
        stop: Some(interrupt::flag_that(match a.save {
            Some(_) => "this step is the last one, and the states are saved",
            None => "this step is the last one",
        })),
    };
    // indicatif draws to stderr, and nothing when that is no terminal.
    let bar = ProgressBar::new(0).with_style(bar_style());
    let mut printed = Ok(());
    let watch = |report: &StepReport| {
        if !is_first {
            return;
        }
        bar.set_length(report.total);
        bar.set_position(report.done);
        let shown: Vec<String> =
            report.scalars.iter().map(|(name, x)| format!("{name} {x:.4}")).collect();
        if a.json.json {
            if printed.is_ok() {
                printed = print(json_line(report));
            }
        } else if bar.is_hidden()
            && (report.done == report.total || report.done.is_multiple_of(100))
        {
            tell!("step {}  {}", report.step, shown.join("  "));
        }
        bar.set_message(Visible(shown.join("  ")).to_string());
    };
    let notice = |n: &Notice| {
        if is_first {
            bar.suspend(|| tell!("note: {n}"));
        }
    };
    let trained = train_at(a.feed.device, &variants, &options, notice, watch);
    bar.finish_and_clear();
    let summary = trained?;
    printed?;
    if is_first {
        summarize(a, &summary)?;
    }
    if summary.is_stopped {
        return Err(Failure { report: None, code: INTERRUPTED });
    }
    Ok(())
}

/// What is told of the ways that products go.
fn telling(a: &Arguments) -> Telling {
    match (a.json.json, a.verbose) {
        (true, _) => Telling::Json,
        (false, true) => Telling::Table,
        (false, false) => Telling::Missing,
    }
}

/// Says what the run took.
fn summarize(a: &Arguments, summary: &Summary) -> Outcome {
    if let Some(path) = a.trace.as_ref().filter(|_| !summary.is_stopped) {
        tell!("{}: {}", path.display(), summary.clock);
    }
    let peak_rss = process_bytes("VmHWM");
    let instructions = (a.feed.device == Place::Cpu).then(Isa::of_machine);
    if a.json.json {
        return print(serde_json::json!({
            "instructions": instructions.map(|isa| isa.to_string()),
            "mean_step_seconds": summary.mean_step_seconds,
            "median_step_seconds": summary.median_step_seconds,
            "arena_bytes": summary.arena_bytes,
            "peak_rss_bytes": peak_rss,
            "host_arena_bytes": summary.host_arena_bytes,
            "library_bytes": summary.library_bytes,
            "mpi_bytes": summary.transport_bytes,
            "steps": summary.steps,
        }));
    }
    if let Some(isa) = instructions.filter(|_| a.verbose) {
        let bf16 = if multiplies_bf16() { ", products of bf16 by oneDNN" } else { "" };
        tell!("kernels for {isa}{bf16}");
    }
    tell!(
        "{} steps, {:.3} ms each, arena {}, peak resident {}{}",
        summary.steps,
        summary.mean_step_seconds * 1e3,
        human_bytes(summary.arena_bytes),
        peak_rss.map_or("unknown".into(), human_bytes),
        match summary.transport_bytes {
            0 => String::new(),
            bytes => format!(", of which {} are MPI's", human_bytes(bytes)),
        },
    );
    Ok(())
}

fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len} {per_sec} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// One step's scalars; NaN and infinities become null.
fn json_line(report: &StepReport) -> serde_json::Value {
    let mut line = serde_json::Map::new();
    line.insert("step".into(), report.step.into());
    line.extend(report.scalars.iter().map(|(name, x)| ((*name).to_owned(), (*x).into())));
    line.into()
}
