//! Mixed-integer programs: modelled with `good_lp`, solved by microlp, or by HiGHS in builds with the feature `highs`.
//!
//! Solvers compute in floating point. What comes back is a proposal: whoever asks measures
//! it again in whole bytes, and no certificate rests on a solver's bound. Only the files here know a solver.

#[cfg(feature = "highs")]
mod highs;
#[cfg(not(feature = "highs"))]
mod microlp;

#[cfg(feature = "highs")]
use self::highs as solver;
#[cfg(not(feature = "highs"))]
use self::microlp as solver;
use crate::PassError;
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
pub struct Limits<'a> {
    /// Effort that this program shares with others; what it takes is taken from there.
    pub budget: &'a Budget<'a>,
    /// The most effort of this program, in seconds of the reference core.
    pub most: f64,
    /// Branch-and-bound nodes.
    pub nodes: Option<u64>,
    /// Relative gap at which a solution is good enough.
    pub gap: f64,
    /// Seed of the solver's random decisions; microlp makes none.
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
struct Size {
    columns: usize,
    rows: usize,
    /// Factors that are not zero.
    terms: usize,
}

impl Size {
    /// Columns and rows.
    fn lines(self) -> u64 {
        (self.columns + self.rows) as u64
    }
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

impl Failure {
    /// What fails a pass that gave a solution to begin with: not that the limits came first.
    ///
    /// # Errors
    /// The solver gave up, or denies that solution.
    pub fn unless_of_limits(self) -> Result<(), PassError> {
        match self {
            Failure::Limit => Ok(()),
            Failure::Infeasible => {
                Err(PassError::Solver("it calls a program infeasible that has a solution".into()))
            }
            Failure::Solver(why) => Err(PassError::Solver(why)),
        }
    }
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
    /// `better` is told of each (objective, bound) as they improve.
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
        if !solver::is_tried(size, limits.effort()) {
            return Err(Failure::Limit);
        }
        let objective = Expression::from(self.handles[objective.0]);
        let problem = self.variables.minimise(objective);
        solver::solve(problem, self.rows, size, start, limits, better)
    }
}

/// The greatest common divisor; 0 has every divisor.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
