//! Several steps for one artifact: sizes of dimensions, or models, that share their states.
//!
//! Each is planned by itself, within what the homes of others leave of a byte limit, and then placed over
//! common homes: states and constants have the same addresses in all, and the rest of the arena is
//! used by each anew. A state that is in host memory in one step is there in all, which are planned again so; so is a
//! step that the homes of others push above the limit.

use super::{CompileError, Compiled, Constraints, Planning, Source};
use crate::drops::{DroppedStructure, Drops};
use arenic_ir::TensorType;
use arenic_ir::program::Space;
use arenic_passes::differentiate::Glob;
use arenic_passes::drop_layers::{KeepStates, Structure, branches, structured};
use arenic_passes::pipeline::{Pipeline, PipelineOutcome, Report, RunOptions};
use arenic_passes::{PassError, Search, StateHomes, Turns};
use std::collections::HashMap;
use std::sync::Arc;

/// How often a step is planned again where others' homes leave it less than a limit.
const TRIES: usize = 4;

/// Compiles several steps for one target, over common homes; each has the name of the variant, that of its
/// model, and what is imported. With `drops`, patterns and structures, each lacks the branches that its
/// structure leaves out. Each result has an artifact of that step alone, whose program belongs to
/// those of the others.
///
/// # Errors
/// See [`CompileError`]; a state has several types.
pub(crate) fn compile_variants(
    variants: Vec<(&str, &str, Source)>,
    drops: Option<(&[(Glob, f64)], &Drops)>,
    pipeline: &Pipeline,
    constraints: Constraints,
    search: Search,
    after_pass: &mut dyn FnMut(&Report),
) -> Result<Vec<Compiled>, CompileError> {
    let kept = drops.map(|(patterns, _)| kept(&variants, patterns, pipeline, constraints, search));
    let pipeline = &match kept.transpose()? {
        None => pipeline.clone(),
        Some(keeps) => pipeline.clone().after_differentiation("keep_states", Arc::new(keeps)),
    };
    let (mut names, mut plannings) = (Vec::new(), Vec::new());
    for (name, structure, source) in variants {
        names.push((name, structure));
        let mut planning = Planning::new(source, pipeline, constraints, search)?;
        if let Some((patterns, drops)) = drops {
            let branches = branches(&planning.graph, patterns).map_err(PassError::from)?;
            let of = drops.structures.iter().find(|known| known.name == structure);
            let of = of.map_or(Structure::Masked, DroppedStructure::structure);
            planning.graph = structured(&planning.graph, &branches, &of)?;
        }
        plannings.push(planning);
    }
    let mut outcomes = Vec::new();
    for planning in &plannings {
        let options = RunOptions { stop_after: None, after_pass: Some(&mut *after_pass) };
        outcomes.push(planning.run(0, Turns::OfVariants, None, options)?);
    }
    agree(&names, &outcomes)?;
    let Some(first) = plannings.first() else { return Ok(Vec::new()) };
    let again = |k: usize, reserved: u64, homes: &StateHomes| {
        plannings[k].run(reserved, Turns::OfVariants, Some(homes), RunOptions::default())
    };
    let homes =
        StateHomes::of(&outcomes.iter().flat_map(PipelineOutcome::parts).collect::<Vec<_>>());
    for (k, outcome) in outcomes.iter_mut().enumerate() {
        if !outcome.parts().iter().all(|part| homes.are_of(part)) {
            *outcome = again(k, 0, &homes)?;
        }
    }
    let arena = |outcome: &PipelineOutcome| outcome.arena_bytes()[Space::Device];
    for _ in 0..TRIES {
        let alone: Vec<u64> = outcomes.iter().map(arena).collect();
        pipeline.share_homes(&mut outcomes, &first.cx(Turns::OfVariants))?;
        let Some(limit) = first.limits.device else { break };
        let mut is_kept = true;
        for (k, (outcome, alone)) in outcomes.iter_mut().zip(alone).enumerate() {
            let together = arena(outcome);
            if together > limit {
                *outcome = again(k, together.saturating_sub(alone), &homes)?;
                is_kept = false;
            }
        }
        if is_kept {
            break;
        }
    }
    let mut compiled = Vec::with_capacity(names.len());
    for ((planning, outcome), (name, structure)) in plannings.into_iter().zip(outcomes).zip(names) {
        let mut of_step = planning.finished(outcome)?;
        for target in of_step.artifact.iter_mut().flat_map(|artifact| &mut artifact.targets) {
            (target.variant, target.structure) = (name.to_owned(), structure.to_owned());
        }
        compiled.push(of_step);
    }
    Ok(compiled)
}

/// The pass that keeps states of branches which a masked step leaves out.
fn kept(
    variants: &[(&str, &str, Source)],
    patterns: &[(Glob, f64)],
    pipeline: &Pipeline,
    constraints: Constraints,
    search: Search,
) -> Result<KeepStates, CompileError> {
    let Some((_, _, first)) = variants.first() else { return Err(CompileError::NoProgram) };
    let Source { model, plan_only, imported } = first;
    let source = Source { model, plan_only: *plan_only, imported: imported.clone() };
    let planning = Planning::new(source, pipeline, constraints, search)?;
    let branches = branches(&planning.graph, patterns).map_err(PassError::from)?;
    Ok(KeepStates::of(&planning.graph, &branches))
}

/// The structures that steps of a model have, at most so many.
///
/// # Errors
/// See [`CompileError`]; patterns that fit no branches.
pub(crate) fn structures(
    source: Source,
    patterns: &[(Glob, f64)],
    most: usize,
    pipeline: &Pipeline,
    constraints: Constraints,
) -> Result<Drops, CompileError> {
    let planning = Planning::new(source, pipeline, constraints, Search::default())?;
    let branches = branches(&planning.graph, patterns).map_err(PassError::from)?;
    Ok(Drops::new(&branches, most))
}

/// Refuses states of one name that differ in type.
fn agree(names: &[(&str, &str)], outcomes: &[PipelineOutcome]) -> Result<(), CompileError> {
    let mut known: HashMap<(&str, usize), (&TensorType, &str)> = HashMap::new();
    for (&(name, _), outcome) in names.iter().zip(outcomes) {
        let g = &outcome.module.graph;
        for state in g.states.values() {
            let (ty, row) = (g.ty(state.enter), state.rows.map_or(0, |rows| rows.first));
            let (first, of) = *known.entry((&state.name, row)).or_insert((ty, name));
            if first != ty {
                return Err(CompileError::Variants(format!(
                    "the state `{}` is {first} in the variant `{of}` and {ty} in `{name}`; states that \
                     variants share are of one type: leave one variant out, or rename the state",
                    state.name
                )));
            }
        }
    }
    Ok(())
}
