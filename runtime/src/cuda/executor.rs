//! Runs a checked program on a device: one arena of device memory, one of pinned host memory,
//! and not one allocation after the start.
//!
//! Streams are the driver's, events as the program says. What is fed is staged in pinned memory
//! and copied on the first stream before a step; what a step gives comes back the same way once
//! it has ended. Seed and number of the step are in device memory, so that after the first step
//! the whole of it, from feeding to results, is captured into one graph and replayed. The other
//! streams join the graph: they wait for the first one when a step begins, and it for them when
//! it ends.

mod profile;
mod staged;
mod timed;

use super::driver::{
    Driver, DriverError, EventHandle, FunctionHandle, GraphHandle, ModuleHandle, StreamHandle,
};
use super::lower::{Unsupported, Work, lower};
use super::module::{Argument, KernelId, Module};
use super::nvrtc::Image;
use crate::executor::{StepError, node_label};
use crate::kernel::{Draw, KernelError};
use arenic_ir::check::{Footprint, Violation, check};
use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::plan::Backend;
use arenic_ir::program::{Command, EventId, PerSpace, Program, Range, StreamId};
use cranelift_entity::EntityRef;
pub use profile::profile;
use staged::{ALIGN, Staged};
use std::collections::{BTreeMap, HashMap};

/// Why a program cannot be run on a device.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetupError {
    /// The program does not implement the graph.
    #[error("the program does not implement its graph: {}", .0.first().map_or(String::new(), Violation::to_string))]
    Check(Vec<Violation>),
    /// The program is for another backend.
    #[error("the program is planned for the backend `{}`, not for `cuda`", .0.name())]
    Backend(Backend),
    /// An operator without a kernel.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The device has less free memory than the arena takes.
    #[error(
        "{device} has {free} bytes of memory free, {missing} less than the arena's {arena}; end \
         what else runs there, or compile with `--device-memory {free}`"
    )]
    Memory {
        /// The device's name.
        device: String,
        /// Its free bytes.
        free: u64,
        /// The arena, in bytes.
        arena: u64,
        /// The difference.
        missing: u64,
    },
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Why a step failed; states may then be half updated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceStepError {
    /// A kernel refused its operands' contents.
    #[error(transparent)]
    Refused(#[from] StepError),
    /// The driver failed.
    #[error("the device failed: {0}")]
    Driver(#[from] DriverError),
}

/// A program ready to step on a device.
pub struct CudaExecutor<'g, D> {
    driver: D,
    graph: &'g Graph,
    footprint: Footprint,
    homes: HashMap<ValueId, Range>,
    outputs: Vec<Range>,
    arenas: PerSpace<u64>,
    streams: Vec<StreamHandle>,
    /// Where the first stream's work before a step ends, and each other stream's in a step.
    begun: EventHandle,
    ended: Vec<EventHandle>,
    commands: Vec<Prepared>,
    /// Of each command of the program what it became.
    issued: Vec<Issued>,
    staged: Staged,
    captured: Capture,
}

/// Whether steps are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capture {
    /// No step has been run yet.
    Later,
    /// Each step is one graph.
    Graph(GraphHandle),
    /// The driver could not: each step is issued anew.
    Refused,
}

/// What a command of the program became.
struct Issued {
    stream: usize,
    /// Their places among what is prepared.
    commands: std::ops::Range<usize>,
}

/// A command with its addresses.
enum Prepared {
    Launch {
        stream: usize,
        function: FunctionHandle,
        grid: [u32; 3],
        threads: u32,
        words: Vec<u64>,
    },
    Copy {
        stream: usize,
        from: u64,
        to: u64,
        bytes: u64,
    },
    Record {
        stream: usize,
        event: EventHandle,
    },
    Wait {
        stream: usize,
        event: EventHandle,
    },
}

impl<'g, D: Driver> CudaExecutor<'g, D> {
    /// Checks the program, allocates its arenas, loads its kernels, which may have been compiled
    /// from [`source`] before, and prepares every launch.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new(
        graph: &'g Graph,
        program: &Program,
        images: &[Image],
        driver: D,
    ) -> Result<Self, SetupError> {
        let footprint = check(graph, program).map_err(SetupError::Check)?;
        let backend = program.target.backend;
        if backend != Backend::Cuda {
            return Err(SetupError::Backend(backend));
        }
        let (module, work) = lower_all(graph, program)?;
        let module =
            if module.is_empty() { None } else { Some(driver.load(&module.source(), images)?) };
        let arena = program.sizes.device;
        let free = driver.memory()?.free;
        if free < arena {
            let (device, missing) = (driver.name(), arena - free);
            return Err(SetupError::Memory { device, free, arena, missing });
        }
        let arenas = PerSpace {
            device: driver.allocate(arena)?,
            host: driver.allocate_pinned(program.sizes.host)?,
        };
        let staged = Staged::new(graph, program, &driver)?;
        let mut numbers: HashMap<StreamId, usize> = HashMap::from([(StreamId::default(), 0)]);
        for command in &program.commands {
            let next = numbers.len();
            numbers.entry(command.stream()).or_insert(next);
        }
        let streams = (0..numbers.len()).map(|_| driver.stream()).collect::<Result<Vec<_>, _>>()?;
        let ended = streams[1..].iter().map(|_| driver.event()).collect::<Result<Vec<_>, _>>()?;
        let mut prepare = Prepare {
            driver: &driver,
            module,
            arenas: &arenas,
            staged: &staged,
            streams: &numbers,
            events: HashMap::new(),
            functions: HashMap::new(),
        };
        let (mut commands, mut issued) = (Vec::new(), Vec::new());
        for command in &program.commands {
            let first = commands.len();
            prepare.command(command, &work, &mut commands)?;
            let stream = prepare.streams[&command.stream()];
            issued.push(Issued { stream, commands: first..commands.len() });
        }
        Ok(CudaExecutor {
            begun: driver.event()?,
            ended,
            graph,
            footprint,
            homes: program.homes.iter().map(|h| (h.value, h.range)).collect(),
            outputs: program.outputs.clone(),
            arenas,
            streams,
            commands,
            issued,
            staged,
            captured: Capture::Later,
            driver,
        })
    }

    /// What the checker said about the program.
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// The driver, to be asked about its memory.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// True once each step is one graph; false where the driver could not capture one.
    pub fn is_captured(&self) -> bool {
        matches!(self.captured, Capture::Graph(_))
    }

    /// Pinned bytes beside the host arena, for what is fed and what comes back.
    pub fn staged_bytes(&self) -> u64 {
        self.staged.bytes()
    }

    /// The bytes of a fed input, to be filled before each step; `None` where the step does not
    /// read it.
    pub fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        let (_, range, at) = self.staged.inputs.iter().find(|(input, ..)| *input == v)?;
        // SAFETY: pinned memory of this length, which no copy uses between steps.
        Some(unsafe {
            std::slice::from_raw_parts_mut(
                (self.staged.address + at) as *mut u8,
                range.len as usize,
            )
        })
    }

    /// Bytes of the home of a constant, or of a state's value as a step begins; `None` where
    /// nothing reads it.
    pub fn carried_bytes(&self, v: ValueId) -> Option<u64> {
        let is_input = matches!(self.graph.values.get(v)?.def, Def::Input);
        self.homes.get(&v).filter(|_| !is_input).map(|home| home.len)
    }

    /// Fills such a home; does nothing where there is none.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// The bytes are not as many as the value's.
    pub fn fill(&mut self, v: ValueId, bytes: &[u8]) -> Result<(), DriverError> {
        let Some(len) = self.carried_bytes(v) else { return Ok(()) };
        assert_eq!(len, bytes.len() as u64, "bytes of {v}");
        // The home lies in its arena (`check`).
        let home = self.address(&self.homes[&v]);
        self.staged.put(&self.driver, self.streams[0], home, bytes)
    }

    /// A state's bytes between steps; none where the step does not read it.
    ///
    /// # Errors
    /// The driver fails.
    pub fn state(&self, s: StateId) -> Result<Vec<u8>, DriverError> {
        let Some(home) = self.graph.states.get(s).and_then(|s| self.homes.get(&s.enter)) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0u8; home.len as usize];
        let mut at = self.address(home);
        for piece in bytes.chunks_mut(self.staged.room() as usize) {
            let through = self.staged.piece();
            // SAFETY: as in `fill`.
            unsafe {
                self.driver.copy(self.streams[0], at, through, piece.len() as u64)?;
                self.driver.synchronize(self.streams[0])?;
                std::ptr::copy_nonoverlapping(
                    through as *const u8,
                    piece.as_mut_ptr(),
                    piece.len(),
                );
            }
            at += piece.len() as u64;
        }
        Ok(bytes)
    }

    /// The bytes of an output after a step, in the graph's order of outputs.
    pub fn output(&self, i: usize) -> &[u8] {
        let Some((range, at)) = self.staged.outputs.get(i) else { return &[] };
        // SAFETY: pinned memory of this length, which no copy uses between steps.
        unsafe {
            std::slice::from_raw_parts((self.staged.address + at) as *const u8, range.len as usize)
        }
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    fn address(&self, range: &Range) -> u64 {
        self.arenas[range.space] + range.offset
    }

    /// Runs one step: the first one as it is issued, later ones as one graph where the driver
    /// can capture it.
    ///
    /// # Errors
    /// A kernel refused its operands' contents, or the driver failed.
    pub fn step(&mut self, draw: Draw) -> Result<(), DeviceStepError> {
        self.staged.put_draw(draw);
        match self.captured {
            Capture::Later => {
                self.issue()?;
                self.driver.synchronize(self.streams[0])?;
                self.captured = self.capture();
            }
            // SAFETY: what was captured is what `issue` issues.
            Capture::Graph(graph) => unsafe {
                self.driver.run(self.streams[0], graph)?;
                self.driver.synchronize(self.streams[0])?;
            },
            Capture::Refused => {
                self.issue()?;
                self.driver.synchronize(self.streams[0])?;
            }
        }
        self.outcome()
    }

    /// What the step that just ended came to.
    fn outcome(&self) -> Result<(), DeviceStepError> {
        match self.staged.refusal() {
            None => Ok(()),
            Some((node, error)) => Err(self.refused(node, error).into()),
        }
    }

    fn refused(&self, node: u64, error: KernelError) -> StepError {
        StepError { node: node_label(self.graph, NodeId::new(node as usize)), error }
    }

    fn capture(&self) -> Capture {
        let first = self.streams[0];
        if self.driver.begin_capture(first).is_err() {
            return Capture::Refused;
        }
        let issued = self.issue();
        // Also after a failure: it ends the capture.
        match (issued, self.driver.end_capture(first)) {
            (Ok(()), Ok(graph)) => Capture::Graph(graph),
            _ => Capture::Refused,
        }
    }

    /// Issues a whole step: feeds, commands, results.
    fn issue(&self) -> Result<(), DriverError> {
        self.issue_around(|| self.commands.iter().try_for_each(|command| self.issue_one(command)))
    }

    /// Issues feeds and results, and between them what `commands` issues.
    fn issue_around(
        &self,
        commands: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let (driver, first, staged) = (&self.driver, self.streams[0], &self.staged);
        // SAFETY: every address lies in an arena, aligned (`check`), or in what is staged;
        // arenas live as long as the driver, and accesses are ordered by streams and events.
        unsafe {
            staged.send_draw(driver, first)?;
            for (_, home, at) in &staged.inputs {
                driver.copy(first, staged.address + at, self.address(home), home.len)?;
            }
            driver.record(first, self.begun)?;
            for &other in &self.streams[1..] {
                driver.wait(other, self.begun)?;
            }
            commands()?;
            for (&other, &ended) in self.streams[1..].iter().zip(&self.ended) {
                driver.record(other, ended)?;
                driver.wait(first, ended)?;
            }
            for (range, at) in &staged.outputs {
                driver.copy(first, self.address(range), staged.address + at, range.len)?;
            }
            staged.fetch_refusal(driver, first)
        }
    }

    fn issue_one(&self, command: &Prepared) -> Result<(), DriverError> {
        // SAFETY: as in `issue_around`.
        unsafe { command.issue(&self.driver, &self.streams) }
    }
}

impl Prepared {
    /// # Safety
    /// Its addresses are valid when the stream comes to it.
    unsafe fn issue(
        &self,
        driver: &impl Driver,
        streams: &[StreamHandle],
    ) -> Result<(), DriverError> {
        match self {
            Prepared::Launch { stream, function, grid, threads, words } => {
                // SAFETY: the caller's promise.
                unsafe { driver.launch(streams[*stream], *function, *grid, *threads, words) }
            }
            Prepared::Copy { stream, from, to, bytes } => {
                // SAFETY: as above.
                unsafe { driver.copy(streams[*stream], *from, *to, *bytes) }
            }
            Prepared::Record { stream, event } => driver.record(streams[*stream], *event),
            Prepared::Wait { stream, event } => driver.wait(streams[*stream], *event),
        }
    }
}

/// The text of a program's kernels; the same for the same program.
///
/// # Errors
/// The backend has no kernel for an operator.
pub fn source(graph: &Graph, program: &Program) -> Result<String, Unsupported> {
    Ok(lower_all(graph, program)?.0.source())
}

/// The kernels of a program, and what each of its nodes does.
fn lower_all(
    g: &Graph,
    program: &Program,
) -> Result<(Module, HashMap<NodeId, Vec<Work>>), Unsupported> {
    // A node that runs again may read other places.
    let mut alignments: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
    for command in &program.commands {
        if let Command::Run { node, reads, .. } = command {
            let all = alignments.entry(*node).or_insert_with(|| vec![ALIGN; reads.len()]);
            for (align, read) in all.iter_mut().zip(reads) {
                *align = (*align).min(1 << read.offset.trailing_zeros().min(62));
            }
        }
    }
    let mut module = Module::default();
    let mut work = HashMap::new();
    for (n, alignments) in alignments {
        let node = &g.nodes[n];
        let outputs: Vec<_> = node.outputs.iter().map(|v| v.map(|v| g.ty(v))).collect();
        let inputs = g.input_types(n);
        work.insert(n, lower(&node.op, &inputs, &alignments, &outputs, &mut module)?);
    }
    Ok((module, work))
}

/// Turns commands into what is issued.
struct Prepare<'a, D> {
    driver: &'a D,
    module: Option<ModuleHandle>,
    arenas: &'a PerSpace<u64>,
    staged: &'a Staged,
    streams: &'a HashMap<StreamId, usize>,
    events: HashMap<EventId, EventHandle>,
    functions: HashMap<KernelId, FunctionHandle>,
}

impl<D: Driver> Prepare<'_, D> {
    fn address(&self, range: &Range) -> u64 {
        self.arenas[range.space] + range.offset
    }

    fn event(&mut self, event: EventId) -> Result<EventHandle, DriverError> {
        if let Some(&known) = self.events.get(&event) {
            return Ok(known);
        }
        let new = self.driver.event()?;
        self.events.insert(event, new);
        Ok(new)
    }

    fn function(&mut self, kernel: KernelId) -> Result<FunctionHandle, DriverError> {
        if let Some(&known) = self.functions.get(&kernel) {
            return Ok(known);
        }
        let Some(module) = self.module else { unreachable!("a launch comes from a module") };
        let new = self.driver.function(module, &kernel.to_string())?;
        self.functions.insert(kernel, new);
        Ok(new)
    }

    fn command(
        &mut self,
        command: &Command,
        work: &HashMap<NodeId, Vec<Work>>,
        prepared: &mut Vec<Prepared>,
    ) -> Result<(), DriverError> {
        let stream = self.streams[&command.stream()];
        match command {
            Command::Run { node, reads, writes, scratch, .. } => {
                let (arenas, staged) = (self.arenas, self.staged);
                let address = |range: &Range| arenas[range.space] + range.offset;
                let word = |argument: &Argument| match *argument {
                    Argument::Input(i) => address(&reads[i]),
                    Argument::Output(o) => writes[o].as_ref().map_or(0, address),
                    Argument::Scratch(at) => scratch.as_ref().map_or(0, address) + at,
                    Argument::Draw => staged.draw,
                    Argument::Refusal => staged.refusal,
                    Argument::Node => node.index() as u64,
                };
                for work in &work[node] {
                    match work {
                        Work::Launch(launch) => {
                            let words = launch.arguments.iter().map(word).collect();
                            let (grid, threads) = (launch.grid, launch.threads);
                            let function = self.function(launch.kernel)?;
                            prepared.push(Prepared::Launch {
                                stream,
                                function,
                                grid,
                                threads,
                                words,
                            });
                        }
                        Work::Copy { from, to, bytes } => {
                            let (from, to, bytes) = (word(from), word(to), *bytes);
                            if from != to && bytes > 0 {
                                prepared.push(Prepared::Copy { stream, from, to, bytes });
                            }
                        }
                    }
                }
            }
            Command::Copy { from, to, .. } => {
                let bytes = from.len;
                let (from, to) = (self.address(from), self.address(to));
                if bytes > 0 {
                    prepared.push(Prepared::Copy { stream, from, to, bytes });
                }
            }
            Command::Record { event, .. } => {
                let event = self.event(*event)?;
                prepared.push(Prepared::Record { stream, event });
            }
            Command::Wait { event, .. } => {
                let event = self.event(*event)?;
                prepared.push(Prepared::Wait { stream, event });
            }
        }
        Ok(())
    }
}
