//! Runs an artifact: feeds batches, steps, collects outputs, saves states.

mod initial;
mod place;
mod saving;
pub(crate) mod session;

use crate::artifact::{Target, Turn};
use crate::data::{AtomicFile, Batches, DataError, Notice, Npz, OutputSpool, try_to_write};
use crate::gpu_code::{self, Trust};
use crate::heap;
use crate::mapping::Mapping;
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::program::{Program, Span};
use arenic_ir::types::{DType, TensorType, bf16};
use arenic_passes::simulate::chrome_trace;
pub use arenic_runtime::cuda::DeviceStepError as StepFailure;
use arenic_runtime::cuda::driver::{Driver, DriverError};
use arenic_runtime::cuda::{self, CudaExecutor, DeviceStepError};
use arenic_runtime::executor::{Executor, Options as ExecutorOptions, SetupError};
use arenic_runtime::kernel::{Draw, KernelError};
use arenic_runtime::machine::Machine;
use arenic_runtime::rounds::{InRounds, RoundsError};
pub use initial::{Initial, InitialError};
pub use place::{Place, PlaceError};
use saving::Saver;
pub use saving::{Kept, OnSaveError};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The input with the targets of a loss.
const TARGET: &str = "target";
/// How labels of a loss's nodes end.
const LOSS: &str = "`loss`";

/// How many steps to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This many steps; beyond the data they wrap.
    Steps(u64),
    /// This many times through the data.
    Epochs(u64),
}

/// What to run, besides the artifact.
#[derive(Debug)]
pub struct Options {
    /// Batches, as an `.npz`.
    pub data: Option<PathBuf>,
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
    /// Save every so many steps, too.
    pub save_every: Option<u64>,
    /// What to do where that fails.
    pub on_save_error: OnSaveError,
    /// Where non-scalar outputs go.
    pub outputs: Option<PathBuf>,
    /// Threads; 0 takes one per core.
    pub threads: usize,
    /// On a GPU nothing depends on time: libraries' ways are not chosen by measurement.
    pub deterministic: bool,
    /// Whose code for GPUs is run.
    pub trust: Trust,
    /// Fill dead bytes with NaN patterns.
    pub poison: bool,
    /// Where the times of the last step's commands go, in the trace event format.
    pub trace: Option<PathBuf>,
    /// Once this is set the run ends with the step that it is at, as if that were the last one.
    pub stop: Option<&'static AtomicBool>,
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
    /// The parts of a step in rounds do not fit.
    #[error(transparent)]
    Rounds(#[from] RoundsError),
    /// The device failed between steps.
    #[error("the device failed: {0}")]
    Device(#[from] DriverError),
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
        error: DeviceStepError,
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
    options: &Options,
    notice: impl FnMut(&Notice) + Send,
    watch: impl FnMut(&StepReport) + Send,
) -> Result<Summary, TrainError> {
    let how = ExecutorOptions { threads: options.threads, poison: options.poison, stress: None };
    on_cpu(target, how, Training { options, notice, watch })
}

/// Runs a target on a device.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train_on_device(
    driver: impl Driver,
    target: &Target,
    options: &Options,
    notice: impl FnMut(&Notice),
    watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    let how = cuda::Options { deterministic: options.deterministic };
    on_device(driver, target, options.trust, how, Training { options, notice, watch })
}

/// What is done with a program that is ready to step, on whatever machine.
trait Work<R> {
    fn with(self, machine: &mut impl Machine, step: Step) -> Result<R, TrainError>;
}

/// Does `work` with a target on the CPU, on a thread of the kernels' pool where steps run there.
fn on_cpu<R: Send>(
    target: &Target,
    how: ExecutorOptions,
    work: impl Work<R> + Send,
) -> Result<R, TrainError> {
    if let Some(whole) = &target.whole_step()? {
        let step = Step::of(target, whole.graph());
        let mut machine = InRounds::on_cpu(whole, how)?;
        return machine.within(|machine| work.with(machine, step));
    }
    let step = Step::of(target, &target.graph);
    let mut executor = Executor::new(&target.graph, &target.program, how)?;
    executor.within(|executor| work.with(executor, step))
}

/// Does `work` with a target on a device.
fn on_device<R>(
    driver: impl Driver,
    target: &Target,
    trust: Trust,
    how: cuda::Options,
    work: impl Work<R>,
) -> Result<R, TrainError> {
    let images = |turn: &Turn| {
        let images = gpu_code::images(turn.kernels, turn.graph, turn.program, trust);
        images.map_err(cuda::SetupError::from)
    };
    let images = target.turns().iter().map(images).collect::<Result<Vec<_>, _>>()?;
    if let (Some(whole), [before, main, after]) = (&target.whole_step()?, &images[..]) {
        let step = Step::of(target, whole.graph());
        let mut machine = InRounds::on_device(whole, [before, main, after], driver, how)?;
        return work.with(&mut machine, step);
    }
    let (g, images) = (&target.graph, images.concat());
    let mut executor = CudaExecutor::new(g, &target.program, &images, driver, how)?;
    work.with(&mut executor, Step::of(target, g))
}

/// A run from files to files.
struct Training<'a, N, W> {
    options: &'a Options,
    notice: N,
    watch: W,
}

impl<N: FnMut(&Notice), W: FnMut(&StepReport)> Work<Summary> for Training<'_, N, W> {
    fn with(self, machine: &mut impl Machine, step: Step) -> Result<Summary, TrainError> {
        train_on(machine, step, self.options, self.notice, self.watch)
    }
}

/// What a run needs to know of its step.
#[derive(Clone, Copy)]
struct Step<'a> {
    /// What is fed, kept and given.
    graph: &'a Graph,
    /// Initializers that cannot be replaced any more.
    bound: &'a [String],
    /// The file that constants and initial states lie in.
    file: &'a Mapping,
    /// Whose commands are timed.
    timed: (&'a Graph, &'a Program),
}

impl<'a> Step<'a> {
    /// The step of a target; `graph` is its own, or that of all its rounds.
    fn of(target: &'a Target, graph: &'a Graph) -> Self {
        let Target { bound, file, .. } = target;
        Step { graph, bound, file, timed: (&target.graph, &target.program) }
    }
}

fn train_on(
    executor: &mut impl Machine,
    step: Step,
    options: &Options,
    mut notice: impl FnMut(&Notice),
    mut watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    let written = [&options.save, &options.outputs, &options.trace];
    try_to_write(written.into_iter().flatten().map(PathBuf::as_path))?;
    heap::give_back();
    let (g, timed) = (step.graph, step.timed);
    let progress = initial::load(&options.initial, step, executor)?;
    let seed = options.seed.unwrap_or(progress.seed);

    let npz = options.data.as_deref().map(Npz::open).transpose()?;
    let fed = fed_inputs(g, executor, npz.as_ref(), &options.set);
    let named: Vec<(String, TensorType)> =
        fed.iter().map(|&v| (g.values[v].name.clone(), g.ty(v).clone())).collect();
    let (batches, notices) = Batches::new(&named, npz.as_ref(), &options.set, options.shuffle)?;
    notices.iter().for_each(&mut notice);
    let total = match options.length {
        Length::Steps(n) => n,
        Length::Epochs(n) => n.saturating_mul(batches.count()),
    };

    let outputs = Outputs::new(g);
    let spool = match &options.outputs {
        Some(path) => Some(OutputSpool::new(path, &outputs.tensor_types(g))?),
        None => None,
    };
    // What neither varies nor has to be fed anew is fed once.
    let refill: Vec<bool> = fed
        .iter()
        .enumerate()
        .map(|(i, &v)| options.poison || batches.varies(i) || executor.is_fed_anew(v))
        .collect();
    let first = progress.step;
    let saver = Saver { graph: g, options, seed };
    let mut run =
        Run { saver, fed, refill, batches, outputs, spool, first, total, tally: Tally::default() };
    let outcome = run.steps(executor, &mut notice, &mut watch);
    let step = run.first + run.tally.steps;
    let saved = match outcome {
        Ok(()) => options
            .save
            .as_deref()
            .map_or(Ok(()), |path| run.saver.save(path, executor, step, &mut notice)),
        Err(e) => {
            let e = run.told(e);
            Err(run.kept(e, executor))
        }
    };
    // The outputs of the steps that were done are written, whatever ended the run.
    let spool = run.spool.take().filter(|_| saved.is_ok() || run.tally.steps > 0);
    let spooled = spool.map_or(Ok(()), OutputSpool::finish);
    saved?;
    spooled.map_err(|e| run.saver.saved_before(e, step))?;
    if let (Some(path), Some(spans)) = (&options.trace, &run.tally.spans) {
        let trace = chrome_trace(timed.0, timed.1, spans, executor.clock()).to_string();
        write_text(path, &trace).map_err(|e| run.saver.saved_before(e, step))?;
    }
    let arena = executor.footprint().arena_bytes;
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
        clock: executor.clock(),
        arena_bytes: arena.device,
        host_arena_bytes: arena.host,
        library_bytes: executor.library_bytes(),
    })
}

fn write_text(path: &Path, text: &str) -> Result<(), DataError> {
    let mut file = AtomicFile::create(path)?;
    file.put(text.as_bytes())?;
    file.commit()
}

/// What the steps of a run need beside the machine.
struct Run<'a> {
    saver: Saver<'a>,
    fed: Vec<ValueId>,
    /// Which of them are fed before every step.
    refill: Vec<bool>,
    batches: Batches,
    outputs: Outputs,
    spool: Option<OutputSpool>,
    /// The number of the first step.
    first: u64,
    total: u64,
    tally: Tally,
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
    fn steps(
        &mut self,
        executor: &mut impl Machine,
        notice: &mut impl FnMut(&Notice),
        watch: &mut impl FnMut(&StepReport),
    ) -> Result<(), TrainError> {
        let Saver { graph: g, options, seed } = self.saver;
        let mut is_fed = false;
        for done in 0..self.total {
            if self.saver.is_told_to_stop() {
                break;
            }
            let step = self.first + done;
            let start = Instant::now();
            if !std::mem::take(&mut is_fed) {
                self.feed(executor, done)?;
            }
            let draw = Draw { seed, step, round: 0 };
            let failed = |error| TrainError::Step { step, error };
            if options.trace.is_some() && done + 1 == self.total {
                self.tally.spans = Some(executor.timed_step(draw).map_err(failed)?);
            } else {
                executor.begin(draw).map_err(failed)?;
                // What cannot be fed now is told when its step comes.
                is_fed = executor.feeds_ahead()
                    && done + 1 < self.total
                    && self.feed(executor, done + 1).is_ok();
                executor.finish().map_err(failed)?;
            }
            self.tally.steps += 1;
            let scalars = self.outputs.scalars(g, executor);
            if let Some(spool) = &mut self.spool {
                for (k, &i) in self.outputs.tensors.iter().enumerate() {
                    spool.append(k, executor.output(i))?;
                }
            }
            self.tally.took(start.elapsed());
            watch(&StepReport { step, done: done + 1, total: self.total, scalars: &scalars });
            if let Some(name) = self.outputs.non_finite_loss(&scalars) {
                let error = TrainError::NonFinite { step, name };
                return Err(self.saver.save_aside(error, executor, step + 1, notice));
            }
            let due = options.save_every.is_some_and(|n| n > 0 && (done + 1) % n == 0);
            if let (Some(path), true) = (&options.save, due && done + 1 < self.total) {
                self.saver.save(path, executor, step + 1, notice)?;
            }
        }
        Ok(())
    }

    fn feed(&mut self, executor: &mut impl Machine, done: u64) -> Result<(), DataError> {
        for (i, &v) in self.fed.iter().enumerate().filter(|&(i, _)| done == 0 || self.refill[i]) {
            if let Some(bytes) = executor.input_mut(v) {
                self.batches.fill(self.first + done, i, bytes)?;
            }
        }
        Ok(())
    }

    /// Why a step failed.
    fn told(&mut self, error: TrainError) -> TrainError {
        let TrainError::Step { step, .. } = error else { return error };
        let g = self.saver.graph;
        class_error(g, error, |v| {
            let i = self.fed.iter().position(|&fed| fed == v)?;
            let mut bytes = vec![0; g.ty(v).bytes() as usize];
            self.batches.fill(step, i, &mut bytes).ok()?;
            Some(bytes)
        })
    }

    /// The error that ended the steps, once what was trained before it is safe.
    fn kept(&self, error: TrainError, executor: &impl Machine) -> TrainError {
        let renewed = match &error {
            // Saved already.
            TrainError::Kept { .. } => return error,
            TrainError::Step { .. } | TrainError::Class { .. } => executor.written_states(),
            _ => Vec::new(),
        };
        match self.tally.steps {
            0 => error,
            steps => self.saver.rescue(error, executor, self.first + steps, &renewed),
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
    let TrainError::Step { step, error: DeviceStepError::Refused(refused) } = &error else {
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
    npz: Option<&Npz>,
    set: &[(String, String)],
) -> Vec<ValueId> {
    let named = |name: &str| {
        npz.is_some_and(|n| n.array(name).is_some()) || set.iter().any(|(n, _)| n == name)
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
