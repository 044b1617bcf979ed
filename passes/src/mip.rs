//! Mixed-integer programs: modelled with `good_lp`, solved by HiGHS, or by microlp in builds
//! without the feature `highs`.
//!
//! Solvers compute in floating point. What comes back is a proposal: whoever asks measures
//! it again in whole bytes, and no certificate rests on a solver's bound.

use crate::search::Budget;
use good_lp::{Constraint, Expression, ProblemVariables, Variable, variable};

/// A variable of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Var(usize);

impl Var {
    /// Its place among the program's variables, in the order they were added.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Variables and rows of a program that minimises one variable.
#[derive(Default)]
pub struct IntegerProgram {
    variables: ProblemVariables,
    handles: Vec<Variable>,
    rows: Vec<Constraint>,
    /// Factors in the rows.
    terms: usize,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "highs"), expect(dead_code, reason = "microlp takes the gap alone"))]
pub struct Limits<'a> {
    /// Effort that this program shares with others; what it takes is taken from there.
    pub budget: &'a Budget<'a>,
    /// The most effort of this program, in seconds of the reference core.
    pub most: f64,
    /// Branch-and-bound nodes; HiGHS only.
    pub nodes: Option<u64>,
    /// Relative gap at which a solution is good enough.
    pub gap: f64,
    /// Seed of the solver's random decisions; HiGHS only.
    pub seed: u64,
}

impl<'a> Limits<'a> {
    /// All of a budget, until nothing better exists.
    pub fn new(budget: &'a Budget<'a>, seed: u64) -> Self {
        Limits { budget, most: f64::INFINITY, nodes: None, gap: 0.0, seed }
    }

    /// Seconds of effort that the program may take.
    fn effort(&self) -> f64 {
        self.most.min(self.budget.left())
    }
}

/// How large a program is.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "highs"), expect(dead_code, reason = "microlp goes by the factors"))]
struct Size {
    columns: usize,
    rows: usize,
    /// Factors that are not zero.
    terms: usize,
}

/// What a solver found.
pub struct Answer {
    /// The value of each variable, by index.
    values: Vec<f64>,
    /// No solution has a lower objective, says the solver.
    pub bound: f64,
    /// True where the solver says that nothing is better; not where a gap was good enough.
    pub proved: bool,
}

impl Answer {
    /// The value of a variable; 0 for one of another program.
    pub fn value(&self, v: Var) -> f64 {
        self.values.get(v.0).copied().unwrap_or(0.0)
    }

    /// True for a binary that is one.
    pub fn is_set(&self, v: Var) -> bool {
        self.value(v) > 0.5
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No solution within the limits.
    Limit,
    /// There is no solution.
    Infeasible,
    /// The solver gave up.
    Solver(String),
}

impl IntegerProgram {
    /// A variable that is 0 or 1.
    pub fn binary(&mut self) -> Var {
        self.add(variable().binary())
    }

    /// A variable between two values.
    pub fn real(&mut self, min: f64, max: f64) -> Var {
        self.add(variable().min(min).max(max))
    }

    fn add(&mut self, definition: good_lp::VariableDefinition) -> Var {
        self.handles.push(self.variables.add(definition));
        Var(self.handles.len() - 1)
    }

    /// The sum of factor × variable is at most `limit`.
    pub fn at_most(&mut self, terms: &[(f64, Var)], limit: f64) {
        self.terms += terms.len();
        let row = self.sum(terms).leq(limit);
        self.rows.push(row);
    }

    /// The sum of factor × variable is `value`.
    pub fn equal(&mut self, terms: &[(f64, Var)], value: f64) {
        self.terms += terms.len();
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
    ///
    /// # Errors
    /// Nothing within the limits, no solution at all, or the solver gave up.
    pub fn minimise(
        self,
        objective: Var,
        start: &[f64],
        limits: &Limits,
        better: &mut dyn FnMut(f64, f64),
    ) -> Result<Answer, Failure> {
        let size = Size { columns: self.handles.len(), rows: self.rows.len(), terms: self.terms };
        if !backend::is_tried(size, limits.effort()) {
            return Err(Failure::Limit);
        }
        let objective = Expression::from(self.handles[objective.0]);
        let problem = self.variables.minimise(objective);
        backend::solve(problem, self.rows, size, &self.handles, start, limits, better)
    }
}

/// The greatest common divisor; 0 has every divisor.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(feature = "highs")]
mod backend {
    use super::{Answer, Failure, Limits, Size};
    use crate::search::Deadline;
    use good_lp::variable::UnsolvedProblem;
    use good_lp::{Constraint, SolverModel, Variable};
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
        let lines = (size.columns + size.rows) as i64;
        effort > 0.0 && effort_of(size, lines) <= FIRST * effort
    }

    /// Seconds of the reference core until so many iterations, which HiGHS counts the same way
    /// on every machine.
    fn effort_of(size: Size, iterations: i64) -> f64 {
        let lines = (size.columns + size.rows) as f64;
        let each = PER_ITERATION.0 + PER_ITERATION.1 * lines;
        PER_TERM * size.terms as f64 + each * iterations.max(0) as f64
    }

    pub(super) fn solve(
        problem: UnsolvedProblem,
        rows: Vec<Constraint>,
        size: Size,
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
            for kind in [
                highs_sys::kHighsCallbackMipImprovingSolution,
                highs_sys::kHighsCallbackMipInterrupt,
            ] {
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
        let (watch, out, input) =
            unsafe { (&mut *data.cast::<Watch>(), out.as_ref(), input.as_mut()) };
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
}

#[cfg(not(feature = "highs"))]
mod backend {
    use super::{Answer, Failure, Limits, Size};
    use good_lp::solvers::{SolutionStatus, WithTimeLimit};
    use good_lp::variable::UnsolvedProblem;
    use good_lp::{Constraint, ResolutionError, Solution, SolverModel, Variable};
    use good_lp::{WithInitialSolution, WithMipGap};

    /// Factors of the largest program that it is given. It counts nothing and cannot be
    /// interrupted, so that its time is bounded by the size of what it gets.
    const MOST_TERMS: usize = 2_000;

    /// Seconds of the reference core for each factor of a program.
    const PER_TERM: f64 = 1e-3;

    /// True where something may come of a program with some effort, in seconds.
    pub(super) fn is_tried(size: Size, effort: f64) -> bool {
        effort > 0.0 && size.terms <= MOST_TERMS
    }

    pub(super) fn solve(
        problem: UnsolvedProblem,
        rows: Vec<Constraint>,
        size: Size,
        handles: &[Variable],
        start: &[f64],
        limits: &Limits,
        _: &mut dyn FnMut(f64, f64),
    ) -> Result<Answer, Failure> {
        let start = handles.iter().copied().zip(start.iter().copied());
        let mut program = problem
            .using(good_lp::microlp)
            .with_all(rows)
            .with_initial_solution(start)
            .with_mip_gap(limits.gap as f32)
            .map_err(|e| Failure::Solver(e.to_string()))?;
        if let Some(seconds) = limits.budget.deadline.seconds_left() {
            program = program.with_time_limit(seconds.min(1e9));
        }
        let solved = program.solve();
        limits.budget.spend(PER_TERM * size.terms as f64);
        match solved {
            Ok(solution) => {
                let proved = matches!(solution.status(), SolutionStatus::Optimal);
                if !proved {
                    limits.budget.deadline.is_over();
                }
                Ok(Answer {
                    values: handles.iter().map(|&v| solution.value(v)).collect(),
                    bound: f64::NEG_INFINITY,
                    proved,
                })
            }
            Err(ResolutionError::Infeasible) => Err(Failure::Infeasible),
            Err(ResolutionError::Other(_)) => {
                limits.budget.deadline.is_over();
                Err(Failure::Limit)
            }
            Err(e) => Err(Failure::Solver(e.to_string())),
        }
    }
}
