//! Runs a checked program on a device: one arena of device memory, one of pinned host memory,
//! and not one allocation after the start.
//!
//! Streams are the driver's, events as the program says. What is fed is staged in pinned memory
//! and copied on the first stream before a step; what a step gives comes back the same way once
//! it has ended. Seed and number of the step are in device memory, so that after the first step
//! the whole of it, from feeding to results, is captured into one graph and replayed. The other
//! streams join the graph: they wait for the first one when a step begins, and it for them when
//! it ends.

mod prepare;
mod profile;
mod staged;
mod timed;

use super::choose::{Choice, Chooser, Options};
use super::driver::{Driver, DriverError, EventHandle, GraphHandle, StreamHandle};
use super::lower::Unsupported;
use super::nvrtc::Image;
use crate::executor::{StepError, node_label};
use crate::kernel::{Draw, KernelError};
use arenic_ir::check::{Footprint, Violation, check};
use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::plan::Backend;
use arenic_ir::program::{PerSpace, Program, Range, StreamId};
use cranelift_entity::EntityRef;
pub use prepare::source;
use prepare::{Prepare, Prepared, lower_all};
pub use profile::profile;
use staged::Staged;
use std::collections::HashMap;

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
    choices: Vec<Choice>,
    /// Bytes of device memory that went while libraries were set up.
    library_bytes: u64,
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

impl<'g, D: Driver> CudaExecutor<'g, D> {
    /// Checks the program, allocates its arenas, loads its kernels, which may have been compiled
    /// from [`source`] before, chooses between them and libraries, and prepares every launch.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new(
        graph: &'g Graph,
        program: &Program,
        images: &[Image],
        driver: D,
        options: Options,
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
        let free = driver.memory()?.free;
        let mut prepare = Prepare {
            driver: &driver,
            module,
            arenas: &arenas,
            staged: &staged,
            streams: &numbers,
            first: streams[0],
            chooser: Chooser::new(&driver, streams[0], options),
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
        let choices = prepare.chooser.into_choices();
        let library_bytes = match choices.is_empty() {
            true => 0,
            false => free.saturating_sub(driver.memory()?.free),
        };
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
            choices,
            library_bytes,
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

    /// Which way each product and convolution goes that a library may compute, in the order in
    /// which a step first comes to it.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Bytes of device memory that libraries hold beside the arena, with their code and that of
    /// our own kernels as far as it was loaded by their side.
    pub fn library_bytes(&self) -> u64 {
        self.library_bytes
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
