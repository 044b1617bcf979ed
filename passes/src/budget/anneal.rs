//! Improves a choice by random changes, each judged by its schedule.
//!
//! Simulated annealing (Kirkpatrick et al., 1983): a change that makes the predicted step
//! longer is kept with a probability that falls with the loss and with time. A choice above
//! the limit pays for what it is above.

use super::Budget;
use super::sites::{Site, Undo, gap_modes};
use crate::residency::{Choice, Gap, Prediction, Room, Timeline, Walker};
use arenic_ir::cost::Device;

/// Temperatures at which annealing begins and ends, as parts of the step's seconds: for a
/// first choice, and for one that is good already.
pub(super) const HOT: f64 = 3e-3;
pub(super) const WARM: f64 = 1e-4;
const COLD: f64 = 2e-6;

/// How often a tensor is drawn: its bytes to this power.
const DRAWN: f64 = 0.6;

/// A choice and what it promises.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) choice: Choice,
    pub(super) promise: Prediction,
}

/// Judges and improves choices.
pub(super) struct Annealer<'a> {
    t: &'a Timeline<'a>,
    sites: &'a [Site],
    /// Sums of the sites' bytes: the larger a tensor, the more often it is drawn.
    weights: Vec<f64>,
    modes: Vec<Vec<Gap>>,
    /// Sites by the position at which their tensor first appears.
    in_order: Vec<Site>,
    walker: Walker<'a>,
    room: Room,
    random: fastrand::Rng,
    step_seconds: f64,
}

impl<'a> Annealer<'a> {
    pub(super) fn new(
        t: &'a Timeline<'a>,
        device: &Device,
        allowed: &Budget,
        sites: &'a [Site],
        seed: u64,
    ) -> Self {
        let mut sum = 0.0;
        let weight = |site: &Site| {
            sum += (t.tensors[site.tensor()].bytes as f64).powf(DRAWN);
            sum
        };
        let weights = sites.iter().map(weight).collect();
        let mut in_order = sites.to_vec();
        let first = |site: &Site| t.tensors[site.tensor()].accesses.first().copied();
        in_order.sort_by_key(first);
        Annealer {
            t,
            sites,
            weights,
            modes: (0..t.tensors.len()).map(|x| gap_modes(t, allowed, x)).collect(),
            in_order,
            walker: Walker::new(t),
            room: Room::new(t, device),
            random: fastrand::Rng::with_seed(seed),
            step_seconds: t.start.last().copied().unwrap_or(0.0).max(f64::MIN_POSITIVE),
        }
    }

    /// What a choice promises under a limit; `None` where it cannot be carried out.
    pub(super) fn judge(&mut self, choice: &Choice, limit: u64) -> Option<Prediction> {
        let script = self.walker.walk(choice)?;
        Some(self.room.schedule(script, limit))
    }

    /// The step's seconds with a fine for bytes above the limit.
    fn energy(&self, promise: &Prediction, limit: u64) -> f64 {
        let fine = match promise.over {
            0 => 0.0,
            over => 0.1 + over as f64 / limit.max(1) as f64,
        };
        promise.seconds + fine * self.step_seconds
    }

    /// Improves a candidate by so many changes, beginning at a temperature; the best one found.
    pub(super) fn improve(
        &mut self,
        start: Candidate,
        limit: u64,
        changes: usize,
        begin: f64,
    ) -> Candidate {
        let mut now = start.clone();
        let mut energy = self.energy(&now.promise, limit);
        let (mut best, mut least) = (start, energy);
        let mut undo = Undo::default();
        for i in 0..changes {
            let part = i as f64 / changes as f64;
            let temperature = self.step_seconds * begin * (COLD / begin).powf(part);
            self.change(&mut now.choice, &mut undo);
            if undo.is_empty() {
                continue;
            }
            let Some(promise) = self.judge(&now.choice, limit) else {
                undo.back(&mut now.choice);
                continue;
            };
            let new = self.energy(&promise, limit);
            let kept = new <= energy || self.random.f64() < ((energy - new) / temperature).exp();
            if !kept {
                undo.back(&mut now.choice);
                continue;
            }
            undo.clear();
            (now.promise, energy) = (promise, new);
            if energy < least {
                least = energy;
                best.clone_from(&now);
            }
        }
        best
    }

    fn change(&mut self, choice: &mut Choice, undo: &mut Undo) {
        match self.random.u32(0..100) {
            0..50 => {
                let site = self.any();
                self.flip(site, choice, undo);
            }
            50..80 => {
                // One comes back, one leaves.
                for away in [true, false] {
                    let drawn: [Site; 20] = std::array::from_fn(|_| self.any());
                    if let Some(&site) = drawn.iter().find(|&&s| self.is_away(s, choice) == away) {
                        self.flip(site, choice, undo);
                    }
                }
            }
            _ => {
                // Neighbours do the same.
                let n = 1usize << self.random.u32(1..5);
                let first = self.random.usize(0..self.in_order.len());
                let repeats = self.random.u32(0..4);
                for i in first..(first + n).min(self.in_order.len()) {
                    if let Site::Gap(x, k) = self.in_order[i] {
                        let wanted = match repeats {
                            0 => Gap::Keep,
                            1 => Gap::Swap { hold: false },
                            _ => Gap::Repeat { hold: true },
                        };
                        if wanted == Gap::Keep || self.modes[x].contains(&wanted) {
                            self.set(x, k, wanted, choice, undo);
                        }
                    }
                }
            }
        }
    }

    fn any(&mut self) -> Site {
        let sum = self.weights.last().copied().unwrap_or(0.0);
        let drawn = self.random.f64() * sum;
        let i = self.weights.partition_point(|&w| w <= drawn);
        self.sites[i.min(self.sites.len() - 1)]
    }

    /// Decides otherwise.
    fn flip(&mut self, site: Site, choice: &mut Choice, undo: &mut Undo) {
        match site {
            Site::Home(x) => {
                let host = choice.host_home[x];
                undo.set_home(self.t, choice, x, !host);
            }
            Site::Gap(x, k) => {
                let n = self.modes[x].len();
                let was = choice.gaps[self.t.gap(x, k)];
                let pick = self.random.usize(0..n + 1);
                let mut new = self.modes[x].get(pick).copied().unwrap_or(Gap::Keep);
                if new == was {
                    new = if was == Gap::Keep { self.modes[x][0] } else { Gap::Keep };
                }
                self.set(x, k, new, choice, undo);
            }
        }
    }

    fn set(&self, x: usize, k: usize, gap: Gap, choice: &mut Choice, undo: &mut Undo) {
        if gap != Gap::Keep && self.t.tensors[x].homed {
            undo.set_home(self.t, choice, x, true);
        }
        undo.set_gap(choice, self.t.gap(x, k), gap);
    }

    fn is_away(&self, site: Site, choice: &Choice) -> bool {
        match site {
            Site::Home(x) => choice.host_home[x],
            Site::Gap(x, k) => choice.gaps[self.t.gap(x, k)] != Gap::Keep,
        }
    }
}
