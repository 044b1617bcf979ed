//! Steps in rounds: each part is planned by itself, within what the constants of others leave of a byte
//! limit, and then placed over homes that all parts have in common. So any part may follow any other.
//! The main part, which runs most often, decides which states have their homes in host memory.

use super::{PartOutcome, Pipeline, PipelineOutcome, RunError, RunOptions, Step};
use crate::order::definition_order_peak;
use crate::report::{Minimum, PlanReport, StepTimes};
use crate::rounds::{Divides, Division};
use crate::simulate::roofline;
use crate::{Cx, Pass, PassError, StateHomes, Stats, Turns, devices};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{BufferKind, Plan};
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_ir::verify::verify;
use std::ops::Range;
use std::time::Instant;

/// A division that may be worth planning.
struct Candidate {
    count: u32,
    /// Seconds of the step if nothing is computed again.
    seconds: f64,
    /// Bytes of a round in definition order.
    peak: u64,
}

impl Pipeline {
    /// Runs what follows pass `i` on the parts of a step in rounds: as many as the pass says or, where
    /// it leaves that open, as make the step fastest under the byte limit.
    pub(super) fn in_rounds(
        &self,
        i: usize,
        divides: &dyn Divides,
        module: &Module,
        cx: &Cx,
        options: &mut RunOptions,
    ) -> Result<PipelineOutcome, RunError> {
        let counts = divides.counts(&module.graph).map_err(|e| self.failed(i, e))?;
        match counts[..] {
            [1] => self.run_from(i + 1, module.clone(), cx, options),
            [count] => self.divided(i, divides, count, module, cx, options),
            _ => self.fastest_division(i, divides, &counts, module, cx, options),
        }
    }

    pub(super) fn failed(&self, i: usize, error: PassError) -> RunError {
        RunError::Pass { pass: self.steps[i].name.clone(), error }
    }

    /// Plans the step in `count` rounds.
    fn divided(
        &self,
        i: usize,
        divides: &dyn Divides,
        count: u32,
        module: &Module,
        cx: &Cx,
        options: &mut RunOptions,
    ) -> Result<PipelineOutcome, RunError> {
        let start = Instant::now();
        let division = divides.divide(&module.graph, count, cx).map_err(|e| self.failed(i, e))?;
        let Division { main, rounds } = division;
        let Step { name, .. } = &self.steps[i];
        let module = Module { graph: main, ..Module::default() };
        verify(&module.graph)
            .map_err(|defect| RunError::Graph { pass: Some(name.clone()), defect })?;
        let stats = Stats::from([("rounds", count.into())]);
        if let Some(after_pass) = &mut options.after_pass {
            let elapsed = start.elapsed();
            after_pass(&super::Report { pass: name, stats: &stats, elapsed, module: &module });
        }
        if options.stop_after == Some(name) {
            return Ok(PipelineOutcome {
                module,
                footprint: None,
                rounds: None,
                report: PlanReport::default(),
            });
        }
        let within = |reserved: u64| {
            let device = cx.limits.device.map(|limit| limit.saturating_sub(reserved));
            let limits = PerSpace { device, ..cx.limits };
            Cx { limits, turns: Turns::OfRounds, ..*cx }
        };
        let is_plan = |step: &Step| !matches!(step.pass, Pass::Graph(_));
        let plans = self.steps.iter().position(is_plan).unwrap_or(self.steps.len());
        let rewritten = rounds.map(|g| self.rewritten(i + 1..plans, g, &within(0)))?;
        let bytes = |g: &Graph| constant_bytes(g, cx).map_err(|e| self.failed(i, e));
        let (first, last) = (bytes(&rewritten.before)?, bytes(&rewritten.after)?);

        let planned = |g: &Graph, reserved, state_homes| {
            let module = Module { graph: g.clone(), ..Module::default() };
            let cx = Cx { state_homes, ..within(reserved) };
            let planned = self.run_from(plans, module, &cx, &mut RunOptions::default());
            planned.map_err(|e| e.with_reserved(reserved))
        };
        let main = self.run_from(i + 1, module.clone(), &within(first + last), options);
        let mut main = match main.map_err(|e| e.with_reserved(first + last)) {
            // What the limit must be at least is what each part can do with.
            Err(e) if e.minimum().is_some() => {
                let middle = bytes(&self.rewritten(i + 1..plans, &module.graph, &within(0))?)?;
                let before = planned(&rewritten.before, last + middle, cx.state_homes);
                let after = planned(&rewritten.after, first + middle, cx.state_homes);
                let refused = [before, after].into_iter().filter_map(Result::err);
                return Err(refused.fold(e, RunError::of_both));
            }
            main => main?,
        };
        let (Some(plan), Some(program), Some(_)) =
            (&main.module.plan, &main.module.program, &main.footprint)
        else {
            return Ok(main);
        };
        let middle = planned_bytes(plan, is_const);
        let homes = StateHomes::of(&[(&main.module.graph, program)]);
        let reserved = [last + middle, first + last, first + middle];
        let before = planned(&rewritten.before, reserved[0], Some(&homes));
        let after = planned(&rewritten.after, reserved[2], Some(&homes));
        let (before, after) = match (before, after) {
            (Err(before), Err(after)) => return Err(before.of_both(after)),
            (before, after) => (before?, after?),
        };
        main.report = together(count, [&before.report, &main.report, &after.report], reserved);
        let part = |o: PipelineOutcome| -> Result<PartOutcome, RunError> {
            match (o.module.plan, o.module.program, o.footprint) {
                (Some(plan), Some(program), Some(footprint)) => {
                    Ok(PartOutcome { graph: o.module.graph, plan, program, footprint })
                }
                _ => Err(self.failed(i, PassError::TooLarge)),
            }
        };
        let rounds = arenic_ir::Rounds {
            count,
            by_rows: rewritten.by_rows,
            before: part(before)?,
            after: part(after)?,
        };
        let mut outcome = PipelineOutcome { rounds: Some(rounds), ..main };
        self.share_homes(std::slice::from_mut(&mut outcome), cx)?;
        Ok(outcome)
    }

    /// What the graph passes make of a part.
    pub(super) fn rewritten(
        &self,
        passes: Range<usize>,
        g: &Graph,
        cx: &Cx,
    ) -> Result<Graph, RunError> {
        let mut g = g.clone();
        for step in &self.steps[passes] {
            let failed = |error| RunError::Pass { pass: step.name.clone(), error };
            if let (Pass::Graph(pass), true) = (&step.pass, step.applies(cx)) {
                pass.run(&mut g, cx).map_err(failed)?;
                verify(&g)
                    .map_err(|defect| RunError::Graph { pass: Some(step.name.clone()), defect })?;
            }
        }
        Ok(g)
    }

    /// The fastest of the step as it is and in rounds. More rounds need less memory and take longer by
    /// themselves, fewer take longer by what is computed again: the search goes from the fewest
    /// rounds that need no repeats to fewer ones, for as long as they are faster.
    fn fastest_division(
        &self,
        i: usize,
        divides: &dyn Divides,
        counts: &[u32],
        module: &Module,
        cx: &Cx,
        options: &mut RunOptions,
    ) -> Result<PipelineOutcome, RunError> {
        let candidates = counts
            .iter()
            .map(|&count| self.candidate(i, divides, count, module, cx))
            .collect::<Result<Vec<_>, _>>()?;
        let limit = cx.limits.device.unwrap_or(u64::MAX);
        let fits = candidates.iter().position(|c| c.peak <= limit);
        let first = fits.unwrap_or(candidates.len() - 1);
        let whole = candidates[0].seconds;
        let mut best: Option<(f64, PipelineOutcome)> = None;
        let mut refusal: Option<RunError> = None;
        let mut floor = u64::MAX;
        for candidate in candidates[..=first].iter().rev() {
            let Candidate { count, seconds, .. } = *candidate;
            if best.as_ref().is_some_and(|(least, _)| *least <= seconds) {
                continue;
            }
            let outcome = match count {
                1 => self.run_from(i + 1, module.clone(), cx, options),
                _ => self.divided(i, divides, count, module, cx, options),
            };
            match outcome {
                Ok(outcome) => {
                    let took = match outcome.report.seconds() {
                        seconds if seconds.is_finite() => seconds,
                        _ => seconds,
                    };
                    if best.as_ref().is_some_and(|(least, _)| *least <= took) {
                        break;
                    }
                    best = Some((took, outcome));
                }
                Err(RunError::Pass { error, pass }) if error.is_of_limits() => {
                    let e = RunError::Pass { error, pass };
                    if best.is_some() {
                        break;
                    }
                    let least = |e: &RunError| e.minimum().map_or(u64::MAX, |m| m.bytes);
                    floor = e.minimum().map_or(floor, |m| m.bound.min(floor));
                    if refusal.as_ref().is_none_or(|r| least(&e) < least(r)) {
                        refusal = Some(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        let Some((_, mut outcome)) = best else {
            let mut refusal = refusal.unwrap_or_else(|| self.failed(i, PassError::TooLarge));
            if let RunError::Pass { error: PassError::DeviceMemory { bound, .. }, .. } =
                &mut refusal
            {
                *bound = floor;
            }
            return Err(refusal);
        };
        // Other numbers of rounds may do with less, but states stay.
        if let Some(minimum) = &mut outcome.report.minimum {
            let plan = Plan::new(&module.graph, cx.target).map_err(|e| self.failed(i, e.into()))?;
            minimum.bound = planned_bytes(&plan, |kind| matches!(kind, BufferKind::Enter(_)));
            minimum.is_exact = false;
        }
        if outcome.rounds.is_some() {
            outcome.report.uncut_seconds = Some(whole);
        }
        Ok(outcome)
    }

    fn candidate(
        &self,
        i: usize,
        divides: &dyn Divides,
        count: u32,
        module: &Module,
        cx: &Cx,
    ) -> Result<Candidate, RunError> {
        let failed = |e| self.failed(i, e);
        let device = devices::or_cpu(cx.device).map_err(|e| failed(e.into()))?;
        let is_plan = |step: &Step| !matches!(step.pass, Pass::Graph(_));
        let plans = self.steps.iter().position(is_plan).unwrap_or(self.steps.len());
        let seconds = |g: &Graph| g.nodes.keys().map(roofline(g, &device)).sum::<f64>();
        let rewritten = |g: &Graph| self.rewritten(i + 1..plans, g, cx);
        if count == 1 {
            let g = rewritten(&module.graph)?;
            let peak = definition_order_peak(&g, cx).map_err(failed)?;
            return Ok(Candidate { count, seconds: seconds(&g), peak });
        }
        let Division { main, rounds } = divides.divide(&module.graph, count, cx).map_err(failed)?;
        let main = rewritten(&main)?;
        let around = seconds(&rewritten(&rounds.before)?) + seconds(&rewritten(&rounds.after)?);
        let peak = definition_order_peak(&main, cx).map_err(failed)?;
        Ok(Candidate { count, seconds: around + f64::from(count) * seconds(&main), peak })
    }
}

impl RunError {
    /// The error with the figures that it has where a limit was not lowered by these bytes.
    #[must_use]
    pub fn with_reserved(self, reserved: u64) -> RunError {
        match self {
            RunError::Pass {
                pass,
                error: PassError::DeviceMemory { limit, minimum, bound, sums },
            } => {
                let (limit, minimum) = (limit + reserved, minimum.saturating_add(reserved));
                let error =
                    PassError::DeviceMemory { limit, minimum, bound: bound + reserved, sums };
                RunError::Pass { pass, error }
            }
            other => other,
        }
    }

    /// Why two parts of a step cannot keep a limit: with what both can do with at least.
    fn of_both(self, other: RunError) -> RunError {
        let (own, others) = match (self.minimum(), other.minimum()) {
            (Some(own), Some(others)) => (own, others),
            (None, _) => return self,
            (_, None) => return other,
        };
        let mut larger = if others.bytes > own.bytes { other } else { self };
        if let RunError::Pass { error: PassError::DeviceMemory { bound, .. }, .. } = &mut larger {
            *bound = own.bound.max(others.bound);
        }
        larger
    }
}

/// What is known of the whole step by what is known of its parts; `reserved` is what the limit of each
/// was lowered by, in bytes.
fn together(count: u32, parts: [&PlanReport; 3], reserved: [u64; 3]) -> PlanReport {
    let main = parts[1];
    let (times, uncut) = match parts.map(|part| part.times) {
        [Some(before), Some(main), Some(after)] => {
            let around = before.unlimited + after.unlimited;
            let uncut = |seconds: f64| around + f64::from(count) * seconds;
            let times = StepTimes::sum([(1, before), (count, main), (1, after)]);
            (Some(times), parts[1].uncut_seconds.map(uncut))
        }
        _ => (None, None),
    };
    let minima = parts.into_iter().zip(reserved).filter_map(|(part, reserved)| {
        let Minimum { bytes, bound, is_exact } = part.minimum?;
        Some(Minimum { bytes: bytes + reserved, bound: bound + reserved, is_exact })
    });
    let minimum = minima.reduce(Minimum::of_both);
    PlanReport { peak_bound: main.peak_bound.clone(), minimum, times, uncut_seconds: uncut }
}

/// Bytes of a graph's constants that a plan of it has.
fn constant_bytes(g: &Graph, cx: &Cx) -> Result<u64, PassError> {
    Ok(planned_bytes(&Plan::new(g, cx.target)?, is_const))
}

/// Bytes of a plan's buffers of such a kind.
fn planned_bytes(plan: &Plan, is: fn(BufferKind) -> bool) -> u64 {
    plan.buffers.values().filter(|b| is(b.kind)).map(|b| b.rounded()).sum()
}

fn is_const(kind: BufferKind) -> bool {
    kind == BufferKind::Const
}
