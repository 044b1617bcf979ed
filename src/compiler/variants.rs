//! Several steps in one artifact: sizes of dimensions, or models, that share their states in one arena.

use super::{Compiler, Job, Watch};
use crate::artifact::Artifact;
use crate::compile::{
    CompileError, Compiled, Constraints, Source, compile_variants, plan, structures,
};
use crate::drops::Drops;
use crate::limit::Limit;
use crate::model::Model;
use crate::onnx::{ImportOptions, Mode};
use arenic_ir::program::Space;
use arenic_passes::Purpose;
use arenic_passes::differentiate::{Glob, WeightRole};
use arenic_passes::pipeline::{Report, RunOptions};
use std::collections::BTreeSet;

/// A step of an artifact of several, which share their states.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name in the artifact, for example `batch=8,seq=16`.
    pub name: String,
    /// The name of its model; empty where all variants are of one model.
    pub structure: String,
    /// The model, with sizes of its dimensions.
    pub model: Model,
}

impl Compiler {
    /// Compiles several steps to one artifact: they may follow one another in any sequence over one arena, which is
    /// as large as the largest of them needs. States of equal names are one state, at one address.
    ///
    /// ```
    /// use arenic::{Compiler, Model, Optimizer, Variant};
    ///
    /// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/mlp.onnx");
    /// let model = Model::open(path)?;
    /// let variants = [8, 3].map(|rows| Variant {
    ///     name: format!("batch={rows}"),
    ///     structure: String::new(),
    ///     model: model.clone().dim("batch", rows),
    /// });
    /// let artifact =
    ///     Compiler::new().loss("cross_entropy", Optimizer::Sgd).compile_variants(&variants)?;
    /// assert_eq!(artifact.variants("cpu").len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Compiler::compile`]; options that are about one step; a state that has several types.
    pub fn compile_variants(&self, variants: &[Variant]) -> Result<Artifact, CompileError> {
        Ok(self.compile_variants_watched(variants, &Watch::default())?.0)
    }

    /// As [`Compiler::compile_variants`], but says what became of weights and limits of each, and is watched.
    ///
    /// # Errors
    /// As for [`Compiler::compile_variants`].
    pub fn compile_variants_watched(
        &self,
        variants: &[Variant],
        watch: &Watch,
    ) -> Result<(Artifact, Vec<Compiled>), CompileError> {
        let about_one = [
            ("--dim NAME=max", self.largest.is_some()),
            ("--overhead", self.overhead.is_some()),
            ("--stop-after", self.stop_after.is_some()),
        ];
        if let Some((option, _)) = about_one.iter().find(|(_, is_given)| *is_given) {
            let message = format!("{option} is about one step, not {} variants", variants.len());
            let help = "leave it out, or compile one step: one size of each dimension";
            return Err(CompileError::options(message, help));
        }
        let Some(first) = variants.first() else {
            let help = "name at least one";
            return Err(CompileError::options("there are no variants to compile", help));
        };
        let job = self.job(&first.model, watch)?;
        let (variants, drops) = match self.drop_layers.is_empty() {
            true => (variants.to_vec(), None),
            false => job.dropping(variants)?,
        };
        let (variants, drops) = (&variants[..], drops.as_ref());
        let limit = match self.memory {
            Some(Limit::Part(part)) => {
                let whole = job.steps(variants, drops, job.constraints(None))?;
                let targets = whole.iter().filter_map(|compiled| compiled.target().ok());
                let arena = targets.map(|target| target.arena_bytes()[Space::Device]).max();
                let limit = (arena.unwrap_or(0) as f64 * part) as u64;
                let percent = part * 100.0;
                watch.note(&format!(
                    "the limit is {limit} bytes, {percent:.1} % of the arena of all variants"
                ));
                Some(limit)
            }
            _ => job.limit()?,
        };
        job.variants(variants, drops, job.constraints(limit))
    }
}

impl Job<'_> {
    /// Variants of all structures that leave out branches, each of all sizes.
    fn dropping(&self, sizes: &[Variant]) -> Result<(Vec<Variant>, Option<Drops>), CompileError> {
        let Compiler { drop_layers, most_structures, ranks, .. } = self.compiler;
        let refused = |what: &str| {
            let help = "leave one of them out";
            Err(CompileError::options(format!("--drop-layers does not go with {what}"), help))
        };
        if self.pipeline.differentiation().is_none() {
            let help = "add --loss and --optimizer";
            return Err(CompileError::options(
                "--drop-layers is for training a forward model",
                help,
            ));
        }
        if *ranks > 1 {
            return refused("--ranks");
        }
        let Some(first) = sizes.first().filter(|_| sizes.iter().all(|v| v.structure.is_empty()))
        else {
            return refused("--variant");
        };
        let imported = first.model.import(&self.without_dims())?;
        let source = Source { model: &first.model, plan_only: self.import.plan_only, imported };
        let constraints = self.constraints(None);
        let drops = structures(source, drop_layers, *most_structures, &self.pipeline, constraints)?;
        let mut variants = Vec::new();
        for structure in &drops.structures {
            for size in sizes {
                let parts = [structure.name.as_str(), &size.name].into_iter();
                let name = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
                let (structure, model) = (structure.name.clone(), size.model.clone());
                variants.push(Variant { name, structure, model });
            }
        }
        Ok((variants, Some(drops)))
    }

    /// The steps of one target.
    fn steps(
        &self,
        variants: &[Variant],
        drops: Option<&Drops>,
        constraints: Constraints,
    ) -> Result<Vec<Compiled>, CompileError> {
        let mut sources = Vec::with_capacity(variants.len());
        for Variant { name, structure, model } in variants {
            let imported = model.import(&self.without_dims())?;
            let source = Source { model, plan_only: self.import.plan_only, imported };
            sources.push((name.as_str(), structure.as_str(), source));
        }
        let mut after_pass = |report: &Report| {
            if let Some(after_pass) = self.watch.after_pass {
                after_pass(report);
            }
        };
        let drops = drops.map(|drops| (&self.compiler.drop_layers[..], drops));
        let (pipeline, search) = (&self.pipeline, self.search());
        compile_variants(sources, drops, pipeline, constraints, search, &mut after_pass)
    }

    /// Variants have their own dimensions.
    pub(super) fn without_dims(&self) -> ImportOptions {
        ImportOptions { dims: Default::default(), ..self.import.clone() }
    }

    /// One artifact of all variants, for all targets, with forward passes to evaluate with.
    fn variants(
        &self,
        variants: &[Variant],
        drops: Option<&Drops>,
        constraints: Constraints,
    ) -> Result<(Artifact, Vec<Compiled>), CompileError> {
        let mut compiled = self.steps(variants, drops, constraints)?;
        let mut artifacts = compiled.iter_mut().filter_map(|compiled| compiled.artifact.take());
        let mut artifact = artifacts.next().ok_or(CompileError::NoProgram)?;
        let join = |artifact: &mut Artifact, other: Artifact| {
            artifact.provenance.is_cut |= other.provenance.is_cut;
            artifact.defaults.extend(other.defaults);
            artifact.targets.extend(other.targets);
        };
        artifacts.for_each(|other| join(&mut artifact, other));
        artifact.defaults.extend(self.compiler.defaults.clone());
        let models = variants.iter().map(|variant| (&variant.structure[..], &variant.model));
        // A structure is no model of its own.
        artifact.recipe = match drops {
            None => self.recipe(&models.collect::<Vec<_>>())?,
            Some(_) => None,
        };
        artifact.drops = drops.cloned();
        for &backend in self.targets.iter().skip(1) {
            if artifact.target(backend.name).is_none() {
                let constraints = Constraints { backend, ..constraints };
                let others = self.steps(variants, drops, constraints)?;
                others.into_iter().filter_map(|c| c.artifact).for_each(|o| join(&mut artifact, o));
            }
        }
        if self.pipeline.differentiation().is_some() && self.compiler.evaluation {
            // Whatever a step leaves out, a model is evaluated as a whole.
            let first = variants.first().map_or("", |variant| &variant.structure[..]);
            let all = |variant: &Variant| drops.is_none() || variant.structure == first;
            for (variant, of_step) in variants.iter().zip(&compiled).filter(|(v, _)| all(v)) {
                self.evaluate(variant, of_step, constraints, &mut artifact)?;
            }
        }
        Ok((artifact, compiled))
    }

    /// Adds the forward passes that evaluate what a variant trains.
    fn evaluate(
        &self,
        variant: &Variant,
        step: &Compiled,
        constraints: Constraints,
        artifact: &mut Artifact,
    ) -> Result<(), CompileError> {
        let Variant { name, structure, model } = variant;
        let trained = step.weights.parameters.iter().filter(|p| p.role == WeightRole::Trained);
        let trainable = trained.map(|p| Glob::exactly(&p.name)).collect();
        let import = ImportOptions { mode: Mode::Inference, trainable, ..self.without_dims() };
        let purpose = Purpose::Evaluation;
        for backend in self.targets.iter().copied().collect::<BTreeSet<_>>() {
            let imported = model.import(&import)?;
            let source = Source { model, plan_only: self.import.plan_only, imported };
            let constraints = Constraints { backend, purpose, ..constraints };
            let options = RunOptions::default();
            let forward = plan(source, &self.pipeline, constraints, self.search(), options)?;
            let Some(forward) = forward.artifact else { continue };
            artifact.provenance.is_cut |= forward.provenance.is_cut;
            artifact.evaluations.extend(forward.targets.into_iter().map(|mut target| {
                target.variant.clone_from(name);
                target.structure.clone_from(structure);
                target
            }));
        }
        Ok(())
    }
}
