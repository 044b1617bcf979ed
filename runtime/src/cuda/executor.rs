//! Runs a checked program on a device: one arena of device memory, one of pinned host memory,
//! and not one allocation after the start.
//!
//! Streams are the driver's, events as the program says. What is fed is staged in pinned memory, or
//! lies in the device's, and is copied on the first stream before a step; what a step gives comes back
//! once it has ended. Large inputs may be sent while the step before runs, to bytes of the arena that nothing else
//! uses. Seed, number of the step and round are in device memory, so that after the first
//! step all of it but the feeding is captured into one graph and replayed. The other streams join the
//! graph: they wait for the first one when a step begins, and it for them when it ends.
//!
//! What is staged has two sides, and steps take them in turn: while one runs, the next is fed. So
//! there are two graphs, which differ in the addresses of what is staged.

mod machine;
mod prepare;
mod profile;
mod staged;
mod timed;
mod ways;

use super::choose::{AlgorithmChoice, Chooser, CudaOptions};
use super::driver::{Driver, DriverError, EventHandle, GraphHandle, ModuleHandle, StreamHandle};
use super::nvrtc::Image;
use super::work::{Unsupported, Work};
use crate::executor::{self, StepError, node_label};
use crate::kernel::KernelError;
use crate::machine::StepFailure;
use crate::memory::OutOfMemory;
use crate::ways::Way;
use arenic_backends::CUDA;
use arenic_ir::Backend;
use arenic_ir::check::{Footprint, Violation, check, check_variants};
use arenic_ir::graph::{Graph, NodeId, ValueId};
use arenic_ir::program::{PerSpace, Program, Range, StreamId};
use cranelift_entity::EntityRef;
pub use prepare::source;
use prepare::{Prepare, Prepared, lower_all};
pub use profile::profile;
use staged::{Fed, Side, Staged};
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// Why a program cannot be run on a device.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetupError {
    /// The program does not implement the graph.
    #[error("the program does not implement its graph: {}", .0.first().map_or(String::new(), Violation::to_string))]
    Check(Vec<Violation>),
    /// The program is for another backend.
    #[error("the program is planned for the backend `{}`, not for `cuda`", .0.name)]
    Backend(Backend),
    /// The program was planned for looser alignment than kernels and libraries rely on.
    #[error(
        "the program aligns to {0} bytes, kernels for GPUs need {needed}; compile it again for `cuda`",
        needed = CUDA.align
    )]
    Alignment(u64),
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
    /// The batch of a step in rounds could not be allocated.
    #[error("the batch of all rounds could not be allocated: {0}")]
    Batch(OutOfMemory),
    /// A step that was to be added does not fit those that are there.
    #[error(transparent)]
    Added(#[from] executor::SetupError),
    /// Other ranks run the program than it is for.
    #[error("the program is for {compiled} ranks, and {running} have a device each")]
    Ranks {
        /// How many it is for.
        compiled: usize,
        /// How many there are.
        running: usize,
    },
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A program ready to step on a device.
pub struct CudaExecutor<'g, D> {
    driver: Rc<D>,
    options: CudaOptions,
    graph: &'g Graph,
    footprint: Footprint,
    homes: HashMap<ValueId, Range>,
    arenas: PerSpace<u64>,
    streams: Vec<StreamHandle>,
    /// Where the first stream's work before a step ends, and each other stream's in a step.
    begun: EventHandle,
    ended: Vec<EventHandle>,
    commands: Vec<Prepared>,
    /// Of each command of the program what it became.
    issued: Vec<Issued>,
    staged: Staged,
    /// The side that is fed: that of the next step.
    fed: Side,
    /// Inputs that the next step copies from the device's memory.
    lent: HashMap<ValueId, u64>,
    /// How inputs come to the device while a step runs; `None` where none wait there, and where the program takes
    /// turns with others from the start.
    ahead: Option<Ahead>,
    /// No other program uses the arenas.
    is_alone: Cell<bool>,
    captured: Capture,
    choices: Vec<AlgorithmChoice>,
    ways: Vec<Way>,
    /// Bytes of device memory that went while libraries were set up.
    library_bytes: u64,
}

/// Whether steps are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capture {
    /// No step has been run yet.
    Later,
    /// Each step is one graph, by its side.
    Graphs([GraphHandle; 2]),
    /// The driver could not: each step is issued anew.
    Refused,
}

/// Inputs of the next step on their way to where they wait for it.
struct Ahead {
    /// Beside all streams of the step.
    stream: StreamHandle,
    /// They are there.
    arrived: EventHandle,
    /// The step that runs has taken its own from there.
    taken: EventHandle,
    /// Those of the next step have been sent.
    is_sent: bool,
}

/// What a command of the program became.
struct Issued {
    stream: usize,
    /// Their places among what is prepared.
    commands: std::ops::Range<usize>,
}

/// One of several programs that take turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'g, 'p> {
    pub(crate) graph: &'g Graph,
    pub(crate) program: &'p Program,
    /// Its kernels, compiled before.
    pub(crate) images: &'p [Image],
}

/// A checked program whose kernels are loaded.
struct Loaded<'g, 'p> {
    graph: &'g Graph,
    program: &'p Program,
    footprint: Footprint,
    module: Option<ModuleHandle>,
    work: HashMap<NodeId, Vec<Work>>,
}

impl<'g, 'p> Loaded<'g, 'p> {
    fn new(
        part: Part<'g, 'p>,
        footprint: Footprint,
        driver: &impl Driver,
    ) -> Result<Self, SetupError> {
        let Part { graph, program, images } = part;
        let backend = program.target.backend;
        if backend != CUDA {
            return Err(SetupError::Backend(backend));
        }
        let (compiled, running) = (graph.rank_count(), driver.rank().ranks);
        if compiled > 1 && compiled != running {
            return Err(SetupError::Ranks { compiled, running });
        }
        let align = program.target.align;
        if !align.is_multiple_of(CUDA.align) {
            return Err(SetupError::Alignment(align));
        }
        let (module, work) = lower_all(graph, program)?;
        let module =
            if module.is_empty() { None } else { Some(driver.load(&module.source(), images)?) };
        Ok(Loaded { graph, program, footprint, module, work })
    }
}

/// Allocates arenas, where the device has room for them.
fn arenas(driver: &impl Driver, sizes: PerSpace<u64>) -> Result<PerSpace<u64>, SetupError> {
    let (arena, free) = (sizes.device, driver.memory()?.free);
    if free < arena {
        let (device, missing) = (driver.name(), arena - free);
        return Err(SetupError::Memory { device, free, arena, missing });
    }
    let device = driver.allocate(arena)?;
    Ok(PerSpace { device, host: driver.allocate_pinned(sizes.host)? })
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
        options: CudaOptions,
    ) -> Result<Self, SetupError> {
        let footprint = check(graph, program).map_err(SetupError::Check)?;
        let driver = Rc::new(driver);
        let loaded = Loaded::new(Part { graph, program, images }, footprint, &*driver)?;
        let arenas = arenas(&*driver, program.sizes)?;
        let first = driver.stream()?;
        let executor = Self::in_arenas(loaded, arenas, first, driver, options)?;
        executor.alone(program)
    }

    /// The executor of the only program, of which inputs may wait for the next step.
    fn alone(mut self, program: &Program) -> Result<Self, SetupError> {
        if !program.ahead.is_empty() {
            let driver = &self.driver;
            let (stream, arrived, taken) = (driver.stream()?, driver.event()?, driver.event()?);
            self.ahead = Some(Ahead { stream, arrived, taken, is_sent: false });
        }
        Ok(self)
    }

    /// Executors of steps that take turns over the same arenas, which are as large as the largest; a
    /// step has one program, or several that take turns themselves. `check_variants` judges them; its
    /// messages name programs by their places among all. They have one first stream, which orders
    /// their steps, and whatever fills or reads the arenas between. Inputs of a program that is alone may
    /// wait for the next step.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub(crate) fn taking_turns(
        steps: &[Vec<Part<'g, '_>>],
        driver: D,
        options: CudaOptions,
    ) -> Result<Vec<Vec<Self>>, SetupError> {
        let mut judged = Vec::with_capacity(steps.len());
        for step in steps {
            judged.push(step.iter().map(|part| (part.graph, part.program)).collect());
        }
        let footprints = check_variants(&judged).map_err(SetupError::Check)?;
        let driver = Rc::new(driver);
        let mut sizes = PerSpace::default();
        let mut all = Vec::new();
        for (&part, footprint) in steps.iter().flatten().zip(footprints.into_iter().flatten()) {
            sizes = sizes.largest(part.program.sizes);
            all.push(Loaded::new(part, footprint, &*driver)?);
        }
        let arenas = arenas(&*driver, sizes)?;
        let first = driver.stream()?;
        let is_alone = all.len() == 1;
        let executor = |loaded: Loaded<'g, '_>| {
            let program = loaded.program;
            let made = Self::in_arenas(loaded, arenas, first, Rc::clone(&driver), options)?;
            if is_alone { made.alone(program) } else { Ok(made) }
        };
        let mut executors = all.into_iter().map(executor);
        steps.iter().map(|step| executors.by_ref().take(step.len()).collect()).collect()
    }

    /// An executor of another program over the same arenas, which have room for it, and in the order of the
    /// same first stream. Where ways are tried, the bytes of the arena are what they are tried on.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub(crate) fn another(
        &self,
        part: Part<'g, '_>,
        footprint: Footprint,
    ) -> Result<Self, SetupError> {
        let loaded = Loaded::new(part, footprint, &*self.driver)?;
        let driver = Rc::clone(&self.driver);
        self.is_alone.set(false);
        Self::in_arenas(loaded, self.arenas, self.streams[0], driver, self.options)
    }

    /// The arenas have room for the program; others use them only in order of the first stream.
    fn in_arenas(
        loaded: Loaded<'g, '_>,
        arenas: PerSpace<u64>,
        first: StreamHandle,
        driver: Rc<D>,
        options: CudaOptions,
    ) -> Result<Self, SetupError> {
        let Loaded { graph, program, footprint, module, work } = loaded;
        // What all ranks compute alike has to have the same bits on each.
        let rank = driver.rank();
        let deterministic = options.deterministic || rank.ranks > 1;
        let options = CudaOptions { deterministic };
        let staged = Staged::new(graph, program, &*driver)?;
        let mut numbers: HashMap<StreamId, usize> = HashMap::from([(StreamId::default(), 0)]);
        for command in &program.commands {
            let next = numbers.len();
            numbers.entry(command.stream()).or_insert(next);
        }
        let others = (1..numbers.len()).map(|_| driver.stream());
        let streams = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>, _>>()?;
        let ended = streams[1..].iter().map(|_| driver.event()).collect::<Result<Vec<_>, _>>()?;
        let free = driver.memory()?.free;
        let mut prepare = Prepare {
            driver: &*driver,
            module,
            arenas: &arenas,
            staged: &staged,
            streams: &numbers,
            rank,
            first: streams[0],
            chooser: Chooser::new(&*driver, streams[0], options),
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
        let ways = ways::ways(graph, program, &work, &choices);
        let of_products = match choices.is_empty() {
            true => 0,
            false => free.saturating_sub(driver.memory()?.free),
        };
        let library_bytes = of_products + rank.library_bytes;
        Ok(CudaExecutor {
            begun: driver.event()?,
            ended,
            graph,
            footprint,
            homes: program.homes.iter().map(|h| (h.value, h.range)).collect(),
            arenas,
            streams,
            commands,
            issued,
            staged,
            fed: Side::default(),
            lent: HashMap::new(),
            ahead: None,
            is_alone: Cell::new(true),
            captured: Capture::Later,
            choices,
            ways,
            library_bytes,
            driver,
            options,
        })
    }

    /// The driver, to be asked about its memory.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Which way each product and convolution goes that a library may compute, in the order in
    /// which a step first comes to it.
    pub fn choices(&self) -> &[AlgorithmChoice] {
        &self.choices
    }

    /// True once each step is one graph; false where the driver could not capture one.
    pub fn is_captured(&self) -> bool {
        matches!(self.captured, Capture::Graphs(_))
    }

    fn address(&self, range: &Range) -> u64 {
        self.arenas[range.space] + range.offset
    }

    /// What the step on this side, which just ended, came to.
    fn outcome(&self, side: Side) -> Result<(), StepFailure> {
        match self.staged.refusal(side) {
            None => Ok(()),
            Some((node, error)) => Err(self.refused(node, error).into()),
        }
    }

    fn refused(&self, node: u64, error: KernelError) -> StepError {
        StepError { node: node_label(self.graph, NodeId::new(node as usize)), error }
    }

    /// Captures a step of each side.
    fn capture(&self) -> Capture {
        match Side::BOTH.map(|side| self.capture_side(side)) {
            [Some(even), Some(odd)] => Capture::Graphs([even, odd]),
            _ => Capture::Refused,
        }
    }

    fn capture_side(&self, side: Side) -> Option<GraphHandle> {
        let first = self.streams[0];
        self.driver.begin_capture(first).ok()?;
        let issued = self.issue(side);
        // Also after a failure: it ends the capture.
        let graph = self.driver.end_capture(first).ok()?;
        issued.ok().map(|()| graph)
    }

    /// Copies inputs to their homes, from this side of what is staged, from where they wait in the arena, or from
    /// where they were lent.
    fn feed(&mut self, side: Side) -> Result<(), DriverError> {
        let (here, lent) = (self.staged.side(side), std::mem::take(&mut self.lent));
        let (driver, first) = (&self.driver, self.streams[0]);
        let is_sent = self.ahead.as_mut().is_some_and(|ahead| std::mem::take(&mut ahead.is_sent));
        if let Some(ahead) = self.ahead.as_ref().filter(|_| is_sent) {
            driver.wait(first, ahead.arrived)?;
        }
        for Fed { value, home, at, ahead } in &self.staged.inputs {
            let waiting = ahead.as_ref().filter(|_| is_sent).map(|range| self.address(range));
            let from = lent.get(value).copied().or(waiting).unwrap_or(here + at);
            // SAFETY: both places lie in the arena (`check`); what is staged has room for the input, and what was
            // lent has its bytes until the step has ended (`Machine::feed_from`).
            unsafe { driver.copy(first, from, self.address(home), home.len)? };
        }
        match &self.ahead {
            Some(ahead) => driver.record(first, ahead.taken),
            None => Ok(()),
        }
    }

    /// Sends inputs of the next step to where they wait for it, beside the step that runs; not where that step may be
    /// another program's.
    fn send(&mut self) -> Result<(), DriverError> {
        let here = self.staged.side(self.fed);
        let Some(Ahead { stream, arrived, taken, .. }) = self.ahead else { return Ok(()) };
        if !self.is_alone.get() {
            return Ok(());
        }
        self.driver.wait(stream, taken)?;
        for Fed { value, at, ahead, .. } in &self.staged.inputs {
            let Some(range) = ahead.as_ref().filter(|_| !self.lent.contains_key(value)) else {
                continue;
            };
            // SAFETY: as for feeding. The step that runs has taken its own, and nothing else uses the range
            // (`check`).
            unsafe { self.driver.copy(stream, here + at, self.address(range), range.len)? };
        }
        self.driver.record(stream, arrived)?;
        if let Some(ahead) = &mut self.ahead {
            ahead.is_sent = true;
        }
        Ok(())
    }

    /// Waits for inputs on their way, which are fed anew.
    fn call_back(&mut self) -> Result<(), DriverError> {
        match &mut self.ahead {
            Some(ahead) if ahead.is_sent => {
                ahead.is_sent = false;
                self.driver.synchronize(ahead.stream)
            }
            _ => Ok(()),
        }
    }

    /// Issues a whole step but for its feeding: commands, results.
    fn issue(&self, side: Side) -> Result<(), DriverError> {
        let commands = || self.commands.iter().try_for_each(|command| self.issue_one(command));
        self.issue_around(side, commands)
    }

    /// Issues what every step begins with and its results, and between them what `commands` issues.
    fn issue_around(
        &self,
        side: Side,
        commands: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let (driver, first, staged) = (&*self.driver, self.streams[0], &self.staged);
        let here = staged.side(side);
        // SAFETY: every address lies in an arena, aligned (`check`), or in what is staged;
        // arenas live as long as the driver, and accesses are ordered by streams and events.
        unsafe {
            staged.send_draw(side, driver, first)?;
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
                driver.copy(first, self.address(range), here + at, range.len)?;
            }
            staged.fetch_refusal(side, driver, first)
        }
    }

    fn issue_one(&self, command: &Prepared) -> Result<(), DriverError> {
        // SAFETY: as in `issue_around`.
        unsafe { command.issue(&*self.driver, &self.streams) }
    }
}
