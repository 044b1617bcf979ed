//! Steps that take turns over the same arenas: variants of one step with states in common.
//!
//! Each is an executor, or several of a step in rounds; the arenas are as large as the largest needs.
//! Nobody has them but [`Variants`], which gives out one at a time. What a step was fed does not outlast
//! the step of another, so that inputs are fed again then; states and constants stay, as
//! `check_variants` proves. Steps may be added while there are states: they are judged beside those that
//! are there, and prepared over the same arenas.

use crate::cuda::driver::Driver;
use crate::cuda::nvrtc::Image;
use crate::cuda::{self, CudaExecutor};
use crate::executor::{Executor, ExecutorOptions, SetupError};
use crate::kernel::Draw;
use crate::machine::{DeviceError, Machine, StepFailure};
use crate::ranks::Communicator;
use crate::rounds::{InRounds, Part, WholeStep};
use crate::ways::Way;
use arenic_ir::check::{self, Footprint, check_variants};
use arenic_ir::graph::{Graph, StateId, ValueId};
use arenic_ir::program::{PerSpace, Span};
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;

/// A step to be made ready.
#[derive(Clone, Copy, Debug)]
pub enum Step<'s, 'g> {
    /// One program.
    Whole(Part<'g>),
    /// Those of a step in rounds.
    InRounds(&'s WholeStep<'g>),
}

impl<'s, 'g: 's> Step<'s, 'g> {
    /// What is fed, kept and given.
    pub fn graph(&self) -> &'s Graph {
        match self {
            Step::Whole(part) => part.graph,
            Step::InRounds(whole) => whole.graph(),
        }
    }

    /// The programs, in the order of their turns.
    fn parts(&self) -> Vec<Part<'g>> {
        match self {
            Step::Whole(part) => vec![*part],
            Step::InRounds(whole) => whole.parts().to_vec(),
        }
    }
}

/// Calls a method of whatever runs the step.
macro_rules! of_either {
    ($programs:expr, $machine:ident => $call:expr) => {
        match $programs {
            Programs::Whole($machine) => $call,
            Programs::InRounds($machine) => $call,
        }
    };
}

/// Whatever runs a step.
enum Programs<'s, 'g, M> {
    /// Of one program.
    Whole(M),
    /// In rounds.
    InRounds(InRounds<'s, 'g, M>),
}

/// One of the steps, ready to run.
pub struct Variant<'s, 'g, M> {
    programs: Programs<'s, 'g, M>,
    /// Inputs that hold the same in every step.
    held: Vec<(ValueId, Bytes)>,
}

impl<'s, 'g, M> Variant<'s, 'g, M> {
    fn new(programs: Programs<'s, 'g, M>) -> Self {
        Variant { programs, held: Vec::new() }
    }

    /// A program of the step.
    fn any(&self) -> Option<&M> {
        match &self.programs {
            Programs::Whole(machine) => Some(machine),
            Programs::InRounds(rounds) => rounds.any(),
        }
    }
}

impl<M: Machine> Variant<'_, '_, M> {
    /// Feeds what holds the same in every step.
    fn hold(&mut self) {
        for (v, bytes) in &self.held {
            if let Some(home) = of_either!(&mut self.programs, machine => machine.input_mut(*v)) {
                home.copy_from_slice(bytes);
            }
        }
    }
}

/// A machine beside which others can be made over the same arenas.
pub trait Another<'g>: Machine + Sized {
    /// Why one cannot be made.
    type Error: From<SetupError>;

    /// Machines for programs that take turns with this one's over the same arenas, with what `check` says
    /// of each; `images` are their kernels.
    ///
    /// # Errors
    /// As for the machine's own.
    ///
    /// # Safety
    /// `check_variants` accepted the programs beside those that have the arenas, which have room for them.
    /// One of all machines over the arenas is used at a time.
    unsafe fn beside(
        &self,
        parts: &[Part<'g>],
        footprints: Vec<Footprint>,
        images: &[Vec<Image>],
    ) -> Result<Vec<Self>, Self::Error>;

    /// A step in rounds of machines for its parts.
    ///
    /// # Errors
    /// There is no memory for its batch.
    fn in_rounds<'s>(
        whole: &'s WholeStep<'g>,
        parts: Vec<Self>,
    ) -> Result<InRounds<'s, 'g, Self>, Self::Error>;
}

impl<'g> Another<'g> for Executor<'g> {
    type Error = SetupError;

    unsafe fn beside(
        &self,
        parts: &[Part<'g>],
        footprints: Vec<Footprint>,
        _: &[Vec<Image>],
    ) -> Result<Vec<Self>, SetupError> {
        let pairs = parts.iter().map(|part| (part.graph, part.program)).zip(footprints);
        // SAFETY: the caller's promise.
        pairs.map(|(part, footprint)| unsafe { self.another(part, footprint) }).collect()
    }

    fn in_rounds<'s>(
        whole: &'s WholeStep<'g>,
        parts: Vec<Self>,
    ) -> Result<InRounds<'s, 'g, Self>, SetupError> {
        InRounds::of_cpu(whole, parts)
    }
}

impl<'g, D: Driver> Another<'g> for CudaExecutor<'g, D> {
    type Error = cuda::SetupError;

    unsafe fn beside(
        &self,
        parts: &[Part<'g>],
        footprints: Vec<Footprint>,
        images: &[Vec<Image>],
    ) -> Result<Vec<Self>, cuda::SetupError> {
        let none = Vec::new();
        let images = images.iter().chain(std::iter::repeat(&none));
        let part = |((part, footprint), images): ((&Part<'g>, Footprint), &Vec<Image>)| {
            let Part { graph, program } = *part;
            self.another(cuda::Part { graph, program, images }, footprint)
        };
        parts.iter().zip(footprints).zip(images).map(part).collect()
    }

    fn in_rounds<'s>(
        whole: &'s WholeStep<'g>,
        parts: Vec<Self>,
    ) -> Result<InRounds<'s, 'g, Self>, cuda::SetupError> {
        InRounds::of_device(whole, parts)
    }
}

/// Steps that take turns, ready to run.
pub struct Variants<'s, 'g, M> {
    all: Vec<Variant<'s, 'g, M>>,
    /// Their programs.
    judged: Vec<Vec<check::Part<'g>>>,
    /// Bytes beside the arenas that each of them counts, and which there are once.
    shared_bytes: u64,
}

impl<'s, 'g> Variants<'s, 'g, Executor<'g>> {
    /// Checks all steps, allocates their arenas and prepares them to run on the CPU.
    ///
    /// # Errors
    /// As for [`Executor::new`]. Of several programs, violations name these by their places among those
    /// of all steps.
    pub fn on_cpu(steps: &[Step<'s, 'g>], options: ExecutorOptions) -> Result<Self, SetupError> {
        let pair = |part: Part<'g>| (part.graph, part.program);
        let parts: Vec<Vec<_>> =
            steps.iter().map(|step| step.parts().into_iter().map(pair).collect()).collect();
        // SAFETY: they stay in this type, which gives out one at a time, by a borrow of itself.
        let made = unsafe { Executor::taking_turns(&parts, options) }?;
        let shared_bytes =
            made.first().and_then(|step| step.first()).map_or(0, Executor::library_bytes);
        let mut all = Vec::with_capacity(steps.len());
        for (step, executors) in steps.iter().zip(made) {
            all.extend(of_step(*step, executors)?);
        }
        Ok(Variants { all, judged: parts, shared_bytes })
    }

    /// Runs all steps as one of several ranks.
    pub fn join(&mut self, ranks: &Arc<dyn Communicator>) {
        for variant in &mut self.all {
            match &mut variant.programs {
                Programs::Whole(executor) => executor.join(Arc::clone(ranks)),
                Programs::InRounds(rounds) => rounds.join(ranks),
            }
        }
    }
}

impl<'s, 'g, D: Driver> Variants<'s, 'g, CudaExecutor<'g, D>> {
    /// Checks all steps, allocates their arenas and prepares them to run on a device, each as a graph of
    /// its own, which is captured when it is first needed; `images` are the kernels of each step's
    /// programs in the order of their turns.
    ///
    /// # Errors
    /// As for [`CudaExecutor::new`]. Of several programs, violations name these by their places among
    /// those of all steps.
    pub fn on_device(
        steps: &[Step<'s, 'g>],
        images: &[Vec<Vec<Image>>],
        driver: D,
        options: cuda::CudaOptions,
    ) -> Result<Self, cuda::SetupError> {
        let mut parts = Vec::with_capacity(steps.len());
        for (i, step) in steps.iter().enumerate() {
            let mut of_step = Vec::new();
            for (k, Part { graph, program }) in step.parts().into_iter().enumerate() {
                let images = images.get(i).and_then(|of_step| of_step.get(k));
                let images = images.map_or(&[][..], |images| &images[..]);
                of_step.push(cuda::Part { graph, program, images });
            }
            parts.push(of_step);
        }
        let made = CudaExecutor::taking_turns(&parts, driver, options)?;
        let mut all = Vec::with_capacity(steps.len());
        for (step, executors) in steps.iter().zip(made) {
            all.extend(of_step(*step, executors)?);
        }
        let pair = |part: Part<'g>| (part.graph, part.program);
        let judged =
            steps.iter().map(|step| step.parts().into_iter().map(pair).collect()).collect();
        Ok(Variants { all, judged, shared_bytes: 0 })
    }
}

/// A step of machines for its programs; `None` if it has no program.
fn of_step<'s, 'g, M: Another<'g>>(
    step: Step<'s, 'g>,
    machines: Vec<M>,
) -> Result<Option<Variant<'s, 'g, M>>, M::Error> {
    Ok(match step {
        Step::InRounds(whole) => {
            Some(Variant::new(Programs::InRounds(M::in_rounds(whole, machines)?)))
        }
        Step::Whole(_) => machines.into_iter().next().map(|m| Variant::new(Programs::Whole(m))),
    })
}

impl<'s, 'g, M: Another<'g>> Variants<'s, 'g, M> {
    /// Adds a step over the arenas that are there, once `check_variants` has judged it beside the others.
    /// States are as they were, but for those that a driver's measurements may touch: on a device whoever
    /// adds a step fills the homes of states again. `images` are the kernels of its programs.
    ///
    /// # Errors
    /// It does not fit the others or the arenas; as for the machine's own.
    pub fn add(&mut self, step: Step<'s, 'g>, images: &[Vec<Image>]) -> Result<(), M::Error> {
        let parts = step.parts();
        self.judged.push(parts.iter().map(|part| (part.graph, part.program)).collect());
        match self.added(step, &parts, images) {
            Ok(variant) => self.all.push(variant),
            Err(e) => {
                self.judged.pop();
                return Err(e);
            }
        }
        Ok(())
    }

    fn added(
        &self,
        step: Step<'s, 'g>,
        parts: &[Part<'g>],
        images: &[Vec<Image>],
    ) -> Result<Variant<'s, 'g, M>, M::Error> {
        let footprints = check_variants(&self.judged).map_err(SetupError::Check)?;
        let (there, wanted) = (self.arena_bytes(), parts.iter().map(|part| part.program.sizes));
        let wanted = wanted.fold(PerSpace::default(), PerSpace::largest);
        let none = || M::Error::from(SetupError::Arena { there, wanted });
        let (Some(machine), Some(footprints)) =
            (self.all.first().and_then(Variant::any), footprints.into_iter().next_back())
        else {
            return Err(none());
        };
        if there.largest(wanted) != there {
            return Err(none());
        }
        // SAFETY: judged above, and the arenas have room; all machines stay in this type, which gives out
        // one at a time, by a borrow of itself.
        let machines = unsafe { machine.beside(parts, footprints, images) }?;
        of_step(step, machines)?.ok_or_else(none)
    }
}

impl<'s, 'g, M: Machine> Variants<'s, 'g, M> {
    /// One of the steps, in the order in which they were given. What it was fed before another one
    /// stepped is gone.
    ///
    /// # Panics
    /// There are fewer.
    pub fn at(&mut self, i: usize) -> &mut Variant<'s, 'g, M> {
        &mut self.all[i]
    }

    /// As [`Variants::at`], to be read.
    ///
    /// # Panics
    /// There are fewer.
    pub fn read(&self, i: usize) -> &Variant<'s, 'g, M> {
        &self.all[i]
    }

    /// Feeds inputs of step `i` with the same before each of its turns: nobody else feeds them.
    ///
    /// # Panics
    /// There are fewer steps; when the step begins, where bytes are not as many as the input takes.
    pub fn hold(&mut self, i: usize, inputs: Vec<(ValueId, Bytes)>) {
        self.all[i].held = inputs;
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of the arenas.
    pub fn arena_bytes(&self) -> PerSpace<u64> {
        let sizes = self.all.iter().map(|variant| variant.footprint().arena_bytes);
        sizes.fold(PerSpace::default(), PerSpace::largest)
    }

    /// Which way products, convolutions and attentions of all steps go; empty where there is but one.
    pub fn ways(&self) -> Vec<Way> {
        self.all.iter().flat_map(Machine::ways).collect()
    }

    /// At most so many bytes are allocated beside the arenas.
    pub fn library_bytes(&self) -> u64 {
        let own = |variant: &Variant<M>| variant.library_bytes().saturating_sub(self.shared_bytes);
        self.shared_bytes + self.all.iter().map(own).sum::<u64>()
    }
}

impl<M: Machine> Machine for Variant<'_, '_, M> {
    fn footprint(&self) -> &Footprint {
        of_either!(&self.programs, machine => machine.footprint())
    }

    fn library_bytes(&self) -> u64 {
        of_either!(&self.programs, machine => machine.library_bytes())
    }

    fn is_fed_anew(&self, v: ValueId) -> bool {
        of_either!(&self.programs, machine => machine.is_fed_anew(v))
    }

    fn feeds_ahead(&self) -> bool {
        of_either!(&self.programs, machine => machine.feeds_ahead())
    }

    fn send_ahead(&mut self) -> Result<(), DeviceError> {
        of_either!(&mut self.programs, machine => machine.send_ahead())
    }

    fn is_in_host_memory(&self) -> bool {
        of_either!(&self.programs, machine => machine.is_in_host_memory())
    }

    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        of_either!(&mut self.programs, machine => machine.input_mut(v))
    }

    fn stream(&self) -> Option<u64> {
        of_either!(&self.programs, machine => machine.stream())
    }

    unsafe fn feed_from(&mut self, v: ValueId, address: u64) {
        // SAFETY: the caller's.
        of_either!(&mut self.programs, machine => unsafe { machine.feed_from(v, address) });
    }

    fn fill_home<E: From<DeviceError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        of_either!(&mut self.programs, machine => machine.fill_home(v, fill))
    }

    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DeviceError> {
        of_either!(&self.programs, machine => machine.state(s))
    }

    fn written_states(&self) -> Vec<StateId> {
        of_either!(&self.programs, machine => machine.written_states())
    }

    fn output(&self, i: usize) -> &[u8] {
        of_either!(&self.programs, machine => machine.output(i))
    }

    fn begin(&mut self, draw: Draw) -> Result<(), StepFailure> {
        self.hold();
        of_either!(&mut self.programs, machine => machine.begin(draw))
    }

    fn finish(&mut self) -> Result<(), StepFailure> {
        of_either!(&mut self.programs, machine => machine.finish())
    }

    fn timed_step(&mut self, draw: Draw) -> Result<Vec<Span>, StepFailure> {
        self.hold();
        of_either!(&mut self.programs, machine => machine.timed_step(draw))
    }

    fn clock(&self) -> &'static str {
        of_either!(&self.programs, machine => machine.clock())
    }

    fn ways(&self) -> Vec<Way> {
        of_either!(&self.programs, machine => machine.ways())
    }
}
