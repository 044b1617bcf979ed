//! What tiles see, as tiles side by side, and its transforms.

use arenic_backends::cpu::winograd::{OUTPUTS, SEEN, TAPS, WIDTH};
use std::mem::MaybeUninit;

/// One number of each of some tiles.
pub(super) type Lane = [f32; WIDTH];

/// The numbers of tiles: what they see, their points or their outputs, by both axes.
pub(super) type Block = [[Lane; SEEN]; SEEN];

/// The points are 0, ±[`NEAR`], ±[`FAR`] and infinity.
const NEAR: f32 = 0.75;
const FAR: f32 = 1.5;
const NEAR2: f32 = NEAR * NEAR;
const FAR2: f32 = FAR * FAR;

/// A linear map along one axis.
pub(super) trait Along {
    /// Numbers that it takes, and gives.
    const FROM: usize;
    const TO: usize;

    /// The map; numbers beyond `FROM` and `TO` have no say.
    fn map(x: [f32; SEEN]) -> [f32; SEEN];
}

/// From what a tile sees to its points: `Bᵀ`.
pub(super) struct Seen;

impl Along for Seen {
    const FROM: usize = SEEN;
    const TO: usize = SEEN;

    #[inline(always)]
    fn map(x: [f32; SEEN]) -> [f32; SEEN] {
        let (near, near_odd) = (x[4] - FAR2 * x[2], NEAR * (x[3] - FAR2 * x[1]));
        let (far, far_odd) = (x[4] - NEAR2 * x[2], FAR * (x[3] - NEAR2 * x[1]));
        [
            NEAR2 * FAR2 * x[0] - (NEAR2 + FAR2) * x[2] + x[4],
            near + near_odd,
            near - near_odd,
            far + far_odd,
            far - far_odd,
            NEAR2 * FAR2 * x[1] - (NEAR2 + FAR2) * x[3] + x[5],
        ]
    }
}

/// From the taps of a window to its points: `G`.
pub(super) struct Window;

/// What evaluation at a point is divided by: the product of its distances to the others.
const ZERO_SCALE: f32 = 1.0 / (NEAR2 * FAR2);
const NEAR_SCALE: f32 = 1.0 / (2.0 * NEAR2 * (NEAR2 - FAR2));
const FAR_SCALE: f32 = 1.0 / (2.0 * FAR2 * (FAR2 - NEAR2));

impl Along for Window {
    const FROM: usize = TAPS;
    const TO: usize = SEEN;

    #[inline(always)]
    fn map(x: [f32; SEEN]) -> [f32; SEEN] {
        let near = NEAR_SCALE * x[0] + (NEAR_SCALE * NEAR2) * x[2];
        let far = FAR_SCALE * x[0] + (FAR_SCALE * FAR2) * x[2];
        let (near_odd, far_odd) = ((NEAR_SCALE * NEAR) * x[1], (FAR_SCALE * FAR) * x[1]);
        [ZERO_SCALE * x[0], near + near_odd, near - near_odd, far + far_odd, far - far_odd, x[2]]
    }
}

/// From the products at a tile's points to its outputs: `Aᵀ`.
pub(super) struct Outputs;

impl Along for Outputs {
    const FROM: usize = SEEN;
    const TO: usize = OUTPUTS;

    #[inline(always)]
    fn map(x: [f32; SEEN]) -> [f32; SEEN] {
        let (near, near_odd) = (x[1] + x[2], NEAR * (x[1] - x[2]));
        let (far, far_odd) = (x[3] + x[4], FAR * (x[3] - x[4]));
        [
            x[0] + near + far,
            near_odd + far_odd,
            NEAR2 * near + FAR2 * far,
            NEAR2 * near_odd + FAR2 * far_odd + x[5],
            0.0,
            0.0,
        ]
    }
}

/// From the gradient of a tile's outputs to that of the products at its points: `A`.
pub(super) struct OutputsGrad;

impl Along for OutputsGrad {
    const FROM: usize = OUTPUTS;
    const TO: usize = SEEN;

    #[inline(always)]
    fn map(x: [f32; SEEN]) -> [f32; SEEN] {
        let (near, near_odd) = (x[0] + NEAR2 * x[2], NEAR * (x[1] + NEAR2 * x[3]));
        let (far, far_odd) = (x[0] + FAR2 * x[2], FAR * (x[1] + FAR2 * x[3]));
        [x[0], near + near_odd, near - near_odd, far + far_odd, far - far_odd, x[3]]
    }
}

/// From the gradient of a window's points to that of its taps: `Gᵀ`.
pub(super) struct WindowGrad;

impl Along for WindowGrad {
    const FROM: usize = SEEN;
    const TO: usize = TAPS;

    #[inline(always)]
    fn map(x: [f32; SEEN]) -> [f32; SEEN] {
        let (near, near_odd) = (NEAR_SCALE * (x[1] + x[2]), (NEAR_SCALE * NEAR) * (x[1] - x[2]));
        let (far, far_odd) = (FAR_SCALE * (x[3] + x[4]), (FAR_SCALE * FAR) * (x[3] - x[4]));
        let taps =
            [ZERO_SCALE * x[0] + near + far, near_odd + far_odd, NEAR2 * near + FAR2 * far + x[5]];
        [taps[0], taps[1], taps[2], 0.0, 0.0, 0.0]
    }
}

/// Where the numbers of tiles lie: the first, and elements from one row and column to the next.
#[derive(Clone, Copy)]
pub(super) struct Places<P> {
    first: P,
    strides: [usize; 2],
}

impl<P> Places<P> {
    /// Rows of so many columns, `pitch` elements apart.
    pub(super) fn new(first: P, cols: usize, pitch: usize) -> Places<P> {
        Places { first, strides: [cols * pitch, pitch] }
    }

    #[inline(always)]
    fn at(&self, row: usize, col: usize) -> usize {
        row * self.strides[0] + col * self.strides[1]
    }
}

/// Applies a map along both axes.
///
/// # Safety
/// The lanes that the map takes may be read, those that it gives be written.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // rows and columns of two arrays at once
pub(super) unsafe fn both<M: Along>(from: Places<*const f32>, to: Places<*mut f32>) {
    let mut half = MaybeUninit::<Block>::uninit();
    let half = Places::new(half.as_mut_ptr().cast::<f32>(), SEEN, WIDTH);
    // SAFETY: the caller's promise; `half` is written, then read, in rows that the map gives and columns
    // that it takes.
    unsafe {
        for col in 0..M::FROM {
            for lane in 0..WIDTH {
                let mut x = [0.0; SEEN];
                for row in 0..M::FROM {
                    x[row] = *from.first.add(from.at(row, col) + lane);
                }
                let y = M::map(x);
                for row in 0..M::TO {
                    *half.first.add(half.at(row, col) + lane) = y[row];
                }
            }
        }
        for row in 0..M::TO {
            for lane in 0..WIDTH {
                let mut x = [0.0; SEEN];
                for col in 0..M::FROM {
                    x[col] = *half.first.add(half.at(row, col) + lane);
                }
                let y = M::map(x);
                for col in 0..M::TO {
                    *to.first.add(to.at(row, col) + lane) = y[col];
                }
            }
        }
    }
}

/// Rows as columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn transposed(x: [[f32; 4]; 4]) -> [[f32; 4]; 4] {
    use std::arch::x86_64::*;
    // SAFETY: four numbers are a vector; every machine has SSE2.
    unsafe {
        let [mut a, mut b, mut c, mut d]: [__m128; 4] = std::mem::transmute(x);
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        std::mem::transmute([a, b, c, d])
    }
}

/// Rows as columns.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn transposed(x: [[f32; 4]; 4]) -> [[f32; 4]; 4] {
    std::array::from_fn(|i| std::array::from_fn(|j| x[j][i]))
}
