//! What can leave, and the load without it.

use super::score::{SCORES, Weights, scores};
use crate::residency::{Absence, Choice, Idle, Timeline, absences, across_steps};
use arenic_ir::cost::Device;
use std::ops::Range;

/// Live bytes without what has left so far.
#[derive(Clone)]
pub(super) struct Load<'a> {
    t: &'a Timeline<'a>,
    pub(super) bytes: Vec<u64>,
    choice: Choice,
}

impl<'a> Load<'a> {
    pub(super) fn new(t: &'a Timeline<'a>) -> Self {
        Load { t, bytes: t.live.clone(), choice: Choice::keep_all(t) }
    }

    /// Lets a tensor leave. What leaves its home leaves it across steps, too.
    pub(super) fn leave(&mut self, absence: &Absence) {
        let x = absence.tensor;
        let leaves_home = self.t.tensors[x].homed && !self.choice.host_home[x];
        absence.swap(self.t, &mut self.choice);
        if leaves_home {
            self.free(x, &across_steps(self.t, x));
        }
        if absence.idle != Idle::AcrossSteps {
            self.free(x, &absence.away);
        }
    }

    fn free(&mut self, x: usize, away: &[Range<usize>]) {
        for p in away.iter().cloned().flatten() {
            self.bytes[p] = self.bytes[p].saturating_sub(self.t.tensors[x].bytes);
        }
    }

    /// Byte-seconds before each position.
    pub(super) fn areas(&self) -> Vec<f64> {
        let mut areas = vec![0.0];
        for (p, &bytes) in self.bytes.iter().enumerate() {
            areas.push(areas[p] + bytes as f64 * self.t.seconds(p as u32));
        }
        areas
    }
}

/// What can leave, ranked by scores.
pub(super) struct Candidates<'a> {
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
    /// Candidates have `min_bytes` and are away at the peak.
    pub(super) fn new(t: &'a Timeline<'a>, device: &Device, min_bytes: u64) -> Self {
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

    /// AutoSwap's candidates.
    pub(super) fn len(&self) -> usize {
        self.tiers[0].absences.len()
    }

    /// All candidates leave.
    pub(super) fn all(&self) -> Choice {
        let mut load = self.load.clone();
        self.tiers[0].absences.iter().for_each(|a| load.leave(a));
        load.choice
    }

    /// Tensors leave in descending order of the weighted score, until no position holds more
    /// than `limit` bytes (section IV-D).
    pub(super) fn select(&self, weights: &Weights, limit: u64) -> Choice {
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
