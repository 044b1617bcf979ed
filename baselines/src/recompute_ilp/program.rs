//! Checkmate's program (Jain et al., MLSys 2020, equations 1 to 9), over blocks of operators.
//!
//! Stage t ends with the first run of block t. R(t, i) says that block i < t runs again in stage t, in the blocks' order,
//! S(t, i) that what it made is there as stage t begins, F(t, i, k) that it is freed in stage t after block k, which reads it:
//!
//! - what runs finds its operands: R(t, j) ≤ R(t, i) + S(t, i) where j reads i (1b), R(t, t) = 1 (8a);
//! - what is there was there or was made: S(t, i) ≤ S(t − 1, i) + R(t − 1, i) (1c);
//! - F(t, i, k) is at most R(t, k), 1 − S(t + 1, i), and 1 − R(t, j) for all later j that read i (6);
//! - while a block runs, bytes are at most the limit (7, 8); what is above it pays a fine.
//!
//! F needs no lower bound, and U, the bytes after a block, no upper one: freeing only makes room. Variables that cannot be
//! of use are left out: those of what nothing reads any more.

use super::blocks::Block;
use arenic_passes::mip::{self, Failure, IntegerProgram, Var};

/// Fine for bytes above the limit, as many as the limit, in units of the objective: a hundredth of the step.
const FINE: f64 = 1e5;

/// Which earlier blocks run again in each stage, increasing.
pub(super) type Stages = Vec<Vec<usize>>;

/// The cheapest schedule of blocks whose bytes keep a limit, or come as near to it as there is one.
///
/// # Errors
/// The solver found nothing within its limits, or gave up.
pub(super) fn solve(
    blocks: &[Block],
    always: &[f64],
    limit: u64,
    limits: &mip::Limits,
) -> Result<Stages, Failure> {
    let mut rows = Rows::new(blocks);
    rows.operands();
    rows.bytes(always, limit.max(1) as f64);
    let objective = rows.objective();
    let Rows { program, start, again, .. } = rows;
    let answer = program.minimise(objective, &start, limits, &mut |_, _| {})?;
    let runs = |row: &Vec<Option<Var>>| {
        let set = |i: &usize| row[*i].is_some_and(|v| answer.is_set(v));
        (0..row.len()).filter(set).collect()
    };
    Ok(again.iter().map(runs).collect())
}

struct Rows<'a> {
    blocks: &'a [Block],
    /// The blocks that read each one.
    readers: Vec<Vec<usize>>,
    program: IntegerProgram,
    /// The schedule that drops nothing, as a solution.
    start: Vec<f64>,
    /// R and S, by stage and block.
    again: Vec<Vec<Option<Var>>>,
    there: Vec<Vec<Option<Var>>>,
    /// Terms of the objective.
    costs: Vec<(f64, Var)>,
}

impl<'a> Rows<'a> {
    fn new(blocks: &'a [Block]) -> Self {
        let n = blocks.len();
        let mut readers = vec![Vec::new(); n];
        for (j, block) in blocks.iter().enumerate() {
            block.reads.iter().for_each(|&i| readers[i].push(j));
        }
        let mut rows = Rows {
            blocks,
            readers,
            program: IntegerProgram::default(),
            start: Vec::new(),
            again: Vec::new(),
            there: Vec::new(),
            costs: Vec::new(),
        };
        let all: f64 = blocks.iter().map(|b| b.seconds).sum();
        let unit = 100.0 / all.max(f64::MIN_POSITIVE);
        for (t, (there, again)) in rows.useful().into_iter().enumerate() {
            let held = |i: usize| rows.readers[i].iter().any(|&j| j >= t);
            let held: Vec<bool> = (0..t).map(held).collect();
            let there = (0..t).map(|i| there[i].then(|| rows.binary(held[i]))).collect();
            let again: Vec<Option<Var>> =
                (0..t).map(|i| again[i].then(|| rows.binary(false))).collect();
            let cost = |(i, v): (usize, &Option<Var>)| Some((blocks[i].seconds * unit, (*v)?));
            rows.costs.extend(again.iter().enumerate().filter_map(cost));
            rows.there.push(there);
            rows.again.push(again);
        }
        rows
    }

    /// By stage and block: whether its results can be of use, and whether it can run again for that.
    fn useful(&self) -> Vec<(Vec<bool>, Vec<bool>)> {
        let n = self.blocks.len();
        let mut later = vec![false; n];
        let mut stages = Vec::with_capacity(n);
        for t in (0..n).rev() {
            let mut again = vec![false; t];
            for i in (0..t).rev() {
                let reads = |&j: &usize| j == t || j < t && again[j];
                later[i] |= self.readers[i].iter().any(reads);
                again[i] = later[i] && self.blocks[i].again && t <= self.blocks[i].until;
            }
            stages.push((later[..t].to_vec(), again));
        }
        stages.reverse();
        stages
    }

    fn binary(&mut self, start: bool) -> Var {
        self.start.push(f64::from(u8::from(start)));
        self.program.binary()
    }

    fn real(&mut self, max: f64, start: f64) -> Var {
        self.start.push(start);
        self.program.real(0.0, max)
    }

    /// What terms come to as the program starts.
    fn value(&self, terms: &[(f64, Var)]) -> f64 {
        terms.iter().map(|&(f, v)| f * self.start[v.index()]).sum()
    }

    /// What runs finds its operands, and what is there was there or was made.
    fn operands(&mut self) {
        for t in 0..self.blocks.len() {
            for j in 0..=t {
                let runs = if j < t { self.again[t][j] } else { None };
                if j < t && runs.is_none() {
                    continue;
                }
                for &i in &self.blocks[j].reads {
                    let found = [self.again[t][i], self.there[t][i]].into_iter().flatten();
                    let mut row: Vec<(f64, Var)> = found.map(|v| (-1.0, v)).collect();
                    row.extend(runs.map(|v| (1.0, v)));
                    self.program.at_most(&row, if j < t { 0.0 } else { -1.0 });
                }
            }
            // What block t − 1 made is there as stage t begins if it is wanted.
            for i in 0..t.saturating_sub(1) {
                let Some(there) = self.there[t][i] else { continue };
                let before = [self.again[t - 1][i], self.there[t - 1][i]].into_iter().flatten();
                let mut row: Vec<(f64, Var)> = before.map(|v| (-1.0, v)).collect();
                row.push((1.0, there));
                self.program.at_most(&row, 0.0);
            }
        }
    }

    /// While a block runs, bytes are at most the limit, or pay for what is above it.
    fn bytes(&mut self, always: &[f64], limit: f64) {
        let over = self.real(f64::INFINITY, 0.0);
        for (t, always) in always.iter().enumerate() {
            let kept = |i: usize| self.blocks[i].kept(t) as f64 / limit;
            let there = (0..t).filter_map(|i| Some((kept(i), self.there[t][i]?)));
            let mut held = self.sum(there.collect(), always / limit);
            let freed = self.freed(t);
            for k in 0..=t {
                let runs = if k < t { self.again[t][k] } else { None };
                if k < t && runs.is_none() {
                    continue;
                }
                let (own, beside) =
                    (self.blocks[k].bytes() as f64 / limit, self.blocks[k].beside / limit);
                let (taken, fixed) = match runs {
                    Some(v) => (vec![(own + beside, v)], 0.0),
                    None => (Vec::new(), own + beside),
                };
                let mut row = vec![(1.0, held), (-1.0, over)];
                row.extend(taken);
                // What the row lacks beyond what the start pays already.
                let lacking = self.value(&row) + fixed - 1.0;
                self.start[over.index()] += lacking.max(0.0);
                self.program.at_most(&row, 1.0 - fixed);
                let Some(runs) = runs else { continue };
                let mut row = vec![(1.0, held), (own, runs)];
                let kept = |i: usize| self.blocks[i].kept(t) as f64 / limit;
                let freed = freed.iter().filter(|f| f.0 == k);
                row.extend(freed.map(|&(_, i, v)| (-kept(i), v)));
                held = self.sum(row, 0.0);
            }
        }
        self.costs.push((FINE, over));
    }

    /// U: at least a sum.
    fn sum(&mut self, mut row: Vec<(f64, Var)>, fixed: f64) -> Var {
        let sum = self.real(f64::INFINITY, self.value(&row) + fixed);
        row.push((-1.0, sum));
        self.program.at_most(&row, -fixed);
        sum
    }

    /// F of a stage: k, i and the variable. What the stage's last block reads is not freed.
    fn freed(&mut self, t: usize) -> Vec<(usize, usize, Var)> {
        let mut freed = Vec::new();
        for i in (0..t).filter(|i| !self.blocks[t].reads.contains(i)) {
            // It is read, or wanted, after this.
            let mut wanted = self.there.get(t + 1).and_then(|there| there[i]);
            for k in (i + 1..t).rev().filter(|k| self.blocks[*k].reads.contains(&i)) {
                let Some(runs) = self.again[t][k] else { continue };
                let free = self.real(1.0, 0.0);
                self.program.at_most(&[(1.0, free), (-1.0, runs)], 0.0);
                if let Some(wanted) = wanted {
                    self.program.at_most(&[(1.0, free), (1.0, wanted)], 1.0);
                }
                freed.push((k, i, free));
                wanted = Some(match wanted {
                    None => runs,
                    Some(later) => {
                        let either = self.real(1.0, self.start[later.index()]);
                        self.program.at_most(&[(1.0, later), (-1.0, either)], 0.0);
                        self.program.at_most(&[(1.0, runs), (-1.0, either)], 0.0);
                        either
                    }
                });
            }
        }
        freed
    }

    /// The variable to minimise.
    fn objective(&mut self) -> Var {
        let mut row = std::mem::take(&mut self.costs);
        let start = self.value(&row);
        let objective = self.real(f64::INFINITY, start);
        row.push((-1.0, objective));
        self.program.at_most(&row, 0.0);
        objective
    }
}
