//! The priority scores of section IV-B.

use super::load::Load;
use crate::residency::{Absence, Timeline};
use arenic_ir::cost::{Device, Direction};

/// Scores that are computed: DOA, AOA, WDOA and SWDOA.
pub const SCORES: usize = 4;

/// A weight for each of them.
pub type Weights = [f64; SCORES];

/// Each score alone.
pub const ALONE: [Weights; SCORES] =
    [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]];

/// The standardised scores of absences. Those that SWDOA selects leave the load.
pub(super) fn scores(
    t: &Timeline,
    device: &Device,
    load: &mut Load,
    absences: &[Absence],
) -> Vec<[f64; SCORES]> {
    let original = Load::new(t).areas();
    let doa: Vec<f64> = absences.iter().map(|a| duration(t, device, a)).collect();
    let bytes = |a: &Absence| t.tensors[a.tensor].bytes;
    let aoa = absences.iter().zip(&doa).map(|(a, &doa)| area(doa, bytes(a))).collect();
    let wdoa = absences.iter().map(|a| under(&original, a)).collect();
    let columns = [doa, aoa, wdoa, submodular(load, absences)].map(standardised);
    (0..absences.len()).map(|i| columns.each_ref().map(|column| column[i])).collect()
}

/// DOA, in seconds.
pub(super) fn duration(t: &Timeline, device: &Device, absence: &Absence) -> f64 {
    let bytes = t.tensors[absence.tensor].bytes;
    let copies = [Direction::ToHost, Direction::ToDevice].map(|d| device.copy_seconds(d, bytes));
    under(&t.start, absence) - copies.iter().sum::<f64>()
}

/// AOA, in byte-seconds; in seconds for each byte where the copies take longer than the
/// absence.
pub(super) fn area(doa: f64, bytes: u64) -> f64 {
    if doa < 0.0 { doa / bytes as f64 } else { doa * bytes as f64 }
}

/// WDOA for the area under a load before each position; DOA without copies for seconds.
pub(super) fn under(before: &[f64], absence: &Absence) -> f64 {
    absence.away.iter().map(|r| before[r.end] - before[r.start]).sum()
}

/// SWDOA, in byte-seconds: the largest WDOA leaves, then the largest under the load that is
/// left, and so on.
pub(super) fn submodular(load: &mut Load, absences: &[Absence]) -> Vec<f64> {
    let mut scores = vec![0.0; absences.len()];
    let mut left: Vec<usize> = (0..absences.len()).collect();
    while !left.is_empty() {
        let areas = load.areas();
        let score = |&i: &usize| under(&areas, &absences[i]);
        // The first of equals.
        let best =
            (0..left.len()).rev().max_by(|&a, &b| score(&left[a]).total_cmp(&score(&left[b])));
        let i = left.remove(best.unwrap_or(0));
        scores[i] = score(&i);
        load.leave(&absences[i]);
    }
    scores
}

/// With mean 0 and deviation 1; all 0 where they are all the same.
fn standardised(mut scores: Vec<f64>) -> Vec<f64> {
    let count = scores.len().max(1) as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let variance = scores.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count;
    let deviation = variance.sqrt();
    for score in &mut scores {
        *score = if deviation > 0.0 { (*score - mean) / deviation } else { 0.0 };
    }
    scores
}
