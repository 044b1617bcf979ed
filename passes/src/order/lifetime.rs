//! OLLA's program over tensor lifetimes: equations 1–5 and 10–14.
//!
//! Binary C(v, t) creates the results of operator v at step t, P(e, t) preserves tensor e at
//! step t; siblings share their operator's C (equation 5). One operator runs per step, and
//! there are as many steps as operators. P need not be declared binary: with C integral, the
//! least P that satisfies the rows is. Bounds of spans (equations 10–12) count all ancestors
//! and descendants, and declared in-place pairs add a term that takes off what an output
//! takes over. Sizes are divided by their greatest common divisor; what is resident is left
//! out as a constant.

use super::problem::{Kind, Problem};
use crate::mip::{Answer, Failure, IntegerProgram, Limits, Var, gcd};

/// What the solver found, measured again in bytes.
pub struct LifetimeOrder {
    /// Operators in order.
    pub order: Vec<usize>,
    /// Its peak in bytes.
    pub peak: u64,
    /// The solver's bound, rounded down to whole bytes.
    pub bound: u64,
    /// True where the solver ended by itself.
    pub proved: bool,
}

/// The best order by OLLA's program 14. `incumbent` starts the search and bounds the peak;
/// `better` is told of (peak, bound) in bytes as they improve.
///
/// # Errors
/// The solver found nothing within its limits, or gave up.
pub fn solve(
    p: &Problem,
    incumbent: &[usize],
    limits: &Limits,
    better: &mut dyn FnMut(u64, u64),
) -> Result<LifetimeOrder, Failure> {
    let peak = p.peak(incumbent);
    let mut lifetimes = Lifetimes::new(p, incumbent);
    let objective = lifetimes.peak_of_live_bytes(peak);
    let Lifetimes { program, start, unit, created, .. } = lifetimes;
    let bytes = |units: f64| p.resident + (units.max(0.0) * unit) as u64;
    let mut report = |objective: f64, bound: f64| better(bytes(objective), bytes(bound));
    let answer = program.minimise(objective, &start, limits, &mut report)?;
    let order = decode(&answer, &created);
    // The solver's arithmetic is trusted for nothing: an order is one or it is not.
    if !p.is_order(&order) {
        return Err(Failure::Solver("the solution is no order".into()));
    }
    let found = p.peak(&order);
    let (order, peak) = if found <= peak { (order, found) } else { (incumbent.to_vec(), peak) };
    let bound = if answer.proved { peak } else { bytes(answer.bound).min(peak) };
    Ok(LifetimeOrder { order, peak, bound, proved: answer.proved })
}

/// Function 1 of the paper: the operator that is run at each step.
pub fn decode(answer: &Answer, created: &[Created]) -> Vec<usize> {
    let mut order: Vec<(usize, usize)> = Vec::with_capacity(created.len());
    for (v, c) in created.iter().enumerate() {
        let step = c.vars.iter().position(|&var| answer.is_set(var)).unwrap_or(0);
        order.push((c.first + step, v));
    }
    order.sort_unstable();
    order.into_iter().map(|(_, v)| v).collect()
}

/// C(v, t) for the steps of an operator's span.
pub struct Created {
    /// The first step of the span.
    pub first: usize,
    /// A variable for each of its steps.
    pub vars: Vec<Var>,
}

impl Created {
    /// The variable of step t, inside the span.
    pub fn at(&self, t: usize) -> Option<Var> {
        self.vars.get(t.checked_sub(self.first)?).copied()
    }

    /// The steps of the span.
    fn span(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.vars.len()
    }
}

/// P(e, t).
#[derive(Clone, Copy, Debug)]
pub enum Preserved {
    /// It is 0 in every order.
    No,
    /// It is 1 in every order.
    Yes,
    /// The program decides.
    Var(Var),
}

/// Variables and rows that make up an order with the lifetimes of its tensors.
pub struct Lifetimes<'a> {
    /// The problem.
    pub p: &'a Problem,
    /// The variables and rows.
    pub program: IntegerProgram,
    /// A solution to start from, one value per variable.
    pub start: Vec<f64>,
    /// Bytes of one unit of the program.
    pub unit: f64,
    /// C for each operator.
    pub created: Vec<Created>,
    /// P per tensor and step; empty for tensors that do not come and go.
    pub preserved: Vec<Vec<Preserved>>,
    /// Step of each operator and last step of each tensor in the starting order.
    step: Vec<usize>,
    last: Vec<usize>,
}

impl<'a> Lifetimes<'a> {
    /// The program of a problem, started from an order of it.
    pub fn new(p: &'a Problem, incumbent: &[usize]) -> Self {
        let n = p.len();
        let mut step = vec![0; n];
        incumbent.iter().enumerate().for_each(|(t, &v)| step[v] = t);
        let last_step = |t: &super::problem::Tensor| match t.kind {
            Kind::Pinned => n,
            _ => t.readers.iter().map(|&r| step[r]).max().unwrap_or(0),
        };
        let mut lifetimes = Lifetimes {
            program: IntegerProgram::default(),
            start: Vec::new(),
            unit: unit(p, incumbent),
            created: Vec::with_capacity(n),
            preserved: vec![Vec::new(); p.tensors.len()],
            last: p.tensors.iter().map(last_step).collect(),
            step,
            p,
        };
        lifetimes.create(incumbent);
        for t in 0..p.tensors.len() {
            if p.comes_and_goes(t) {
                lifetimes.preserve(t);
            }
        }
        lifetimes.run_with_inputs();
        lifetimes.keep_dependences();
        lifetimes
    }

    /// A binary, with its value in the starting order.
    pub fn binary(&mut self, start: bool) -> Var {
        self.start.push(f64::from(u8::from(start)));
        self.program.binary()
    }

    /// A variable between two values, with its value in the starting order.
    pub fn real(&mut self, min: f64, max: f64, start: f64) -> Var {
        self.start.push(start);
        self.program.real(min, max)
    }

    /// Bytes in units of the program.
    pub fn units(&self, bytes: u64) -> f64 {
        bytes as f64 / self.unit
    }

    /// C(e, t): the variable that creates a tensor at a step, inside its operator's span.
    pub fn creates(&self, t: usize, step: usize) -> Option<Var> {
        self.created[self.p.tensors[t].producer?].at(step)
    }

    /// Equations 3 and 10, and one operator per step.
    fn create(&mut self, incumbent: &[usize]) {
        let n = self.p.len();
        let spans = spans(self.p, incumbent);
        let mut at_step: Vec<Vec<(f64, Var)>> = vec![Vec::new(); n];
        for (v, &(first, last)) in spans.iter().enumerate() {
            let vars: Vec<Var> = (first..=last).map(|t| self.binary(self.step[v] == t)).collect();
            let row: Vec<(f64, Var)> = vars.iter().map(|&var| (1.0, var)).collect();
            self.program.equal(&row, 1.0);
            vars.iter().zip(first..).for_each(|(&var, t)| at_step[t].push((1.0, var)));
            self.created.push(Created { first, vars });
        }
        at_step.iter().for_each(|row| self.program.equal(row, 1.0));
    }

    /// Equations 1, 2, 11 and 12 for one tensor.
    fn preserve(&mut self, t: usize) {
        let n = self.p.len();
        let tensor = &self.p.tensors[t];
        let (kind, producer) = (tensor.kind, tensor.producer);
        let sinks: Vec<_> = tensor.readers.iter().map(|&r| self.created[r].span()).collect();
        let latest = sinks.iter().map(|s| s.end - 1).max().unwrap_or(0);
        let surely = sinks.iter().map(|s| s.start).max().unwrap_or(0);
        let (first, created) = match producer {
            Some(w) => (self.created[w].first + 1, self.created[w].span().end),
            None => (0, 0),
        };
        let made = producer.map_or(0, |w| self.step[w] + 1);
        for s in 0..n {
            let pinned = kind == Kind::Pinned;
            let p = if s < first || (!pinned && s > latest) || sinks.is_empty() && !pinned {
                Preserved::No
            } else if s >= created && (pinned || s <= surely) {
                Preserved::Yes
            } else {
                let alive = made <= s && s <= self.last[t];
                Preserved::Var(self.real(0.0, 1.0, f64::from(u8::from(alive))))
            };
            self.preserved[t].push(p);
        }
        let create = |s: usize| producer.and_then(|w| self.created[w].at(s));
        for s in 0..n {
            let p = self.preserved[t][s];
            // P(t) ≤ P(t−1) + C(t−1), with equality for what stays to the end.
            let mut row: Vec<(f64, Var)> = Vec::new();
            let mut constant = 0.0;
            add(&mut row, &mut constant, 1.0, p);
            if s > 0 {
                add(&mut row, &mut constant, -1.0, self.preserved[t][s - 1]);
                row.extend(create(s - 1).map(|c| (-1.0, c)));
            } else if producer.is_none() {
                constant -= 1.0;
            }
            if !row.is_empty() && kind == Kind::Pinned {
                self.program.equal(&row, -constant);
            } else if !row.is_empty() {
                self.program.at_most(&row, -constant);
            }
            if let (Preserved::Var(p), Some(c)) = (p, create(s)) {
                self.program.at_most(&[(1.0, p), (1.0, c)], 1.0);
            }
        }
    }

    /// Equation 4: an operator runs while all its inputs are preserved.
    fn run_with_inputs(&mut self) {
        for v in 0..self.p.len() {
            for &t in &self.p.reads[v] {
                for s in self.created[v].span() {
                    let Some(c) = self.created[v].at(s) else { continue };
                    match self.preserved[t][s] {
                        Preserved::Yes => {}
                        Preserved::Var(p) => self.program.at_most(&[(1.0, c), (-1.0, p)], 0.0),
                        Preserved::No => self.program.at_most(&[(1.0, c)], 0.0),
                    }
                }
            }
        }
    }

    /// An operator has run by step t only if those before it have by step t − 1: edges of
    /// zero bytes, and a tighter form of equations 2 and 4 together for the others.
    fn keep_dependences(&mut self) {
        for b in 0..self.p.len() {
            for &a in &self.p.before[b] {
                let (before, after) = (self.created[a].span(), self.created[b].span());
                if before.end <= after.start {
                    continue;
                }
                for t in after.start..before.end.min(after.end) {
                    let ran = |v: usize, until: usize, sign: f64| {
                        let c = &self.created[v];
                        (c.first..until).filter_map(move |s| Some((sign, c.at(s)?)))
                    };
                    let row: Vec<(f64, Var)> = ran(b, t + 1, 1.0).chain(ran(a, t, -1.0)).collect();
                    self.program.at_most(&row, 0.0);
                }
            }
        }
    }

    /// Equation 13: the variable that is no less than the live bytes of any step. The
    /// starting order's `peak` bounds it from above.
    pub fn peak_of_live_bytes(&mut self, peak: u64) -> Var {
        let p = self.p;
        let least = (0..p.len()).map(|v| p.own(v)).max().unwrap_or(0);
        let (least, most) = (self.units(least), self.units(peak - p.resident));
        let peak = self.real(least.min(most), most, most);
        for s in 0..p.len() {
            let mut row = vec![(-1.0, peak)];
            let mut constant = 0.0;
            for t in 0..p.tensors.len() {
                if p.comes_and_goes(t) {
                    let size = self.units(p.tensors[t].bytes);
                    add(&mut row, &mut constant, size, self.preserved[t][s]);
                }
            }
            for v in 0..p.len() {
                let size = self.units(p.bytes(&p.writes[v]));
                row.extend(self.created[v].at(s).filter(|_| size > 0.0).map(|c| (size, c)));
                row.extend(self.saved(v, s));
            }
            self.program.at_most(&row, -constant);
        }
        peak
    }

    /// What operator v's outputs take over from inputs that die in it at step s: for each
    /// declared pair at most its bytes, each tensor in one pair.
    fn saved(&mut self, v: usize, s: usize) -> Vec<(f64, Var)> {
        let p = self.p;
        let Some(c) = self.created[v].at(s) else { return Vec::new() };
        let chosen = if self.step[v] == s { p.matching(v, |x| self.last[x] == s) } else { vec![] };
        let mut row = Vec::new();
        let mut of_tensor: Vec<(usize, Var)> = Vec::new();
        for &(x, y) in &p.pairs[v] {
            if matches!(p.tensors[x].kind, Kind::Pinned) {
                continue;
            }
            let start = f64::from(u8::from(chosen.contains(&(x, y))));
            let saved = self.real(0.0, 1.0, start);
            self.program.at_most(&[(1.0, saved), (-1.0, c)], 0.0);
            match self.preserved[x].get(s + 1) {
                Some(Preserved::Yes) => self.program.at_most(&[(1.0, saved)], 0.0),
                Some(Preserved::Var(later)) => {
                    self.program.at_most(&[(1.0, saved), (1.0, *later)], 1.0);
                }
                Some(Preserved::No) | None => {}
            }
            let bytes = p.tensors[x].bytes.min(p.tensors[y].bytes);
            row.push((-self.units(bytes), saved));
            of_tensor.extend([(x, saved), (y, saved)]);
        }
        of_tensor.sort_unstable_by_key(|&(t, _)| t);
        for group in of_tensor.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
            let group: Vec<(f64, Var)> = group.iter().map(|&(_, var)| (1.0, var)).collect();
            self.program.at_most(&group, 1.0);
        }
        row
    }
}

/// Adds factor × P to a row.
pub fn add(row: &mut Vec<(f64, Var)>, constant: &mut f64, factor: f64, p: Preserved) {
    match p {
        Preserved::No => {}
        Preserved::Yes => *constant += factor,
        Preserved::Var(var) => row.push((factor, var)),
    }
}

/// The steps at which each operator can run: after all its ancestors, before all its
/// descendants.
pub(super) fn spans(p: &Problem, order: &[usize]) -> Vec<(usize, usize)> {
    let ancestors = counts(&p.before, order.iter());
    let descendants = counts(&p.after, order.iter().rev());
    (0..p.len()).map(|v| (ancestors[v], p.len() - 1 - descendants[v])).collect()
}

/// How many operators each one reaches, in an order in which those come first.
fn counts<'a>(next: &[Vec<usize>], order: impl Iterator<Item = &'a usize>) -> Vec<usize> {
    let words = next.len().div_ceil(64);
    let mut reached = vec![vec![0u64; words]; next.len()];
    for &v in order {
        let mut set = vec![0u64; words];
        for &o in &next[v] {
            set[o / 64] |= 1 << (o % 64);
            set.iter_mut().zip(&reached[o]).for_each(|(a, b)| *a |= b);
        }
        reached[v] = set;
    }
    reached.iter().map(|set| set.iter().map(|w| w.count_ones() as usize).sum()).collect()
}

/// The largest figure a row should hold, so that the solver's tolerances stay far below one
/// unit's share of it.
const LARGEST: f64 = 1e6;

/// Bytes of one unit: the greatest common divisor of all sizes, or more where the peak would
/// be too large a figure.
fn unit(p: &Problem, incumbent: &[usize]) -> f64 {
    let sizes = (0..p.tensors.len()).filter(|&t| p.comes_and_goes(t)).map(|t| p.tensors[t].bytes);
    let divisor = sizes.fold(0, gcd).max(1) as f64;
    let peak = (p.peak(incumbent) - p.resident) as f64;
    divisor.max(peak / LARGEST)
}
