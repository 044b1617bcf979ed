//! Random delays, so that tests see interleavings that an idle machine never shows.

use std::thread::{sleep, yield_now};
use std::time::Duration;

/// The longest delay, in microseconds: longer than a small kernel and its wake-up.
const LONGEST: u64 = 300;

/// Delays drawn from a seed.
pub(super) struct Delays(pub(super) u64);

impl Delays {
    /// Delays a command: the same for the same seed, step and command. A quarter of the
    /// commands sleep, a quarter give way.
    pub(super) fn before(&self, command: usize, step: u64) {
        let key = [self.0, step, command as u64].into_iter().fold(0, |key, x| mix(key ^ mix(x)));
        match key % 4 {
            0 => sleep(Duration::from_micros((key >> 32) % LONGEST)),
            1 => yield_now(),
            _ => {}
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
