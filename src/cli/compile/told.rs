//! What `arenic compile` says of what it made.

use super::arguments::Arguments;
use crate::artifact::{Artifact, Figures, Target};
use crate::cli::device::unmeasured;
use crate::cli::loss::{LossOptions, parameters_json};
use crate::cli::search::CUT;
use crate::cli::{Outcome, human_bytes, print};
use crate::compile::Compiled;
use crate::explain;
use arenic_backends::CUDA;
use arenic_ir::cost::Device;
use arenic_passes::Minimum;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Instant;

impl Arguments {
    /// What there is to say of all variants, each thing once.
    pub(super) fn remarks_of_all(
        &self,
        artifact: &Artifact,
        compiled: &[Compiled],
        timed: &Device,
    ) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        for line in compiled.iter().flat_map(|compiled| self.remarks(compiled, timed)) {
            if !said.contains(&line) {
                said.push(line);
            }
        }
        said.extend(Self::lacks(artifact));
        said
    }

    /// What the artifact lacks, in a line.
    fn lacks(artifact: &Artifact) -> Option<String> {
        let gpu = artifact.target(CUDA.name).filter(|gpu| gpu.kernels.is_none());
        let what = "note: there is no NVRTC here; kernels are compiled when a run begins";
        gpu.filter(|_| artifact.runnable).map(|_| what.to_owned())
    }

    /// What there is to say of weights and of what the artifact lacks, in lines.
    pub(super) fn remarks(&self, compiled: &Compiled, timed: &Device) -> Vec<String> {
        let mut lines = Vec::new();
        if self.profile.is_some() {
            lines.extend(unmeasured(timed, &compiled.module.graph));
        }
        if !compiled.weights.parameters.is_empty() {
            lines.extend(LossOptions::describe(&compiled.weights, self.search.verbose));
        }
        let unused = |name: &String| format!("note: initializer `{name}` is not used");
        lines.extend(compiled.unused.iter().map(unused));
        lines.extend(compiled.artifact.as_ref().and_then(Self::lacks));
        lines
    }
}

/// What there is to say of a target for scripts.
pub(super) fn figures(target: &Target, minimum: Option<Minimum>) -> Map<String, Value> {
    let mut object = Map::from_iter([("target".to_owned(), target.name.as_str().into())]);
    object.insert("math".into(), target.program.target.math.name().into());
    object.insert("precision".into(), target.precision().into());
    let of_plan = target.figures.named().into_iter();
    object.extend(of_plan.map(|(name, figure)| (name.to_owned(), figure.into())));
    let known = minimum.map(Minimum::figures).unwrap_or_default();
    object.extend(known.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())));
    let (peak, bound) = (target.figures.live_peak_bytes, target.figures.lower_bound_bytes);
    object.insert("proved_optimal".into(), (peak == bound).into());
    object.insert("gap".into(), explain::relative_gap(peak, bound).into());
    object.insert("certificate".into(), explain::stored_to_json(target));
    object
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
pub(super) fn say_of_all(
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
pub(super) fn summary(figures: &Figures, output: &Path, seconds: f64) {
    let rows = [
        ("arena", figures.arena_bytes),
        ("live peak", figures.live_peak_bytes),
        ("lower bound", figures.lower_bound_bytes),
        ("definition order", figures.definition_order_bytes),
        ("states", figures.state_bytes),
        ("constants", figures.constant_bytes),
    ];
    for (label, bytes) in rows {
        tell!("{label:<17} {:>12}", human_bytes(bytes));
    }
    if let Some(bytes) = figures.bf16_bytes {
        tell!("{:<17} {:>12}", "in bf16", human_bytes(bytes));
    }
    let in_each = |n| format!(" in each of {n} micro-batches");
    let rounds = figures.micro_batches.map_or_else(String::new, in_each);
    let nodes = figures.nodes;
    tell!("{nodes} operators{rounds}, checked, in {seconds:.2} s: {}", output.display());
}
