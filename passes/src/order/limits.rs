//! How long a search may take, and who watches it.

use crate::mip;
use crate::search::Deadline;
use std::sync::atomic::AtomicBool;

/// The time limit where none is given, in seconds.
pub(super) const DEFAULT_TIME_LIMIT: f64 = 10.0;

/// Steps for each second of a time limit, a fraction of what a core does, so that the time
/// runs out on slow machines alone.
const STEPS_PER_SECOND: f64 = 3e6;

/// How long to look for better orders.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Steps of a search: operators placed or arcs looked at. Under this limit alone the
    /// result is the same on every machine.
    pub steps: u64,
    /// When it ends.
    pub deadline: Deadline<'a>,
    /// Seed of random moves.
    pub seed: u64,
}

impl<'a> Limits<'a> {
    /// Limits for a search of some seconds that begins now.
    pub fn new(seconds: f64, seed: u64, stop: Option<&'a AtomicBool>) -> Limits<'a> {
        Limits {
            steps: (seconds * STEPS_PER_SECOND) as u64,
            deadline: Deadline::after(seconds, stop),
            seed,
        }
    }
}

impl<'a> From<&Limits<'a>> for mip::Limits<'a> {
    fn from(limits: &Limits<'a>) -> Self {
        mip::Limits {
            seconds: limits.deadline.seconds_left(),
            nodes: None,
            gap: 0.0,
            seed: limits.seed,
            stop: limits.deadline.stop,
        }
    }
}

/// Counts steps against limits; the clock is looked at now and then.
pub(super) struct Meter<'a> {
    limits: Limits<'a>,
    spent: u64,
    next_look: u64,
    over: bool,
}

/// Steps between two looks at the clock.
const LOOK_EVERY: u64 = 4096;

impl<'a> Meter<'a> {
    pub(super) fn new(limits: Limits<'a>) -> Self {
        Meter { limits, spent: 0, next_look: 0, over: limits.steps == 0 }
    }

    pub(super) fn limits(&self) -> &Limits<'a> {
        &self.limits
    }

    /// Steps so far.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// Steps that are left.
    pub(super) fn left(&self) -> u64 {
        if self.over { 0 } else { self.limits.steps.saturating_sub(self.spent) }
    }

    pub(super) fn spend(&mut self, steps: u64) {
        self.spent += steps;
        if self.spent >= self.limits.steps {
            self.over = true;
        } else if self.spent >= self.next_look {
            self.next_look = self.spent + LOOK_EVERY;
            self.look();
        }
    }

    /// Looks at the clock and at the request to stop.
    fn look(&mut self) {
        self.over |= self.limits.deadline.is_over();
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }
}
