//! The YAML pipeline: which passes run, in which order, with which options.
//!
//! A pipeline is a list. An entry is a pass's name, or a map from its name to its
//! options. The pipeline checks levels and facts before anything runs, and owns
//! verifying, dumping, timing and the final check once for all passes.

mod homes;
mod read;
mod rounds;
mod stage;
mod strategy;
#[cfg(test)]
mod tests;
mod variants;

use crate::accumulate::Accumulate;
use crate::differentiate::Differentiate;
use crate::place::Placer;
use crate::precision::{Format, Precision};
use crate::report::{Minimum, PlanReport};
use crate::shard::Shard;
use crate::yaml::YamlError;
use crate::{Cx, GraphPass, Pass, PassError, PassSet, PlanOutcome, Stats, Turns};
use arenic_ir::check::{Footprint, Violation, check};
use arenic_ir::plan::Fact;
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_ir::verify::{Defect, verify};
use arenic_ir::{Graph, Plan, Program, Rounds};
pub use read::schema;
use stage::Stage;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The named pipelines of [`Standard`](crate::Standard): name and YAML. The first is the default.
pub const NAMED: &[(&str, &str)] = &[
    ("default", include_str!("pipelines/default.yaml")),
    ("as_exported", include_str!("pipelines/as_exported.yaml")),
    ("olla", include_str!("pipelines/olla.yaml")),
];

/// A sequence of configured passes.
#[derive(Clone)]
pub struct Pipeline {
    steps: Vec<Step>,
}

#[derive(Clone)]
struct Step {
    name: String,
    /// `None` for a pass that is always run.
    when: Option<When>,
    pass: Pass,
}

/// What a pass is run for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum When {
    /// Programs of the backend of this name.
    Backend(String),
    /// Training steps that the pipeline makes of forward models.
    Loss,
}

impl Step {
    /// A pass that is always run.
    fn new(name: &str, pass: Pass) -> Step {
        Step { name: name.to_owned(), when: None, pass }
    }

    /// True if the pass is for the program that is compiled.
    fn applies(&self, cx: &Cx) -> bool {
        match &self.when {
            Some(When::Backend(name)) => name == cx.target.backend.name,
            Some(When::Loss) | None => self.is_active(),
        }
    }

    /// False for a pass that is for a loss, which the pipeline does not have.
    fn is_active(&self) -> bool {
        self.when != Some(When::Loss)
    }

    /// The pass that makes a training step of a forward graph, if this is it.
    fn differentiates(&self) -> Option<&Differentiate> {
        match &self.pass {
            Pass::Graph(pass) => pass.differentiates(),
            _ => None,
        }
    }

    /// True for a pass that makes a training step by a loss.
    fn has_loss(&self) -> bool {
        self.differentiates().is_some_and(|pass| !pass.loss.is_empty())
    }
}

/// Why a pipeline failed on a graph.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunError {
    /// A graph is malformed: as given (no pass) or after a pass, which is a defect of it.
    #[error("{}{defect}", after_pass(pass))]
    Graph {
        /// The pass.
        pass: Option<String>,
        /// What is wrong.
        defect: Defect,
    },
    /// A pass failed.
    #[error("pass `{pass}`: {error}")]
    Pass {
        /// The pass.
        pass: String,
        /// Why.
        error: PassError,
    },
    /// The passes do not fit together.
    #[error(transparent)]
    Pipeline(#[from] YamlError),
    /// The program does not implement the graph: a defect of a pass.
    #[error("the program does not implement the graph: {}", first(.0))]
    Check(Vec<Violation>),
}

impl RunError {
    /// The least limit on device memory that can be kept, where this is what failed.
    pub fn minimum(&self) -> Option<Minimum> {
        match self {
            RunError::Pass { error, .. } => error.minimum(),
            _ => None,
        }
    }
}

fn after_pass(pass: &Option<String>) -> String {
    pass.as_ref().map_or(String::new(), |p| format!("after pass `{p}`: "))
}

fn first(violations: &[Violation]) -> String {
    let more = violations.len().saturating_sub(1);
    let first = violations.first().map_or(String::new(), Violation::to_string);
    if more == 0 { first } else { format!("{first} (and {more} more)") }
}

/// What a run of a pipeline is told to do besides.
#[derive(Default)]
pub struct RunOptions<'a> {
    /// Stop after the pass of this name.
    pub stop_after: Option<&'a str>,
    /// Called after each pass with the module so far.
    pub after_pass: Option<&'a mut dyn FnMut(&Report)>,
}

/// What a pass left behind. A strategy under a byte limit also carries out the passes that follow it;
/// their reports come after its own.
pub struct Report<'a> {
    /// The pass.
    pub pass: &'a str,
    /// What it counted.
    pub stats: &'a Stats,
    /// How long it took.
    pub elapsed: Duration,
    /// Graph, plan and program so far.
    pub module: &'a Module,
}

/// Where a pipeline got to.
pub struct PipelineOutcome {
    /// Graph, plan and program.
    pub module: Module,
    /// What the checker says of the program; `None` where the pipeline stopped early.
    pub footprint: Option<Footprint>,
    /// For a step in rounds: what runs around them. Graph, plan and program are then one round's.
    pub rounds: Option<Rounds<PartOutcome>>,
    /// What planning learned.
    pub report: PlanReport,
}

/// A part of a step in rounds.
pub struct PartOutcome {
    /// The graph.
    pub graph: Graph,
    /// The plan.
    pub plan: Plan,
    /// The program.
    pub program: Program,
    /// What the checker says of it.
    pub footprint: Footprint,
}

impl Pipeline {
    /// The pipeline of this name among those of a set; `None` if there is none.
    pub fn named(name: &str, passes: &impl PassSet) -> Option<Pipeline> {
        let (_, text) = passes.pipelines().into_iter().find(|(known, _)| *known == name)?;
        // A test reads all of them.
        Pipeline::from_yaml(text, passes).ok()
    }

    /// Reads a pipeline that begins with a bare graph; `passes` are those that it may name.
    ///
    /// # Errors
    /// As [`Pipeline::parse`]; a pass whose facts no earlier pass gives; a graph pass
    /// after planning began.
    pub fn from_yaml(text: &str, passes: &impl PassSet) -> Result<Pipeline, YamlError> {
        let pipeline = Pipeline::parse(text, passes)?;
        pipeline.validate(None, |_| true)?;
        Ok(pipeline)
    }

    /// Reads a pipeline that may begin with a module already planned in part; `passes` are those that it may
    /// name.
    ///
    /// # Errors
    /// YAML errors, unknown passes and fields, with line and column.
    pub fn parse(text: &str, passes: &impl PassSet) -> Result<Pipeline, YamlError> {
        let pipeline = Pipeline { steps: read::steps(text, passes)? };
        Ok(match pipeline.steps.iter().any(Step::has_loss) {
            true => pipeline.with_loss(),
            false => pipeline,
        })
    }

    /// The pipeline with all passes that are for a loss, but for those that would differentiate without it.
    fn with_loss(mut self) -> Pipeline {
        let is_for_it = |step: &&mut Step| {
            step.when == Some(When::Loss) && (step.has_loss() || step.differentiates().is_none())
        };
        self.steps.iter_mut().filter(is_for_it).for_each(|step| step.when = None);
        self
    }

    /// The part that orders a memory graph, which is frozen as it stands: the passes over the
    /// plan up to the last one that gives the order.
    ///
    /// # Errors
    /// No pass gives the order; a pass whose facts no earlier pass gives.
    pub fn ordering(mut self) -> Result<Pipeline, YamlError> {
        self.steps.retain(|step| matches!(step.pass, Pass::Plan(_)));
        let orders = |step: &Step| match &step.pass {
            Pass::Plan(p) => p.gives().contains(&Fact::Order),
            _ => false,
        };
        let Some(last) = self.steps.iter().rposition(orders) else {
            return Err("no pass of the pipeline gives an order; `order` does".to_owned().into());
        };
        self.steps.truncate(last + 1);
        self.validate(None, |_| true)?;
        Ok(self)
    }

    /// The pipeline with a pass that makes a training step of a forward graph, and with those that are for such
    /// steps alone: where the pipeline has one without a loss, else before all others.
    ///
    /// # Errors
    /// It has one with a loss.
    pub fn differentiating(mut self, pass: Differentiate) -> Result<Pipeline, YamlError> {
        let step = Step::new("differentiate", Pass::Graph(Arc::new(pass)));
        match self.steps.iter().position(|step| step.differentiates().is_some()) {
            Some(_) if self.steps.iter().any(Step::has_loss) => {
                return Err("the pipeline's `differentiate` has a loss already".to_owned().into());
            }
            Some(i) => self.steps[i] = step,
            None => self.steps.insert(0, step),
        }
        Ok(self.with_loss())
    }

    /// The pipeline with a pass that chooses the precision: where the pipeline has one, else, if it
    /// changes anything, before chains are fused and operators cut.
    pub fn with_precision(mut self, pass: Precision) -> Pipeline {
        let follows = |step: &Step| {
            let later = Stage::of(&step.name).is_some_and(|stage| stage > Stage::Precision);
            later || !matches!(step.pass, Pass::Graph(_))
        };
        let changes = pass.to != Format::F32;
        let step = Step::new("precision", Pass::Graph(Arc::new(pass)));
        match self.steps.iter().position(|s| s.name == step.name) {
            Some(i) => self.steps[i] = step,
            None if changes => {
                let at = self.steps.iter().position(follows).unwrap_or(self.steps.len());
                self.steps.insert(at, step);
            }
            None => {}
        }
        self
    }

    /// The pipeline with a pass that runs the step on several ranks: where the pipeline has one, else on the step
    /// as soon as it is whole.
    pub fn on_ranks(self, pass: Shard) -> Pipeline {
        self.with_division(Step::new("shard", Pass::Graph(Arc::new(pass))))
    }

    /// The pipeline with a pass that runs the step in rounds: where the pipeline has one, else on the
    /// step as soon as it is whole.
    pub fn in_micro_batches(self, pass: Accumulate) -> Pipeline {
        self.with_division(Step::new("accumulate", Pass::Graph(Arc::new(pass))))
    }

    /// The pipeline with a pass that divides a whole step: in the place of the one of its name, else after the
    /// passes that make the step and put its operators together.
    fn with_division(mut self, division: Step) -> Pipeline {
        match self.steps.iter().position(|step| step.name == division.name) {
            Some(at) => self.steps[at] = division,
            None => self.steps.insert(self.end_of_the_step(), division),
        }
        self
    }

    /// Where passes stand that divide a whole step.
    fn end_of_the_step(&self) -> usize {
        let prepares =
            |step: &Step| Stage::of(&step.name).is_some_and(|stage| stage < Stage::Divided);
        let made = self.steps.iter().rposition(|s| s.name == "differentiate");
        let made = made.map_or(0, |i| i + 1);
        made + self.steps[made..].iter().take_while(|s| prepares(s)).count()
    }

    /// The pipeline with a pass of one's own before the first one called `before`. `name` is what reports and
    /// errors call it.
    ///
    /// # Errors
    /// There is no pass `before`; a pass over graphs would come after planning began, or a pass lacks facts.
    pub fn with_pass(
        mut self,
        name: &str,
        pass: Pass,
        before: &str,
    ) -> Result<Pipeline, YamlError> {
        let Some(at) = self.steps.iter().position(|step| step.name == before) else {
            let known = self.names().collect::<Vec<_>>().join(", ");
            return Err(format!("the pipeline has no pass `{before}`; it has {known}").into());
        };
        self.steps.insert(at, Step::new(name, pass));
        self.validate(None, |_| true)?;
        Ok(self)
    }

    /// The pipeline with a pass that rewrites the step as soon as a forward graph became one.
    pub fn after_differentiation(mut self, name: &str, pass: Arc<dyn GraphPass>) -> Pipeline {
        let makes_step = |step: &Step| step.is_active() && step.differentiates().is_some();
        if let Some(i) = self.steps.iter().position(makes_step) {
            self.steps.insert(i + 1, Step::new(name, Pass::Graph(pass)));
        }
        self
    }

    /// The pass that makes a training step of a forward graph, where there is one.
    pub fn differentiation(&self) -> Option<&Differentiate> {
        self.steps.iter().filter(|step| step.is_active()).find_map(Step::differentiates)
    }

    /// Names of the backends that passes are restricted to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match &step.when {
            Some(When::Backend(name)) => Some(&name[..]),
            _ => None,
        })
    }

    /// Facts that no pass reads before they are given anew or dropped, each with the pass that gives
    /// it. If the pipeline makes no program, its last facts are its result.
    pub fn unread(&self) -> Vec<(&str, Fact)> {
        let mut held: Vec<(Fact, &str, bool)> = Vec::new();
        let mut dropped = Vec::new();
        for Step { name, pass, .. } in &self.steps {
            let Some((needs, gives)) = facts(pass) else { continue };
            held.iter_mut().filter(|h| needs.contains(&h.0)).for_each(|h| h.2 = true);
            for &given in gives {
                // A setter drops the facts that depend on it; `Fact` is in that order.
                dropped.extend(held.extract_if(.., |h| h.0 >= given));
                // Who reads what it gives only renews it.
                held.push((given, name, needs.contains(&given)));
            }
        }
        if self.steps.iter().any(|step| matches!(step.pass, Pass::Program(_))) {
            dropped.append(&mut held);
        }
        dropped.into_iter().filter(|h| !h.2).map(|(fact, name, _)| (name, fact)).collect()
    }

    /// Names of the passes, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|s| s.name.as_str())
    }

    /// The method of the last pass that places without a graph: in a plan, too, the last
    /// placement stands.
    ///
    /// # Errors
    /// There is none.
    pub fn placer(&self) -> Result<&dyn Placer, YamlError> {
        let placer = |step: &'_ Step| match &step.pass {
            Pass::Plan(p) => p.placer().is_some(),
            _ => false,
        };
        let last = self.steps.iter().rfind(|step| placer(step));
        match last.map(|step| &step.pass) {
            Some(Pass::Plan(p)) => p.placer(),
            _ => None,
        }
        .ok_or_else(|| "no pass of the pipeline places; `place` does".to_owned().into())
    }

    /// Levels go graph → plan → program, and every fact is given before it is needed, by the passes
    /// that are run.
    fn validate(
        &self,
        plan: Option<&Plan>,
        is_run: impl Fn(&Step) -> bool,
    ) -> Result<(), YamlError> {
        let mut given: Vec<Fact> =
            Fact::ALL.into_iter().filter(|f| plan.is_some_and(|p| p.has(*f))).collect();
        let (mut level, mut level_pass) = if plan.is_some() { (1, "the plan") } else { (0, "") };
        let mut strategy: Option<&str> = None;
        for Step { name, pass, .. } in self.steps.iter().filter(|step| is_run(step)) {
            let own_level = match pass {
                Pass::Graph(_) => 0,
                Pass::Plan(_) | Pass::Strategy(_) => 1,
                Pass::Program(_) => 2,
            };
            if own_level < level {
                return Err(format!(
                    "`{name}` comes after `{level_pass}`, which froze what it would change; \
                     move it before"
                )
                .into());
            }
            (level, level_pass) = (own_level, name);
            let Some((needs, gives)) = facts(pass) else { continue };
            if let Some(strategy) = strategy
                && gives.iter().any(|fact| *fact <= Fact::Order)
            {
                return Err(format!(
                    "`{name}` comes after `{strategy}`, which plans the step to its end under a byte \
                     limit; leave one of them out, or move `{name}` before it"
                )
                .into());
            }
            if matches!(pass, Pass::Strategy(_)) {
                strategy = Some(name);
            }
            if let Some(missing) = needs.iter().find(|f| !given.contains(f)) {
                return Err(format!(
                    "`{name}` needs {missing}, which no pass before it gives; `{}` does",
                    missing.given_by()
                )
                .into());
            }
            for fact in gives {
                // A setter drops the facts that depend on it; `Fact` is in that order.
                given.retain(|f| f < fact);
                given.push(*fact);
            }
        }
        Ok(())
    }

    /// Runs the passes on a graph, and `check` on the program they made.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(&self, g: Graph, cx: &Cx, options: RunOptions) -> Result<PipelineOutcome, RunError> {
        self.run_on(Module { graph: g, plan: None, program: None }, cx, options)
    }

    /// Runs the passes on a module that may be planned in part, and `check` on the
    /// program they made.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run_on(
        &self,
        module: Module,
        cx: &Cx,
        mut options: RunOptions,
    ) -> Result<PipelineOutcome, RunError> {
        self.validate(module.plan.as_ref(), |step| step.applies(cx))?;
        let moves = |step: &Step| {
            step.applies(cx) && matches!(&step.pass, Pass::Strategy(strategy) if strategy.moves())
        };
        let host = match self.steps.iter().any(moves) {
            true => cx.limits.host,
            false => Some(0),
        };
        let cx = Cx { limits: PerSpace { host, ..cx.limits }, ..*cx };
        match self.run_from(0, module, &cx, &mut options) {
            // Somebody ended the search, so that a limit which it has not kept may be one that can be.
            Err(RunError::Pass {
                pass,
                error: PassError::DeviceMemory { limit, minimum, bound, .. },
            }) if cx.search.is_stopped() => {
                let error = PassError::Ended { limit, least: minimum, bound };
                Err(RunError::Pass { pass, error })
            }
            outcome => outcome,
        }
    }

    /// Runs the passes from one on.
    fn run_from(
        &self,
        first: usize,
        mut module: Module,
        cx: &Cx,
        options: &mut RunOptions,
    ) -> Result<PipelineOutcome, RunError> {
        verify(&module.graph).map_err(|defect| RunError::Graph { pass: None, defect })?;
        let mut report = PlanReport::default();
        let mut finished = true;
        for (i, step) in self.steps.iter().enumerate().skip(first) {
            let (Step { name, pass, .. }, is_run) = (step, step.applies(cx));
            if let (Pass::Graph(pass), true) = (pass, is_run)
                && cx.turns != Turns::OfRounds
                && let Some(divides) = pass.divides(cx)
            {
                return self.in_rounds(i, divides, &module, cx, options);
            }
            if let (Pass::Strategy(strategy), true, Some(limit)) = (pass, is_run, cx.limits.device)
            {
                let (of_plan, is_whole) =
                    self.under_limit(i, &**strategy, limit, &mut module, cx, options)?;
                report = PlanReport { peak_bound: report.peak_bound, ..of_plan };
                finished = is_whole;
                break;
            }
            let start = Instant::now();
            let stats = match is_run {
                true => run_pass(pass, &mut module, cx, &mut report),
                false => Ok(Stats::new()),
            };
            let stats = stats.map_err(|error| RunError::Pass { pass: name.clone(), error })?;
            let elapsed = start.elapsed();
            if matches!(pass, Pass::Graph(_)) {
                verify(&module.graph)
                    .map_err(|defect| RunError::Graph { pass: Some(name.clone()), defect })?;
            }
            if let Some(after_pass) = &mut options.after_pass {
                after_pass(&Report { pass: name, stats: &stats, elapsed, module: &module });
            }
            if options.stop_after == Some(name) {
                finished = i + 1 == self.steps.len();
                break;
            }
            if let (Pass::Graph(pass), true) = (pass, is_run)
                && let Some(pass) = pass.in_parts(cx)
            {
                return self.fastest_in_parts(i, pass, &module, cx, options);
            }
        }
        let footprint = match &module.program {
            Some(program) if finished => {
                Some(check(&module.graph, program).map_err(RunError::Check)?)
            }
            _ => None,
        };
        Ok(PipelineOutcome { module, footprint, rounds: None, report })
    }
}

/// The facts that a pass needs and gives; `None` for passes over graphs.
fn facts(pass: &Pass) -> Option<(&[Fact], &[Fact])> {
    match pass {
        Pass::Graph(_) => None,
        Pass::Plan(p) => Some((p.needs(), p.gives())),
        Pass::Strategy(_) => Some((&[Fact::Order], &[Fact::Order])),
        Pass::Program(p) => Some((p.needs(), &[])),
    }
}

/// The plan of a module, begun where there is none.
fn begun<'m>(
    graph: &Graph,
    plan: &'m mut Option<Plan>,
    cx: &Cx,
) -> Result<&'m mut Plan, PassError> {
    Ok(match plan {
        Some(plan) => plan,
        none => none.insert(Plan::new(graph, cx.target)?),
    })
}

fn run_pass(
    pass: &Pass,
    module: &mut Module,
    cx: &Cx,
    report: &mut PlanReport,
) -> Result<Stats, PassError> {
    let Module { graph, plan, program } = module;
    match pass {
        Pass::Graph(p) => p.run(graph, cx),
        Pass::Plan(p) => {
            let PlanOutcome { stats, bound } = p.run(graph, begun(graph, plan, cx)?, cx)?;
            report.peak_bound = bound.or(report.peak_bound.take());
            Ok(stats)
        }
        // Without a limit there is none to keep.
        Pass::Strategy(_) => begun(graph, plan, cx).map(|_| Stats::new()),
        Pass::Program(p) => {
            let plan = begun(graph, plan, cx)?;
            p.run(graph, plan, program.get_or_insert_with(|| Program::new(cx.target)), cx)
        }
    }
}
