//! What planning learns about a step beside its plan. Passes say it by these types;
//! [`Stats`](crate::Stats) are for printing alone.

use crate::Stats;
use crate::certificate::PeakBound;

/// What planning learned about a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanReport {
    /// Why no order of the graph has a lower peak; `None` if no pass proved a bound.
    pub peak_bound: Option<PeakBound>,
    /// The least limit on device memory that can be kept; `None` if no pass looked for it.
    pub minimum: Option<Minimum>,
    /// Under a limit on device memory: what the step takes. `None` without a limit, or without a
    /// strategy that keeps it.
    pub times: Option<StepTimes>,
    /// Seconds of the step without a limit, as it was before operators were cut into parts or the
    /// step into rounds; `None` if neither was done.
    pub uncut_seconds: Option<f64>,
}

/// Seconds of a step under a limit on device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimes {
    /// Of the plan, simulated.
    pub seconds: f64,
    /// Of every kernel once, which is the step without a limit.
    pub unlimited: f64,
    /// What a step of this graph takes at least if tensors are computed again and none is moved;
    /// `None` for a plan that moves tensors.
    pub bound: Option<f64>,
}

/// A step that takes less than this much more than without a limit is as fast, as a part of it.
const AS_FAST: f64 = 1e-3;

impl StepTimes {
    /// True if the limit costs no time that matters.
    pub(crate) fn is_as_fast_as_unlimited(&self) -> bool {
        self.seconds <= self.unlimited * (1.0 + AS_FAST)
    }

    /// The times of steps that run one after another, each so often.
    pub(crate) fn sum<const N: usize>(parts: [(u32, StepTimes); N]) -> StepTimes {
        let of = |seconds: fn(&StepTimes) -> f64| {
            parts.iter().map(|(times, part)| f64::from(*times) * seconds(part)).sum()
        };
        let bounds = parts.iter().map(|(times, part)| Some(f64::from(*times) * part.bound?));
        StepTimes {
            seconds: of(|p| p.seconds),
            unlimited: of(|p| p.unlimited),
            bound: bounds.sum(),
        }
    }
}

impl PlanReport {
    /// Predicted seconds of the step under its limit; infinity if nothing predicted them.
    pub(crate) fn seconds(&self) -> f64 {
        self.times.map_or(f64::INFINITY, |times| times.seconds)
    }

    /// What a step takes at least, in seconds, under the byte limit and without moving tensors; `None`
    /// if nothing is known of it.
    pub fn seconds_bound(&self) -> Option<f64> {
        self.times.and_then(|times| times.bound)
    }
}

/// What is known of the least limit on device memory that can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minimum {
    /// Bytes that suffice.
    pub bytes: u64,
    /// Bytes that every plan needs.
    pub bound: u64,
    /// Every limit below [`Minimum::bytes`] is refused. A search that has found enough for the limit at hand
    /// does not go on for this, and of other numbers of rounds nothing is known.
    pub is_exact: bool,
}

impl Minimum {
    /// The figures by their names in reports: `minimum_device_bytes`, or
    /// `minimum_device_bytes_at_most` where less may do, and `minimum_device_bytes_bound`.
    pub fn figures(self) -> Stats {
        let name = match self.is_exact {
            true => "minimum_device_bytes",
            false => "minimum_device_bytes_at_most",
        };
        Stats::from([(name, self.bytes), ("minimum_device_bytes_bound", self.bound)])
    }

    /// What two plans need that take turns.
    pub(crate) fn of_both(self, other: Minimum) -> Minimum {
        Minimum {
            bytes: self.bytes.max(other.bytes),
            bound: self.bound.max(other.bound),
            is_exact: self.is_exact && other.is_exact,
        }
    }

    /// What two sets of plans need, of which one is taken.
    pub(crate) fn of_either(self, other: Minimum) -> Minimum {
        Minimum {
            bytes: self.bytes.min(other.bytes),
            bound: self.bound.min(other.bound),
            is_exact: self.is_exact && other.is_exact,
        }
    }
}
