//! One problem's greedy choice, improved by random changes from several seeds.

use super::anneal::{Annealer, BudgetCandidate, WARM};
use super::sites::Sites;
use super::{ALONE, Budget, FIRST, JOINED, fastest};
use crate::PassError;
use crate::residency::{ResidencyChoice, Room};
use crate::strategy::Problem;
use crate::tail::Finished;
use arenic_ir::program::PerSpace;
use rayon::prelude::*;

/// The part of host memory that choices leave free is one in so many: slots do not lie as densely
/// as their bytes are counted.
const LOOSE: u64 = 64;

/// Random changes times tasks for each second of effort, and how many changes there are at least
/// and at most; for few decisions there are no more than pairs of them.
const CHANGED_TASKS_PER_SECOND: f64 = 2e7;
const CHANGES: (usize, usize) = (2_000, 100_000);

/// A problem, the decisions that are changed, and the choice to begin with.
pub(super) struct Annealing<'a> {
    budget: &'a Budget,
    p: &'a Problem<'a>,
    sites: Sites<'a>,
    /// Bytes of host memory that choices may take.
    host: Option<u64>,
    /// Random changes of each improvement.
    changes: usize,
    start: BudgetCandidate,
}

impl<'a> Annealing<'a> {
    /// `None` where there is nothing to decide, or no choice that can be carried out.
    pub(super) fn new(budget: &'a Budget, p: &'a Problem<'a>, homes_leave: bool) -> Option<Self> {
        let sites = Sites::new(&p.t, homes_leave);
        if sites.all.is_empty() || homes_leave && !sites.any_leaves_home() {
            return None;
        }
        let host = p.cx.limits.host.map(|limit| limit - limit / LOOSE);
        let tasks = (p.cx.search.effort(budget.effort) * CHANGED_TASKS_PER_SECOND) as usize;
        let changes = (tasks / p.t.order.len().max(1)).clamp(CHANGES.0, CHANGES.1);
        let changes = changes.min(sites.all.len() * sites.all.len());
        let limits = PerSpace { device: Some(p.limit), host };
        let (choice, promise) = budget.greedy_of(&p.t, p.device, limits, &sites)?;
        let start = BudgetCandidate { choice, promise };
        Some(Annealing { budget, p, sites, host, changes, start })
    }

    fn annealer(&self, seed: u64) -> Annealer<'_> {
        let p = self.p;
        let room = Room::new(&p.t, p.device).within_host(self.host);
        Annealer::new(&p.t, room, self.budget, &self.sites, p.cx.search.seed.wrapping_add(seed))
    }

    /// The greedy choice after random changes.
    pub(super) fn improved(&self, (seed, begin): (u64, f64)) -> BudgetCandidate {
        self.annealer(seed).improve(self.start.clone(), self.p.limit, self.changes, begin)
    }

    /// What a candidate leads to: where addresses take more than the limit, it is changed a little to aim lower.
    pub(super) fn finished(
        &self,
        candidate: BudgetCandidate,
        (seed, _): (u64, f64),
    ) -> Result<(Option<Finished>, u64), PassError> {
        let (mut annealer, mut best, mut first) = (self.annealer(seed), candidate, true);
        self.p.aim(|aim| {
            if !std::mem::take(&mut first) {
                best.promise = annealer.judge(&best.choice, aim)?;
                best = annealer.improve(best.clone(), aim, self.changes / 8, WARM);
            }
            Some(best.choice.clone())
        })
    }

    /// What greedy choices lead to as they are: what one aim led away from, another may reach at once.
    pub(super) fn plain(&self) -> Result<(Option<Finished>, u64), PassError> {
        let Annealing { budget, p, sites, host, .. } = self;
        let greedy = |aim| {
            let limits = PerSpace { device: Some(aim), host: *host };
            budget.greedy_of(&p.t, p.device, limits, sites)
        };
        p.aim(|aim| greedy(aim).map(|(choice, _): (ResidencyChoice, _)| choice))
    }

    /// The best of what other seeds lead to than that of `one`: alone, joined with each other, and joined with all.
    pub(super) fn of_seeds(
        &self,
        one: BudgetCandidate,
    ) -> Result<(Option<Finished>, u64), PassError> {
        let improved = |all: &[(u64, f64)]| -> Vec<BudgetCandidate> {
            all.par_iter().map(|&changes| self.improved(changes)).collect()
        };
        let (alone, joined) = rayon::join(|| improved(&ALONE), || improved(&JOINED));
        let all = [&alone[..], &joined, &[one]].concat();
        let alone = alone.into_iter().zip(ALONE).map(|(found, changes)| (vec![found], changes));
        let groups: Vec<_> = alone.chain([(joined, FIRST), (all, FIRST)]).collect();
        let finished = |(found, changes): (Vec<_>, (u64, f64))| {
            let joined = self.annealer(changes.0).join(found, self.p.limit, self.changes);
            joined.map_or(Ok((None, 0)), |candidate| self.finished(candidate, changes))
        };
        let found: Result<Vec<_>, PassError> = groups.into_par_iter().map(finished).collect();
        Ok(fastest(found?))
    }
}
