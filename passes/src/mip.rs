//! Mixed-integer programs: modelled with `good_lp`, solved by HiGHS, or by microlp in builds
//! without the feature `highs`.
//!
//! Solvers compute in floating point. What comes back is a proposal: whoever asks measures
//! it again in whole bytes, and no certificate rests on a solver's bound.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, variable};
use std::sync::atomic::AtomicBool;

/// A variable of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Var(usize);

impl Var {
    /// Its place among the program's variables, in the order they were added.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// Variables and rows of a program that minimises one variable.
#[derive(Default)]
pub(crate) struct Program {
    variables: ProblemVariables,
    handles: Vec<Variable>,
    rows: Vec<Constraint>,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "highs"), expect(dead_code, reason = "microlp takes time and gap alone"))]
pub(crate) struct Limits<'a> {
    /// Wall time in seconds.
    pub(crate) seconds: f64,
    /// Branch-and-bound nodes; HiGHS only.
    pub(crate) nodes: Option<u64>,
    /// Relative gap at which a solution is good enough.
    pub(crate) gap: f64,
    /// Seed of the solver's random decisions.
    pub(crate) seed: u64,
    /// Stops the solver when it becomes true.
    pub(crate) stop: Option<&'a AtomicBool>,
}

/// What a solver found.
pub(crate) struct Answer {
    /// The value of each variable, by index.
    values: Vec<f64>,
    /// No solution has a lower objective, says the solver.
    pub(crate) bound: f64,
    /// True where the solver says that nothing is better; not where a gap was good enough.
    pub(crate) proved: bool,
}

impl Answer {
    pub(crate) fn value(&self, v: Var) -> f64 {
        self.values.get(v.0).copied().unwrap_or(0.0)
    }

    /// True for a binary that is one.
    pub(crate) fn is_set(&self, v: Var) -> bool {
        self.value(v) > 0.5
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No solution within the limits.
    Limit,
    /// There is no solution.
    Infeasible,
    /// The solver gave up.
    Solver(String),
}

impl Program {
    pub(crate) fn binary(&mut self) -> Var {
        self.add(variable().binary())
    }

    pub(crate) fn real(&mut self, min: f64, max: f64) -> Var {
        self.add(variable().min(min).max(max))
    }

    fn add(&mut self, definition: good_lp::VariableDefinition) -> Var {
        self.handles.push(self.variables.add(definition));
        Var(self.handles.len() - 1)
    }

    /// The sum of factor × variable is at most `limit`.
    pub(crate) fn at_most(&mut self, terms: &[(f64, Var)], limit: f64) {
        let row = self.sum(terms).leq(limit);
        self.rows.push(row);
    }

    /// The sum of factor × variable is `value`.
    pub(crate) fn equal(&mut self, terms: &[(f64, Var)], value: f64) {
        let row = self.sum(terms).eq(value);
        self.rows.push(row);
    }

    fn sum(&self, terms: &[(f64, Var)]) -> Expression {
        let mut sum = Expression::with_capacity(terms.len());
        for &(factor, v) in terms {
            sum.add_mul(factor, self.handles[v.0]);
        }
        sum
    }

    /// Minimises a variable. `start` is a solution to begin with, one value per variable;
    /// `better` is told of each (objective, bound) as they improve, by HiGHS.
    pub(crate) fn minimise(
        self,
        objective: Var,
        start: &[f64],
        limits: &Limits,
        better: &mut dyn FnMut(f64, f64),
    ) -> Result<Answer, Failure> {
        let objective = Expression::from(self.handles[objective.0]);
        let problem = self.variables.minimise(objective);
        backend::solve(problem, self.rows, &self.handles, start, limits, better)
    }
}

/// The greatest common divisor; 0 has every divisor.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(feature = "highs")]
mod backend {
    use super::{Answer, Failure, Limits};
    use good_lp::variable::UnsolvedProblem;
    use good_lp::{Constraint, SolverModel, Variable};
    use highs::{HighsModelStatus, HighsSolutionStatus, Model};
    use highs_sys::{HighsCallbackDataIn, HighsCallbackDataOut};
    use std::ffi::{c_char, c_int, c_void};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A relative gap that is none but for rounding.
    const CLOSED: f64 = 1e-9;

    /// What the callback reads and tells.
    struct Watch<'a, 'b> {
        stop: Option<&'a AtomicBool>,
        last: (f64, f64),
        better: &'b mut dyn FnMut(f64, f64),
    }

    pub(super) fn solve(
        problem: UnsolvedProblem,
        rows: Vec<Constraint>,
        _: &[Variable],
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
        let mut watch =
            Watch { stop: limits.stop, last: (f64::INFINITY, f64::NEG_INFINITY), better };
        let data: *mut c_void = (&raw mut watch).cast();
        let highs = model.as_mut_ptr();
        // SAFETY: `highs` is the model's own instance, and `watch` outlives the solve below,
        // after which HiGHS is destroyed without another call.
        unsafe {
            highs_sys::Highs_setCallback(highs, Some(callback), data);
            for kind in [
                highs_sys::kHighsCallbackSimplexInterrupt,
                highs_sys::kHighsCallbackMipImprovingSolution,
                highs_sys::kHighsCallbackMipInterrupt,
            ] {
                highs_sys::Highs_startCallback(highs, kind);
            }
        }
        let solved = model.try_solve().map_err(|e| Failure::Solver(format!("{e:?}")))?;
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

    fn set_options(model: &mut Model, limits: &Limits) -> Result<(), highs::TrySetOptionError> {
        model.try_set_option("threads", 1)?;
        model.try_set_option("parallel", "off")?;
        model.try_set_option("random_seed", (limits.seed % (1 << 31)) as i32)?;
        model.try_set_option("time_limit", limits.seconds.max(0.0))?;
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
        let (watch, out, input) =
            unsafe { (&mut *data.cast::<Watch>(), out.as_ref(), input.as_mut()) };
        if let Some(out) = out {
            let found = (out.mip_primal_bound, out.mip_dual_bound);
            if found.0 < watch.last.0 || found.1 > watch.last.1 {
                watch.last = found;
                (watch.better)(found.0, found.1);
            }
        }
        if let Some(input) = input
            && watch.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
        {
            input.user_interrupt = 1;
        }
    }
}

#[cfg(not(feature = "highs"))]
mod backend {
    use super::{Answer, Failure, Limits};
    use good_lp::solvers::{SolutionStatus, WithTimeLimit};
    use good_lp::variable::UnsolvedProblem;
    use good_lp::{Constraint, ResolutionError, Solution, SolverModel, Variable};
    use good_lp::{WithInitialSolution, WithMipGap};

    /// Microlp cannot be interrupted and tells nothing while it solves.
    pub(super) fn solve(
        problem: UnsolvedProblem,
        rows: Vec<Constraint>,
        handles: &[Variable],
        start: &[f64],
        limits: &Limits,
        _: &mut dyn FnMut(f64, f64),
    ) -> Result<Answer, Failure> {
        let start = handles.iter().copied().zip(start.iter().copied());
        let program = problem
            .using(good_lp::microlp)
            .with_all(rows)
            .with_initial_solution(start)
            .with_time_limit(limits.seconds.clamp(0.0, 1e9))
            .with_mip_gap(limits.gap as f32)
            .map_err(|e| Failure::Solver(e.to_string()))?;
        match program.solve() {
            Ok(solution) => Ok(Answer {
                values: handles.iter().map(|&v| solution.value(v)).collect(),
                bound: f64::NEG_INFINITY,
                proved: matches!(solution.status(), SolutionStatus::Optimal),
            }),
            Err(ResolutionError::Infeasible) => Err(Failure::Infeasible),
            Err(ResolutionError::Other(_)) => Err(Failure::Limit),
            Err(e) => Err(Failure::Solver(e.to_string())),
        }
    }
}
