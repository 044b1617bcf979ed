//! Random operators: a counter-based generator, Philox4x32-10 (Salmon et al., "Parallel
//! random numbers: as easy as 1, 2, 3", 2011).
//!
//! The key is made of seed and stream, the counter of step and element: a value depends
//! on these four and nothing else, so it can be drawn again wherever it is needed. In a later
//! round of a step elements are counted on from those of the rounds before ([`Draw::round`]).

use super::address::{Dst, Src};
use super::dispatch::for_float;
use super::number::{Float, Number};
use super::tasks::{DEAR, for_ranges};
use super::wide::wide;
use crate::kernel::{Call, Draw, KernelError};
use arenic_ir::DType;
use arenic_ir::op::{AttentionDropout, Rng};

/// Counters that are run side by side.
const LANES: usize = 16;

/// Elements that one block of counters gives.
const BLOCK: usize = 4 * LANES;

/// The generator of one operator in one step.
#[derive(Clone, Copy)]
struct Philox {
    key: u64,
    step: u64,
    /// The counter of the first elements.
    origin: u64,
}

/// The finaliser of SplitMix64, a bijection that spreads every bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Philox {
    /// The generator of an operator that draws for so many elements. Streams of one seed have
    /// different keys: everything here is a bijection of either.
    fn new(rng: &Rng, draw: Draw, elements: usize) -> Self {
        let seed = mix(rng.seed.unwrap_or(draw.seed).wrapping_add(0x9e37_79b9_7f4a_7c15));
        let origin = draw.first_counter(elements);
        Philox { key: mix(seed ^ mix(rng.stream)), step: draw.step, origin }
    }

    /// Words of elements `4 · first..4 · first + BLOCK` of this round.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // lanes run through all four words at once
    fn block(self, first: u64) -> [u32; BLOCK] {
        // Words stand in the low halves, where vector units multiply them; what gathers
        // in the high halves is never looked at.
        let low = |x: u64| x & 0xffff_ffff;
        let first = self.origin.wrapping_add(first);
        let mut c = [[0u64; LANES]; 4];
        for lane in 0..LANES {
            let counter = first + lane as u64;
            (c[0][lane], c[1][lane]) = (counter, counter >> 32);
            (c[2][lane], c[3][lane]) = (self.step, self.step >> 32);
        }
        let (mut k0, mut k1) = (self.key as u32, (self.key >> 32) as u32);
        for _ in 0..10 {
            for lane in 0..LANES {
                let p0 = low(c[0][lane]) * 0xd251_1f53;
                let p1 = low(c[2][lane]) * 0xcd9e_8d57;
                c[0][lane] = (p1 >> 32) ^ c[1][lane] ^ u64::from(k0);
                c[1][lane] = p1;
                c[2][lane] = (p0 >> 32) ^ c[3][lane] ^ u64::from(k1);
                c[3][lane] = p0;
            }
            k0 = k0.wrapping_add(0x9e37_79b9);
            k1 = k1.wrapping_add(0xbb67_ae85);
        }
        let mut words = [0; BLOCK];
        for lane in 0..LANES {
            for i in 0..4 {
                words[4 * lane + i] = c[i][lane] as u32;
            }
        }
        words
    }
}

/// Uniform in `[low, high)`.
pub(super) fn uniform(low: f32, high: f32, rng: &Rng, call: &Call) {
    let Some(y) = &call.outputs[0] else { return };
    let philox = Philox::new(rng, call.draw, y.ty().elements());
    let to = Dst::of(y);
    let (low, high) = (f64::from(low), f64::from(high));
    for_float!(y.ty().dtype, T => {
        // Rounding must not reach the upper end.
        let last = if low < high { T::from_f64(high).next_down() } else { T::from_f64(low) };
        for_ranges(y.ty().elements(), DEAR, &|r| {
            // SAFETY: elements of the result.
            let y: *mut T = unsafe { to.at(r.start * size_of::<T>()) }.0.cast();
            let (first, n) = (r.start as u64 / 4, r.len());
            let scale = (high - low) / 4_294_967_296.0;
            // SAFETY: elements of the range, of which each task has its own.
            unsafe { uniform_row(philox, first, n, [low, scale], last, y) };
        });
    });
}

wide! {
    /// `n` elements from word `4 · first` on: a word times the scale, added to the lower end.
    ///
    /// # Safety
    /// `y` is valid for them.
    unsafe fn uniform_row<T: Float>(
        philox: Philox,
        first: u64,
        n: usize,
        range: [f64; 2],
        last: T,
        y: *mut T,
    ) {
        let [low, scale] = range;
        let mut at = 0;
        while at < n {
            let words = philox.block(first + at as u64 / 4);
            let mut values = [T::ZERO; BLOCK];
            for (value, word) in values.iter_mut().zip(words) {
                let v = T::from_f64(low + f64::from(word) * scale);
                *value = if v > last { last } else { v };
            }
            let count = BLOCK.min(n - at);
            // SAFETY: elements of the row.
            unsafe { y.add(at).copy_from_nonoverlapping(values.as_ptr(), count) };
            at += count;
        }
    }
}

/// `y = x · mask / (1 − ratio)`.
pub(super) fn dropout(rng: &Rng, call: &Call) -> Result<(), KernelError> {
    let [x, ratio] = call.inputs else { return Ok(()) };
    let (y, mask) = (&call.outputs[0], &call.outputs[1]);
    if y.is_none() && mask.is_none() {
        return Ok(());
    }
    // SAFETY: a float scalar by inference; read before anything is written.
    let (ratio, scale) = unsafe {
        match ratio.ty().dtype {
            DType::F64 => {
                let ratio = ratio.ptr::<f64>().read();
                (ratio, 1.0 / (1.0 - ratio))
            }
            _ => {
                let ratio = ratio.ptr::<f32>().read();
                (f64::from(ratio), f64::from(1.0 / (1.0 - ratio)))
            }
        }
    };
    if !(0.0..1.0).contains(&ratio) {
        return Err(KernelError::Ratio(ratio.to_string()));
    }
    let philox = Philox::new(rng, call.draw, x.ty().elements());
    // A word below the threshold drops: exactly the words below ratio · 2³².
    let threshold = (ratio * 4_294_967_296.0).ceil() as u64;
    let from = Src::of(x);
    let (y, mask) = (y.as_ref().map(Dst::of), mask.as_ref().map(Dst::of));
    for_float!(x.ty().dtype, T => {
        for_ranges(x.ty().elements(), DEAR, &|r| {
            let first = r.start as u64 / 4;
            let bytes = r.start * size_of::<T>();
            // SAFETY: elements of the operand and of both results.
            let (x, y, mask) = unsafe {
                (from.at(bytes).0, y.map(|y| y.at(bytes).0), mask.map(|m| m.at(r.start).0))
            };
            let scale = T::from_f64(scale);
            // SAFETY: as above; each task has a range of its own.
            unsafe { dropout_row(philox, first, r.len(), threshold, scale, x, [y, mask]) };
        });
    });
    Ok(())
}

/// A dropout that is drawn where its operand is made.
#[derive(Clone, Copy)]
pub(super) struct Dropped<T> {
    philox: Philox,
    threshold: u64,
    /// What the others are multiplied by.
    scale: T,
}

impl<T: Float> Dropped<T> {
    /// For an operand of so many elements.
    pub(super) fn new(dropout: &AttentionDropout, draw: Draw, elements: usize) -> Self {
        Dropped {
            philox: Philox::new(&dropout.rng, draw, elements),
            threshold: dropout.threshold(),
            scale: T::ONE.div(T::ONE.sub(T::from_f64(dropout.ratio))),
        }
    }

    /// Drops of `n` elements of a row, whose first one is element `first` of the operand.
    ///
    /// # Safety
    /// `row` is valid for them, and nobody else uses it.
    pub(super) unsafe fn of_row(self, first: usize, row: *mut T, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { drop_of_row(self, first as u64, row, n) }
    }
}

wide! {
    /// Drops of `n` elements from element `first` of the operand on.
    ///
    /// # Safety
    /// `row` is valid for them, and nobody else uses it.
    unsafe fn drop_of_row<T: Float>(dropped: Dropped<T>, first: u64, row: *mut T, n: usize) {
        // SAFETY: the caller's promise.
        let mut rest = unsafe { std::slice::from_raw_parts_mut(row, n) };
        // A row may begin within the four words of a counter.
        let (mut counter, mut skipped) = (first / 4, first as usize % 4);
        while !rest.is_empty() {
            let words = dropped.philox.block(counter);
            let count = (BLOCK - skipped).min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            for (x, &word) in now.iter_mut().zip(&words[skipped..]) {
                let kept = u64::from(word) >= dropped.threshold;
                *x = if kept { x.mul(dropped.scale) } else { T::ZERO };
            }
            (rest, skipped) = (later, 0);
            counter += LANES as u64;
        }
    }
}

wide! {
    /// `n` elements of result and mask from word `4 · first` on.
    ///
    /// # Safety
    /// Operand and results are valid for them.
    unsafe fn dropout_row<T: Float>(
        philox: Philox,
        first: u64,
        n: usize,
        threshold: u64,
        scale: T,
        x: *const u8,
        results: [Option<*mut u8>; 2],
    ) {
        let [y, mask_to] = results;
        let mut at = 0;
        while at < n {
            let words = philox.block(first + at as u64 / 4);
            let count = BLOCK.min(n - at);
            let mut mask = [0u8; BLOCK];
            for (keep, word) in mask.iter_mut().zip(words) {
                *keep = u8::from(u64::from(word) >= threshold);
            }
            // SAFETY: elements of the row; all of a block are read before one is written.
            unsafe {
                if let Some(y) = y {
                    let mut values = [T::ZERO; BLOCK];
                    let x = x.cast::<T>().add(at);
                    values.as_mut_ptr().copy_from_nonoverlapping(x, count);
                    for (value, keep) in values.iter_mut().zip(mask) {
                        *value = if keep != 0 { value.mul(scale) } else { T::ZERO };
                    }
                    y.cast::<T>().add(at).copy_from_nonoverlapping(values.as_ptr(), count);
                }
                if let Some(m) = mask_to {
                    m.add(at).copy_from_nonoverlapping(mask.as_ptr(), count);
                }
            }
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // From the authors' Random123 library; a counter's halves are element and step.
        let zero = Philox { key: 0, step: 0, origin: 0 }.block(0);
        assert_eq!(zero[..4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Philox { key: u64::MAX, step: u64::MAX, origin: u64::MAX - 20 };
        let ones = ones.block(5);
        assert_eq!(ones[60..], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }
}
