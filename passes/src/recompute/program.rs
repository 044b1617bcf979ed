//! The integer program of a window.
//!
//! For each span s and stage j, S(s, j) says that its tensor is there when the chain of j
//! begins; at the first stage this is the decision to keep it. R(i, j) repeats task i at
//! stage j. As in Checkmate (Jain et al., 2020, equation 1), S(s, j+1) ≤ S(s, j) + R(i, j),
//! a repeat needs its operands there or repeated, and seconds of R are minimal. What came
//! back stays to the span's end (S never falls) where the decision H(s) is to hold it, as
//! MOCCASIN's retention intervals do, else it is gone after the chain; so a solution is a
//! choice, and every choice of the window is a solution.
//!
//! Bytes are at most the limit between stages, and in a chain while each of its tasks runs:
//! spans that are there, what the task writes, and A: what an earlier one wrote that a later
//! one reads or that stays. A is at least R(u, j) − S for each later reader u, so the least A
//! is right where R and S are integral, without Checkmate's products for what is freed.
//! Chains run in the order of the first pass; a walk may take another, and what it needs is
//! measured there. Bytes above the limit pay a fine, so every window has a solution.

use super::window::{Link, Read, Span, Window};
use crate::mip::{self, Answer, Failure, Program, Var};
use crate::residency::Gap;

/// Fine for bytes above the limit, as many as the limit, in units of the objective: a
/// hundredth of the window's chains.
const FINE: f64 = 1e5;

/// What becomes of the window's spans by its integer program; those that are not decided keep
/// what they have.
///
/// # Errors
/// The solver found nothing within its limits, or gave up.
pub(super) fn solve(w: &Window, limit: u64, limits: &mip::Limits) -> Result<Vec<Gap>, Failure> {
    let mut rows = Rows::new(w, limit);
    rows.spans();
    rows.chains();
    rows.quiet();
    let objective = rows.objective();
    let Rows { program, start, here, hold, .. } = rows;
    let answer = program.minimise(objective, &start, limits, &mut |_, _| {})?;
    Ok(decode(w, &here, &hold, &answer))
}

fn decode(w: &Window, here: &[Vec<Var>], hold: &[Var], answer: &Answer) -> Vec<Gap> {
    let gap = |(i, span): (usize, &Span)| match here[i].first() {
        _ if !span.decided => span.now,
        Some(&kept) if answer.is_set(kept) => Gap::Keep,
        _ => Gap::Repeat { hold: answer.is_set(hold[i]) },
    };
    w.spans.iter().enumerate().map(gap).collect()
}

struct Rows<'a> {
    w: &'a Window,
    limit: f64,
    program: Program,
    /// The present choice as a solution.
    start: Vec<f64>,
    /// S(s, j), from the span's first stage on.
    here: Vec<Vec<Var>>,
    /// H(s).
    hold: Vec<Var>,
    /// R(i, j), by stage and link.
    again: Vec<Vec<Var>>,
    /// Terms of the objective.
    costs: Vec<(f64, Var)>,
}

impl<'a> Rows<'a> {
    fn new(w: &'a Window, limit: u64) -> Self {
        let mut rows = Rows {
            w,
            limit: limit.max(1) as f64,
            program: Program::default(),
            start: Vec::new(),
            here: Vec::new(),
            hold: Vec::new(),
            again: Vec::new(),
            costs: Vec::new(),
        };
        let present = Present::of(w);
        let all: f64 = w.stages.iter().flat_map(|s| &s.chain).map(|l| l.seconds).sum();
        for (j, stage) in w.stages.iter().enumerate() {
            let again = present.again[j].iter().map(|&is| rows.binary(is)).collect::<Vec<_>>();
            let unit = 100.0 / all.max(f64::MIN_POSITIVE);
            rows.costs.extend(stage.chain.iter().zip(&again).map(|(l, &v)| (l.seconds * unit, v)));
            rows.again.push(again);
        }
        for (i, span) in w.spans.iter().enumerate() {
            let here = present.here[i].iter().map(|&is| rows.binary(is)).collect();
            rows.here.push(here);
            let hold = rows.binary(span.now.holds());
            rows.hold.push(hold);
        }
        rows
    }

    fn binary(&mut self, start: bool) -> Var {
        self.start.push(f64::from(u8::from(start)));
        self.program.binary()
    }

    fn real(&mut self, max: f64, start: f64) -> Var {
        self.start.push(start);
        self.program.real(0.0, max)
    }

    /// The link that makes a span's tensor at a stage.
    fn maker(&self, i: usize, j: usize) -> Option<Var> {
        let link = link(&self.w.stages[j].chain, self.w.spans[i].made)?;
        Some(self.again[j][link])
    }

    fn spans(&mut self) {
        for (i, span) in self.w.spans.iter().enumerate() {
            let (here, hold) = (self.here[i].clone(), self.hold[i]);
            if !span.decided {
                self.program.at_most(&[(1.0, here[0])], 0.0);
                self.program.equal(&[(1.0, hold)], f64::from(u8::from(span.now.holds())));
            }
            // What is kept needs no decision to hold it.
            self.program.at_most(&[(1.0, here[0]), (1.0, hold)], 1.0);
            for (j, pair) in span.stages.clone().zip(here.windows(2)) {
                let (now, next) = (pair[0], pair[1]);
                self.program.at_most(&[(1.0, now), (-1.0, next)], 0.0);
                self.program.at_most(&[(1.0, next), (-1.0, now), (-1.0, hold)], 0.0);
                let mut row = vec![(1.0, next), (-1.0, now)];
                if let Some(again) = self.maker(i, j) {
                    self.program.at_most(&[(1.0, again), (1.0, hold), (-1.0, next)], 1.0);
                    row.push((-1.0, again));
                }
                self.program.at_most(&row, 0.0);
            }
            let needed = span.stages.end - 1;
            let mut row = vec![(-1.0, here[here.len() - 1])];
            row.extend(self.maker(i, needed).map(|again| (-1.0, again)));
            self.program.at_most(&row, -1.0);
        }
    }

    /// S of a span at a stage, and at the next one; there it is at its end.
    fn at(&self, i: usize, j: usize) -> (Var, Option<Var>) {
        let at = j - self.w.spans[i].stages.start;
        (self.here[i][at], self.here[i].get(at + 1).copied())
    }

    fn chains(&mut self) {
        for j in 0..self.w.stages.len() {
            self.operands(j);
            self.chain_bytes(j);
        }
    }

    /// A repeat finds its operands.
    fn operands(&mut self, j: usize) {
        for (l, link) in self.w.stages[j].chain.iter().enumerate() {
            for read in &link.reads {
                let mut row = vec![(1.0, self.again[j][l])];
                row.extend(read.span.map(|i| (-1.0, self.at(i, j).0)));
                row.extend(read.maker.map(|m| (-1.0, self.again[j][m])));
                self.program.at_most(&row, 0.0);
            }
        }
    }

    /// Bytes while each task of a chain runs.
    fn chain_bytes(&mut self, j: usize) {
        let stage = &self.w.stages[j];
        let spans = self.w.spans.iter().enumerate().filter(|(_, s)| s.stages.contains(&j));
        let there: Vec<(u64, Var)> = spans.map(|(i, s)| (s.bytes, self.at(i, j).0)).collect();
        let most: u64 = there.iter().map(|t| t.0).chain(stage.chain.iter().map(|l| l.made)).sum();
        if (stage.base + most) as f64 <= self.limit {
            return;
        }
        let brought = self.brought(j);
        for (l, link) in stage.chain.iter().enumerate() {
            let mut row: Vec<(f64, Var)> = there.iter().map(|&(b, v)| (b as f64, v)).collect();
            row.push((link.made as f64, self.again[j][l]));
            let mut base = stage.base as f64;
            for b in brought.iter().filter(|b| b.maker < l) {
                let alive = &b.alive[b.alive.partition_point(|alive| alive.until < l)];
                row.extend(alive.terms.iter().map(|&(f, v)| (f * b.bytes, v)));
                base += alive.constant * b.bytes;
            }
            self.keep_limit(row, base);
        }
    }

    /// What the tasks of a chain make for later ones, or to stay.
    fn brought(&mut self, j: usize) -> Vec<Brought> {
        let w = self.w;
        let chain = &w.stages[j].chain;
        let mut tensors: Vec<Read> = Vec::new();
        for (i, span) in w.spans.iter().enumerate().filter(|(_, s)| s.stages.contains(&j)) {
            let maker = link(chain, span.made);
            tensors.push(Read { x: span.site.x, bytes: span.bytes, span: Some(i), maker });
        }
        let without_span = chain.iter().flat_map(|l| &l.reads).filter(|r| r.span.is_none());
        tensors.extend(without_span);
        tensors.retain(|r| r.maker.is_some());
        tensors.sort_by_key(|r| r.x);
        tensors.dedup_by_key(|r| r.x);
        tensors.iter().map(|tensor| self.brought_by(j, tensor)).collect()
    }

    /// A of one tensor, up to each of its readers.
    fn brought_by(&mut self, j: usize, tensor: &Read) -> Brought {
        let here = tensor.span.map(|i| self.at(i, j));
        let (stays, constant) = match here {
            None => (Vec::new(), 0.0),
            Some((now, Some(next))) => (vec![(1.0, next), (-1.0, now)], 0.0),
            // The stage needs it.
            Some((now, None)) => (vec![(-1.0, now)], 1.0),
        };
        let to_the_end = constant > 0.0;
        let mut alive = vec![Alive { until: usize::MAX, terms: stays.clone(), constant }];
        let reads = |link: &Link| link.reads.iter().any(|r| r.x == tensor.x);
        let chain = self.w.stages[j].chain.iter().enumerate().rev();
        let mut later = stays;
        for (reader, _) in chain.filter(|(_, link)| !to_the_end && reads(link)) {
            let mut read = vec![(1.0, self.again[j][reader])];
            read.extend(here.map(|(now, _)| (-1.0, now)));
            let start = self.value(&read).max(self.value(&later)).max(0.0);
            let a = self.real(1.0, start);
            for mut row in [read, later] {
                row.push((-1.0, a));
                self.program.at_most(&row, 0.0);
            }
            later = vec![(1.0, a)];
            alive.push(Alive { until: reader, terms: later.clone(), constant });
        }
        alive.reverse();
        Brought { maker: tensor.maker.unwrap_or(0), bytes: tensor.bytes as f64, alive }
    }

    fn quiet(&mut self) {
        for quiet in &self.w.quiet {
            let bytes = |&i: &usize| (self.w.spans[i].bytes as f64, self.at(i, quiet.stage).0);
            let row: Vec<(f64, Var)> = quiet.idle.iter().map(bytes).collect();
            if quiet.base as f64 + row.iter().map(|term| term.0).sum::<f64>() > self.limit {
                self.keep_limit(row, quiet.base as f64);
            }
        }
    }

    /// Bytes beside the base keep the limit, or pay for what is above it.
    fn keep_limit(&mut self, bytes: Vec<(f64, Var)>, base: f64) {
        let over = (self.value(&bytes) + base - self.limit).max(0.0) / self.limit;
        let over = self.real(f64::INFINITY, over);
        let mut row: Vec<(f64, Var)> =
            bytes.into_iter().map(|(b, v)| (b / self.limit, v)).collect();
        row.push((-1.0, over));
        self.program.at_most(&row, 1.0 - base / self.limit);
        self.costs.push((FINE, over));
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

    /// What terms come to as the program starts.
    fn value(&self, terms: &[(f64, Var)]) -> f64 {
        terms.iter().map(|&(f, v)| f * self.start[v.index()]).sum()
    }
}

/// The place of a task in a chain.
fn link(chain: &[Link], task: u32) -> Option<usize> {
    chain.binary_search_by_key(&task, |l| l.task).ok()
}

/// A tensor that a chain makes.
struct Brought {
    /// The link that makes it.
    maker: usize,
    bytes: f64,
    /// Whether it is there, up to each of its readers, then to the end.
    alive: Vec<Alive>,
}

/// Whether a tensor is there up to a link, it included: the sum of terms and constant.
struct Alive {
    until: usize,
    terms: Vec<(f64, Var)>,
    constant: f64,
}

/// What the present choice does.
struct Present {
    /// S(s, j), by span, from its first stage on.
    here: Vec<Vec<bool>>,
    /// R(i, j), by stage and link.
    again: Vec<Vec<bool>>,
}

impl Present {
    fn of(w: &Window) -> Present {
        let mut there: Vec<bool> = w.spans.iter().map(|s| s.now == Gap::Keep).collect();
        let mut here = vec![Vec::new(); w.spans.len()];
        let mut again = Vec::with_capacity(w.stages.len());
        for (j, stage) in w.stages.iter().enumerate() {
            let mut runs = vec![false; stage.chain.len()];
            let spans = || w.spans.iter().enumerate().filter(|(_, s)| s.stages.contains(&j));
            spans().for_each(|(i, _)| here[i].push(there[i]));
            let needed = spans().filter(|&(i, s)| s.stages.end == j + 1 && !there[i]);
            let mut wanted: Vec<usize> =
                needed.filter_map(|(_, s)| link(&stage.chain, s.made)).collect();
            while let Some(l) = wanted.pop() {
                if !std::mem::replace(&mut runs[l], true) {
                    let away = |r: &&Read| r.span.is_none_or(|i| !there[i]);
                    let away = stage.chain[l].reads.iter().filter(away);
                    wanted.extend(away.filter_map(|r| r.maker));
                }
            }
            for (i, s) in spans() {
                let made = link(&stage.chain, s.made).is_some_and(|l| runs[l]);
                there[i] |= made && s.now.holds();
            }
            again.push(runs);
        }
        Present { here, again }
    }
}
