//! Passes that offer several graphs: the rest of the pipeline is run on each, and the fastest stays.

use super::{Pipeline, PipelineOutcome, RunError, RunOptions};
use crate::{Cx, Minimum, OffersVariants, PassError, Stats};
use arenic_ir::text::Module;

impl Pipeline {
    /// Runs what follows pass `i` on the module and on the graphs that the pass offers; what
    /// came of the fastest.
    pub(super) fn fastest_variant(
        &self,
        i: usize,
        pass: &dyn OffersVariants,
        module: &Module,
        cx: &Cx,
        options: &mut RunOptions,
    ) -> Result<PipelineOutcome, RunError> {
        let mut best = self.run_from(i + 1, module.clone(), cx, options);
        let seconds = match &best {
            Ok(outcome) if outcome.is_as_fast_as_unlimited() => 0.0,
            Ok(outcome) => outcome.step_seconds(),
            Err(RunError::Pass { error, .. }) if error.is_of_limits() => f64::INFINITY,
            Err(_) => return best,
        };
        let uncut = match &best {
            Ok(outcome) => outcome.minimum(),
            Err(RunError::Pass { error, .. }) => error.minimum(),
            Err(_) => None,
        };
        let name = &self.steps[i].name;
        let failed = |error| RunError::Pass { pass: name.clone(), error };
        let Some(found) = pass.variants(&module.graph, cx, seconds).map_err(failed)? else {
            return best;
        };
        let all = Minimum { bytes: found.minimum, bound: found.bound, is_exact: found.is_exact };
        let least = uncut.map_or(all, |uncut| Minimum {
            bytes: all.bytes.min(uncut.bytes),
            bound: all.bound.min(uncut.bound),
            is_exact: all.is_exact && uncut.is_exact,
        });
        let mut figures = Stats::new();
        for (graph, stats) in found.graphs {
            let module = Module { graph, ..Module::default() };
            let outcome = match self.run_from(i + 1, module, cx, options) {
                Err(RunError::Pass { error, .. }) if error.is_of_limits() => continue,
                outcome => outcome?,
            };
            let slower = |best: &PipelineOutcome| best.step_seconds() > outcome.step_seconds();
            if best.as_ref().map_or(true, slower) {
                (best, figures) = (Ok(outcome), stats);
                let nanoseconds = (found.unlimited_seconds * 1e9) as u64;
                figures.insert("uncut_step_nanoseconds", nanoseconds);
            }
        }
        match &mut best {
            Ok(outcome) => {
                figures.append(&mut least.figures());
                outcome.stats.insert(0, (name.clone(), figures));
            }
            Err(RunError::Pass { error: PassError::DeviceMemory { limit, .. }, pass }) => {
                let sums = found.sums && !cx.allow_reassociation;
                let Minimum { bytes: minimum, bound, .. } = least;
                let error = PassError::DeviceMemory { limit: *limit, minimum, bound, sums };
                best = Err(RunError::Pass { pass: std::mem::take(pass), error });
            }
            Err(_) => {}
        }
        best
    }
}
