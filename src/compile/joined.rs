//! A step that is added to those of an artifact, over the arena that they have.
//!
//! States lie where they are, and so do constants that the artifact has; other constants become inputs
//! that are fed before each turn ([`FeedConstants`]). The arena of the artifact is the limit.

use super::{CompileError, Compiled, Constraints, Planning, Source};
use crate::artifact::Target;
use arenic_ir::check::Part;
use arenic_ir::graph::{Data, Graph};
use arenic_ir::program::{PerSpace, Program, Space};
use arenic_passes::feed_constants::FeedConstants;
use arenic_passes::pipeline::{Pipeline, PipelineOutcome, RunOptions};
use arenic_passes::{Minimum, Pinned, Search, StateHomes, Turns};
use std::sync::Arc;

/// How often a step is planned again where homes leave it less than the arena.
const TRIES: usize = 4;

/// Why a step does not fit the arena that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Bytes of the arena.
    pub arena: u64,
    /// The least arena that the step needs.
    pub least: u64,
}

/// Compiles a step for the target of `others`, over their homes and within their arenas.
///
/// # Errors
/// See [`CompileError`]; [`CompileError::Joined`] where it does not fit.
pub(crate) fn compile_joined(
    source: Source,
    pipeline: &Pipeline,
    constraints: Constraints,
    search: Search,
    others: &[&Target],
) -> Result<Compiled, CompileError> {
    let steps: Vec<Vec<Part>> = others.iter().map(|target| target.parts()).collect();
    let parts: Vec<(&Graph, &Program)> = steps.concat();
    if let Some(name) = in_rows(&parts) {
        return Err(CompileError::Variants(format!(
            "the state `{name}` lies in parts, as it may where a step is alone; compile two sizes of a \
             dimension, for example --dim batch=32,31, so that states stay whole"
        )));
    }
    let sizes = parts.iter().map(|(_, program)| program.sizes);
    let arenas = sizes.fold(PerSpace::default(), PerSpace::largest);
    let limits = PerSpace { device: Some(arenas.device), host: Some(arenas.host) };
    let (pinned, homes) = (Pinned::of(&parts), StateHomes::of(&parts));
    let feeds = Arc::new(FeedConstants::beside(&pinned));
    let pipeline = pipeline.clone().with_last_rewrite("feed_constants", feeds.clone());
    let constraints = Constraints { limits, ..constraints };
    let planning = Planning::new(source, &pipeline, constraints, search)?;
    let arena = |outcome: &PipelineOutcome| outcome.arena_bytes()[Space::Device];
    let (mut reserved, mut fitting, mut least) = (0, None, u64::MAX);
    for _ in 0..TRIES {
        let planned =
            planning.run(reserved, Turns::OfVariants, Some(&homes), RunOptions::default());
        let mut outcome = planned.map_err(|e| misfit(e, arenas.device))?;
        if outcome.parts().is_empty() {
            return Err(CompileError::NoProgram);
        }
        let alone = arena(&outcome);
        pipeline.join_homes(&steps, &mut outcome, &planning.cx(Turns::OfVariants))?;
        let together = arena(&outcome);
        if together <= arenas.device {
            fitting = Some(outcome);
            break;
        }
        least = least.min(together);
        reserved = together.saturating_sub(alone).max(reserved + 1);
    }
    let Some(outcome) = fitting else {
        return Err(CompileError::Joined(Misfit { arena: arenas.device, least }));
    };
    let mut compiled = planning.finished(outcome)?;
    for target in compiled.artifact.iter_mut().flat_map(|artifact| &mut artifact.targets) {
        let inputs: Vec<&str> = target.turns().iter().flat_map(|turn| names(turn.graph)).collect();
        let fed = feeds.fed().into_iter().filter(|(name, _)| inputs.contains(&name.as_str()));
        target.fed = fed.map(|(name, bytes)| (name, Data::Bytes(bytes))).collect();
    }
    Ok(compiled)
}

fn names(g: &Graph) -> impl Iterator<Item = &str> {
    g.inputs().map(|v| g.values[v].name.as_str())
}

/// A state that lies in several parts.
fn in_rows<'a>(parts: &[(&'a Graph, &Program)]) -> Option<&'a str> {
    let mut states = parts.iter().flat_map(|(g, _)| g.states.values());
    states.find(|state| state.rows.is_some()).map(|state| state.name.as_str())
}

/// A limit that cannot be kept is an arena that is too small.
fn misfit(e: CompileError, arena: u64) -> CompileError {
    match e.minimum() {
        Some(Minimum { bytes, .. }) => CompileError::Joined(Misfit { arena, least: bytes }),
        None => e,
    }
}
