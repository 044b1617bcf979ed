//! Steps at sizes that are met while training: compiled over the arena that is there, and kept beside the
//! artifact.
//!
//! What is compiled is what the artifact was compiled from, at other sizes of its dimensions. States and
//! constants lie where the artifact's steps have them, the arena is the limit, and `check` judges the step
//! beside all others before it is taken, also where it comes from the folder in which steps are kept.

mod cache;
mod files;
mod sizes;

pub(crate) use files::Fitted;
pub(crate) use sizes::Sizes;

use crate::artifact::{Artifact, Target};
use crate::compile::{CompileError, Misfit};
use crate::compiler::{Compiler, Variant, Watch};
use crate::model::Model;
use crate::onnx;
use crate::recipe::Recipe;
use arenic_backends::ALL;
use arenic_ir::TensorType;
use arenic_ir::program::PerSpace;
use cache::Cache;
use std::collections::BTreeMap;

/// How the steps of an artifact are compiled at other sizes of their dimensions.
///
/// ```
/// use arenic::{Compiler, Dynamic, Model, Optimizer, Trainer, TrainerOptions};
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/mlp.onnx");
/// let model = Model::open(path)?.dim("batch", 4);
/// let compiler = Compiler::new().loss("cross_entropy", Optimizer::Sgd);
/// let options = TrainerOptions {
///     dynamic: Some(Dynamic::new(compiler.clone(), model.clone())),
///     ..TrainerOptions::default()
/// };
/// let mut trainer = Trainer::with_options(compiler.compile(&model)?, options)?;
/// let (x, target) = (vec![0.5f32; 3 * 32], [3i64, 7, 1]);
/// trainer.step(&[("x", x[..].into()), ("target", target[..].into()), ("lr", 0.1.into())])?;
/// assert_eq!(trainer.variants().last(), Some("batch=3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Dynamic {
    compiler: Compiler,
    models: Vec<Source>,
    cache: Option<Cache>,
    /// Variants that do not fit.
    refused: BTreeMap<String, Misfit>,
}

/// A model, with the sizes of its dimensions that are known.
#[derive(Clone)]
struct Source {
    /// The name that it was given; empty where all variants are of one model.
    structure: String,
    model: Model,
    /// Sizes of the first variant.
    dims: Sizes,
    /// Its inputs, and the names of their dimensions.
    inputs: Vec<(String, Vec<Option<String>>)>,
}

impl std::fmt::Debug for Dynamic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let models: Vec<&str> = self.models.iter().map(|source| source.model.name()).collect();
        f.debug_struct("Dynamic").field("models", &models).finish_non_exhaustive()
    }
}

/// Why there is no step of a size.
#[derive(Debug, thiserror::Error)]
pub enum DynamicError {
    /// It does not fit the arena.
    #[error(
        "`{variant}` needs an arena of {} bytes, and there are {}: the batch is left out; compile with it \
         among the sizes, or leave sizes as large out", .misfit.least, .misfit.arena
    )]
    Misfit {
        /// The variant.
        variant: String,
        /// What it needs.
        misfit: Misfit,
    },
    /// It cannot be compiled.
    #[error("`{variant}` cannot be compiled: {error}")]
    Compile {
        /// The variant.
        variant: String,
        /// Why.
        error: Box<CompileError>,
    },
    /// There was no thread to compile on.
    #[error("a thread could not be started, or ended by a defect of arenic")]
    Thread,
}

/// Graphs are deep, and so are the passes' recursions over them.
const STACK: usize = 64 << 20;

impl Dynamic {
    /// Steps of `model` as this compiler compiles it; the artifact has the model's sizes, or, of variants, the
    /// first one has. What is compiled is not kept in files.
    pub fn new(compiler: Compiler, model: Model) -> Dynamic {
        let dims = model.dims.iter().map(|(name, size)| (name.clone(), *size)).collect();
        let models = Source::new("", model, dims).into_iter().collect();
        Dynamic { compiler, models, cache: None, refused: BTreeMap::new() }
    }

    /// Steps as a recipe says, kept beside the artifact where that is a file; `None` where a model cannot be
    /// read.
    pub(crate) fn of(compiler: Compiler, recipe: &Recipe, artifact: &Artifact) -> Option<Dynamic> {
        let mut models = Vec::new();
        for recorded in &recipe.models {
            let (model, dims) = (recorded.model()?, recorded.dims.clone());
            models.push(Source::new(&recorded.structure, model, dims)?);
        }
        let cache = artifact.origin.as_ref().map(Cache::beside);
        Some(Dynamic { compiler, models, cache, refused: BTreeMap::new() })
    }

    /// The structures that there are models of.
    pub(crate) fn structures(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|source| source.structure.as_str())
    }

    /// The sizes at which a structure has inputs of these shapes, by name; `None` if there are none. `first`
    /// are the inputs of its first variant.
    pub(crate) fn sizes(
        &self,
        structure: &str,
        first: &[(&str, &TensorType)],
        shapes: &[(&str, &[usize])],
    ) -> Option<Sizes> {
        let source = self.source(structure)?;
        sizes::solved(&source.dims, &source.inputs, first, shapes)
    }

    /// As [`Dynamic::sizes`], by numbers of elements.
    pub(crate) fn sizes_by_elements(
        &self,
        structure: &str,
        first: &[(&str, &TensorType)],
        elements: &[(&str, usize)],
    ) -> Option<Sizes> {
        let source = self.source(structure)?;
        sizes::solved_by_elements(&source.dims, &source.inputs, first, elements)
    }

    /// The sizes of a structure with some replaced; `None` where it has no dimension of a name.
    pub(crate) fn resized(&self, structure: &str, sizes: &[(&str, u64)]) -> Option<Sizes> {
        let mut all = self.source(structure)?.dims.clone();
        for (name, size) in sizes {
            all.iter_mut().find(|dim| dim.0 == *name)?.1 = *size;
        }
        Some(all)
    }

    /// True for the sizes of a structure's first variant.
    pub(crate) fn is_first(&self, structure: &str, sizes: &Sizes) -> bool {
        self.source(structure).is_some_and(|source| source.dims == *sizes)
    }

    /// The name of the variant of these sizes.
    pub(crate) fn name(structure: &str, sizes: &Sizes) -> String {
        sizes::name(structure, sizes)
    }

    /// A step at these sizes, over the arena of `others`, which are all steps of a target. `check` has
    /// accepted it beside them.
    ///
    /// # Errors
    /// See [`DynamicError`]. A step that does not fit is refused again at once.
    #[doc(hidden)]
    pub fn step(
        &mut self,
        structure: &str,
        sizes: &[(String, u64)],
        others: &[&Target],
    ) -> Result<Target, DynamicError> {
        let name = sizes::name(structure, sizes);
        if let Some(&misfit) = self.refused.get(&name) {
            return Err(DynamicError::Misfit { variant: name, misfit });
        }
        let (Some(source), Some(first)) = (self.source(structure), others.first()) else {
            let error = Box::new(CompileError::NoProgram);
            return Err(DynamicError::Compile { variant: name, error });
        };
        let backend = ALL.into_iter().find(|backend| backend.name == first.name);
        let backend = backend.unwrap_or(first.program.target.backend);
        if let Some(kept) = self.cache.as_ref().and_then(|cache| cache.read(&first.name, &name))
            && let Some(target) = kept.targets.into_iter().next()
            && (&target.name, &target.variant, &target.structure[..])
                == (&first.name, &name, structure)
            && fits(&target, others)
        {
            return Ok(target);
        }
        let sized = |model: Model, (name, size): &(String, u64)| model.dim(name, *size);
        let model = sizes.iter().fold(source.model.clone(), sized);
        let variant = Variant { name: name.clone(), structure: structure.to_owned(), model };
        let compiler = &self.compiler;
        let compile = || compiler.join(&variant, others, backend, &Watch::default());
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("arenic compile".into());
            let thread = thread.stack_size(STACK).spawn_scoped(scope, compile).ok()?;
            thread.join().ok()
        });
        match compiled.ok_or(DynamicError::Thread)? {
            Ok(artifact) => {
                if let Some(cache) = &self.cache {
                    cache.write(&first.name, &name, &artifact);
                }
                let none = || DynamicError::Compile {
                    variant: name.clone(),
                    error: Box::new(CompileError::NoProgram),
                };
                artifact.targets.into_iter().next().ok_or_else(none)
            }
            Err(CompileError::Joined(misfit)) => {
                self.refused.insert(name.clone(), misfit);
                Err(DynamicError::Misfit { variant: name, misfit })
            }
            Err(error) => Err(DynamicError::Compile { variant: name, error: Box::new(error) }),
        }
    }

    fn source(&self, structure: &str) -> Option<&Source> {
        self.models.iter().find(|source| source.structure == structure)
    }
}

impl Source {
    fn new(structure: &str, model: Model, dims: Sizes) -> Option<Source> {
        let inputs = onnx::symbols(model.onnx()?.0);
        Some(Source { structure: structure.to_owned(), model, dims, inputs })
    }
}

/// True where a step may take turns with others over the arenas that they have.
fn fits(target: &Target, others: &[&Target]) -> bool {
    let arenas = others.iter().map(|other| other.arena_bytes());
    let arenas = arenas.fold(PerSpace::default(), PerSpace::largest);
    let steps: Vec<_> = others.iter().map(|o| o.parts()).chain([target.parts()]).collect();
    arenas.largest(target.arena_bytes()) == arenas
        && arenic_ir::check::check_variants(&steps).is_ok()
}
