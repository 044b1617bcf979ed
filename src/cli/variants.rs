//! Variants of a step, as options name them: sizes of dimensions, and models.

use super::compile::{Arguments, figures};
use super::dims::Dimensions;
use super::loss::parameters_json;
use super::search::CUT;
use super::{Failure, Outcome, failed, human_bytes, name_value, print};
use crate::artifact::{Artifact, Target};
use crate::compile::Compiled;
use crate::compiler::Variant;
use crate::model::Model;
use miette::miette;
use serde_json::{Map, Value, json};
use std::path::Path;
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

/// The variants that options name; one without a name where they name no more.
///
/// # Errors
/// An `--only` that names no dimension, or fits nothing; a name of a model that comes twice.
pub(super) fn named(
    models: &[(String, String)],
    source: Option<Model>,
    dims: &Dimensions,
    only: &[Only],
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
    let mut sources: Vec<(String, Model)> =
        source.into_iter().map(|model| (String::new(), model)).collect();
    for (name, model) in models {
        if sources.iter().any(|(known, _)| known == name) {
            return Err(miette!("--variant {name}={model}: each needs a name of its own").into());
        }
        sources.push((name.clone(), Model::open(model).map_err(failed)?));
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
            let with = |model: Model, &(name, size): &(&str, u64)| model.dim(name, size);
            let model = shape.iter().fold(model.clone(), with);
            variants.push(Variant { name, structure: structure.clone(), model });
        }
    }
    if let [only] = &mut variants[..] {
        only.name.clear();
    }
    Ok(variants)
}

/// What there is to say of variants for scripts: of the largest, of each, and of the arena of all.
pub(super) fn figures_of_all(artifact: &Artifact, compiled: &[Compiled]) -> Map<String, Value> {
    let Some(first) = artifact.targets.first() else { return Map::new() };
    let (variants, arena) = (artifact.variants(&first.name), artifact.arenas(&first.name));
    let of_variant = |t: &&Target| {
        json!({
            "name": t.variant,
            "arena_bytes": t.arena_bytes().device,
            "live_peak_bytes": t.figures.live_peak_bytes,
            "lower_bound_bytes": t.figures.lower_bound_bytes,
        })
    };
    let largest = variants.iter().max_by_key(|t| t.arena_bytes().device).unwrap_or(&first);
    let minimum = compiled.iter().filter_map(|c| c.report.minimum).max_by_key(|m| m.bytes);
    let mut object = figures(largest, minimum);
    object.insert("arena_bytes".into(), arena.device.into());
    object.insert("host_arena_bytes".into(), arena.host.into());
    object.insert("variant".into(), largest.variant.as_str().into());
    object.insert("variants".into(), variants.iter().map(of_variant).collect::<Vec<_>>().into());
    object.insert("search_cut".into(), artifact.provenance.is_cut.into());
    object
}

/// Says what the variants take.
pub(super) fn told(
    a: &Arguments,
    artifact: &Artifact,
    compiled: &[Compiled],
    output: &Path,
    start: Instant,
) -> Outcome {
    let seconds = start.elapsed().as_secs_f64();
    if a.json.json {
        let mut object = figures_of_all(artifact, compiled);
        let weights = compiled.iter().map(|c| &c.weights).find(|w| !w.parameters.is_empty());
        if let Some(weights) = weights.filter(|_| a.loss.loss.is_some()) {
            object.insert("parameters".into(), parameters_json(weights));
        }
        object.insert("seconds".into(), seconds.into());
        return print(Value::Object(object));
    }
    let Some(name) = artifact.target_names().first().map(|name| (*name).to_owned()) else {
        return Ok(());
    };
    let (variants, arena) = (artifact.variants(&name), artifact.arenas(&name));
    let width = variants.iter().map(|t| t.variant.chars().count()).max().unwrap_or(0);
    for target in &variants {
        tell!(
            "{:<width$}  arena {:>10}, live peak {:>10}, lower bound {:>10}",
            target.variant,
            human_bytes(target.arena_bytes().device),
            human_bytes(target.figures.live_peak_bytes),
            human_bytes(target.figures.lower_bound_bytes),
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
