//! What can leave, and the load without it.

use super::score::{SCORES, Weights, scores};
use crate::residency::{Choice, Gap, Timeline};
use arenic_ir::cost::Device;
use std::ops::Range;

/// Where a tensor lies idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// After one of its accesses, until the next.
    Between(usize),
    /// From its last access to the first one of the next step: its home is in host memory.
    AcrossSteps,
    /// From its last access on: the caller finds it in host memory.
    AtEnd,
}

/// A time between two accesses in which a tensor can be in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absence {
    pub(super) tensor: usize,
    pub(super) idle: Idle,
    /// The positions at which it is away then.
    pub(super) away: Vec<Range<usize>>,
}

impl Absence {
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.away.iter().cloned().flatten()
    }
}

/// Everything that can leave.
fn absences(t: &Timeline) -> Vec<Absence> {
    let mut found = Vec::new();
    for (x, tensor) in t.tensors.iter().enumerate() {
        let mut add = |idle, mut away: Vec<Range<usize>>| {
            away.retain(|r| !r.is_empty());
            if !away.is_empty() {
                found.push(Absence { tensor: x, idle, away });
            }
        };
        for k in (0..tensor.gaps()).filter(|&k| t.may_leave(x, k)) {
            let away = tensor.accesses[k] as usize + 1..tensor.accesses[k + 1] as usize;
            add(Idle::Between(k), vec![away]);
        }
        if tensor.homed {
            add(Idle::AcrossSteps, across_steps(t, x));
        } else if tensor.pinned {
            add(Idle::AtEnd, vec![after(t, x)]);
        }
    }
    found
}

/// The positions after a tensor's last access.
fn after(t: &Timeline, x: usize) -> Range<usize> {
    let last = t.tensors[x].accesses.last();
    last.map_or(t.order.len(), |&p| p as usize + 1)..t.order.len()
}

/// The positions at which a tensor with its home in host memory is away, after its last
/// access and before the first.
fn across_steps(t: &Timeline, x: usize) -> Vec<Range<usize>> {
    let tensor = &t.tensors[x];
    let before = 0..tensor.accesses.first().map_or(t.order.len(), |&p| p as usize);
    // An input's bytes are free after its last reader as it is; a state's new value that is
    // handed out, too, stays.
    let stays = t.is_input(x) || tensor.pinned && tensor.renewed.is_some();
    if stays { vec![before] } else { vec![before, after(t, x)] }
}

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
        if self.t.tensors[x].homed && !std::mem::replace(&mut self.choice.host_home[x], true) {
            self.free(x, &across_steps(self.t, x));
        }
        match absence.idle {
            Idle::AcrossSteps => {}
            Idle::Between(k) => {
                self.choice.gaps[self.t.gap(x, k)] = Gap::Swap { hold: false };
                self.free(x, &absence.away);
            }
            Idle::AtEnd => {
                self.choice.host_end[x] = true;
                self.free(x, &absence.away);
            }
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
