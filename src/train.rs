//! Runs an artifact: makes a machine for its programs, on the CPU or on a device, and steps on it.

mod added;
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
use added::{Chain, More};
use arenic_backends::CUDA;
use arenic_ir::graph::{Data, Def, Graph, ValueId};
use arenic_ir::program::Program;
use arenic_runtime::cuda;
use arenic_runtime::cuda::driver::Driver;
use arenic_runtime::cuda::nvrtc::Image;
use arenic_runtime::executor::ExecutorOptions;
use arenic_runtime::machine::Machine;
pub use arenic_runtime::machine::StepFailure;
use arenic_runtime::ranks::Communicator;
use arenic_runtime::rounds::{Part, RoundsError, WholeStep};
use arenic_runtime::variants::{self, Another, Variants};
use bytes::Bytes;
pub use error::{InputError, TrainError};
pub use initial::{Initial, InitialError};
pub use options::{Length, TrainOptions};
pub(crate) use outputs::scalar;
pub use place::{Place, PlaceError};
pub use ranks::RankCountError;
use run::train_on;
pub use run::{StepReport, Summary};
pub use saving::{Kept, OnSaveError};
use std::collections::BTreeMap;
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
    let (trust, ranks) = (options.trust, options.ranks.as_deref());
    on_device(driver, variants, trust, how, ranks, Training { options, notice, watch })
}

/// What is done with steps that are ready, on whatever machine. Steps that are added have their places in
/// `more`.
trait Work<R> {
    fn with<'s, 'g: 's, M: Another<'g>>(
        self,
        machines: &mut Variants<'s, 'g, M>,
        steps: &[Step<'s>],
        more: More<'s, 'g>,
    ) -> Result<R, TrainError>
    where
        TrainError: From<M::Error>;
}

/// Does `work` with variants on the CPU.
fn on_cpu<R>(
    variants: &[&Target],
    how: ExecutorOptions,
    ranks: Option<&Arc<dyn Communicator>>,
    work: impl Work<R>,
) -> Result<R, TrainError> {
    RankCountError::of(variants, ranks.map(|ranks| ranks.as_ref()))?;
    let targets = Chain::default();
    let whole = whole_steps(variants)?;
    let of_more = Chain::default();
    let ready = ready(variants, &whole);
    let mut machines = Variants::on_cpu(&ready, how)?;
    if let Some(ranks) = ranks {
        machines.join(ranks);
    }
    let steps = steps(variants, &ready);
    hold(&mut machines, &steps);
    let more = More { targets: &targets, whole: &of_more };
    work.with(&mut machines, &steps, more)
}

/// Does `work` with variants on a device; of several ranks the driver has joined the others.
fn on_device<R>(
    driver: impl Driver,
    variants: &[&Target],
    trust: Trust,
    how: cuda::CudaOptions,
    ranks: Option<&dyn Communicator>,
    work: impl Work<R>,
) -> Result<R, TrainError> {
    RankCountError::of(variants, ranks)?;
    let images = variants.iter().map(|target| images(target, trust));
    let images = images.collect::<Result<Vec<Vec<_>>, _>>()?;
    let targets = Chain::default();
    let whole = whole_steps(variants)?;
    let of_more = Chain::default();
    let ready = ready(variants, &whole);
    let mut machines = Variants::on_device(&ready, &images, driver, how)?;
    let steps = steps(variants, &ready);
    hold(&mut machines, &steps);
    work.with(&mut machines, &steps, More { targets: &targets, whole: &of_more })
}

/// The kernels of a target's programs; none where they are not for a device.
fn images(target: &Target, trust: Trust) -> Result<Vec<Vec<Image>>, cuda::SetupError> {
    if target.name != CUDA.name {
        return Ok(Vec::new());
    }
    let images = |turn: &Turn| {
        let images = gpu_code::images(turn.kernels, turn.graph, turn.program, trust);
        images.map_err(cuda::SetupError::from)
    };
    target.turns().iter().map(images).collect()
}

/// Has inputs fed that hold the same in every step.
fn hold<M: Machine>(machines: &mut Variants<M>, steps: &[Step]) {
    for (i, step) in steps.iter().enumerate() {
        machines.hold(i, step.held());
    }
}

/// A run from files to files.
struct Training<'a, N, W> {
    options: &'a TrainOptions,
    notice: N,
    watch: W,
}

impl<N: FnMut(&Notice), W: FnMut(&StepReport)> Work<Summary> for Training<'_, N, W> {
    fn with<'s, 'g: 's, M: Another<'g>>(
        self,
        machines: &mut Variants<'s, 'g, M>,
        steps: &[Step<'s>],
        _: More<'s, 'g>,
    ) -> Result<Summary, TrainError>
    where
        TrainError: From<M::Error>,
    {
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
    variants.iter().zip(whole).map(|(target, whole)| ready_one(target, whole)).collect()
}

/// The step of a target as it is made ready.
fn ready_one<'s, 'a>(
    target: &'a Target,
    whole: &'s Option<WholeStep<'a>>,
) -> variants::Step<'s, 'a> {
    match whole {
        Some(whole) => variants::Step::InRounds(whole),
        None => variants::Step::Whole(Part { graph: &target.graph, program: &target.program }),
    }
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
    /// Inputs that hold the same in every step, by name.
    fed: &'a BTreeMap<String, Data>,
    /// The file that constants and initial states lie in.
    file: &'a Mapping,
    /// Whose commands are timed.
    timed: (&'a Graph, &'a Program),
}

impl<'a> Step<'a> {
    fn of<'g: 'a>(target: &'g Target, ready: &variants::Step<'a, 'g>) -> Step<'a> {
        let Target { variant, structure, bound, fed, file, .. } = target;
        let (graph, timed) = (ready.graph(), (&target.graph, &target.program));
        Step { name: (variant, structure), graph, bound, fed, file, timed }
    }

    /// The inputs that whoever runs the step feeds.
    fn inputs(&self) -> impl Iterator<Item = ValueId> {
        self.graph.inputs().filter(|&v| !self.fed.contains_key(&self.graph.values[v].name))
    }

    /// The others, with what they hold.
    fn held(&self) -> Vec<(ValueId, Bytes)> {
        let held = |v: ValueId| match self.fed.get(&self.graph.values[v].name)? {
            Data::Bytes(bytes) => Some((v, bytes.clone())),
            Data::Absent => None,
        };
        self.graph.inputs().filter_map(held).collect()
    }
}

fn steps<'s, 'g: 's>(variants: &[&'g Target], ready: &[variants::Step<'s, 'g>]) -> Vec<Step<'s>> {
    variants.iter().zip(ready).map(|(target, ready)| Step::of(target, ready)).collect()
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
