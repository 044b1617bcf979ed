//! Steps that take turns over the same arenas: variants of one step with states in common.
//!
//! Each is an executor, or several of a step in rounds; the arenas are as large as the largest needs.
//! Nobody has them but [`Variants`], which gives out one at a time. What a step was fed does not outlast
//! the step of another, so that inputs are fed again then; states and constants stay, as
//! `check_variants` proves.

use crate::cuda::driver::Driver;
use crate::cuda::nvrtc::Image;
use crate::cuda::{self, CudaExecutor};
use crate::executor::{Executor, ExecutorOptions, SetupError};
use crate::kernel::Draw;
use crate::machine::{DeviceError, Machine, StepFailure};
use crate::ranks::Communicator;
use crate::rounds::{InRounds, Part, WholeStep};
use crate::ways::Way;
use arenic_ir::check::Footprint;
use arenic_ir::graph::{Graph, StateId, ValueId};
use arenic_ir::program::{PerSpace, Span};
use rayon::ThreadPool;
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

impl<'g> Step<'_, 'g> {
    /// What is fed, kept and given.
    pub fn graph(&self) -> &Graph {
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

/// One of the steps, ready to run.
pub enum Variant<'s, 'g, M> {
    /// Of one program.
    Whole(M),
    /// In rounds.
    InRounds(InRounds<'s, 'g, M>),
}

/// Steps that take turns, ready to run.
pub struct Variants<'s, 'g, M> {
    all: Vec<Variant<'s, 'g, M>>,
    /// Bytes beside the arenas that each of them counts, and which there are once.
    shared_bytes: u64,
    pool: Option<Arc<ThreadPool>>,
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
            all.push(match step {
                Step::InRounds(whole) => Variant::InRounds(InRounds::of_cpu(whole, executors)?),
                Step::Whole(_) => match executors.into_iter().next() {
                    Some(executor) => Variant::Whole(executor),
                    None => continue,
                },
            });
        }
        let pool = |variant: &Variant<Executor>| match variant {
            Variant::Whole(executor) => executor.pool(),
            Variant::InRounds(rounds) => rounds.pool(),
        };
        let all_stay = all.iter().all(|variant| pool(variant).is_some());
        let pool = all.first().and_then(pool).filter(|_| all_stay);
        Ok(Variants { all, shared_bytes, pool })
    }

    /// Runs all steps as one of several ranks.
    pub fn join(&mut self, ranks: &Arc<dyn Communicator>) {
        for variant in &mut self.all {
            match variant {
                Variant::Whole(executor) => executor.join(Arc::clone(ranks)),
                Variant::InRounds(rounds) => rounds.join(ranks),
            }
        }
    }

    /// Calls `f`, on a thread of the pool where all steps run there. See [`Executor::within`].
    pub fn within<R: Send>(&mut self, f: impl FnOnce(&mut Self) -> R + Send) -> R {
        match self.pool.clone() {
            Some(pool) => pool.install(|| f(self)),
            None => f(self),
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
            all.push(match step {
                Step::InRounds(whole) => Variant::InRounds(InRounds::of_device(whole, executors)?),
                Step::Whole(_) => match executors.into_iter().next() {
                    Some(executor) => Variant::Whole(executor),
                    None => continue,
                },
            });
        }
        Ok(Variants { all, shared_bytes: 0, pool: None })
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

/// Calls a method of whatever runs the step.
macro_rules! of_either {
    ($self:ident, $machine:ident => $call:expr) => {
        match $self {
            Variant::Whole($machine) => $call,
            Variant::InRounds($machine) => $call,
        }
    };
}

impl<M: Machine> Machine for Variant<'_, '_, M> {
    fn footprint(&self) -> &Footprint {
        of_either!(self, machine => machine.footprint())
    }

    fn library_bytes(&self) -> u64 {
        of_either!(self, machine => machine.library_bytes())
    }

    fn is_fed_anew(&self, v: ValueId) -> bool {
        of_either!(self, machine => machine.is_fed_anew(v))
    }

    fn feeds_ahead(&self) -> bool {
        of_either!(self, machine => machine.feeds_ahead())
    }

    fn is_in_host_memory(&self) -> bool {
        of_either!(self, machine => machine.is_in_host_memory())
    }

    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        of_either!(self, machine => machine.input_mut(v))
    }

    fn fill_home<E: From<DeviceError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        of_either!(self, machine => machine.fill_home(v, fill))
    }

    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DeviceError> {
        of_either!(self, machine => machine.state(s))
    }

    fn written_states(&self) -> Vec<StateId> {
        of_either!(self, machine => machine.written_states())
    }

    fn output(&self, i: usize) -> &[u8] {
        of_either!(self, machine => machine.output(i))
    }

    fn begin(&mut self, draw: Draw) -> Result<(), StepFailure> {
        of_either!(self, machine => machine.begin(draw))
    }

    fn finish(&mut self) -> Result<(), StepFailure> {
        of_either!(self, machine => machine.finish())
    }

    fn timed_step(&mut self, draw: Draw) -> Result<Vec<Span>, StepFailure> {
        of_either!(self, machine => machine.timed_step(draw))
    }

    fn clock(&self) -> &'static str {
        of_either!(self, machine => machine.clock())
    }

    fn ways(&self) -> Vec<Way> {
        of_either!(self, machine => machine.ways())
    }
}
