//! What searches with different seeds differ by.

/// A factor between 64 and 127 that stirs a preference; the same for all with seed 0.
pub(super) fn noise(seed: u64, i: u32) -> u128 {
    if seed == 0 { 64 } else { 64 + u128::from(mix(seed ^ mix(i.into())) % 64) }
}

/// Spreads a number over all bits (SplitMix64).
pub(super) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
