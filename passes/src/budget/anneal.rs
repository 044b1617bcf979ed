//! Improves a choice by random changes, each judged by its schedule.
//!
//! Simulated annealing (Kirkpatrick et al., 1983): a change that makes the predicted step
//! longer is kept with a probability that falls with the loss and with time. A choice above
//! the limit pays for what it is above. Choices that several seeds lead to take each other's decisions about
//! tensors that are made one after another, where that is better (path relinking: Glover, 1997).

use super::Budget;
use super::sites::{BudgetSite, Sites, Undo, modes};
use crate::residency::{Gap, Prediction, ResidencyChoice, Room, Timeline, Walker};

/// Temperatures at which annealing begins and ends, as parts of the step's seconds: for a
/// first choice, for one that must stay near where it begins (it is joined with others, or follows repeats), and
/// for one that is good already.
pub(super) const HOT: f64 = 3e-3;
pub(super) const COOLER: f64 = 1e-3;
pub(super) const WARM: f64 = 1e-4;
const COLD: f64 = 2e-6;

/// How often a tensor is drawn: its bytes to this power.
const DRAWN: f64 = 0.6;

/// Tensors that exchange what becomes of them are no further apart than this.
const NEAR: usize = 24;

/// A choice and what it promises.
#[derive(Clone, Debug)]
pub(super) struct BudgetCandidate {
    pub(super) choice: ResidencyChoice,
    pub(super) promise: Prediction,
}

/// Judges and improves choices.
pub(super) struct Annealer<'a> {
    t: &'a Timeline<'a>,
    sites: &'a Sites<'a>,
    /// Sums of the sites' bytes: the larger a tensor, the more often it is drawn.
    weights: Vec<f64>,
    modes: Vec<Vec<Gap>>,
    walker: Walker<'a>,
    room: Room,
    random: fastrand::Rng,
    step_seconds: f64,
}

impl<'a> Annealer<'a> {
    pub(super) fn new(
        t: &'a Timeline<'a>,
        room: Room,
        allowed: &Budget,
        sites: &'a Sites<'a>,
        seed: u64,
    ) -> Self {
        let mut sum = 0.0;
        let weight = |site: &BudgetSite| {
            sum += (t.tensors[site.tensor()].bytes as f64).powf(DRAWN);
            sum
        };
        let weights = sites.all.iter().map(weight).collect();
        Annealer {
            t,
            sites,
            weights,
            modes: (0..t.tensors.len()).map(|x| modes(t, allowed, x)).collect(),
            walker: Walker::new(t),
            room,
            random: fastrand::Rng::with_seed(seed),
            step_seconds: t.start.last().copied().unwrap_or(0.0).max(f64::MIN_POSITIVE),
        }
    }

    /// What a choice promises under a limit; `None` where it cannot be carried out.
    pub(super) fn judge(&mut self, choice: &ResidencyChoice, limit: u64) -> Option<Prediction> {
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
        start: BudgetCandidate,
        limit: u64,
        changes: usize,
        begin: f64,
    ) -> BudgetCandidate {
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

    /// The best of candidates after so many trials to take over what another decides at neighbouring sites,
    /// improved by half as many changes; `None` of none, and the one that there is as it is.
    pub(super) fn join(
        &mut self,
        mut found: Vec<BudgetCandidate>,
        limit: u64,
        trials: usize,
    ) -> Option<BudgetCandidate> {
        let n = found.len();
        if n < 2 {
            return found.pop();
        }
        let mut energies: Vec<f64> = found.iter().map(|c| self.energy(&c.promise, limit)).collect();
        let mut undo = Undo::default();
        let longest = self.sites.all.len().ilog2() + 1;
        for _ in 0..trials {
            let to = self.random.usize(0..n);
            let from = (to + self.random.usize(1..n)) % n;
            let length = 1usize << self.random.u32(1..longest + 1);
            let begin = self.any_index().saturating_sub(self.random.usize(0..length));
            let end = (begin + length).min(self.sites.all.len());
            let mut choice = std::mem::take(&mut found[to].choice);
            for &site in &self.sites.all[begin..end] {
                let taken = self.mode(site, &found[from].choice);
                if taken != self.mode(site, &choice) {
                    self.set(site, taken, &mut choice, &mut undo);
                }
            }
            if !undo.is_empty() {
                match self.judge(&choice, limit) {
                    Some(promise) if self.energy(&promise, limit) < energies[to] => {
                        (found[to].promise, energies[to]) = (promise, self.energy(&promise, limit));
                        undo.clear();
                    }
                    _ => undo.back(&mut choice),
                }
            }
            found[to].choice = choice;
        }
        let best = (0..n).min_by(|&a, &b| energies[a].total_cmp(&energies[b]))?;
        Some(self.improve(found.swap_remove(best), limit, trials / 2, WARM))
    }

    fn change(&mut self, choice: &mut ResidencyChoice, undo: &mut Undo) {
        match self.random.u32(0..100) {
            0..40 => self.flip(choice, undo),
            40..70 => self.exchange(choice, undo),
            _ => self.align(choice, undo),
        }
    }

    /// A tensor and one that was made about the same time exchange what becomes of them.
    fn exchange(&mut self, choice: &mut ResidencyChoice, undo: &mut Undo) {
        let first = self.any_index();
        let least = first.saturating_sub(NEAR);
        let most = (first + NEAR).min(self.sites.all.len() - 1);
        let second = self.random.usize(least..most + 1);
        let (a, b) = (self.sites.all[first], self.sites.all[second]);
        let (x, y) = (self.mode(a, choice), self.mode(b, choice));
        self.set(a, y, choice, undo);
        self.set(b, x, choice, undo);
    }

    /// Tensors that are made one after another do the same.
    fn align(&mut self, choice: &mut ResidencyChoice, undo: &mut Undo) {
        let n = 1usize << self.random.u32(1..5);
        let first = self.any_index();
        let gap = match self.random.u32(0..4) {
            0 => Gap::Keep,
            1 => Gap::Swap { hold: false },
            _ => Gap::Repeat { hold: true },
        };
        for i in first..(first + n).min(self.sites.all.len()) {
            self.set(self.sites.all[i], gap, choice, undo);
        }
    }

    /// The index of a site, more often of a large tensor.
    fn any_index(&mut self) -> usize {
        let sum = self.weights.last().copied().unwrap_or(0.0);
        let drawn = self.random.f64() * sum;
        self.weights.partition_point(|&w| w <= drawn).min(self.sites.all.len() - 1)
    }

    /// What becomes of a tensor at a site; away from its home it counts as swapped.
    fn mode(&self, site: BudgetSite, choice: &ResidencyChoice) -> Gap {
        match site {
            BudgetSite::Home(x) if choice.host_home[x] => Gap::Swap { hold: false },
            BudgetSite::Begin(x) if choice.leaves[x] => Gap::Swap { hold: false },
            BudgetSite::Home(_) | BudgetSite::Begin(_) => Gap::Keep,
            BudgetSite::Gap(x, k) => choice.gaps[self.t.gap(x, k)],
        }
    }

    /// Decides a site, if its tensor may do that.
    fn set(&self, site: BudgetSite, gap: Gap, choice: &mut ResidencyChoice, undo: &mut Undo) {
        let x = site.tensor();
        if gap != Gap::Keep && !self.modes[x].contains(&gap) {
            return;
        }
        match site {
            BudgetSite::Home(_) => undo.set_home(self.sites, choice, x, gap != Gap::Keep),
            BudgetSite::Begin(_) => {
                if gap != Gap::Keep {
                    undo.set_home(self.sites, choice, x, false);
                }
                undo.set_begin(choice, x, gap != Gap::Keep);
            }
            BudgetSite::Gap(_, k) => {
                let leaves = gap != Gap::Keep && self.t.tensors[x].homed;
                if leaves && !self.sites.may_leave_home(x, k) {
                    undo.set_home(self.sites, choice, x, true);
                }
                undo.set_gap(choice, self.t.gap(x, k), gap);
            }
        }
    }

    /// Decides a site otherwise.
    fn flip(&mut self, choice: &mut ResidencyChoice, undo: &mut Undo) {
        let site = self.sites.all[self.any_index()];
        let modes = &self.modes[site.tensor()];
        let was = self.mode(site, choice);
        let drawn = modes.get(self.random.usize(0..modes.len() + 1)).copied();
        let new = match drawn.unwrap_or(Gap::Keep) {
            new if new != was => new,
            _ if was == Gap::Keep => modes[0],
            _ => Gap::Keep,
        };
        self.set(site, new, choice, undo);
    }
}
