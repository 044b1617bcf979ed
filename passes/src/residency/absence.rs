//! What can leave: a tensor, from one access to the next, or across the step's boundary.

use super::choice::{Gap, ResidencyChoice};
use super::timeline::Timeline;
use std::ops::Range;

/// Where a tensor lies idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// After one of its accesses, until the next.
    Between(usize),
    /// From its last access to the first one of the next step: its home is in host memory.
    AcrossSteps,
    /// From its last access on: the caller finds it in host memory.
    AtEnd,
}

/// A time between two accesses in which a tensor can be in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The tensor.
    pub tensor: usize,
    /// Where it lies idle.
    pub idle: Idle,
    /// The positions at which it is away then.
    pub away: Vec<Range<usize>>,
}

impl Absence {
    /// The same, one by one.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.away.iter().cloned().flatten()
    }

    /// The tensor goes to host memory then. What leaves its home leaves it across steps, too.
    pub fn swap(&self, t: &Timeline, choice: &mut ResidencyChoice) {
        let x = self.tensor;
        choice.host_home[x] |= t.tensors[x].homed;
        match self.idle {
            Idle::AcrossSteps => {}
            Idle::Between(k) => choice.gaps[t.gap(x, k)] = Gap::Swap { hold: false },
            Idle::AtEnd => choice.host_end[x] = true,
        }
    }

    /// The tensor stays then. What has its home on the device stays there all the time.
    pub fn keep(&self, t: &Timeline, choice: &mut ResidencyChoice) {
        let x = self.tensor;
        match self.idle {
            Idle::AcrossSteps => {
                choice.host_home[x] = false;
                let gaps = t.gap(x, 0)..t.gap(x, t.tensors[x].gaps());
                choice.gaps[gaps].fill(Gap::Keep);
            }
            Idle::Between(k) => choice.gaps[t.gap(x, k)] = Gap::Keep,
            Idle::AtEnd => choice.host_end[x] = false,
        }
    }

    /// True where it was decided that the tensor does not stay then.
    pub fn is_chosen(&self, t: &Timeline, choice: &ResidencyChoice) -> bool {
        let x = self.tensor;
        match self.idle {
            Idle::AcrossSteps => choice.host_home[x],
            Idle::Between(k) => choice.gaps[t.gap(x, k)] != Gap::Keep,
            Idle::AtEnd => choice.host_end[x],
        }
    }
}

/// Everything that can leave.
pub fn absences(t: &Timeline) -> Vec<Absence> {
    let mut found = Vec::new();
    for (x, tensor) in t.tensors.iter().enumerate() {
        let mut add = |idle, mut away: Vec<Range<usize>>| {
            away.retain(|r| !r.is_empty());
            if !away.is_empty() {
                found.push(Absence { tensor: x, idle, away });
            }
        };
        for k in (0..tensor.gaps()).filter(|&k| t.may_leave(x, k)) {
            let away = tensor.accesses[k] as usize + 1..tensor.accesses[k + 1] as usize;
            add(Idle::Between(k), vec![away]);
        }
        if tensor.homed {
            add(Idle::AcrossSteps, across_steps(t, x));
        } else if tensor.pinned {
            add(Idle::AtEnd, vec![after(t, x)]);
        }
    }
    found
}

/// The positions after a tensor's last access.
fn after(t: &Timeline, x: usize) -> Range<usize> {
    let last = t.tensors[x].accesses.last();
    last.map_or(t.order.len(), |&p| p as usize + 1)..t.order.len()
}

/// The positions at which a tensor with its home in host memory is away, after its last
/// access and before the first.
pub fn across_steps(t: &Timeline, x: usize) -> Vec<Range<usize>> {
    let tensor = &t.tensors[x];
    let before = 0..tensor.accesses.first().map_or(t.order.len(), |&p| p as usize);
    // An input's bytes are free after its last reader as it is; a state's new value that is
    // handed out, too, stays.
    let stays = t.is_input(x) || tensor.pinned && tensor.renewed.is_some();
    if stays { vec![before] } else { vec![before, after(t, x)] }
}
