//! The executor: runs a checked program out of one arena per memory space.
//!
//! All tensor memory is allocated before the first step: the arenas, and nothing else.
//! The arenas are memories of their own, and streams are threads: the first stream runs on
//! the thread that steps, every other on one of its own, and events alone order them. That
//! every legal interleaving gives the bits of issue order is invariant I8, which `check`
//! proves when the executor is made. Kernels run in one pool, whatever stream they are of.

mod step;
mod streams;
mod stress;
#[cfg(test)]
mod tests;

use crate::cpu::{self, Isa, UnknownIsa};
use crate::kernel::{Destination, Draw, KernelError, Operand, Scratch};
use crate::memory::{ALIGN, AlignedBytes, OutOfMemory};
use crate::ranks::Communicator;
use crate::workers::Workers;
use arenic_ir::check::{self, Footprint, Violation, check, check_variants};
use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::program::{Command, EventId, PerSpace, Program, Range, Span, StreamId};
use arenic_ir::types::has_bf16;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use step::{Clock, Dead, POISON, Prepared, StepCommands};
use streams::{Events, Threads};
use stress::Delays;

/// How a program is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecutorOptions {
    /// Threads of kernels; 0 takes one per core. Streams of copies have threads beside them.
    pub threads: usize,
    /// Fill bytes with a NaN pattern as soon as they are dead. When that is depends on the
    /// order of commands, so all of them run in issue order, on the thread that steps.
    pub poison: bool,
    /// Delay commands at random, the same way for the same seed and step. For tests: where
    /// an event is missing, the delays bring wrong bits to light.
    pub stress: Option<u64>,
}

/// Why an executor could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetupError {
    /// The program does not implement the graph.
    #[error("the program does not implement its graph: {}", .0.first().map_or(String::new(), Violation::to_string))]
    Check(Vec<Violation>),
    /// The program was planned for looser alignment than kernels rely on.
    #[error(
        "the program aligns to {0} bytes, the CPU kernels need {ALIGN}; compile it again for `cpu`"
    )]
    Alignment(u64),
    /// An arena could not be allocated.
    #[error("an arena could not be allocated: {0}")]
    Memory(#[from] OutOfMemory),
    /// The batch of a step in rounds could not be allocated.
    #[error("the batch of all rounds could not be allocated: {0}")]
    Batch(OutOfMemory),
    /// Instructions were chosen that there are none of.
    #[error(transparent)]
    Instructions(#[from] UnknownIsa),
    /// Threads could not be started.
    #[error("{0} threads could not be started: {1}")]
    Threads(usize, String),
    /// A step that was to be added needs larger arenas than there are.
    #[error(
        "the step needs arenas of {} and {} bytes, and there are {} and {}",
        .wanted.device, .wanted.host, .there.device, .there.host
    )]
    Arena {
        /// Those that there are.
        there: PerSpace<u64>,
        /// Those that it needs.
        wanted: PerSpace<u64>,
    },
}

/// A kernel refused its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {error}")]
pub struct StepError {
    /// The node: operator and name.
    pub node: String,
    /// Why.
    pub error: KernelError,
}

/// A program ready to step.
pub struct Executor<'g> {
    graph: &'g Graph,
    options: ExecutorOptions,
    /// Those of all programs that it takes turns with.
    arenas: Arc<PerSpace<AlignedBytes>>,
    footprint: Footprint,
    homes: HashMap<ValueId, Range>,
    /// Inputs that are fed before every step.
    fed_each_step: HashSet<ValueId>,
    outputs: Vec<Range>,
    step: StepCommands<'g>,
    threads: Threads,
    /// The first stream alone has kernels. Where others have some, too, no stream may run on a thread of
    /// the pool: it waits for others, and might be the thread that they need.
    one_stream: bool,
}

impl<'g> Executor<'g> {
    /// Checks the program, allocates its arenas and prepares every call.
    ///
    /// # Errors
    /// The program breaks an invariant, or memory or threads are not to be had.
    pub fn new(
        graph: &'g Graph,
        program: &Program,
        options: ExecutorOptions,
    ) -> Result<Self, SetupError> {
        let footprint = check(graph, program).map_err(SetupError::Check)?;
        let (arenas, workers) = (allocate(program.sizes, options)?, workers(options)?);
        // SAFETY: `check` has just accepted the program, and the arenas are its own.
        unsafe { Self::in_arenas(graph, program, footprint, arenas, workers, options) }
    }

    /// Executors of steps that take turns over the same arenas, which are as large as the largest;
    /// a step has one program, or several that take turns themselves. `check_variants` judges them;
    /// its messages name programs by their places among all.
    ///
    /// # Errors
    /// As for [`Executor::new`].
    ///
    /// # Safety
    /// One of them is used at a time: while one steps no other one does, and no reference to the
    /// bytes that one of them gave is alive while another steps or gives some to be written.
    pub(crate) unsafe fn taking_turns(
        steps: &[Vec<check::Part<'g>>],
        options: ExecutorOptions,
    ) -> Result<Vec<Vec<Self>>, SetupError> {
        let footprints = check_variants(steps).map_err(SetupError::Check)?;
        let sizes = steps.iter().flatten().map(|(_, program)| program.sizes);
        let (arenas, workers) = (
            allocate(sizes.fold(PerSpace::default(), PerSpace::largest), options)?,
            workers(options)?,
        );
        let executor = |(&(graph, program), footprint): (&check::Part<'g>, Footprint)| {
            let (arenas, workers) = (Arc::clone(&arenas), Arc::clone(&workers));
            // SAFETY: `check_variants` has just accepted the programs, so that each finds its states
            // and constants as it needs them; the arenas have room for each. That no two are used
            // at a time is the caller's promise.
            unsafe { Self::in_arenas(graph, program, footprint, arenas, workers, options) }
        };
        let of_step = |(step, footprints): (&Vec<_>, Vec<_>)| {
            step.iter().zip(footprints).map(executor).collect::<Result<Vec<_>, _>>()
        };
        steps.iter().zip(footprints).map(of_step).collect()
    }

    /// # Safety
    /// `check` accepted the program, so that its ranges lie in its arenas, aligned, and no
    /// two of its accesses race; the arenas have room for it and are its own while it is used.
    unsafe fn in_arenas(
        graph: &'g Graph,
        program: &Program,
        footprint: Footprint,
        arenas: Arc<PerSpace<AlignedBytes>>,
        workers: Arc<Workers>,
        options: ExecutorOptions,
    ) -> Result<Self, SetupError> {
        if !program.target.align.is_multiple_of(ALIGN as u64) {
            return Err(SetupError::Alignment(program.target.align));
        }
        Isa::chosen()?;
        let streams = streams(program, options.poison);
        let begun = streams.iter().map(|_| AtomicUsize::new(0)).collect();
        let threads = Threads::start(streams.len());
        let threads = threads.map_err(|e| SetupError::Threads(streams.len(), e.to_string()))?;
        // Exchanges between ranks wait, and run on their stream's own thread.
        let runs = |&i: &usize| match program.commands[i] {
            Command::Run { node, .. } => !graph.nodes[node].op.communicates(),
            _ => false,
        };
        let one_stream = !streams.iter().skip(1).flatten().any(runs);
        let events = event_indices(program);
        let mut executor = Executor {
            graph,
            options,
            arenas,
            footprint,
            homes: program.homes.iter().map(|h| (h.value, h.range)).collect(),
            fed_each_step: program.fed_each_step(graph),
            outputs: program.outputs.clone(),
            step: StepCommands {
                graph,
                commands: Vec::new(),
                dead: Vec::new(),
                streams,
                begun,
                events: Events::new(events.len()),
                delays: options.stress.map(Delays),
                clock: None,
                workers,
                ranks: None,
                refused: Mutex::new(None),
            },
            threads,
            one_stream,
        };
        let prepare = |command| executor.prepare(command, &events);
        executor.step.commands = program.commands.iter().map(prepare).collect();
        if options.poison {
            executor.prepare_poison(program);
        }
        Ok(executor)
    }

    /// An executor of another program over the same arenas; what these hold stays.
    ///
    /// # Errors
    /// As for [`Executor::new`].
    ///
    /// # Safety
    /// `check_variants` accepted the program beside all others over the arenas, which have room for it, and
    /// said `footprint` of it. For uses it is as for [`Executor::taking_turns`].
    pub(crate) unsafe fn another(
        &self,
        (graph, program): check::Part<'g>,
        footprint: Footprint,
    ) -> Result<Self, SetupError> {
        let (arenas, workers) = (Arc::clone(&self.arenas), Arc::clone(&self.step.workers));
        // SAFETY: the caller's promise.
        let mut another =
            unsafe { Self::in_arenas(graph, program, footprint, arenas, workers, self.options) }?;
        another.step.ranks.clone_from(&self.step.ranks);
        Ok(another)
    }

    /// Runs the program as one of several ranks.
    pub fn join(&mut self, ranks: Arc<dyn Communicator>) {
        self.step.ranks = Some(ranks);
    }

    /// What the checker said about the program.
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Bytes that matrix products may allocate beside the arena.
    pub fn library_bytes(&self) -> u64 {
        let narrow = has_bf16(self.graph.values.values().map(|v| v.ty.dtype));
        cpu::library_bytes(self.step.workers.count(), narrow)
    }

    fn address(&self, range: &Range) -> *mut u8 {
        // SAFETY: `check` proved that ranges lie within the arenas.
        unsafe { self.arenas[range.space].as_ptr().add(range.offset as usize) }
    }

    fn prepare(&self, command: &Command, events: &HashMap<EventId, usize>) -> Prepared<'g> {
        let graph = self.graph;
        match command {
            Command::Run { node, reads, writes, scratch, .. } => {
                let n = &graph.nodes[*node];
                // SAFETY: `check` proved that each range lies in its arena, is aligned for
                // its element type, and is not accessed by anything unordered; arenas
                // live as long as the executor and start out zeroed.
                let operand = |(v, r): (&ValueId, &Range)| unsafe {
                    Operand::new(graph.ty(*v), self.address(r))
                };
                let target = |(v, r): (&Option<ValueId>, &Option<Range>)| {
                    // SAFETY: as above.
                    (*v).zip(*r)
                        .map(|(v, r)| unsafe { Destination::new(graph.ty(v), self.address(&r)) })
                };
                Prepared::Run {
                    node: *node,
                    inputs: n.inputs.iter().zip(reads).map(operand).collect(),
                    outputs: n.outputs.iter().zip(writes).map(target).collect(),
                    scratch: scratch.map_or(Scratch::NONE, |r| {
                        // SAFETY: as above; arenas are aligned to 64, and so are ranges.
                        unsafe { Scratch::new(self.address(&r), r.len as usize) }
                    }),
                }
            }
            Command::Copy { from, to, .. } => Prepared::Copy {
                from: self.address(from),
                to: self.address(to),
                len: from.len as usize,
            },
            Command::Record { event, .. } => Prepared::Record(events[event]),
            Command::Wait { event, .. } => Prepared::Wait(events[event]),
        }
    }

    fn prepare_poison(&mut self, program: &Program) {
        let end = program.commands.len();
        self.step.dead.resize_with(end, Vec::new);
        for occupancy in &self.footprint.occupancies {
            let o = occupancy;
            // An occupancy that was handed over in place ends where its successor begins.
            let handed_over = o.end <= o.first || self.successor_at(o.end, &o.range);
            if o.end > 0 && o.end < end && !handed_over {
                let dead = Dead { ptr: self.address(&o.range), len: o.range.len as usize };
                self.step.dead[o.end - 1].push(dead);
            }
        }
    }

    /// True where another occupancy of exactly this range begins at the command.
    fn successor_at(&self, command: usize, range: &Range) -> bool {
        let occupancies = &self.footprint.occupancies;
        let from = occupancies.partition_point(|o| o.first < command);
        occupancies[from..]
            .iter()
            .take_while(|o| o.first == command)
            .any(|o| o.range.overlaps(range))
    }

    /// True where the step writes over the input's bytes, so that the input must be fed again
    /// before every step.
    pub fn is_overwritten(&self, v: ValueId) -> bool {
        self.fed_each_step.contains(&v)
    }

    /// The bytes of a fed input, to be filled before each step; `None` where the step
    /// does not read it.
    pub fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        let is_input = matches!(self.graph.values.get(v)?.def, Def::Input);
        self.home_mut(v).filter(|_| is_input)
    }

    /// The home of a constant, or of a state's value as a step begins: before the first step to
    /// be filled, a state's later to be replaced. `None` where nothing reads it.
    pub fn carried_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        let is_input = matches!(self.graph.values.get(v)?.def, Def::Input);
        self.home_mut(v).filter(|_| !is_input)
    }

    fn home_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        let range = self.homes.get(&v)?;
        // SAFETY: the range lies in its arena (`check`), and nobody else uses that while the
        // executor is borrowed (`in_arenas`).
        Some(unsafe { std::slice::from_raw_parts_mut(self.address(range), range.len as usize) })
    }

    /// A state's bytes between steps.
    pub fn state(&self, s: StateId) -> &[u8] {
        self.graph
            .states
            .get(s)
            .and_then(|state| self.homes.get(&state.enter))
            .map_or(&[], |range| self.bytes(range))
    }

    /// After a step that failed: the states whose bytes it may have written. The others are as
    /// they were before it.
    pub fn written_states(&self) -> Vec<StateId> {
        let written = self.step.written();
        let is_written = |home: &Range| {
            let first = self.address(home) as usize;
            let end = first + home.len as usize;
            written.iter().any(|w| w.start < end && first < w.end)
        };
        let home = |s: StateId| self.homes.get(&self.graph.states[s].enter);
        self.graph.states.keys().filter(|&s| home(s).is_some_and(is_written)).collect()
    }

    /// The bytes of an output after a step, in the graph's order of outputs.
    pub fn output(&self, i: usize) -> &[u8] {
        self.outputs.get(i).map_or(&[], |range| self.bytes(range))
    }

    fn bytes(&self, range: &Range) -> &[u8] {
        // SAFETY: as in `home_mut`; every byte is initialised.
        unsafe { std::slice::from_raw_parts(self.address(range), range.len as usize) }
    }

    /// Runs one step.
    ///
    /// # Errors
    /// A kernel refused its operands' contents; states may then be half updated.
    pub fn step(&mut self, draw: Draw) -> Result<(), StepError> {
        let (step, threads) = (&self.step, &mut self.threads);
        let mut run = || {
            step.events.begin();
            threads.run(&|stream| step.run(stream, draw));
            step.outcome()
        };
        if self.one_stream { step.workers.step(run) } else { run() }
    }

    /// Runs one step and says when each command of the program ran.
    ///
    /// # Errors
    /// See [`Executor::step`].
    pub fn timed_step(&mut self, draw: Draw) -> Result<Vec<Span>, StepError> {
        self.step.clock = Some(Clock::new(self.step.commands.len()));
        let outcome = self.step(draw);
        let clock = self.step.clock.take();
        outcome.map(|()| clock.map_or(Vec::new(), |clock| clock.spans()))
    }
}

/// Arenas of these sizes, zeroed, or poisoned.
fn allocate(
    sizes: PerSpace<u64>,
    options: ExecutorOptions,
) -> Result<Arc<PerSpace<AlignedBytes>>, OutOfMemory> {
    let (mut device, mut host) =
        (AlignedBytes::zeroed(sizes.device)?, AlignedBytes::zeroed(sizes.host)?);
    if options.poison {
        [&mut device, &mut host].into_iter().for_each(|arena| arena.as_mut_slice().fill(POISON));
    }
    Ok(Arc::new(PerSpace { device, host }))
}

/// The threads of kernels.
fn workers(options: ExecutorOptions) -> Result<Arc<Workers>, SetupError> {
    Workers::new(options.threads).map_err(|e| SetupError::Threads(options.threads, e.to_string()))
}

/// The commands of each stream in issue order; under poison all of them are one stream's.
fn streams(program: &Program, poison: bool) -> Vec<Vec<usize>> {
    let mut streams: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (i, command) in program.commands.iter().enumerate() {
        let stream = if poison { StreamId::default() } else { command.stream() };
        streams.entry(stream).or_default().push(i);
    }
    streams.into_values().collect()
}

/// A place in [`Events`] for each event that is recorded.
fn event_indices(program: &Program) -> HashMap<EventId, usize> {
    let mut indices = HashMap::new();
    for command in &program.commands {
        if let Command::Record { event, .. } = command {
            let next = indices.len();
            indices.entry(*event).or_insert(next);
        }
    }
    indices
}

/// Operator and name of a node, for messages.
pub(crate) fn node_label(g: &Graph, n: NodeId) -> String {
    let node = &g.nodes[n];
    let result = node.outputs.iter().flatten().next().map(|&v| g.values[v].name.as_str());
    let name = if node.name.is_empty() { result.unwrap_or_default() } else { &node.name };
    if name.is_empty() {
        format!("{} {n}", node.op.name())
    } else {
        format!("{} `{name}`", node.op.name())
    }
}
