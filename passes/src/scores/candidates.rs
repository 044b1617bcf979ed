//! What can leave, and the load without it.

use super::load::Load;
use super::score::{SCORES, Weights, scores};
use crate::residency::{Absence, ResidencyChoice, Timeline, absences};
use arenic_ir::cost::Device;

/// Tensors that can leave, ranked by AutoSwap's scores.
pub struct Candidates<'a> {
    load: Load<'a>,
    /// AutoSwap's candidates, and after them everything else.
    tiers: [Tier; 2],
}

struct Tier {
    absences: Vec<Absence>,
    /// Standardised.
    scores: Vec<[f64; SCORES]>,
}

impl<'a> Candidates<'a> {
    /// AutoSwap's candidates have at least `min_bytes` bytes and are away at the peak.
    pub fn new(t: &'a Timeline<'a>, device: &Device, min_bytes: u64) -> Self {
        let load = Load::new(t);
        let peak = (0..t.live.len()).rev().max_by_key(|&p| t.live[p]).unwrap_or(0);
        let is_candidate = |a: &Absence| {
            t.tensors[a.tensor].bytes >= min_bytes && a.away.iter().any(|r| r.contains(&peak))
        };
        let (first, second) = absences(t).into_iter().partition(is_candidate);
        let mut left = load.clone();
        let tiers = [first, second].map(|absences: Vec<Absence>| {
            let scores = scores(t, device, &mut left, &absences);
            Tier { absences, scores }
        });
        Candidates { load, tiers }
    }

    /// How many of AutoSwap's candidates there are.
    pub fn count(&self) -> usize {
        self.tiers[0].absences.len()
    }

    /// All candidates leave.
    pub fn all(&self) -> ResidencyChoice {
        let mut load = self.load.clone();
        self.tiers[0].absences.iter().for_each(|a| load.leave(a));
        load.choice
    }

    /// Tensors leave in descending order of the weighted score, until no position holds more
    /// than `limit` bytes (section IV-D).
    pub fn select(&self, weights: &Weights, limit: u64) -> ResidencyChoice {
        let mut load = self.load.clone();
        for tier in &self.tiers {
            for i in tier.ranked(weights) {
                let absence = &tier.absences[i];
                if absence.positions().any(|p| load.bytes[p] > limit) {
                    load.leave(absence);
                }
            }
        }
        load.choice
    }
}

impl Tier {
    fn ranked(&self, weights: &Weights) -> Vec<usize> {
        let score =
            |i: usize| -> f64 { self.scores[i].iter().zip(weights).map(|(s, w)| s * w).sum() };
        let mut ranked: Vec<(f64, usize)> =
            (0..self.absences.len()).map(|i| (score(i), i)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        ranked.into_iter().map(|(_, i)| i).collect()
    }
}
