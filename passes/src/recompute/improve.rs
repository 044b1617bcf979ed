//! Improves a sequence by random changes, each measured.
//!
//! Simulated annealing (Kirkpatrick et al., 1983) over sequences: a repeat is left out, or
//! what lies idle between two readers is made again before the second. A change that makes
//! the step longer is kept with a probability that falls with the loss and with time.

use super::runs::{Load, Meter, RepeatCandidate, Runs};

/// Temperatures at which annealing begins and ends, as parts of the step's seconds.
const HOT: f64 = 1e-3;
const COLD: f64 = 2e-6;

/// Repeats of one change.
const CHAIN: usize = 60;

/// Leaves out repeats without which the limit is kept as well, the dearest first.
pub(super) fn prune(meter: &mut Meter, mut best: RepeatCandidate, limit: u64) -> RepeatCandidate {
    if best.load.over > 0 {
        return best;
    }
    let seconds = |op: u32| meter.step.seconds[op as usize];
    let mut seen = vec![false; meter.step.len()];
    let mut repeats: Vec<u32> = best
        .runs
        .iter()
        .copied()
        .filter(|&op| std::mem::replace(&mut seen[op as usize], true))
        .collect();
    repeats.sort_by(|&a, &b| seconds(b).total_cmp(&seconds(a)).then(a.cmp(&b)));
    repeats.dedup();
    for op in repeats {
        if meter.is_stopped() {
            break;
        }
        let at = |(i, &o): (usize, &u32)| (o == op).then_some(i);
        let places: Vec<usize> = best.runs.iter().enumerate().filter_map(at).collect();
        for &i in places.iter().skip(1).rev() {
            if best.runs.get(i) != Some(&op) {
                break;
            }
            let mut runs = best.runs.clone();
            runs.remove(i);
            meter.drop_dead(&mut runs);
            let load = meter.measure(&runs, limit);
            if load.is_better_than(&best.load) {
                best = RepeatCandidate { runs, load };
            }
        }
    }
    best
}

/// Improves a candidate until so many runs were measured.
pub(super) fn anneal(
    meter: &mut Meter,
    start: RepeatCandidate,
    limit: u64,
    most: u64,
    random: &mut fastrand::Rng,
) -> RepeatCandidate {
    let whole: f64 = meter.step.seconds.iter().sum();
    let energy = |load: &Load| {
        let fine = match load.over {
            0 => 0.0,
            over => {
                let above = load.peak.saturating_sub(limit) as f64 / limit.max(1) as f64;
                0.02 + above + over as f64 / (limit.max(1) as f64 * 100.0)
            }
        };
        load.seconds + fine * whole
    };
    let (mut now, mut best) = (start.clone(), start);
    let mut value = energy(&now.load);
    let mut least = value;
    let (begin, mut changes) = (meter.measured, Changes::default());
    meter.measure(&now.runs, limit);
    changes.learn(meter, &now.runs, limit);
    while meter.measured - begin < most && !changes.is_empty() && !meter.is_stopped() {
        let part = (meter.measured - begin) as f64 / most as f64;
        let temperature = whole * HOT * (COLD / HOT).powf(part);
        let Some(mut runs) = changes.draw(meter, &now.runs, random) else {
            meter.measured += 1;
            continue;
        };
        meter.drop_dead(&mut runs);
        let load = meter.measure(&runs, limit);
        let new = energy(&load);
        if new <= value || random.f64() < ((value - new) / temperature).exp() {
            (now, value) = (RepeatCandidate { runs, load }, new);
            changes.learn(meter, &now.runs, limit);
            if new < least {
                least = new;
                best.clone_from(&now);
            }
        }
    }
    best
}

/// What can be changed about a sequence.
#[derive(Default)]
struct Changes {
    /// Runs that are repeats.
    repeats: Vec<usize>,
    /// Tensors that lie idle: the tensor, and the run that reads it next.
    idle: Vec<(u32, usize)>,
    /// Sums of their bytes times the runs above nine tenths of the limit that they lie idle in.
    weights: Vec<f64>,
    /// The last run that reads the copy that is current at each tensor's next reader.
    last: Vec<Vec<(u32, u32)>>,
}

impl Changes {
    /// Of the sequence that was measured last.
    fn learn(&mut self, meter: &Meter, runs: &[u32], limit: u64) {
        let step = meter.step;
        self.repeats.clear();
        self.idle.clear();
        self.weights.clear();
        let mut seen = vec![false; step.len()];
        let mut high = vec![0u32];
        high.extend(meter.live.iter().scan(0, |n, &live| {
            *n += u32::from(live > limit - limit / 10);
            Some(*n)
        }));
        let mut used: Vec<u32> = meter.copies.iter().map(|c| c.made).collect();
        let mut sum = 0.0;
        for (i, &op) in runs.iter().enumerate() {
            if std::mem::replace(&mut seen[op as usize], true) {
                self.repeats.push(i);
            }
            for &c in meter.read_by(i) {
                let x = meter.copies[c as usize].tensor;
                let from = std::mem::replace(&mut used[c as usize], i as u32) as usize;
                let freed = high[i] - high[(from + 1).min(i)];
                if step.maker(x).is_some() && freed > 0 {
                    sum += step.bytes[x as usize] as f64 * f64::from(freed);
                    self.weights.push(sum);
                    self.idle.push((x, i));
                }
            }
        }
        self.last.resize(step.tensors(), Vec::new());
        self.last.iter_mut().for_each(Vec::clear);
        for copy in &meter.copies {
            self.last[copy.tensor as usize].push((copy.made, copy.last));
        }
    }

    /// Nothing can be changed.
    fn is_empty(&self) -> bool {
        self.repeats.is_empty() && self.idle.is_empty()
    }

    /// A sequence with a random change.
    fn draw(&self, meter: &Meter, runs: &[u32], random: &mut fastrand::Rng) -> Option<Runs> {
        let mut out = runs.to_vec();
        let kind = random.u32(0..10);
        if kind < 6 && !self.repeats.is_empty() {
            let i = self.repeats[random.usize(0..self.repeats.len())];
            if kind < 3 {
                out.remove(i);
                return Some(out);
            }
            self.insert(meter, &mut out, random)?;
            // What stands before the insertion has not moved.
            let moved = out.len() - runs.len();
            let at = out.iter().zip(runs).take_while(|(a, b)| a == b).count();
            out.remove(if i < at { i } else { i + moved });
            return Some(out);
        }
        self.insert(meter, &mut out, random)?;
        Some(out)
    }

    /// Makes something again that lies idle.
    fn insert(&self, meter: &Meter, runs: &mut Runs, random: &mut fastrand::Rng) -> Option<()> {
        let step = meter.step;
        let drawn = random.f64() * self.weights.last()?;
        let k = self.weights.partition_point(|&w| w <= drawn).min(self.idle.len() - 1);
        let (x, at) = self.idle[k];
        let mut ran = vec![false; step.len()];
        runs[..at].iter().for_each(|&op| ran[op as usize] = true);
        let mut chain: Vec<u32> = Vec::new();
        let mut stack = vec![(step.maker(x)?, 0usize)];
        // Beyond this chance an operand that is gone is kept for longer, not made again.
        let again = random.f64().sqrt();
        while let Some((op, read)) = stack.pop() {
            let reads = step.reads.row(op as usize);
            if let Some(&y) = reads.get(read) {
                stack.push((op, read + 1));
                let copy = self.last[y as usize].iter().rev().find(|c| (c.0 as usize) < at);
                let gone = copy.is_some_and(|&(_, last)| (last as usize) < at);
                if let Some(maker) = step.maker(y).filter(|_| gone)
                    && !chain.contains(&maker)
                    && !stack.iter().any(|s| s.0 == maker)
                    && random.f64() < again
                {
                    stack.push((maker, 0));
                }
                continue;
            }
            if !step.may_run(op, &ran) {
                return None;
            }
            chain.push(op);
            if chain.len() > CHAIN {
                return None;
            }
        }
        runs.splice(at..at, chain);
        Some(())
    }
}
