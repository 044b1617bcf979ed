//! Training batch by batch, with what the caller has in memory.

use crate::artifact::{Artifact, Target};
use crate::data::{Progress, TensorFile, parse_scalar, save};
use crate::dynamic::{Dynamic, Sizes};
use crate::evaluator::Means;
use crate::gpu_code::Trust;
use crate::tensor::{Input, Tensor};
use crate::train::session::{Home, How, Ports, Ready, Session};
use crate::train::{Initial, InitialError, InputError, Place, PlaceError, TrainError, scalar};
use arenic_ir::types::TensorType;
use arenic_passes::Purpose;
use arenic_runtime::kernel::Draw;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How a [`Trainer`] runs.
#[derive(Debug, Default)]
pub struct TrainerOptions {
    /// Where.
    pub place: Place,
    /// Threads of kernels; 0 takes one per core. The bits do not depend on it.
    pub threads: usize,
    /// Seed of random operators; `None` for that of the state that is loaded, else 0.
    pub seed: Option<u64>,
    /// Where states get their first values, before those in the artifact.
    pub initial: Initial,
    /// On a GPU: only what gives the same bits in every run.
    pub deterministic: bool,
    /// Whose code for GPUs is run.
    pub trust: Trust,
    /// How a step of other sizes is compiled when a batch of them first comes; `None` for the artifact's
    /// sizes alone.
    pub dynamic: Option<Dynamic>,
}

/// Trains with an artifact, one batch after another, out of its arena. Several trainers may share an artifact; each has
/// states of its own.
///
/// ```
/// use arenic::{Compiler, Model, Optimizer, Trainer};
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/mlp.onnx");
/// let step = Compiler::new()
///     .loss("cross_entropy", Optimizer::Sgd)
///     .compile(&Model::open(path)?.dim("batch", 2))?;
/// let mut trainer = Trainer::new(step)?;
/// let rows = trainer.input("x").map_or(0, |ty| ty.elements());
/// let (x, target) = (vec![0.5f32; rows], [3i64, 7]);
/// let batch = [("x", x[..].into()), ("target", target[..].into()), ("lr", 0.1.into())];
/// let first = trainer.step(&batch)?["loss"];
/// assert!(trainer.step(&batch)?["loss"] < first);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer {
    artifact: Arc<Artifact>,
    how: How,
    session: Session,
    /// By variant, made when first needed.
    evaluations: BTreeMap<usize, Evaluation>,
    progress: Progress,
    /// How often states were changed.
    version: u64,
    dynamic: Option<Dynamic>,
    /// Steps beside the artifact's, in the order in which they were added.
    added: Vec<Arc<Target>>,
}

/// The forward pass that evaluates what was trained, with weights of its own.
struct Evaluation {
    session: Session,
    /// The version of the states that its weights are of.
    version: u64,
}

impl Trainer {
    /// A trainer on the CPU whose states begin as the artifact says.
    ///
    /// # Errors
    /// The artifact cannot be run here, or states have no first values.
    pub fn new(artifact: impl Into<Arc<Artifact>>) -> Result<Trainer, TrainError> {
        Trainer::with_options(artifact, TrainerOptions::default())
    }

    /// A trainer with options.
    ///
    /// # Errors
    /// As for [`Trainer::new`].
    pub fn with_options(
        artifact: impl Into<Arc<Artifact>>,
        options: TrainerOptions,
    ) -> Result<Trainer, TrainError> {
        let artifact = artifact.into();
        if !artifact.runnable {
            let name = format!("`{}`", artifact.provenance.model);
            return Err(PlaceError::PlanOnly(name).into());
        }
        let TrainerOptions { place, threads, seed, initial, deterministic, trust, dynamic } =
            options;
        let how = How { place, threads, deterministic, trust, poison: false };
        let session = Session::new(Arc::clone(&artifact), Purpose::Step, 0, initial, how)?;
        let saved = session.ready().progress;
        let progress = Progress { seed: seed.unwrap_or(saved.seed), ..saved };
        let evaluations = BTreeMap::new();
        let (version, added) = (0, Vec::new());
        Ok(Trainer { artifact, how, session, evaluations, progress, version, dynamic, added })
    }

    /// The artifact.
    pub fn artifact(&self) -> &Arc<Artifact> {
        &self.artifact
    }

    /// Steps done so far, with those before a state that was loaded.
    pub fn steps(&self) -> u64 {
        self.progress.step
    }

    /// The names of the variants; one that is empty where the artifact holds one step alone.
    pub fn variants(&self) -> impl Iterator<Item = &str> {
        self.ready().variants.iter().map(|ports| ports.name.as_str())
    }

    /// How many of them, the first ones, have a forward pass that evaluates what they train: those that were added
    /// when batches of their sizes came have none.
    fn compiled(&self) -> usize {
        let compiled = self.ready().variants.len() - self.added.len();
        let evaluations = self.how.place.evaluations(&self.artifact);
        evaluations.map_or(compiled, |all| all.len().min(compiled))
    }

    /// The type of an input of the last variant that stepped, at first of the first one; `None` if there is no
    /// such input.
    pub fn input(&self, name: &str) -> Option<&TensorType> {
        let ports = self.ready().ports();
        ports.inputs.iter().find(|port| port.name == name).map(|port| &port.ty)
    }

    /// Names and types of the states, each as a whole.
    pub fn states(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.ready().states.iter().map(|home| (home.name.as_str(), &home.ty))
    }

    fn ready(&self) -> &Ready {
        self.session.ready()
    }

    /// Runs one step; gives its scalar outputs by name. [`Trainer::output`] has the others. Of several variants it is
    /// the first whose inputs have as many elements as the batch gives. With [`TrainerOptions::dynamic`] a step of
    /// the batch's size is compiled where there is none, if numbers of elements say the size: where two dimensions of an
    /// input vary, [`Trainer::step_at`] is told them.
    ///
    /// # Errors
    /// An input is missing, unknown or of another type; a step of the batch's size does not fit the arena; a target is
    /// no class; the loss is not finite; the device failed. After the last three, states may be half updated.
    pub fn step(&mut self, batch: &[(&str, Input)]) -> Result<BTreeMap<String, f64>, TrainError> {
        let variant = match fitting(&self.ready().variants, batch) {
            Some(variant) => variant,
            None => self.grown(batch)?.unwrap_or(0),
        };
        self.step_of(variant, batch)
    }

    /// Runs one step as [`Trainer::step`] does, at these sizes of dimensions; others have those of the first variant.
    ///
    /// # Errors
    /// As for [`Trainer::step`]; there is no such dimension, or, without [`TrainerOptions::dynamic`], no such variant.
    pub fn step_at(
        &mut self,
        sizes: &[(&str, u64)],
        batch: &[(&str, Input)],
    ) -> Result<BTreeMap<String, f64>, TrainError> {
        let structure = self.first_structure();
        let all = self.dynamic.as_ref().and_then(|dynamic| dynamic.resized(&structure, sizes));
        let Some(all) = all else {
            let name = sizes.iter().map(|(name, size)| format!("{name}={size}"));
            let name = name.collect::<Vec<_>>().join(",");
            return self.step_variant(&name, batch);
        };
        // The first variant of an artifact of one has no name.
        let is_first = self.dynamic.as_ref().is_some_and(|d| d.is_first(&structure, &all));
        let variant = if is_first { 0 } else { self.grow(&structure, &all)? };
        self.step_of(variant, batch)
    }

    /// The structure of the first variant.
    fn first_structure(&self) -> String {
        let programs = self.how.place.programs(&self.artifact).unwrap_or_default();
        programs.first().map_or(String::new(), |target| target.structure.clone())
    }

    /// The inputs of the first variant of a structure, by name.
    fn inputs_of(&self, structure: &str) -> Vec<(&str, &TensorType)> {
        let programs = self.how.place.programs(&self.artifact).unwrap_or_default();
        let first = programs.iter().position(|target| target.structure == structure);
        let ports = first.and_then(|i| self.ready().variants.get(i));
        ports
            .map_or(Vec::new(), |ports| ports.inputs.iter().map(|p| (&p.name[..], &p.ty)).collect())
    }

    /// A step for a batch that fits no variant; `None` where none is to be compiled.
    fn grown(&mut self, batch: &[(&str, Input)]) -> Result<Option<usize>, TrainError> {
        let Some(dynamic) = &self.dynamic else { return Ok(None) };
        let structure = self.first_structure();
        let elements = batch.iter().filter_map(|(name, x)| Some((*name, x.elements()?.1)));
        let elements: Vec<(&str, usize)> = elements.collect();
        let sizes = dynamic.sizes_by_elements(&structure, &self.inputs_of(&structure), &elements);
        sizes.map(|sizes| self.grow(&structure, &sizes)).transpose()
    }

    /// The variant of these sizes, compiled where there is none.
    fn grow(&mut self, structure: &str, sizes: &Sizes) -> Result<usize, TrainError> {
        let name = Dynamic::name(structure, sizes);
        if let Some(variant) = self.variants().position(|variant| variant == name) {
            return Ok(variant);
        }
        let mut others = self.how.place.programs(&self.artifact)?;
        others.extend(self.added.iter().map(AsRef::as_ref));
        let unknown = || InputError::Variant { name: name.clone(), known: Vec::new() };
        let dynamic = self.dynamic.as_mut().ok_or_else(unknown)?;
        let target = Arc::new(dynamic.step(structure, sizes, &others)?);
        self.session.settle()?;
        let variant = self.session.add(Arc::clone(&target))?;
        self.added.push(target);
        Ok(variant)
    }

    /// Runs one step of the variant of this name, as [`Trainer::step`] does.
    ///
    /// # Errors
    /// As for [`Trainer::step`]; there is no such variant.
    pub fn step_variant(
        &mut self,
        name: &str,
        batch: &[(&str, Input)],
    ) -> Result<BTreeMap<String, f64>, TrainError> {
        let Some(variant) = self.variants().position(|variant| variant == name) else {
            let known = self.variants().map(|name| format!("`{name}`")).collect();
            return Err(InputError::Variant { name: name.to_owned(), known }.into());
        };
        self.step_of(variant, batch)
    }

    fn step_of(
        &mut self,
        variant: usize,
        batch: &[(&str, Input)],
    ) -> Result<BTreeMap<String, f64>, TrainError> {
        self.settle()?;
        self.session.choose(variant)?;
        feed(&mut self.session, batch, &self.artifact.defaults)?;
        self.begin()?;
        self.wait(None).unwrap_or(Ok(()))?;
        Ok(scalars(&self.session).map(|(name, x)| (name.to_owned(), x)).collect())
    }

    /// Evaluates the states on one batch by the artifact's forward pass: `loss`, for classes `accuracy`, and other scalar
    /// outputs. The states stay as they are.
    ///
    /// # Errors
    /// As for [`Trainer::step`]; the artifact holds no forward pass.
    pub fn evaluate(
        &mut self,
        batch: &[(&str, Input)],
    ) -> Result<BTreeMap<String, f64>, TrainError> {
        let defaults = self.artifact.defaults.clone();
        let compiled = &self.ready().variants[..self.compiled()];
        let variant = fitting(compiled, batch).unwrap_or(0);
        let session = self.evaluation(variant)?;
        feed(session, batch, &defaults)?;
        session.begin(Draw::default())?;
        session.wait(None).unwrap_or(Ok(()))?;
        let mut means = Means::default();
        means.add(&scalars(session).collect::<Vec<_>>());
        Ok(means.into_each().collect())
    }

    /// An output of the last step, as a tensor; `None` if there is no such output.
    pub fn output(&self, name: &str) -> Option<Tensor> {
        let outputs = &self.ready().ports().outputs;
        let i = outputs.iter().position(|port| port.name == name)?;
        Tensor::from_bytes(outputs[i].ty.clone(), self.session.output(i).to_vec())
    }

    /// A copy of a state.
    ///
    /// # Errors
    /// There is no such state, or the device failed.
    pub fn state(&mut self, name: &str) -> Result<Tensor, TrainError> {
        let home = self.home(name)?;
        self.end();
        let bytes = self.session.read(&home)?;
        let (ty, found) = (home.ty, bytes.len());
        let of_no_use = || InputError::Type {
            name: name.to_owned(),
            expected: ty.clone(),
            found: format!("{found} bytes"),
        };
        Tensor::from_bytes(ty.clone(), bytes).ok_or_else(|| of_no_use().into())
    }

    /// Replaces a state.
    ///
    /// # Errors
    /// There is no such state, it is of another type, or the device failed.
    pub fn set_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), TrainError> {
        let home = self.home(name)?;
        if home.ty != *tensor.ty() {
            let (found, expected) = (tensor.ty().clone(), home.ty);
            return Err(InitialError::Type { name: name.to_owned(), found, expected }.into());
        }
        self.end();
        self.version += 1;
        self.session.write(&home, tensor.bytes())
    }

    /// Writes the states as a safetensors file, with the number of the step and the seed.
    ///
    /// # Errors
    /// The file system refuses; a file of that name is then left as it was.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), TrainError> {
        self.end();
        let mut homes = self.ready().states.clone();
        homes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut tensors = Vec::with_capacity(homes.len());
        for home in &homes {
            tensors.push(self.session.read(home)?);
        }
        let named = homes.iter().zip(&tensors).map(|(h, bytes)| (&*h.name, &h.ty, &bytes[..]));
        Ok(save(path, named, &self.progress.to_metadata())?)
    }

    /// Goes on from what [`Trainer::save`] or `arenic run --save` wrote.
    ///
    /// # Errors
    /// The file cannot be read, lacks a state, or has one of another type; states are then as they were.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<(), TrainError> {
        let file = TensorFile::open(path)?;
        let homes = self.ready().states.clone();
        let missing = homes.iter().filter(|home| file.tensor(&home.name).is_none());
        let missing: Vec<String> = missing.map(|home| format!("`{}`", home.name)).collect();
        if !missing.is_empty() {
            return Err(InitialError::Missing(missing).into());
        }
        let arrays = homes.iter().filter_map(|home| Some((home, file.tensor(&home.name)?)));
        if let Some((home, array)) = arrays.clone().find(|(home, array)| *array.ty() != home.ty) {
            let (name, expected) = (home.name.clone(), home.ty.clone());
            return Err(InitialError::Type { name, found: array.ty().clone(), expected }.into());
        }
        let progress = Progress::of(&file)?;
        self.end();
        self.version += 1;
        for (home, array) in arrays {
            let mut bytes = vec![0; home.ty.bytes() as usize];
            array.read(0, &mut bytes)?;
            self.session.write(home, &bytes)?;
        }
        self.progress = progress.unwrap_or(Progress { step: 0, ..self.progress });
        Ok(())
    }

    /// Begins a step with what its inputs hold.
    fn begin(&mut self) -> Result<(), TrainError> {
        let Progress { step, seed } = self.progress;
        self.session.begin(Draw { seed, step, round: 0 })?;
        self.version += 1;
        Ok(())
    }

    /// Waits for the end of the step that was begun; `None` where it goes on after `limit`.
    fn wait(&mut self, limit: Option<Duration>) -> Option<Result<(), TrainError>> {
        let was_open = self.session.is_open();
        let ended = self.session.wait(limit)?;
        if let (true, Ok(())) = (was_open, &ended) {
            let step = self.progress.step;
            self.progress.step += 1;
            let ports = self.session.ready().ports();
            if let Some(i) = ports.loss
                && !scalar(ports.outputs[i].ty.dtype, self.session.output(i)).is_finite()
            {
                let name = ports.outputs[i].name.clone();
                return Some(Err(TrainError::NonFinite { step, name }));
            }
        }
        Some(ended)
    }

    /// Waits for a step that nobody waited for.
    fn settle(&mut self) -> Result<(), TrainError> {
        self.wait(None).unwrap_or(Ok(()))
    }

    /// As [`Trainer::settle`], for whoever wants the states and not to know how that step ended.
    fn end(&mut self) {
        let _ = self.settle();
    }

    /// The forward pass of a variant, with the states as they are now.
    fn evaluation(&mut self, variant: usize) -> Result<&mut Session, TrainError> {
        self.settle()?;
        if variant >= self.compiled() {
            return Err(PlaceError::Evaluation.into());
        }
        let mut evaluation = match self.evaluations.remove(&variant) {
            Some(evaluation) => evaluation,
            None => {
                let artifact = Arc::clone(&self.artifact);
                let initial = Initial::default();
                let session =
                    Session::new(artifact, Purpose::Evaluation, variant, initial, self.how)?;
                Evaluation { session, version: u64::MAX }
            }
        };
        if evaluation.version != self.version {
            for home in &self.session.ready().states.clone() {
                let constants = &evaluation.session.ready().constants;
                let Some(constant) = constants.iter().find(|c| c.name == home.name) else {
                    continue;
                };
                if constant.ty == home.ty {
                    let constant = constant.clone();
                    let bytes = self.session.read(home)?;
                    evaluation.session.write(&constant, &bytes)?;
                }
            }
            evaluation.version = self.version;
        }
        Ok(&mut self.evaluations.entry(variant).or_insert(evaluation).session)
    }

    fn home(&self, name: &str) -> Result<Home, TrainError> {
        let found = self.ready().states.iter().find(|home| home.name == name);
        let unknown = || InitialError::Unknown(vec![format!("`{name}`")]);
        found.cloned().ok_or_else(|| unknown().into())
    }
}

/// The first variant whose inputs a batch fits by numbers of elements.
fn fitting(variants: &[Ports], batch: &[(&str, Input)]) -> Option<usize> {
    let fits = |ports: &Ports| {
        batch.iter().all(|(name, given)| {
            let port = ports.inputs.iter().find(|port| port.name == *name);
            let elements = given.elements().map_or(1, |(_, elements)| elements);
            port.is_some_and(|port| port.ty.elements() == elements)
        })
    };
    variants.iter().position(fits)
}

/// Fills the inputs with a batch, and those that it lacks with their default values.
fn feed(
    session: &mut Session,
    batch: &[(&str, Input)],
    defaults: &BTreeMap<String, f64>,
) -> Result<(), TrainError> {
    let inputs = session.ready().ports().inputs.clone();
    if let Some((name, _)) = batch.iter().find(|(name, _)| inputs.iter().all(|p| p.name != *name)) {
        let known = inputs.iter().map(|p| format!("`{}` {}", p.name, p.ty)).collect();
        return Err(InputError::Unknown { name: (*name).to_owned(), known }.into());
    }
    let mut missing = Vec::new();
    for (i, port) in inputs.iter().enumerate() {
        let given = batch.iter().rev().find(|(name, _)| *name == port.name).map(|(_, x)| *x);
        let given = given.or_else(|| defaults.get(&port.name).map(|&x| Input::Number(x)));
        let Some(given) = given else {
            if port.slot.is_some() {
                missing.push(format!("`{}` {}", port.name, port.ty));
            }
            continue;
        };
        let Some(bytes) = session.input_mut(i) else { continue };
        let fits = match given.elements() {
            Some(elements) => elements == (port.ty.dtype, port.ty.elements()),
            None => port.ty.elements() == 1,
        };
        if !fits {
            let found = match given.elements() {
                Some((dtype, n)) => format!("{n} elements of {dtype}"),
                None => "one number".to_owned(),
            };
            let (name, expected) = (port.name.clone(), port.ty.clone());
            return Err(InputError::Type { name, expected, found }.into());
        }
        match given {
            Input::Number(x) => {
                let (name, expected) = (port.name.clone(), port.ty.clone());
                let number = parse_scalar(port.ty.dtype, &x.to_string());
                let number = number.map_err(|_| InputError::Type {
                    name,
                    expected,
                    found: format!("the number {x}"),
                })?;
                bytes.copy_from_slice(&number);
            }
            elements => elements.write(bytes),
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(InputError::Missing(missing).into()) }
}

/// The scalar outputs of the last step.
fn scalars(session: &Session) -> impl Iterator<Item = (&str, f64)> {
    let outputs = session.ready().ports().outputs.iter().enumerate();
    let scalars = outputs.filter(|(_, port)| port.ty.elements() == 1);
    scalars.map(|(i, port)| (port.name.as_str(), scalar(port.ty.dtype, session.output(i))))
}

/// The machine's memory and the parts of a step, for the Python package.
///
/// A [`Slot`] may be read and written while no step runs and the trainer lives.
#[doc(hidden)]
pub mod access {
    use super::{Draw, Duration, Means, Session, TrainError, Trainer};
    pub use crate::train::session::{Port, Slot};
    use arenic_ir::types::TensorType;
    use std::collections::BTreeMap;

    /// Names and inputs of all variants.
    pub fn variants(trainer: &Trainer) -> impl Iterator<Item = (&str, &[Port])> {
        trainer.ready().variants.iter().map(|ports| (&ports.name[..], &ports.inputs[..]))
    }

    /// Chooses the variant that [`inputs`], [`outputs`] and the next step are of.
    ///
    /// # Errors
    /// Those of a step that nobody waited for.
    pub fn choose(trainer: &mut Trainer, variant: usize) -> Result<(), TrainError> {
        trainer.settle()?;
        trainer.session.choose(variant)
    }

    /// The variant of a structure (of the first one, where none is named) whose inputs have these shapes; one that
    /// there is not is compiled, if the trainer does that. `None` if there is none.
    ///
    /// # Errors
    /// As for [`Trainer::step`].
    pub fn grow(
        trainer: &mut Trainer,
        structure: Option<&str>,
        shapes: &[(&str, &[usize])],
    ) -> Result<Option<usize>, TrainError> {
        let structure = structure.map_or_else(|| trainer.first_structure(), str::to_owned);
        let Some(dynamic) = &trainer.dynamic else { return Ok(None) };
        let sizes = dynamic.sizes(&structure, &trainer.inputs_of(&structure), shapes);
        sizes.map(|sizes| trainer.grow(&structure, &sizes)).transpose()
    }

    /// How many of the variants have a forward pass to evaluate with, where the artifact has some.
    pub fn compiled(trainer: &Trainer) -> usize {
        trainer.compiled()
    }

    /// The inputs.
    pub fn inputs(trainer: &Trainer) -> &[Port] {
        &trainer.ready().ports().inputs
    }

    /// The outputs.
    pub fn outputs(trainer: &Trainer) -> &[Port] {
        &trainer.ready().ports().outputs
    }

    /// A state's bytes and type; `None` where it does not lie in one piece in this process's memory.
    ///
    /// # Errors
    /// There is no such state.
    pub fn state(trainer: &Trainer, name: &str) -> Result<Option<(Slot, TensorType)>, TrainError> {
        let home = trainer.home(name)?;
        Ok(match home.parts[..] {
            [part] => part.slot.map(|slot| (slot, home.ty)),
            _ => None,
        })
    }

    /// The stream of the device on which inputs are copied, as its driver numbers it; `None` where they cannot be
    /// lent. With `evaluates` that of the forward pass. What was lent before is forgotten.
    ///
    /// # Errors
    /// As for [`Trainer::evaluate`].
    pub fn stream(trainer: &mut Trainer, evaluates: bool) -> Result<Option<u64>, TrainError> {
        let session = session(trainer, evaluates)?;
        session.take_back();
        Ok(session.ready().stream)
    }

    /// Has the next step copy input `i` from an address of the device's memory; with `evaluates` the next forward
    /// pass.
    ///
    /// # Errors
    /// As for [`Trainer::evaluate`].
    ///
    /// # Safety
    /// From there on the device has as many bytes as the input takes. They are written before the step in the order
    /// of the [`stream`], and nobody changes or frees them until the step has ended.
    pub unsafe fn lend(
        trainer: &mut Trainer,
        evaluates: bool,
        i: usize,
        address: u64,
    ) -> Result<(), TrainError> {
        // SAFETY: the caller's.
        unsafe { session(trainer, evaluates)?.lend(i, address) };
        Ok(())
    }

    /// That of the steps, or of the forward pass of the chosen one.
    fn session(trainer: &mut Trainer, evaluates: bool) -> Result<&mut Session, TrainError> {
        let variant = trainer.ready().chosen;
        match evaluates {
            true => trainer.evaluation(variant),
            false => Ok(&mut trainer.session),
        }
    }

    /// Tells that states were written through their slots.
    pub fn touch(trainer: &mut Trainer) {
        trainer.version += 1;
    }

    /// Bytes of the arena on the device.
    pub fn arena_bytes(trainer: &Trainer) -> u64 {
        trainer.ready().arena_bytes
    }

    /// True where inputs and outputs lie elsewhere after each step.
    pub fn moves(trainer: &Trainer) -> bool {
        !trainer.ready().is_in_host_memory
    }

    /// Begins a step with what the inputs hold.
    ///
    /// # Errors
    /// As for [`Trainer::step`].
    pub fn begin(trainer: &mut Trainer) -> Result<(), TrainError> {
        trainer.settle()?;
        trainer.begin()
    }

    /// Waits for the end of the step; `None` where it goes on after `limit`.
    pub fn wait(trainer: &mut Trainer, limit: Duration) -> Option<Result<(), TrainError>> {
        trainer.wait(Some(limit))
    }

    /// The scalar outputs of the last step, in their order.
    pub fn scalars(trainer: &Trainer) -> Vec<f64> {
        super::scalars(&trainer.session).map(|(_, x)| x).collect()
    }

    /// The inputs and outputs of the forward pass, which has the states as they are now.
    ///
    /// # Errors
    /// As for [`Trainer::evaluate`].
    pub fn evaluation(trainer: &mut Trainer) -> Result<(Vec<Port>, Vec<Port>), TrainError> {
        let ports = session(trainer, true)?.ready().ports();
        Ok((ports.inputs.clone(), ports.outputs.clone()))
    }

    /// Runs the forward pass, or waits for it; `None` where it goes on after `limit`.
    pub fn evaluate(
        trainer: &mut Trainer,
        is_first: bool,
        limit: Duration,
    ) -> Option<Result<BTreeMap<String, f64>, TrainError>> {
        let session = match session(trainer, true) {
            Ok(session) => session,
            Err(e) => return Some(Err(e)),
        };
        if is_first && let Err(e) = session.begin(Draw::default()) {
            return Some(Err(e));
        }
        Some(session.wait(Some(limit))?.map(|()| {
            let mut means = Means::default();
            means.add(&super::scalars(session).collect::<Vec<_>>());
            means.into_each().collect()
        }))
    }
}
