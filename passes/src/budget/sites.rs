//! What can be decided: homes, and what becomes of tensors between two accesses.

use super::Budget;
use crate::residency::{Gap, ResidencyChoice, Timeline};

/// One decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetSite {
    /// Whether a tensor's home is in host memory.
    Home(usize),
    /// Whether a tensor leaves its home on the device as the step begins.
    Begin(usize),
    /// What becomes of a tensor after one of its accesses.
    Gap(usize, usize),
}

impl BudgetSite {
    pub(super) fn tensor(self) -> usize {
        match self {
            BudgetSite::Home(x) | BudgetSite::Begin(x) | BudgetSite::Gap(x, _) => x,
        }
    }
}

/// What can be decided about a timeline's tensors.
pub(super) struct Sites<'a> {
    t: &'a Timeline<'a>,
    /// The decisions, by the position at which their tensor first appears.
    pub(super) all: Vec<BudgetSite>,
    /// What has its home on the device may be away from it for a part of the step.
    homes_leave: bool,
}

impl<'a> Sites<'a> {
    /// All decisions of a timeline.
    pub(super) fn new(t: &'a Timeline<'a>, homes_leave: bool) -> Self {
        let mut all = Vec::new();
        for (x, tensor) in t.tensors.iter().enumerate() {
            if tensor.accesses.is_empty() {
                continue;
            }
            if tensor.homed && tensor.home.is_none() {
                all.push(BudgetSite::Home(x));
            }
            if homes_leave && t.may_begin_away(x) {
                all.push(BudgetSite::Begin(x));
            }
            let decided = |&k: &usize| t.may_leave(x, k);
            all.extend((0..tensor.gaps()).filter(decided).map(|k| BudgetSite::Gap(x, k)));
        }
        all.sort_by_key(|site| t.tensors[site.tensor()].accesses.first().copied());
        Sites { t, all, homes_leave }
    }

    /// True where something can leave its home on the device.
    pub(super) fn any_leaves_home(&self) -> bool {
        self.all.iter().any(|&site| match site {
            BudgetSite::Begin(_) => true,
            BudgetSite::Gap(x, k) => self.t.tensors[x].homed && self.may_leave_home(x, k),
            BudgetSite::Home(_) => false,
        })
    }

    /// True where a tensor may be away after an access though its home is on the device.
    pub(super) fn may_leave_home(&self, x: usize, k: usize) -> bool {
        self.homes_leave && self.t.may_leave_home(x, k)
    }
}

/// What a tensor can do instead of staying.
pub(super) fn modes(t: &Timeline, allowed: &Budget, x: usize) -> Vec<Gap> {
    let mut modes = Vec::new();
    if allowed.recompute && t.may_repeat(x) {
        modes.extend([Gap::Repeat { hold: true }, Gap::Repeat { hold: false }]);
    }
    modes.extend([Gap::Swap { hold: false }, Gap::Swap { hold: true }]);
    modes
}

/// A decision as it was before a change.
enum Was {
    Home(usize, bool),
    Begin(usize, bool),
    Gap(usize, Gap),
}

/// Decisions that were changed, to be taken back.
#[derive(Default)]
pub(super) struct Undo(Vec<Was>);

impl Undo {
    pub(super) fn set_home(
        &mut self,
        sites: &Sites,
        choice: &mut ResidencyChoice,
        x: usize,
        host: bool,
    ) {
        let t = sites.t;
        if choice.host_home[x] == host {
            return;
        }
        self.0.push(Was::Home(x, !host));
        choice.host_home[x] = host;
        if host {
            self.set_begin(choice, x, false);
            return;
        }
        for k in (0..t.tensors[x].gaps()).filter(|&k| !sites.may_leave_home(x, k)) {
            self.set_gap(choice, t.gap(x, k), Gap::Keep);
        }
    }

    /// Sets whether a tensor with its home on the device leaves as the step begins.
    pub(super) fn set_begin(&mut self, choice: &mut ResidencyChoice, x: usize, leaves: bool) {
        if choice.leaves[x] != leaves {
            self.0.push(Was::Begin(x, !leaves));
            choice.leaves[x] = leaves;
        }
    }

    /// Sets a gap, by its place in the choice.
    pub(super) fn set_gap(&mut self, choice: &mut ResidencyChoice, at: usize, gap: Gap) {
        let was = std::mem::replace(&mut choice.gaps[at], gap);
        if was != gap {
            self.0.push(Was::Gap(at, was));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all changes back.
    pub(super) fn back(&mut self, choice: &mut ResidencyChoice) {
        while let Some(was) = self.0.pop() {
            match was {
                Was::Home(x, home) => choice.host_home[x] = home,
                Was::Begin(x, leaves) => choice.leaves[x] = leaves,
                Was::Gap(at, gap) => choice.gaps[at] = gap,
            }
        }
    }

    /// Keeps all changes.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
