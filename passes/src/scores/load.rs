//! Live bytes while tensors leave.

use crate::residency::{Absence, Idle, ResidencyChoice, Timeline, across_steps};
use std::ops::Range;

/// Live bytes without what has left so far.
#[derive(Clone)]
pub(super) struct Load<'a> {
    t: &'a Timeline<'a>,
    pub(super) bytes: Vec<u64>,
    pub(super) choice: ResidencyChoice,
}

impl<'a> Load<'a> {
    pub(super) fn new(t: &'a Timeline<'a>) -> Self {
        Load { t, bytes: t.live.clone(), choice: ResidencyChoice::keep_all(t) }
    }

    /// Lets a tensor leave. What leaves its home leaves it across steps, too.
    pub(super) fn leave(&mut self, absence: &Absence) {
        let x = absence.tensor;
        let leaves_home = self.t.tensors[x].homed && !self.choice.host_home[x];
        absence.swap(self.t, &mut self.choice);
        if leaves_home {
            self.free(x, &across_steps(self.t, x));
        }
        if absence.idle != Idle::AcrossSteps {
            self.free(x, &absence.away);
        }
    }

    fn free(&mut self, x: usize, away: &[Range<usize>]) {
        for p in away.iter().cloned().flatten() {
            self.bytes[p] = self.bytes[p].saturating_sub(self.t.tensors[x].bytes);
        }
    }

    /// Byte-seconds before each position.
    pub(super) fn areas(&self) -> Vec<f64> {
        let mut areas = vec![0.0];
        for (p, &bytes) in self.bytes.iter().enumerate() {
            areas.push(areas[p] + bytes as f64 * self.t.seconds(p as u32));
        }
        areas
    }
}
