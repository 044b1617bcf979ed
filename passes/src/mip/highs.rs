//! HiGHS (Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018): branch and cut, with presolve and
//! heuristics. A build with the feature `highs` has it.
//!
//! Single-threaded and seeded, and ended by iterations that it counts the same way everywhere, so that the same
//! program gives the same answer.

use super::{Answer, Failure, Limits, Size};
use crate::search::Deadline;
use good_lp::variable::UnsolvedProblem;
use good_lp::{Constraint, SolverModel};
use highs::{HighsModelStatus, HighsSolutionStatus, Model};
use highs_sys::{HighsCallbackDataIn, HighsCallbackDataOut};
use std::ffi::{c_char, c_int, c_void};

/// A relative gap that is none but for rounding.
const CLOSED: f64 = 1e-9;

/// What the callback reads and tells.
struct Watch<'a, 'b> {
    deadline: &'b Deadline<'a>,
    size: Size,
    /// Seconds of effort that the program may take, and that it has taken.
    effort: f64,
    spent: f64,
    last: (f64, f64),
    better: &'b mut dyn FnMut(f64, f64),
}

/// Seconds of the reference core for an iteration of the simplex method with all that HiGHS
/// does beside it, and more for each column and row: measured on orders and placements of
/// 100 to 5,000 columns and rows.
const PER_ITERATION: (f64, f64) = (8e-5, 5.5e-8);

/// Seconds of the reference core for each factor before the first iteration.
const PER_TERM: f64 = 1e-6;

/// Programs are not tried whose first relaxation takes more than so many times their effort,
/// since HiGHS counts between relaxations alone. It takes about an iteration for each column
/// and row.
const FIRST: f64 = 4.0;

/// True where something may come of a program with some effort, in seconds.
pub(super) fn is_tried(size: Size, effort: f64) -> bool {
    effort > 0.0 && effort_of(size, size.lines() as i64) <= FIRST * effort
}

/// Seconds of the reference core until so many iterations, which HiGHS counts the same way
/// on every machine.
fn effort_of(size: Size, iterations: i64) -> f64 {
    let each = PER_ITERATION.0 + PER_ITERATION.1 * size.lines() as f64;
    PER_TERM * size.terms as f64 + each * iterations.max(0) as f64
}

pub(super) fn solve(
    problem: UnsolvedProblem,
    rows: Vec<Constraint>,
    size: Size,
    start: &[f64],
    limits: &Limits,
    better: &mut dyn FnMut(f64, f64),
) -> Result<Answer, Failure> {
    let program = problem.using(good_lp::highs).with_all(rows);
    // What the wrapper cannot set is set on HiGHS's own model.
    let mut model = program.try_into_inner().map_err(|e| Failure::Solver(e.to_string()))?;
    set_options(&mut model, limits).map_err(|e| Failure::Solver(format!("{e:?}")))?;
    model
        .try_set_solution(Some(start), None, None, None)
        .map_err(|e| Failure::Solver(format!("{e:?}")))?;
    let mut watch = Watch {
        deadline: &limits.budget.deadline,
        size,
        effort: limits.effort(),
        spent: effort_of(size, 0),
        last: (f64::INFINITY, f64::NEG_INFINITY),
        better,
    };
    let data: *mut c_void = (&raw mut watch).cast();
    let highs = model.as_mut_ptr();
    // SAFETY: `highs` is the model's own instance, and `watch` outlives the solve below,
    // after which HiGHS is destroyed without another call.
    unsafe {
        highs_sys::Highs_setCallback(highs, Some(callback), data);
        for kind in
            [highs_sys::kHighsCallbackMipImprovingSolution, highs_sys::kHighsCallbackMipInterrupt]
        {
            highs_sys::Highs_startCallback(highs, kind);
        }
    }
    let solved = model.try_solve().map_err(|e| Failure::Solver(format!("{e:?}")))?;
    limits.budget.spend(watch.spent);
    if matches!(solved.status(), HighsModelStatus::ReachedTimeLimit) {
        // It was the caller's.
        limits.budget.deadline.is_over();
    }
    let proved = match solved.status() {
        // HiGHS calls a solution optimal that is within the gap asked for.
        HighsModelStatus::Optimal => limits.gap == 0.0 || solved.mip_gap() <= CLOSED,
        HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => {
            return Err(Failure::Infeasible);
        }
        HighsModelStatus::ReachedTimeLimit
        | HighsModelStatus::ReachedSolutionLimit
        | HighsModelStatus::ReachedInterrupt
        | HighsModelStatus::ReachedIterationLimit
        | HighsModelStatus::ReachedMemoryLimit
        | HighsModelStatus::ObjectiveBound
        | HighsModelStatus::ObjectiveTarget => false,
        status => return Err(Failure::Solver(format!("HiGHS stopped with {status:?}"))),
    };
    if solved.primal_solution_status() != HighsSolutionStatus::Feasible {
        return Err(Failure::Limit);
    }
    let bound = solved.double_info_value(c"mip_dual_bound").unwrap_or(f64::NEG_INFINITY);
    Ok(Answer { values: solved.get_solution().columns().to_vec(), bound, proved })
}

/// The rules of its presolve, by bits, that end after a second: those that look for dependent
/// equations and dependent free columns.
const TIMED_RULES: i32 = 1 << 10 | 1 << 11;

fn set_options(model: &mut Model, limits: &Limits) -> Result<(), highs::TrySetOptionError> {
    model.try_set_option("threads", 1)?;
    model.try_set_option("parallel", "off")?;
    model.try_set_option("random_seed", (limits.seed % (1 << 31)) as i32)?;
    // By default there is none, and HiGHS heeds no clock.
    if let Some(seconds) = limits.budget.deadline.seconds_left() {
        model.try_set_option("time_limit", seconds)?;
    }
    model.try_set_option("presolve_rule_off", TIMED_RULES)?;
    model.try_set_option("mip_rel_gap", limits.gap)?;
    model.try_set_option("mip_abs_gap", 0.0)?;
    if let Some(nodes) = limits.nodes {
        model.try_set_option("mip_max_nodes", i32::try_from(nodes).unwrap_or(i32::MAX))?;
    }
    Ok(())
}

unsafe extern "C" fn callback(
    _: c_int,
    _: *const c_char,
    out: *const HighsCallbackDataOut,
    input: *mut HighsCallbackDataIn,
    data: *mut c_void,
) {
    // SAFETY: HiGHS hands back the pointer it was given, whose target is borrowed
    // mutably by nobody else while it solves, and data that are valid during the call.
    let (watch, out, input) = unsafe { (&mut *data.cast::<Watch>(), out.as_ref(), input.as_mut()) };
    if let Some(out) = out {
        let spent = effort_of(watch.size, out.mip_total_lp_iterations);
        watch.spent = watch.spent.max(spent);
        let found = (out.mip_primal_bound, out.mip_dual_bound);
        if found.0 < watch.last.0 || found.1 > watch.last.1 {
            watch.last = found;
            (watch.better)(found.0, found.1);
        }
    }
    if let Some(input) = input
        && (watch.spent > watch.effort || watch.deadline.is_over())
    {
        input.user_interrupt = 1;
    }
}
