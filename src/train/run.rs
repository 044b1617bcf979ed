//! A run from files to files: feeds batches, steps, collects outputs, saves states.

use super::error::class_error;
use super::outputs::Outputs;
use super::ranks::Peers;
use super::saving::Saver;
use super::{Length, Step, TrainError, TrainOptions, initial};
use crate::data::{AtomicFile, DataError, Mixed, Notice, Npz, OutputSpool, Wanted, try_to_write};
use crate::heap;
use arenic_ir::graph::{StateId, ValueId};
use arenic_ir::program::Span;
use arenic_passes::simulate::chrome_trace;
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::Machine;
use arenic_runtime::variants::Variants;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    /// What connects ranks has so many bytes of the host's memory, on the rank where they are most.
    pub transport_bytes: u64,
}

/// How many steps a median is of.
const MOST_RECENT: usize = 1024;

/// What the steps of a variant need beside its machine.
struct Variant<'a> {
    step: Step<'a>,
    fed: Vec<ValueId>,
    /// Which of them are fed before every step of this variant that follows one of its own.
    refill: Vec<bool>,
    outputs: Outputs,
}

pub(super) fn train_on<M: Machine>(
    machines: &mut Variants<M>,
    steps: &[Step],
    options: &TrainOptions,
    mut notice: impl FnMut(&Notice),
    mut watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    if let Some(told) = options.ways {
        told(&machines.ways());
    }
    let peers = Peers::new(options);
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
        .map(|(v, step)| fed_inputs(step, machines.at(v), &files, &options.set))
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
    let transport_bytes = run.saver.peers.most_transport_bytes()?;
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
        transport_bytes,
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
                if is_fed {
                    machine.send_ahead()?;
                }
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
    step: &Step,
    executor: &mut impl Machine,
    files: &[Npz],
    set: &[(String, String)],
) -> Vec<ValueId> {
    let named = |name: &str| {
        files.iter().any(|n| n.array(name).is_some()) || set.iter().any(|(n, _)| n == name)
    };
    step.inputs()
        .filter(|&v| executor.input_mut(v).is_some() || named(&step.graph.values[v].name))
        .collect()
}
