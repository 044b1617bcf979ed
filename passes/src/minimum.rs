//! What is known of the least limit on device memory that a step can keep.

use crate::Stats;

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

const EXACT: &str = "minimum_device_bytes";
const AT_MOST: &str = "minimum_device_bytes_at_most";
const BOUND: &str = "minimum_device_bytes_bound";

impl Minimum {
    /// The figures by their names in reports: `minimum_device_bytes`, or
    /// `minimum_device_bytes_at_most` where less may do, and `minimum_device_bytes_bound`.
    pub fn figures(self) -> Stats {
        let name = if self.is_exact { EXACT } else { AT_MOST };
        Stats::from([(name, self.bytes), (BOUND, self.bound)])
    }

    /// What figures say.
    pub(crate) fn of(stats: &Stats) -> Option<Minimum> {
        let figure = |name| stats.get(name).copied();
        let (exact, bound) = (figure(EXACT), figure(BOUND)?);
        let bytes = exact.or_else(|| figure(AT_MOST))?;
        Some(Minimum { bytes, bound, is_exact: exact.is_some() })
    }
}
