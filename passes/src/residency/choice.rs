//! What becomes of each tensor while nothing accesses it.

use super::timeline::Timeline;
use arenic_ir::program::Space;

/// What becomes of a tensor between two accesses. With `hold`, a tensor that a repeat
/// brought back early stays until the second access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gap {
    /// It stays.
    Keep,
    /// It goes to host memory and comes back.
    Swap {
        /// It stays, once it is back.
        hold: bool,
    },
    /// It is dropped and computed again.
    Repeat {
        /// It stays, once it is back.
        hold: bool,
    },
}

impl Gap {
    /// The tensor stays, once it is back.
    pub fn holds(self) -> bool {
        matches!(self, Gap::Swap { hold: true } | Gap::Repeat { hold: true })
    }
}

/// What becomes of each tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidencyChoice {
    /// Its home is in host memory.
    pub host_home: Vec<bool>,
    /// Its home is on the device, and it leaves for host memory as the step begins. So copies
    /// run across the step's boundary, and yet all are joined there.
    pub leaves: Vec<bool>,
    /// It is handed out in host memory, once the last access is over.
    pub host_end: Vec<bool>,
    /// Between each access and the next, by [`Timeline::gap`].
    pub gaps: Vec<Gap>,
}

impl ResidencyChoice {
    /// Everything stays where it is.
    pub fn keep_all(t: &Timeline) -> ResidencyChoice {
        let none = vec![false; t.tensors.len()];
        let gaps = vec![Gap::Keep; t.gap_count()];
        let host_home = t.tensors.iter().map(|x| x.home == Some(Space::Host)).collect();
        ResidencyChoice { host_home, leaves: none.clone(), host_end: none, gaps }
    }

    /// True if a tensor has its home in host memory: where its state must have it or, if that is open, as
    /// this choice says.
    pub fn is_host_home(&self, t: &Timeline, x: usize) -> bool {
        t.tensors[x].home.map_or(self.host_home[x], |space| space == Space::Host)
    }

    /// Everything leaves that the task at hand does not need: the least memory, and the
    /// most copies.
    pub fn spill_all(t: &Timeline) -> ResidencyChoice {
        let mut all = ResidencyChoice::keep_all(t);
        for (x, tensor) in t.tensors.iter().enumerate() {
            all.host_home[x] = tensor.home.map_or(tensor.homed, |home| home == Space::Host);
            all.host_end[x] = tensor.pinned && !tensor.homed;
            for k in 0..tensor.gaps() {
                if t.may_leave(x, k) {
                    all.gaps[t.gap(x, k)] = Gap::Swap { hold: false };
                }
            }
        }
        all
    }
}
