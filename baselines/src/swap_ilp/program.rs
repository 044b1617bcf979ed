//! The integer program of a window of swaps; tvDNN prints none, this one is ours.
//!
//! Steps are cut into cells at a grid of points, among them the beginning and the end of
//! each gap and its copies' present times. For gap g and point c, r(g, c) says that the
//! bytes are used again from c on, f(g, c) that the copy back is issued at c or before:
//! both never fall, f ≤ r, and both are equal at the gap's end, where they say whether the
//! tensor leaves at all. T(c) is when point c is reached, and T at the end is minimal:
//!
//! - T(c+1) − T(c) is at least the seconds of the kernels between them;
//! - copies to the host that begin at j or later and must be done by k take at most
//!   T(k) − T(j), for all j < k; the same for copies to the device that are issued at j or
//!   later and needed by k. This is what one engine can do by the earliest deadline first;
//! - in each cell, bytes are at most the limit; what is above it pays a fine.
//!
//! Both directions run at their full rate, and copies may be interrupted in the program: its
//! times are a proposal, predicted again without either.

use arenic_passes::mip::{self, Answer, Failure, IntegerProgram, Var};

/// Fine for bytes above the limit, as many as the limit, in units of the objective: a
/// hundredth of the step's kernels.
const FINE: f64 = 1e5;

/// The price of a second of the link that kernels hide, in seconds.
const HIDDEN: f64 = 1e-4;

/// When a tensor's copies run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaves {
    /// The step that uses its bytes again.
    pub(super) release: usize,
    /// The step before which the copy back is issued.
    pub(super) issue: usize,
}

/// A gap to decide.
#[derive(Clone, Debug)]
pub(super) struct Swap {
    pub(super) x: usize,
    pub(super) bytes: u64,
    /// The first step that does without the tensor, and the one that needs it.
    pub(super) first: usize,
    pub(super) end: usize,
    /// Seconds of the copy to the host, 0 where there is one already, and of the one back.
    pub(super) out: f64,
    pub(super) back: f64,
    /// As it is now; `None` if it stays.
    pub(super) now: Option<Leaves>,
}

/// The step and its other copies.
pub(super) struct Copies {
    /// Live bytes of each step while all gaps' tensors stay.
    pub(super) live: Vec<u64>,
    /// Seconds of each step's kernel.
    pub(super) seconds: Vec<f64>,
    /// Copies to the host: from this step on, done by that one, so many seconds.
    pub(super) out: Vec<(usize, usize, f64)>,
    /// Copies to the device.
    pub(super) back: Vec<(usize, usize, f64)>,
}

/// What becomes of each gap, by the window's program.
///
/// # Errors
/// The solver found nothing within its limits, or gave up.
pub(super) fn solve(
    swaps: &[Swap],
    copies: &Copies,
    limit: u64,
    limits: &mip::Limits,
) -> Result<Vec<Option<Leaves>>, Failure> {
    let mut rows = Rows::new(swaps, copies);
    rows.bytes(limit as f64);
    rows.times();
    let objective = rows.objective();
    let Rows { program, start, cells, grid, .. } = rows;
    let answer = program.minimise(objective, &start, limits, &mut |_, _| {})?;
    Ok(cells.iter().map(|cells| cells.decode(&answer, &grid)).collect())
}

/// r and f of a gap, from its first point to its end.
struct Cells {
    /// The grid's point at which the gap begins.
    first: usize,
    released: Vec<Var>,
    issued: Vec<Var>,
}

impl Cells {
    /// Whether the tensor leaves.
    fn leaves(&self) -> Var {
        self.released[self.released.len() - 1]
    }

    /// r at a point, no later than the gap's end.
    fn released(&self, point: usize) -> Option<Var> {
        let at = point.checked_sub(self.first)?;
        Some(self.released[at.min(self.released.len() - 1)])
    }

    /// f at a point.
    fn issued(&self, point: usize) -> Option<Var> {
        let at = point.checked_sub(self.first)?;
        Some(self.issued[at.min(self.issued.len() - 1)])
    }

    fn decode(&self, answer: &Answer, grid: &[usize]) -> Option<Leaves> {
        let first = |vars: &[Var]| vars.iter().position(|&v| answer.is_set(v));
        let step = |at: usize| grid[self.first + at];
        let release = first(&self.released)?;
        let issue = first(&self.issued).unwrap_or(self.issued.len() - 1);
        Some(Leaves { release: step(release), issue: step(issue) })
    }
}

struct Rows<'a> {
    swaps: &'a [Swap],
    copies: &'a Copies,
    grid: Vec<usize>,
    program: IntegerProgram,
    /// The present schedule as a solution.
    start: Vec<f64>,
    cells: Vec<Cells>,
    /// Terms of the objective.
    costs: Vec<(f64, Var)>,
    /// Units of the objective for a second.
    unit: f64,
}

impl<'a> Rows<'a> {
    fn new(swaps: &'a [Swap], copies: &'a Copies) -> Self {
        let steps = copies.seconds.len();
        let mut grid = vec![0, steps];
        for swap in swaps {
            grid.extend([swap.first, swap.end]);
            grid.extend(swap.now.iter().flat_map(|l| [l.release, l.issue]));
        }
        grid.retain(|&step| step <= steps);
        grid.sort_unstable();
        grid.dedup();
        let all: f64 = copies.seconds.iter().sum();
        let mut rows = Rows {
            swaps,
            copies,
            grid,
            program: IntegerProgram::default(),
            start: Vec::new(),
            cells: Vec::new(),
            costs: Vec::new(),
            unit: 100.0 / all.max(f64::MIN_POSITIVE),
        };
        swaps.iter().for_each(|swap| rows.swap(swap));
        rows
    }

    fn swap(&mut self, swap: &Swap) {
        let point = |step: usize| self.grid.partition_point(|&g| g < step);
        let (first, end) = (point(swap.first), point(swap.end));
        let steps: Vec<usize> = self.grid[first..=end].to_vec();
        let set = |at: Option<usize>, step: usize| at.is_some_and(|at| at <= step);
        let release = swap.now.map(|l| l.release);
        let issue = swap.now.map(|l| l.issue.max(l.release));
        let released: Vec<Var> = steps.iter().map(|&s| self.binary(set(release, s))).collect();
        let issued: Vec<Var> = steps.iter().map(|&s| self.binary(set(issue, s))).collect();
        for vars in [&released, &issued] {
            for pair in vars.windows(2) {
                self.program.at_most(&[(1.0, pair[0]), (-1.0, pair[1])], 0.0);
            }
        }
        for (&r, &f) in released.iter().zip(&issued) {
            self.program.at_most(&[(1.0, f), (-1.0, r)], 0.0);
        }
        let last = released.len() - 1;
        self.program.equal(&[(1.0, released[last]), (-1.0, issued[last])], 0.0);
        let hidden = HIDDEN * (swap.out + swap.back) * self.unit;
        self.costs.push((hidden, released[last]));
        self.cells.push(Cells { first, released, issued });
    }

    fn binary(&mut self, start: bool) -> Var {
        self.start.push(f64::from(u8::from(start)));
        self.program.binary()
    }

    fn real(&mut self, start: f64) -> Var {
        self.start.push(start);
        self.program.real(0.0, f64::INFINITY)
    }

    /// What terms come to as the program starts.
    fn value(&self, terms: &[(f64, Var)]) -> f64 {
        terms.iter().map(|&(f, v)| f * self.start[v.index()]).sum()
    }

    /// Bytes of each cell keep the limit, or pay for what is above it.
    fn bytes(&mut self, limit: f64) {
        let limit = limit.max(1.0);
        for c in 0..self.grid.len() - 1 {
            let (from, to) = (self.grid[c], self.grid[c + 1]);
            let most = self.copies.live[from..to].iter().copied().max().unwrap_or(0) as f64;
            if most <= limit {
                continue;
            }
            let mut row = Vec::new();
            for (swap, cells) in self.swaps.iter().zip(&self.cells) {
                if swap.first <= from && to <= swap.end {
                    let bytes = swap.bytes as f64 / limit;
                    row.extend(cells.released(c).map(|r| (-bytes, r)));
                    row.extend(cells.issued(c).map(|f| (bytes, f)));
                }
            }
            let over = self.real((self.value(&row) + most / limit - 1.0).max(0.0));
            row.push((-1.0, over));
            self.program.at_most(&row, 1.0 - most / limit);
            self.costs.push((FINE, over));
        }
    }

    /// T, one point after the other.
    fn times(&mut self) {
        let mut times = vec![self.real(0.0)];
        for k in 1..self.grid.len() {
            let kernels = self.copies.seconds[self.grid[k - 1]..self.grid[k]].iter().sum();
            let mut rows = vec![(k - 1, Vec::new(), kernels)];
            for j in 0..k {
                rows.push(self.out(j, k));
                rows.push(self.back(j, k));
            }
            // Kernels alone take as long as most of these copies.
            let grid = &self.grid;
            let matters = |(j, terms, seconds): &(usize, Vec<(f64, Var)>, f64)| {
                let most: f64 = terms.iter().map(|&(f, _)| f.max(0.0)).sum();
                let kernels: f64 = self.copies.seconds[grid[*j]..grid[k]].iter().sum();
                *j == k - 1 || most + seconds > kernels
            };
            rows.retain(matters);
            let begin = |(j, terms, seconds): &(usize, Vec<(f64, Var)>, f64)| {
                self.start[times[*j].index()] + self.value(terms) + seconds
            };
            let time = self.real(rows.iter().map(begin).fold(0.0, f64::max));
            for (j, mut terms, seconds) in rows {
                terms.extend([(1.0, times[j]), (-1.0, time)]);
                self.program.at_most(&terms, -seconds);
            }
            times.push(time);
        }
        self.costs.push((self.unit, times[times.len() - 1]));
    }

    /// Seconds of copies to the host that begin at j or later and are done by k.
    fn out(&self, j: usize, k: usize) -> (usize, Vec<(f64, Var)>, f64) {
        let swaps =
            self.swaps.iter().zip(&self.cells).filter(|(s, cells)| cells.first >= j && s.out > 0.0);
        let terms = swaps.filter_map(|(s, cells)| Some((s.out, cells.released(k)?)));
        (j, terms.collect(), self.fixed(&self.copies.out, j, k))
    }

    /// Seconds of copies to the device that are issued at j or later and needed by k.
    fn back(&self, j: usize, k: usize) -> (usize, Vec<(f64, Var)>, f64) {
        let mut terms = Vec::new();
        let needed = |(s, _): &(&Swap, &Cells)| s.end <= self.grid[k] && s.end > self.grid[j];
        for (swap, cells) in self.swaps.iter().zip(&self.cells).filter(needed) {
            terms.push((swap.back, cells.leaves()));
            let earlier = j.checked_sub(1).and_then(|before| cells.issued(before));
            terms.extend(earlier.map(|f| (-swap.back, f)));
        }
        (j, terms, self.fixed(&self.copies.back, j, k))
    }

    fn fixed(&self, copies: &[(usize, usize, f64)], j: usize, k: usize) -> f64 {
        // At the step's end all copies must be done.
        let last = k + 1 == self.grid.len();
        let inside =
            |c: &&(usize, usize, f64)| c.0 >= self.grid[j] && (last || c.1 <= self.grid[k]);
        copies.iter().filter(inside).map(|c| c.2).sum()
    }

    /// The variable to minimise.
    fn objective(&mut self) -> Var {
        let mut row = std::mem::take(&mut self.costs);
        let start = self.value(&row);
        let objective = self.real(start);
        row.push((-1.0, objective));
        self.program.at_most(&row, 0.0);
        objective
    }
}
