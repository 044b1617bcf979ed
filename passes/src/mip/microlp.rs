//! microlp: branch and bound in Rust, without cuts, presolve or heuristics.
//!
//! It is deterministic, and counts its nodes and the iterations of its simplex method. So it is run node by node,
//! and ends by what these take on the reference core. A relaxation cannot be interrupted without changing what comes
//! of it. So that whoever asks to stop need not wait for one, the solver has a thread of its own, which is left to
//! itself then and ends with the relaxation.

use super::{Answer, Failure, Limits, Size};
use good_lp::variable::UnsolvedProblem;
use good_lp::{Constraint, SolverModel};
use microlp::{
    Error, OptimizationDirection, Problem, ResumeOptions, SolveOptions, SolveOutcome,
    TerminationReason,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Seconds of the reference core for an iteration of the simplex method, and more for each row.
const PER_ITERATION: f64 = 1e-6;

/// Seconds of the reference core for a row in an iteration: least, most, and for each factor that a row has beyond
/// three. Bases of longer rows fill up. Measured on placements, with three factors a row and 6 ns, on orders and
/// addresses together, with five and 120 ns, and on orders, with 7 to 15 and 180 to 230 ns.
const PER_ROW: (f64, f64, f64) = (6e-9, 1.9e-7, 6e-8);

/// Seconds of the reference core for a node, and how many iterations it takes beside its own: its basis is factorized.
const PER_NODE: (f64, u64) = (1.5e-4, 17);

/// Seconds of the reference core for each factor before the first iteration.
const PER_TERM: f64 = 1e-6;

/// Wall seconds that a relaxation may take, and more for each second of effort that the first one should take. What takes longer
/// goes round in circles, which microlp does not see.
const PATIENCE: (f64, f64) = (2.0, 8.0);

/// The most that open nodes keep, in columns and rows of all nodes: some 400 MB.
const MOST_KEPT: u64 = 100_000_000;

/// How often deadlines are looked at while the solver works.
const LOOK: Duration = Duration::from_millis(20);

/// True where something may come of a program with some effort, in seconds: effort is counted between relaxations
/// alone.
pub(super) fn is_tried(size: Size, effort: f64) -> bool {
    first(size) <= effort
}

/// Seconds of the reference core for the first relaxation. It takes about an iteration for each column and row.
fn first(size: Size) -> f64 {
    effort_of(size, 0, size.lines())
}

/// Seconds of the reference core until so many nodes and iterations.
fn effort_of(size: Size, nodes: u64, iterations: u64) -> f64 {
    let rows = size.rows.max(1) as f64;
    let (least, most, each) = PER_ROW;
    let row = (least + each * (size.terms as f64 / rows - 3.0)).clamp(least, most);
    let iterations = iterations.saturating_add(PER_NODE.1.saturating_mul(nodes));
    PER_TERM * size.terms as f64
        + PER_NODE.0 * nodes as f64
        + (PER_ITERATION + row * rows) * iterations as f64
}

/// What the solver's thread tells.
enum Told {
    /// A better objective, or a better bound.
    Better(f64, f64),
    /// It ended, after so much effort.
    Ended(Result<SolveOutcome, Error>, f64),
}

pub(super) fn solve(
    problem: UnsolvedProblem,
    rows: Vec<Constraint>,
    size: Size,
    start: &[f64],
    limits: &Limits,
    better: &mut dyn FnMut(f64, f64),
) -> Result<Answer, Failure> {
    let program = problem.using(good_lp::microlp).with_all(rows).as_inner().clone();
    let (sender, told) = channel();
    let abandoned = Arc::new(AtomicBool::new(false));
    let search = Search {
        size,
        start: start.to_vec(),
        gap: limits.gap,
        nodes: limits.nodes.unwrap_or(u64::MAX).min(MOST_KEPT / size.lines().max(1)),
        effort: limits.effort(),
        abandoned: Arc::clone(&abandoned),
        sender,
    };
    let thread = std::thread::Builder::new().name("microlp".into());
    thread.spawn(move || search.run(&program)).map_err(|e| Failure::Solver(e.to_string()))?;
    let (outcome, effort) = loop {
        match told.recv_timeout(LOOK) {
            Ok(Told::Better(objective, bound)) => better(objective, bound),
            Ok(Told::Ended(outcome, effort)) => break (outcome, effort),
            Err(RecvTimeoutError::Timeout) if limits.budget.deadline.is_over() => {
                abandoned.store(true, Ordering::Relaxed);
                return Err(Failure::Limit);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Solver("its thread ended".into()));
            }
        }
    };
    limits.budget.spend(effort);
    let outcome = outcome.map_err(|e| match e {
        Error::Infeasible => Failure::Infeasible,
        e => Failure::Solver(e.to_string()),
    })?;
    let (proved, bound) = (outcome.is_optimal(), outcome.stats().best_bound);
    let solution = outcome.into_solution().map_err(|_| Failure::Limit)?;
    let values = solution.iter().map(|(_, value)| value).collect();
    Ok(Answer { values, bound: bound.unwrap_or(f64::NEG_INFINITY), proved })
}

/// What the solver's thread works on.
struct Search {
    size: Size,
    start: Vec<f64>,
    gap: f64,
    /// The most nodes, and the most effort in seconds.
    nodes: u64,
    effort: f64,
    /// Nobody waits for the answer any more.
    abandoned: Arc<AtomicBool>,
    sender: Sender<Told>,
}

impl Search {
    fn run(self, program: &Problem) {
        let mut spent = 0.0;
        let outcome = self.search(program, &mut spent);
        // Whoever asked may be gone.
        let _ = self.sender.send(Told::Ended(outcome, spent));
    }

    fn search(&self, program: &Problem, spent: &mut f64) -> Result<SolveOutcome, Error> {
        // A variable is its number, whatever problem it was made by.
        let patience = Duration::from_secs_f64(PATIENCE.0 + PATIENCE.1 * first(self.size));
        let mut numbers = Problem::new(OptimizationDirection::Minimize);
        let mut number = || numbers.add_var(0.0, (0.0, 0.0));
        let mut options = SolveOptions::default();
        options.mip_gap = self.gap;
        options.node_limit = Some(1);
        options.time_limit = Some(patience);
        options.warm_start = Some(self.start.iter().map(|&value| (number(), value)).collect());
        let mut next = ResumeOptions::default();
        (next.mip_gap, next.node_limit) = (Some(self.gap), Some(1));
        next.time_limit = Some(patience);
        let mut outcome = program.solve_with(options)?;
        let mut told = (f64::INFINITY, f64::NEG_INFINITY);
        loop {
            let stats = outcome.stats();
            *spent = effort_of(self.size, stats.nodes_solved, stats.lp_iterations);
            if let (Some(found), Some(bound)) = (outcome.solution(), stats.best_bound)
                && (found.objective() < told.0 || bound > told.1)
            {
                told = (found.objective(), bound);
                let _ = self.sender.send(Told::Better(told.0, told.1));
            }
            let is_within_gap = stats.gap.is_some_and(|gap| gap <= self.gap);
            if outcome.is_optimal()
                || is_within_gap
                || outcome.termination_reason() == TerminationReason::TimeLimit
                || stats.nodes_solved >= self.nodes
                || *spent > self.effort
                || self.abandoned.load(Ordering::Relaxed)
            {
                return Ok(outcome);
            }
            outcome = outcome.resume_with(next.clone())?;
        }
    }
}
