//! What can be decided: homes, and what becomes of tensors between two accesses.

use super::Budget;
use crate::residency::{Choice, Gap, Timeline};

/// One decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// Whether a tensor's home is in host memory.
    Home(usize),
    /// What becomes of a tensor after one of its accesses.
    Gap(usize, usize),
}

impl Site {
    pub(super) fn tensor(self) -> usize {
        match self {
            Site::Home(x) | Site::Gap(x, _) => x,
        }
    }
}

/// All decisions of a timeline that the pass's options allow.
pub(super) fn sites(t: &Timeline, allowed: &Budget) -> Vec<Site> {
    let mut sites = Vec::new();
    for (x, tensor) in t.tensors.iter().enumerate() {
        if tensor.homed && !allowed.swap || tensor.accesses.is_empty() {
            continue;
        }
        if tensor.homed {
            sites.push(Site::Home(x));
        }
        let decided = |&k: &usize| t.may_leave(x, k) && !gap_modes(t, allowed, x).is_empty();
        sites.extend((0..tensor.gaps()).filter(decided).map(|k| Site::Gap(x, k)));
    }
    sites
}

/// What a tensor can do in a gap instead of staying.
pub(super) fn gap_modes(t: &Timeline, allowed: &Budget, x: usize) -> Vec<Gap> {
    let mut modes = Vec::new();
    if allowed.recompute && t.may_repeat(x) {
        modes.extend([Gap::Repeat { hold: true }, Gap::Repeat { hold: false }]);
    }
    if allowed.swap {
        modes.extend([Gap::Swap { hold: false }, Gap::Swap { hold: true }]);
    }
    modes
}

/// A decision as it was before a change.
enum Was {
    Home(usize, bool),
    Gap(usize, Gap),
}

/// Decisions that were changed, to be taken back.
#[derive(Default)]
pub(super) struct Undo(Vec<Was>);

impl Undo {
    pub(super) fn set_home(&mut self, t: &Timeline, choice: &mut Choice, x: usize, host: bool) {
        if choice.host_home[x] == host {
            return;
        }
        self.0.push(Was::Home(x, !host));
        choice.host_home[x] = host;
        if !host {
            // What has its home on the device stays there.
            for k in 0..t.tensors[x].gaps() {
                self.set_gap(choice, t.gap(x, k), Gap::Keep);
            }
        }
    }

    /// Sets a gap, by its place in the choice.
    pub(super) fn set_gap(&mut self, choice: &mut Choice, at: usize, gap: Gap) {
        let was = std::mem::replace(&mut choice.gaps[at], gap);
        if was != gap {
            self.0.push(Was::Gap(at, was));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all changes back.
    pub(super) fn back(&mut self, choice: &mut Choice) {
        while let Some(was) = self.0.pop() {
            match was {
                Was::Home(x, home) => choice.host_home[x] = home,
                Was::Gap(at, gap) => choice.gaps[at] = gap,
            }
        }
    }

    /// Keeps all changes.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
