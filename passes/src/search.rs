//! How passes that search are limited and watched from outside.

use crate::order;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the caller says of all searches.
#[derive(Clone, Copy, Default)]
pub struct Search<'a> {
    /// Seconds for each search, instead of what the pipeline says.
    pub time_limit: Option<f64>,
    /// Seed of random moves.
    pub seed: u64,
    /// Ends searches when it becomes true; the best found so far is kept.
    pub stop: Option<&'a AtomicBool>,
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
    /// True where someone asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// The seconds of a search that the pipeline allows some.
    pub(crate) fn seconds(&self, seconds: f64) -> f64 {
        self.time_limit.unwrap_or(seconds)
    }

    /// Limits of a search that begins now and that the pipeline allows some seconds.
    pub(crate) fn limits(&self, seconds: f64) -> order::Limits<'a> {
        order::Limits::new(self.seconds(seconds), self.seed, self.stop)
    }

    pub(crate) fn report(&self, progress: &Progress) {
        if let Some(listener) = self.progress {
            listener(progress);
        }
    }
}

/// When a search must end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadline<'a> {
    /// Wall time; none where the clock does not run that far.
    pub end: Option<Instant>,
    /// Ends the search when it becomes true.
    pub stop: Option<&'a AtomicBool>,
}

impl<'a> Deadline<'a> {
    /// Some seconds from now, or as soon as someone asks to stop.
    pub fn after(seconds: f64, stop: Option<&'a AtomicBool>) -> Self {
        let wall = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        Deadline { end: Instant::now().checked_add(wall), stop }
    }

    /// True where the time is over or someone asked to stop.
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
            || self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Seconds that are left.
    pub fn seconds_left(&self) -> f64 {
        let left = |end: Instant| end.saturating_duration_since(Instant::now()).as_secs_f64();
        self.end.map_or(f64::MAX, left)
    }
}
