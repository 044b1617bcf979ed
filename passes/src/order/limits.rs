//! How much work a search does, and who watches it.

use crate::search::Deadline;

/// The effort where none is given, in seconds of the reference core.
pub(super) const DEFAULT_EFFORT: f64 = 0.6;

/// Steps for each second of effort, on graphs of some thousand operators.
const STEPS_PER_SECOND: f64 = 5e7;

/// The steps of some effort in seconds.
fn steps_of(effort: f64) -> u64 {
    (effort * STEPS_PER_SECOND) as u64
}

/// How long to look for better orders.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Steps of a search: operators placed or arcs looked at.
    pub steps: u64,
    /// What ends it before.
    pub deadline: Deadline<'a>,
    /// Seed of random moves.
    pub seed: u64,
}

impl<'a> Limits<'a> {
    /// Limits of a search with some effort, in seconds of the reference core.
    pub fn new(effort: f64, seed: u64, deadline: Deadline<'a>) -> Limits<'a> {
        Limits { steps: steps_of(effort), deadline, seed }
    }
}

/// Counts steps against limits; the deadline is looked at now and then.
pub(super) struct Meter<'a> {
    limits: Limits<'a>,
    spent: u64,
    next_look: u64,
    over: bool,
}

/// Steps between two looks at the deadline.
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
            self.over |= self.limits.deadline.is_over();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }
}
