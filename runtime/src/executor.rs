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

use crate::cpu;
use crate::kernel::{Draw, KernelError, Operand, Scratch, Target};
use crate::memory::{ALIGN, AlignedBytes, OutOfMemory};
use arenic_ir::check::{Footprint, Violation, check};
use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::program::{Command, EventId, PerSpace, Program, Range, Span, StreamId};
use rayon::ThreadPoolBuilder;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use step::{Clock, Dead, POISON, Prepared, Step};
use streams::{Events, Threads};
use stress::Delays;

/// How a program is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
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
    /// Threads could not be started.
    #[error("{0} threads could not be started: {1}")]
    Threads(usize, String),
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
    arenas: PerSpace<AlignedBytes>,
    footprint: Footprint,
    homes: HashMap<ValueId, Range>,
    outputs: Vec<Range>,
    step: Step<'g>,
    threads: Threads,
    /// The first stream alone has kernels, and stays in the pool for a whole step. Where
    /// others have some, too, a thread of the pool that waits might be the one they need.
    stays_in_pool: bool,
}

impl<'g> Executor<'g> {
    /// Checks the program, allocates its arenas and prepares every call.
    ///
    /// # Errors
    /// The program breaks an invariant, or memory or threads are not to be had.
    pub fn new(graph: &'g Graph, program: &Program, options: Options) -> Result<Self, SetupError> {
        let footprint = check(graph, program).map_err(SetupError::Check)?;
        // SAFETY: `check` has just accepted the program.
        unsafe { Self::of_checked(graph, program, footprint, options) }
    }

    /// # Safety
    /// `check` accepted the program, so that its ranges lie in its arenas, aligned, and no
    /// two of its accesses race.
    unsafe fn of_checked(
        graph: &'g Graph,
        program: &Program,
        footprint: Footprint,
        options: Options,
    ) -> Result<Self, SetupError> {
        if !program.target.align.is_multiple_of(ALIGN as u64) {
            return Err(SetupError::Alignment(program.target.align));
        }
        let arenas = PerSpace {
            device: AlignedBytes::zeroed(program.sizes.device)?,
            host: AlignedBytes::zeroed(program.sizes.host)?,
        };
        let failed =
            |threads, e: &dyn std::error::Error| SetupError::Threads(threads, e.to_string());
        let pool = ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .build()
            .map_err(|e| failed(options.threads, &e))?;
        let streams = streams(program, options.poison);
        let begun = streams.iter().map(|_| AtomicUsize::new(0)).collect();
        let threads = Threads::start(streams.len()).map_err(|e| failed(streams.len(), &e))?;
        let runs = |&i: &usize| matches!(program.commands[i], Command::Run { .. });
        let stays_in_pool = !streams.iter().skip(1).flatten().any(runs);
        let events = event_indices(program);
        let mut executor = Executor {
            graph,
            arenas,
            footprint,
            homes: program.homes.iter().map(|h| (h.value, h.range)).collect(),
            outputs: program.outputs.clone(),
            step: Step {
                graph,
                commands: Vec::new(),
                dead: Vec::new(),
                streams,
                begun,
                events: Events::new(events.len()),
                delays: options.stress.map(Delays),
                clock: None,
                pool: Arc::new(pool),
                refused: Mutex::new(None),
            },
            threads,
            stays_in_pool,
        };
        let prepare = |command| executor.prepare(command, &events);
        executor.step.commands = program.commands.iter().map(prepare).collect();
        if options.poison {
            executor.prepare_poison(program);
        }
        Ok(executor)
    }

    /// What the checker said about the program.
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Bytes that the matrix product library may allocate beside the arena.
    pub fn library_bytes(&self) -> u64 {
        cpu::library_bytes(self.step.pool.current_num_threads())
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
                    (*v).zip(*r).map(|(v, r)| unsafe { Target::new(graph.ty(v), self.address(&r)) })
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
        self.arenas.device.as_mut_slice().fill(POISON);
        self.arenas.host.as_mut_slice().fill(POISON);
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

    /// True where the step reuses the input's bytes once it has read them, so that the
    /// input must be fed again before every step.
    pub fn is_overwritten(&self, v: ValueId) -> bool {
        self.homes.get(&v).is_some_and(|home| {
            let others = self.footprint.occupancies.iter().filter(|o| o.value != Some(v));
            others.into_iter().any(|o| o.range.overlaps(home))
        })
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
        let range = *self.homes.get(&v)?;
        let first = range.offset as usize;
        Some(&mut self.arenas[range.space].as_mut_slice()[first..first + range.len as usize])
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
        let first = range.offset as usize;
        &self.arenas[range.space].as_slice()[first..first + range.len as usize]
    }

    /// Calls `f`, on a thread of the pool where steps run there. Many steps in one such call
    /// save each the way there and back, which for a small graph takes longer than the step.
    pub fn within<R: Send>(&mut self, f: impl FnOnce(&mut Self) -> R + Send) -> R {
        if !self.stays_in_pool {
            return f(self);
        }
        let pool = Arc::clone(&self.step.pool);
        pool.install(|| f(self))
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
        if self.stays_in_pool { step.pool.install(run) } else { run() }
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
