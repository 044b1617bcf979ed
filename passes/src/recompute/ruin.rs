//! Takes repeats out of a sequence and has cuts bring it under the limit again.
//!
//! Changes of single runs do not leave a valley in which several repeats hang together. Here all repeats of a
//! stretch go at once, or a random part of all, and least cuts choose anew ([`super::relieve`]), each time at
//! other prices, so that they choose differently. What is no slower is kept (Schrimpf et al., "Record breaking
//! optimization results using the ruin and recreate principle", 2000).

use super::improve::prune;
use super::relieve::{STYLES, Way, by_cuts};
use super::runs::{Meter, RepeatCandidate, Runs};

/// Improves a candidate until so many runs were measured.
pub(super) fn ruin(
    meter: &mut Meter,
    start: RepeatCandidate,
    limit: u64,
    most: u64,
    random: &mut fastrand::Rng,
) -> RepeatCandidate {
    let begin = meter.measured;
    let mut best = start;
    while meter.measured - begin < most && !meter.is_stopped() {
        let mut runs = without_some(&best.runs, meter.step.operators(), random);
        meter.drop_dead(&mut runs);
        let load = meter.measure(&runs, limit);
        let seconds = meter.step.seconds.iter();
        let prices: Vec<f64> = seconds.map(|s| s * normal(random).exp()).collect();
        let style = STYLES[random.usize(0..STYLES.len())];
        let way = Way { style, prices: &prices };
        let found = by_cuts(meter, RepeatCandidate { runs, load }, limit, most, way);
        let found = prune(meter, found, limit);
        if !found.load.is_worse_than(&best.load) {
            best = found;
        }
    }
    best
}

/// A sequence without the repeats of a random stretch, without a random part of all, or without any.
fn without_some(runs: &[u32], ops: usize, random: &mut fastrand::Rng) -> Runs {
    let mut seen = vec![false; ops];
    let is_repeat = |&op: &u32| std::mem::replace(&mut seen[op as usize], true);
    let is_repeat: Vec<bool> = runs.iter().map(is_repeat).collect();
    let (a, b) = (random.usize(0..=runs.len()), random.usize(0..=runs.len()));
    let stretch = a.min(b)..a.max(b);
    let (kind, part) = (random.u32(0..3), random.f64());
    let mut goes = |i: usize| match kind {
        0 => true,
        1 => stretch.contains(&i),
        _ => random.f64() < part,
    };
    let stays = |&(i, _): &(usize, &u32)| !is_repeat[i] || !goes(i);
    runs.iter().enumerate().filter(stays).map(|(_, &op)| op).collect()
}

/// A number of the standard normal distribution (Box and Muller, 1958).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let (a, b) = (1.0 - random.f64(), random.f64());
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}
