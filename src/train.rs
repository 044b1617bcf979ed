//! Runs an artifact: feeds batches, steps, collects outputs, saves states.

mod initial;
mod place;
mod ranks;
mod saving;
pub(crate) mod session;

use crate::artifact::{Target, Turn};
use crate::data::{
    AtomicFile, DataError, Mixed, Mixing, Notice, Npz, OutputSpool, Wanted, try_to_write,
};
use crate::gpu_code::{self, Trust};
use crate::heap;
use crate::mapping::Mapping;
use arenic_ir::graph::{Def, Graph, StateId, ValueId};
use arenic_ir::program::{Program, Span};
use arenic_ir::types::{DType, TensorType, bf16};
use arenic_passes::simulate::chrome_trace;
use arenic_runtime::cuda;
use arenic_runtime::cuda::driver::Driver;
use arenic_runtime::executor::{ExecutorOptions, SetupError};
use arenic_runtime::kernel::{Draw, KernelError};
pub use arenic_runtime::machine::StepFailure;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::ranks::{Communicator, RankError};
use arenic_runtime::rounds::{Part, RoundsError, WholeStep};
use arenic_runtime::variants::{self, Variants};
use arenic_runtime::ways::Way;
pub use initial::{Initial, InitialError};
pub use place::{Place, PlaceError};
use ranks::Peers;
pub use ranks::RankCountError;
use saving::Saver;
pub use saving::{Kept, OnSaveError};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The input with the targets of a loss.
const TARGET: &str = "target";
/// How labels of a loss's nodes end.
const LOSS: &str = "`loss`";

/// How many steps to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This many steps; after the last row of the data the first follows.
    Steps(u64),
    /// This many times through the data.
    Epochs(u64),
}

/// What to run, besides the artifact.
#[derive(Debug)]
pub struct TrainOptions {
    /// Batches, as `.npz` files.
    pub data: Vec<PathBuf>,
    /// How several files, or several variants, share the steps.
    pub mixing: Mixing,
    /// Initial values of states, and replacements of constants.
    pub initial: Initial,
    /// Inputs of one element, as `name`, `value`.
    pub set: Vec<(String, String)>,
    /// How long.
    pub length: Length,
    /// Permute rows or batches, from this seed.
    pub shuffle: Option<u64>,
    /// Seed of random operators; by default that of the loaded state, else 0.
    pub seed: Option<u64>,
    /// Where states are saved at the end.
    pub save: Option<PathBuf>,
    /// Also save every this many steps.
    pub save_every: Option<u64>,
    /// What to do if saving fails.
    pub on_save_error: OnSaveError,
    /// Where non-scalar outputs go.
    pub outputs: Option<PathBuf>,
    /// Threads; 0 takes one per core.
    pub threads: usize,
    /// On a GPU: algorithms of libraries are deterministic ones, not chosen by measurement.
    pub deterministic: bool,
    /// Whose code for GPUs is run.
    pub trust: Trust,
    /// Fill dead bytes with NaN patterns.
    pub poison: bool,
    /// Where the times of the last step's commands go, in the trace event format.
    pub trace: Option<PathBuf>,
    /// Called once, before the first step, with the ways that products, convolutions and attentions
    /// go: on a GPU.
    pub ways: Option<fn(&[Way])>,
    /// Once this is set the run ends with the step that it is at, as if that were the last one. Of several ranks
    /// one that is told so ends the run of all.
    pub stop: Option<&'static AtomicBool>,
    /// The other ranks that run the step, too; `None` for a process alone.
    pub ranks: Option<Arc<dyn Communicator>>,
    /// How long a rank may be silent; by default ten seconds beyond three times the longest step so far.
    pub rank_timeout: Option<Duration>,
}

/// Once through the data from initial values, without saving anything.
impl Default for TrainOptions {
    fn default() -> TrainOptions {
        TrainOptions {
            data: Vec::new(),
            mixing: Mixing::default(),
            initial: Initial::default(),
            set: Vec::new(),
            length: Length::Epochs(1),
            shuffle: None,
            seed: None,
            save: None,
            save_every: None,
            on_save_error: OnSaveError::Stop,
            outputs: None,
            threads: 0,
            deterministic: false,
            trust: Trust::Own,
            poison: false,
            trace: None,
            ways: None,
            stop: None,
            ranks: None,
            rank_timeout: None,
        }
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The program cannot be run here.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The program cannot be run on this device.
    #[error(transparent)]
    DeviceSetup(#[from] cuda::SetupError),
    /// The artifact holds no program for the place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// An input cannot be fed with what is given for it.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The thread of a trainer could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(String),
    /// The thread of a trainer ended by a panic, which is a defect of arenic.
    #[error("the step ended by a defect of arenic; make another trainer, and please report this")]
    Ended,
    /// There are other ranks than the artifact is for.
    #[error(transparent)]
    RankCount(#[from] RankCountError),
    /// Other ranks are not there, or silent.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// The first rank could not save what all have.
    #[error("rank 0 could not save the states")]
    FirstRank,
    /// The parts of a step in rounds do not fit.
    #[error(transparent)]
    Rounds(#[from] RoundsError),
    /// The device failed between steps.
    #[error("the device failed: {0}")]
    Device(#[from] DeviceError),
    /// States or constants have no proper values.
    #[error(transparent)]
    Initial(#[from] InitialError),
    /// Data files.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A target is no class.
    #[error(
        "step {step}: the target {class} in row {row} of the batch is no class: the model has {classes} \
         (0 to {}); a class that counts for nothing is given to `arenic compile` by --ignore-index",
        .classes.saturating_sub(1)
    )]
    Class {
        /// The step.
        step: u64,
        /// The target.
        class: i64,
        /// Which of the batch's targets it is, counted from 0.
        row: usize,
        /// How many classes there are.
        classes: usize,
    },
    /// A kernel refused its operands, or the device failed.
    #[error("step {step}: {error}")]
    Step {
        /// The step.
        step: u64,
        /// Why.
        error: StepFailure,
    },
    /// The loss is NaN or infinite.
    #[error("step {step}: `{name}` is not finite")]
    NonFinite {
        /// The step.
        step: u64,
        /// The output.
        name: String,
    },
    /// Something failed after the first step of a run whose states were to be saved.
    #[error("{error}; {kept}")]
    Kept {
        /// What failed.
        error: Box<TrainError>,
        /// Where the states are now.
        kept: Kept,
    },
}

/// What is given for inputs does not fit them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Nothing is given.
    #[error("no value for the input{} {}", if .0.len() == 1 { "" } else { "s" }, .0.join(", "))]
    Missing(Vec<String>),
    /// There is no such input.
    #[error("`{name}` is no input; the inputs are {}", .known.join(", "))]
    Unknown {
        /// What is given.
        name: String,
        /// What could be.
        known: Vec<String>,
    },
    /// There is no such variant.
    #[error("`{name}` is no variant; there are {}", .known.join(", "))]
    Variant {
        /// What is named.
        name: String,
        /// What could be.
        known: Vec<String>,
    },
    /// Elements of another type, or in another number.
    #[error("the input `{name}` takes {expected}, not {found}")]
    Type {
        /// The input.
        name: String,
        /// What it takes.
        expected: TensorType,
        /// What is given.
        found: String,
    },
}

impl TrainError {
    /// How to mend it, where the message does not say that.
    pub fn help(&self) -> Option<String> {
        match self {
            TrainError::Place(e) => Some(e.help()),
            _ => None,
        }
    }

    /// True where the run ended because the loss is NaN or infinite.
    pub fn is_non_finite(&self) -> bool {
        match self {
            TrainError::NonFinite { .. } => true,
            TrainError::Kept { error, .. } => error.is_non_finite(),
            _ => false,
        }
    }
}

/// The scalar outputs of one step, for whoever watches.
#[derive(Debug)]
pub struct StepReport<'a> {
    /// The step's number, from 0 of the first run.
    pub step: u64,
    /// How many steps this run has, and how many of them are done.
    pub done: u64,
    /// See `done`.
    pub total: u64,
    /// Names and values; integers beyond 2^53 are rounded.
    pub scalars: &'a [(&'a str, f64)],
}

/// What a run took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// True where it was told to stop before its last step.
    pub is_stopped: bool,
    /// Mean time of a step, in seconds: feeding, computing and collecting outputs.
    pub mean_step_seconds: f64,
    /// The median of the last steps' times, at most 1024 of them.
    pub median_step_seconds: f64,
    /// Where the times of a trace come from, in words.
    pub clock: &'static str,
    /// Arena of the device, in bytes.
    pub arena_bytes: u64,
    /// Arena of the host, in bytes.
    pub host_arena_bytes: u64,
    /// At most this many bytes are allocated by libraries beside it, in its memory.
    pub library_bytes: u64,
}

/// How many steps a median is of.
const MOST_RECENT: usize = 1024;

/// Runs a target on the CPU.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train(
    target: &Target,
    options: &TrainOptions,
    notice: impl FnMut(&Notice) + Send,
    watch: impl FnMut(&StepReport) + Send,
) -> Result<Summary, TrainError> {
    train_variants(&[target], options, notice, watch)
}

/// Runs variants of a target, which take turns over the same arenas, on the CPU.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train_variants(
    variants: &[&Target],
    options: &TrainOptions,
    notice: impl FnMut(&Notice) + Send,
    watch: impl FnMut(&StepReport) + Send,
) -> Result<Summary, TrainError> {
    let how = ExecutorOptions { threads: options.threads, poison: options.poison, stress: None };
    on_cpu(variants, how, options.ranks.as_ref(), Training { options, notice, watch })
}

/// Runs a target on a device.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train_on_device(
    driver: impl Driver,
    target: &Target,
    options: &TrainOptions,
    notice: impl FnMut(&Notice),
    watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    train_variants_on_device(driver, &[target], options, notice, watch)
}

/// Runs variants of a target, which take turns over the same arenas, on a device.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train_variants_on_device(
    driver: impl Driver,
    variants: &[&Target],
    options: &TrainOptions,
    notice: impl FnMut(&Notice),
    watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    let how = cuda::CudaOptions { deterministic: options.deterministic };
    on_device(driver, variants, options.trust, how, Training { options, notice, watch })
}

/// What is done with steps that are ready, on whatever machine.
trait Work<R> {
    fn with<M: Machine>(self, machines: &mut Variants<M>, steps: &[Step]) -> Result<R, TrainError>;
}

/// Does `work` with variants on the CPU, on a thread of the kernels' pool where steps run there.
fn on_cpu<R: Send>(
    variants: &[&Target],
    how: ExecutorOptions,
    ranks: Option<&Arc<dyn Communicator>>,
    work: impl Work<R> + Send,
) -> Result<R, TrainError> {
    RankCountError::of(variants, ranks.map(|ranks| ranks.as_ref()))?;
    let whole = whole_steps(variants)?;
    let ready = ready(variants, &whole);
    let mut machines = Variants::on_cpu(&ready, how)?;
    if let Some(ranks) = ranks {
        machines.join(ranks);
    }
    let steps = steps(variants, &ready);
    machines.within(|machines| work.with(machines, &steps))
}

/// Does `work` with variants on a device.
fn on_device<R>(
    driver: impl Driver,
    variants: &[&Target],
    trust: Trust,
    how: cuda::CudaOptions,
    work: impl Work<R>,
) -> Result<R, TrainError> {
    RankCountError::of(variants, None)?;
    let images = |turn: &Turn| {
        let images = gpu_code::images(turn.kernels, turn.graph, turn.program, trust);
        images.map_err(cuda::SetupError::from)
    };
    let of_target = |target: &&Target| target.turns().iter().map(images).collect();
    let images = variants.iter().map(of_target).collect::<Result<Vec<Vec<_>>, _>>()?;
    let whole = whole_steps(variants)?;
    let ready = ready(variants, &whole);
    let mut machines = Variants::on_device(&ready, &images, driver, how)?;
    work.with(&mut machines, &steps(variants, &ready))
}

/// A run from files to files.
struct Training<'a, N, W> {
    options: &'a TrainOptions,
    notice: N,
    watch: W,
}

impl<N: FnMut(&Notice), W: FnMut(&StepReport)> Work<Summary> for Training<'_, N, W> {
    fn with<M: Machine>(
        self,
        machines: &mut Variants<M>,
        steps: &[Step],
    ) -> Result<Summary, TrainError> {
        train_on(machines, steps, self.options, self.notice, self.watch)
    }
}

/// The steps in rounds among variants.
fn whole_steps<'a>(variants: &[&'a Target]) -> Result<Vec<Option<WholeStep<'a>>>, RoundsError> {
    variants.iter().map(|target| target.whole_step()).collect()
}

/// The steps of variants as they are made ready.
fn ready<'s, 'a>(
    variants: &[&'a Target],
    whole: &'s [Option<WholeStep<'a>>],
) -> Vec<variants::Step<'s, 'a>> {
    let step = |(target, whole): (&&'a Target, &'s Option<_>)| match whole {
        Some(whole) => variants::Step::InRounds(whole),
        None => variants::Step::Whole(Part { graph: &target.graph, program: &target.program }),
    };
    variants.iter().zip(whole).map(step).collect()
}

/// What a run needs to know of a step.
#[derive(Clone, Copy)]
struct Step<'a> {
    /// The variant's name, and that of its model.
    name: (&'a str, &'a str),
    /// What is fed, kept and given.
    graph: &'a Graph,
    /// Initializers that cannot be replaced any more.
    bound: &'a [String],
    /// The file that constants and initial states lie in.
    file: &'a Mapping,
    /// Whose commands are timed.
    timed: (&'a Graph, &'a Program),
}

fn steps<'a>(variants: &[&'a Target], ready: &'a [variants::Step<'_, 'a>]) -> Vec<Step<'a>> {
    let step = |(target, ready): (&&'a Target, &'a variants::Step<'_, 'a>)| {
        let Target { variant, structure, bound, file, .. } = target;
        let (graph, timed) = (ready.graph(), (&target.graph, &target.program));
        Step { name: (variant, structure), graph, bound, file, timed }
    };
    variants.iter().zip(ready).map(step).collect()
}

/// What the steps of a variant need beside its machine.
struct Variant<'a> {
    step: Step<'a>,
    fed: Vec<ValueId>,
    /// Which of them are fed before every step of this variant that follows one of its own.
    refill: Vec<bool>,
    outputs: Outputs,
}

fn train_on<M: Machine>(
    machines: &mut Variants<M>,
    steps: &[Step],
    options: &TrainOptions,
    mut notice: impl FnMut(&Notice),
    mut watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    let peers = Peers::new(options);
    if let Some(told) = options.ways {
        told(&machines.ways());
    }
    if peers.is_first() {
        let written = [&options.save, &options.outputs, &options.trace];
        try_to_write(written.into_iter().flatten().map(PathBuf::as_path))?;
    }
    heap::give_back();
    let progress = initial::load(&options.initial, steps, machines, peers.rank())?;
    let seed = options.seed.unwrap_or(progress.seed);

    let files = options.data.iter().map(Npz::open).collect::<Result<Vec<_>, _>>()?;
    let fed: Vec<Vec<ValueId>> = steps
        .iter()
        .enumerate()
        .map(|(v, step)| fed_inputs(step.graph, machines.at(v), &files, &options.set))
        .collect();
    let wanted = |(step, fed): (&Step, &Vec<ValueId>)| {
        let g = step.graph;
        let named = |&v: &ValueId| (g.values[v].name.clone(), g.ty(v).clone());
        let steps_name = if step.name.0.is_empty() { "the step" } else { step.name.0 };
        Wanted {
            name: steps_name.to_owned(),
            structure: step.name.1.to_owned(),
            inputs: fed.iter().map(named).collect(),
        }
    };
    let wanted: Vec<Wanted> = steps.iter().zip(&fed).map(wanted).collect();
    let share = peers.share(steps);
    let (batches, notices) =
        Mixed::new(&wanted, &files, &options.set, options.shuffle, &options.mixing, &share)?;
    notices.iter().for_each(&mut notice);
    let total = match options.length {
        Length::Steps(n) => n,
        Length::Epochs(n) => n.saturating_mul(batches.count()),
    };
    let mut variants = Vec::with_capacity(steps.len());
    for (v, (&step, fed)) in steps.iter().zip(fed).enumerate() {
        // What neither varies nor has to be fed anew is fed once.
        let machine = machines.read(v);
        let again = |(i, &value): (usize, &ValueId)| {
            options.poison || batches.varies(v, i) || machine.is_fed_anew(value)
        };
        let refill = fed.iter().enumerate().map(again).collect();
        variants.push(Variant { step, fed, refill, outputs: Outputs::new(step.graph) });
    }
    let spool = match &options.outputs {
        Some(_) if !peers.is_first() => None,
        Some(path) => Some(spool(path, &variants)?),
        None => None,
    };
    let first = progress.step;
    let graphs = steps.iter().map(|step| step.graph).collect();
    let saver = Saver { graphs, options, seed, peers };
    let (tally, fed_last) = (Tally::default(), None);
    let mut run = Run { saver, variants, batches, spool, first, total, tally, fed_last };
    let outcome = run.steps(machines, &mut notice, &mut watch);
    let step = run.first + run.tally.steps;
    let saved = match outcome {
        Ok(()) => options
            .save
            .as_deref()
            .map_or(Ok(()), |path| run.saver.save(path, machines, step, &mut notice)),
        Err(e) => {
            let e = run.told(e);
            Err(run.kept(e, machines))
        }
    };
    // The outputs of the steps that were done are written, whatever ended the run.
    let spool = run.spool.take().filter(|_| saved.is_ok() || run.tally.steps > 0);
    let spooled = spool.map_or(Ok(()), OutputSpool::finish);
    saved?;
    spooled.map_err(|e| run.saver.saved_before(e, step))?;
    let last = run.fed_last.unwrap_or(0);
    let clock = machines.read(last).clock();
    if let (Some(path), Some(spans)) = (&options.trace, &run.tally.spans)
        && run.saver.peers.is_first()
    {
        let timed = steps[last].timed;
        let trace = chrome_trace(timed.0, timed.1, spans, clock).to_string();
        write_text(path, &trace).map_err(|e| run.saver.saved_before(e, step))?;
    }
    let arena = machines.arena_bytes();
    let tally = &mut run.tally;
    Ok(Summary {
        steps: tally.steps,
        is_stopped: tally.steps < total,
        mean_step_seconds: tally.spent.as_secs_f64() / tally.steps.max(1) as f64,
        median_step_seconds: {
            let recent = tally.recent.make_contiguous();
            recent.sort_unstable();
            recent.get(recent.len() / 2).map_or(0.0, Duration::as_secs_f64)
        },
        clock,
        arena_bytes: arena.device,
        host_arena_bytes: arena.host,
        library_bytes: machines.library_bytes(),
    })
}

/// Where the tensors of every step go, which must be of one type.
fn spool(path: &Path, variants: &[Variant]) -> Result<OutputSpool, DataError> {
    let types = |variant: &Variant| variant.outputs.tensor_types(variant.step.graph);
    let of_first = variants.first().map(types).unwrap_or_default();
    if let Some(other) = variants.iter().find(|variant| types(variant) != of_first) {
        return Err(DataError::Mixing(format!(
            "--outputs takes tensors of one shape, and those of the variant {} differ from those of {}",
            other.step.name.0, variants[0].step.name.0
        )));
    }
    OutputSpool::new(path, &of_first)
}

fn write_text(path: &Path, text: &str) -> Result<(), DataError> {
    let mut file = AtomicFile::create(path)?;
    file.put(text.as_bytes())?;
    file.commit()
}

/// What the steps of a run need beside the machines.
struct Run<'a> {
    saver: Saver<'a>,
    variants: Vec<Variant<'a>>,
    batches: Mixed,
    spool: Option<OutputSpool>,
    /// The number of the first step.
    first: u64,
    total: u64,
    tally: Tally,
    /// The variant that was fed last; what others were fed is gone.
    fed_last: Option<usize>,
}

/// What is known of the steps that are done.
#[derive(Default)]
struct Tally {
    steps: u64,
    spent: Duration,
    /// Times of the last steps.
    recent: VecDeque<Duration>,
    /// When the commands of the last step ran, where that is asked for.
    spans: Option<Vec<Span>>,
}

impl Run<'_> {
    /// Runs all steps, or as many as there are until the run is told to stop.
    fn steps<M: Machine>(
        &mut self,
        machines: &mut Variants<M>,
        notice: &mut impl FnMut(&Notice),
        watch: &mut impl FnMut(&StepReport),
    ) -> Result<(), TrainError> {
        let (options, seed) = (self.saver.options, self.saver.seed);
        let mut is_fed = false;
        for done in 0..self.total {
            if self.saver.all_are_told_to_stop()? {
                break;
            }
            let step = self.first + done;
            let v = self.batches.variant(step);
            let machine = machines.at(v);
            let start = Instant::now();
            if !std::mem::take(&mut is_fed) {
                self.feed(machine, v, step)?;
            }
            let draw = Draw { seed, step, round: self.saver.peers.rank() as u64 };
            let failed = |error| TrainError::Step { step, error };
            if options.trace.is_some() && done + 1 == self.total {
                self.tally.spans = Some(machine.timed_step(draw).map_err(failed)?);
            } else {
                machine.begin(draw).map_err(failed)?;
                // What cannot be fed now is told when its step comes.
                is_fed = machine.feeds_ahead()
                    && done + 1 < self.total
                    && self.batches.variant(step + 1) == v
                    && self.feed(machine, v, step + 1).is_ok();
                machine.finish().map_err(failed)?;
            }
            self.tally.steps += 1;
            let Variant { outputs, step: Step { graph, .. }, .. } = &self.variants[v];
            let scalars = outputs.scalars(graph, machine);
            if let Some(spool) = &mut self.spool {
                for (k, &i) in outputs.tensors.iter().enumerate() {
                    spool.append(k, machine.output(i))?;
                }
            }
            self.tally.took(start.elapsed());
            self.saver.peers.took(start.elapsed());
            watch(&StepReport { step, done: done + 1, total: self.total, scalars: &scalars });
            if let Some(name) = outputs.non_finite_loss(&scalars) {
                let error = TrainError::NonFinite { step, name };
                return Err(self.saver.save_aside(error, machines, step + 1, notice));
            }
            let due = options.save_every.is_some_and(|n| n > 0 && (done + 1) % n == 0);
            if let (Some(path), true) = (&options.save, due && done + 1 < self.total) {
                self.saver.save(path, machines, step + 1, notice)?;
            }
        }
        Ok(())
    }

    /// Feeds a step of a variant.
    fn feed(&mut self, machine: &mut impl Machine, v: usize, step: u64) -> Result<(), DataError> {
        let Variant { fed, refill, .. } = &self.variants[v];
        let is_first = self.fed_last != Some(v);
        for (i, &value) in fed.iter().enumerate().filter(|&(i, _)| is_first || refill[i]) {
            if let Some(bytes) = machine.input_mut(value) {
                self.batches.fill(step, i, bytes)?;
            }
        }
        self.fed_last = Some(v);
        Ok(())
    }

    /// Why a step failed.
    fn told(&mut self, error: TrainError) -> TrainError {
        let TrainError::Step { step, .. } = error else { return error };
        let v = self.batches.variant(step);
        let Variant { step: Step { graph: g, .. }, fed, .. } = &self.variants[v];
        class_error(g, error, |value| {
            let i = fed.iter().position(|&fed| fed == value)?;
            let mut bytes = vec![0; g.ty(value).bytes() as usize];
            self.batches.fill(step, i, &mut bytes).ok()?;
            Some(bytes)
        })
    }

    /// The error that ended the steps, once what was trained before it is safe.
    fn kept<M: Machine>(&self, error: TrainError, machines: &Variants<M>) -> TrainError {
        let v = self.fed_last.unwrap_or(0);
        let renewed = match &error {
            // Saved already.
            TrainError::Kept { .. } => return error,
            // A rank that failed alone cannot save what others have their parts of.
            _ if self.saver.peers.are_several() => return error,
            TrainError::Step { .. } | TrainError::Class { .. } => machines.read(v).written_states(),
            _ => Vec::new(),
        };
        let name = |s: StateId| self.variants[v].step.graph.states[s].name.clone();
        let renewed = renewed.into_iter().map(name).collect();
        match self.tally.steps {
            0 => error,
            steps => self.saver.rescue(error, machines, self.first + steps, renewed),
        }
    }
}

/// Why a step failed, where it may be that a target is no class: the loss takes an element by it. `fed` gives
/// the bytes of an input.
fn class_error(
    g: &Graph,
    error: TrainError,
    fed: impl FnOnce(ValueId) -> Option<Vec<u8>>,
) -> TrainError {
    let TrainError::Step { step, error: StepFailure::Refused(refused) } = &error else {
        return error;
    };
    let KernelError::IndexOutOfRange { index, extent } = refused.error else { return error };
    let is_target = |v: &ValueId| g.values[*v].name == TARGET && g.ty(*v).dtype == DType::I64;
    let target = g.inputs().find(is_target).filter(|_| refused.node.ends_with(LOSS));
    let Some(bytes) = target.and_then(fed) else { return error };
    let mut targets = bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
    match targets.position(|t| t == index) {
        Some(row) => TrainError::Class { step: *step, class: index, row, classes: extent },
        None => error,
    }
}

impl Tally {
    fn took(&mut self, time: Duration) {
        self.spent += time;
        self.recent.push_back(time);
        if self.recent.len() > MOST_RECENT {
            self.recent.pop_front();
        }
    }
}

/// The inputs to be fed: those that the step reads, and others that the user names.
fn fed_inputs(
    g: &Graph,
    executor: &mut impl Machine,
    files: &[Npz],
    set: &[(String, String)],
) -> Vec<ValueId> {
    let named = |name: &str| {
        files.iter().any(|n| n.array(name).is_some()) || set.iter().any(|(n, _)| n == name)
    };
    let inputs: Vec<ValueId> = g.inputs().collect();
    inputs
        .into_iter()
        .filter(|&v| executor.input_mut(v).is_some() || named(&g.values[v].name))
        .collect()
}

/// Which outputs are scalars, reported at every step, and which are tensors.
struct Outputs {
    scalars: Vec<usize>,
    tensors: Vec<usize>,
    /// The scalar that must stay finite.
    loss: Option<usize>,
}

impl Outputs {
    fn new(g: &Graph) -> Outputs {
        let is_scalar = |i: &usize| g.ty(g.outputs[*i].value).elements() == 1;
        let (scalars, tensors): (Vec<usize>, Vec<usize>) =
            (0..g.outputs.len()).partition(is_scalar);
        let loss = crate::kinds::loss(g).filter(|_| !g.states.is_empty());
        Outputs { scalars, tensors, loss }
    }

    fn tensor_types(&self, g: &Graph) -> Vec<(String, TensorType)> {
        let output = |&i: &usize| (g.outputs[i].name.clone(), g.ty(g.outputs[i].value).clone());
        self.tensors.iter().map(output).collect()
    }

    fn scalars<'g>(&self, g: &'g Graph, executor: &impl Machine) -> Vec<(&'g str, f64)> {
        let output = |&i: &usize| {
            let dtype = g.ty(g.outputs[i].value).dtype;
            (g.outputs[i].name.as_str(), scalar(dtype, executor.output(i)))
        };
        self.scalars.iter().map(output).collect()
    }

    fn non_finite_loss(&self, scalars: &[(&str, f64)]) -> Option<String> {
        let at = self.scalars.iter().position(|&i| Some(i) == self.loss)?;
        (!scalars[at].1.is_finite()).then(|| scalars[at].0.to_owned())
    }
}

/// The first element as a number.
pub(crate) fn scalar(dtype: DType, bytes: &[u8]) -> f64 {
    let mut wide = [0u8; 8];
    let n = (dtype.size() as usize).min(bytes.len());
    wide[..n].copy_from_slice(&bytes[..n]);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => bits as f64,
        DType::I8 => f64::from(bits as i8),
        DType::I16 => f64::from(bits as i16),
        DType::I32 => f64::from(bits as i32),
        DType::I64 => bits as i64 as f64,
        DType::Bf16 => bf16::to_f32(bits as u16).into(),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::F64 => f64::from_bits(bits),
    }
}

/// A pattern of names: `*`, `?` and `[…]` as in a shell.
///
/// # Errors
/// The text is no pattern.
pub fn pattern(text: &str) -> Result<glob::Pattern, glob::PatternError> {
    glob::Pattern::new(text)
}

/// Names of the constants that `--init` may replace.
fn replaceable(g: &Graph) -> impl Iterator<Item = (ValueId, &str)> {
    g.values
        .iter()
        .filter(|(_, v)| matches!(v.def, Def::Const(_)) && !v.name.is_empty())
        .map(|(id, v)| (id, v.name.as_str()))
}
