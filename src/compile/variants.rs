//! Several steps for one artifact: sizes of dimensions, or models, that share their states.
//!
//! Each is planned by itself, within what the homes of others leave of a byte limit, and then placed over
//! common homes: states and constants have the same addresses in all, and the rest of the arena is
//! used by each anew.

use super::{CompileError, Compiled, Constraints, Planning};
use crate::onnx::ImportOptions;
use arenic_ir::TensorType;
use arenic_ir::program::Space;
use arenic_passes::pipeline::{Outcome, Pipeline, Report, RunOptions};
use arenic_passes::{Search, StateHomes, Turns};
use std::collections::HashMap;
use std::path::PathBuf;

/// A step that shares its states with others.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name: `batch=8,seq=16`, or that of its model, or both.
    pub name: String,
    /// The name of its model; empty where all are of one model.
    pub structure: String,
    /// The model.
    pub model: PathBuf,
    /// How it is imported: sizes of its dimensions among others.
    pub import: ImportOptions,
}

/// How often a step is planned again where others' homes leave it less than a limit.
const TRIES: usize = 4;

/// Compiles several steps for one target, over common homes. Each result has an artifact of that step
/// alone, whose program belongs to those of the others.
///
/// # Errors
/// See [`CompileError`]; a state has several types.
pub fn compile_variants(
    variants: &[Variant],
    pipeline: &Pipeline,
    constraints: Constraints,
    search: Search,
    after_pass: &mut dyn FnMut(&Report),
) -> Result<Vec<Compiled>, CompileError> {
    let mut plannings = Vec::new();
    for variant in variants {
        let Variant { model, import, .. } = variant;
        plannings.push(Planning::new(model, import, pipeline, constraints, search)?);
    }
    let mut outcomes = Vec::new();
    for planning in &plannings {
        let options = RunOptions { stop_after: None, after_pass: Some(&mut *after_pass) };
        outcomes.push(planning.run(0, Turns::OfVariants, None, options)?);
    }
    agree(variants, &outcomes)?;
    let Some(first) = plannings.first() else { return Ok(Vec::new()) };
    let again = |k: usize, reserved: u64, homes: &StateHomes| {
        plannings[k].run(reserved, Turns::OfVariants, Some(homes), RunOptions::default())
    };
    // A step in rounds moves nothing to host memory, and a state is in the same memory in all steps.
    let any_in_rounds = outcomes.iter().any(|outcome| outcome.rounds.is_some());
    let homes = match any_in_rounds {
        false => StateHomes::of(&outcomes.iter().flat_map(Outcome::parts).collect::<Vec<_>>()),
        true => {
            StateHomes::on_device(&outcomes.iter().flat_map(Outcome::parts).collect::<Vec<_>>())
        }
    };
    for k in 0..outcomes.len() {
        if !outcomes[k].parts().iter().all(|part| homes.are_of(part)) {
            outcomes[k] = again(k, 0, &homes)?;
        }
    }
    let arena = |outcome: &Outcome| outcome.arena_bytes()[Space::Device];
    for _ in 0..TRIES {
        let alone: Vec<u64> = outcomes.iter().map(arena).collect();
        pipeline.share_homes(&mut outcomes, &first.cx(Turns::OfVariants))?;
        let Some(limit) = first.limits.device else { break };
        let mut is_kept = true;
        for k in 0..outcomes.len() {
            let together = arena(&outcomes[k]);
            if together > limit {
                outcomes[k] = again(k, together.saturating_sub(alone[k]), &homes)?;
                is_kept = false;
            }
        }
        if is_kept {
            break;
        }
    }
    let named = |((planning, outcome), variant): ((Planning, Outcome), &Variant)| {
        let mut compiled = planning.finished(outcome)?;
        for target in compiled.artifact.iter_mut().flat_map(|artifact| &mut artifact.targets) {
            target.variant.clone_from(&variant.name);
            target.structure.clone_from(&variant.structure);
        }
        Ok(compiled)
    };
    plannings.into_iter().zip(outcomes).zip(variants).map(named).collect()
}

/// Refuses states of one name that differ in type.
fn agree(variants: &[Variant], outcomes: &[Outcome]) -> Result<(), CompileError> {
    let mut known: HashMap<(&str, usize), (&TensorType, &str)> = HashMap::new();
    for (variant, outcome) in variants.iter().zip(outcomes) {
        let g = &outcome.module.graph;
        for state in g.states.values() {
            let (ty, row) = (g.ty(state.enter), state.rows.map_or(0, |rows| rows.first));
            let (first, of) = *known.entry((&state.name, row)).or_insert((ty, &variant.name));
            if first != ty {
                let Variant { name, .. } = variant;
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
