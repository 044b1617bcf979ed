//! Improves a sequence by random changes ([`super::changes`]), each measured.
//!
//! Simulated annealing (Kirkpatrick et al., 1983): a change that makes the step longer is kept
//! with a probability that falls with the loss and with time.

use super::changes::Changes;
use super::runs::{Load, Meter, RepeatCandidate};

/// Temperatures at which annealing begins and ends, as parts of the step's seconds.
const HOT: f64 = 1e-3;
const COLD: f64 = 2e-6;

/// Leaves out repeats without which the limit is kept as well, the dearest first.
pub(super) fn prune(meter: &mut Meter, mut best: RepeatCandidate, limit: u64) -> RepeatCandidate {
    if best.load.over > 0 {
        return best;
    }
    let seconds = |op: u32| meter.step.seconds[op as usize];
    let mut seen = vec![false; meter.step.operators()];
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

/// Whether annealing may pass through sequences that do not keep the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walls {
    /// Once the limit is kept, it stays so.
    Hard,
    /// At first a byte above the limit costs little. Between two good sequences there often lie several
    /// changes of which each alone leads above it.
    Soft,
}

/// The price of the limit to begin with, as a part of its price at last, and the part of the changes after
/// which it is that ("strategic oscillation": Glover, "Tabu search, part I", 1989).
const SOFT: f64 = 0.2;
const HARD_FROM: f64 = 0.7;

/// Where the limit must not be passed, passing it costs this part of the step beside the bytes.
const PASSING: f64 = 0.02;

/// What a sequence counts as, in seconds: those that it takes, and a part of the whole step's for the bytes
/// above the limit.
struct Energy {
    whole: f64,
    limit: f64,
    /// The price of those bytes; 1 where the limit must not be passed.
    wall: f64,
}

impl Energy {
    fn of(&self, load: &Load) -> f64 {
        if load.over == 0 {
            return load.seconds;
        }
        let above = (load.peak as f64 - self.limit).max(0.0) / self.limit;
        let above = above + load.over as f64 / (self.limit * 100.0);
        let passing = if self.wall < 1.0 { 0.0 } else { PASSING };
        load.seconds + self.whole * (self.wall * above + passing)
    }
}

/// Improves a candidate until so many runs were measured.
pub(super) fn anneal(
    meter: &mut Meter,
    start: RepeatCandidate,
    limit: u64,
    most: u64,
    random: &mut fastrand::Rng,
    walls: Walls,
) -> RepeatCandidate {
    let whole: f64 = meter.step.seconds.iter().sum();
    // What does not keep the limit yet is to do so first.
    let is_soft = walls == Walls::Soft && start.load.over == 0;
    let first = if is_soft { SOFT } else { 1.0 };
    let mut energy = Energy { whole, limit: limit.max(1) as f64, wall: first };
    let (mut now, mut best) = (start.clone(), start);
    let (begin, mut changes) = (meter.measured, Changes::default());
    meter.measure(&now.runs, limit);
    changes.learn(meter, &now.runs, limit);
    while meter.measured - begin < most && !changes.is_empty() && !meter.is_stopped() {
        let part = (meter.measured - begin) as f64 / most as f64;
        if energy.wall < 1.0 {
            energy.wall = SOFT.powf(1.0 - part / HARD_FROM).min(1.0);
            if energy.wall == 1.0 {
                now.clone_from(&best);
                meter.measure(&now.runs, limit);
                changes.learn(meter, &now.runs, limit);
            }
        }
        let temperature = whole * HOT * (COLD / HOT).powf(part);
        let Some(mut runs) = changes.draw(meter, &now.runs, random) else {
            meter.measured += 1;
            continue;
        };
        meter.drop_dead(&mut runs);
        let load = meter.measure(&runs, limit);
        let gain = energy.of(&now.load) - energy.of(&load);
        if gain >= 0.0 || random.f64() < (gain / temperature).exp() {
            now = RepeatCandidate { runs, load };
            changes.learn(meter, &now.runs, limit);
            let is_best = match best.load.over {
                0 => load.is_better_than(&best.load),
                _ => energy.of(&load) < energy.of(&best.load),
            };
            if is_best {
                best.clone_from(&now);
            }
        }
    }
    best
}
