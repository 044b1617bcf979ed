//! A choice improved by integer programs over windows, each with everything else fixed.
//!
//! A window is a run of decisions by the position of their tensors' tasks, or the same number
//! spread over all of them. What a program proposes is carried out, and kept where the whole
//! step is better by it: no choice gets worse, and no solver's word is taken for that.

use super::program::solve;
use super::sites::{Judge, Site};
use super::window::Window;
use crate::mip;
use crate::residency::{Choice, Gap, Prediction, Timeline, windows};
use crate::search::Budget;

/// Spans of a window and tasks of its chains, in multiples of its decisions.
const MOST: usize = 8;

/// The most effort of one program, in seconds of the reference core.
const PROGRAM_EFFORT: f64 = 4.0;

/// Windows decide on tensors of at least one part in so many of the largest.
const SMALLEST: u64 = 500;

/// Programs over windows of a timeline.
pub(super) struct Windows<'a> {
    pub(super) sites: &'a [Site],
    /// Decisions of a window.
    pub(super) size: usize,
    /// Seed of the solver's random decisions.
    pub(super) seed: u64,
    pub(super) budget: Budget<'a>,
}

impl Windows<'_> {
    /// A choice that is no worse, and how many programs were solved.
    pub(super) fn improve(&self, judge: &mut Judge, start: Choice, limit: u64) -> (Choice, u64) {
        let Some(mut promise) = judge.judge(&start, limit) else { return (start, 0) };
        let (mut choice, mut programs) = (start, 0);
        let windows = self.windows(judge.t);
        // Windows in a row that brought nothing.
        let mut vain = 0;
        for window in windows.iter().cycle() {
            if vain == windows.len() || self.budget.is_over() {
                break;
            }
            vain += 1;
            // Without repeats there are no seconds to save.
            if promise.over == 0 && window.iter().all(|s| choice.gaps[s.gap] == Gap::Keep) {
                continue;
            }
            let Some(better) = self.solve(judge, &choice, window, limit) else { continue };
            programs += 1;
            if let Some(new) = judge.judge(&better, limit).filter(|n| is_better(n, &promise)) {
                (choice, promise, vain) = (better, new, 0);
            }
        }
        (choice, programs)
    }

    /// Windows over what is large enough.
    fn windows(&self, t: &Timeline) -> Vec<Vec<Site>> {
        let bytes = |s: &Site| t.tensors[s.x].bytes;
        let largest = self.sites.iter().map(bytes).max().unwrap_or(0);
        let large = self.sites.iter().filter(|s| bytes(s) >= largest / SMALLEST);
        windows(&large.copied().collect::<Vec<_>>(), self.size)
    }

    /// The choice that a window's program proposes.
    fn solve(
        &self,
        judge: &mut Judge,
        choice: &Choice,
        decided: &[Site],
        limit: u64,
    ) -> Option<Choice> {
        let window = Window::new(judge, self.sites, choice, decided, MOST * self.size)?;
        let most = PROGRAM_EFFORT;
        let limits = mip::Limits { most, ..mip::Limits::new(&self.budget, self.seed) };
        // A solver that fails leaves the choice as it is.
        let gaps = solve(&window, limit, &limits).ok()?;
        let mut better = choice.clone();
        for (span, gap) in window.spans.iter().zip(gaps) {
            better.gaps[span.site.gap] = gap;
        }
        Some(better)
    }
}

/// Better by more than rounding.
fn is_better(new: &Prediction, old: &Prediction) -> bool {
    new.over < old.over || new.over == old.over && new.seconds < old.seconds * (1.0 - 1e-9)
}
