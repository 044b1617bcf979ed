//! The executor: runs a checked program out of one arena per memory space.
//!
//! All tensor memory is allocated before the first step: the arenas, and nothing else.
//! Commands run in issue order, which every legal interleaving of the program's streams
//! agrees with (invariant I8, proved by `check` when the executor is made).

use crate::cpu;
use crate::kernel::{Call, Draw, KernelError, Operand, Scratch, Target};
use crate::memory::{ALIGN, AlignedBytes, OutOfMemory};
use arenic_ir::check::{Footprint, Violation, check};
use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::program::{Command, PerSpace, Program, Range};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::HashMap;
use std::sync::Arc;

/// What dead bytes are filled with under [`Options::poison`]: NaN as a float of either
/// width, −1 as an integer.
const POISON: u8 = 0xff;

/// How a program is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Threads; 0 takes one per core.
    pub threads: usize,
    /// Fill bytes with a NaN pattern as soon as they are dead.
    pub poison: bool,
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

enum Prepared<'g> {
    Run {
        node: NodeId,
        inputs: Vec<Operand<'g>>,
        outputs: Vec<Option<Target<'g>>>,
        scratch: Scratch,
    },
    Copy {
        from: *const u8,
        to: *mut u8,
        len: usize,
    },
    /// A record or a wait: issue order already is an order that the events allow.
    Event,
}

/// Addresses to fill with poison once a command is done.
struct Dead {
    ptr: *mut u8,
    len: usize,
}

/// A program ready to step.
pub struct Executor<'g> {
    graph: &'g Graph,
    arenas: PerSpace<AlignedBytes>,
    footprint: Footprint,
    homes: HashMap<ValueId, Range>,
    outputs: Vec<Range>,
    commands: Vec<Prepared<'g>>,
    /// Per command, what dies with it; empty without [`Options::poison`].
    dead: Vec<Vec<Dead>>,
    pool: Arc<ThreadPool>,
}

// SAFETY: the raw addresses point into the arenas that the executor owns.
unsafe impl Send for Executor<'_> {}
// SAFETY: as above; a shared executor only gives out shared slices.
unsafe impl Sync for Executor<'_> {}

impl<'g> Executor<'g> {
    /// Checks the program, allocates its arenas and prepares every call.
    ///
    /// # Errors
    /// The program breaks an invariant, or memory or threads are not to be had.
    pub fn new(graph: &'g Graph, program: &Program, options: Options) -> Result<Self, SetupError> {
        let footprint = check(graph, program).map_err(SetupError::Check)?;
        if !program.align.is_multiple_of(ALIGN as u64) {
            return Err(SetupError::Alignment(program.align));
        }
        let arenas = PerSpace {
            device: AlignedBytes::zeroed(program.sizes.device)?,
            host: AlignedBytes::zeroed(program.sizes.host)?,
        };
        let pool = ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .build()
            .map_err(|e| SetupError::Threads(options.threads, e.to_string()))?;
        let mut executor = Executor {
            graph,
            arenas,
            footprint,
            homes: program.homes.iter().map(|h| (h.value, h.range)).collect(),
            outputs: program.outputs.clone(),
            commands: Vec::new(),
            dead: Vec::new(),
            pool: Arc::new(pool),
        };
        executor.commands = program.commands.iter().map(|c| executor.prepare(c)).collect();
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
        cpu::library_bytes(self.pool.current_num_threads())
    }

    fn address(&self, range: &Range) -> *mut u8 {
        // SAFETY: `check` proved that ranges lie within the arenas.
        unsafe { self.arenas[range.space].as_ptr().add(range.offset as usize) }
    }

    fn prepare(&self, command: &Command) -> Prepared<'g> {
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
            Command::Record { .. } | Command::Wait { .. } => Prepared::Event,
        }
    }

    fn prepare_poison(&mut self, program: &Program) {
        let end = program.commands.len();
        self.dead.resize_with(end, Vec::new);
        self.arenas.device.as_mut_slice().fill(POISON);
        self.arenas.host.as_mut_slice().fill(POISON);
        for occupancy in &self.footprint.occupancies {
            let o = occupancy;
            // An occupancy that was handed over in place ends where its successor begins.
            let handed_over = o.end <= o.first || self.successor_at(o.end, &o.range);
            if o.end > 0 && o.end < end && !handed_over {
                let dead = Dead { ptr: self.address(&o.range), len: o.range.len as usize };
                self.dead[o.end - 1].push(dead);
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

    /// The home of a constant, to be filled once; `None` where nothing reads it.
    pub fn const_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        let is_const = matches!(self.graph.values.get(v)?.def, Def::Const(_));
        self.home_mut(v).filter(|_| is_const)
    }

    /// A state's bytes: before the first step to be filled, later to be replaced.
    pub fn state_mut(&mut self, s: StateId) -> Option<&mut [u8]> {
        self.home_mut(self.graph.states.get(s)?.enter)
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

    /// The bytes of an output after a step, in the graph's order of outputs.
    pub fn output(&self, i: usize) -> &[u8] {
        self.outputs.get(i).map_or(&[], |range| self.bytes(range))
    }

    fn bytes(&self, range: &Range) -> &[u8] {
        let first = range.offset as usize;
        &self.arenas[range.space].as_slice()[first..first + range.len as usize]
    }

    /// Calls `f` on a thread of the pool. Many steps in one such call save each the way
    /// there and back, which for a small graph takes longer than the step.
    pub fn within<R: Send>(&mut self, f: impl FnOnce(&mut Self) -> R + Send) -> R {
        let pool = Arc::clone(&self.pool);
        pool.install(|| f(self))
    }

    /// Runs one step.
    ///
    /// # Errors
    /// A kernel refused its operands' contents; states may then be half updated.
    pub fn step(&mut self, draw: Draw) -> Result<(), StepError> {
        let this = &*self;
        this.pool.install(|| this.run(draw))
    }

    fn run(&self, draw: Draw) -> Result<(), StepError> {
        for (i, command) in self.commands.iter().enumerate() {
            match command {
                Prepared::Run { node, inputs, outputs, scratch } => {
                    let op = &self.graph.nodes[*node].op;
                    let call = Call { op, inputs, outputs, scratch: *scratch, draw };
                    cpu::run(&call).map_err(|error| self.step_error(*node, error))?;
                }
                Prepared::Copy { from, to, len } => {
                    // SAFETY: `check` proved both ranges in bounds and disjoint.
                    unsafe { std::ptr::copy_nonoverlapping(*from, *to, *len) };
                }
                Prepared::Event => {}
            }
            for dead in self.dead.get(i).into_iter().flatten() {
                // SAFETY: `check` proved that nothing needs these bytes any more.
                unsafe { std::ptr::write_bytes(dead.ptr, POISON, dead.len) };
            }
        }
        Ok(())
    }

    fn step_error(&self, n: NodeId, error: KernelError) -> StepError {
        StepError { node: node_label(self.graph, n), error }
    }
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
