//! Steps that are added to an artifact at other sizes, and what the artifact keeps for that.

use super::{Compiler, Job, Variant, Watch};
use crate::artifact::{Artifact, Target};
use crate::compile::{CompileError, Constraints, Source, compile_joined};
use crate::model::Model;
use crate::recipe::{Recipe, Recorded, RecordedModel};
use arenic_ir::Backend;

impl Compiler {
    /// Compiles a step for one backend that runs over the arena of others, in turn with them. States have the
    /// homes that they have there, and no first values. Gives an artifact of that step alone, without a
    /// forward pass that evaluates.
    ///
    /// # Errors
    /// As for [`Compiler::compile`]; [`CompileError::Joined`] where the step does not fit the arena.
    pub(crate) fn join(
        &self,
        variant: &Variant,
        others: &[&Target],
        backend: Backend,
        watch: &Watch,
    ) -> Result<Artifact, CompileError> {
        let Variant { name, structure, model } = variant;
        let job = self.job(model, watch)?;
        let imported = model.import(&job.without_dims())?;
        let source = Source { model, plan_only: false, imported };
        let constraints = Constraints { backend, ..job.constraints(None) };
        let compiled = compile_joined(source, &job.pipeline, constraints, job.search(), others)?;
        let mut artifact = compiled.artifact.ok_or(CompileError::NoProgram)?;
        for target in &mut artifact.targets {
            (target.variant, target.structure) = (name.clone(), structure.clone());
            target.graph.states.values_mut().for_each(|state| state.init = None);
        }
        Ok(artifact)
    }
}

impl Job<'_> {
    /// What the artifact of these models keeps, by structure, where it keeps something: sizes are those of the
    /// first variant of each. Steps of several ranks are compiled by all of them, and without dimensions there
    /// is no other size.
    pub(super) fn recipe(&self, models: &[(&str, &Model)]) -> Result<Option<Recipe>, CompileError> {
        let Some(Recorded { options, dims: order }) = &self.compiler.recorded else {
            return Ok(None);
        };
        if self.import.plan_only || self.compiler.ranks > 1 {
            return Ok(None);
        }
        let mut recipe = Recipe { options: options.clone(), models: Vec::new() };
        for &(structure, model) in models {
            if recipe.models.iter().any(|known| known.structure == structure) {
                continue;
            }
            let of_job = self.dims.borrow();
            // The largest size that fits is the job's; of variants each model has its own.
            let is_largest = |name: &String| self.compiler.largest.as_ref() == Some(name);
            let sized = |name: &String| {
                let own = model.dims.get(name).filter(|_| !is_largest(name));
                Some((name.clone(), *own.or_else(|| of_job.get(name))?))
            };
            let dims = order.iter().filter_map(sized).collect();
            match RecordedModel::of(structure, model, dims)? {
                Some(model) if !model.dims.is_empty() => recipe.models.push(model),
                _ => return Ok(None),
            }
        }
        Ok(Some(recipe))
    }
}
