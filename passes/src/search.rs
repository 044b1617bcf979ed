//! How passes that search are limited and watched from outside.
//!
//! A search ends by the work that it counts, never by a clock, so that the same inputs and
//! options give the same plan on every machine, busy or not. Work is given as *effort*: the
//! seconds that it takes on a reference core, one of a server of 2023. Each search has its own
//! unit of work and knows how many of them such a core does in a second. A clock is read where
//! the caller sets a time limit, and nowhere else; a search that is ended by it, or by the
//! caller, says so.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the caller says of all searches.
#[derive(Clone, Copy, Default)]
pub struct Search<'a> {
    /// Effort of each search in seconds of the reference core, instead of what the pipeline says.
    pub effort: Option<f64>,
    /// Wall time in seconds after which each search ends, whatever its effort.
    pub time_limit: Option<f64>,
    /// Seed of random moves.
    pub seed: u64,
    /// Ends searches when it becomes true; the best found so far is kept.
    pub stop: Option<&'a AtomicBool>,
    /// Becomes true when `time_limit` or `stop` ends a search: what it found may differ the
    /// next time.
    pub cut: Option<&'a AtomicBool>,
    /// Told of every better solution and bound.
    pub progress: Option<&'a (dyn Fn(&Progress) + Sync)>,
}

/// What a search tells while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What found the incumbent.
    pub method: &'a str,
    /// Peak of the best solution so far, in bytes.
    pub incumbent: u64,
    /// No solution has a lower peak, in bytes.
    pub bound: u64,
}

impl<'a> Search<'a> {
    /// As pipelines say, and watched by nobody.
    pub const USUAL: Self =
        Search { effort: None, time_limit: None, seed: 0, stop: None, cut: None, progress: None };

    /// True where someone asked to stop.
    pub fn is_stopped(&self) -> bool {
        Deadline { end: None, stop: self.stop, cut: self.cut }.is_over()
    }

    /// The effort of a search for which the pipeline has some, in seconds.
    pub fn effort(&self, usual: f64) -> f64 {
        self.effort.unwrap_or(usual)
    }

    /// When a search must end that begins now.
    pub fn deadline(&self) -> Deadline<'a> {
        let end = self.time_limit.and_then(|seconds| {
            let wall = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
            Instant::now().checked_add(wall)
        });
        Deadline { end, stop: self.stop, cut: self.cut }
    }

    /// The budget of a search that begins now and for which the pipeline has some effort, in
    /// seconds.
    pub fn budget(&self, usual: f64) -> Budget<'a> {
        Budget::new(self.effort(usual), self.deadline())
    }

    /// Tells the listener, if there is one.
    pub fn report(&self, progress: &Progress) {
        if let Some(listener) = self.progress {
            listener(progress);
        }
    }
}

/// What ends a search beside its work. The default never does, and reads no clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadline<'a> {
    /// Wall time; `None` if the caller sets no limit.
    end: Option<Instant>,
    /// Ends the search when it becomes true.
    stop: Option<&'a AtomicBool>,
    /// Becomes true where either ends it.
    cut: Option<&'a AtomicBool>,
}

impl<'a> Deadline<'a> {
    /// As soon as someone asks to stop.
    pub fn at_stop(stop: &'a AtomicBool) -> Self {
        Deadline { stop: Some(stop), ..Deadline::default() }
    }

    /// True where the time is over or someone asked to stop. A search that asks ends then.
    pub fn is_over(&self) -> bool {
        let is_over = self.end.is_some_and(|end| Instant::now() >= end)
            || self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        if is_over && let Some(cut) = self.cut {
            cut.store(true, Ordering::Relaxed);
        }
        is_over
    }

    /// Seconds that are left, where the caller set a limit.
    #[cfg(any(feature = "highs", test))]
    pub(crate) fn seconds_left(&self) -> Option<f64> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()).as_secs_f64())
    }
}

/// Effort that the parts of a search share, and its deadline.
#[derive(Clone, Debug)]
pub struct Budget<'a> {
    /// Seconds of the reference core that are left.
    left: Cell<f64>,
    pub(crate) deadline: Deadline<'a>,
}

impl<'a> Budget<'a> {
    /// Some effort in seconds.
    pub fn new(effort: f64, deadline: Deadline<'a>) -> Self {
        Budget { left: Cell::new(effort.max(0.0)), deadline }
    }

    /// Seconds of effort that are left.
    pub fn left(&self) -> f64 {
        self.left.get()
    }

    /// Takes what some work took.
    pub fn spend(&self, effort: f64) {
        self.left.set((self.left.get() - effort).max(0.0));
    }

    /// True where nothing is left, or the deadline is over.
    pub fn is_over(&self) -> bool {
        self.left.get() <= 0.0 || self.deadline.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Deadline, Search};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_clock_is_there_only_under_a_time_limit() {
        let usual = Search::default();
        assert_eq!((usual.deadline().seconds_left(), usual.deadline().is_over()), (None, false));
        let limited = Search { time_limit: Some(1e9), ..usual };
        assert!(limited.deadline().seconds_left().is_some_and(|s| s > 1e8));
        // More than the clock can count is no limit.
        let endless = Search { time_limit: Some(f64::MAX), ..usual };
        assert_eq!(endless.deadline().seconds_left(), None);
    }

    #[test]
    fn what_ends_a_search_before_its_work_is_done_is_told() {
        let (stop, cut) = (AtomicBool::new(false), AtomicBool::new(false));
        let search = Search { stop: Some(&stop), cut: Some(&cut), ..Search::default() };
        let budget = search.budget(2.0);
        budget.spend(3.0);
        assert!(budget.is_over() && !search.is_stopped());
        assert!(!cut.load(Ordering::Relaxed), "its own work ended it");
        stop.store(true, Ordering::Relaxed);
        assert!(search.is_stopped() && cut.swap(false, Ordering::Relaxed));
        let limited = Search { time_limit: Some(0.0), stop: None, ..search };
        assert!(limited.deadline().is_over() && cut.load(Ordering::Relaxed));
    }

    #[test]
    fn effort_is_spent_to_the_last() {
        let budget = Budget::new(1.0, Deadline::default());
        budget.spend(0.75);
        assert_eq!((budget.left(), budget.is_over()), (0.25, false));
        assert!(Budget::new(-1.0, Deadline::default()).is_over());
        let search = Search { effort: Some(0.5), ..Search::default() };
        assert_eq!((search.effort(3.0), Search::default().effort(3.0)), (0.5, 3.0));
    }
}
