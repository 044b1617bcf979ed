//! Steps that take turns: their programs, planned one by one, are placed over common homes.

use super::{PartOutcome, Pipeline, PipelineOutcome, RunError, Step};
use crate::homes::{Homes, Pinned};
use crate::place::{PAGE, Place, Wish};
use crate::{Cx, GraphPass, Pass, PassError};
use arenic_ir::check::{Footprint, Part, check, check_variant_turns};
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_ir::program::{PerSpace, Program};
use std::sync::Arc;

/// One of the programs of a step, with what is made anew.
struct Placed<'a> {
    graph: &'a Graph,
    plan: &'a mut Plan,
    program: &'a mut Program,
    footprint: &'a mut Footprint,
}

impl PartOutcome {
    fn placed(&mut self) -> Placed<'_> {
        let PartOutcome { graph, plan, program, footprint } = self;
        Placed { graph, plan, program, footprint }
    }
}

impl PipelineOutcome {
    /// The programs of the step, in the order of their turns; none where the pipeline stopped early.
    fn placed(&mut self) -> Vec<Placed<'_>> {
        let PipelineOutcome { module, footprint, rounds, .. } = self;
        let (Some(plan), Some(program), Some(footprint)) =
            (&mut module.plan, &mut module.program, footprint)
        else {
            return Vec::new();
        };
        let main = Placed { graph: &module.graph, plan, program, footprint };
        match rounds {
            None => vec![main],
            Some(rounds) => vec![rounds.before.placed(), main, rounds.after.placed()],
        }
    }

    /// Bytes of the arenas, which are as large as the step's largest program needs.
    pub fn arena_bytes(&self) -> PerSpace<u64> {
        let sizes = self.parts().into_iter().map(|(_, program)| program.sizes);
        sizes.fold(PerSpace::default(), PerSpace::largest)
    }

    /// The programs of the step with their graphs, in the order of their turns; none where the pipeline
    /// stopped early.
    pub fn parts(&self) -> Vec<Part<'_>> {
        let Some(program) = &self.module.program else { return Vec::new() };
        let main = (&self.module.graph, program);
        match &self.rounds {
            None => vec![main],
            Some(rounds) => vec![
                (&rounds.before.graph, &rounds.before.program),
                main,
                (&rounds.after.graph, &rounds.after.program),
            ],
        }
    }
}

impl Pipeline {
    /// Places the programs of steps that take turns so that states and constants have common homes,
    /// and has `check` judge all of them.
    ///
    /// # Errors
    /// The arenas would be too large; what `check` says is a defect.
    pub fn share_homes(&self, steps: &mut [PipelineOutcome], cx: &Cx) -> Result<(), RunError> {
        let mut placed: Vec<Placed> = steps.iter_mut().flat_map(PipelineOutcome::placed).collect();
        let plans: Vec<(&Graph, &Plan)> = placed.iter().map(|p| (p.graph, &*p.plan)).collect();
        let homes = Homes::of(&plans).map_err(placing)?;
        self.place_over(&homes, &mut placed, cx)?;
        drop(placed);
        let parts: Vec<Vec<Part>> = steps.iter().map(PipelineOutcome::parts).collect();
        check_variant_turns(&parts).map_err(RunError::Check)
    }

    /// Places the programs of a step that is added to others so that states and constants lie where these
    /// have them, and has `check` judge all of them.
    ///
    /// # Errors
    /// The others have no home for a state or a constant; the arenas would be too large; what `check` says
    /// is a defect.
    pub fn join_homes(
        &self,
        others: &[Vec<Part>],
        step: &mut PipelineOutcome,
        cx: &Cx,
    ) -> Result<(), RunError> {
        let pinned = Pinned::of(&others.concat());
        let mut placed = step.placed();
        let homes = placed.iter().map(|p| pinned.homes(p.graph, p.plan));
        let homes = homes.collect::<Result<Vec<_>, _>>().map_err(placing)?;
        self.place_over(&homes, &mut placed, cx)?;
        drop(placed);
        check_variant_turns(&[others, &[step.parts()]].concat()).map_err(RunError::Check)
    }

    /// Makes the programs anew over their homes.
    fn place_over(&self, homes: &[Homes], placed: &mut [Placed], cx: &Cx) -> Result<(), RunError> {
        let (usual, tail) = (Place::default(), self.tail(cx));
        let placer = self.placer().unwrap_or(&usual);
        let wish = Wish { near: PAGE, search: cx.search, ..Wish::default() };
        for (homes, part) in homes.iter().zip(placed) {
            homes.place(part.plan, placer, &wish, &cx.limits).map_err(placing)?;
            *part.program = tail.program(part.graph, part.plan, cx).map_err(placing)?;
            *part.footprint = check(part.graph, part.program).map_err(RunError::Check)?;
        }
        Ok(())
    }

    /// The pipeline with a pass that rewrites the graph after all others that do.
    pub fn with_last_rewrite(mut self, name: &str, pass: Arc<dyn GraphPass>) -> Pipeline {
        let rewrites = |step: &Step| matches!(step.pass, Pass::Graph(_));
        let at = self.steps.iter().position(|step| !rewrites(step)).unwrap_or(self.steps.len());
        self.steps.insert(at, Step::new(name, Pass::Graph(pass)));
        self
    }
}

/// What fails in placing.
fn placing(error: PassError) -> RunError {
    RunError::Pass { pass: "place".to_owned(), error }
}
