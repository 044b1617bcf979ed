//! Brings a sequence under a limit, by one least cut after another.
//!
//! At the run with the most live bytes, a cut says what is held across it and what runs again
//! afterwards ([`super::cut`]). What runs again does so just before its first reader, with the
//! operands that it needs in front of it: so the repeats of a block stand among its
//! gradients, and little is held at once. What was made again is a tensor like all others, so
//! that the next cut may drop it once more: checkpoints of checkpoints (Griewank and Walther,
//! "Algorithm 799: Revolve", 2000) need no rule of their own.

use super::cut::{Cut, Cutter, Needs};
use super::divide::divisions;
use super::improve::prune;
use super::runs::{Meter, RepeatCandidate, Runs};
use super::step::RecomputeStep;

/// Cuts of one moment: what turned out to be too late to run again is excluded from the next.
const TRIES: usize = 2;

/// Moments in a row at which nothing was won.
const VAIN: usize = 4;

/// Looking at so many arcs of a network takes as long as measuring a run.
const ARCS: u64 = 16;

/// A step that takes so many times as long is not looked into.
const LONGEST: f64 = 3.0;

/// How cuts are made. What is best for one step is not for another, and cuts are quick, so
/// that all are tried where time allows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// What divides repeats into segments may be held.
    divides: bool,
    /// Of the bytes that could be held one in so many is left for repeats; none where it is 0.
    room: u64,
}

pub(super) const STYLES: [Style; 4] = [
    Style { divides: true, room: 0 },
    Style { divides: false, room: 0 },
    Style { divides: false, room: 16 },
    Style { divides: true, room: 16 },
];

/// How cuts are made, and what each operator's repeat costs them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'a> {
    pub(super) style: Style,
    pub(super) prices: &'a [f64],
}

/// How many styles are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Styles {
    /// The one that is best for most steps.
    One,
    /// One after another until the limit is kept.
    UntilKept,
    /// All, for the fastest sequence.
    All,
}

/// A sequence under the limit, or as near to it as cuts lead; for each style at most so many runs
/// of the step's operators are measured.
pub(super) fn relieve(
    meter: &mut Meter,
    start: &Runs,
    limit: u64,
    most: u64,
    styles: Styles,
) -> RepeatCandidate {
    let load = meter.measure(start, limit);
    let start = RepeatCandidate { runs: start.clone(), load };
    let tried = if styles == Styles::One { 1 } else { STYLES.len() };
    let mut best = start.clone();
    let prices = meter.step.seconds.clone();
    for &style in &STYLES[..tried] {
        let found = by_cuts(meter, start.clone(), limit, most, Way { style, prices: &prices });
        let found = prune(meter, found, limit);
        if best.load.is_worse_than(&found.load) {
            best = found;
        }
        if styles == Styles::UntilKept && best.load.over == 0 {
            break;
        }
    }
    best
}

/// What cuts in one way lead to, while at most so many runs are measured.
pub(super) fn by_cuts(
    meter: &mut Meter,
    start: RepeatCandidate,
    limit: u64,
    most: u64,
    way: Way,
) -> RepeatCandidate {
    let mut best = start;
    let end = meter.measured.saturating_add(most);
    let longest = meter.step.seconds.iter().sum::<f64>() * LONGEST;
    // Runs at which cuts brought nothing, as the operator and how often it ran before.
    let mut vain: Vec<(u32, usize)> = Vec::new();
    let goes_on = |best: &RepeatCandidate| best.load.over > 0 && best.load.seconds <= longest;
    while goes_on(&best) && vain.len() < VAIN && meter.measured < end && !meter.is_stopped() {
        meter.measure(&best.runs, limit);
        let name = |t: usize| {
            let op = best.runs[t];
            (op, best.runs[..t].iter().filter(|&&o| o == op).count())
        };
        let above = (0..best.runs.len()).filter(|&t| meter.live[t] > limit);
        let mut above: Vec<usize> = above.collect();
        above.sort_by_key(|&t| std::cmp::Reverse(meter.live[t]));
        let Some(t) = above.into_iter().find(|&t| !vain.contains(&name(t))) else { break };
        match at(meter, &best, t, limit, way) {
            Some(better) => best = better,
            None => vain.push(name(t)),
        }
    }
    best
}

/// A better sequence by a cut at a run: by the cheapest, or by one that also holds what
/// divides its repeats into segments.
fn at(
    meter: &mut Meter,
    now: &RepeatCandidate,
    t: usize,
    limit: u64,
    way: Way,
) -> Option<RepeatCandidate> {
    let step = meter.step;
    meter.measure(&now.runs, limit);
    let excess = meter.live[t].saturating_sub(limit);
    let moment = Moment::new(meter, &now.runs, t);
    let most = moment.idle.saturating_sub(excess);
    let most = most - most.checked_div(way.style.room).unwrap_or(0);
    let mut too_late = vec![false; step.operators()];
    let mut best: Option<RepeatCandidate> = None;
    for _ in 0..TRIES {
        let needs = moment.needs(step, &now.runs, &too_late, way.prices);
        let mut cutter = Cutter::new(&needs);
        let cut = cutter.within(most);
        let (mut late, mut arcs) = (Vec::new(), cutter.arcs);
        let mut try_cut = |cut: &Cut, there: &[bool]| {
            let mut again = vec![false; step.operators()];
            cut.again.iter().for_each(|&op| again[op as usize] = true);
            let (mut runs, refused) = insert(step, &now.runs, t, &again, there);
            late.extend(refused);
            meter.drop_dead(&mut runs);
            let load = meter.measure(&runs, limit);
            if best.as_ref().unwrap_or(now).load.is_worse_than(&load) {
                best = Some(RepeatCandidate { runs, load });
            }
        };
        try_cut(&cut, &needs.there);
        let divisions = match way.style.divides {
            true => divisions(&needs, &now.runs[..t], &cut),
            false => Vec::new(),
        };
        for held in divisions {
            let bytes: u64 = held.iter().map(|&x| step.bytes[x as usize]).sum();
            let Some(left) = most.checked_sub(bytes) else { continue };
            let mut needs = needs.clone();
            held.iter().for_each(|&x| needs.there[x as usize] = true);
            let mut cutter = Cutter::new(&needs);
            let cut = cutter.within(left);
            arcs += cutter.arcs;
            try_cut(&cut, &needs.there);
        }
        meter.measured += arcs / ARCS;
        if best.is_some() || late.is_empty() {
            break;
        }
        late.into_iter().for_each(|op| too_late[op as usize] = true);
    }
    best
}

/// What is alive as a run begins.
struct Moment {
    t: usize,
    /// Copies that are read later, or there when the step ends.
    crossing: Vec<u32>,
    /// Tensors that the run reads, or that cannot be made again.
    there: Vec<bool>,
    /// Bytes of what is alive and could be away.
    idle: u64,
}

impl Moment {
    /// Of the sequence that was measured last.
    fn new(meter: &Meter, runs: &[u32], t: usize) -> Self {
        let step = meter.step;
        let mut there = vec![false; step.tensors()];
        let read = step.reads.row(runs[t] as usize);
        read.iter().for_each(|&x| there[x as usize] = true);
        let (mut crossing, mut idle) = (Vec::new(), 0);
        for copy in &meter.copies {
            let before = (copy.made as usize) < t || step.producer[copy.tensor as usize].is_none();
            if !before || (copy.last as usize) < t {
                continue;
            }
            if step.pinned[copy.tensor as usize] {
                there[copy.tensor as usize] = true;
            } else if copy.last as usize > t && !there[copy.tensor as usize] {
                idle += step.bytes[copy.tensor as usize];
                crossing.push(copy.tensor);
            }
        }
        Moment { t, crossing, there, idle }
    }

    /// What later runs need of earlier ones.
    fn needs<'a>(
        &self,
        step: &'a RecomputeStep,
        runs: &[u32],
        too_late: &[bool],
        prices: &[f64],
    ) -> Needs<'a> {
        let mut ran = vec![false; step.operators()];
        runs[..self.t].iter().for_each(|&op| ran[op as usize] = true);
        let free = self.movable(step, runs);
        let again = |op: usize| {
            let runs = ran[op] && !too_late[op] && step.may_run(op as u32, &ran);
            runs.then(|| if free[op] { 0.0 } else { prices[op] })
        };
        let again = (0..step.operators()).map(again).collect();
        Needs { step, read: self.crossing.clone(), there: self.there.clone(), again }
    }

    /// Operators of which nothing is needed before the moment: they run later, not again.
    fn movable(&self, step: &RecomputeStep, runs: &[u32]) -> Vec<bool> {
        let mut needed = vec![false; step.tensors()];
        let mut moves = vec![false; step.operators()];
        step.reads.row(runs[self.t] as usize).iter().for_each(|&x| needed[x as usize] = true);
        for &op in runs[..self.t].iter().rev() {
            let writes = step.writes.row(op as usize);
            moves[op as usize] =
                step.moves[op as usize] && !writes.iter().any(|&x| needed[x as usize]);
            if !moves[op as usize] {
                step.reads.row(op as usize).iter().for_each(|&x| needed[x as usize] = true);
            }
        }
        moves
    }
}

/// The sequence in which, from a run on, some operators run again before who needs them; and
/// the operators for which it was too late.
fn insert(
    step: &RecomputeStep,
    runs: &[u32],
    t: usize,
    again: &[bool],
    there: &[bool],
) -> (Runs, Vec<u32>) {
    let mut out: Runs = runs[..t].to_vec();
    let mut ran = vec![false; step.operators()];
    out.iter().for_each(|&op| ran[op as usize] = true);
    let mut late = Vec::new();
    // Tensors that are away: dropped at the moment, and not made since.
    let away = |x: u32| {
        let maker = step.maker(x).filter(|_| !there[x as usize]);
        maker.is_some_and(|op| again[op as usize] && ran[op as usize])
    };
    let mut away: Vec<bool> = (0..step.tensors() as u32).map(away).collect();
    let mut stack: Vec<(u32, usize)> = Vec::new();
    for &run in &runs[t..] {
        stack.push((run, 0));
        while let Some((op, read)) = stack.pop() {
            let wanted = |&x: &u32| away[x as usize];
            let reads = step.reads.row(op as usize);
            if let Some(i) = reads[read..].iter().position(wanted) {
                let x = reads[read + i];
                away[x as usize] = false;
                stack.push((op, read + i));
                match step.maker(x).filter(|&maker| step.may_run(maker, &ran)) {
                    Some(maker) => stack.push((maker, 0)),
                    None => late.extend(step.maker(x)),
                }
                continue;
            }
            out.push(op);
            if stack.is_empty() {
                ran[op as usize] = true;
            }
            step.writes.row(op as usize).iter().for_each(|&x| away[x as usize] = false);
        }
    }
    (out, late)
}
