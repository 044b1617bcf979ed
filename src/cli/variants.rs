//! Variants of a step, as options name them: sizes of dimensions, and models.

use super::compile::{Arguments, figures};
use super::dims::Dimensions;
use super::loss::{LossOptions, parameters_json};
use super::memory::Limit;
use super::search::CUT;
use super::{Failure, Outcome, failed, human_bytes, name_value, print};
use arenic::artifact::{Artifact, Target};
use arenic::compile::{CompileError, Compiled, Constraints, Variant, compile, compile_variants};
use arenic::onnx::{ImportOptions, Mode};
use arenic_ir::Backend;
use arenic_ir::program::{PerSpace, Space};
use arenic_passes::differentiate::{Glob, Role};
use arenic_passes::pipeline::{Pipeline, Report, RunOptions};
use arenic_passes::{Purpose, Search};
use miette::miette;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Sizes that make a combination one of the variants; `None` for any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Only(Vec<(String, Option<u64>)>);

/// Reads `batch=8,seq=*`.
pub(super) fn parse_only(text: &str) -> Result<Only, String> {
    let part = |part: &str| {
        let (name, size) = name_value(part)?;
        match (size.as_str(), size.parse()) {
            ("*", _) => Ok((name, None)),
            (_, Ok(n)) => Ok((name, Some(n))),
            _ => Err(format!("`{size}` is no size of {name}, nor *")),
        }
    };
    text.split(',').map(part).collect::<Result<_, String>>().map(Only)
}

impl Only {
    fn fits(&self, sizes: &[(&str, u64)]) -> bool {
        let holds = |(name, size): &(String, Option<u64>)| {
            size.is_none_or(|size| sizes.contains(&(name.as_str(), size)))
        };
        self.0.iter().all(holds)
    }
}

/// The variants that options name; one where they name no more.
///
/// # Errors
/// An `--only` that names no dimension, or fits nothing; a name of a model that comes twice.
pub(super) fn named(
    models: &[(String, String)],
    source: Option<&Path>,
    dims: &Dimensions,
    only: &[Only],
    import: &ImportOptions,
) -> Result<Vec<Variant>, Failure> {
    let mut shapes: Vec<Vec<(&str, u64)>> = vec![Vec::new()];
    for (name, sizes) in &dims.sizes {
        let mut longer = Vec::new();
        for shape in &shapes {
            let with = |&size: &u64| [&shape[..], &[(name.as_str(), size)]].concat();
            longer.extend(sizes.iter().map(with));
        }
        shapes = longer;
    }
    for Only(parts) in only {
        if let Some((name, _)) = parts.iter().find(|(n, _)| dims.sizes.iter().all(|d| d.0 != *n)) {
            let help = "--only chooses among the sizes that --dim gives";
            return Err(miette!(help = help, "--only names {name}, which --dim does not").into());
        }
        if !shapes.iter().any(|shape| Only(parts.clone()).fits(shape)) {
            let parts = parts
                .iter()
                .map(|(n, s)| format!("{n}={}", s.map_or("*".to_owned(), |s| s.to_string())));
            let parts = parts.collect::<Vec<_>>().join(",");
            let help = "--only chooses among the sizes that --dim gives";
            return Err(miette!(help = help, "--only {parts} fits none of them").into());
        }
    }
    shapes.retain(|shape| only.is_empty() || only.iter().any(|only| only.fits(shape)));
    let is_one_shape = shapes.len() == 1;
    let of_shape = |shape: &[(&str, u64)]| {
        let part = |(name, size): &(&str, u64)| match *name {
            "" => size.to_string(),
            name => format!("{name}={size}"),
        };
        shape.iter().map(part).collect::<Vec<_>>().join(",")
    };
    let mut sources: Vec<(String, PathBuf)> = Vec::new();
    for (name, model) in models {
        if name.is_empty() || sources.iter().any(|(known, _)| known == name) {
            return Err(miette!("--variant {name}={model}: each needs a name of its own").into());
        }
        sources.push((name.clone(), model.into()));
    }
    if let Some(source) = source {
        sources.insert(0, (String::new(), source.to_owned()));
    }
    let mut variants = Vec::new();
    for (structure, model) in sources {
        for shape in &shapes {
            let name = match (structure.as_str(), is_one_shape) {
                ("", true) => "".into(),
                ("", false) => of_shape(shape),
                (structure, true) => structure.to_owned(),
                (structure, false) => format!("{structure},{}", of_shape(shape)),
            };
            let mut import = import.clone();
            import.dims.extend(shape.iter().map(|&(name, size)| (name.to_owned(), size)));
            let (structure, model) = (structure.clone(), model.clone());
            variants.push(Variant { name, structure, model, import });
        }
    }
    if let [only] = &mut variants[..] {
        only.name.clear();
    }
    Ok(variants)
}

/// What all variants are compiled with.
pub(super) struct Job<'a> {
    pub(super) a: &'a Arguments,
    pub(super) pipeline: &'a Pipeline,
    pub(super) constraints: Constraints<'a>,
    pub(super) search: Search<'a>,
    pub(super) start: Instant,
}

impl Job<'_> {
    /// Compiles variants for all targets to one artifact, and says what came of it.
    ///
    /// # Errors
    /// Options that are about one step; what compiling fails with.
    pub(super) fn run(self, variants: &[Variant]) -> Outcome {
        let Job { a, .. } = self;
        let about_one = [
            ("--sweep", a.sweep.is_some()),
            ("--overhead", a.overhead.is_some()),
            ("--stop-after", a.stop_after.is_some()),
            ("--compare", a.compare),
        ];
        if let Some((option, _)) = about_one.iter().find(|(_, is_given)| *is_given) {
            let help = "leave it out, or compile one step: one size of each dimension";
            let n = variants.len();
            return Err(miette!(help = help, "{option} is about one step, not {n} variants").into());
        }
        let mut limits = self.constraints.limits;
        if let Some(Limit::Part(part)) = a.device_memory {
            let whole = self.all(variants, PerSpace { device: None, ..limits }).map_err(failed)?;
            let arena = arena_bytes(&whole)[Space::Device];
            let limit = (arena as f64 * part) as u64;
            tell!("the limit is {limit} bytes, {:.1} % of the arena of all variants", part * 100.0);
            limits.device = Some(limit);
        }
        let compiled = self.all(variants, limits).map_err(|e| super::compile::refused(a, e))?;
        let (artifact, compiled) = self.artifact(variants, compiled, limits).map_err(failed)?;
        let Some(output) = &a.artifact else { return Ok(()) };
        artifact.write(output).map_err(failed)?;
        self.told(&artifact, &compiled, output)
    }

    fn all(
        &self,
        variants: &[Variant],
        limits: PerSpace<Option<u64>>,
    ) -> Result<Vec<Compiled>, CompileError> {
        let constraints = Constraints { limits, ..self.constraints };
        let mut after_pass = |report: &Report| self.a.after_pass(report);
        compile_variants(variants, self.pipeline, constraints, self.search, &mut after_pass)
    }

    /// One artifact of all variants, for all targets, with forward passes to evaluate with.
    fn artifact(
        &self,
        variants: &[Variant],
        mut compiled: Vec<Compiled>,
        limits: PerSpace<Option<u64>>,
    ) -> Result<(Artifact, Vec<Compiled>), CompileError> {
        let a = self.a;
        let mut artifacts = compiled.iter_mut().filter_map(|compiled| compiled.artifact.take());
        let mut artifact = artifacts.next().ok_or(CompileError::NoProgram)?;
        let join = |artifact: &mut Artifact, other: Artifact| {
            artifact.provenance.is_cut |= other.provenance.is_cut;
            artifact.defaults.extend(other.defaults);
            artifact.targets.extend(other.targets);
        };
        artifacts.for_each(|other| join(&mut artifact, other));
        artifact.defaults.extend(a.loss.defaults());
        for &backend in a.targets.iter().skip(1) {
            if artifact.target(backend.name()).is_none() {
                let constraints = Constraints { backend, limits, ..self.constraints };
                let others = compile_variants(
                    variants,
                    self.pipeline,
                    constraints,
                    self.search,
                    &mut |_| {},
                )?;
                others.into_iter().filter_map(|c| c.artifact).for_each(|o| join(&mut artifact, o));
            }
        }
        if self.pipeline.differentiation().is_some() && !a.no_eval {
            for (variant, of_step) in variants.iter().zip(&compiled) {
                let weights = of_step.weights.parameters.iter();
                let trained = weights.filter(|p| p.role == Role::Trained);
                let trainable = trained.map(|p| Glob::exactly(&p.name)).collect();
                let import = variant.import.clone();
                let import = ImportOptions { mode: Mode::Inference, trainable, ..import };
                for backend in a.targets.iter().copied().collect::<BTreeSet<_>>() {
                    let purpose = Purpose::Evaluation;
                    let constraints = Constraints { backend, purpose, limits, ..self.constraints };
                    let forward = compile(
                        &variant.model,
                        &import,
                        self.pipeline,
                        constraints,
                        self.search,
                        RunOptions::default(),
                    )?;
                    let Some(mut forward) = forward.artifact else { continue };
                    artifact.provenance.is_cut |= forward.provenance.is_cut;
                    for target in &mut forward.targets {
                        target.variant.clone_from(&variant.name);
                        target.structure.clone_from(&variant.structure);
                    }
                    artifact.evaluations.extend(forward.targets);
                }
            }
        }
        Ok((artifact, compiled))
    }

    /// Says what the variants take.
    fn told(&self, artifact: &Artifact, compiled: &[Compiled], output: &Path) -> Outcome {
        let a = self.a;
        let Some(name) = artifact.target_names().first().map(|name| (*name).to_owned()) else {
            return Ok(());
        };
        let (variants, arena) = (artifact.variants(&name), artifact.arena_bytes(&name));
        let seconds = self.start.elapsed().as_secs_f64();
        let figure = |t: &Target, name: &str| t.statistics.get(name).copied().unwrap_or(0);
        let largest = variants.iter().max_by_key(|t| t.arena_bytes().device);
        let Some(&largest) = largest else { return Ok(()) };
        let weights = compiled.iter().map(|c| &c.weights).find(|w| !w.parameters.is_empty());
        if let Some(weights) = weights {
            LossOptions::print(weights, a.search.verbose);
        }
        for name in compiled.iter().flat_map(|c| &c.unused).collect::<BTreeSet<_>>() {
            tell!("note: initializer `{name}` is not used");
        }
        let is_text = |t: &&Target| t.kernels.is_none() && t.name == Backend::CUDA.name();
        if artifact.runnable && artifact.targets.iter().any(|t| is_text(&t)) && !a.no_gpu_code {
            tell!("note: there is no NVRTC here; kernels are compiled when a run begins");
        }
        if a.json.json {
            let of_variant = |t: &&Target| {
                json!({
                    "name": t.variant,
                    "arena_bytes": t.arena_bytes().device,
                    "live_peak_bytes": figure(t, "live_peak_bytes"),
                    "lower_bound_bytes": figure(t, "lower_bound_bytes"),
                })
            };
            let minimum = compiled.iter().filter_map(|c| c.minimum).max_by_key(|m| m.bytes);
            let mut object = figures(largest, minimum);
            object.insert("arena_bytes".into(), arena.device.into());
            object.insert("host_arena_bytes".into(), arena.host.into());
            object.insert("variant".into(), largest.variant.as_str().into());
            let all: Vec<Value> = variants.iter().map(of_variant).collect();
            object.insert("variants".into(), all.into());
            object.insert("search_cut".into(), artifact.provenance.is_cut.into());
            if let Some(weights) = weights {
                object.insert("parameters".into(), parameters_json(weights));
            }
            object.insert("seconds".into(), seconds.into());
            return print(Value::Object(object));
        }
        let width = variants.iter().map(|t| t.variant.chars().count()).max().unwrap_or(0);
        for target in &variants {
            let (arena, peak) = (target.arena_bytes().device, figure(target, "live_peak_bytes"));
            tell!(
                "{:<width$}  arena {:>10}, live peak {:>10}, lower bound {:>10}",
                target.variant,
                human_bytes(arena),
                human_bytes(peak),
                human_bytes(figure(target, "lower_bound_bytes")),
            );
        }
        let n = variants.len();
        tell!(
            "{n} variants over one arena of {}, checked in any sequence, in {seconds:.2} s: {}",
            human_bytes(arena.device),
            output.display()
        );
        if artifact.provenance.is_cut {
            tell!("note: {CUT}");
        }
        Ok(())
    }
}

/// Bytes of the arenas of all variants.
fn arena_bytes(compiled: &[Compiled]) -> PerSpace<u64> {
    let targets = compiled.iter().filter_map(|compiled| compiled.target().ok());
    targets.map(Target::arena_bytes).fold(PerSpace::default(), PerSpace::largest)
}
