//! Random figures for tests; the same every time.

/// A small deterministic generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Any word.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// True every other time.
    pub(crate) fn chance(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// One of some.
    pub(crate) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.range(0, from.len() - 1)]
    }
}
