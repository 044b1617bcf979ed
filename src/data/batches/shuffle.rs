//! Permutations that follow from a seed and an epoch.

/// The permutation of one epoch at a time, of units: rows, or whole batches.
///
/// The generator is SplitMix64. With `mix` its output function and G its increment, epoch
/// e starts from the state mix(mix(seed + G) XOR e). A Fisher-Yates shuffle goes from the
/// last element down to the second; for element i it draws j = (x·(i+1)) >> 64 of the next
/// 64-bit number x, and swaps elements i and j. The result is part of the contract: a run
/// goes on after a restart, also of a newer version, with the rows it would have read.
#[derive(Debug)]
pub(super) struct Shuffle {
    seed: u64,
    /// Units of one batch.
    pieces: usize,
    /// The epoch that `order` belongs to.
    epoch: Option<u64>,
    order: Vec<u32>,
}

const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number from 0 up to 1 that follows from a seed and a step.
pub(super) fn uniform(seed: u64, step: u64) -> f64 {
    let bits = mix(mix(seed.wrapping_add(INCREMENT)) ^ step) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

impl Shuffle {
    /// Permutations of `len` units, so many of which make a batch.
    pub(super) fn new(seed: u64, len: u32, pieces: usize) -> Self {
        Shuffle { seed, pieces, epoch: None, order: vec![0; len as usize] }
    }

    /// The units that make the batch at `position`.
    pub(super) fn pieces(&mut self, epoch: u64, position: u64) -> &[u32] {
        self.prepare(epoch);
        &self.order[position as usize * self.pieces..][..self.pieces]
    }

    /// Some of the units in the epoch's order.
    pub(super) fn units(&mut self, epoch: u64, first: u64, count: usize) -> &[u32] {
        self.prepare(epoch);
        &self.order[first as usize..][..count]
    }

    fn prepare(&mut self, epoch: u64) {
        if self.epoch == Some(epoch) {
            return;
        }
        let mut state = mix(mix(self.seed.wrapping_add(INCREMENT)) ^ epoch);
        for (i, place) in (0..).zip(&mut self.order) {
            *place = i;
        }
        for i in (1..self.order.len()).rev() {
            state = state.wrapping_add(INCREMENT);
            let j = (u128::from(mix(state)) * (i as u128 + 1)) >> 64;
            self.order.swap(i, j as usize);
        }
        self.epoch = Some(epoch);
    }
}
