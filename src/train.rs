//! Runs an artifact: makes a machine for its programs, on the CPU or on a device, and steps on it.

mod error;
mod initial;
mod options;
mod outputs;
mod place;
mod ranks;
mod run;
mod saving;
pub(crate) mod session;

use crate::artifact::{Target, Turn};
use crate::data::Notice;
use crate::gpu_code::{self, Trust};
use crate::mapping::Mapping;
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::program::Program;
use arenic_runtime::cuda;
use arenic_runtime::cuda::driver::Driver;
use arenic_runtime::executor::ExecutorOptions;
use arenic_runtime::machine::Machine;
pub use arenic_runtime::machine::StepFailure;
use arenic_runtime::ranks::Communicator;
use arenic_runtime::rounds::{Part, RoundsError, WholeStep};
use arenic_runtime::variants::{self, Variants};
pub use error::{InputError, TrainError};
pub use initial::{Initial, InitialError};
pub use options::{Length, TrainOptions};
pub(crate) use outputs::scalar;
pub use place::{Place, PlaceError};
pub use ranks::RankCountError;
use run::train_on;
pub use run::{StepReport, Summary};
pub use saving::{Kept, OnSaveError};
use std::sync::Arc;

/// Runs a target on the CPU.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train(
    target: &Target,
    options: &TrainOptions,
    notice: impl FnMut(&Notice) + Send,
    watch: impl FnMut(&StepReport) + Send,
) -> Result<Summary, TrainError> {
    train_variants(&[target], options, notice, watch)
}

/// Runs variants of a target, which take turns over the same arenas, on the CPU.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train_variants(
    variants: &[&Target],
    options: &TrainOptions,
    notice: impl FnMut(&Notice) + Send,
    watch: impl FnMut(&StepReport) + Send,
) -> Result<Summary, TrainError> {
    let how = ExecutorOptions { threads: options.threads, poison: options.poison, stress: None };
    on_cpu(variants, how, options.ranks.as_ref(), Training { options, notice, watch })
}

/// Runs a target on a device.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train_on_device(
    driver: impl Driver,
    target: &Target,
    options: &TrainOptions,
    notice: impl FnMut(&Notice),
    watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    train_variants_on_device(driver, &[target], options, notice, watch)
}

/// Runs variants of a target, which take turns over the same arenas, on a device.
///
/// # Errors
/// See [`TrainError`]. Files are written whole or not at all.
pub fn train_variants_on_device(
    driver: impl Driver,
    variants: &[&Target],
    options: &TrainOptions,
    notice: impl FnMut(&Notice),
    watch: impl FnMut(&StepReport),
) -> Result<Summary, TrainError> {
    let how = cuda::CudaOptions { deterministic: options.deterministic };
    on_device(driver, variants, options.trust, how, Training { options, notice, watch })
}

/// What is done with steps that are ready, on whatever machine.
trait Work<R> {
    fn with<M: Machine>(self, machines: &mut Variants<M>, steps: &[Step]) -> Result<R, TrainError>;
}

/// Does `work` with variants on the CPU, on a thread of the kernels' pool where steps run there.
fn on_cpu<R: Send>(
    variants: &[&Target],
    how: ExecutorOptions,
    ranks: Option<&Arc<dyn Communicator>>,
    work: impl Work<R> + Send,
) -> Result<R, TrainError> {
    RankCountError::of(variants, ranks.map(|ranks| ranks.as_ref()))?;
    let whole = whole_steps(variants)?;
    let ready = ready(variants, &whole);
    let mut machines = Variants::on_cpu(&ready, how)?;
    if let Some(ranks) = ranks {
        machines.join(ranks);
    }
    let steps = steps(variants, &ready);
    machines.within(|machines| work.with(machines, &steps))
}

/// Does `work` with variants on a device.
fn on_device<R>(
    driver: impl Driver,
    variants: &[&Target],
    trust: Trust,
    how: cuda::CudaOptions,
    work: impl Work<R>,
) -> Result<R, TrainError> {
    RankCountError::of(variants, None)?;
    let images = |turn: &Turn| {
        let images = gpu_code::images(turn.kernels, turn.graph, turn.program, trust);
        images.map_err(cuda::SetupError::from)
    };
    let of_target = |target: &&Target| target.turns().iter().map(images).collect();
    let images = variants.iter().map(of_target).collect::<Result<Vec<Vec<_>>, _>>()?;
    let whole = whole_steps(variants)?;
    let ready = ready(variants, &whole);
    let mut machines = Variants::on_device(&ready, &images, driver, how)?;
    work.with(&mut machines, &steps(variants, &ready))
}

/// A run from files to files.
struct Training<'a, N, W> {
    options: &'a TrainOptions,
    notice: N,
    watch: W,
}

impl<N: FnMut(&Notice), W: FnMut(&StepReport)> Work<Summary> for Training<'_, N, W> {
    fn with<M: Machine>(
        self,
        machines: &mut Variants<M>,
        steps: &[Step],
    ) -> Result<Summary, TrainError> {
        train_on(machines, steps, self.options, self.notice, self.watch)
    }
}

/// The steps in rounds among variants.
fn whole_steps<'a>(variants: &[&'a Target]) -> Result<Vec<Option<WholeStep<'a>>>, RoundsError> {
    variants.iter().map(|target| target.whole_step()).collect()
}

/// The steps of variants as they are made ready.
fn ready<'s, 'a>(
    variants: &[&'a Target],
    whole: &'s [Option<WholeStep<'a>>],
) -> Vec<variants::Step<'s, 'a>> {
    let step = |(target, whole): (&&'a Target, &'s Option<_>)| match whole {
        Some(whole) => variants::Step::InRounds(whole),
        None => variants::Step::Whole(Part { graph: &target.graph, program: &target.program }),
    };
    variants.iter().zip(whole).map(step).collect()
}

/// What a run needs to know of a step.
#[derive(Clone, Copy)]
struct Step<'a> {
    /// The variant's name, and that of its model.
    name: (&'a str, &'a str),
    /// What is fed, kept and given.
    graph: &'a Graph,
    /// Initializers that cannot be replaced any more.
    bound: &'a [String],
    /// The file that constants and initial states lie in.
    file: &'a Mapping,
    /// Whose commands are timed.
    timed: (&'a Graph, &'a Program),
}

fn steps<'a>(variants: &[&'a Target], ready: &'a [variants::Step<'_, 'a>]) -> Vec<Step<'a>> {
    let step = |(target, ready): (&&'a Target, &'a variants::Step<'_, 'a>)| {
        let Target { variant, structure, bound, file, .. } = target;
        let (graph, timed) = (ready.graph(), (&target.graph, &target.program));
        Step { name: (variant, structure), graph, bound, file, timed }
    };
    variants.iter().zip(ready).map(step).collect()
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
